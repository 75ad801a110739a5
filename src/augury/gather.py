"""One batch's bytes, from wherever they are: decide, start the reads, and in turn collect and commit.

Shared by the read-ahead window (staging.py) and by the drop-in dataset (torch/dataset.py). Knows nothing of decoding,
tensors or epochs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from augury.buffers import BufferPool
from augury.cache import Cache, Ticket
from augury.errors import Unreadable
from augury.fetch import SOURCE, Fetcher, Reads
from augury.ids import Ids, Mask, as_ids, first_seen
from augury.metrics import Counts
from augury.sources import Buffer, Source
from augury.tiers.memory import MatrixTier

Rows: TypeAlias = NDArray[np.uint8] | list[Buffer | None]
"""Samples' bytes: one matrix where all have one size, otherwise a list."""


@dataclass(slots=True)
class Raw:
    """One batch as bytes. `rows` has one entry per id; those of unreadable samples are arbitrary or None."""

    ids: Ids
    rows: Rows
    errors: dict[int, Unreadable]
    """By position in the batch."""
    counts: Counts
    bytes_from: dict[str, int]
    unasked_bytes: int = 0
    """Read before this batch because the policy wants to hold them."""

    def only(self, chosen: Mask) -> Raw:
        """Some of its samples. The counts are still those of all: they were asked for."""
        places = np.flatnonzero(chosen)
        rows = self.rows[places] if isinstance(self.rows, np.ndarray) else [self.rows[at] for at in places.tolist()]
        errors = {new: self.errors[old] for new, old in enumerate(places.tolist()) if old in self.errors}
        return replace(self, ids=self.ids[places], rows=rows, errors=errors)


@dataclass(slots=True)
class Pending:
    """A batch that is decided, with its reads under way."""

    ticket: Ticket
    reads: Reads
    lost: list[Ids]
    """Ids that a tier turned out not to hold after all: they were read from the source."""
    abandoned: bool = False
    """Nobody waits for it: a read that is still under way may find that its sample has moved on."""


class Unasked(NamedTuple):
    """What was read because the policy wants to hold it."""

    samples: int
    """From the source."""
    bytes: int


