"""The demo's picture: accuracy for the megabytes read, where an epoch's time goes, what the cache finds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from augury.demo.result import Run, Settings
from augury.units import format_size

_COMPUTE, _STALL, _HIT = "#4c956c", "#d1495b", "#2e6f95"


def draw_plot(runs: Sequence[Run], settings: Settings, path: Path) -> None:
    """Draw and save."""
    # The object-oriented interface: pyplot would look for a screen.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    learning, times, hits = figure.subplots(1, 3, width_ratios=(1.5, 1.2, 0.9))
    _learning(learning, runs)
    _times(times, runs)
    _hits(hits, runs, settings)
    figure.suptitle(
        f"{settings.samples:,} pictures ({format_size(settings.dataset_bytes)}) from {settings.store} (emulated), "
        f"cache {settings.cache:.0%}",
        fontsize=13,
        fontweight="bold",
    )
    figure.savefig(path, dpi=120, format="png")


def _times(axes: Any, runs: Sequence[Run]) -> None:
    names = [run.recipe for run in runs]
    stall = [run.epoch_stall_seconds for run in runs]
    compute = [run.epoch_seconds - run.epoch_stall_seconds for run in runs]
    axes.barh(names, compute, color=_COMPUTE, label="computing")
    bars = axes.barh(names, stall, left=compute, color=_STALL, label="waiting for data (stall)")
    axes.bar_label(bars, [f"{run.epoch_seconds:.2f} s" for run in runs], padding=4)
    axes.margins(x=0.16)
    axes.set_xlabel("seconds per epoch" + _which(runs))
    axes.set_title("Where an epoch's time goes")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, frameon=False)
    _tidy(axes)


def _hits(axes: Any, runs: Sequence[Run], settings: Settings) -> None:
    percent = [100 * run.hit_ratio for run in runs]
    bars = axes.barh([run.recipe for run in runs], percent, color=_HIT)
    axes.bar_label(bars, [f"{value:.1f} %" for value in percent], padding=4)
    fits = 100 * settings.cache
    axes.axvline(fits, color="#555555", linestyle="--", linewidth=1, label="share of the data that fits")
    axes.margins(x=0.22)
    axes.set_xlim(left=0)
    axes.set_xlabel("% of requests" + _which(runs))
    axes.set_title("Found in the cache")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), frameon=False)
    _tidy(axes)


def _learning(axes: Any, runs: Sequence[Run]) -> None:
    from matplotlib import colormaps

    colours = colormaps["tab10"]
    for at, run in enumerate(runs):
        read = 0
        megabytes, accuracy = [], []
        for epoch in run.epochs:
            read += epoch.stats.bytes_from.get("source", 0) + epoch.stats.prefetched_bytes
            megabytes.append(read / 1e6)
            accuracy.append(100 * epoch.accuracy)
        # Whoever sees equal batches has equal accuracies: marks of falling size show that there are several.
        size = 3 + 1.2 * (len(runs) - at)
        line = axes.plot(megabytes, accuracy, marker="o", linewidth=1.6, color=colours(at % 10), label=run.recipe)[0]
        line.set(markersize=size, fillstyle="none")
    axes.set_xlim(left=0)
    axes.set_xlabel("megabytes read from the store (a mark per epoch)")
    axes.set_ylabel("% of test pictures named rightly")
    axes.set_title("What accuracy costs")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", title="recipe")


def _which(runs: Sequence[Run]) -> str:
    return ", after the first epoch" if len(runs[0].epochs) > 1 else ""


def _tidy(axes: Any) -> None:
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
