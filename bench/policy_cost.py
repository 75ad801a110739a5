"""What deciding costs: every policy at the size of ImageNet and at ten times that.

    python bench/policy_cost.py [--quick] [--json FILE]

Shuffled epochs, batches of 256, a cache of a fifth of the ids, in its steady state: microseconds per access, bytes
of policy memory per id, how the cost grows with the number of ids, and LRU against the textbook loop over an
OrderedDict in the same run. Deciding is one thread's arithmetic, so processor time is what is measured, and at
the smaller size the lower of two measurements counts: who else uses the machine should not matter. A limit that
does not hold is a field of the JSON, not an exception.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from time import process_time as clock
from typing import Any

import numpy as np

from _common import arguments, report
from augury.policies.classic import FIFO, LFU, LRU, MIN, MinIO, Random
from augury.policies.foresight import NextUse
from augury.step import step

POLICIES = (LRU, LFU, FIFO, Random, MinIO, MIN, NextUse)
SAMPLES = (1_281_167, 12_811_670)
QUICK = (20_000, 200_000)
BATCH, CACHE = 256, 0.2
US_PER_ACCESS, GROWTH, BYTES_PER_ID, AGAINST_LOOP = 1.0, 1.5, 32.0, 1.0
"""The limits: a microsecond per access, whatever the number of ids; faster than the textbook loop."""


def main() -> None:
    given = arguments(__doc__ or "")
    report(measure(*(QUICK if given.quick else SAMPLES)), given.json)


def measure(small: int, large: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    orders = [rng.permutation(small) for _ in range(4)]
    # The loop, then LRU, one after the other: the machine is then the same for both.
    loop = ordered_dict_loop(small, orders)
    policies: dict[str, Any] = {kind.__name__.lower(): {"small": at_small(kind, small, orders)} for kind in POLICIES}
    orders = [rng.permutation(large) for _ in range(3)]
    for kind in POLICIES:
        entry = policies[kind.__name__.lower()]
        entry["large"] = at_large(kind, large, orders)
        growth = entry["large"]["us_per_access"] / entry["small"]["us_per_access"]
        entry["growth"] = round(growth, 3)
        entry["pass"] = {
            "us_per_access": all(entry[size]["us_per_access"] <= US_PER_ACCESS for size in ("small", "large")),
            "growth": growth <= GROWTH,
            "bytes_per_id": all(entry[size]["bytes_per_id"] <= BYTES_PER_ID for size in ("small", "large")),
        }
    ratio = policies["lru"]["small"]["us_per_access"] / loop
    against = {"us_per_access": round(loop, 3), "lru_over_loop": round(ratio, 3), "pass": ratio <= AGAINST_LOOP}
    held = all(all(entry["pass"].values()) for entry in policies.values()) and against["pass"]
    return {
        "bench": "policy_cost",
        "samples": {"small": small, "large": large},
        "batch": BATCH,
        "cache": CACHE,
        "limits": {
            "us_per_access": US_PER_ACCESS,
            "growth": GROWTH,
            "bytes_per_id": BYTES_PER_ID,
            "lru_over_loop": AGAINST_LOOP,
        },
        "policies": policies,
        "ordered_dict": against,
        "pass": held,
    }


def at_small(kind: Any, samples: int, orders: list[Any]) -> dict[str, float]:
    """One epoch to fill and to settle, then one to measure."""
    return measured(kind, samples, orders[0], orders[1], orders[2], rounds=2)


def at_large(kind: Any, samples: int, orders: list[Any]) -> dict[str, float]:
    """The cache filled from the end of one epoch, then the whole of the next: MIN's cost is not the same all along."""
    return measured(kind, samples, orders[0][-int(CACHE * samples) :], orders[1], orders[2], rounds=2)


def measured(kind: Any, samples: int, fill: Any, now: Any, later: Any, rounds: int) -> dict[str, float]:
    """The same epoch in several rounds; of each twentieth of it the best, as the machine is never quiet for long.

    Two epochs are planned at a time, so half of the planning belongs to this one.
    """
    planning, parts = np.inf, np.full(20, np.inf)
    for _ in range(rounds):
        policy = make(kind, samples)
        plan(policy, fill, np.concatenate([now, later]))
        drive(policy, fill)
        planning = min(planning, plan(policy, now, later))
        parts = np.minimum(parts, [drive(policy, part) for part in np.array_split(now, len(parts))])
    return figures(policy, float(parts.sum()), samples, planning / (2 * samples))


def make(kind: Any, samples: int) -> Any:
    return kind(np.ones(samples, np.int64), int(CACHE * samples), np.random.default_rng(1))


def plan(policy: Any, now: Any, later: Any) -> float:
    start = clock()
    if isinstance(policy, MIN | NextUse):
        policy.plan(now, later=later)
    return clock() - start


def batches(order: Any) -> Iterator[Any]:
    return (order[at : at + BATCH] for at in range(0, len(order), BATCH))


def drive(policy: Any, order: Any) -> float:
    stack = [policy]
    start = clock()
    for ids in batches(order):
        step(stack, ids)
    return clock() - start


def figures(policy: Any, seconds: float, requests: int, planning: float) -> dict[str, float]:
    return {
        "us_per_access": round(1e6 * (seconds / requests + planning), 4),
        "us_planning": round(1e6 * planning, 4),
        "bytes_per_id": round(memory(policy) / len(policy.resident), 2),
        "requests": requests,
    }


def memory(policy: Any) -> int:
    """Bytes of all arrays that the policy holds, directly or in its parts; the sizes are the catalog's."""
    seen: dict[int, int] = {}

    def walk(thing: Any) -> None:
        if isinstance(thing, np.ndarray):
            owner = thing if thing.base is None else thing.base
            seen[id(owner)] = getattr(owner, "nbytes", thing.nbytes)
        elif isinstance(thing, list | tuple):
            for item in thing:
                walk(item)
        elif type(thing).__module__.startswith("augury."):
            slots = {name: getattr(thing, name, None) for name in getattr(thing, "__slots__", ())}
            for name, item in {**getattr(thing, "__dict__", {}), **slots}.items():
                if name != "sizes":
                    walk(item)

    walk(policy)
    return sum(seen.values())


def ordered_dict_loop(samples: int, orders: list[Any]) -> float:
    """The textbook LRU, microseconds per access, over the same requests."""
    room, held = int(CACHE * samples), OrderedDict[int, None]()

    def run(order: Any) -> None:
        for ids in batches(order):
            for id in ids.tolist():
                if id in held:
                    held.move_to_end(id)
                else:
                    if len(held) >= room:
                        held.popitem(last=False)
                    held[id] = None

    run(orders[0])
    times = []
    for order in orders[1:3]:
        start = clock()
        run(order)
        times.append(clock() - start)
    return 1e6 * min(times) / samples


if __name__ == "__main__":
    main()
