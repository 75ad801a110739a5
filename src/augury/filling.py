"""Levels filled beside training: what the policies want to hold is read before anybody asks for it.

One lane per level, in the order in which its policy wants the samples, so many reads at once as the level has threads.
Bytes come first and decisions after: a ticket that had to wait for a slow read would hold up every batch behind it. The
thread that decides about batches calls everything here; staging.py fits what has arrived in between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from augury.errors import Unreadable
from augury.feedback import nobody
from augury.fetch import SOURCE, Reads
from augury.gather import Gatherer, Pending, Unasked
from augury.ids import NONE, Ids, as_ids
from augury.sources import Buffer

THREADS = 4
"""Reads at once for each level, where nobody says otherwise: an eighth of the readers, so that batches come first."""
LOT = 16
"""Samples that are decided about together while more are on their way: a decision costs as much as some ten of them."""


@dataclass(slots=True)
class _Lane:
    """What one level is still to be filled with."""

    threads: int
    line: Ids = field(default_factory=lambda: NONE)
    at: int = 0
    reading: dict[int, Reads] = field(default_factory=dict)


class _Arrived(NamedTuple):
    data: Buffer
    from_source: bool


class Filled(NamedTuple):
    """Samples that have arrived and are decided about; the tiers take them when it is their turn."""

    pending: Pending
    cost: int
    unasked: Unasked
    """What was read for it."""


class Filler:
    """Fills the levels of one loader's cache. One thread at a time calls it: the one that decides."""

    def __init__(self, gatherer: Gatherer, threads: Sequence[int], room: int) -> None:
        self.wake: Callable[[], None] = nobody
        """Called, by any thread, when something has arrived."""
        self._gatherer, self._cache, self._room = gatherer, gatherer.cache, room
        self._sizes = gatherer.source.catalog.sizes
        self._lanes = [_Lane(count) for count in threads]
        self._wishes = self._cache.wishes
        self._arrived: dict[int, _Arrived] = {}
        self._bytes_read = 0
        self.in_use = 0
        """Bytes that are on their way, or wait for their turn: never above the room."""

    def advance(self) -> Filled | None:
        """Start what may be started; if enough has arrived, decide about it."""
        if self._wishes != self._cache.wishes:
            self._wishes = self._cache.wishes
            for depth, lane in enumerate(self._lanes):
                lane.line, lane.at = self._cache.wanted(depth), 0
        for depth, lane in enumerate(self._lanes):
            while self._collect(lane) or self._start(depth, lane):
                pass
        under_way = any(lane.reading for lane in self._lanes)
        if not self._arrived or (under_way and len(self._arrived) < LOT):
            return None
        return self._decide()

    def finish(self, filled: Filled) -> None:
        """Let the tiers take what was decided, in turn; if it is not its turn, give it up."""
        self.in_use -= filled.cost
        if self._gatherer.ready(filled.pending):
            self._gatherer.finish_unasked(filled.pending)
        else:
            self._gatherer.abandon(filled.pending)

    def _start(self, depth: int, lane: _Lane) -> bool:
        """Read the next sample of the line, unless there are enough reads or bytes under way."""
        if len(lane.reading) >= lane.threads or (id := self._next(depth, lane)) is None:
            return False
        self.in_use += int(self._sizes[id])
        lane.reading[id] = self._gatherer.read_aside(id, self._ring)
        lane.at += 1
        return True

    def _next(self, depth: int, lane: _Lane) -> int | None:
        """The first in line that is still to be read and may be read now."""
        while lane.at < len(lane.line):
            id = int(lane.line[lane.at])
            size = int(self._sizes[id])
            if size <= self._room and not self._has(id, depth):
                return id if self.in_use + size <= self._room else None
            lane.at += 1
        return None

    def _has(self, id: int, depth: int) -> bool:
        """Whether the level, or one above it, has it by now: a batch has brought it, or it is on its way."""
        holder = self._cache.holder(id)
        if holder is not None and (holder <= depth or not self._cache.readable(holder, as_ids([id]))):
            return True
        return id in self._arrived or any(id in lane.reading for lane in self._lanes)

    def _collect(self, lane: _Lane) -> bool:
        """Take what has arrived. What cannot be read is left to the batch that asks for it."""
        done = [id for id, reads in lane.reading.items() if reads.done()]
        for id in done:
            reads = lane.reading.pop(id)
            self._bytes_read += reads.bytes_from.get(SOURCE, 0)
            if isinstance(data := reads.data[id], Unreadable):
                self.in_use -= int(self._sizes[id])
            else:
                self._arrived[id] = _Arrived(data, SOURCE in reads.bytes_from)
        return bool(done)

    def _decide(self) -> Filled:
        arrived, self._arrived = self._arrived, {}
        # Whom a batch has asked for meanwhile is held by now, from the same read, and counted as its miss.
        unasked = sum(each.from_source and self._cache.holder(id) is None for id, each in arrived.items())
        pending = self._gatherer.begin_filled({id: each.data for id, each in arrived.items()})
        for id in arrived:
            self._gatherer.let_go(id)
        read, self._bytes_read = self._bytes_read, 0
        return Filled(pending, int(self._sizes[list(arrived)].sum()), Unasked(unasked, read))

    def _ring(self) -> None:
        self.wake()
