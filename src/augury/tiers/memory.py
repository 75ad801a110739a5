"""Samples in this process's memory: one matrix where all have one size, separate buffers otherwise.

`memory_tier` chooses. Nothing here decides what to hold, and bytes carry no checksums: memory is trusted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augury.errors import Closed, TierFailed
from augury.ids import NONE, Ids, Mask
from augury.sources import Buffer
from augury.tiers.checks import byte_lengths, check_batch, check_sizes

_SPLIT = 1 << 20
"""Bytes from which a gather is shared with a second thread: one core does not use up the memory's bandwidth."""


class MatrixTier:
    """Equal-sized samples as rows of one matrix: a batch is one gather, a write is one scatter.

    The matrix is allocated at once, but the operating system gives memory only to rows that were written, and
    low rows are used first. `take` and `holds` may run beside `write` and `drop` as `read` may.
    """

    name = "ram"
    instant = True

    def __init__(self, samples: int, size: int, capacity: int) -> None:
        self.capacity, self._size = capacity, size
        rows = min(samples, capacity // size) if size else samples
        # One row more than none: a gather of absent ids needs a row to read from, even where nothing fits.
        self._matrix: NDArray[np.uint8] | None = np.empty((max(rows, 1), size), np.uint8)
        self._row_of: NDArray[Any] = np.full(samples, -1, np.int32 if rows < 2**31 else np.int64)
        self._free = np.arange(rows - 1, -1, -1, dtype=self._row_of.dtype)
        self._free_rows = rows
        several = len(os.sched_getaffinity(0)) > 1
        self._helper = ThreadPoolExecutor(1, "augury-gather") if several else None

    def footprint(self, sizes: NDArray[Any]) -> NDArray[Any]:
        """Each sample costs one row."""
        return np.broadcast_to(np.int64(self._size), np.shape(sizes))

    def holds(self, ids: Ids) -> Mask:
        """Which of these are held."""
        self._open()
        held: Mask = self._row_of[ids] >= 0
        return held

    def take(self, ids: Ids, out: NDArray[np.uint8]) -> Mask:
        """Gather samples into the rows of `out`, a contiguous (len(ids), size) array; return which are held.

        An absent id gives an arbitrary row, which the caller overwrites.
        """
        # "clip" turns the -1 of an absent id into row 0, and unlike "raise" writes straight to `out`.
        rows = self._row_of[ids]
        self._gather(self._open(), rows, out)
        held: Mask = rows >= 0
        return held

    def _gather(self, matrix: NDArray[np.uint8], rows: NDArray[Any], out: NDArray[np.uint8]) -> None:
        if out.nbytes < _SPLIT or self._helper is None:
            matrix.take(rows, axis=0, out=out, mode="clip")
            return
        half = len(rows) // 2
        try:
            other = self._helper.submit(matrix.take, rows[half:], 0, out[half:], "clip")
        except RuntimeError:  # the interpreter is ending and starts no thread any more
            matrix.take(rows, axis=0, out=out, mode="clip")
            return
        matrix.take(rows[:half], axis=0, out=out[:half], mode="clip")
        other.result()

    def read(self, ids: Ids) -> list[Buffer | None]:
        """One copy per id, as its row is used again after a drop; None where it is absent."""
        matrix = self._open()
        return [matrix[row].tobytes() if row >= 0 else None for row in self._row_of[ids].tolist()]

    def write(self, ids: Ids, data: Sequence[Buffer] | NDArray[np.uint8]) -> None:
        """Hold these distinct ids; `data` may be a matrix with a row per id."""
        matrix = self._open()
        check_batch(ids, data)
        table = data if isinstance(data, np.ndarray) else self._as_matrix(data)
        if table.shape[1:] != (self._size,):
            raise ValueError(f"samples of this tier have {self._size} bytes, not {table.shape[1:]}")
        fresh = ids[self._row_of[ids] < 0]
        rows = self._reserve(len(fresh))
        if len(fresh) < len(ids):
            held = self._row_of[ids]
            held[held < 0] = rows
            matrix[held] = table
        else:
            matrix[rows] = table
        self._row_of[fresh] = rows

    def drop(self, ids: Ids) -> None:
        """Give back the rows of these ids."""
        self._open()
        rows = self._row_of[ids]
        rows = np.unique(rows[rows >= 0])
        self._row_of[ids] = -1
        self._free[self._free_rows : self._free_rows + len(rows)] = rows
        self._free_rows += len(rows)

    def found(self) -> Ids:
        """Nothing: memory outlives no run."""
        return NONE

    def close(self) -> None:
        """Give back the memory; a gather that is under way ends first."""
        self._matrix = None
        if self._helper is not None:
            self._helper.shutdown()

    def _open(self) -> NDArray[np.uint8]:
        matrix = self._matrix
        if matrix is None:
            raise Closed("the memory tier is closed")
        return matrix

    def _reserve(self, count: int) -> NDArray[Any]:
        if count > self._free_rows:
            raise TierFailed(f"the memory tier has room for {self._free_rows} more samples, not for {count}")
        rows = self._free[self._free_rows - count : self._free_rows][::-1].copy()
        self._free_rows -= count
        return rows

    def _as_matrix(self, data: Sequence[Buffer]) -> NDArray[np.uint8]:
        if (byte_lengths(data) != self._size).any():
            raise ValueError(f"every sample of this tier has {self._size} bytes")
        return np.frombuffer(b"".join(data), np.uint8).reshape(len(data), self._size)


class BufferTier:
    """Samples of any size as separate buffers. Each costs what the catalog says, even where it is smaller."""

    name = "ram"
    instant = True

    def __init__(self, sizes: NDArray[Any], capacity: int) -> None:
        self.capacity, self._sizes = capacity, sizes
        self._held: dict[int, bytes] | None = {}
        self._used = 0

    def footprint(self, sizes: NDArray[Any]) -> NDArray[Any]:
        """A sample costs its bytes."""
        return np.asarray(sizes, np.int64)

    def holds(self, ids: Ids) -> Mask:
        """Which of these are held."""
        held = self._open()
        return np.fromiter((id in held for id in ids.tolist()), np.bool_, len(ids))

    def read(self, ids: Ids) -> list[Buffer | None]:
        """The buffers themselves: immutable, and alive after a drop while anyone refers to them."""
        held = self._open()
        return [held.get(id) for id in ids.tolist()]

    def write(self, ids: Ids, data: Sequence[Buffer]) -> None:
        """Hold these distinct ids: `bytes` by reference, anything else as a copy."""
        held = self._open()
        check_batch(ids, data)
        check_sizes(ids, byte_lengths(data), self._sizes)
        cost = int(self._sizes[ids[~self.holds(ids)]].sum())
        if self._used + cost > self.capacity:
            raise TierFailed(f"the memory tier has {self.capacity - self._used} bytes left, not {cost}")
        self._used += cost
        # Copies only what is not `bytes` already.
        held.update(zip(ids.tolist(), map(bytes, data), strict=True))

    def drop(self, ids: Ids) -> None:
        """Give back the buffers of these ids."""
        held = self._open()
        for id in ids.tolist():
            if held.pop(id, None) is not None:
                self._used -= int(self._sizes[id])

    def found(self) -> Ids:
        """Nothing: memory outlives no run."""
        return NONE

    def close(self) -> None:
        """Give back the memory."""
        self._held = None

    def _open(self) -> dict[int, bytes]:
        held = self._held
        if held is None:
            raise Closed("the memory tier is closed")
        return held


MemoryTier = MatrixTier | BufferTier


def memory_tier(
    samples: int, sizes: NDArray[Any], capacity: int, uniform_size: int | None = None
) -> MatrixTier | BufferTier:
    """A matrix where every sample has exactly `uniform_size` bytes, separate buffers where that is None."""
    if uniform_size is None:
        return BufferTier(sizes, capacity)
    return MatrixTier(samples, uniform_size, capacity)
