"""How training is shown while it runs: a line per recipe that fills up on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from augury.demo.result import Epoch
from augury.demo.training import Watcher


@contextmanager
def watching(console: Console, epochs: int) -> Iterator[Watcher]:
    """A watcher that fits where the output goes."""
    if not console.is_terminal:
        yield Lines(console, epochs)
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        TextColumn("{task.fields[epoch]}"),
        BarColumn(bar_width=12),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=8) as bars:
        yield Bars(bars, epochs)


class Bars:
    """One progress bar per recipe; those that are done stay to be compared."""

    def __init__(self, bars: Progress, epochs: int) -> None:
        self._bars, self._epochs = bars, epochs
        self._task = TaskID(0)
        self._accuracy = ""

    def begin(self, recipe: str, batches: int) -> None:
        self._accuracy = ""
        self._task = self._bars.add_task(recipe, total=batches, epoch=f"epoch 1/{self._epochs}", figures="")

    def batch(self, epoch: int, hit_ratio: float, loss: float) -> None:
        figures = f"hits {hit_ratio:5.1%}  loss {loss:4.2f}{self._accuracy}"
        self._bars.update(self._task, advance=1, epoch=f"epoch {epoch + 1}/{self._epochs}", figures=figures)

    def epoch(self, number: int, epoch: Epoch) -> None:
        self._accuracy = f"  accuracy {epoch.accuracy:5.1%}"
        hit_ratio = epoch.stats.counts.shares()["hit_ratio"]
        figures = f"hits {hit_ratio:5.1%}  loss {epoch.loss:4.2f}{self._accuracy}"
        self._bars.update(self._task, figures=figures)


class Lines:
    """One line per epoch, for logs and pipes."""

    def __init__(self, console: Console, epochs: int) -> None:
        self._console, self._epochs = console, epochs
        self._recipe = ""

    def begin(self, recipe: str, batches: int) -> None:
        self._recipe = recipe

    def batch(self, epoch: int, hit_ratio: float, loss: float) -> None:
        pass

    def epoch(self, number: int, epoch: Epoch) -> None:
        stats = epoch.stats
        self._console.print(
            f"{self._recipe:<8} epoch {number + 1}/{self._epochs}  hits {stats.counts.shares()['hit_ratio']:5.1%}  "
            f"{stats.seconds:4.1f} s, stalled {stats.stall_seconds:4.1f} s  "
            f"loss {epoch.loss:4.2f}  accuracy {epoch.accuracy:5.1%}",
            highlight=False,
            soft_wrap=True,
        )
