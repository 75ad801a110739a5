"""What it costs to look ahead: an epoch drawn by importance, arranged and planned, against a bare permutation.

    python bench/foresight_cost.py [--quick] [--json FILE]

ImageNet's 1.28 million ids, caches of 10 and 50 %. Measured is what recipe `augury` does once per epoch, in the thread
that decides, never in the one that trains: arrange this epoch, draw the next, tell the policy both. Processor time.
Memory is counted in bytes per id: the peak of an epoch's planning beyond what was there, and all that stays.
"""

from __future__ import annotations

import tracemalloc
from time import process_time as clock
from typing import Any

import numpy as np

from _common import arguments, limit, report, say
from augury.distributed import Place
from augury.ids import NONE
from augury.knowledge import Knowledge
from augury.recipes import find
from augury.schedule import Schedule
from augury.step import plan, step

SAMPLES, QUICK, CACHES, BATCH = 1_281_167, 50_000, (0.1, 0.5), 256
TIMES_PERMUTATION, BYTES = 20.0, 64.0
REPEATS = 3


class Held:
    """A policy as the schedule sees a cache; what planning it costs is timed."""

    def __init__(self, policy: Any, samples: int) -> None:
        self.policy, self.samples = policy, samples

    @property
    def resident(self) -> Any:
        return self.policy.resident.copy()

    @property
    def prefetches(self) -> bool:
        return bool(self.policy.prefetches)

    @property
    def room(self) -> float:
        return float(self.policy.capacity)

    def plan(self, order: Any, *, times: Any = None, later: Any = NONE) -> None:
        plan([self.policy], order, times=times, later=later)

    def wanted(self) -> Any:
        return self.policy.wanted(self.policy.capacity)


def learned(samples: int) -> Knowledge:
    """As after an epoch of minibatches of 256."""
    known = Knowledge.none(samples)
    ranks = np.random.default_rng(0).integers(0, BATCH, samples)
    known.learn(np.arange(samples), np.log(ranks + 10).astype(np.float32))
    known.seen[:] = 0
    return known


def measure(samples: int, cache: float) -> dict[str, Any]:
    recipe, rng = find("augury"), np.random.default_rng(0)
    known, permutation = learned(samples), best(lambda: rng.permutation(samples))
    policy = recipe.policy(np.ones(samples, np.int64), int(cache * samples), rng)
    policy.adopt(rng.permutation(samples)[: int(cache * samples)])
    policy.learn(np.arange(samples), known.scores)
    schedule = Schedule(
        recipe.sampler(samples, 0), BATCH, Place(0, 1), samples, lookahead=recipe.lookahead, epochs=1 << 20
    )
    tracemalloc.start()
    walk = schedule.walk(1, 0, Held(policy, samples), known, plan=True)
    seconds, at, requests = [], tracemalloc.get_traced_memory()[0], 0.0
    tracemalloc.reset_peak()
    for epoch in range(REPEATS):
        began = clock()
        work = next(walk)
        seconds.append(clock() - began)
        if epoch == 0:
            now, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()  # it takes time
            seconds.clear()
        began = clock()
        while not work.ends_epoch:
            step([policy], work.ids)
            work = next(walk)
        requests = clock() - began
        step([policy], work.ids)
    say(f"cache {cache:.0%}: {min(seconds):.3f} s, a permutation {permutation:.3f} s")
    return {
        "an epoch's planning / a permutation": limit(min(seconds) / permutation, at_most=TIMES_PERMUTATION),
        "bytes per id, at the peak of planning": limit((peak - at + held(policy, known)) / samples, at_most=BYTES),
        "of which stay": round((now - at + held(policy, known)) / samples, 1),
        "microseconds per request, besides": round(1e6 * requests / samples, 2),
    }


def held(policy: Any, known: Knowledge) -> int:
    """Bytes that were there before planning: the policy's and what is known."""
    own = [it for it in vars(policy).values() if isinstance(it, np.ndarray) and it.strides != (0,)]
    return sum(array.nbytes for array in own) + known.scores.nbytes + known.seen.nbytes


def best(act: Any) -> float:
    times = []
    for _ in range(REPEATS):
        began = clock()
        act()
        times.append(clock() - began)
    return min(times)


def main() -> None:
    options = arguments(__doc__ or "")
    samples = QUICK if options.quick else SAMPLES
    caches = {f"cache {cache:.0%}": measure(samples, cache) for cache in CACHES}
    report({"benchmark": "foresight_cost", "samples": samples, **caches}, options.json)


if __name__ == "__main__":
    main()
