"""Nothing cached, a slow store: how close does an epoch come to bytes / bandwidth, and how much does training wait?

    python bench/cold.py [--quick] [--json FILE]

The store is emulated: 2 ms per request, 100 MB/s shared by all readers. The limit of an epoch is its bytes divided by
that bandwidth, or the compute of the consumer if that is longer. torch's DataLoader reads the same store beside it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

import augury
from _common import arguments, limit, report, say

LATENCY, BANDWIDTH = 0.002, 100e6


def store(samples: int, size: int, bandwidth: float = BANDWIDTH) -> Any:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (samples, size), dtype=np.uint8)
    inner = augury.ArraySource(x, np.zeros(samples, np.int64))
    return augury.SlowSource(OneByOne(inner), latency=LATENCY, bandwidth=bandwidth)


class OneByOne:
    """An array that is asked for like single files: one request per sample."""

    def __init__(self, inner: augury.ArraySource) -> None:
        self.inner, self.catalog, self.form, self.self_labelled = inner, inner.catalog, inner.form, False
        self.read, self.decode, self.close = inner.read, inner.decode, inner.close

    def requests(self, ids: Any) -> list[Any]:
        return [ids[at : at + 1] for at in range(len(ids))]


class PerItem(torch.utils.data.Dataset[Any]):
    """The same store as most people read it."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source.catalog)

    def __getitem__(self, at: int) -> Any:
        return torch.frombuffer(bytearray(self.source.read(np.array([at]))[0]), dtype=torch.uint8), 0


def epoch(batches: Any, compute: float = 0.0) -> float:
    """Seconds of one epoch whose consumer computes so long for each batch."""
    began = time.perf_counter()
    for _ in batches:
        if compute:
            time.sleep(compute)  # a device computes; the host is free
    return time.perf_counter() - began


def main() -> None:
    options = arguments(__doc__ or "")
    samples, size, batch = (4_000, 20_000, 64) if options.quick else (20_000, 20_000, 64)
    bound = samples * size / BANDWIDTH
    batches = -(-samples // batch)
    results: dict[str, Any] = {}
    for name, share in (("idle consumer", 0.0), ("consumer computes half of the time", 0.5)):
        say(f"augury, {name} ...")
        with augury.Loader(store(samples, size), batch, recipe="none", epochs=1, ram="64MB") as loader:
            taken = epoch(loader, share * bound / batches)
            stats = loader.stats().total
        results[name] = {
            "epoch / (bytes / bandwidth)": limit(taken / bound, at_most=1.05),
            "stall / epoch": round(stats.stall_seconds / taken, 3),
        }
    say("torch DataLoader, 2 workers ...")
    # Each worker process has a line of its own: together they get the same bandwidth.
    slow = store(samples, size, BANDWIDTH / 2)
    peer = epoch(torch.utils.data.DataLoader(PerItem(slow), batch, shuffle=True, num_workers=2))
    results["torch DataLoader, 2 workers, per item"] = {"epoch / (bytes / bandwidth)": round(peer / bound, 3)}
    report(
        {
            "benchmark": "cold",
            "emulated store": f"{LATENCY * 1e3:g} ms per request, {BANDWIDTH / 1e6:g} MB/s",
            "samples": samples,
            "bytes": size,
            **results,
        },
        options.json,
    )


if __name__ == "__main__":
    main()
