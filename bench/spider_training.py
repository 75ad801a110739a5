"""SpiderCache beside the others: time and accuracy of real training from a slow store, with a cache of a fifth.

    python bench/spider_training.py --data DIR [--quick] [--samples 5000] [--epochs 30] [--seeds 3] [--json FILE]

What the paper's Tables 4, 5 and 6 show (ICPP 2025), with a subset of CIFAR-10 (the packed files that _cifar.py
describes), pictures moved and mirrored at random, and the net of `augury record`.

Times: the store is emulated. How long an epoch computes is measured first, and the store is made so slow that an epoch
without a cache takes four times as long. One picture is one request. Times are those of whole epochs, tests left out;
so is the time until a run first has the accuracy with which lru ends. Because learning rates fall to nothing at the end
of a run, runs that are half as long again are tried for that, too.

Accuracy: all seeds, without a slow store, two runs at a time.

Scorer: what scoring adds to an epoch that waits for nothing but the processor: all pictures in memory, the spider
recipe with its scorer, and with one that scores nothing; in turns.

Some 40 minutes on two quiet cores; --quick shows only that it works.
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import _cifar
import augury
import augury.torch
from _common import arguments, limit, report, say, without_data
from augury.ids import Ids, Scores
from augury.learner import Learner, one_thread
from augury.recipes import Recipe, find
from augury.scorers import Embeddings, Labels
from augury.scorers.graph import Graph
from augury.sources.slow import SlowSource
from icache_ablation import Pictures

RECIPES = ("lru", "minio", "shade", "icache", "spider", "augury", "augury-spider")
RATIOS = ("spider-90", "spider", "spider-90-50")
LONGER, TRIED_LONGER = 1.5, ("spider", "augury-spider")
PUBLISHED = {
    "Table 4, hours of lru's (CIFAR-10)": {"lru": 1.0, "minio": 0.70, "shade": 0.60, "icache": 0.56, "spider": 0.43},
    "Table 5, accuracy (CIFAR-10)": {"lru": 78.3, "minio": 78.4, "shade": 80.6, "icache": 72.8, "spider": 81.4},
    "Table 6, accuracy and minutes": {"spider-90": [81.63, 165], "spider": [81.44, 125], "spider-90-50": [78.87, 109]},
}
SPIDERS = "spider", "spider,"
CACHE, BATCH, AHEAD, WIDTH, READERS = 0.2, 64, 8, 16, 16
SLOWNESS = 4.0
"""An epoch without a cache, in epochs of computing."""
TURNS = 3


class Data:
    """A part of CIFAR-10, and all its test pictures."""

    def __init__(self, folder: Path, samples: int) -> None:
        cifar = _cifar.load(folder)
        self.x, self.y = cifar.x_train[:samples], cifar.y_train[:samples].astype(np.int64)
        tests = torch.from_numpy(cifar.x_test), torch.from_numpy(cifar.y_test).long()
        self.test = [(x, y, range(len(y))) for x, y in zip(tests[0].split(500), tests[1].split(500), strict=True)]


def moved(x: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    """Pictures shifted by up to four points, and half of them mirrored."""
    count, side = len(x), x.shape[1]
    padded = torch.nn.functional.pad(x, (0, 0, 4, 4, 4, 4))
    down, right = torch.randint(0, 9, (2, count, 1), generator=chance)
    places = torch.arange(side)[None]
    columns = torch.where(torch.rand(count, 1, generator=chance) < 0.5, places.flip(1), places) + right
    return padded[torch.arange(count)[:, None, None], (places + down)[:, :, None], columns[:, None, :]]


def train(data: Data, recipe: str | Recipe, epochs: int, seed: int, rate: float | None, cache: float = CACHE) -> Any:
    """One run: seconds, accuracy and counts of each epoch. `rate`: requests per second that the store answers."""
    source: Any = Pictures(data.x, data.y)
    if rate is not None:
        source = SlowSource(source, rate=rate)
    ahead = AHEAD * BATCH * data.x[0].nbytes
    room = {"ram": int(cache * data.x.nbytes) + ahead, "readahead": ahead, "readers": READERS}
    accuracy: list[float] = []
    with (
        one_thread(),
        augury.Loader(source, BATCH, recipe=recipe, **room, seed=seed, epochs=epochs, output="torch") as loader,
    ):
        learner = Learner(seed, sum(map(loader.batches, range(epochs))), 10, WIDTH)
        chance = torch.Generator().manual_seed(seed)
        seen = augury.torch.capture_embeddings(learner.model)
        for epoch in range(epochs):
            for x, y, ids in loader:
                losses = learner.learn(moved(x, chance), y)
                loader.feedback(ids, losses, embeddings=seen.take(), labels=y)
            late = epoch + 1 >= 0.6 * epochs  # earlier, no run is as good as another at its end
            accuracy.append(learner.accuracy(data.test if late else data.test[:2]))
            loader.feedback(accuracy=accuracy[-1])
        stats = loader.stats()
    counts = [epoch.counts.shares() for epoch in stats.epochs]
    return {
        "seconds": [round(epoch.seconds, 3) for epoch in stats.epochs],
        "accuracy": [round(value, 4) for value in accuracy],
        "late": [epoch + 1 >= 0.6 * epochs for epoch in range(epochs)],
        **{name: [round(count[name], 4) for count in counts] for name in ("hit_ratio", "substitutes", "reads")},
        "coverage": [round(epoch.distinct / epoch.counts.requests, 4) for epoch in stats.epochs],
        "ratio": [epoch.gauges.get("importance_ratio") for epoch in stats.epochs],
        "not scored in time": stats.feedback.overtaken,
    }


def computing(data: Data) -> float:
    """Seconds of an epoch whose pictures are all in memory."""
    return float(np.median(train(data, "minio", 4, 0, None, cache=1.1)["seconds"][1:]))


def times(data: Data, epochs: int) -> dict[str, Any]:
    """Every recipe on the slow store."""
    compute = computing(data)
    rate = len(data.x) / (SLOWNESS * compute)
    runs = {}
    jobs = [(name, epochs) for name in dict.fromkeys((*RECIPES, *RATIOS))]
    jobs += [(name, round(LONGER * epochs)) for name in TRIED_LONGER]
    for name, length in jobs:
        label = name if length == epochs else f"{name}, {LONGER:g} x the epochs"
        runs[label] = train(data, name, length, 0, rate)
        say(f"{label}: {sum(runs[label]['seconds']):.0f} s, {100 * runs[label]['accuracy'][-1]:.1f} %")
    lru, goal = sum(runs["lru"]["seconds"]), runs["lru"]["accuracy"][-1]
    table = {}
    for label, run in runs.items():
        until = reached(run, goal)
        table[label] = {
            "time / lru's": round(sum(run["seconds"]) / lru, 3),
            "accuracy": run["accuracy"][-1],
            "times faster than lru to its accuracy": None if until is None else round(lru / until, 2),
            "later epochs": {
                name: round(float(np.mean(run[name][2:])), 3)
                for name in ("hit_ratio", "substitutes", "reads", "coverage")
            },
            "not scored in time": run["not scored in time"],
        }
        if run["ratio"][-1] is not None:
            table[label]["ratio at last"] = round(run["ratio"][-1], 3)
    own = [it["times faster than lru to its accuracy"] or 0.0 for name, it in table.items() if name[:7] in SPIDERS]
    return {
        "an epoch without a cache / computing": SLOWNESS,
        "recipes": table,
        "spider to lru's accuracy, times faster": limit(max(own), at_least=2.2),
        "spider's whole run, times faster": limit(1 / table["spider"]["time / lru's"], at_least=2.2),
    }


def reached(run: dict[str, Any], goal: float) -> float | None:
    """Seconds until an accuracy on all test pictures was reached."""
    for epoch, (late, accuracy) in enumerate(zip(run["late"], run["accuracy"], strict=True)):
        if late and accuracy >= goal:
            return float(sum(run["seconds"][: epoch + 1]))
    return None


def final(folder: Path, samples: int, epochs: int, name: str, seed: int) -> tuple[str, float]:
    """The accuracy at the end of one run, on a store that costs nothing."""
    return name, train(Data(folder, samples), name, epochs, seed, None)["accuracy"][-1]


def accuracies(folder: Path, samples: int, epochs: int, seeds: int) -> dict[str, Any]:
    """Of every recipe, over all seeds."""
    found: dict[str, list[float]] = {}
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        names = [name for name in dict.fromkeys((*RECIPES, *RATIOS)) if name != "minio"]  # its batches are lru's
        tasks = [pool.submit(final, folder, samples, epochs, *job) for job in product(names, range(seeds))]
        for task in tasks:
            name, accuracy = task.result()
            found.setdefault(name, []).append(accuracy)
            say(f"{name}: {100 * accuracy:.1f} %")
    lru = float(np.mean(found["lru"]))
    return {
        name: {
            "accuracy": round(float(np.mean(own)), 4),
            "lowest and highest": [min(own), max(own)],
            "below lru": limit(lru - float(np.mean(own)), at_most=0.0) if name != "lru" else 0.0,
        }
        for name, own in found.items()
    }


class Scoreless(Graph):
    """Takes embeddings and makes nothing of them."""

    def score(self, ids: Ids, evidence: Embeddings, labels: Labels | None = None, /) -> Scores:
        return np.ones(len(ids), np.float32)


def scoring(data: Data, epochs: int) -> dict[str, Any]:
    """What the scorer adds to an epoch that is bound by the processor."""
    spider = find("spider")
    idle = replace(spider, scorer=Scoreless)
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    overtaken = 0
    for _ in range(TURNS):
        for name, recipe in (("with", spider), ("without", idle)):
            run = train(data, recipe, epochs, 0, None, cache=1.1)
            seconds[name] += run["seconds"][1:]
            overtaken += run["not scored in time"]
    added = float(np.median(seconds["with"]) / np.median(seconds["without"])) - 1
    return {"added to an epoch": limit(added, at_most=0.03), "not scored in time": overtaken}


def main() -> None:
    options = arguments(
        __doc__ or "",
        data={"type": Path, "metavar": "DIR", "help": "where the packed CIFAR-10 files are"},
        samples={"type": int, "default": None, "metavar": "N", "help": "pictures to train on (default: 5000)"},
        epochs={"type": int, "default": None, "metavar": "N", "help": "of a run (default: 30)"},
        seeds={"type": int, "default": 3, "metavar": "N", "help": "accuracy runs of each recipe (default: 3)"},
        only={"choices": ("times", "accuracy", "scorer"), "help": "one part of it"},
    )
    if without_data(options):
        return
    began = time.perf_counter()
    samples, epochs = (
        options.samples or (640 if options.quick else 5_000),
        options.epochs or (3 if options.quick else 30),
    )
    data, seeds = Data(options.data, samples), 1 if options.quick else options.seeds
    result: dict[str, Any] = {"benchmark": "spider_training", "cache": CACHE, "samples": samples, "epochs": epochs}
    if options.only in (None, "scorer"):
        result["scorer"] = scoring(data, min(epochs, 6))
    if options.only in (None, "times"):
        result["times"] = times(data, epochs)
    if options.only in (None, "accuracy"):
        result["accuracy"] = accuracies(options.data, samples, epochs, seeds)
    result["published"] = PUBLISHED
    report({**result, "minutes": round((time.perf_counter() - began) / 60, 1)}, options.json)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
