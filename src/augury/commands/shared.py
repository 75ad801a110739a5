"""What several commands share: lists on the command line, bars of progress, pictures that can be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from augury.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = "osD^vP*X"
"""Of the curves of a picture."""


def items(text: str, option: str) -> list[str]:
    """What an option lists, separated by commas, each once."""
    found = [item.strip() for item in text.split(",") if item.strip()]
    if not found:
        raise ConfigError(f"{option} is empty")
    return list(dict.fromkeys(found))


@contextmanager
def progress(total: float) -> Iterator[Callable[[str, float], None]]:
    """A bar on stderr, where somebody may be watching; never between the lines of an output.

    Called with what is being done and how much more of the total is done.
    """
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda text, more: bar.update(task, description=text, advance=more)


def check_plot(path: Path) -> None:
    """Before hours of work: can the picture be drawn at all?"""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'augury[plot]'") from None
    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in kinds:
        raise ConfigError(f"--plot {path}: give a name that ends in .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no directory {path.parent}")


def save_plot(figure: Figure, path: Path) -> None:
    """Write a picture, with the look that all have."""
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error.strerror}") from None
