"""One job in the node: its policies decide as they do embedded, its bytes lie on shelves that all jobs share.

A batch is decided, and what is in memory located, under the node's lock; large samples are copied, files read and
digests computed outside of it. A sample that a policy keeps and nobody has is asked for from the client that reads it
(promised); until it is offered others read it themselves. Sources, sockets and schedules are not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from augury.ids import NONE, Ids, Mask, Scores, Times
from augury.metrics import Counts
from augury.node.holding import Dataset, Holding, Stock, pieces
from augury.node.shelves import Entry
from augury.policies import Policy
from augury.recipes import Recipe, policy_rng
from augury.step import Step, plan, prefetch, step, uncached

Levels = NDArray[np.int8]
LARGE = 1 << 20
"""Bytes from which a sample is copied without the interpreter's lock."""
MANY = 64
"""Pieces of what has changed that are kept apart."""


class Batch(NamedTuple):
    """What became of a batch."""

    step: Step
    found: Levels
    """Which shelf gave each sample's bytes; -1: none."""
    offer: Mask
    """Of which of them the node would have the bytes."""
    landing: list[Entry]


class _Lookup(NamedTuple):
    """Where a batch's samples are."""

    found: Levels
    copies: list[tuple[int, bytes]]
    """Offsets in the area, and what is to be copied there."""
    files: dict[int, Entry]
    """By id: on the disk shelf."""
    absent: set[int]
    """Ids: nowhere."""