class Gatherer:
    """Makes batches of bytes from a source through a cache. Any thread may call it."""

    def __init__(self, source: Source, cache: Cache, fetcher: Fetcher, buffers: BufferPool, admit: bool = True) -> None:
        self.source, self.cache = source, cache
        self.fetcher, self._buffers, self._admit = fetcher, buffers, admit
        self._row_bytes = row_bytes(source)
        top = cache.levels[0].tier if cache.levels else None
        self._instant = top is not None and top.instant
        self._matrix = top if isinstance(top, MatrixTier) and self._row_bytes is not None else None

    def begin(self, ids: Ids, ring: Callable[[], None], job: int = 0, bypass: bool = False) -> Pending:
        """Decide and start reading. `ring` is called when all that was started has arrived (if anything was)."""
        return self._begin(self.cache.decide(ids, job, self._admit, bypass), ring)

    def begin_unasked(self, ids: Ids, ring: Callable[[], None]) -> Pending:
        """The same for ids that the policy wants to hold and nobody has asked for."""
        return self._begin(self.cache.decide_unasked(ids), ring)

    def begin_filled(self, data: dict[int, Buffer | Unreadable]) -> Pending:
        """The same for samples whose bytes are at hand already: only a turn is waited for."""
        pending = Pending(self.cache.decide_unasked(as_ids(list(data))), Reads(), [])
        pending.reads.data.update(data)
        pending.reads.settle()
        return pending

    def read_aside(self, id: int, ring: Callable[[], None]) -> Reads:
        """Read a sample beside the batches, from whoever holds it, with nothing decided yet; `let_go` ends it.

        Until then a batch that asks for it gets these bytes.
        """
        reads, depth = Reads(ring, lingers=True), self.cache.holder(id)
        if depth is None:
            self.fetcher.start(as_ids([id]), reads)
        else:
            self.fetcher.start_from(self.cache.levels[depth].tier, as_ids([id]), reads, partial(self._gone, depth))
        self.fetcher.release(reads)
        return reads

    def let_go(self, id: int) -> None:
        """What was read aside has been decided about, or is not needed."""
        self.fetcher.let_go(id)

    def _gone(self, depth: int, ids: Ids) -> None:
        """A tier did not hold what it held when it was read aside: it has given it up meanwhile, or lost it."""
        still = ids[self.cache.levels[depth].policy.resident[ids] & self.cache.readable(depth, ids)]
        if len(still):
            self.cache.report_damage(depth, len(still))
            self.cache.lose(depth, still, self.cache.turn - 1)

    def _begin(self, ticket: Ticket, ring: Callable[[], None]) -> Pending:
        pending = Pending(ticket, Reads(ring), [])
        if ticket.step.on_top and self._instant:
            pending.reads.settle()
            return pending
        try:
            self._start(pending)
            self.fetcher.release(pending.reads)
        except BaseException:
            self.abandon(pending)
            raise
        return pending

    def ready(self, pending: Pending) -> bool:
        """Whether `finish` would not wait."""
        return self.cache.turn == pending.ticket.number and pending.reads.done()

    def finish(self, pending: Pending) -> Raw:
        """Collect the batch and let the tiers take and give up what was decided. Only when ready."""
        try:
            raw = self._collect(pending)
        except BaseException:
            self.abandon(pending)
            raise
        self.cache.commit(pending.ticket, pending.reads.data)
        return raw

    def finish_unasked(self, pending: Pending) -> Unasked:
        """Let the tiers take what was read unasked. Only when ready. What could not be read is forgotten."""
        decided, reads = pending.ticket.step, pending.reads
        try:
            late = np.array([id not in reads.data for id in decided.served.tolist()], np.bool_)
            if late.any():
                self._catch_up(decided.served[late], decided.level[late], pending)
            for id in reads.data:
                reads.data[id] = self._checked(id, reads.data[id])
        except BaseException:
            self.abandon(pending)
            raise
        self.cache.commit(pending.ticket, reads.data)
        return Unasked(len(decided.missed), reads.bytes_from.get(SOURCE, 0))

    def joinable(self, pending: Pending) -> bool:
        """Whether the batch is one gather from the topmost tier, which can be made together with its neighbours'."""
        return pending.ticket.step.on_top and self._matrix is not None and self._buffers.reuses

    def joins(self, pending: Pending, following: Pending) -> bool:
        """Whether two batches can be finished together: nobody else's turn lies between them."""
        adjacent = following.ticket.number == pending.ticket.number + 1
        return adjacent and self.joinable(pending) and self.joinable(following)

    def finish_together(self, line: list[Pending]) -> list[Raw]:
        """Finish joinable batches that follow each other, the first of them in turn, with one gather for all.

        A gather releases the interpreter, and every hand-over between threads costs as much as gathering some fifty
        samples: together they are a quarter faster.
        """
        served = [pending.ticket.step.served for pending in line]
        assert self._matrix is not None
        assert self._row_bytes is not None
        rows = self._buffers.take((sum(map(len, served)), self._row_bytes), np.uint8)
        if not self._matrix.take(np.concatenate(served), rows).all():
            return [self.finish(pending) for pending in line]  # something was lost
        raws, start = [], 0
        for pending, ids in zip(line, served, strict=True):
            part = rows[start : start + len(ids)]
            start += len(ids)
            raws.append(Raw(ids, part, {}, pending.ticket.step.counts(), {"ram": part.nbytes}))
            self.cache.commit(pending.ticket, {})
        return raws

    def abandon(self, pending: Pending) -> None:
        """The batch is not wanted any more. Does not wait."""
        pending.abandoned = True
        self.cache.abandon(pending.ticket)

    def now(self, ids: Ids, job: int = 0) -> Raw:
        """One batch, blocking."""
        arrived = threading.Event()
        pending = self.begin(ids, arrived.set, job)
        try:
            if not pending.reads.done():
                arrived.wait()
            self.cache.wait_turn(pending.ticket)
            return self.finish(pending)
        except BaseException:  # Ctrl-C: the tickets behind this one must not wait for ever
            self.abandon(pending)
            raise

    def _start(self, pending: Pending) -> None:
        decided, reads = pending.ticket.step, pending.reads
        for depth in range(1 if self._instant else 0, self.cache.depth):
            held = first_seen(decided.served[decided.level == depth])
            held = held[self.cache.readable(depth, held)]
            if len(held):
                tier = self.cache.levels[depth].tier
                self.fetcher.start_from(tier, held, reads, self._loser(depth, pending))
        if len(decided.missed):
            self.fetcher.start(decided.missed, reads)

    def _collect(self, pending: Pending) -> Raw:
        decided, reads = pending.ticket.step, pending.reads
        served, level = decided.served, decided.level
        rows: Rows = [None] * len(served)
        if self._row_bytes is not None:
            rows = self._buffers.take((len(served), self._row_bytes), np.uint8)
        in_memory = self._from_memory(rows, served, level)
        errors: dict[int, Unreadable] = {}
        bytes_from: dict[str, int] = {}
        found = int(np.count_nonzero(in_memory))
        if found:
            bytes_from["ram"] = self._bytes(served if found == len(served) else served[in_memory])
        if found < len(served):
            self._fill(rows, np.flatnonzero(~in_memory), pending, errors)
            for holder, amount in reads.bytes_from.items():
                bytes_from[holder] = bytes_from.get(holder, 0) + amount
        counts = decided.counts()
        if pending.lost:
            counts.correct(int(np.count_nonzero(np.isin(served, np.concatenate(pending.lost)))))
        return Raw(served, rows, errors, counts, bytes_from)

    def _from_memory(self, rows: Rows, served: Ids, level: NDArray[np.int8]) -> Mask:
        """Put in place what the topmost level holds; which positions that are."""
        if not self._instant:
            return np.zeros(len(served), np.bool_)
        on_top: Mask = level == 0
        if not on_top.any():
            return on_top
        if self._matrix is not None and isinstance(rows, np.ndarray):
            on_top &= self._matrix.take(served, rows)
            return on_top
        top = self.cache.levels[0].tier
        where = np.flatnonzero(on_top)
        for at, data in zip(where.tolist(), top.read(served[where]), strict=True):
            on_top[at] = data is not None
            if data is not None:
                put_row(rows, at, data)
        return on_top

    def _bytes(self, ids: Ids) -> int:
        if self._row_bytes is not None:
            return self._row_bytes * len(ids)
        return int(self.source.catalog.sizes[ids].sum())

    def _fill(self, rows: Rows, where: NDArray[Any], pending: Pending, errors: dict[int, Unreadable]) -> None:
        """The samples that were not in memory, from what the readers brought."""
        reads = pending.reads
        absent = pending.ticket.step.served[where]
        missing = np.array([id not in reads.data for id in absent.tolist()], np.bool_)
        if missing.any():
            self._catch_up(absent[missing], pending.ticket.step.level[where[missing]], pending)
        for at, id in zip(where.tolist(), absent.tolist(), strict=True):
            data = reads.data[id] = self._checked(id, reads.data[id])
            if isinstance(data, Unreadable):
                errors[at] = data
            else:
                put_row(rows, at, data)

    def _checked(self, id: int, data: Buffer | Unreadable) -> Buffer | Unreadable:
        """The bytes, if they are as many as they must be where all samples have one size."""
        if self._row_bytes is None or isinstance(data, Unreadable) or len(data) == self._row_bytes:
            return data
        reason = f"the source gave {len(data)} bytes where its catalog says {self._row_bytes}"
        return Unreadable(id, self.source.catalog.location(id), reason)

    def _catch_up(self, ids: Ids, level: NDArray[np.int8], pending: Pending) -> None:
        """Read now what could not be read ahead: bytes that were still on their way into a lower tier when this batch
        was decided, and those that a tier has lost."""
        arrived = threading.Event()
        late = Reads(arrived.set)
        for depth in np.unique(level).tolist():
            wanted = first_seen(ids[level == depth])
            if depth == 0 and self._instant:
                self.cache.lose(0, wanted, pending.ticket.number)
                pending.lost.append(wanted)
                self.fetcher.start(wanted, late)
            else:
                tier = self.cache.levels[depth].tier
                self.fetcher.start_from(tier, wanted, late, self._loser(depth, pending))
        self.fetcher.release(late)
        arrived.wait()
        reads = pending.reads
        reads.data.update(late.data)
        for holder, amount in late.bytes_from.items():
            reads.bytes_from[holder] = reads.bytes_from.get(holder, 0) + amount

    def _loser(self, depth: int, pending: Pending) -> Callable[[Ids], None]:
        def lost(ids: Ids) -> None:
            pending.lost.append(ids)
            if not pending.abandoned:
                self.cache.report_damage(depth, len(ids))
            self.cache.lose(depth, ids, pending.ticket.number)

        return lost


def put_row(rows: Rows, at: int, data: Buffer) -> None:
    if isinstance(rows, list):
        rows[at] = data
    else:
        rows[at] = np.frombuffer(data, np.uint8)


def row_bytes(source: Source) -> int | None:
    """The size of every sample where all have exactly one (a wrapped dataset's sizes are only upper bounds)."""
    return None if source.catalog.kind == "dataset" else source.catalog.uniform_size
