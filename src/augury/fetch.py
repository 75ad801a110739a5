"""Misses become concurrent reads: joined while in flight, retried with jittered backoff, never a lost wake-up.

A `Fetcher` owns the reader threads. It moves bytes from a source (or a lower tier) to whoever waits for them and
decides nothing about what is kept. Who asked is rung once, when the last of its reads has ended.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np

from augury.errors import Closed, Unreadable
from augury.ids import Ids
from augury.sources import Buffer, Source
from augury.tiers import Tier

READERS = 32
"""Enough to cover 30 ms of latency at a thousand samples per second; a waiting thread costs next to nothing."""
RETRIES = 4
BACKOFF = 0.05
LONGEST_BACKOFF = 5.0
TIER_CHUNK = 32
"""Samples of one tier read: long enough to be cheap, short enough that several readers share a batch."""

SOURCE = "source"
IN_FLIGHT = "in flight"
"""Who "held" bytes that were being read already, for another batch."""

Lost: TypeAlias = Callable[[Ids], None]


class Reads:
    """What one caller waits for. `data` is complete once `done()`; until then only the fetcher touches it.

    Waits for one more than was started, until `Fetcher.release`: nothing is complete while requests are being made.
    What `lingers` counts as in flight until `Fetcher.let_go`: whoever asks for it meanwhile gets the same bytes.
    """

    def __init__(self, ring: Callable[[], None] = lambda: None, lingers: bool = False) -> None:
        self.data: dict[int, Buffer | Unreadable] = {}
        self.bytes_from: dict[str, int] = {}
        self.lingers = lingers
        self._pending, self._ring = 1, ring

    def done(self) -> bool:
        return self._pending == 0

    def receive(self, id: int, data: Buffer | Unreadable, holder: str) -> bool:
        """Take one result; whether it was the last. The fetcher's lock is held."""
        self.data[id] = data
        if not isinstance(data, Unreadable):
            self.bytes_from[holder] = self.bytes_from.get(holder, 0) + len(data)
        return self.settle()

    def expect(self, count: int) -> None:
        """More will come. The fetcher's lock is held."""
        self._pending += count

    def settle(self) -> bool:
        """One less to wait for; whether it was the last. The fetcher's lock is held, or nothing was started."""
        self._pending -= 1
        return self._pending == 0

    def ring(self) -> None:
        self._ring()


