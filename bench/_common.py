"""What all benchmarks share: their command line and the JSON they print. No measurement lives here.

Every figure is a ratio to something measured in the same run: on a shared machine absolute times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def arguments(description: str, **options: dict[str, Any]) -> argparse.Namespace:
    """--quick, --json FILE, and what the benchmark adds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it works; figures mean little")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result there")
    for name, option in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **option)
    return parser.parse_args()


def report(result: dict[str, Any], file: Path | None = None) -> None:
    """Print a result as JSON, with where it was measured."""
    result = {
        "machine": {"python": platform.python_version(), "cpu": platform.processor() or platform.machine()}
    } | result
    text = json.dumps(result, indent=2)
    print(text)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


def without_data(options: argparse.Namespace) -> bool:
    """Whether CIFAR-10 is needed and not there; then that is reported."""
    if options.data is not None:
        return False
    say("skipped: the packed CIFAR-10 files are not part of the project; say where they are with --data DIR")
    report({"skipped": "no --data DIR with the packed CIFAR-10 files"}, options.json)
    return True


def limit(value: float, at_least: float | None = None, at_most: float | None = None) -> dict[str, Any]:
    """A figure beside what it should reach."""
    good = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
    wanted = {"at_least": at_least} if at_most is None else {"at_most": at_most}
    return {"value": round(value, 3), **wanted, "reached": bool(good)}


def say(text: str) -> None:
    """Progress, beside the JSON."""
    print(text, file=sys.stderr, flush=True)


def seconds(act: Callable[[], Any], repeats: int = 3) -> float:
    """The best of several runs: the one that the rest of the machine disturbed least."""
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - began)
    return best
