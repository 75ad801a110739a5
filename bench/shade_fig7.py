"""Figures 7 and 12 of SHADE (FAST 2023): hit ratios by recipe and cache size, published and ours, with coverage.

    python bench/shade_fig7.py                            the synthetic field and the recorded CIFAR-10 field
    python bench/shade_fig7.py --plot shade               also draws shade-hits.png and shade-coverage.png

The recipes run in the simulator, with the objects of a live run, driven by losses of bench/data/cifar10-losses.npz
(`bench/record_cifar.py` has recorded them) and by the built-in synthetic field. The accuracies recorded beside them are
left out: they are of a model that was trained on shuffled epochs, and a dip in them would pause repetition.

The published ratios are to LRU under shuffled epochs, whose hit ratio is far below the cached fraction: so ours stand
beside both.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from _common import arguments, limit, report, say
from augury.policies.shade import APPByLot
from augury.recipes import EPOCHS, Recipe
from augury.samplers.importance import PADS
from augury.scorers.loss import LossRank
from augury.sim.fields import LossField, Recorded, Synthetic, open_field
from augury.sim.replay import Result, replay

RECORDED = Path(__file__).parent / "data" / "cifar10-losses.npz"
ABLATIONS = ("sh-pqlfu", "sh-pq", "sh-lru", "sh-lfu", "sh-rand")
RECIPES = ("lru", "minio", "min", *ABLATIONS, "sh-app", "shade-1", "shade", "shade-paper")
CACHES = (0.1, 0.2, 0.25, 0.5, 0.75)
REPETITIONS = (1, 1.5, 2, 2.5, 3)
BATCH = 128
PUBLISHED = {
    "figure 7, cache 0.1, hit ratio as a multiple of LRU's": {"shade": 4.5, "sh-app": 2.67, "other sh-": 1.94},
    "figure 12, cache 0.2, hit ratio": {"shade": 0.725, "minio": 0.2, "substitution": 0.2},
}


def main() -> None:
    given = arguments(__doc__, plot={"metavar": "NAME", "help": "draw NAME-hits.png and NAME-coverage.png"})
    epochs = 4 if given.quick else 12
    fields: dict[str, LossField] = {"synthetic": Synthetic(5_000 if given.quick else 50_000)}
    if not given.quick:
        recorded = open_field(str(RECORDED), None, 0)
        assert isinstance(recorded, Recorded)
        fields["cifar10"] = Recorded(recorded.table)
    result: dict[str, Any] = {"epochs": epochs, "batch": BATCH, "published": PUBLISHED}
    for name, field in fields.items():
        runs = _runs(name, field, epochs)
        repeated = _repeated(name, field, epochs)
        result[name] = {"recipes": _table(runs), "repetition": _table(repeated), "checks": _checks(runs)}
        if given.plot:
            _draw(f"{given.plot}-{name}", runs, repeated)
    report(result, given.json)


def _runs(name: str, field: LossField, epochs: int) -> list[Result]:
    runs = []
    for recipe in RECIPES:
        say(f"{name}: {recipe}")
        runs += [replay(recipe, field.samples, epochs, cache, BATCH, losses=field) for cache in CACHES]
    return runs


def _repeated(name: str, field: LossField, epochs: int) -> list[Result]:
    """SHADE with other repetition factors: what a hit costs in coverage."""
    runs = []
    for times in REPETITIONS:
        say(f"{name}: repetition {times:g}")
        recipe = Recipe(f"shade x{times:g}", APPByLot, "", partial(PADS, repetition=times), LossRank, foresight=EPOCHS)
        runs += [replay(recipe, field.samples, epochs, cache, BATCH, losses=field) for cache in CACHES]
    return runs


def _table(runs: list[Result]) -> list[dict[str, Any]]:
    lru = {run.cache: run.steady["hit_ratio"] for run in runs if run.recipe == "lru"}
    return [
        {
            "recipe": run.recipe,
            "cache": run.cache,
            **{name: round(value, 4) for name, value in run.steady.items()},
            "ever_seen": round(run.ever_seen, 4),
            "x_cache": round(run.steady["hit_ratio"] / run.cache, 2),
            **({"x_lru": round(run.steady["hit_ratio"] / lru[run.cache], 2)} if lru.get(run.cache) else {}),
        }
        for run in runs
    ]


def _checks(runs: list[Result]) -> dict[str, Any]:
    """What must hold: hit ratios of the epochs after the second."""
    hits = {(run.recipe, run.cache): run.steady["hit_ratio"] for run in runs}
    margins = {
        "shade above sh-app, at every size": min(hits["shade", c] - hits["sh-app", c] for c in CACHES),
        "sh-app above each other sh-": min(hits["sh-app", c] - hits[other, c] for c in CACHES for other in ABLATIONS),
        "each other sh- above lru": min(hits[other, c] - hits["lru", c] for c in CACHES for other in ABLATIONS),
    }
    return {
        "shade at 0.1, as a multiple of the cache": limit(hits["shade", 0.1] / 0.1, at_least=3),
        "shade at 0.2": limit(hits["shade", 0.2], at_least=0.62),
        "shade-paper at 0.1, as a multiple of the cache": limit(hits["shade-paper", 0.1] / 0.1, at_least=4),
        "shade-paper at 0.2 (figure 12)": limit(hits["shade-paper", 0.2], at_least=0.725),
        **{name: limit(margin, at_least=0) for name, margin in margins.items()},
    }


def _draw(name: str, runs: list[Result], repeated: list[Result]) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    hits = Figure(figsize=(9, 4.6), layout="constrained")
    axes = hits.add_subplot()
    marks = "osD^vP*Xhp<>"
    colours = colormaps["tab20"].colors
    for at, recipe in enumerate(RECIPES):
        own = [run for run in runs if run.recipe == recipe]
        ratios = [run.steady["hit_ratio"] for run in own]
        x = [run.cache for run in own]
        axes.plot(x, ratios, marker=marks[at], color=colours[at], fillstyle="none", label=recipe)
    lru = next(run.steady["hit_ratio"] for run in runs if run.recipe == "lru" and run.cache == 0.1)
    axes.plot([0.2], [0.725], "k_", markersize=14, markeredgewidth=2, label="published: SHADE, figure 12")
    axes.plot([0.1], [4.5 * lru], "kx", label="published: 4.5 x LRU, figure 7")
    axes.set(xlabel="cached fraction of the dataset", ylabel="hit ratio, epochs after the second", ylim=(0, 1.05))
    _finish(hits, axes, f"{name}-hits.png")
    coverage = Figure(figsize=(7, 4.6), layout="constrained")
    axes = coverage.add_subplot()
    for at, cache in enumerate(CACHES):
        own = [run for run in repeated if run.cache == cache]
        x, y = [run.steady["coverage"] for run in own], [run.steady["hit_ratio"] for run in own]
        axes.plot(x, y, marker=marks[at], fillstyle="none", label=f"cache {cache:g}")
        for run, left, up in zip(own, x, y, strict=True):
            axes.annotate(run.recipe.split()[-1], (left, up), textcoords="offset points", xytext=(4, 4), fontsize=7)
        paper = next(run for run in runs if run.recipe == "shade-paper" and run.cache == cache)
        axes.plot(paper.steady["coverage"], paper.steady["hit_ratio"], "k.", label="shade-paper" if at == 0 else None)
    axes.set(xlabel="coverage: different samples per epoch", ylabel="hit ratio, epochs after the second")
    _finish(coverage, axes, f"{name}-coverage.png")


def _finish(figure: Any, axes: Any, path: str) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    figure.savefig(path, dpi=120)
    say(f"drew {path}")


if __name__ == "__main__":
    main()
