"""What knowing the whole run costs: who is requested how often, and when first, for one rank of 1, 16 and 256.

    python bench/plan_cost.py [--quick] [--json FILE]

Ninety epochs of ImageNet. Beside the seconds stand those of drawing the same permutations and doing nothing with them,
measured in the same run; beside the peak of memory, the bytes of one epoch's order. Then what it costs a policy to
place the samples on a level of a tenth of the data. Processor time is what is measured. A limit that does not hold is
a field of the JSON, not an exception.
"""

from __future__ import annotations

import tracemalloc
from time import process_time as clock
from typing import Any

import numpy as np

from _common import arguments, limit, report, say
from augury.distributed import Place
from augury.knowledge import Knowledge
from augury.policies.placement import Placement
from augury.samplers.shuffle import Shuffle
from augury.schedule import Schedule

SAMPLES, EPOCHS, QUICK = 1_281_167, 90, (20_000, 10)
WORLDS = (1, 16, 256)
BATCH, CACHE = 32, 0.1
TIMES_PERMUTATIONS, MEGABYTES = 2.0, 200.0
"""The limits: a plan takes no more than so many times the bare permutations, and so much memory."""


def main() -> None:
    given = arguments(__doc__ or "")
    samples, epochs = QUICK if given.quick else (SAMPLES, EPOCHS)
    report(measure(samples, epochs), given.json)


def measure(samples: int, epochs: int) -> dict[str, Any]:
    known = Knowledge.none(0)
    bare = bare_permutations(samples, epochs, known)
    worlds = {}
    for world in WORLDS:
        say(f"one rank of {world} ...")
        worlds[str(world)] = one_rank(samples, epochs, world, known, bare)
    return {
        "bench": "plan_cost",
        "samples": samples,
        "epochs": epochs,
        "batch": BATCH,
        "permutations_seconds": round(bare, 3),
        "order_megabytes": round(8 * samples / 1e6, 2),
        "world_sizes": worlds,
    }


def bare_permutations(samples: int, epochs: int, known: Knowledge) -> float:
    sampler = Shuffle(samples, 0)
    start = clock()
    for epoch in range(epochs):
        sampler.draw(epoch, known)
    return clock() - start


def one_rank(samples: int, epochs: int, world: int, known: Knowledge, bare: float) -> dict[str, Any]:
    schedule = Schedule(Shuffle(samples, 0), BATCH, Place(world // 2, world), samples, epochs=epochs)
    start = clock()
    order, times = schedule.future(0, 0, known)
    seconds = clock() - start
    policy = Placement(np.ones(samples, np.int64), int(CACHE * samples))
    start = clock()
    policy.plan(order, 0, times)
    placing = clock() - start
    return {
        "seconds": round(seconds, 3),
        "over_permutations": limit(seconds / bare, at_most=TIMES_PERMUTATIONS),
        "peak_megabytes": limit(peak(lambda: schedule.future(0, 0, known)) / 1e6, at_most=MEGABYTES),
        "placing_seconds": round(placing, 3),
        "placing_over_a_permutation": round(placing / (bare / epochs), 2),
        "requested_samples": len(order),
        "most_often": int(times.max()),
    }


def peak(act: Any) -> int:
    """The most memory that was held at once, beyond what was there before; measured apart, as it takes time."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    main()
