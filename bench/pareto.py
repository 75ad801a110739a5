"""What accuracy costs in bytes: final accuracy and megabytes read from the store, for five recipes and two caches.

    python bench/pareto.py --data DIR [--quick] [--samples 10000] [--epochs 15] [--seeds 3] [--json FILE] [--plot FILE]

CIFAR-10 (the packed files that _cifar.py describes), of which every recipe trains on the same subset: the net of
`augury record`, from the same weights per seed, with a learning rate that falls to nothing, so that the last test is no
accident. Tested on all test pictures. A recipe is on the front where none other has both fewer megabytes and a higher
mean accuracy. Recipes that visit every sample once see identical batches (digests of their orders are compared), so of
those one is trained per seed, and the others are only fed.

Variants of `augury` run with the smaller cache: epochs drawn later, with more or less repetition, with samples left out
for longer, and with losses weighted by p/q.

Every run is kept beside the JSON (FILE.runs) as soon as it is done: started again, the benchmark goes on from there.
Two runs at a time, one core each. Some 20 minutes on two quiet cores; --quick, a minute, shows only that it works.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

import _cifar
import augury
from _common import arguments, limit, report, say, without_data
from augury.learner import Learner, one_thread
from augury.recipes import Recipe, find
from augury.samplers.bounded import Bounded
from augury.samplers.foresight import Frugal

RECIPES, CACHES = ("lru", "minio", "shade", "augury-exact", "augury"), (0.1, 0.2)
VARIANTS: dict[str, dict[str, Any]] = {
    "lookahead 0": {"lookahead": 0.0},
    "repetition 1.25": {"repetition": 1.25},
    "repetition 2": {"repetition": 2.0},
    "explore 5": {"explore": 5},
    "weighted": {"weigh": True},
}
SHUFFLED = "augury-exact"
"""Whose accuracy is that of shuffled training: its order is the plain one."""
BATCH, AHEAD, WIDTH = 64, 8, 16
WORSE = 0.005
"""Half a point below shuffled training is the limit."""
PROCESSES = 2


def variant(lookahead: float = 1.0, **settings: Any) -> Recipe:
    """`augury` with other settings, as users would make it."""
    sampler = partial(Frugal, base=partial(Bounded, **settings))
    return replace(find("augury"), name="variant", lookahead=lookahead, sampler=sampler)


def train(
    name: str, cache: float, seed: int, samples: int, epochs: int, data: Path, taught: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One run from scratch: its accuracy after each epoch, and what it read. `taught` is a run over the same order."""
    settings = dict(VARIANTS.get(name, {}))
    weigh = settings.pop("weigh", False)
    recipe = variant(**settings) if name in VARIANTS else find(name)
    cifar = _cifar.load(data)
    x, y = cifar.x_train[:samples], cifar.y_train[:samples].astype(np.int64)
    test = [
        (
            torch.from_numpy(cifar.x_test[at : at + 500]),
            torch.from_numpy(cifar.y_test[at : at + 500]).long(),
            range(500),
        )
        for at in range(0, len(cifar.x_test), 500)
    ]
    ahead = AHEAD * BATCH * x[0].nbytes
    room = {"ram": int(cache * x.nbytes) + ahead, "readahead": ahead}
    began, accuracies = time.perf_counter(), []
    with (
        one_thread(),
        augury.Loader(
            (x, y),
            BATCH,
            recipe=recipe,
            **room,
            seed=seed,
            epochs=epochs,
            weights=weigh,
            output="torch",
            rank=0,
            world_size=1,
        ) as loader,
    ):
        learner = Learner(seed, sum(map(loader.batches, range(epochs))), 10, WIDTH)
        order = hashlib.blake2b(digest_size=8)
        for _ in range(epochs):
            for some_x, some_y, ids, *weights in loader:
                order.update(ids.tobytes())
                if taught is None:
                    loader.feedback(ids, learner.learn(some_x, some_y, *weights))
            if taught is None:
                accuracies.append(learner.accuracy(test))
                loader.feedback(accuracy=accuracies[-1])
        stats = loader.stats()
    if taught is not None:
        assert order.hexdigest() == taught["order"], f"{name} does not visit what {SHUFFLED} does"
        accuracies = taught["accuracy"]
    counts = [epoch.counts.shares() for epoch in stats.epochs]
    return {
        "accuracy": [round(it, 4) for it in accuracies],
        "reads": [round(it["reads"], 4) for it in counts],
        "coverage": [round(epoch.distinct / epoch.counts.requests, 4) for epoch in stats.epochs],
        "order": order.hexdigest(),
        "megabytes": round(stats.total.counts.reads * x[0].nbytes / 1e6, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


def front(points: dict[str, tuple[float, float]]) -> list[str]:
    """Of (megabytes, accuracy) those that no other beats in both."""
    return [
        name
        for name, (cost, good) in points.items()
        if not any(c <= cost and g >= good and (c, g) != (cost, good) for c, g in points.values())
    ]


def described(runs: dict[str, Any], names: Iterable[str], cache: float, seeds: range) -> dict[str, Any]:
    """The means over all seeds, and how far they spread."""
    shuffled = np.mean([runs[key(SHUFFLED, cache, seed)]["accuracy"][-1] for seed in seeds])
    table = {}
    for name in names:
        own = [runs[key(name, cache, seed)] for seed in seeds]
        finals = [run["accuracy"][-1] for run in own]
        table[name] = {
            "megabytes": round(float(np.mean([run["megabytes"] for run in own])), 1),
            "accuracy": round(float(np.mean(finals)), 4),
            "lowest and highest": [min(finals), max(finals)],
            "against shuffled": round(float(np.mean(finals) - shuffled), 4),
            "later epochs' reads, coverage": [
                round(float(np.mean([r[n][2:] for r in own])), 3) for n in ("reads", "coverage")
            ],
        }
    return table


def summary(table: dict[str, Any]) -> dict[str, Any]:
    """One cache size."""
    winners = front({name: (it["megabytes"], it["accuracy"]) for name, it in table.items()})
    return {
        "front": winners,
        "augury is on the front": "augury" in winners,
        "augury below shuffled": limit(-table["augury"]["against shuffled"], at_most=WORSE),
        "recipes": table,
    }


def key(recipe: str, cache: float, seed: int) -> str:
    return f"{recipe} {cache:g} seed {seed}"


def draw(caches: dict[str, Any], file: Path) -> None:
    """Accuracy over megabytes, one picture per cache size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    for axes, (cache, found) in zip(figure.subplots(1, len(caches), sharey=True), caches.items(), strict=True):
        for number, (recipe, it) in enumerate(found["recipes"].items()):
            low, high = (100 * value for value in it["lowest and highest"])
            mean = 100 * it["accuracy"]
            axes.errorbar(
                it["megabytes"], mean, [[mean - low], [high - mean]], fmt="osD^v"[number], label=recipe, capsize=4
            )
        axes.set(title=f"cache {cache}", xlabel="megabytes read from the store")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("final test accuracy, % (mean and range)")
    figure.axes[0].legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)


Job: TypeAlias = tuple[str, float, int]
"""A recipe or variant, a cache, a seed."""


class Runs:
    """All runs; those of an earlier start are found again."""

    def __init__(self, kept: Path | None, *settings: Any) -> None:
        self.done: dict[str, Any] = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
        self._kept, self._settings = kept, settings

    def run(self, jobs: list[Job], pool: ProcessPoolExecutor, like: Callable[[Job], Job] | None = None) -> None:
        """Those that are left of some jobs. `like` names the run that has trained on the same order."""
        left = [job for job in jobs if key(*job) not in self.done]
        say(f"{len(jobs) - len(left)} of {len(jobs)} runs are done")
        taught = {job: None if like is None else self.done[key(*like(job))] for job in left}
        under_way = {pool.submit(train, *job, *self._settings, taught[job]): job for job in left}
        for number, done in enumerate(as_completed(under_way), start=1):
            name, result = key(*under_way[done]), done.result()
            self.done[name] = result
            found = f"{result['accuracy'][-1]:.2%}, {result['megabytes']} MB, {result['seconds']} s"
            say(f"{number}/{len(left)} {name}: {found}")
            if self._kept is not None:
                self._kept.parent.mkdir(parents=True, exist_ok=True)
                self._kept.write_text(json.dumps(self.done))


def main() -> None:
    options = arguments(
        __doc__ or "",
        data={"type": Path, "metavar": "DIR", "help": "where the packed CIFAR-10 files are"},
        samples={"type": int, "default": None, "metavar": "N", "help": "of the training pictures (default: 10000)"},
        epochs={"type": int, "default": None, "metavar": "N", "help": "of every run (default: 15)"},
        seeds={"type": int, "default": None, "metavar": "N", "help": "runs of each kind (default: 3)"},
        plot={"type": Path, "metavar": "FILE", "help": "draw the points there"},
    )
    if without_data(options):
        return
    samples, epochs, count = (2_000, 3, 1) if options.quick else (10_000, 15, 3)
    samples, epochs = options.samples or samples, options.epochs or epochs
    seeds = range(options.seeds or count)
    _cifar.load(options.data)  # unpacked once, before several processes want it
    began = time.perf_counter()
    kept = None if options.json is None else options.json.with_suffix(f".{samples}-{epochs}.runs")
    all_runs = Runs(kept, samples, epochs, options.data)
    first = [(SHUFFLED, CACHES[0], seed) for seed in seeds]
    learn = [job for job in product(RECIPES, CACHES, seeds) if find(job[0]).learns]
    plain = [job for job in product(RECIPES, CACHES, seeds) if not find(job[0]).learns]
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        all_runs.run([*first, *learn, *product(VARIANTS, CACHES[:1], seeds)], pool)
        all_runs.run(plain, pool, lambda job: (SHUFFLED, CACHES[0], job[2]))
    runs = all_runs.done
    caches = {f"{cache:.0%}": summary(described(runs, RECIPES, cache, seeds)) for cache in CACHES}
    report(
        {
            "benchmark": "pareto",
            "samples": samples,
            "epochs": epochs,
            "seeds": len(seeds),
            "minutes of this start": round((time.perf_counter() - began) / 60, 1),
            "minutes of all runs, one after the other": round(sum(run["seconds"] for run in runs.values()) / 60, 1),
            **{f"cache {cache}": found for cache, found in caches.items()},
            f"variants of augury, cache {CACHES[0]:.0%}": described(runs, VARIANTS, CACHES[0], seeds),
        },
        options.json,
    )
    if options.plot is not None:
        draw(caches, options.plot)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
