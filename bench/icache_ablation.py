"""iCache's parts, one after the other: time, stall and hit ratio on a slow store, and what they cost in accuracy.

    python bench/icache_ablation.py --data DIR [--quick] [--seeds 3] [--json FILE]

What the paper's Figures 8 to 11 and Tables I and III show (HPCA 2023), with real training on CIFAR-10 (the packed files
that _cifar.py describes) and a cache of a fifth of it. All figures are of the epochs after the warm-up.

Times: one picture is one request. The store is emulated: it answers so many requests per second in all, one of them
takes some milliseconds, and a byte costs little. Packages lie in the same store, and writing them costs as much as
reading. `Oracle` is IIS over a store that costs nothing: it says what computing takes, and what an epoch takes beyond
that is I/O time. Speed-ups are over `Default`, as in the figures.

Accuracy: without a slow store, several seeds; the margin is the paper's own, one point below shuffled training. Every
run is kept beside the JSON (FILE.runs): started again, the benchmark goes on from there. Two runs at a time.
Some 20 minutes on two quiet cores; --quick shows only that it works.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import _cifar
import augury
from _common import arguments, limit, report, say, without_data
from augury.ids import Ids
from augury.learner import Learner, one_thread
from augury.packages import PackageStore
from augury.samplers.selective import WARM_UP
from augury.sources import Base
from augury.sources.array import ArraySource
from augury.sources.slow import SlowSource
from pareto import Runs, key

FIGURES = {
    "Default": "lru",
    "CoorDL": "minio",
    "iLFU": "ilfu",
    "Base": "cis-lru",
    "+IIS": "iis-lru",
    "+HC": "iis-h",
    "All, packages": "icache",
    "All, no packages": "icache",
    "Oracle": "iis-lru",
}
PUBLISHED = {
    "speed-up of an epoch, up to": {"Base": 1.0, "CoorDL": 1.2, "iLFU": 1.4, "+IIS": 1.4, "+HC": 1.7, "All": 2.3},
    "I/O time, mean speed-up": {"Base": 0.77, "CoorDL": 1.3, "iLFU": 1.4, "All": 2.4},
    "hit ratio": {"+IIS": 0.02, "+HC": 0.25, "All": 0.37},
}
"""Figures 8 and 10 (ShuffleNet on CIFAR-10; of CoorDL the ratio of 2.3 to 1.9), 9 and 11."""
SHUFFLED, ACCURACY = "augury-exact", ("icache", "icache-sthc", "iis-lru")
CACHE, BATCH, AHEAD, POINT = 0.2, 64, 8, 0.01
RATE, LATENCY, BANDWIDTH, READERS = 1_500.0, 0.004, 100e6, 16
"""Requests per second, seconds of one, bytes per second, threads that read."""


class Pictures(ArraySource):
    """One request per picture, as from a folder of files or an object store."""

    def requests(self, ids: Ids) -> list[Ids]:
        return Base.requests(self, ids)


def timed(figure: str, x: Any, y: Any, epochs: int) -> dict[str, Any]:
    """One run of real training, and what its later epochs took."""
    oracle = figure == "Oracle"
    plain = Pictures(x, y)
    store = plain if oracle else SlowSource(plain, LATENCY, BANDWIDTH, rate=RATE)
    ahead = AHEAD * BATCH * x[0].nbytes
    room = {"ram": int((1 if oracle else CACHE) * x.nbytes) + ahead, "readahead": ahead}
    with tempfile.TemporaryDirectory() as directory, one_thread():
        if figure == "All, packages":
            assert isinstance(store, SlowSource)
            room["packages"] = PackageStore(
                Path(directory) / "packages", 2 * x.nbytes, store.catalog.fingerprint, line=store.transfer
            )
        with augury.Loader(
            store, BATCH, recipe=FIGURES[figure], **room, epochs=epochs, readers=READERS, output="torch"
        ) as loader:
            learner = Learner(0, sum(map(loader.batches, range(epochs))), 10)
            for _ in range(epochs):
                for some_x, some_y, ids in loader:
                    loader.feedback(ids, learner.learn(some_x, some_y))
            late = loader.stats().epochs[min(WARM_UP, epochs - 1) :]
    requests = sum(epoch.counts.requests for epoch in late)
    computed = sum(epoch.distinct for epoch in late)
    hits, others = (sum(getattr(epoch.counts, name) for epoch in late) for name in ("hits", "substitutes"))
    return {
        "seconds": sum(epoch.seconds for epoch in late) / len(late),
        "computed": computed / len(late),
        "hit ratio": round(hits / requests, 3),
        "hits and substitutes": round((hits + others) / requests, 3),
        "reads per epoch / samples": round(sum(epoch.counts.reads for epoch in late) / len(late) / len(x), 3),
    }


def times(data: Path, samples: int, epochs: int) -> dict[str, Any]:
    """All figures, as ratios to the default."""
    cifar = _cifar.load(data)
    x, y = cifar.x_train[:samples], cifar.y_train[:samples].astype(np.int64)
    runs = {}
    for figure in FIGURES:
        runs[figure] = timed(figure, x, y, epochs)
        say(f"{figure}: {runs[figure]['seconds']:.2f} s per epoch")
    each = runs["Oracle"]["seconds"] / runs["Oracle"]["computed"]
    for run in runs.values():
        run["waiting"] = max(0.0, run["seconds"] - each * run.pop("computed"))
    default = dict(runs["Default"])
    for run in runs.values():
        run["speed-up"] = round(default["seconds"] / run.pop("seconds"), 2)
        run["I/O time / Default's"] = round(run.pop("waiting") / default["waiting"], 3)
    return runs


def accuracy(options: Any, samples: int, epochs: int, seeds: range) -> dict[str, Any]:
    """Final accuracy of shuffled training and of each recipe."""
    kept = None if options.json is None else options.json.with_suffix(f".{samples}-{epochs}.runs")
    runs = Runs(kept, samples, epochs, options.data)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        runs.run(list(product((SHUFFLED, *ACCURACY), (CACHE,), seeds)), pool)
    finals = {
        name: np.array([runs.done[key(name, CACHE, seed)]["accuracy"][-1] for seed in seeds])
        for name in (SHUFFLED, *ACCURACY)
    }
    shuffled = float(finals[SHUFFLED].mean())
    return {
        name: {
            "accuracy": round(float(own.mean()), 4),
            "lowest and highest": [float(own.min()), float(own.max())],
            "below shuffled": limit(shuffled - float(own.mean()), at_most=POINT),
        }
        for name, own in finals.items()
    }


def main() -> None:
    options = arguments(
        __doc__ or "",
        data={"type": Path, "metavar": "DIR", "help": "where the packed CIFAR-10 files are"},
        seeds={"type": int, "default": None, "metavar": "N", "help": "accuracy runs of each kind (default: 3)"},
        only={"choices": ("times", "accuracy"), "help": "one half of it"},
    )
    if without_data(options):
        return
    began = time.perf_counter()
    small, large, epochs, seeds = (500, 1_000, 7, 1) if options.quick else (5_000, 10_000, 15, 3)
    result: dict[str, Any] = {"benchmark": "icache_ablation", "cache": CACHE, "epochs": epochs}
    if options.only != "accuracy":
        result["times"] = times(options.data, small, epochs)
        result["published"] = PUBLISHED
    if options.only != "times":
        result["accuracy"] = accuracy(options, large, epochs, range(options.seeds or seeds))
    report({**result, "minutes": round((time.perf_counter() - began) / 60, 1)}, options.json)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
