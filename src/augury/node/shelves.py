"""Cached bytes by the digest of their content: counted once, charged equally to all who hold them.

A shelf keeps what jobs hold and, while there is room, what ended jobs have left (idle content), so that the next job
on the same data starts warm. It decides nothing: policies say who holds what. One thread at a time calls it
(the node's lock); only bytes that were handed out are used outside. Files are in files.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import mmap
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

SMALL = 16 << 10
"""Samples of one size up to this many bytes lie in one matrix, so that a batch is one gather."""
MATRICES = 64
"""Sizes that have a matrix, at most: each takes as many addresses as the whole shelf has bytes."""
_MOVED = 1024
"""Rows that are moved at a time: they are copied in between."""


class Holder(Protocol):
    """A job, as a shelf knows it."""

    charged: dict[str, float]
    """Its part of the bytes that it holds, by shelf."""


class Entry:
    """Bytes under one digest, and who holds them."""

    __slots__ = ("cost", "data", "holders", "key", "name", "readers", "row")

    def __init__(self, key: bytes, cost: int) -> None:
        self.key, self.cost = key, cost
        self.holders: tuple[Holder, ...] = ()
        self.data: bytes | None = None
        """Itself, unless it is in a matrix or in a file."""
        self.row = 0
        """Of the matrix of its size; 0: not there."""
        self.name = ""
        """Of its file."""
        self.readers = 0
        """Who are about to read its file: until then it is not removed."""


class Shelf:
    """What all shelves have in common: the books."""

    name = ""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        """Bytes in use, whether held or idle."""
        self.entries: dict[bytes, Entry] = {}
        self._idle: dict[bytes, None] = {}
        """Held by nobody, those left first in front."""

    def hold(self, entry: Entry, job: Holder) -> None:
        """One more holds these bytes."""
        if not entry.holders:
            self._idle.pop(entry.key, None)
        self._charge(entry, -1)
        entry.holders = (*entry.holders, job)
        self._charge(entry, 1)

    def release(self, entry: Entry, job: Holder, keep: bool = False) -> bool:
        """One holds them no longer; whether nobody does any more. Then they leave, or with `keep` become idle."""
        self._charge(entry, -1)
        at = entry.holders.index(job)
        entry.holders = entry.holders[:at] + entry.holders[at + 1 :]
        self._charge(entry, 1)
        if entry.holders:
            return False
        if keep:
            self._idle[entry.key] = None
        else:
            self.discard(entry)
        return True

    def discard(self, entry: Entry) -> None:
        """Its bytes leave, whoever holds them."""
        self._charge(entry, -1)
        entry.holders = ()
        del self.entries[entry.key]
        self._idle.pop(entry.key, None)
        self._give_back(entry)

    def discard_oldest(self) -> None:
        """Let go of what has been idle for longest."""
        self.discard(self.entries[next(iter(self._idle))])

    @property
    def idle(self) -> int:
        """How many are held by nobody."""
        return len(self._idle)

    def _enter(self, entry: Entry, job: Holder) -> None:
        self.entries[entry.key] = entry
        self._idle[entry.key] = None
        self.hold(entry, job)

    def _charge(self, entry: Entry, sign: int) -> None:
        if entry.holders:
            part = sign * entry.cost / len(entry.holders)
            for job in entry.holders:
                job.charged[self.name] += part

    def _give_back(self, entry: Entry) -> None:
        raise NotImplementedError


class MemoryShelf(Shelf):
    """Bytes in memory: small samples of one size in a matrix each size, others as they are."""

    name = "ram"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._matrices: dict[int, Matrix] = {}
        self.moves = 0
        """Grows when samples may lie in other rows than before."""
        self._spare = 0
        """Bytes of rows that are in use and free: the next sample of that size takes one, or rows are moved."""

    def put(self, key: bytes, data: bytes, job: Holder, small: bool = False) -> Entry | None:
        """Keep bytes that are not here yet, held by a job; None where there is no room."""
        size = len(data)
        entry = Entry(key, size)
        matrix = self._matrix(size) if small and 0 < size <= SMALL else None
        if (matrix is None or matrix.full) and not self._room(size, matrix):
            return None
        if matrix is None:
            self.used += size
            entry.data = data
        else:
            if matrix.full:
                self.used += size
            else:
                self._spare -= size
            entry.row = matrix.add(entry, data)
        self._enter(entry, job)
        return entry

    def bytes_of(self, entry: Entry) -> bytes:
        """A sample's bytes; outlive it."""
        return entry.data if entry.data is not None else self._matrices[entry.cost].row(entry.row)

    def gather(self, size: int, rows: NDArray[Any], out: NDArray[np.uint8]) -> None:
        """Samples of one size, by row, into `out`. Row 0 is all zeros: nobody's bytes stand for an absent sample's."""
        matrix = self._matrices.get(size)
        if matrix is None:
            out[:] = 0
        else:
            matrix.rows.take(rows, axis=0, out=out, mode="clip")

    def trim(self) -> None:
        """Give memory that was freed back to the system."""
        self._compact()
        self._matrices = {size: matrix for size, matrix in self._matrices.items() if not matrix.empty}
        _give_back_memory()

    def _matrix(self, size: int) -> Matrix | None:
        """The matrix of a size; None where there are too many sizes."""
        matrix = self._matrices.get(size)
        if matrix is None and len(self._matrices) < MATRICES:
            matrix = self._matrices[size] = Matrix(size, self.capacity // size)
        return matrix

    def _room(self, cost: int, matrix: Matrix | None) -> bool:
        """Let idle content go until so much fits, or a row of the matrix is free; whether that is so."""
        while self.used - self._spare + cost > self.capacity and self._idle:
            self.discard_oldest()
        if matrix is not None and not matrix.full:
            return True
        if self.used + cost > self.capacity:
            self._compact()
        return self.used + cost <= self.capacity

    def _compact(self) -> None:
        self.moves += 1
        self.used -= sum(matrix.compact() for matrix in self._matrices.values())
        self._spare = 0

    def _give_back(self, entry: Entry) -> None:
        if entry.row:
            self._matrices[entry.cost].remove(entry.row)  # the row stays ours until the matrix is compacted
            self._spare += entry.cost
        else:
            self.used -= entry.cost


class Matrix:
    """Samples of one size as rows, row 0 always zero. Memory is used up to the highest row that was ever filled."""

    def __init__(self, size: int, rows: int) -> None:
        self.size = size
        # Private: of shared memory the system would keep the pages that are given back.
        self._memory = mmap.mmap(-1, max(1, (rows + 1) * size), mmap.MAP_PRIVATE)
        self.rows = np.frombuffer(self._memory, np.uint8, (rows + 1) * size).reshape(rows + 1, size)
        self._free: list[int] = []
        """A heap: low rows are filled first."""
        self._entries: list[Entry | None] = [None]

    @property
    def full(self) -> bool:
        """Whether one more sample takes more memory than is in use."""
        return not self._free

    @property
    def empty(self) -> bool:
        return len(self._entries) == 1

    def add(self, entry: Entry, data: bytes) -> int:
        """The row of a new sample, for which there is room."""
        if self._free:
            row = heapq.heappop(self._free)
            self._entries[row] = entry
        else:
            row = len(self._entries)
            self._entries.append(entry)
        self.rows[row] = np.frombuffer(data, np.uint8)
        return row

    def row(self, row: int) -> bytes:
        content: bytes = self.rows[row].tobytes()
        return content

    def remove(self, row: int) -> None:
        self._entries[row] = None
        heapq.heappush(self._free, row)

    def compact(self) -> int:
        """Move the highest rows to free ones below and give the end back to the system; how many bytes that are."""
        if not self._free:
            return 0
        before, held = len(self._entries), len(self._entries) - len(self._free)
        low = [row for row in self._free if row < held]
        high = [entry for entry in self._entries[held:] if entry is not None]
        for at in range(0, len(low), _MOVED):
            self.rows[low[at : at + _MOVED]] = self.rows[[entry.row for entry in high[at : at + _MOVED]]]
        for row, entry in zip(low, high, strict=True):
            self._entries[row], entry.row = entry, row
        del self._entries[held:]
        self._free = []
        start = -(-len(self._entries) * self.size // mmap.PAGESIZE) * mmap.PAGESIZE
        end = -(-before * self.size // mmap.PAGESIZE) * mmap.PAGESIZE
        if end > start:
            self._memory.madvise(mmap.MADV_DONTNEED, start, min(end, len(self._memory)) - start)
        return (before - len(self._entries)) * self.size


def keys_of(digests: NDArray[np.uint8]) -> list[bytes]:
    """One key per row of digests."""
    whole = digests.tobytes()
    return [whole[at : at + 32] for at in range(0, len(whole), 32)]


def _give_back_memory() -> None:
    """Ask the C library to return what was freed; another library may not know how."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
