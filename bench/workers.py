"""torch's DataLoader with 1, 2 and 4 workers over one node: how much memory, and how many hits?

    python bench/workers.py [--quick] [--json FILE]

CachedDataset(..., node=) on a folder of files of about 100 KB behind a slow store; the node (`augury serve`) may hold
20 % of them. Every epoch asks for all samples in another order, the same orders in all runs, and what is read from
the store is counted where it is read, in every worker.

Memory is the sum of the proportional shares (PSS) of the node, all workers and the process that started them, which
counts every page once however many of them map it; above the same processes idle, with the workers connected and no
sample read. The largest of many looks during the first two epochs counts. What is not the cache's is kept out: samples
become checksums in the worker (by `transform`), which are compared with what they should be, so that no batch lies in
torch's queues or is copied for them, as it would with any dataset; and workers are spawned, as a forked interpreter
gets pages of its own merely by running. Each reader thread costs some 200 KB of the C library's: there are 8, not 32.
Expected: at most 1.2 x of the cache and one batch buffer per worker.

Hits are bytes that did not come from the store. Expected: within half a point of one process with a cache of its own
of the same size, for any number of workers. For information: as many workers with a cache of their own each, which
divide the same memory.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from _common import arguments, limit, report, say
from _serve import serving
from augury.errors import Unreadable
from augury.ids import Ids
from augury.sources import Buffer, open_source
from augury.sources.slow import SlowSource
from augury.torch import CachedDataset

CACHE, BATCH, EPOCHS, LATENCY, READERS = 0.2, 32, 4, 0.005, 8
LOOKED_AT = 2
"""Epochs during which memory is looked at; the others are timed."""
CONNECT = "connect"
Counter = Any


class Store(SlowSource):
    """A slow store that counts what all processes read together."""

    def __init__(self, folder: Path) -> None:
        super().__init__(open_source(folder), LATENCY)
        self.total: Counter = multiprocessing.get_context("spawn").Value("q")

    def read(self, ids: Ids) -> list[Buffer | Unreadable]:
        with self.total.get_lock():
            self.total.value += int(self.catalog.sizes[ids].sum())
        return super().read(ids)


class Workers(Dataset[Any]):
    """A dataset that workers can also be told to open only, without reading a sample."""

    def __init__(self, inner: CachedDataset) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        if indices == [CONNECT]:
            self.inner._opened()
            return [os.getpid()]
        return self.inner.__getitems__(indices)


class Order:
    """Batches of an epoch: before the first, one for each worker that only opens the dataset."""

    def __init__(self, samples: int, workers: int) -> None:
        self.samples, self.workers, self.epoch = samples, workers, -1

    def __iter__(self) -> Iterator[list[Any]]:
        if self.epoch < 0:
            yield from [[CONNECT]] * max(1, self.workers)
            return
        order = np.random.default_rng((7, self.epoch)).permutation(self.samples)
        for start in range(0, self.samples, BATCH):
            yield order[start : start + BATCH].tolist()

    def __len__(self) -> int:
        return max(1, self.workers) if self.epoch < 0 else -(-self.samples // BATCH)


class Data(NamedTuple):
    """A folder, and what its samples are."""

    path: Path
    sizes: NDArray[np.int64]
    sums: NDArray[np.int64]


class Run(NamedTuple):
    """What was measured."""

    from_store: list[int]
    """Bytes, by epoch."""
    seconds: float
    """Of an epoch that nobody looked into."""
    memory: list[int]
    """Of all processes, above idle, at many moments."""


def make_folder(path: Path, samples: int) -> Data:
    """Files of 75 to 125 KB, with digests."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(75_000, 125_001, samples)
    sums = np.empty(samples, np.int64)
    (path / "all").mkdir(parents=True)
    for at, size in enumerate(sizes.tolist()):
        data = rng.bytes(size)
        sums[at] = zlib.crc32(data)
        (path / "all" / f"{at:06d}.bin").write_bytes(data)
    subprocess.run([sys.executable, "-m", "augury.cli", "digest", str(path), "--quiet"], check=True)
    return Data(path, sizes, sums)


def as_it_is(batch: Any) -> Any:
    return batch


def memory_of(pids: list[int]) -> int:
    """The proportional shares of processes, together."""
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


