"""New importance for every sample, and training goes on: what the shadow order spares a minibatch.

    python bench/icache_shadow.py [--quick] [--json FILE]

A full H-cache of a fifth of the samples learns new importance for all of them, an epoch is planned, and minibatches are
decided as in a live cache. With the shadow order each of the next 32 minibatches builds a piece of the new order; in
place, the whole order is sorted out when the first newcomer asks who leaves. Compared are the longest decisions among
the minibatches after the plan, each over the median decision of the same run: what one unlucky minibatch waits.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from _common import arguments, limit, report, say
from augury.ids import NONE, Ids, Times
from augury.policies.importance import ByImportance
from augury.step import step

SAMPLES, BATCH, CACHE, MINIBATCHES, ROUNDS = 10_000_000, 256, 0.2, 200, 5


class InPlace(ByImportance):
    """The old order is thrown away at once."""

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> Ids:
        self.key[:] = self.importance
        self._front.restart()
        return NONE


def decisions(make: type[ByImportance], samples: int) -> dict[str, Any]:
    """Seconds of the plan and of each decision after it."""
    rng = np.random.default_rng(0)
    policy = make(np.ones(samples, np.int64), int(CACHE * samples))
    everybody = np.arange(samples)
    policy.adopt(rng.permutation(samples)[: int(CACHE * samples)])
    longest, median, planning = [], [], []
    for _ in range(ROUNDS):
        policy.learn(everybody, rng.random(samples, np.float32))
        order = rng.permutation(samples)[: MINIBATCHES * BATCH]
        began = time.perf_counter()
        policy.plan(order)
        planning.append(time.perf_counter() - began)
        took = []
        for start in range(0, len(order), BATCH):
            began = time.perf_counter()
            step([policy], order[start : start + BATCH])
            took.append(time.perf_counter() - began)
        longest.append(max(took))
        median.append(float(np.median(took)))
    least = min(median)
    return {
        "longest decision / median": round(min(longest) / least, 1),
        "plan / median decision": round(min(planning) / least, 1),
        "longest, seconds": min(longest),
    }


def main() -> None:
    options = arguments(__doc__ or "")
    samples = 500_000 if options.quick else SAMPLES
    found = {}
    for name, make in (("shadow", ByImportance), ("in place", InPlace)):
        found[name] = decisions(make, samples)
        say(f"{name}: {found[name]}")
    ratio = found["shadow"].pop("longest, seconds") / found["in place"].pop("longest, seconds")
    report(
        {
            "benchmark": "icache_shadow",
            "samples": samples,
            "longest decision, shadow / in place": limit(ratio, at_most=0.25),
            **found,
        },
        options.json,
    )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
