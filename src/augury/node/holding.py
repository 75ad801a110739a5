"""One job's claims on the shelves: whose bytes it holds, and whose are still with a client that has promised them.

A claim follows a decision of the job's policies, which are job.py's; the books of all jobs together are the shelves'.
One thread at a time calls it (the node's lock).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from augury.ids import NONE, Ids
from augury.node.files import FileShelf, blocks
from augury.node.shelves import SMALL, Entry, Holder, MemoryShelf, keys_of

_PIECE = 4096
"""Samples that are looked through at a time under the lock, where a whole dataset is."""


class Stock:
    """The shelves of a node, and the lock for all its books."""

    def __init__(self, ram: MemoryShelf, disk: FileShelf | None = None) -> None:
        self.lock = threading.Lock()
        self.ram, self.disk = ram, disk
        self.shelves: list[MemoryShelf | FileShelf] = [ram] if disk is None else [ram, disk]

    def finish(self, landing: Sequence[Entry]) -> None:
        """Remove what left the disk shelf and write what was put there. Takes a while: after the answer."""
        if self.disk is None:
            return
        self._sweep(self.disk)
        for entry in landing:
            written = False
            try:
                written = self.disk.write(entry)
            finally:
                with self.lock:
                    self.disk.land(entry, written)
        if landing:
            self._sweep(self.disk)  # who was given up while it was being written

    def _sweep(self, disk: FileShelf) -> None:
        with self.lock:
            removed = disk.sweep()
        disk.remove(removed)


class Dataset(NamedTuple):
    """The content of samples, as a client knows it."""

    digests: NDArray[np.uint8]
    sizes: NDArray[np.int64]
    uniform: int | None
    """The size of all, if they have one."""


class Holding:
    """What one job holds."""

    def __init__(self, stock: Stock, data: Dataset, job: Holder) -> None:
        self._stock, self._data, self._job = stock, data, job
        self.costs = [data.sizes, blocks(data.sizes)]
        """Bytes that each sample takes of each level."""
        self.owned = [np.zeros(len(data.sizes), np.bool_) for _ in stock.shelves]
        """Per level: whose bytes are there for this job."""
        self.promised: dict[int, int] = {}
        """Resident, but its bytes are still with a client, or being read from the disk for one: which."""
        self.small = data.uniform is not None and 0 < data.uniform <= SMALL
        self.ended = False
        self._again: Counter[tuple[int, bytes]] = Counter()
        """How many more ids of a level have the same content as one that is held: the job holds it once."""
        self._rows = np.zeros(len(data.sizes) if self.small else 0, np.int32)
        """Where in memory the owned are, as of `_moves`; 0: elsewhere."""
        self._moves = stock.ram.moves

    def key(self, id: int) -> bytes:
        """The digest of a sample."""
        key: bytes = self._data.digests[id].tobytes()
        return key

    def keys(self, ids: Ids) -> list[bytes]:
        return keys_of(self._data.digests[ids])

    def rows(self, ids: Ids) -> NDArray[np.int32] | None:
        """Where in the matrix of their size samples are; None unless this job has all of them there."""
        if not self.small or not self.owned[0][ids].all():
            return None
        if self._moves != self._stock.ram.moves:
            self._moves = self._stock.ram.moves
            owned = np.flatnonzero(self.owned[0])
            self._rows[owned] = [self._stock.ram.entries[key].row for key in self.keys(owned)]
        rows = self._rows[ids]
        return rows if rows.all() else None

    def in_memory(self, ids: Ids, keys: list[bytes]) -> list[Entry | None]:
        """What the memory shelf has. Content of another size than the client says is not what it means, and lies where
        others' bytes would be found for it."""
        entries = [*map(self._stock.ram.entries.get, keys)]
        if (size := self._data.uniform) is not None:
            return [entry if entry is not None and entry.cost == size else None for entry in entries]
        sizes = self._data.sizes[ids].tolist()
        pairs = zip(entries, sizes, strict=True)
        return [entry if entry is not None and entry.cost == size else None for entry, size in pairs]

    def hold(self, depth: int, id: int, key: bytes) -> bool:
        """Hold what a shelf has already."""
        shelf = self._stock.shelves[depth]
        entry = shelf.entries.get(key)
        if entry is None or entry.cost != self.costs[depth][id] or self.ended:
            return False
        if self.owned[depth][id]:
            return True
        if self._job in entry.holders:
            self._again[depth, key] += 1
        else:
            shelf.hold(entry, self._job)
        self._own(depth, id, entry)
        return True

    def put(self, depth: int, id: int, key: bytes, data: bytes, landing: list[Entry]) -> bool:
        """Bring bytes that a shelf has not; whether it has room for them."""
        shelf = self._stock.shelves[depth]
        if self.ended:
            return False
        if isinstance(shelf, MemoryShelf):
            entry = shelf.put(key, data, self._job, self.small)
        else:
            if (torn := shelf.entries.get(key)) is not None:
                shelf.spoil(torn)
            if (entry := shelf.put(key, data, self._job)) is not None:
                landing.append(entry)
        if entry is not None:
            self._again.pop((depth, key), None)
            self._own(depth, id, entry)
        return entry is not None

    def release(self, depth: int, id: int) -> None:
        """Hold the bytes of an id no longer."""
        if not self.owned[depth][id]:
            return
        self.owned[depth][id] = False
        self._let_go(depth, self.key(id), keep=False)

    def there(self, depth: int) -> Ids:
        """Whose bytes a shelf has, for whomever. Takes the lock itself, a piece at a time."""
        shelf = self._stock.shelves[depth]
        found = [NONE]
        for piece in pieces(np.arange(len(self._data.sizes))):
            keys = self.keys(piece)
            with self._stock.lock:
                found.append(piece[[key in shelf.entries for key in keys]])
        return np.concatenate(found)

    def end(self) -> None:
        """Hold nothing any more: it stays, for the next job, while there is room. Takes the lock itself."""
        with self._stock.lock:
            self.ended = True  # a request that is under way holds nothing any more
        for depth in range(len(self._stock.shelves)):
            for piece in pieces(np.flatnonzero(self.owned[depth])):
                with self._stock.lock:
                    for key in self.keys(piece):
                        self._let_go(depth, key, keep=True)
            self.owned[depth][:] = False
        self.promised.clear()

    def _let_go(self, depth: int, key: bytes, keep: bool) -> None:
        shelf = self._stock.shelves[depth]
        entry = shelf.entries.get(key)
        if entry is None or self._job not in entry.holders:  # it was found damaged
            self._again.pop((depth, key), None)
        elif (depth, key) in self._again:
            self._again[depth, key] -= 1
            if not self._again[depth, key]:
                del self._again[depth, key]
        else:
            shelf.release(entry, self._job, keep)

    def _own(self, depth: int, id: int, entry: Entry) -> None:
        self.owned[depth][id] = True
        self.promised.pop(id, None)
        if self.small and depth == 0:
            self._rows[id] = entry.row


def pieces(ids: Ids) -> Iterator[Ids]:
    """Some at a time, so that the lock is not held for long."""
    for start in range(0, len(ids), _PIECE):
        yield ids[start : start + _PIECE]