def run(data: Data, workers: int, recipe: str, node: tuple[Path, int] | None) -> Run:
    """Some epochs with so many workers (0: in this process), through a node or with caches of their own."""
    store = Store(data.path)
    socket, others = (None, []) if node is None else (node[0], [node[1]])
    dataset = CachedDataset(
        store,
        ram=cache_bytes(data),
        recipe=recipe,
        transform=zlib.crc32,
        with_ids=True,
        readers=READERS,
        node=socket or "off",
    )
    order = Order(len(data.sizes), workers)
    loader: DataLoader[Any] = DataLoader(
        Workers(dataset),
        batch_sampler=order,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="spawn" if workers else None,
        collate_fn=as_it_is,
    )
    pids = [*others, *{pid for batch in loader for pid in batch}]
    assert len(pids) == len(others) + max(1, workers)
    pids = list({*pids, os.getpid()})
    time.sleep(0.5)
    idle = memory_of(pids)
    from_store, seconds, memory = [], [], []
    for order.epoch in range(EPOCHS):
        before, began = store.total.value, time.perf_counter()
        seen = 0
        for at, batch in enumerate(loader):
            ids = np.array([item[-1] for item in batch])
            assert np.array_equal(data.sums[ids], [item[0] for item in batch]), "a sample has other bytes"
            seen += len(ids)
            if order.epoch < LOOKED_AT and at % 3 == 0:
                memory.append(memory_of(pids) - idle)
        assert seen == len(data.sizes)
        from_store.append(store.total.value - before)
        if order.epoch >= LOOKED_AT:
            seconds.append(time.perf_counter() - began)
    del loader
    dataset.close()
    return Run(from_store, min(seconds), memory)


def cache_bytes(data: Data) -> int:
    return int(CACHE * data.sizes.sum())


def hits(data: Data, one: Run, after: int = 0) -> float:
    """The part of bytes that did not come from the store, from an epoch on; in points."""
    asked = int(data.sizes.sum()) * (EPOCHS - after)
    return 100 * (1 - sum(one.from_store[after:]) / asked)


def measure(data: Data, directory: Path, recipe: str, counts: list[int]) -> dict[str, Any]:
    embedded = run(data, 0, recipe, None)
    result: dict[str, Any] = {"embedded, one process": described(data, embedded)}
    for workers in counts:
        with serving(directory, cache_bytes(data)) as node:
            shared = run(data, workers, recipe, (node.socket, node.pid))
        own = run(data, workers, recipe, None)
        allowed = cache_bytes(data) + workers * int(data.sizes.mean() * BATCH)
        apart = max(abs(hits(data, shared, after) - hits(data, embedded, after)) for after in (0, 1))
        result[f"{workers} workers"] = {
            **described(data, shared),
            "memory / (cache + buffers)": limit(max(shared.memory) / allowed, at_most=1.2),
            "the same, middle look": round(float(np.median(shared.memory)) / allowed, 3),
            "points from embedded": limit(apart, at_most=0.5),
            "with a cache each": described(data, own),
            "epoch / with a cache each": round(shared.seconds / own.seconds, 3),
        }
    return result


def described(data: Data, one: Run) -> dict[str, float]:
    return {
        "hits %": round(hits(data, one), 2),
        "hits % from epoch 2": round(hits(data, one, after=1), 2),
        "epoch s": round(one.seconds, 2),
        "most MB above idle": round(max(one.memory) / 1e6, 1),
    }


def show(recipe: str, result: dict[str, Any]) -> None:
    say(f"{recipe}: hits, of these from the second epoch on; seconds of an epoch; memory above idle")
    for name, each in result.items():
        say(f"  {name:<24} {line(each)}")
        if "with a cache each" not in each:
            continue
        memory, apart = each["memory / (cache + buffers)"], each["points from embedded"]
        say(f"    with a cache each      {line(each['with a cache each'])}")
        say(f"    memory / (cache + a buffer each) {memory['value']:.2f}  asked for 1.2 at most: {yes(memory)}")
        say(f"    points from embedded             {apart['value']:.2f}  asked for 0.5 at most: {yes(apart)}")


def line(each: dict[str, float]) -> str:
    shares = f"{each['hits %']:6.2f} % {each['hits % from epoch 2']:6.2f} %"
    return f"{shares} {each['epoch s']:7.2f} s {each['most MB above idle']:7.1f} MB"


def yes(figure: dict[str, Any]) -> str:
    return "yes" if figure["reached"] else "NO"


def main() -> None:
    options = arguments(__doc__ or "")
    os.environ.pop("AUGURY_NODE", None)
    samples, recipes, counts = (416, ["minio"], [1, 2]) if options.quick else (4_096, ["minio", "lru"], [1, 2, 4])
    results = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="augury-bench-")))
        data = make_folder(directory / "data", samples)
        for recipe in recipes:
            results[recipe] = measure(data, directory, recipe, counts)
            show(recipe, results[recipe])
    report({"benchmark": "workers", "samples": samples, "batch": BATCH, "cache": CACHE} | results, options.json)


if __name__ == "__main__":
    main()
