"""`augury record`: train once, keep every sample's losses, replay importance recipes over them ever after."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from augury.errors import ConfigError
from augury.pictures import Pictures, read_pictures
from augury.recording import Epoch, Plan, Recording
from augury.sim.fields import save_field
from augury.units import format_size

EPOCHS, BATCH, WIDTH = 20, 128, 16
"""CIFAR-10 comes to about 70 % with this, in 20 s per epoch on one core."""


def record(
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="A folder of pictures, one subfolder per class; or an .npz with x and y."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The loss field to write, such as field.npz.")],
    test: Annotated[
        Path | None, typer.Option(metavar="DATA", help="Pictures to test with after every epoch, likewise.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs to train.")] = EPOCHS,
    batch: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = BATCH,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and order.")] = 0,
    width: Annotated[
        int, typer.Option(min=1, max=512, help="Of the net: twice as wide has four times the weights.")
    ] = WIDTH,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Train a small net on DATA and record the loss of every sample after every epoch.

    The file drives importance recipes in a replay, which then needs no
    training: seconds instead of hours, and the same losses for every recipe.

    DATA is a folder with one subfolder per class (PPM files, or with Pillow
    any pictures), an .npz that holds x (N, H, W, 3 or N, H, W; uint8) and
    y (N whole numbers), or x.npy with y.npy beside it. Pictures are brought
    to 32 x 32 and kept in memory, 3 KB each. The same seed gives the same
    file on the same machine. After Ctrl-C, FILE holds the epochs that are done.

    Examples:

      augury record photos/train --out photos.npz --test photos/val

      augury record cifar10.npz --out field.npz --epochs 20 --seed 0

      augury record arrays/x.npy --out field.npz      (y.npy is beside it)

      augury record photos --out try.npz --epochs 2 --width 8   (a quick try)
    """
    check_out(out, force, data, test)
    check_torch()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    train = _read(data, console)
    tested = None if test is None else _read(test, console)
    recording = Recording(data.resolve().name, train, tested, Plan(epochs, batch, seed, width))
    run(recording, out, console)
    _summarise(recording, out)


def check_out(out: Path, force: bool, *data: Path | None) -> None:
    """Before hours of work: can the result be written, and is nothing lost by it?"""
    if out.suffix.lower() != ".npz":
        raise ConfigError(f"--out {out}: give a name that ends in .npz")
    if out.is_dir():
        raise ConfigError(f"--out {out} is a directory: name a file in it, such as {out / 'field.npz'}")
    if out.exists() and any(one is not None and one.exists() and out.samefile(one) for one in data):
        raise ConfigError(f"--out {out} is the data itself: choose another name")
    if out.exists() and not force:
        raise ConfigError(f"--out {out} exists: choose another name, or add --force to replace it")
    parent = out.absolute().parent
    if not parent.is_dir():
        raise ConfigError(f"--out {out}: there is no directory {parent}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {out}: {parent} may not be written to; choose another place")


def check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("augury record trains with torch, which is missing: pip install 'augury[torch]'")


def run(recording: Recording, out: Path, console: Console) -> None:
    """Train, show it, and write what came of it, also if Ctrl-C ends it early."""
    try:
        with _bar(console) as bar:
            task = bar.add_task("loading torch", total=recording.passes)
            recording.run(_Shown(bar, task, recording.plan.epochs))
        save_field(out, recording.field())
    except KeyboardInterrupt:
        console.print(f"Stopped. {escape(_save_rest(recording, out))}")
        raise
    except FloatingPointError as error:
        raise ConfigError(f"{error}: try another --seed or --batch. {_save_rest(recording, out)}") from None


def _save_rest(recording: Recording, out: Path) -> str:
    if not recording.epochs:
        return f"No epoch was done: {out} is not written."
    save_field(out, recording.field())
    return f"{recording.epochs} of {recording.plan.epochs} epochs are recorded in {out}."


def _read(path: Path, console: Console) -> Pictures:
    with _bar(console) as bar:
        task = bar.add_task(f"reading {escape(str(path))}", total=None)
        return read_pictures(path, lambda done, total: bar.update(task, completed=done, total=total))


@contextmanager
def _bar(console: Console) -> Iterator[Progress]:
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(elapsed_when_finished=True)
    # A long memory for speed: learning and measuring take turns, and the time left should not swing with them.
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=300
    ) as bar:
        yield bar


class _Shown:
    """A bar that moves on a terminal, and everywhere one line per epoch."""

    def __init__(self, bar: Progress, task: TaskID, epochs: int) -> None:
        self._bar, self._task, self._epochs = bar, task, epochs
        self._last = ""
        self._seconds = 0.0

    def worked(self, epoch: int, passes: int) -> None:
        text = f"epoch {epoch + 1}/{self._epochs}{self._last}"
        self._bar.update(self._task, advance=passes, description=text)

    def epoch(self, number: int, epoch: Epoch) -> None:
        self._seconds += epoch.seconds
        self._last = f"  loss {epoch.loss:.3f}"
        tested = "" if epoch.accuracy is None else f"  test accuracy {epoch.accuracy:.1%}"
        left = self._seconds / (number + 1) * (self._epochs - number - 1)
        self._bar.console.print(
            f"epoch {number + 1}/{self._epochs}{self._last}{tested}  {epoch.seconds:.1f} s, {_clock(left)} left"
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _summarise(recording: Recording, out: Path) -> None:
    field = recording.field()
    first, last = (float(field.table[epoch].mean(dtype=float)) for epoch in (0, -1))
    print(f"{field.epochs} epochs x {field.samples:,} samples in {out} ({format_size(out.stat().st_size)})")
    print(f"mean loss {first:.3f} after the first epoch, {last:.3f} after the last")
    if field.accuracy is not None:
        print(f"test accuracy {field.accuracy[-1]:.1%}")
