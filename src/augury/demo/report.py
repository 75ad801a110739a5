"""What a demo says at the end: a table with the best of each column marked, and a reading of it in plain English.

Every statement of the reading is computed from the figures; nothing is said that the run did not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich import box
from rich.table import Table

from augury.demo.result import Run, Settings
from augury.recipes import find
from augury.samplers.shuffle import Shuffle


class _Column(NamedTuple):
    title: str
    value: Callable[[Run], float]
    text: Callable[[float], str]
    best: Callable[[Sequence[float]], float]


_COLUMNS = (
    _Column("hits", lambda run: run.hit_ratio, "{:.1%}".format, max),
    _Column("distinct", lambda run: run.coverage, "{:.0%}".format, max),
    _Column("epoch s", lambda run: run.epoch_seconds, "{:.2f}".format, min),
    _Column("stall s\n(in all)", lambda run: run.stall_seconds, "{:.1f}".format, min),
    _Column("MB read\n(in all)", lambda run: run.store_bytes / 1e6, "{:.1f}".format, min),
    _Column("accuracy\n(at end)", lambda run: run.accuracy, "{:.1%}".format, max),
)
_AFTER_FIRST = ("hits", "distinct", "epoch s")


def table(runs: Sequence[Run]) -> Table:
    """One line per recipe. The best of a column has a star, unless all are equal."""
    made = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption="* best. The first epoch fills the cache."
    )
    made.caption_justify = "left"
    made.add_column("recipe", style="bold", min_width=max(len(run.recipe) for run in runs))
    several = len(runs[0].epochs) > 1
    if not several:
        made.caption = "* best"
    cells = []
    for column in _COLUMNS:
        title = column.title + ("\n(after 1st)" if several and column.title in _AFTER_FIRST else "")
        made.add_column(title, justify="right")
        cells.append(_marked(column, runs))
    for at, run in enumerate(runs):
        made.add_row(run.recipe, *(column[at] for column in cells))
    return made


def _marked(column: _Column, runs: Sequence[Run]) -> list[str]:
    """Compared as printed: a difference that cannot be seen makes no winner."""
    values = [column.value(run) for run in runs]
    texts = [column.text(value) for value in values]
    best = column.text(column.best(values))
    if len(set(texts)) == 1:
        return [f"{text}  " for text in texts]
    return [f"[bold green]{text} *[/]" if text == best else f"{text}  " for text in texts]


def reading(runs: Sequence[Run], settings: Settings) -> str:
    """The result in a few sentences."""
    said = (_waiting(runs), _winner(runs, settings), _beaten(runs, settings), _learning(runs), *_biased(runs))
    return " ".join(sentence for sentence in said if sentence)


def _waiting(runs: Sequence[Run]) -> str:
    """What it costs to have no cache."""
    bare = _bare(runs)
    if bare is None:
        return ""
    share = bare.epoch_stall_seconds / bare.epoch_seconds
    return (
        f"Without a cache an epoch took {bare.epoch_seconds:.1f} s, and training stood still for {share:.0%} of it, "
        "waiting for the store."
    )


def _winner(runs: Sequence[Run], settings: Settings) -> str:
    """Who found the most in the cache, and what that saved."""
    top = max((run.hit_ratio for run in runs), default=0.0)
    best = sorted((run for run in runs if _about(run.hit_ratio, top)), key=lambda run: run.epoch_seconds)
    if top == 0.0:
        return ""
    told = (
        f"With a cache of {settings.cache:.0%} of the dataset, {_listed([run.recipe for run in best])} found the "
        f"most in it: {top:.0%} of all requests{_bound(runs, top, settings)}"
    )
    other = _bare(runs) or max(runs, key=lambda run: run.epoch_seconds)
    saved = 1 - best[0].epoch_seconds / other.epoch_seconds
    if other in best or saved < 0.01:
        return f"{told}."
    less = 1 - best[0].store_bytes / other.store_bytes
    whose = "without a cache" if other.recipe == "none" else f"with {other.recipe}"
    gain = f"Epochs with {best[0].recipe} took {saved:.0%} less time than those {whose}"
    return " ".join(
        [
            f"{told}. {gain}, and its whole run read {less:.0%} fewer bytes.",
            *(_bunched(run, best[0]) for run in best[1:]),
        ]
    ).rstrip()


def _bound(runs: Sequence[Run], top: float, settings: Settings) -> str:
    """Why nobody found more, where that is so."""
    if not all(_visits_once(run) for run in runs) or not _about(top, settings.cache) or len(runs[0].epochs) < 2:
        return ""
    return ", as many as it can hold, and none can do better while every sample is visited once per epoch"


def _bunched(run: Run, fastest: Run) -> str:
    """As many hits can be worth less time, if they come all at once."""
    slower = run.epoch_seconds / fastest.epoch_seconds - 1
    if slower < 0.02 or run.early_share < 0.6:
        return ""
    return (
        f"{run.recipe} took {slower:.0%} longer than {fastest.recipe} all the same: {run.early_share:.0%} of its hits "
        "came in the first quarter of an epoch, faster than training could use them."
    )


def _beaten(runs: Sequence[Run], settings: Settings) -> str:
    """Recipes that found less in the cache than lay in it."""
    poor = [run for run in runs if run.recipe != "none" and run.hit_ratio < 0.75 * settings.cache]
    if not poor or len(runs[0].epochs) < 2:
        return ""
    worst = min(poor, key=lambda run: run.hit_ratio)
    least = f"{worst.hit_ratio:.1%}" if len(poor) == 1 else f"{worst.recipe} only {worst.hit_ratio:.1%}"
    return (
        f"{_listed([run.recipe for run in poor])} got less out of the same memory ({least}): what was "
        "just used is not needed again before the next epoch, and keeping it pushed out what was needed sooner."
    )


def _learning(runs: Sequence[Run]) -> str:
    """Whether the recipes learnt the same, and whether they should have."""
    alike = [run for run in runs if _visits_once(run)]
    if len(alike) < 2 or len({run.order for run in alike}) > 1:
        return ""
    low, high = min(run.accuracy for run in alike), max(run.accuracy for run in alike)
    who = f"All {len(alike)} recipes" if len(alike) == len(runs) else _listed([run.recipe for run in alike])
    if high - low < 1e-9:
        result = f"ended at the same accuracy, {high:.1%}"
    else:
        result = f"ended between {low:.1%} and {high:.1%} accuracy"
    return f"{who} saw identical batches and {result}: the cache changes the waiting, not the learning."


def _biased(runs: Sequence[Run]) -> Iterator[str]:
    """What the recipes that learn did to training."""
    plain = [run for run in runs if _visits_once(run)]
    for run in runs:
        if run in plain or len(run.epochs) < 2:
            continue
        told = f"{run.recipe} chose what to visit: {run.coverage:.0%} of an epoch's visits were to different pictures"
        if plain:
            told += f"; it ended at {run.accuracy:.1%} accuracy, beside {max(one.accuracy for one in plain):.1%}"
        yield f"{told}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _bare(runs: Sequence[Run]) -> Run | None:
    return next((run for run in runs if run.recipe == "none"), None)


def _visits_once(run: Run) -> bool:
    return find(run.recipe).sampler is Shuffle


def _about(value: float, other: float) -> bool:
    """Equal to the half percent that a reader would call equal."""
    return abs(value - other) <= 0.005
