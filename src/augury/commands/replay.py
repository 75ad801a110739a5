"""`augury replay`: what would a cache hit? Recipes over epochs that they draw, or over a recorded order."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from augury.commands.shared import MARKS, check_plot, items, progress, save_plot
from augury.errors import ConfigError
from augury.knowledge import LAG
from augury.sim.fields import SYNTHETIC, LossField, open_field
from augury.sim.oracles import find
from augury.sim.replay import Order, Result
from augury.sim.replay import replay as run
from augury.sim.verify import verify as check
from augury.trace import Trace

RECIPES = "lru,lfu,fifo,random,minio,min"
SAMPLES, EPOCHS, BATCH, CACHE = 50_000, 8, 128, "0.2"


class Work(NamedTuple):
    """What all recipes are run over."""

    samples: int
    epochs: int
    batch: int
    seed: int
    sizes: NDArray[np.int64] | None = None
    orders: list[Order] | None = None
    losses: LossField | None = None
    lag: int = LAG


def replay(
    recipe: Annotated[
        str | None, typer.Option(metavar="A,B,...", help=f"Recipes to compare. (Default: {RECIPES}.)")
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(metavar="X,Y,...", help=f"Cached fractions of the dataset. (Default: {CACHE}.)"),
    ] = None,
    samples: Annotated[int | None, typer.Option(help=f"Samples in the dataset. (Default: {SAMPLES}.)")] = None,
    epochs: Annotated[int | None, typer.Option(help=f"Epochs to run. (Default: {EPOCHS}.)")] = None,
    batch: Annotated[int | None, typer.Option(help=f"Samples per batch. (Default: {BATCH}.)")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the shuffles and of the policies. (Default: 0.)")] = None,
    losses: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="What recipes that learn are told: `synthetic`, or a file made by `augury record`. Epochs beyond "
            "those recorded repeat the last.",
        ),
    ] = None,
    lag: Annotated[
        int | None, typer.Option(help=f"Batches after which feedback takes effect, as in Loader. (Default: {LAG}.)")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Replay the order (and sizes) of this recorded run.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="With --trace: does a twin reproduce every decision of the run?")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per recipe and cache size.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw hit ratios into this file (.png, .svg, .pdf).")
    ] = None,
) -> None:
    """What would a cache hit? Run recipes over their epochs, with the very objects of a live run.

    Recipes that learn from losses (augury, shade, icache, ...) need some: --losses. Those that learn from embeddings
    (spider, ...) need the synthetic field, which has both.

    Examples:

      augury replay --samples 50000 --epochs 8 --cache 0.2 --recipe lru,minio,min

      augury replay --cache 0.05,0.1,0.2,0.4,0.8 --plot hits.png

      augury replay --recipe minio,shade,augury,pads-min --losses synthetic --cache 0.1,0.2

      augury replay --recipe lru,icache,spider --losses synthetic --samples 10000 --cache 0.1,0.2

      augury replay --trace run.trace --recipe lru,minio     (the order of a recorded run)

      augury replay --trace run.trace --verify               (law: the log reproduces the run)
    """
    if verify:
        _refuse("--verify", recipe=recipe, cache=cache, losses=losses, lag=lag, plot=plot)
        return _verify(trace, as_json)
    if trace is not None:
        _refuse("--trace", samples=samples, epochs=epochs, batch=batch, losses=losses, lag=lag)
        recorded = Trace.open(trace)
        work = _recorded(recorded, seed)
        caches = _numbers(cache) if cache else [_recorded_fraction(recorded)]
        names = _names(recipe or str(recorded.header.get("recipe", RECIPES)))
    else:
        field = _field(losses, samples, seed or 0)
        count = _or(samples, SAMPLES if field is None else field.samples)
        work = Work(count, _or(epochs, EPOCHS), _or(batch, BATCH), seed or 0, losses=field, lag=_or(lag, LAG))
        caches, names = _numbers(cache or CACHE), _names(recipe or RECIPES)
    if plot is not None:
        check_plot(plot)
    results = _run_all(names, caches, work)
    if plot is not None:
        _plot(results, plot)
    if as_json:
        print(json.dumps([result.as_dict() for result in results], indent=2))
    else:
        Console().print(_table(results))


def _field(name: str | None, samples: int | None, seed: int) -> LossField | None:
    """A recorded field says itself how many samples there are; a synthetic one is as large as asked for."""
    if name is None:
        return None
    return open_field(name, _or(samples, SAMPLES) if name == SYNTHETIC else samples, seed)


def _run_all(names: list[str], caches: list[float], work: Work) -> list[Result]:
    results = []
    with progress(len(names) * len(caches) * work.epochs) as advance:
        for name in names:
            for cache in caches:
                told = partial(_told, advance, f"{name}, cache {cache:g}")
                results.append(run(name, cache=cache, **work._asdict(), progress=told))
    return results


def _told(advance: Callable[[str, float], None], text: str, done: int, of: int) -> None:
    advance(text, 1)


def _table(results: list[Result]) -> Table:
    columns = {
        "hits": [one.hit_ratio for one in results],
        "steady": [one.steady["hit_ratio"] for one in results],
        "x cache": [one.steady["hit_ratio"] / one.cache for one in results],
        "substitutes": [one.steady["substitutes"] for one in results],
        "reads": [one.steady["reads"] for one in results],
        "coverage": [one.steady["coverage"] for one in results],
        "ever": [one.ever_seen for one in results],
    }
    # What no recipe at hand does would only take the room of what they do.
    usual = {"substitutes": 0.0, "ever": 1.0}
    shown = {name: values for name, values in columns.items() if name not in usual or set(values) != {usual[name]}}
    caption = (
        "hits: hit ratio over all epochs; all others of the epochs after the second (iCache's: after its warm-up): hit "
        "ratio, its multiple of the cached fraction, samples read per request (of which icache makes fewer), different "
        "samples per epoch"
    )
    if "ever" in shown:
        caption += "; ever: different samples in the whole run"
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", caption=caption, pad_edge=False, collapse_padding=True)
    table.add_column("recipe", no_wrap=True)
    for name in ("cache", *shown, "µs"):
        table.add_column(name, justify="right", no_wrap=True)
    for one, *shares in zip(results, *shown.values(), strict=True):
        cells = [f"{share:.3f}" for share in shares]
        table.add_row(one.recipe, f"{one.cache:g}", *cells, f"{one.us_per_access:.2f}")
    return table


def _verify(path: Path | None, as_json: bool) -> None:
    if path is None:
        raise ConfigError("--verify needs the log of a run: --trace FILE")
    trace = Trace.open(path)
    calls, difference = check(trace)
    if calls == 0:
        raise ConfigError(f"{path} holds no calls: the run ended before its first batch, or held nothing")
    if as_json:
        print(json.dumps({"calls": calls, "same": difference is None, "difference": difference and str(difference)}))
    elif difference is None:
        print(f"{calls:,} calls replayed: every decision is the same")
    if difference is not None:
        print(f"error: {difference}", file=sys.stderr)
        raise typer.Exit(1)


def _recorded(trace: Trace, seed: int | None) -> Work:
    orders: list[Order] = list(trace.epochs())
    if not orders:
        raise ConfigError(f"the call log {trace.path} holds no requests")
    header = trace.header
    chosen = int(header.get("seed", 0)) if seed is None else seed
    return Work(trace.samples, len(orders), int(header.get("batch", BATCH)), chosen, trace.sizes, orders)


def _recorded_fraction(trace: Trace) -> float:
    """What the run's cache held of its dataset, all levels together."""
    return min(1.0, sum(level.capacity / max(1, int(level.costs.sum())) for level in trace.levels()))


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _names(text: str) -> list[str]:
    return [find(name).name for name in items(text, "--recipe")]


