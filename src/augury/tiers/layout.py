"""Where in its file a disk tier puts each sample: arithmetic on ids, no I/O.

`Slots` pack samples of (nearly) one size without gaps; a free slot takes any id. `Places` give every id of
the dataset its own fixed offset in a sparse file, so that the file system is the allocator: there is no index
of locations, no fragmentation and no compaction. `choose_layout` takes whichever costs fewer bytes.

Both say the same things: `places` and `extent` (the length of the file, holes included), `sparse` (whether a
place that is given back must be punched out of the file), `description` (files of another one are of no use)
and an array of tags, one per place, which `DiskTier` keeps on disk and hands back to `load`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from augury.ids import Ids, Mask

BLOCK = 4096
"""What file systems allocate in. Those with larger blocks are refused: see `directory.check_punching`."""
HEADER = 16
"""Bytes before each sample: checksum and length."""
BLOCK_MAP = BLOCK // 128
"""Charged per block for the file system's own map of a sparse file, which is part of its disk usage: on ext4
24 bytes per block where no two blocks are neighbours and the map is half full."""


class Slots:
    """Slots of one size; a tag is the id that a slot holds, plus one."""

    sparse = False
    tag_type = np.dtype("<i8")

    def __init__(self, samples: int, largest: int, capacity: int) -> None:
        self._width = HEADER + largest
        self._cost = _slot_cost(largest)
        self.places = min(samples, max(capacity, 0) // self._cost)
        self.extent = self.places * self._width
        self.description = f"slots of {self._width} bytes for {samples} samples"
        self._slot_of: NDArray[Any] = np.full(samples, -1, np.int32 if self.places < 2**31 else np.int64)
        self._free = np.empty(self.places, np.int64)
        self._free_slots = 0
        self.load(np.zeros(self.places, self.tag_type))

    def footprint(self, sizes: NDArray[Any]) -> NDArray[Any]:
        """A sample costs a slot and its tag."""
        return np.broadcast_to(np.int64(self._cost), np.shape(sizes))

    def span(self, sizes: NDArray[Any]) -> NDArray[np.int64]:
        """How much of the file a sample may use: its slot."""
        return np.broadcast_to(np.int64(self._width), np.shape(sizes))

    def load(self, tags: NDArray[Any]) -> None:
        """Take over the tags of an earlier run; damaged ones count as free."""
        ids = tags - 1
        used = np.flatnonzero((ids >= 0) & (ids < len(self._slot_of)))
        self._slot_of[:] = -1
        self._slot_of[ids[used]] = used
        free = np.ones(self.places, np.bool_)
        # Where damage made two slots claim one id, the last assignment won: the other slot is free.
        free[self._slot_of[ids[used]]] = False
        slots = np.flatnonzero(free)[::-1]
        self._free[: len(slots)], self._free_slots = slots, len(slots)

    def tags(self, ids: Ids) -> NDArray[Any]:
        """What the slots of these ids are marked with."""
        return (ids + 1).astype(self.tag_type)

    def holds(self, ids: Ids) -> Mask:
        """Which of these have a slot."""
        held: Mask = self._slot_of[ids] >= 0
        return held

    def held(self) -> Ids:
        """All ids that have a slot."""
        return np.flatnonzero(self._slot_of >= 0)

    def claim(self, ids: Ids) -> None:
        """Give each of these absent ids a slot, the latest freed first: its pages are likely in memory."""
        rest = self._free_slots - len(ids)
        self._slot_of[ids] = self._free[rest : self._free_slots][::-1]
        self._free_slots = rest

    def release(self, ids: Ids) -> None:
        """Take the slots of these held ids back."""
        self._free[self._free_slots : self._free_slots + len(ids)] = self._slot_of[ids]
        self._free_slots += len(ids)
        self._slot_of[ids] = -1

    def place_of(self, ids: Ids) -> NDArray[np.int64]:
        """The slot of each of these held ids."""
        return self._slot_of[ids].astype(np.int64)

    def offset_of(self, ids: Ids) -> NDArray[np.int64]:
        """Where in the file the slot of each of these held ids begins."""
        return self.place_of(ids) * self._width


class Places:
    """A fixed range of whole blocks for every id of the dataset; a tag is 1 where the id is held."""

    sparse = True
    tag_type = np.dtype(np.uint8)

    def __init__(self, sizes: NDArray[Any]) -> None:
        ends = np.cumsum(_blocks(sizes))
        blocks = int(ends[-1]) if len(ends) else 0
        starts = ends - _blocks(sizes)
        # Four bytes per id are enough for 16 TiB.
        self._first_block = starts.astype(np.uint32 if blocks < 2**32 else np.int64)
        self._held = np.zeros(len(sizes), self.tag_type)
        self.places, self.extent = len(sizes), blocks * BLOCK
        self.description = f"places for {len(sizes)} samples in {blocks} blocks"

    def footprint(self, sizes: NDArray[Any]) -> NDArray[Any]:
        """A sample costs whole blocks, and their share of the file system's map."""
        return _blocks(sizes) * (BLOCK + BLOCK_MAP)

    def span(self, sizes: NDArray[Any]) -> NDArray[np.int64]:
        """How much of the file a sample may use: whole blocks."""
        return _blocks(sizes) * BLOCK

    def load(self, tags: NDArray[Any]) -> None:
        """Take over the tags of an earlier run."""
        self._held[:] = tags != 0

    def tags(self, ids: Ids) -> NDArray[Any]:
        """What the places of these ids are marked with."""
        return np.ones(len(ids), self.tag_type)

    def holds(self, ids: Ids) -> Mask:
        """Which of these are held."""
        held: Mask = self._held[ids] != 0
        return held

    def held(self) -> Ids:
        """All ids that are held."""
        return np.flatnonzero(self._held)

    def claim(self, ids: Ids) -> None:
        """Hold these absent ids."""
        self._held[ids] = 1

    def release(self, ids: Ids) -> None:
        """Hold these ids no longer."""
        self._held[ids] = 0

    def place_of(self, ids: Ids) -> NDArray[np.int64]:
        """An id is its own place."""
        return ids

    def offset_of(self, ids: Ids) -> NDArray[np.int64]:
        """Where in the file the place of each id begins."""
        return self._first_block[ids].astype(np.int64) * BLOCK


Layout: TypeAlias = Slots | Places


def choose_layout(sizes: NDArray[Any], capacity: int) -> Layout:
    """Slots where making each sample as large as the largest wastes less than rounding to whole blocks."""
    largest = int(sizes.max()) if len(sizes) else 0
    in_places = int(_blocks(sizes).sum()) * (BLOCK + BLOCK_MAP)
    if len(sizes) * _slot_cost(largest) <= in_places:
        return Slots(len(sizes), largest, capacity)
    return Places(sizes)


def _slot_cost(largest: int) -> int:
    return HEADER + largest + Slots.tag_type.itemsize


def _blocks(sizes: NDArray[Any]) -> NDArray[np.int64]:
    return (np.asarray(sizes, np.int64) + (HEADER + BLOCK - 1)) // BLOCK
