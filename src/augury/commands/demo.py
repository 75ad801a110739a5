"""`augury demo`: a slow store, a small cache, real training, every recipe side by side."""

from __future__ import annotations

import importlib.util
import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from augury import recipes
from augury.demo import report
from augury.demo.dataset import FILE_BYTES
from augury.demo.place import Place, Spec
from augury.demo.result import Run, Settings, Store, figures
from augury.errors import ConfigError
from augury.units import format_size

STORE = Store(latency=0.01, bandwidth=3e6)
"""An epoch of 4,000 pictures (12 MB) takes this store some four seconds and one core about one second to compute:
training waits most of the time, and a run of all recipes still ends in a few minutes."""
BATCH = 32
AHEAD = 4
"""Batches read ahead: as many samples as keep all 32 readers busy, and little beside the cache (3 % of the data)."""
FULL, QUICK = (4000, 5), (1500, 3)
"""Pictures to train on, and epochs."""


def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where pictures and results go. Pictures are reused next time.")
    ] = Path("augury-demo"),
    recipe: Annotated[
        str, typer.Option(metavar="A,B,...", help=f"Which recipes, in this order. Known: {', '.join(recipes.RECIPES)}.")
    ] = "augury,augury-exact,none,lru,minio,shade",
    epochs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help=f"Epochs per recipe; {FULL[1]}, or {QUICK[1]} if quick.")
    ] = None,
    cache: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the dataset that the cache may hold, 0.01 to 1.")
    ] = 0.2,
    samples: Annotated[
        int | None,
        typer.Option(min=100, metavar="N", help=f"Pictures to train on; {FULL[0]}, or {QUICK[0]} if quick."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer pictures and epochs: half a minute.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of pictures, weights and order.")] = 0,
) -> None:
    """A slow store, a small cache, real training: recipes side by side, with a plot.

    Draws a small dataset, puts it behind an emulated slow store and trains
    a small net on it once per recipe, each time from scratch. Shows how often
    the cache had what training asked for, how long training waited, and what
    the model learned for the megabytes that it read. Takes two to three
    minutes and about 20 MB of disk.

    Examples:

      augury demo                              (our two, the usual ones, no cache at all, and SHADE)

      augury demo --quick                      (half a minute)

      augury demo --recipe minio,min,shade-1   (only these)

      augury demo --cache 0.5                  (what would half the dataset do?)

    Look at DIR/demo.png afterwards; all figures are in DIR/demo.json.
    """
    names = _chosen(recipe)
    _check(cache)
    images, rounds = QUICK if quick else FULL
    images, rounds = samples or images, epochs or rounds
    settings = Settings(names, rounds, cache, images, seed, BATCH, AHEAD, images * FILE_BYTES, STORE)
    console = Console(highlight=False)
    place = Place(out.expanduser())
    runs: list[Run] = []
    try:
        _prepare(place, settings, console)
        _train(place, settings, runs, console)
    except KeyboardInterrupt:
        _stopped(place, settings, runs, console)
        raise
    _conclude(place, settings, runs, console)


def _chosen(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError("--recipe names no recipe: write for example --recipe lru,min")
    return tuple(recipes.find(name).name for name in names)


def _check(cache: float) -> None:
    if not 0.01 <= cache <= 1:
        raise ConfigError(f"--cache {cache:g}: give a share of the dataset from 0.01 to 1, such as 0.2")
    missing = [name for name in ("torch", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the demo needs {' and '.join(missing)}: pip install 'augury[demo]'")


def _prepare(place: Place, settings: Settings, console: Console) -> None:
    test = max(100, settings.samples // 5)
    reused = place.prepare(Spec(settings.samples, test, settings.seed))
    console.print(
        f"[bold]Pictures[/]  {settings.samples:,} to train on ({format_size(settings.dataset_bytes)}) and {test:,} to "
        f"test with, of 10 shapes, {'found' if reused else 'drawn'} in {escape(str(place.data))}"
    )
    console.print(
        f"[bold]Store[/]     emulated: every read of a local file is delayed as if by {settings.store}, shared by "
        "all readers. Test pictures are not delayed."
    )
    console.print(
        f"[bold]Cache[/]     {settings.cache:.0%} of the dataset, {format_size(settings.cache_bytes)} of memory, and "
        f"{format_size(settings.readahead_bytes)} to read {settings.batches_ahead} batches ahead: "
        f"Loader(..., ram={settings.ram_bytes}, readahead={settings.readahead_bytes})"
    )
    console.print(
        f"[bold]Training[/]  {settings.epochs} epochs with each of {len(settings.recipes)} recipes, from the same "
        f"weights, in the same order\n"
    )


def _train(place: Place, settings: Settings, runs: list[Run], console: Console) -> None:
    from augury.demo.progress import watching
    from augury.demo.training import Trainer, warm_up

    with console.status("loading torch"):
        warm_up(settings.batch_size)
    with watching(console, settings.epochs) as watcher, closing(Trainer(place, settings, watcher)) as trainer:
        for name in settings.recipes:
            runs.append(trainer.run(name))
            # After each, so that a run that is stopped has something to show; an older plot would not belong to it.
            place.plot.unlink(missing_ok=True)
            _save(place, settings, runs)


def _save(place: Place, settings: Settings, runs: list[Run], reading: str = "") -> None:
    place.save(place.figures, json.dumps(figures(settings, runs, reading), indent=2) + "\n")


def _conclude(place: Place, settings: Settings, runs: list[Run], console: Console) -> None:
    from augury.demo.plot import draw_plot

    reading = report.reading(runs, settings)
    _save(place, settings, runs, reading)
    draw_plot(runs, settings, place.plot)
    console.print(report.table(runs))
    console.print(reading)
    plot, all_figures = escape(str(place.plot)), escape(str(place.figures))
    console.print(f"\nLook at [bold]{plot}[/]; all figures are in {all_figures}", soft_wrap=True)


def _stopped(place: Place, settings: Settings, runs: list[Run], console: Console) -> None:
    if runs:
        done = f"{len(runs)} of {len(settings.recipes)} recipes are done: their figures are in {place.figures}"
        console.print(report.table(runs))
    else:
        done = f"no recipe is done; the pictures so far are in {place.data}"
    console.print(f"Stopped. {escape(done)}", soft_wrap=True)
