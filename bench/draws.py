"""Weighted draws: as many as there are weights, against a permutation of as many ids, and against torch.

    python bench/draws.py [--quick] [--json FILE]

torch.multinomial stops at 2^24 weights (about 16.8 million); the draws here have no such limit.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from _common import arguments, limit, report, say, seconds
from augury.samplers.importance import weighted, weighted_once


def main() -> None:
    given = arguments(__doc__)
    count = 200_000 if given.quick else 10_000_000
    say(f"{count:,} draws from as many weights")
    weights = np.random.default_rng(0).lognormal(0, 1, count).astype(np.float32)
    # Interleaved, and the best of each: the machine's speed changes from minute to minute.
    timed = {"permutation": 1e9, "weighted": 1e9, "weighted, even": 1e9, "weighted_once": 1e9, "torch.multinomial": 1e9}
    acts = {
        "permutation": lambda: _rng().permutation(count),
        "weighted": lambda: weighted(_rng(), weights, count),
        "weighted, even": lambda: weighted(_rng(), weights, count, even=True),
        "weighted_once": lambda: weighted_once(_rng(), weights, count // 2),
        "torch.multinomial": partial(torch.multinomial, torch.from_numpy(weights), count, replacement=True),
    }
    for _ in range(6):
        for name, act in acts.items():
            timed[name] = min(timed[name], seconds(act, 1))
    ratios = {name: round(taken / timed["permutation"], 2) for name, taken in timed.items()}
    checks = {name: limit(ratios[name], at_most=3) for name in ("weighted", "weighted, even")}
    report({"draws": count, "as_multiples_of_a_permutation": ratios, "checks": checks}, given.json)


def _rng() -> np.random.Generator:
    return np.random.Generator(np.random.Philox(0))


if __name__ == "__main__":
    main()
