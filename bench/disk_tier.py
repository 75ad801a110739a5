"""The disk tier beside LMDB and beside one file per sample. Prints JSON; see docs/decisions/0001-disk-tier.md.

    python bench/disk_tier.py --directory /nvme/bench --megabytes 300

All three check an xxh3 checksum on every read, are held to one limit, and run the same random workload: fill,
exchange batches of 256, read batches of 64 and 256 in 1 and 4 threads (warm, then from the disk), open again.
It takes some minutes. The alternatives live here and nowhere else.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import lmdb
import numpy as np
import xxhash
from numpy.typing import NDArray

from augury.ids import Ids
from augury.tiers.disk import DiskTier
from augury.tiers.layout import choose_layout

CHUNK = 256
Sizes = NDArray[np.int64]


class Store(Protocol):
    def write(self, ids: Ids, data: Sequence[bytes]) -> None: ...
    def drop(self, ids: Ids) -> None: ...
    def read(self, ids: Ids) -> list[Any]: ...
    def found(self) -> Ids: ...
    def close(self) -> None: ...


def seal(id: int, item: bytes) -> bytes:
    return xxhash.xxh3_64_intdigest(item, id).to_bytes(8, "little")


def unseal(id: int, record: memoryview) -> memoryview:
    item = record[8:]
    if xxhash.xxh3_64_intdigest(item, id).to_bytes(8, "little") != record[:8]:
        raise ValueError(f"checksum of {id}")
    return item


class Lmdb:
    """One write transaction per batch, no syncs, a map as large as the limit."""

    def __init__(self, directory: Path, capacity: int, readahead: bool = False) -> None:
        self._store = lmdb.open(
            str(directory), map_size=capacity, sync=False, metasync=False, readahead=readahead, max_readers=64
        )

    def write(self, ids: Ids, data: Sequence[bytes]) -> None:
        with self._store.begin(write=True) as transaction:
            for id, item in zip(ids.tolist(), data, strict=True):
                transaction.put(id.to_bytes(8, "big"), seal(id, item) + item)

    def drop(self, ids: Ids) -> None:
        with self._store.begin(write=True) as transaction:
            for id in ids.tolist():
                transaction.delete(id.to_bytes(8, "big"))

    def read(self, ids: Ids) -> list[Any]:
        with self._store.begin(buffers=True) as transaction:
            # A copy, as the pages are used again once the transaction ends.
            found = ((id, transaction.get(id.to_bytes(8, "big"), b"")) for id in ids.tolist())
            return [unseal(id, memoryview(bytes(record))) for id, record in found]

    def found(self) -> Ids:
        with self._store.begin() as transaction:
            keys = b"".join(transaction.cursor().iternext(values=False))
        return np.frombuffer(keys, ">i8").astype(np.int64)

    def close(self) -> None:
        self._store.close()


class Files:
    """A file per sample in 256 directories, written aside and renamed."""

    def __init__(self, directory: Path, capacity: int) -> None:
        self._directory = str(directory)
        for part in range(256):
            os.makedirs(f"{directory}/{part:02x}", exist_ok=True)

    def _path(self, id: int) -> str:
        return f"{self._directory}/{id & 255:02x}/{id}"

    def write(self, ids: Ids, data: Sequence[bytes]) -> None:
        for id, item in zip(ids.tolist(), data, strict=True):
            path = self._path(id)
            file = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.writev(file, (seal(id, item), item))
            os.close(file)
            os.rename(path + ".new", path)

    def drop(self, ids: Ids) -> None:
        for id in ids.tolist():
            os.unlink(self._path(id))

    def read(self, ids: Ids) -> list[Any]:
        return [self._read(id) for id in ids.tolist()]

    def _read(self, id: int) -> memoryview:
        file = os.open(self._path(id), os.O_RDONLY)
        try:
            return unseal(id, memoryview(os.read(file, 1 << 24)))
        finally:
            os.close(file)

    def found(self) -> Ids:
        names = [name for part in range(256) for name in os.listdir(f"{self._directory}/{part:02x}")]
        return np.array(names, np.int64)

    def close(self) -> None:
        pass


class Workload:
    """Random ids of a dataset five times as large as what is held, drawn alike for every store."""

    def __init__(self, sizes: Sizes, held: int, seed: int = 0) -> None:
        self.sizes, self._rng = sizes, np.random.default_rng(seed)
        self._noise = self._rng.bytes(1 << 22)
        order = self._rng.permutation(len(sizes))
        self.held, self._absent = order[:held].copy(), order[held:].copy()

    def items(self, ids: Ids) -> list[bytes]:
        starts = (ids * 977) % (1 << 21)
        return [self._noise[start : start + size] for start, size in zip(starts, self.sizes[ids], strict=True)]

    def exchange(self) -> tuple[Ids, Ids]:
        """Who leaves and who comes."""
        leaving = self._rng.choice(len(self.held), CHUNK, replace=False)
        coming = self._rng.choice(len(self._absent), CHUNK, replace=False)
        gone, new = self.held[leaving].copy(), self._absent[coming].copy()
        self.held[leaving], self._absent[coming] = new, gone
        return gone, new


def fill(store: Store, work: Workload) -> float:
    """Bytes per second of writing everything once."""
    spent, written = 0.0, 0
    for start in range(0, len(work.held), CHUNK):
        ids = work.held[start : start + CHUNK]
        items = work.items(ids)
        spent += timed(lambda ids=ids, items=items: store.write(ids, items))  # type: ignore[misc]
        written += sum(map(len, items))
    return written / spent


def exchange(store: Store, work: Workload, rounds: int) -> float:
    """Bytes per second of dropping some and writing others."""
    spent, written = 0.0, 0
    for _ in range(rounds):
        gone, new = work.exchange()
        items = work.items(new)
        spent += timed(lambda gone=gone: store.drop(gone))  # type: ignore[misc]
        spent += timed(lambda new=new, items=items: store.write(new, items))  # type: ignore[misc]
        written += sum(map(len, items))
    return written / spent


def reading(store: Store, work: Workload, threads: int, batch: int, total: int) -> float:
    """Bytes per second of random batches, read by several threads at once."""
    batches = max(1, int(total / work.sizes.mean() / batch / threads))
    draws = [np.random.default_rng(seed).choice(work.held, (batches, batch)) for seed in range(threads)]

    def run(mine: NDArray[np.int64]) -> None:
        for ids in mine:
            store.read(ids)

    workers = [threading.Thread(target=run, args=(mine,)) for mine in draws]

    def all_of_them() -> None:
        for each in workers:
            each.start()
        for each in workers:
            each.join()

    return float(work.sizes[np.concatenate(draws)].sum()) / timed(all_of_them)


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def forget_pages(directory: Path) -> None:
    """Make the next reads come from the disk."""
    for path in directory.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def usage(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def measure(make: Callable[[], Store], directory: Path, work: Workload, rounds: int) -> dict[str, float]:
    total, results = int(work.sizes[work.held].sum()), {}
    store = make()
    results["fill MB/s"] = fill(store, work) / 1e6
    results["exchange MB/s"] = exchange(store, work, rounds) / 1e6
    results["disk per byte"] = usage(directory) / work.sizes[work.held].sum()
    for threads in (1, 4):
        for batch in (64, 256):
            best = max(reading(store, work, threads, batch, total // 2) for _ in range(3))
            results[f"read {batch} in {threads} MB/s"] = best / 1e6
    store.close()
    start = time.perf_counter()
    store = make()
    assert len(store.found()) == len(work.held)
    results["open us per entry"] = (time.perf_counter() - start) / len(work.held) * 1e6
    for threads in (1, 4):
        store.close()
        forget_pages(directory)
        store = make()
        results[f"from disk in {threads} MB/s"] = reading(store, work, threads, 64, total // 8) / 1e6
    store.close()
    return results


def fullest(root: Path, sizes: Sizes, capacity: int, rounds: int) -> float:
    """The largest part of its map that LMDB can fill with samples and still exchange them."""
    for share in (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.5):
        directory = Path(tempfile.mkdtemp(dir=root))
        work = Workload(sizes, int(capacity * share / sizes.mean()))
        store = Lmdb(directory, capacity)
        try:
            fill(store, work)
            exchange(store, work, rounds)
            return share
        except lmdb.MapFullError:
            pass
        finally:
            store.close()
            shutil.rmtree(directory)
    return 0.0


def compare(root: Path, sizes: Sizes, held: int, rounds: int) -> dict[str, Any]:
    capacity = int(sizes[:held].sum() * 1.7) + (1 << 20)
    makers: dict[str, Callable[[Path], Store]] = {
        "augury": lambda path: DiskTier(path, capacity, sizes, "bench", floor=0),
        # Read-ahead may help LMDB with samples of many pages, and harms it with those of one.
        "lmdb": lambda path: Lmdb(path, capacity, readahead=bool(sizes.mean() > 16384)),
        "files": lambda path: Files(path, capacity),
    }
    figures = {}
    for name, make in makers.items():
        directory = Path(tempfile.mkdtemp(dir=root))
        opened = lambda make=make, directory=directory: make(directory)  # noqa: E731
        figures[name] = measure(opened, directory, Workload(sizes, held), rounds)
        shutil.rmtree(directory)
    layout = choose_layout(sizes, capacity)
    part = float(sizes.sum() / layout.footprint(sizes).sum())
    figures["augury"]["samples per byte of limit"] = part
    figures["lmdb"]["samples per byte of limit"] = fullest(root, sizes, capacity // 4, rounds)
    figures["files"]["samples per byte of limit"] = 1 / figures["files"]["disk per byte"]
    return {"layout": type(layout).__name__, "figures": rounded(figures), "augury against": ratios(figures)}


def ratios(figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Augury over each other store: above 1 it does better in rates and in samples, below 1 in costs."""
    ours = figures["augury"]
    others = {name: each for name, each in figures.items() if name != "augury"}
    return rounded({name: {key: ours[key] / max(each[key], 1e-9) for key in ours} for name, each in others.items()})


def rounded(table: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {name: {key: round(float(value), 3) for key, value in row.items()} for name, row in table.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    options.add_argument("--megabytes", type=int, default=300, help="held by each store")
    options.add_argument("--rounds", type=int, default=60, help="batches exchanged")
    chosen = options.parse_args()
    rng = np.random.default_rng(1)
    report = {}
    for mean in (3073, 100_000):
        held = max(chosen.megabytes * 1_000_000 // mean, 2 * CHUNK)
        cases = {
            f"{mean} bytes each": np.full(held * 5, mean, np.int64),
            f"{mean} bytes on average": rng.integers(mean // 2, mean + mean // 2, held * 5),
        }
        for name, sizes in cases.items():
            with tempfile.TemporaryDirectory(dir=chosen.directory) as root:
                report[name] = compare(Path(root), sizes, held, chosen.rounds)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
