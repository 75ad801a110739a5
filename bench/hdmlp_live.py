"""HDMLP live: four ranks over one slow store, measured beside what the simulator predicts for the probed storage.

    python bench/hdmlp_live.py

The store has the speeds of a parallel file system in section 5.2.1 of the HDMLP thesis, scaled down: its throughput
grows with the number of concurrent reads up to four, and all share it. Each rank has memory for a fifth of the
dataset and disk for two fifths; ranks exchange nothing. A sleep stands in for training: together a quarter of
the time that an epoch takes to read. The ranks are threads that wait for each other after every batch; those of
torch's DataLoader have four worker processes each. What the storage can do is measured first, as `augury probe` does.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import augury
from _common import arguments, limit, report, say
from augury.ids import Ids
from augury.knowledge import Knowledge
from augury.probe import Disk, probe
from augury.samplers.ranks import share
from augury.samplers.shuffle import Shuffle
from augury.sim import nodes
from augury.sim.model import Environment, StorageClass, Throughput
from augury.sim.scenario import Scenario
from augury.sources import Base
from augury.storage import Storage, StorageLevel

RANKS, WORKERS, BATCH = 4, 4, 25
READERS, FILLERS = 4, 2
THESIS = {1: 66.0, 2: 86.0, 3: 129.0, 4: 146.0}
"""MB/s of the parallel file system, by concurrent readers."""
MB = 1e6


class Store(Base):
    """A parallel file system: reads are served in turn, at the throughput for as many as there are waiting."""

    def __init__(self, source: Any, throughput: Throughput) -> None:
        self.source, self.throughput = source, throughput
        self.catalog, self.form, self.self_labelled = source.catalog, source.form, source.self_labelled
        self._free = multiprocessing.Value("d", 0.0)
        self._reading = multiprocessing.Value("i", 0, lock=False)

    def read(self, ids: Ids) -> list[Any]:
        return [self._read(ids[at : at + 1]) for at in range(len(ids))]

    def _read(self, id: Ids) -> Any:
        with self._free:
            self._reading.value += 1
            service = float(self.catalog.sizes[id].sum()) / MB / self.throughput(self._reading.value)
            done = self._free.value = max(time.monotonic(), self._free.value) + service
        time.sleep(max(0.0, done - time.monotonic()))
        with self._free:
            self._reading.value -= 1
        return self.source.read(id)[0]

    def requests(self, ids: Ids) -> list[Ids]:
        return [ids[at : at + 1] for at in range(len(ids))]

    def decode(self, ids: Ids, data: Any) -> Any:
        return self.source.decode(ids, data)

    def close(self) -> None:
        self.source.close()


def main() -> None:
    given = arguments(__doc__, epochs={"type": int, "default": 20, "help": "of each contender (20)"})
    samples, size, scale, epochs = (400, 64_000, 0.1, 4) if given.quick else (1_500, 64_000, 0.2, given.epochs)
    data = np.random.default_rng(0).integers(0, 256, (samples, size), np.uint8)
    store = Store(augury.ArraySource(data, np.arange(samples)), Throughput({n: scale * t for n, t in THESIS.items()}))
    total = samples * size / MB
    reading = total / store.throughput(RANKS)
    compute = reading / 4
    with tempfile.TemporaryDirectory() as scratch:
        storage = _probe(store, Path(scratch) / "probed", given.quick)
        runs = {name: _run(name, store, epochs, compute, storage, Path(scratch)) for name in CONTENDERS}
    predicted = {
        name: _predict(policy, store, epochs, compute, storage)
        for name, policy in (("naive", "naive"), ("staging", "staging"), ("hdmlp", "hdmlp-alone"))
    }
    report(_result(runs, predicted, epochs, reading, compute, storage), given.json)


def _probe(store: Store, directory: Path, quick: bool) -> Storage:
    say("probing")
    threads = [1, 2, FILLERS, READERS, RANKS * READERS]
    found = probe(store, ram=0.2, disk=Disk(directory, 0.4), threads=threads, seconds=1.0 if quick else 3.0).storage
    levels = tuple(
        StorageLevel(level.name, level.capacity, FILLERS, level.read, level.write, level.path) for level in found.levels
    )
    return Storage(levels, found.source)


def _naive(store: Store, rank: int, epochs: int, storage: Storage, scratch: Path) -> Iterator[int]:
    """Read what is next when it is needed, one sample after the other."""
    sampler = Shuffle(len(store.catalog), 0)
    for epoch in range(epochs):
        ids = share(sampler.draw(epoch, Knowledge.none(0)), BATCH, rank, RANKS)
        for at in range(0, len(ids), BATCH):
            store.read(ids[at : at + BATCH])
            yield epoch


def _loader(store: Store, rank: int, epochs: int, **options: Any) -> Iterator[int]:
    window = 8 * BATCH * int(store.catalog.sizes[0])
    given = {"readahead": window, "readers": READERS, "rank": rank, "world_size": RANKS, "output": "numpy"} | options
    with augury.Loader(store, BATCH, epochs=epochs, **given) as loader:
        for epoch in range(epochs):
            for _ in loader:
                yield epoch


def _staging(store: Store, rank: int, epochs: int, storage: Storage, scratch: Path) -> Iterator[int]:
    return _loader(store, rank, epochs, recipe="none")


def _hdmlp(store: Store, rank: int, epochs: int, storage: Storage, scratch: Path) -> Iterator[int]:
    size, count = int(store.catalog.sizes[0]), len(store.catalog)
    window = 8 * BATCH * size
    ram, disk = storage.levels
    own = Storage(
        (
            StorageLevel("ram", int(0.2 * count) * size + window, FILLERS, ram.read, ram.write),
            StorageLevel("disk", 0.4, FILLERS, disk.read, disk.write, str(scratch / f"rank{rank}")),
        ),
        storage.source,
    )
    return _loader(store, rank, epochs, recipe="hdmlp", levels=own, readers=READERS + 2 * FILLERS)


def _torch(store: Store, rank: int, epochs: int, storage: Storage, scratch: Path) -> Iterator[int]:
    from torch.utils.data import DataLoader, DistributedSampler

    sampler = DistributedSampler(_Items(store), RANKS, rank, seed=0)
    loader = DataLoader(
        _Items(store),
        BATCH,
        sampler=sampler,
        num_workers=WORKERS,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for _ in loader:
            yield epoch


class _Items:
    def __init__(self, store: Store) -> None:
        self.store = store

    def __len__(self) -> int:
        return len(self.store.catalog)

    def __getitem__(self, index: int) -> Any:
        return np.frombuffer(self.store.read(np.array([index]))[0], np.uint8)


CONTENDERS: dict[str, Callable[..., Iterator[int]]] = {
    # torch first: its workers are forked before there are any threads.
    "torch": _torch,
    "naive": _naive,
    "staging": _staging,
    "hdmlp": _hdmlp,
}


def _run(
    name: str, store: Store, epochs: int, compute: float, storage: Storage, scratch: Path
) -> dict[str, list[float]]:
    """Seconds and stall of each epoch, of the slowest rank in each batch."""
    say(f"live: {name}, {epochs} epochs")
    per_epoch = -(-len(store.catalog) // (RANKS * BATCH))
    ends = np.zeros(epochs * per_epoch)
    barrier = threading.Barrier(RANKS)
    began: list[float] = []
    failures: list[BaseException] = []
    makers = [CONTENDERS[name](store, rank, epochs, storage, scratch) for rank in range(RANKS)]

    def train(rank: int) -> None:
        try:
            barrier.wait()
            began.append(time.perf_counter())
            for batch, _ in enumerate(makers[rank]):
                time.sleep(compute / per_epoch)
                barrier.wait()
                ends[batch] = time.perf_counter()
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return _epochs(ends - min(began), epochs, compute)


def _epochs(ends: Any, epochs: int, compute: float) -> dict[str, list[float]]:
    seconds = np.diff(ends.reshape(epochs, -1)[:, -1], prepend=0.0)
    return {"seconds": seconds.tolist(), "stall": np.maximum(seconds - compute, 0.0).tolist()}


def _predict(name: str, store: Store, epochs: int, compute: float, storage: Storage) -> dict[str, list[float]]:
    """What the simulator says of the same run."""
    say(f"simulated: {name}")
    sizes = store.catalog.sizes / MB
    total = float(sizes.sum())
    assert storage.source is not None
    ram, disk = storage.levels
    assert ram.read is not None
    assert disk.read is not None
    window = 8 * BATCH * float(sizes[0])
    environment = Environment(
        nodes=RANKS,
        compute=total / RANKS / compute,
        preprocess=1e9,
        network=0.0,
        source_network=1e9,
        source=storage.source,
        classes=(
            StorageClass(window, READERS, ram.read, ram.write),
            StorageClass(0.2 * total, FILLERS, ram.read, ram.write),
            StorageClass(0.4 * total, FILLERS, disk.read, disk.write),
        ),
    )
    scenario = Scenario(name, environment, np.asarray(sizes, np.float64), epochs, RANKS * BATCH)
    found = nodes.run(name, scenario)
    assert found is not None
    return _epochs(found.ends, epochs, compute)


def _result(
    runs: dict[str, Any], predicted: dict[str, Any], epochs: int, reading: float, compute: float, storage: Storage
) -> dict[str, Any]:
    assert storage.source is not None
    checks = {}
    for name, ours in predicted.items():
        measured = sum(runs[name]["seconds"][1:]) / sum(ours["seconds"][1:])
        worst = max(abs(a / b - 1) for a, b in zip(runs[name]["seconds"][1:], ours["seconds"][1:], strict=True))
        checks[f"{name}: measured over predicted, mean epoch from the second on"] = round(measured, 3)
        checks[f"{name}: that differs from 1 by"] = limit(abs(measured - 1), at_most=0.15)
        checks[f"{name}: the furthest single epoch is off by"] = round(worst, 3)
    later = {name: sum(run["stall"][1:]) for name, run in runs.items()}
    share = later["hdmlp"] / later["torch"]
    checks["stall of hdmlp over torch's, from the second epoch on"] = limit(share, at_most=0.1)
    half = {name: sum(run["stall"][epochs // 2 :]) for name, run in runs.items()}
    checks["stall of hdmlp over torch's, second half of the run"] = round(half["hdmlp"] / half["torch"], 3)
    total = {name: sum(run["stall"]) for name, run in runs.items()}
    checks["stall of hdmlp over torch's, whole run"] = round(total["hdmlp"] / total["torch"], 3)
    return {
        "epochs": epochs,
        "seconds to read an epoch": round(reading, 2),
        "seconds to compute on one": round(compute, 2),
        "probed source, MB/s by readers": storage.source.measured,
        "epoch in units of reading one, measured": {
            name: _rounded(run["seconds"], reading) for name, run in runs.items()
        },
        "epoch in units of reading one, predicted": {
            name: _rounded(run["seconds"], reading) for name, run in predicted.items()
        },
        "median epoch": {name: round(statistics.median(run["seconds"]) / reading, 3) for name, run in runs.items()},
        "checks": checks,
    }


def _rounded(values: list[float], unit: float) -> list[float]:
    return [round(value / unit, 3) for value in values]


if __name__ == "__main__":
    main()