class Job:
    """A job's policies and what it holds. Methods take the node's lock where they need it."""

    def __init__(
        self, stock: Stock, data: Dataset, recipe: Recipe, seed: int, name: str, owner: int, shares: Sequence[int]
    ) -> None:
        self.data, self.recipe, self.seed, self.name, self.owner = data, recipe, seed, name, owner
        self.charged = {shelf.name: 0.0 for shelf in stock.shelves}
        self.counts, self.refused, self.stalled = Counts(), 0, 0.0
        self.bytes_from: dict[str, int] = {}
        self.changed: list[Ids] | None = None
        """Who was admitted or has left since a client last asked; None: nobody asks."""
        self.wish_count = 0
        """Grows when the policies may want others than before."""
        self._stock = stock
        self._holds = Holding(stock, data, self)
        self.stack: list[Policy] = [
            recipe.policy_at(depth)(self._holds.costs[depth], share, policy_rng(seed, depth))
            for depth, share in enumerate(shares)
        ]
        for depth in range(len(shares)):
            self._adopt(depth)

    def take(self, ids: Ids, client: int, job: int, admit: bool, bypass: bool, area: NDArray[np.uint8] | None) -> Batch:
        """Decide a batch; copy what is there to the area, each sample behind the one before, as far as it reaches."""
        with self._stock.lock:
            decided = uncached(len(self.stack), ids) if bypass else step(self.stack, ids, job, admit)
            if decided.on_top and area is not None and self._gathered(ids, area):
                return Batch(decided, np.zeros(len(ids), np.int8), np.zeros(len(ids), np.bool_), [])
            lookup = self._locate(decided.served, area)
            wanted, rising, landing = self._apply(decided, client, lookup)
            self._note(decided, lookup)
            self._prepare_reading(decided.served, lookup, area, rising)
        if area is not None:
            _copy(lookup.copies, area)
        if lookup.files:
            self._from_files(decided.served, lookup, area, wanted, rising, landing)
        offer = np.zeros(len(ids), np.bool_)
        if wanted:
            offer = np.isin(decided.served, list(wanted))
        return Batch(decided, lookup.found, offer, landing)

    def unasked(self, ids: Ids, client: int) -> Batch:
        """Decide about ids that nobody has asked for: what is taken, and of whom the bytes are wanted."""
        with self._stock.lock:
            decided = prefetch(self.stack, ids)
            lookup = self._locate(decided.served, None)
            wanted, rising, landing = self._apply(decided, client, lookup)
            self._prepare_reading(NONE, lookup, None, rising)
        if lookup.files:
            self._from_files(NONE, lookup, None, wanted, rising, landing)
        return Batch(decided, lookup.found, np.isin(decided.served, list(wanted)), landing)

    def offer(self, ids: Ids, data: Sequence[bytes]) -> tuple[int, int, list[Entry]]:
        """Bytes that were asked for: how many are kept, how many are not what their digest says; and what must land."""
        keys = self._holds.keys(ids)
        true = np.array([blake3(each).digest() == key for each, key in zip(data, keys, strict=True)], np.bool_)
        landing: list[Entry] = []
        kept = 0
        with self._stock.lock:
            for id, key, each, matches in zip(ids.tolist(), keys, data, true.tolist(), strict=True):
                self._holds.promised.pop(id, None)
                kept += matches and self._place(id, key, each, landing)
            wrong = int(np.count_nonzero(~true))
            if wrong:
                self.refused += wrong
                self._forget(ids[~true])
        return kept, wrong, landing

    def lost(self, ids: Ids, client: int) -> None:
        """What this client was to offer will not come."""
        with self._stock.lock:
            gone = [id for id in ids.tolist() if self._holds.promised.get(id) == client]
            for id in gone:
                del self._holds.promised[id]
            self._forget(np.array(gone, np.int64))

    def leave(self, client: int) -> None:
        """A client has gone: what it was to offer will not come."""
        with self._stock.lock:
            promised = [id for id, who in self._holds.promised.items() if who == client]
        self.lost(np.array(promised, np.int64), client)

    def plan(self, order: Ids, job: int, times: Times | None, later: Ids) -> None:
        with self._stock.lock:
            plan(self.stack, order, job, times, later)
            self.wish_count += 1

    def end_loader(self, job: int) -> None:
        """One of its loaders has ended."""
        with self._stock.lock:
            for policy in self.stack:
                policy.leave(job)

    def learn(self, ids: Ids, scores: Scores, kin: Ids | None) -> None:
        with self._stock.lock:
            for policy in self.stack:
                policy.learn(ids, scores, kin)

    def progress(self, done: float, spreads: Sequence[float], accuracies: Sequence[float]) -> None:
        with self._stock.lock:
            for policy in self.stack:
                policy.progress(done, spreads, accuracies)

    def wanted(self, level: int) -> Ids:
        with self._stock.lock:
            return self.stack[level].wanted(self.stack[level].capacity)

    def resize(self, level: int, capacity: int) -> None:
        """Another share of a level; who does not fit leaves. (Its files are removed with the next that are.)"""
        with self._stock.lock:
            if capacity == self.stack[level].capacity:
                return
            evicted = self.stack[level].resize(capacity)
            self.wish_count += 1
            self._touch(evicted)
        for piece in pieces(evicted):
            with self._stock.lock:
                for id in piece[~self.stack[level].resident[piece]].tolist():  # who is not back already
                    self._holds.release(level, id)

    def held(self) -> Levels:
        """The level that holds each id; -1: none."""
        with self._stock.lock:
            return self._levels_of(np.arange(len(self.data.sizes)))

    def changes(self) -> tuple[Ids, Levels]:
        """Who may be held elsewhere than when this was last asked, and by which level now."""
        with self._stock.lock:
            ids = NONE if not self.changed else np.unique(np.concatenate(self.changed))
            self.changed = []
            return ids, self._levels_of(ids)

    def end(self) -> None:
        """Nobody takes part any more. What it holds stays, for the next one, while there is room."""
        self._holds.end()

    def _gathered(self, ids: Ids, area: NDArray[np.uint8]) -> bool:
        """Copy a batch of small samples that this job has in memory, all in one go; whether that is so."""
        size = self.data.uniform or 0
        if size * len(ids) > len(area) or (rows := self._holds.rows(ids)) is None:
            return False
        self._stock.ram.gather(size, rows, area[: size * len(ids)].reshape(len(ids), size))
        self.counts.add(Counts(len(ids), hits=len(ids)))
        self.bytes_from["ram"] = self.bytes_from.get("ram", 0) + size * len(ids)
        return True

    def _locate(self, served: Ids, area: NDArray[np.uint8] | None) -> _Lookup:
        """Find a batch's bytes. Small samples of one size are copied now: others may be put in their rows next."""
        keys = self._holds.keys(served)
        disk = self._stock.disk
        entries = self._holds.in_memory(served, keys)
        found = np.array([-1 if entry is None else 0 for entry in entries], np.int8)
        lookup = _Lookup(found, [], {}, set())
        for at in np.flatnonzero(found < 0).tolist():
            id = int(served[at])
            entry = None if disk is None else disk.entries.get(keys[at])
            if entry is not None:
                lookup.files[id] = entry
            else:
                lookup.absent.add(id)
        if area is None:
            return lookup
        if self._holds.small and self.data.uniform:
            self._gather(entries, area, lookup)
        else:
            self._list_copies(entries, self.offsets(served), len(area), lookup)
        return lookup

    def _gather(self, entries: list[Entry | None], area: NDArray[np.uint8], lookup: _Lookup) -> None:
        size = self.data.uniform or 1
        fits = min(len(entries), len(area) // size)
        rows = np.array([0 if entry is None else entry.row for entry in entries[:fits]], np.int64)
        self._stock.ram.gather(size, rows, area[: fits * size].reshape(fits, size))
        lookup.found[fits:] = -1
        for at in np.flatnonzero((rows == 0) & (lookup.found[:fits] == 0)).tolist():
            entry = entries[at]
            assert entry is not None
            lookup.copies.append((at * size, self._stock.ram.bytes_of(entry)))

    def _list_copies(self, entries: list[Entry | None], offsets: NDArray[np.int64], room: int, lookup: _Lookup) -> None:
        ends = offsets[1:].tolist()
        for at, (entry, start, end) in enumerate(zip(entries, offsets.tolist(), ends, strict=False)):
            if entry is None:
                continue
            if end <= room:
                lookup.copies.append((start, self._stock.ram.bytes_of(entry)))
            else:
                lookup.found[at] = -1

    def offsets(self, ids: Ids) -> NDArray[np.int64]:
        """Where in an area each sample begins, and where the last one ends."""
        return np.concatenate([[0], np.cumsum(self.data.sizes[ids])])

    def _apply(self, decided: Step, client: int, lookup: _Lookup) -> tuple[set[int], list[int], list[Entry]]:
        """Let go of and hold what was decided. Returns whose bytes are wanted from the client, who is to be read from
        the disk into memory, and what must be written to disk."""
        wanted = self._mend(decided, lookup)
        rising: list[int] = []
        served = set(decided.served.tolist())
        falling = self._let_go(decided)
        landing: list[Entry] = []
        for depth, ids in enumerate(decided.writes):
            self._touch(ids)
            keys = self._holds.keys(ids)
            for id, key, above in zip(ids.tolist(), keys, self._holds.in_memory(ids, keys), strict=True):
                wanted.discard(id)
                data = falling.get(id)
                if data is None and depth and above is not None:
                    data = self._stock.ram.bytes_of(above)
                if self._holds.hold(depth, id, key) or (
                    data is not None and self._holds.put(depth, id, key, data, landing)
                ):
                    continue
                if depth == 0 and id in lookup.files:
                    rising.append(id)
                elif data is None and id in served:
                    wanted.add(id)
                elif id not in self._holds.promised:  # who has promised it brings it to this level
                    self._forget(np.array([id]))
        self._holds.promised.update(dict.fromkeys([*wanted, *rising], client))
        return wanted, rising, landing

    def _mend(self, decided: Step, lookup: _Lookup) -> set[int]:
        """Hits whose bytes this job does not hold: promised, or lost with a damaged file. They are held if somebody
        else has brought them; returns those that are nowhere, and that nobody is to bring."""
        hit = decided.level < len(self.stack)
        ids, levels = decided.served[hit], decided.level[hit]
        doubtful = ~np.logical_or.reduce([owned[ids] for owned in self._holds.owned])
        if lookup.absent:
            doubtful |= np.isin(ids, list(lookup.absent))
        nowhere: set[int] = set()
        for id, depth in dict(zip(ids[doubtful].tolist(), levels[doubtful].tolist(), strict=True)).items():
            for owned in self._holds.owned:
                owned[id] = False
            held = self._holds.hold(depth, id, self._holds.key(id))
            if not held and id in lookup.absent and id not in self._holds.promised:
                nowhere.add(id)
        return nowhere

    def _let_go(self, decided: Step) -> dict[int, bytes]:
        """What each level gives up; returns the bytes that the next one takes over."""
        falling: dict[int, bytes] = {}
        for depth, ids in enumerate(decided.drops):
            self._touch(ids)
            below = set(np.concatenate([NONE, *decided.writes[depth + 1 :]]).tolist())
            for id in ids.tolist():
                if depth == 0 and id in below and self._holds.owned[0][id]:
                    entry = self._stock.ram.entries[self._holds.key(id)]
                    falling[id] = self._stock.ram.bytes_of(entry)
                self._holds.release(depth, id)
                if id not in below:
                    self._holds.promised.pop(id, None)
        return falling

    def _prepare_reading(self, served: Ids, lookup: _Lookup, area: NDArray[np.uint8] | None, rising: list[int]) -> None:
        """Leave only the files that are needed, and have them kept until they are read: who rises has left the disk."""
        needed = set(rising)
        if area is not None and lookup.files:
            needed.update(served[self.offsets(served)[1:] <= len(area)].tolist())
        for id in lookup.files.keys() - needed:
            del lookup.files[id]
        for entry in lookup.files.values():
            entry.readers += 1

    def _from_files(
        self,
        served: Ids,
        lookup: _Lookup,
        area: NDArray[np.uint8] | None,
        wanted: set[int],
        rising: list[int],
        landing: list[Entry],
    ) -> None:
        """Read from the disk shelf: into the area, and for memory whom the policy has taken there."""
        disk = self._stock.disk
        assert disk is not None
        data: dict[int, bytes] = {}
        damaged = []
        try:
            for id, entry in lookup.files.items():
                if (content := disk.read(entry)) is None:
                    damaged.append(id)
                elif len(content) == self.data.sizes[id]:
                    data[id] = content
        finally:
            with self._stock.lock:
                for entry in lookup.files.values():
                    entry.readers -= 1
        if area is not None:
            offsets = self.offsets(served).tolist()
            for at, id in enumerate(served.tolist()):
                if id in data and offsets[at + 1] <= len(area):
                    area[offsets[at] : offsets[at + 1]] = np.frombuffer(data[id], np.uint8)
                    lookup.found[at] = 1
        with self._stock.lock:
            for id in damaged:
                if disk.spoil(lookup.files[id]):
                    self._holds.owned[1][id] = False
            for id in rising:
                if id in data:
                    self._holds.promised.pop(id, None)
                    self._place(id, self._holds.key(id), data[id], landing)
                else:
                    wanted.add(id)

    def _place(self, id: int, key: bytes, data: bytes, landing: list[Entry]) -> bool:
        """Keep offered bytes where the policies say; whether they do."""
        for depth, policy in enumerate(self.stack):
            if policy.resident[id]:
                if (
                    self._holds.owned[depth][id]
                    or self._holds.hold(depth, id, key)
                    or self._holds.put(depth, id, key, data, landing)
                ):
                    return True
                self._forget(np.array([id]))
                return False
        return False

    def _forget(self, ids: Ids) -> None:
        """Their bytes will not come, or are lost."""
        if len(ids) == 0:
            return
        self._touch(ids)
        for depth, policy in enumerate(self.stack):
            for id in ids.tolist():
                self._holds.release(depth, id)
            policy.forget(ids[policy.resident[ids]])

    def _adopt(self, depth: int) -> None:
        """Hold what a shelf has of this job's data, as far as the policy takes it."""
        ids = self._holds.there(depth)
        with self._stock.lock:
            for policy in self.stack[:depth]:
                ids = ids[~policy.resident[ids]]
            rejected = self.stack[depth].adopt(ids)
        for piece in pieces(ids[~np.isin(ids, rejected)]):
            with self._stock.lock:
                keys = self._holds.keys(piece)
                held = [self._holds.hold(depth, id, key) for id, key in zip(piece.tolist(), keys, strict=True)]
                self.stack[depth].forget(piece[~np.array(held, np.bool_)])  # it has left meanwhile

    def _note(self, decided: Step, lookup: _Lookup) -> None:
        self.counts.add(decided.counts())
        sizes = self.data.sizes[decided.served]
        files = np.zeros(len(decided.served), np.bool_)
        if lookup.files:
            files[:] = [id in lookup.files for id in decided.served.tolist()]
        ours = decided.level < len(self.stack)
        for name, chosen in (
            ("ram", (lookup.found == 0) & ours),
            ("disk", files & ours & (lookup.found != 0)),
            ("shared", ((lookup.found == 0) | files) & ~ours),
            ("source", (lookup.found != 0) & ~files),
        ):
            if np.any(chosen):
                self.bytes_from[name] = self.bytes_from.get(name, 0) + int(sizes[chosen].sum())

    def _touch(self, ids: Ids) -> None:
        if self.changed is not None and len(ids):
            self.changed.append(ids)
            if len(self.changed) > MANY:  # a client that never asks must not make it grow for ever
                self.changed = [np.unique(np.concatenate(self.changed))]

    def _levels_of(self, ids: Ids) -> Levels:
        levels = np.full(len(ids), -1, np.int8)
        for depth in reversed(range(len(self.stack))):
            levels[self.stack[depth].resident[ids]] = depth
        return levels


def _copy(copies: list[tuple[int, bytes]], area: NDArray[np.uint8]) -> None:
    """Copy samples to where they belong. To give up the interpreter pays for large ones only: it must be had back."""
    view = memoryview(area)  # type: ignore[arg-type]
    for at, data in copies:
        if len(data) < LARGE:
            view[at : at + len(data)] = data
        else:
            area[at : at + len(data)] = np.frombuffer(data, np.uint8)
