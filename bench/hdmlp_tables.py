"""Tables 5.1 to 5.6 of the HDMLP thesis, published and simulated side by side.

    python bench/hdmlp_tables.py

Runs `augury simulate --model paper` for the four scenarios and their ten policies, and the environments of section
5.2.3, one process per processor, and prints by how much each figure differs, how long it all took and the memory of
the largest process. Beside them stands what the default model says, which is not published: see docs/recipes/hdmlp.md.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

from _common import arguments, limit, report, say
from augury.sim.strategies import PUBLISHED as POLICIES

PUBLISHED: dict[int, list[float | None]] = {
    1: [7.30, 27.78, 7.78, 10.24, 8.41, 8.40, 10.11, 7.71, 8.41, 8.41],
    2: [3825.66, 15130.54, 3836.12, 4982.27, 4433.27, 4432.90, 4972.65, 4051.12, 4433.27, 4433.27],
    3: [7655.25, 30272.96, 7661.26, 9945.29, 23948.24, 8487.42, 9313.58, None, None, 9314.33],
    4: [15204.78, 60526.36, 16795.17, 19888.26, 54122.52, 16034.89, 16861.82, None, None, 19082.99],
}
"""Tables 5.1 to 5.4, seconds, in the order of the policies."""

STAGING = ("d.0=4096", "d.2=0")
ENVIRONMENTS: dict[str, tuple[str, tuple[str, ...], float]] = {
    "no storage": ("naive", (), 30275.72),
    "staging buffer of 1 GB": ("hdmlp", ("d.0=1024", "d.1=0", "d.2=0"), 9947.0),
    "staging buffer of 4 GB": ("hdmlp", ("d.0=4096", "d.1=0", "d.2=0"), 9947.0),
    "10 GB RAM": ("hdmlp", (*STAGING, "d.1=10240"), 9554.47),
    "20 GB RAM": ("hdmlp", (*STAGING, "d.1=20480"), 9239.67),
    "40 GB RAM": ("hdmlp", (*STAGING, "d.1=40960"), 8613.13),
    "20 GB storage": ("hdmlp", (*STAGING, "d.1=20480", "r.1.2=100"), 9579.53),
    "40 GB storage": ("hdmlp", (*STAGING, "d.1=40960", "r.1.2=100"), 9257.99),
    "80 GB storage": ("hdmlp", (*STAGING, "d.1=81920", "r.1.2=100"), 8703.59),
}
"""Section 5.2.3 with Tables 5.5 and 5.6: the policy, what is changed in scenario 3, and seconds."""


def main() -> None:
    given = arguments(__doc__, seed={"type": int, "default": 42, "help": "of sizes and orders (42)"})
    began = time.monotonic()
    scenarios = {number: _table(number, given.seed) for number in ([1] if given.quick else PUBLISHED)}
    took = time.monotonic() - began
    environments = [] if given.quick else _environments(given.seed)
    clean = {
        number: _simulate(number, given.seed, "--model", "clean") for number in ([1] if given.quick else PUBLISHED)
    }
    worst = {
        number: max(abs(row["differs"]) for row in rows if row["differs"] is not None)
        for number, rows in scenarios.items()
    }
    result: dict[str, Any] = {
        "tables 5.1 to 5.4": {f"scenario {number}": rows for number, rows in scenarios.items()},
        "section 5.2.3, tables 5.5 and 5.6": environments,
        "the default model": {f"scenario {number}": _seconds(rows) for number, rows in clean.items()},
        "checks": {
            f"scenario {number}, largest difference in percent": limit(
                worst[number], at_most=1.5 if number == 1 else 1.0
            )
            for number in scenarios
        },
    }
    if environments:
        furthest = max(abs(row["differs"]) for row in environments)
        result["checks"]["tables 5.5 and 5.6, largest difference in percent"] = limit(furthest, at_most=1.0)
        result["checks"]["minutes for all scenarios and policies"] = limit(took / 60, at_most=6)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        result["checks"]["GB of the largest process, of two"] = limit(peak, at_most=2)
    report(result, given.json)


def _table(number: int, seed: int) -> list[dict[str, Any]]:
    found = _simulate(number, seed, "--model", "paper")
    return [
        _row(policy, published, result["runtime"])
        for policy, published, result in zip(POLICIES, PUBLISHED[number], found, strict=True)
    ]


def _environments(seed: int) -> list[dict[str, Any]]:
    rows = []
    for name, (policy, settings, published) in ENVIRONMENTS.items():
        changed = [part for setting in settings for part in ("--set", setting)]
        found = _simulate(3, seed, "--model", "paper", "--policy", policy, *changed)
        rows.append(_row(name, published, found[0]["runtime"]))
    return rows


def _row(name: str, published: float | None, simulated: float | None) -> dict[str, Any]:
    if published is None or simulated is None:
        agree = published is None and simulated is None
        return {"name": name, "published": published, "simulated": simulated, "differs": None if agree else 100.0}
    return {
        "name": name,
        "published": published,
        "simulated": round(simulated, 2),
        "differs": round(100 * (simulated / published - 1), 2),
    }


def _seconds(found: list[dict[str, Any]]) -> dict[str, float | None]:
    return {each["policy"]: each["runtime"] and round(each["runtime"], 2) for each in found}


def _simulate(number: int, seed: int, *options: str) -> list[dict[str, Any]]:
    say(f"scenario {number} {' '.join(options)}")
    command = [sys.executable, "-m", "augury.cli", "simulate", "--scenario", str(number), "--seed", str(seed), "--json"]
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, check=True, text=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
