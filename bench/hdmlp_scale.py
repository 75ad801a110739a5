"""A large simulated cluster: HDMLP against naive on ImageNet-sized data, and how the cost of simulating it grows.

    python bench/hdmlp_scale.py                  64, 256 and 1,024 nodes, 1.28 million samples, 10 epochs

Prints what the cluster would take, and how long the simulation itself took per access. Nodes as in Listing 4.1 of the
HDMLP thesis; the source serves 128 and more nodes as it serves 128.
"""

from __future__ import annotations

import resource
import time
from typing import Any

from _common import arguments, limit, report, say
from augury.sim import nodes, scenario
from augury.sim.strategies import access_strings

SAMPLES, EPOCHS, PER_NODE = 1_281_167, 10, 32
POLICIES = ("lower-bound", "naive", "hdmlp")
SOURCE = {1: 66, 2: 86, 4: 146, 8: 326, 16: 324, 32: 324, 64: 324, 128: 324}


def main() -> None:
    given = arguments(__doc__, nodes={"type": int, "nargs": "+", "default": [64, 256, 1024], "help": "cluster sizes"})
    samples = 50_000 if given.quick else SAMPLES
    counts = [16, 64] if given.quick else given.nodes
    rows = [_run(count, samples, policy) for count in counts for policy in POLICIES]
    most = max(counts)
    result: dict[str, Any] = {"samples": samples, "epochs": EPOCHS, "runs": rows}
    result["cost per access against the smallest cluster"] = {
        policy: {str(row["nodes"]): round(row["us_per_access"] / first["us_per_access"], 2) for row in own}
        for policy in POLICIES[1:]
        if (own := [row for row in rows if row["policy"] == policy]) and (first := own[0])
    }
    minutes = sum(row["seconds"] for row in rows if row["nodes"] == most) / 60
    result["checks"] = {f"minutes for {most} nodes": limit(minutes, at_most=10)}
    result["peak GB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    report(result, given.json)


def _run(count: int, samples: int, policy: str) -> dict[str, Any]:
    say(f"{count} nodes: {policy}")
    parameters = scenario.read("1") | {"N": count, "E": EPOCHS, "B": count * PER_NODE}
    parameters |= {
        "sizes": {"F": samples, "mu": 0.1077, "sigma": 0.1},
        "t": {str(at): mbs for at, mbs in SOURCE.items()},
    }
    world = scenario.build(parameters)
    began = time.perf_counter()
    found = nodes.run(policy, world, accesses=access_strings(world, 0))
    took = time.perf_counter() - began
    assert found is not None
    visits = scenario.build(parameters).batches * EPOCHS * world.batch
    return {
        "nodes": count,
        "policy": policy,
        "runtime": round(found.runtime, 1),
        "stall": round(found.stall, 1),
        "reads": vars(found.reads),
        "seconds": round(took, 1),
        "us_per_access": round(1e6 * took / visits, 2),
    }


if __name__ == "__main__":
    main()