def _numbers(text: str) -> list[float]:
    numbers = []
    for item in items(text, "--cache"):
        try:
            numbers.append(float(item))
        except ValueError:
            raise ConfigError(f"--cache takes fractions such as 0.1,0.2, not {item!r}") from None
        if not 0 < numbers[-1] <= 1:
            raise ConfigError(f"--cache is a fraction of the dataset, above 0 and at most 1, not {item}")
    return numbers


def _refuse(option: str, **others: object) -> None:
    for name, value in others.items():
        if value is not None:
            raise ConfigError(f"{option} takes the recorded run as it is; leave out --{name}")


def _plot(results: list[Result], path: Path) -> None:
    """Hit ratio over cache sizes, or over epochs if there is one size."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(result.recipe for result in results))
    caches = sorted({result.cache for result in results})
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, name in enumerate(names):
        own = sorted((result for result in results if result.recipe == name), key=lambda result: result.cache)
        if len(caches) > 1:
            x, y = [result.cache for result in own], [result.hit_ratio for result in own]
        else:
            x, y = [float(epoch) for epoch in range(len(own[0].per_epoch))], own[0].per_epoch
        # Curves may lie on each other: dashes and hollow marks of falling size show that there are several.
        mark, size = MARKS[number % len(MARKS)], 4 + 1.5 * (len(names) - number)
        line = axes.plot(x, y, label=name, linestyle="--" if number % 2 else "-", clip_on=False)[0]
        line.set(marker=mark, markersize=size, fillstyle="none", markevery=1 + len(x) // 16)
    axes.set_ylim(0, min(1.02, 0.05 + 1.1 * max(max(result.per_epoch) for result in results)))
    axes.set_ylabel("hit ratio")
    axes.set_xlabel("cached fraction of the dataset" if len(caches) > 1 else "epoch")
    axes.set_title("Hits by recipe" if len(caches) > 1 else f"Hits by recipe, cache {caches[0]:g}")
    save_plot(figure, path)
