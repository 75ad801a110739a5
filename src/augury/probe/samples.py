"""What is written to and read from the levels: samples of given sizes, cut into pieces of work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError, Unreadable
from augury.gather import row_bytes
from augury.ids import Ids
from augury.sources import Buffer, Source
from augury.tiers import Tier
from augury.units import format_size

SIZE = 100_000
"""Bytes of a sample where neither a dataset nor the user says: about those of ImageNet."""
MOST = 100_000
"""At most so many samples in a level: the smallest would otherwise take minutes to write."""
SYNC = 64_000_000
"""Bytes after which a writer waits for the disk: often enough to end in time, too seldom to matter."""


def sample_sizes(source: Source | None, size: int | None, rng: np.random.Generator) -> NDArray[np.int64]:
    """Of the samples to put into the levels: as in the dataset, in random order."""
    if source is None or size is not None:
        return np.full(MOST, size or SIZE, np.int64)
    sizes = source.catalog.sizes
    chosen = sizes[rng.choice(len(sizes), MOST, replace=len(sizes) < MOST)]
    return np.maximum(chosen, 1)


def one_size(source: Source | None, size: int | None) -> int | None:
    """The size of all samples, where they have one."""
    if source is None or size is not None:
        return size or SIZE
    return row_bytes(source) or None


def fitting(sizes: NDArray[np.int64], budget: int, what: str, extra: int = 0) -> NDArray[np.int64]:
    """As many of the samples as fit into the budget."""
    small = sizes[sizes + extra <= budget]
    chosen = small[: int(np.searchsorted(np.cumsum(small + extra), budget, side="right"))]
    if len(chosen) == 0:
        raise ConfigError(
            f"{what}: the {format_size(budget)} that may be used hold none of the samples "
            f"(the smallest has {format_size(int(sizes.min()))})"
        )
    return chosen


class Contents:
    """Bytes for samples: slices of one random block, which no file system can compress."""

    def __init__(self, sizes: NDArray[np.int64], rng: np.random.Generator) -> None:
        slack = 1 << 20
        self._block = memoryview(rng.bytes(int(sizes.max()) + slack))
        self._starts = rng.integers(0, slack, len(sizes)).tolist()
        self._sizes = sizes.tolist()

    def of(self, ids: Ids) -> list[Buffer]:
        """The bytes of each."""
        return [self._block[self._starts[id] : self._starts[id] + self._sizes[id]] for id in ids.tolist()]


def cut(ids: Ids, length: int) -> list[Ids]:
    """The ids in pieces, each of which is one thread's work."""
    return [ids[at : at + length] for at in range(0, len(ids), length)]


def copier() -> Callable[[Sequence[Any]], int]:
    """Copies samples out, as whoever makes a batch of them does; a view alone would have been read by nobody."""
    room = np.empty(0, np.uint8)

    def copy(data: Sequence[Any]) -> int:
        nonlocal room
        total = 0
        for item in data:
            if isinstance(item, Unreadable):
                continue
            array = np.frombuffer(item, np.uint8)
            if len(array) > len(room):
                room = np.empty(len(array), np.uint8)
            room[: len(array)] = array
            total += len(array)
        return total

    return copy


def fill(tier: Tier, pieces: Iterable[Ids], contents: Contents, seconds: float, sync: Callable[[], None]) -> float:
    """MB/s of one thread that writes the pieces and syncs now and then: tiers are never written by two at once."""
    began = time.perf_counter()
    total = since = 0
    for piece in pieces:
        data = contents.of(piece)
        tier.write(piece, data)
        written = sum(map(len, data))
        total, since = total + written, since + written
        if since >= SYNC:
            sync()
            since = 0
        if time.perf_counter() - began >= seconds:
            break
    sync()
    return total / 1e6 / max(time.perf_counter() - began, 1e-9)
