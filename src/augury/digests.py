"""Content digests: 32 bytes (BLAKE3) that stand for what a sample holds, wherever and under whatever id it lies.

Making them, with many threads and few bytes at a time, and finding those that are known already live here. They rest
in the catalog, as a column; what a run that was stopped has made rests in its `journal`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from typing import NamedTuple, TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import ArrayLike, NDArray

from augury.catalog import DIGEST as DIGEST
from augury.catalog import Catalog
from augury.errors import Stale, Unreadable
from augury.fetch import BACKOFF, RETRIES
from augury.ids import Ids, Mask, as_ids
from augury.sources import Buffer, Source
from augury.sources.array import ArraySource

Digests: TypeAlias = NDArray[np.uint8]
"""A row of 32 bytes per sample. A row of zeros is a digest that is not known."""
Progress: TypeAlias = Callable[[int, int], None]
"""Called now and then, by the calling thread, with how many samples and bytes are done."""

THREADS = 8
"""Three times as fast as two where a store answers after 2 ms; three quarters as fast for files of 110 kB in memory."""
_SAMPLES = 128
"""At most, in a batch: progress is shown and kept by the batch."""
_BYTES = 8 << 20
"""At most, in a batch of several samples."""
_REQUESTS = 16
"""At once: a call per file would cost as much as the file."""
_IN_FLIGHT = 256 << 20
"""Bytes of all batches under way; a larger sample is read alone."""
_ABSENT = bytes(DIGEST)
_SECOND = 1_000_000_000


def digest(data: Buffer) -> bytes:
    """The BLAKE3 digest of a sample's bytes."""
    return blake3(data).digest()


def known(digests: Digests) -> Mask:
    """Which rows are digests, rather than zeros."""
    words: NDArray[np.uint64] = np.ascontiguousarray(digests).view(np.uint64)
    return np.asarray(words.any(axis=1))


def digests_of(source: Source) -> Digests | None:
    """The digests of all samples of a source, where they are known or can be made without reading from a store.

    None where `augury digest` has not been run, or not to its end, and where samples are made as they are read
    (decoded pictures, items of a dataset). The rows of an array in memory are hashed now, once.
    """
    catalog, inner = source.catalog, source
    while getattr(getattr(inner, "source", None), "catalog", None) is catalog:
        inner = inner.source  # type: ignore[attr-defined]  # wrappers delay and count, and change no bytes
    if catalog.digests is None and isinstance(inner, ArraySource) and inner.in_memory:
        catalog.digests = digest_samples(inner, np.arange(len(catalog)), threads=min(THREADS, os.cpu_count() or 1))
    return catalog.digests if catalog.digests is not None and known(catalog.digests).all() else None


def digest_samples(source: Source, ids: ArrayLike, threads: int = THREADS, progress: Progress | None = None) -> Digests:
    """A row per id, in their order; of zeros for a sample that cannot be read."""
    different, places = np.unique(as_ids(ids), return_inverse=True)
    digests = np.zeros((len(different), DIGEST), np.uint8)
    samples = size = 0
    with closing(hashed(source, different, threads)) as batches:
        for batch in batches:
            digests[np.searchsorted(different, batch.ids)] = batch.digests
            samples, size = samples + len(batch.ids), size + batch.size
            if progress is not None:
                progress(samples, size)
    return digests[places]


class Hashed(NamedTuple):
    """Some samples: their digests (zeros where reading failed), why reading failed, and how many bytes they have."""

    ids: Ids
    digests: Digests
    failures: list[Unreadable]
    size: int


def hashed(source: Source, ids: Ids, threads: int = THREADS, steady: bool = False) -> Generator[Hashed, None, None]:
    """Hash distinct ids, and yield them by the batch as they are done, in any order. Close it to stop early.

    With `steady` a digest is that of the file which the catalog describes: a sample whose file has been written since
    counts as one that cannot be read.
    """
    if steady and len(ids) and source.catalog.changed is not None:
        _let_settle(source.catalog.changed)
    stop = threading.Event()
    pool = ThreadPoolExecutor(threads, "augury-digest")
    running: dict[Future[Hashed], int] = {}
    try:
        for batch, size in _batches(source.catalog, ids):
            while running and (len(running) >= 2 * threads or sum(running.values()) + size > _IN_FLIGHT):
                yield from _finished(running)
            running[pool.submit(_hash, source, batch, steady, stop)] = size
        while running:
            yield from _finished(running)
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _finished(running: dict[Future[Hashed], int]) -> Iterator[Hashed]:
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        del running[future]
        yield future.result()


def _batches(catalog: Catalog, ids: Ids) -> Iterator[tuple[Ids, int]]:
    """The ids in the order in which they lie in the store, a few at a time, and how many bytes these have."""
    if catalog.shard is not None and catalog.offsets is not None:
        ids = ids[np.lexsort((catalog.offsets[ids], catalog.shard[ids]))]
    ends = np.cumsum(catalog.sizes[ids])
    start = before = 0
    while start < len(ids):
        fitting = int(np.searchsorted(ends, before + _BYTES, "right"))
        stop = max(start + 1, min(start + _SAMPLES, fitting))
        yield ids[start:stop], int(ends[stop - 1]) - before
        start, before = stop, int(ends[stop - 1])


