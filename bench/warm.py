"""Samples held in memory: how fast are shuffled batches, against torch's DataLoader and a bare gather?

    python bench/warm.py [--quick] [--json FILE] [--data TAR_OR_FOLDER_OF_JPEGS]

Rounds of all contestants take turns, so that all meet the same noise; each contestant's best round counts. Photos that
have to be decoded are in _warm_jpeg.py; without --data it makes its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import augury
from _common import arguments, limit, report, say
from _warm_jpeg import measure_jpeg


class PerItem(torch.utils.data.Dataset[Any]):
    """What most people write."""

    def __init__(self, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> tuple[Any, Any]:
        return self.x[at], self.y[at]


class PerBatch(PerItem):
    """What the better hand-written dataset does: one gather per batch."""

    def __getitems__(self, at: list[int]) -> tuple[Any, Any]:
        index = torch.as_tensor(at)
        return self.x[index], self.y[index]


class PerBatchNumPy(PerItem):
    """The same with NumPy's gather, which reuses memory that was just freed."""

    def __getitems__(self, at: list[int]) -> tuple[Any, Any]:
        return torch.from_numpy(self.x.numpy()[at]), torch.from_numpy(self.y.numpy()[at])


def as_it_is(batch: Any) -> Any:
    return batch


def drain(batches: Iterable[Any]) -> int:
    return sum(len(batch[1]) for batch in batches)


def bare_take(x: np.ndarray[Any, Any], batch: int, seed: int) -> int:
    """The limit: nothing but the gather of the rows, in one thread, into one buffer."""
    order = np.random.default_rng(seed).permutation(len(x))
    out = np.empty((batch, x.shape[1]), x.dtype)
    done = 0
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        np.take(x, rows, axis=0, out=out[: len(rows)], mode="clip")
        done += len(rows)
    return done


def measure(samples: int, size: int, batch: int, rounds: int, peers: bool) -> dict[str, float]:
    """Samples per second of each contestant, best of the rounds."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (samples, size), dtype=np.uint8)
    y = rng.integers(0, 10, samples)
    loader = augury.Loader((x, y), batch, ram=x.nbytes + 12 * batch * size, readahead=8 * batch * size)
    drain(loader)  # fill the memory tier
    contestants: dict[str, Callable[[int], int]] = {
        "augury": lambda seed: drain(loader),
        "bare take": lambda seed: bare_take(x, batch, seed),
    }
    if peers:
        load = torch.utils.data.DataLoader
        workers = load(PerItem(x, y), batch, shuffle=True, num_workers=2, persistent_workers=True)
        items = load(PerBatch(x, y), batch, shuffle=True, collate_fn=as_it_is)
        numpy_items = load(PerBatchNumPy(x, y), batch, shuffle=True, collate_fn=as_it_is)
        contestants |= {
            "torch, 2 workers, per item": lambda seed: drain(workers),
            "torch, __getitems__, no workers": lambda seed: drain(items),
            "torch, __getitems__ by NumPy, no workers": lambda seed: drain(numpy_items),
        }
        drain(workers)  # start the processes
    best = dict.fromkeys(contestants, 0.0)
    for seed in range(rounds):
        for name, run in contestants.items():
            began = time.perf_counter()
            assert run(seed) == samples
            best[name] = max(best[name], samples / (time.perf_counter() - began))
    held = loader.stats().total.counts
    assert held.misses == samples, "after the first epoch everything must be a hit"
    loader.close()
    return best


def main() -> None:
    options = arguments(
        __doc__ or "", data={"type": Path, "metavar": "PATH", "help": "a tar file or a folder of .jpg to decode"}
    )
    small, large, rounds = (5_000, 500, 3) if options.quick else (50_000, 5_000, 7)
    photos, turns = (500, 2) if options.quick else (5_000, 11)
    say("small samples ...")
    a = measure(small, 3_072, 256, rounds, peers=True)
    say("large samples ...")
    b = measure(large, 100_000, 256, rounds, peers=False)
    say("photos ...")
    jpeg = measure_jpeg(options.data, photos, turns)
    report(
        {
            "benchmark": "warm",
            "small": {
                "samples": small,
                "bytes": 3_072,
                "samples_per_second": {name: round(rate) for name, rate in a.items()},
                "augury / torch, 2 workers, per item": limit(
                    a["augury"] / a["torch, 2 workers, per item"], at_least=12
                ),
                "augury / torch, __getitems__": limit(a["augury"] / a["torch, __getitems__, no workers"], at_least=2.5),
                "augury / torch, __getitems__ by NumPy": round(
                    a["augury"] / a["torch, __getitems__ by NumPy, no workers"], 3
                ),
                "augury / bare take": limit(a["augury"] / a["bare take"], at_least=0.5),
            },
            "large": {
                "samples": large,
                "bytes": 100_000,
                "samples_per_second": {name: round(rate) for name, rate in b.items()},
                "augury / bare take": limit(b["augury"] / b["bare take"], at_least=0.7),
            },
            "jpeg": jpeg,
        },
        options.json,
    )


if __name__ == "__main__":
    main()
