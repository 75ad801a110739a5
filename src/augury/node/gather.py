"""Batches of bytes through the node: decided and copied there, with what is missing read here and offered.

The node copies what it has straight into the batch's own memory; this process reads the rest with its own credentials,
puts it into the same memory and offers from there what the node would keep. Without a node all is read from the source.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from augury.buffers import BufferPool
from augury.cache import Ticket
from augury.errors import AuguryWarning, Unreadable
from augury.fetch import SOURCE, Fetcher, Reads
from augury.gather import Gatherer, Pending, Raw, Rows, Unasked, put_row
from augury.ids import NONE, Ids, Mask, as_ids, first_seen
from augury.node.client import forks, shared_memory
from augury.node.protocol import IDS
from augury.node.remote import RemoteCache, Taken
from augury.sources import Buffer, Source
from augury.step import Step, uncached
from augury.units import format_size

HOLDERS = ("ram", "disk")
SHARED = "shared"
"""Who "held" bytes that the node has on behalf of other jobs."""
SLACK = 1.25
"""Room for a batch of samples of mixed sizes, where others may stand in."""
ROOMY = 16 << 20
"""Memory for batches up to this many bytes has a power of two of them: room for the next batch, should it be larger."""


@dataclass(slots=True)
class Far(Pending):
    """A batch that the node has decided, and the memory that it is made in."""

    reads: Placed
    memory: NDArray[np.uint8] = None  # type: ignore[assignment]
    found: NDArray[np.int8] = None  # type: ignore[assignment]
    offer: Mask = None  # type: ignore[assignment]


class Placed(Reads):
    """Puts what arrives into its place in the batch at once: what was read need not be kept beside it."""

    def __init__(self, ring: Callable[[], None], memory: NDArray[np.uint8], places: dict[int, tuple[int, int]]) -> None:
        super().__init__(ring, lingers=True)
        self._memory, self._places = memory, places
        self._placed: set[int] = set()

    def is_at(self, id: int, start: int) -> bool:
        """Whether a sample has been put there."""
        return id in self._placed and self._places[id][0] == start

    def receive(self, id: int, data: Buffer | Unreadable, holder: str) -> bool:
        if not isinstance(data, Unreadable) and (place := self._places.get(id)) is not None:
            start, end = place
            if len(data) == end - start and end <= len(self._memory):
                self._memory[start:end] = np.frombuffer(data, np.uint8)
                data = self._memory[start:end].data
                self._placed.add(id)
        return super().receive(id, data, holder)


class Apart(Reads):
    """Keeps its own copy of what arrives: another batch's memory is its user's to write to."""

    def receive(self, id: int, data: Buffer | Unreadable, holder: str) -> bool:
        return super().receive(id, bytes(data) if isinstance(data, memoryview) else data, holder)


class RemoteGatherer(Gatherer):
    """Makes batches of bytes from a source through a node. Any thread may call it."""

    cache: RemoteCache

    def __init__(
        self, source: Source, cache: RemoteCache, fetcher: Fetcher, buffers: BufferPool, admit: bool = True
    ) -> None:
        super().__init__(source, cache, fetcher, buffers, admit)
        self._shared = BufferPool(_roomy)
        self._sizes = source.catalog.sizes
        self._warned = self._warned_of_memory = False
        self._forks = forks()

    def begin(self, ids: Ids, ring: Callable[[], None], job: int = 0, bypass: bool = False) -> Pending:
        memory, taken = self._take(ids, job, bypass)
        reads = Placed(ring, memory, self._places(taken))
        pending = Far(Ticket(0, self._step(ids, taken)), reads, [], memory=memory)
        pending.found, pending.offer = taken.found, taken.offer
        absent = first_seen(taken.served[taken.found < 0])
        held = first_seen(taken.served[(taken.found < 0) & (taken.level < self.cache.depth)])
        if len(held):  # what is on its way to the node is at hand here, unless it comes from another process
            pending.lost.append(held[~self.cache.on_its_way(held, taken)])
        try:
            if len(absent):
                self.fetcher.start(absent, pending.reads)
            self.fetcher.release(pending.reads)
        except BaseException:
            self.abandon(pending)
            raise
        return pending

    def begin_unasked(self, ids: Ids, ring: Callable[[], None]) -> Pending:
        return self._begin_unasked(ids, Apart(ring, lingers=True), read=True)

    def begin_filled(self, data: dict[int, Buffer | Unreadable]) -> Pending:
        reads = Reads()
        reads.data.update(data)
        return self._begin_unasked(as_ids(list(data)), reads, read=False)

    def read_aside(self, id: int, ring: Callable[[], None]) -> Reads:
        reads = Apart(ring, lingers=True)
        if self.cache.holder(id) is None:
            self.fetcher.start(as_ids([id]), reads)
        else:
            reads.data[id] = b""  # the node moves it from level to level by itself
        self.fetcher.release(reads)
        return reads

    def ready(self, pending: Pending) -> bool:
        return pending.reads.done()

    def finish(self, pending: Pending) -> Raw:
        assert isinstance(pending, Far)
        try:
            raw = self._collected(pending)
            self._offer(pending)
        except BaseException:
            self.abandon(pending)
            raise
        self._let_go(pending)
        return raw

    def finish_unasked(self, pending: Pending) -> Unasked:
        decided, reads = pending.ticket.step, pending.reads
        wanted = decided.missed
        there = np.array([_usable(reads.data.get(id), self._sizes[id]) for id in wanted.tolist()], np.bool_)
        self.cache.lost(wanted[~there])
        for piece in _pieces(wanted[there]):
            offsets = np.concatenate([[0], np.cumsum(self._sizes[piece])])
            memory = self._shared.take((int(offsets[-1]),), np.uint8)
            for id, start, end in zip(piece.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                memory[start:end] = np.frombuffer(reads.data[id], np.uint8)  # type: ignore[arg-type]
            self._offered(self.cache.offer(piece, memory, offsets[:-1]))
        self._let_go(pending)
        return Unasked(int(np.count_nonzero(there)), reads.bytes_from.get(SOURCE, 0))

    def joinable(self, pending: Pending) -> bool:
        return False

    def abandon(self, pending: Pending) -> None:
        if pending.abandoned:
            return
        pending.abandoned = True
        pending.reads.lingers = False
        self._let_go(pending)
        if isinstance(pending, Far):
            self.cache.lost(first_seen(pending.ticket.step.served[pending.offer]))
        else:
            self.cache.lost(pending.ticket.step.missed)

    def now(self, ids: Ids, job: int = 0) -> Raw:
        arrived = threading.Event()
        pending = self.begin(ids, arrived.set, job)
        try:
            arrived.wait()
            return self.finish(pending)
        except BaseException:
            self.abandon(pending)
            raise

    def _take(self, ids: Ids, job: int, bypass: bool) -> tuple[NDArray[np.uint8], Taken]:
        self.cache.note_asked(job, len(ids))
        size = self._bytes(ids)
        if self._row_bytes is None and self.cache.recipe is not None and self.cache.recipe.substitutes:
            size = int(size * SLACK)
        memory = self._node_memory(size, len(ids)) if self.cache.connected else None
        if memory is not None:
            taken = self.cache.take(ids, job, self._admit, bypass, memory)
            if taken is not None:
                return memory, taken
            # A node that does not answer may still write there: none of it is used again.
            self._shared = BufferPool(_roomy)
        nobody = np.full(len(ids), -1, np.int8)
        levels = np.full(len(ids), self.cache.depth, np.int8)
        plain = np.empty(max(1, size), np.uint8)
        return plain, Taken(ids, levels, nobody, np.zeros(len(ids), np.bool_))

    def _node_memory(self, size: int, samples: int) -> NDArray[np.uint8] | None:
        """Memory for a batch that the node may copy into; None for one that must do without the node."""
        largest = self.cache.largest
        if samples > IDS or 0 < largest < 2 * size:
            self._warn(f"a batch of {samples} samples and {format_size(size)} is too large for the node (client_bytes)")
            return None
        if self._forks != forks():  # a child shares the old ones, and may still show them
            self._shared, self._forks = BufferPool(_roomy), forks()
        try:
            return self._shared.take((max(1, size),), np.uint8)
        except OSError as error:
            self._warn(f"there is no shared memory for a batch ({error.strerror}): raise the limit of open files")
            return None

    def _warn(self, reason: str) -> None:
        if not self._warned_of_memory:
            self._warned_of_memory = True
            warnings.warn(f"{reason}: such batches are read from the source", AuguryWarning, stacklevel=2)

    def _places(self, taken: Taken) -> dict[int, tuple[int, int]]:
        """Where in the batch's memory each sample belongs that the node has not put there: the first time it comes."""
        absent = np.flatnonzero(taken.found < 0)[::-1]
        if len(absent) == 0:
            return {}
        ends = np.cumsum(self._sizes[taken.served])[absent]
        starts = ends - self._sizes[taken.served[absent]]
        return dict(zip(taken.served[absent].tolist(), zip(starts.tolist(), ends.tolist(), strict=True), strict=True))

    def _step(self, ids: Ids, taken: Taken) -> Step:
        """What was decided, as far as this process counts it."""
        nothing = [NONE] * self.cache.depth
        missed = first_seen(taken.served[taken.level == self.cache.depth])
        return Step(ids, taken.served, taken.level, missed, nothing, nothing)

    def _begin_unasked(self, ids: Ids, reads: Reads, read: bool) -> Pending:
        decided = self.cache.unasked(ids)
        taken, level, offer = (NONE, np.empty(0, np.int8), np.empty(0, np.bool_)) if decided is None else decided
        nothing = uncached(self.cache.depth, NONE)
        step = Step(taken, taken, level, taken[offer], nothing.writes, nothing.drops)
        pending = Pending(Ticket(0, step), reads, [])
        try:
            if read and len(step.missed):
                self.fetcher.start(step.missed, reads)
            self.fetcher.release(reads)
        except BaseException:
            self.abandon(pending)
            raise
        return pending

    def _collected(self, pending: Far) -> Raw:
        decided, reads, found = pending.ticket.step, pending.reads, pending.found
        served = decided.served
        offsets = np.concatenate([[0], np.cumsum(self._sizes[served])])
        rows: Rows
        if self._row_bytes is not None:
            rows = pending.memory[: len(served) * self._row_bytes].reshape(len(served), self._row_bytes)
        else:
            parts = zip(offsets[:-1].tolist(), offsets[1:].tolist(), found.tolist(), strict=True)
            rows = [pending.memory[start:end].data if who >= 0 else None for start, end, who in parts]
        errors: dict[int, Unreadable] = {}
        for at in np.flatnonzero(found < 0).tolist():
            id = int(served[at])
            data = reads.data[id] = self._checked(id, reads.data[id])
            if isinstance(data, Unreadable):
                errors[at] = data
                continue
            if reads.is_at(id, int(offsets[at])):
                if isinstance(rows, list):
                    rows[at] = data
                continue
            put_row(rows, at, data)
            if self._row_bytes is None and pending.offer[at] and offsets[at + 1] <= len(pending.memory):
                self._show(pending.memory, int(offsets[at]), int(offsets[at + 1]), data)
        counts = decided.counts()
        if pending.lost:
            counts.correct(int(np.count_nonzero(np.isin(served, np.concatenate(pending.lost)))))
        return Raw(served, rows, errors, counts, self._bytes_from(pending))

    def _show(self, memory: NDArray[np.uint8], start: int, end: int, data: Buffer) -> None:
        if len(data) == end - start:
            memory[start:end] = np.frombuffer(data, np.uint8)

    def _bytes_from(self, pending: Far) -> dict[str, int]:
        served, level, found = pending.ticket.step.served, pending.ticket.step.level, pending.found
        amounts = dict(pending.reads.bytes_from)
        ours = level < self.cache.depth
        for holder, chosen in (
            *((name, ours & (found == depth)) for depth, name in enumerate(HOLDERS)),
            (SHARED, ~ours & (found >= 0)),
        ):
            if chosen.any():
                amounts[holder] = amounts.get(holder, 0) + self._bytes(served[chosen])
        return amounts

    def _offer(self, pending: Far) -> None:
        """Offer what the node asked for; say what it will not get."""
        served, reads = pending.ticket.step.served, pending.reads
        if not pending.offer.any():
            return
        wanted, first = np.unique(served[pending.offer], return_index=True)
        places = np.flatnonzero(pending.offer)[first]
        starts = np.concatenate([[0], np.cumsum(self._sizes[served])])
        fits = starts[places + 1] <= len(pending.memory)
        there = fits & [_usable(reads.data.get(id), self._sizes[id]) for id in wanted.tolist()]
        self.cache.lost(wanted[~there])
        if there.any():
            self._offered(self.cache.offer(wanted[there], pending.memory, starts[places[there]]))

    def _offered(self, refused: int) -> None:
        if refused and not self._warned:
            self._warned = True
            warnings.warn(
                f"the data of {self.source.catalog.root} has changed: samples ({refused} in this batch) are not what "
                f"their digests say, and are not cached; renew them with: {self.source.catalog.digest_command}",
                AuguryWarning,
                stacklevel=2,
            )

    def _let_go(self, pending: Pending) -> None:
        for id in list(pending.reads.data):
            self.fetcher.let_go(id)


def _roomy(nbytes: int) -> NDArray[np.uint8]:
    """Memory for a batch and some more: pages that nobody touches cost nothing, other memory for every size would."""
    whole = 1 << max(0, nbytes - 1).bit_length()
    unit = max(1, whole // 16)
    return shared_memory(whole if whole <= ROOMY else -(-nbytes // unit) * unit)


def _usable(data: Buffer | Unreadable | None, size: int) -> bool:
    return data is not None and not isinstance(data, Unreadable) and len(data) == size


def _pieces(ids: Ids) -> list[Ids]:
    return [ids[start : start + IDS] for start in range(0, len(ids), IDS)]
