"""A source that reads from packages where it can, and from the source within otherwise.

Bytes, ids and errors are those of the source within; packages change how many requests they cost. Nothing is packed
here.
"""

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from augury.errors import Unreadable
from augury.ids import Ids
from augury.packages.store import Package, PackageStore
from augury.packages.tap import Tap
from augury.sources import Base, Buffer, Source

FEWEST, SHARE = 2, 8
"""A package is read for at least so many of its samples, if they are at least one part in SHARE of its bytes: below
that, nearly all of what is read is read in vain."""
TAP = 1 << 25
"""Bytes that may wait to be packed: those of some thirty packages of a megabyte."""


class PackagedSource(Base):
    """Samples of `source`, read from the packages of `store` where enough of one package is asked for at once.

    The source within and the store stay open when this one is closed. A copy in another process, forked or sent there,
    reads from the source within alone: the packages belong to one process.
    """

    _store: PackageStore | None

    def __init__(self, source: Source, store: PackageStore, tap: int = TAP) -> None:
        store.check(source.catalog.fingerprint)
        self._take_after(source)
        self.tap = Tap(len(self.catalog), tap)
        """What the packer has asked for and `read` has brought."""
        self._store, self._pid = store, os.getpid()
        self._index = _Index(len(self.catalog))
        store.listen(self._index)

    def read(self, ids: Ids) -> list[Buffer | Unreadable]:
        """One request per package that is worth reading, and what the source within needs for the rest."""
        ids = self._checked(ids)
        if not self._has_packages():
            return self.source.read(ids)
        data, packages, samples = self._gathered(ids)
        if packages:
            with self._lock:
                self.packages_read += packages
                self.packaged_samples += samples
        self.tap.offer(ids, data)
        return data

    def read_aside(self, ids: Ids) -> list[Buffer | Unreadable]:
        """The same for the packer: not counted, and not offered to the tap."""
        return self._gathered(self._checked(ids))[0]

    def requests(self, ids: Ids) -> list[Ids]:
        """One group per package that is worth reading; the others as the source within groups them."""
        ids = self._checked(ids)
        if not self._has_packages():
            return self.source.requests(ids)
        groups, rest = self._split(ids)
        if not groups:
            return self.source.requests(ids)
        alone = self.source.requests(ids[rest]) if len(rest) else []
        return [ids[group.at] for group in groups] + alone

    def decode(self, data: Buffer) -> Any:
        """As the source within does."""
        return self.source.decode(data)

    def _take_after(self, source: Source) -> None:
        self.source = source
        self.catalog, self.form, self.self_labelled = source.catalog, source.form, source.self_labelled
        self.packages_read = self.packaged_samples = 0
        self._store = None
        self._lock = threading.Lock()

    def _has_packages(self) -> bool:
        return self._store is not None and os.getpid() == self._pid

    def _gathered(self, ids: Ids) -> tuple[list[Buffer | Unreadable], int, int]:
        """The data, and how many packages were read for how many of the samples."""
        groups, rest = self._split(ids)
        if not groups:
            return self.source.read(ids), 0, 0
        found: dict[int, Buffer | Unreadable] = {}
        packages = 0
        for group in groups:
            samples = self._from_package(group, ids)
            packages += bool(samples)
            found.update(samples)
        missing = [at for group in groups for at in group.at.tolist() if at not in found]
        at_source = np.concatenate((rest, np.array(missing, np.int64)))
        packaged = len(found)
        if len(at_source):
            found.update(zip(at_source.tolist(), self.source.read(ids[at_source]), strict=True))
        return [found[at] for at in range(len(ids))], packages, packaged

    def _from_package(self, group: _Group, ids: Ids) -> dict[int, Buffer]:
        """Position -> bytes, of those that the package turns out to hold."""
        assert self._store is not None
        samples = self._store.read(group.name) or {}
        asked = zip(group.at.tolist(), ids[group.at].tolist(), strict=True)
        # A copy, because a view would keep the whole package alive for as long as one sample is cached.
        return {at: bytes(samples[id]) for at, id in asked if id in samples}

    def _split(self, ids: Ids) -> tuple[list[_Group], NDArray[np.int64]]:
        """Which packages to read for which positions of `ids`, and the positions left to the source within."""
        places = self._index.place[ids]
        by_place = np.argsort(places, kind="stable")
        ordered = places[by_place]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if len(ids) else by_place
        ends = np.append(starts[1:], len(ids))
        several = np.flatnonzero((ends - starts >= FEWEST) & (ordered[starts] >= 0))
        groups, alone = [], np.ones(len(ids), np.bool_)
        for start, end in zip(starts[several].tolist(), ends[several].tolist(), strict=True):
            at = by_place[start:end]
            slot = self._index.slots.get(int(ordered[start]))
            if slot is not None and int(self.catalog.sizes[ids[at]].sum()) * SHARE >= slot.content:
                groups.append(_Group(slot.name, at))
                alone[at] = False
        return groups, np.flatnonzero(alone)

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "_closed": self._closed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._take_after(state["source"])
        self._closed = state["_closed"]


class _Group(NamedTuple):
    """What is asked of one package."""

    name: str
    at: NDArray[np.int64]
    """Positions in the ids asked for."""


class _Slot(NamedTuple):
    name: str
    content: int


class _Index:
    """Id -> package, for all ids at once. The store changes it, with its lock held; anybody reads it, without one.

    Who reads while it changes may see some of both: packages are asked for by name and answer by id, so that what has
    just moved is at worst read from the source within.
    """

    def __init__(self, samples: int) -> None:
        self.place = np.full(samples, -1, np.int32)
        """The slot of the package that was added last with this id; -1 where none is known."""
        self.slots: dict[int, _Slot] = {}
        self._slot_of: dict[str, int] = {}
        self._next = 0

    def added(self, name: str, package: Package) -> None:
        ids = package.ids
        if len(ids) == 0 or ids.min() < 0 or ids.max() >= len(self.place):
            return
        slot, self._next = self._next, self._next + 1  # a number is never used again: it would lead to another package
        self.slots[slot] = _Slot(name, package.content)
        self._slot_of[name] = slot
        self.place[ids] = slot

    def removed(self, name: str, package: Package) -> None:
        slot = self._slot_of.pop(name, None)
        if slot is not None:
            held = package.ids[self.place[package.ids] == slot]
            self.place[held] = -1
            del self.slots[slot]
