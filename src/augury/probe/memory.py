"""The memory tier's speed: filled as by a cache, gathered from as by a loader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from augury.ids import Ids
from augury.probe.rounds import Reader, Run, timed
from augury.probe.samples import Contents, copier, cut, fill, fitting
from augury.storage import StorageLevel
from augury.tiers.memory import BufferTier, MatrixTier, MemoryTier, memory_tier
from augury.units import Size, format_size

_BYTES = 256_000_000
"""To read and write: several times what processors cache."""
_PIECE = 500_000
"""Bytes of one gather. Larger ones would be shared with a second thread, which was not asked for."""


def probe_memory(
    run: Run, threads: Sequence[int], sizes: NDArray[np.int64], size: int | None, given: Size, capacity: int
) -> StorageLevel:
    """Samples of these sizes (or all of `size`), as many as fit into the limit and tell enough."""
    sizes = fitting(sizes, min(capacity, max(_BYTES, 4 * int(sizes.max()))), "ram")
    length = max(1, _PIECE // int(sizes.mean()))
    contents = Contents(sizes, run.rng)
    pieces = cut(run.rng.permutation(len(sizes)), length)
    tier = _new(sizes, size)

    def write(_: int) -> float:
        nonlocal tier
        tier.close()
        tier = _new(sizes, size)
        return fill(tier, pieces, contents, run.seconds, lambda: None)

    def read(count: int) -> float:
        work = cut(run.rng.permutation(_held(tier, len(sizes))), length)
        return timed(itertools.cycle(work), _reader_maker(tier, length), count, run.seconds)

    try:
        writes = run.curve("ram", "write", [1], write)
        reads = run.curve("ram", "read", threads, read)
    finally:
        tier.close()
    run.notes.append(
        f"ram: {len(sizes):,} samples ({format_size(int(sizes.sum()))}), written once each by one thread, as the cache "
        "does, and copied out in random order"
    )
    return StorageLevel("ram", given, reads.enough, reads.throughput, writes.throughput)


def _new(sizes: NDArray[np.int64], size: int | None) -> MemoryTier:
    return memory_tier(len(sizes), sizes, int(sizes.sum()), size)


def _held(tier: MemoryTier, samples: int) -> Ids:
    ids = np.arange(samples)
    return ids[tier.holds(ids)]


def _reader_maker(tier: MemoryTier, longest: int) -> Callable[[], Reader]:
    if isinstance(tier, MatrixTier):
        return lambda: _gathering(tier, longest)
    return lambda: _copying(tier)


def _gathering(tier: MatrixTier, longest: int) -> Reader:
    room = np.empty((longest, int(tier.footprint(np.zeros(1))[0])), np.uint8)

    def read(ids: Ids) -> int:
        out = room[: len(ids)]
        tier.take(ids, out)
        return out.nbytes

    return read


def _copying(tier: BufferTier) -> Reader:
    copy = copier()
    return lambda ids: copy(tier.read(ids))
