"""A store at half the speed that the job needs: how much longer does an epoch take than it must?

    python bench/foresight_stall.py [--quick] [--json FILE]

The store is emulated: 2 ms per request, and a bandwidth at which the dataset takes twice as long as an epoch's compute
(which is slept, as if a device computed; how long that really takes is measured). Losses are those of the synthetic
field. What an epoch must take is the larger of its compute and the bytes that the recipe itself has read from the
store, over the bandwidth; what it takes beyond that is waste: reads that come in bursts, or too late. Summed over the
epochs after the first.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import augury
from _common import arguments, limit, report, say
from augury.sim.fields import Synthetic

RECIPES, CACHES = ("lru", "minio", "augury-exact", "augury"), (0.1, 0.2, 0.5)
SAMPLES, SIZE, BATCH, EPOCHS = 8_000, 12_288, 64, 6
COMPUTE, LATENCY, SLOWER = 0.02, 0.002, 2.0
"""Seconds per batch, seconds per request, and how much longer the store takes for the data than the job computes."""
WASTE = 0.05
OURS = ("augury-exact", "augury")


def run(recipe: str, cache: float, x: Any, epochs: int) -> dict[str, Any]:
    """Train for some epochs, and reckon."""
    compute = COMPUTE * -(-len(x) // BATCH)
    bandwidth = x.nbytes / (SLOWER * compute)
    source = augury.SlowSource(augury.ArraySource(x), LATENCY, bandwidth)
    field = Synthetic(len(x))
    ahead = 8 * BATCH * SIZE
    seconds, needed = [], []
    with augury.Loader(
        source, BATCH, recipe=recipe, ram=int(cache * x.nbytes) + ahead, readahead=ahead, epochs=epochs, output="numpy"
    ) as loader:
        for epoch in range(epochs):
            began, computed = time.perf_counter(), 0.0
            for _, _, ids in loader:
                step = time.perf_counter()
                time.sleep(COMPUTE)
                loader.feedback(ids, field.losses(epoch, ids))
                computed += time.perf_counter() - step
            seconds.append(time.perf_counter() - began)
            reads = loader.stats().epochs[-1].counts.shares()["reads"]
            needed.append(max(computed, reads * x.nbytes / bandwidth))
    spent, least = sum(seconds[1:]), sum(needed[1:])
    say(f"{recipe} {cache:.0%}: {spent:.2f} s, at least {least:.2f} s")
    waste = spent / least - 1
    return {
        "waste": limit(waste, at_most=WASTE) if recipe in OURS else round(waste, 3),
        "epochs / compute": round(spent / (compute * (epochs - 1)), 3),
        "at least / compute": round(least / (compute * (epochs - 1)), 3),
    }


def main() -> None:
    options = arguments(__doc__ or "")
    samples, epochs = (2_000, 3) if options.quick else (SAMPLES, EPOCHS)
    x = np.random.default_rng(0).integers(0, 256, (samples, SIZE), dtype=np.uint8)
    caches = {f"cache {cache:.0%}": {name: run(name, cache, x, epochs) for name in RECIPES} for cache in CACHES}
    report({"benchmark": "foresight_stall", "samples": samples, "epochs": epochs, **caches}, options.json)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