def _hash(source: Source, ids: Ids, steady: bool, stop: threading.Event) -> Hashed:
    """One batch, a few requests at a time, so that Ctrl-C is soon noticed."""
    made: list[bytes] = []
    failures: list[Unreadable] = []
    groups = source.requests(ids)
    for start in range(0, len(groups), _REQUESTS):
        if stop.is_set():
            break  # nobody waits for the result
        group = np.concatenate(groups[start : start + _REQUESTS])
        for answer in _read_steady(source, group, stop) if steady else _read(source, group, stop):
            if isinstance(answer, Unreadable):
                failures.append(answer)
            made.append(_ABSENT if isinstance(answer, Unreadable) else digest(answer))
    rows = np.frombuffer(b"".join(made), np.uint8).reshape(-1, DIGEST)
    return Hashed(np.concatenate(groups), rows, failures, int(source.catalog.sizes[ids].sum()))


def _read_steady(source: Source, ids: Ids, stop: threading.Event) -> list[Buffer | Unreadable]:
    """Read; then look whether the files are still those of the catalog."""
    answers, catalog = _read(source, ids, stop), source.catalog
    for at in np.flatnonzero(written_since(catalog, ids)).tolist():
        id = int(ids[at])
        answers[at] = Stale(id, catalog.location(id), "it was written or taken away after it was indexed")
    return answers


def _read(source: Source, ids: Ids, stop: threading.Event) -> list[Buffer | Unreadable]:
    """Read, and again what a busy store has not answered."""
    answers = source.read(ids)
    for attempt in range(RETRIES):
        again = [at for at, data in enumerate(answers) if isinstance(data, Unreadable) and data.transient]
        if not again or stop.wait(BACKOFF * 2**attempt):
            break
        for at, data in zip(again, source.read(ids[again]), strict=True):
            answers[at] = data
    return answers


# -- the files behind the samples --------------------------------------------------------------------------


def written_since(catalog: Catalog, ids: Ids) -> Mask:
    """Which of these samples lie in files that now have another time of change than the catalog says, or none."""
    if catalog.changed is None or catalog.names is None:
        return np.zeros(len(ids), np.bool_)
    if catalog.shards is None or catalog.shard is None:
        times = np.array([_time(catalog, catalog.names.raw(id)) for id in ids.tolist()], np.int64)
        return np.asarray(times != catalog.changed[ids])
    shards, places = np.unique(catalog.shard[ids], return_inverse=True)
    times = np.array([_time(catalog, catalog.shards.raw(shard)) for shard in shards.tolist()], np.int64)
    return np.asarray((times != catalog.changed[shards])[places])


def _time(catalog: Catalog, name: bytes) -> int:
    try:
        return os.stat(os.path.join(os.fsencode(catalog.root), name)).st_mtime_ns
    except OSError:
        return -1


def _let_settle(changed: NDArray[np.int64]) -> None:
    """Wait until whatever is written from now on gets a later time of change than any file has.

    The clock of a kernel stands still for up to 10 ms, that of some file systems, which keep no fractions, for 2 s: a
    file written again within that time would look the same.
    """
    tick = np.where(changed % _SECOND, _SECOND // 20, 2 * _SECOND)
    left = changed + tick - time.time_ns()
    left = left[(left > 0) & (left < 4 * _SECOND)]  # a time far in the future is no clock's
    if len(left):
        time.sleep(float(left.max()) / _SECOND)


def carried(old: Catalog, new: Catalog) -> Digests | None:
    """The digests in `old` of samples that are the same in `new`: equal name, size and time of change of the file."""
    if old.digests is None or old.kind != new.kind or old.changed is None or new.changed is None:
        return None
    if old.fingerprint == new.fingerprint:
        return old.digests.copy()
    _, before, now = np.intersect1d(_identities(old), _identities(new), return_indices=True)
    same = (old.sizes[before] == new.sizes[now]) & (_times(old)[before] == _times(new)[now])
    digests = np.zeros((len(new), DIGEST), np.uint8)
    digests[now[same]] = old.digests[before[same]]
    return digests


def _times(catalog: Catalog) -> NDArray[np.int64]:
    """Per sample, the time of change of its file."""
    assert catalog.changed is not None
    return catalog.changed if catalog.shard is None else catalog.changed[catalog.shard]


def _identities(catalog: Catalog) -> NDArray[np.uint64]:
    """Per sample a hash of where it lies: the name of the file and, in a shard, the offset."""
    import xxhash

    names = catalog.names if catalog.shards is None else catalog.shards
    assert names is not None
    hashes = (xxhash.xxh3_64_intdigest(names.raw(index)) for index in range(len(names)))
    files = np.fromiter(hashes, np.uint64, len(names))
    if catalog.shard is None or catalog.offsets is None:
        return files
    mixed = files[catalog.shard] + catalog.offsets.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray(mixed ^ (mixed >> np.uint64(29)))
