"""Two jobs on one cache: whose importance should decide what is held? iCache's Figure 14 (HPCA 2023).

    python bench/icache_jobs.py [--quick] [--json FILE]

Two loaders share one cache and one emulated store, which answers so many requests per second in all. The light job
computes for a short time per batch, the heavy one for longer (slept, as if a device computed); each has a loss field of
its own, as two different models have. Compared are LRU over shuffled epochs (Default), the light job's importance for
both (INDA), the heavy job's (INDB), and the adjusted importance of both (AIV), weighted by what each was measured to
gain. All but the default pay for the measuring. They take turns, several rounds (the default has one, of few epochs);
figures are sums of both jobs' mean times of an epoch, over those of AIV in the same round.

Importance is sharper than usual (beta 2 keeps a third of the samples), so that it matters what is held. Some 9 minutes.
"""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import augury
from _common import arguments, limit, report, say
from augury.ids import Ids, Scores
from augury.jobs import Jobs, relative
from augury.packages import PackageStore
from augury.recipes import Recipe, find
from augury.samplers.selective import IIS
from augury.sim.fields import Synthetic
from augury.sources import Base
from augury.sources.array import ArraySource
from augury.sources.slow import SlowSource

SCHEMES = ("Default", "INDA", "INDB", "AIV")
PUBLISHED = {"INDA / AIV": 1.1, "INDB / AIV": 1.2}
SAMPLES, SIZE, BATCH, CACHE = 12_000, 1_024, 8, 0.4
COMPUTE = {"light": 0.0005, "heavy": 0.002}
"""Seconds per batch."""
RATE, LATENCY = 1_000.0, 0.003
SKIPPED = 3
"""Epochs before both jobs' importance counts, and before most packages are written."""


def importance_of(jobs: Jobs, chosen: int) -> Scores:
    """One job's importance for all."""
    return relative(jobs._jobs[chosen].importance).astype(np.float32)


class Samples(ArraySource):
    """One request per sample."""

    def requests(self, ids: Ids) -> list[Ids]:
        return Base.requests(self, ids)


def recipe(beta: float) -> Recipe:
    """iCache that chooses from the second epoch on, and always."""
    return replace(find("icache"), sampler=partial(IIS, beta=beta, warm_up=1, reuse=None))


def work(loader: augury.Loader, compute: float, seed: int, epochs: int, took: list[float], hits: list[float]) -> None:
    """One job: epochs of reading, waiting and telling."""
    field = Synthetic(SAMPLES, seed)
    for epoch in range(epochs):
        began = time.perf_counter()
        for _, _, ids in loader:
            time.sleep(compute)
            loader.feedback(ids, field.losses(epoch, ids))
        took.append(time.perf_counter() - began)
        shares = loader.stats().epochs[-1].counts.shares()
        hits.append(shares["hit_ratio"] + shares["substitutes"])


def run(scheme: str, x: Any, beta: float, epochs: int, directory: Path) -> dict[str, Any]:
    """Both jobs at once."""
    store = SlowSource(Samples(x), LATENCY, rate=RATE)
    ahead = 8 * BATCH * SIZE
    common = {"batch_size": BATCH, "readahead": ahead, "output": "numpy", "epochs": epochs}
    room, shared = {"ram": int(CACHE * x.nbytes) + ahead}, {}
    if scheme == "Default":
        room["recipe"] = "lru"
    else:
        packages = PackageStore(directory / scheme, 2 * x.nbytes, store.catalog.fingerprint, line=store.transfer)
        shared = {"recipe": recipe(beta)}
        room |= {"packages": packages, **shared}
    first = augury.Loader(store, seed=0, **room, **common)
    second = augury.Loader(first.source, cache=first.cache, seed=1, **shared, **common)
    if scheme.startswith("IND"):
        jobs = first.cache.jobs  # all else stays: benefits are measured, and cost as much, though nobody asks for them
        jobs.adjusted = partial(importance_of, jobs, "AB".index(scheme[-1]))  # type: ignore[method-assign]
    took: dict[str, list[float]] = {name: [] for name in COMPUTE}
    hits: dict[str, list[float]] = {name: [] for name in COMPUTE}
    with first, second:
        threads = [
            threading.Thread(target=work, args=(loader, COMPUTE[name], seed, epochs, took[name], hits[name]))
            for seed, (name, loader) in enumerate(zip(COMPUTE, (first, second), strict=True))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        benefits = first.cache.jobs.benefits()
    both = min(map(len, took.values()))
    return {
        "seconds": {name: float(np.mean(took[name][SKIPPED:both])) for name in COMPUTE},
        "hits": {name: round(float(np.mean(hits[name][SKIPPED:both])), 3) for name in COMPUTE},
        "benefit": {str(job): benefit and round(benefit, 2) for job, benefit in benefits.items()},
    }


def main() -> None:
    options = arguments(
        __doc__ or "",
        rounds={"type": int, "default": None, "help": "how often each scheme runs (default: 3)"},
        beta={"type": float, "default": 2.0, "help": "of importance sampling (default: 2, a third is kept)"},
    )
    epochs, rounds = (5, 1) if options.quick else (9, 3)
    x = np.random.default_rng(0).integers(0, 256, (SAMPLES, SIZE), dtype=np.uint8)
    runs: dict[str, list[dict[str, Any]]] = {scheme: [] for scheme in SCHEMES}
    for number, scheme in product(range(options.rounds or rounds), SCHEMES):
        if scheme == "Default" and number:
            continue
        with tempfile.TemporaryDirectory() as directory:
            done = run(scheme, x, options.beta, SKIPPED + 1 if scheme == "Default" else epochs, Path(directory))
        runs[scheme].append(done)
        say(f"{scheme}: {sum(done['seconds'].values()):.2f} s, {done}")
    ratios = {
        f"{scheme} / AIV": [
            sum(it["seconds"].values()) / sum(aiv["seconds"].values())
            for it, aiv in zip(runs[scheme], runs["AIV"], strict=False)
        ]
        for scheme in SCHEMES[:-1]
    }
    report(
        {
            "benchmark": "icache_jobs",
            "beta": options.beta,
            "sum of epoch times": {
                name: {"rounds": [round(it, 3) for it in each], **limit(float(np.median(each)), at_least=1.0)}
                for name, each in ratios.items()
            },
            "published": PUBLISHED,
            "hits and substitutes": {scheme: [it["hits"] for it in each] for scheme, each in runs.items()},
            "measured benefit": [it["benefit"] for it in runs["AIV"]],
        },
        options.json,
    )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