class Fetcher:
    """Reader threads over one source. Any thread may ask."""

    def __init__(
        self, source: Source, readers: int = READERS, retries: int = RETRIES, rng: random.Random | None = None
    ) -> None:
        self._source, self._retries = source, retries
        self._rng = rng or random.Random()
        self._lock = threading.Lock()
        self._in_flight: dict[int, list[Reads]] = {}
        self._lingering: dict[int, Buffer] = {}
        self._work: queue.SimpleQueue[tuple[Callable[[Ids], None], Ids] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"augury-reader-{at}", daemon=True) for at in range(readers)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, ids: Ids, reads: Reads) -> None:
        """Read distinct ids from the source, but those that are on their way already only once."""
        fresh = self._join(ids, reads)
        if len(fresh):
            self._work.put((self._split, fresh))

    def start_from(self, tier: Tier, ids: Ids, reads: Reads, lost: Lost) -> None:
        """Read distinct ids from a tier; what it turns out not to hold is reported `lost` and read from the source."""
        fresh = self._join(ids, reads)
        for at in range(0, len(fresh), TIER_CHUNK):
            self._work.put((partial(self._from_tier, tier, lost), fresh[at : at + TIER_CHUNK]))

    def release(self, reads: Reads) -> None:
        """Everything has been asked for: ring as soon as it is there (perhaps at once)."""
        with self._lock:
            complete = reads.settle()
        if complete:
            reads.ring()

    def let_go(self, id: int) -> None:
        """What was read for a `Reads` that lingers is in flight no longer."""
        with self._lock:
            self._lingering.pop(id, None)

    def close(self) -> None:
        """End the reader threads; reads under way end first, waiting retries at once. Nobody may be waiting."""
        self._closing.set()
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _join(self, ids: Ids, reads: Reads) -> Ids:
        """Note who waits for what; returns the ids that nobody was reading yet."""
        if self._closing.is_set():
            raise Closed("this loader is closed")
        fresh = []
        with self._lock:
            reads.expect(len(ids))
            for id in ids.tolist():
                waiting = self._in_flight.get(id)
                if (data := self._lingering.get(id)) is not None:
                    reads.receive(id, data, IN_FLIGHT)
                elif waiting is None:
                    self._in_flight[id] = [reads]
                    fresh.append(id)
                else:
                    waiting.append(reads)
        return np.array(fresh, np.int64)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            act, ids = work
            try:
                act(ids)
            except BaseException as error:  # a reader that dies would leave a batch waiting for ever
                self._fail(ids, error)
            del act, ids, work  # else it would keep the bytes of this batch while it waits for the next

    def _fail(self, ids: Ids, error: BaseException) -> None:
        """Whoever still waits for these gets the error instead."""
        with self._lock:
            waiting = [id for id in ids.tolist() if id in self._in_flight]
        self._deliver([(id, self._unreadable(id, error)) for id in waiting], SOURCE)

    def _unreadable(self, id: int, error: BaseException) -> Unreadable:
        try:
            location = self._source.catalog.location(id)
        except Exception:  # whoever waits must get an answer, even if nobody knows of such a sample
            location = "nowhere"
        failed = Unreadable(id, location, f"{type(error).__name__}: {error}")
        failed.__cause__ = error
        return failed

    def _split(self, ids: Ids) -> None:
        """Ask the source how it wants to be asked."""
        first, *others = self._source.requests(ids)
        for group in others:
            self._work.put((self._from_source, group))
        self._from_source(first)

    def _from_tier(self, tier: Tier, lost: Lost, ids: Ids) -> None:
        try:
            found = tier.read(ids)
        except Exception:  # a broken tier is a tier that holds nothing: a reader must go on, or a batch waits for ever
            found = [None] * len(ids)
        absent = np.array([data is None for data in found], np.bool_)
        self._deliver([(id, data) for id, data in zip(ids.tolist(), found, strict=True) if data is not None], tier.name)
        if absent.any():
            lost(ids[absent])
            for group in self._source.requests(ids[absent]):
                self._from_source(group)

    def _from_source(self, ids: Ids) -> None:
        for attempt in range(self._retries + 1):
            results = self._read(ids)
            last = attempt == self._retries or self._closing.is_set()
            again = [not last and isinstance(data, Unreadable) and data.transient for data in results]
            self._deliver(
                [(id, data) for id, data, wait in zip(ids.tolist(), results, again, strict=True) if not wait], SOURCE
            )
            ids = ids[np.array(again, np.bool_)]
            if len(ids) == 0:
                return
            self._closing.wait(min(LONGEST_BACKOFF, BACKOFF * 2**attempt) * self._rng.uniform(0.5, 1.5))

    def _read(self, ids: Ids) -> list[Buffer | Unreadable]:
        """A source answers errors per sample; one that raises instead has failed for all that were asked."""
        try:
            if self._closing.is_set():
                raise Closed("this loader is closed")
            results = self._source.read(ids)
            if len(results) != len(ids):
                raise ValueError(f"read() of {len(ids)} samples returned {len(results)}")
            for data in results:
                if not isinstance(data, bytes | bytearray | memoryview | Unreadable):
                    raise TypeError(f"read() returned {type(data).__name__}, which is neither bytes nor an error")
            return results
        except Exception as error:
            return [self._unreadable(id, error) for id in ids.tolist()]

    def _deliver(self, results: list[tuple[int, Buffer | Unreadable]], holder: str) -> None:
        complete = []
        with self._lock:
            for id, data in results:
                came_from = holder
                for reads in self._in_flight.pop(id):
                    if reads.receive(id, data, came_from):
                        complete.append(reads)
                    if reads.lingers and not isinstance(kept := reads.data[id], Unreadable):
                        self._lingering[id] = kept  # perhaps a copy in its place by now: `data` need not stay
                    came_from = IN_FLIGHT  # the store was asked once: only the first who waited counts its bytes
        for reads in complete:
            reads.ring()
