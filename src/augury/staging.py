"""The read-ahead window: batches in access order, bounded by bytes, read and finished ahead of training.

One thread (the pump) makes all decisions and moves all cached bytes, in access order; reader threads fetch, a pool
decodes, the consumer takes. The pump reserves a batch's bytes before it decides anything about it, so whatever is
decided can be completed without waiting for the consumer. Epochs are the schedule's business, not this file's.

The threads share no lock: the pump alone adds to the window, the consumer alone takes from it, and two queues carry
batches one way and wake-ups the other (docs/decisions/0003-pipeline.md has what that gains).
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from augury.batch import Finished, Finisher, nbytes
from augury.errors import AuguryError
from augury.feedback import Feedback, nobody
from augury.filling import Filled, Filler
from augury.gather import Gatherer, Pending, Raw, Unasked
from augury.ids import Ids
from augury.jobs import Probing
from augury.schedule import Work
from augury.transforms.chance import Chance
from augury.workers import Workers

TOGETHER = 1 << 23
"""Bytes up to which batches that are in memory are gathered at once (docs/decisions/0003-pipeline.md)."""


@dataclass(slots=True)
class Staged:
    """One batch that is collected; it stays in the window until it is delivered."""

    work: Work
    reserved: int
    raw: Raw
    """Its counts; the bytes are given up once a pool has finished the batch."""
    result: Finished | Future[Finished]


@dataclass(slots=True)
class _Decided:
    """One batch whose reads are under way."""

    work: Work
    reserved: int
    pending: Pending


@dataclass(slots=True)
class _Ended:
    """The pump has stopped: by an error, or because there is nothing more to deliver."""

    error: BaseException | None


class Staging:
    """The window and its pump. One consumer thread calls `next`; `close` may come from any thread."""

    def __init__(
        self,
        schedule: Iterator[Work],
        gatherer: Gatherer,
        finish: Finisher,
        workers: Workers | None,
        window: int,
        seed: int,
        feedback: Feedback | None = None,
        filler: Filler | None = None,
        job: int = 0,
        probing: Probing | None = None,
    ) -> None:
        self._schedule, self._gatherer, self._finish, self._workers = schedule, gatherer, finish, workers
        self._window, self._seed, self._job, self._feedback, self._filler = window, seed, job, feedback, filler
        self._probing = probing
        self._sizes = gatherer.source.catalog.sizes
        self._row_bytes = gatherer.source.catalog.uniform_size
        self._stored_bytes = self._finished_bytes = 1
        """Of all batches that a pool has finished: decoded images take more room than files."""
        self._measured = workers is None or finish.sample_bytes is not None
        self._reserved = self._released = 0
        """Bytes that ever entered the window (the pump counts) and that ever left it (the consumer counts)."""
        self._entered = self._left = 0
        self._pump_waits = False
        self._upcoming: Work | None = None
        self._exhausted = False
        self._decisions = 0
        """Batches decided that training asked for."""
        self._prefetched = Unasked(0, 0)
        """Read unasked since the last batch was delivered."""
        self._decided: deque[_Decided | Filled] = deque()
        self._delivery: queue.SimpleQueue[Staged | _Ended] = queue.SimpleQueue()
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._taken: Staged | _Ended | None = None
        self._closing = False
        self._pump = threading.Thread(target=self._run, name="augury-pump", daemon=True)
        gatherer.cache.listen(self)
        if feedback is not None:
            feedback.wake = self._wake
        if filler is not None:
            filler.wake = self.ring

    def start(self) -> None:
        """Begin to read ahead. Not before somebody knows of this window who will close it: Ctrl-C may come any time."""
        self._pump.start()

    def ring(self) -> None:
        """Something has changed: let the pump look again."""
        if threading.get_ident() != self._pump.ident:
            self._rings.put(None)

    def next(self) -> tuple[Staged, Finished, float] | None:
        """The next batch in order and the seconds waited for it; None after the last one."""
        began = time.perf_counter()
        taken = self._taken
        if taken is None:
            taken = self._taken = self._delivery.get()  # kept, so that Ctrl-C while waiting below loses no batch
        if isinstance(taken, _Ended):
            if taken.error is not None:
                raise taken.error
            return None
        result = taken.result
        finished = result.result() if isinstance(result, Future) else result
        self._taken = None
        self._released += taken.reserved
        self._left += 1
        self._wake()
        return taken, finished, time.perf_counter() - began

    def close(self) -> None:
        """End the pump; batches decided but not collected are given up. Returns when nothing moves any more."""
        self._closing = True
        self._rings.put(None)
        if self._pump.ident is not None and self._pump is not threading.current_thread():
            self._pump.join()
        self._gatherer.cache.unlisten(self)
        if self._feedback is not None:
            self._feedback.wake = nobody  # else it would keep what was not delivered
        if self._filler is not None:
            self._filler.wake = nobody

    def _wake(self) -> None:
        """There may be room, or feedback, for one more decision."""
        if self._pump_waits:
            self._rings.put(None)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while not self._closing and self._advance():
                pass
        except BaseException as raised:
            error = raised
        self._delivery.put(_Ended(error))
        while self._decided:
            given_up = self._decided.popleft()
            with contextlib.suppress(AuguryError):  # the cache was closed by another loader that owns it
                if isinstance(given_up, Filled):
                    self._finish_filled(given_up)
                else:
                    self._gatherer.abandon(given_up.pending)

    def _advance(self) -> bool:
        """Collect the oldest batches if they are there, else decide one more if it fits, else wait. False: all done."""
        ready = bool(self._decided) and self._gatherer.ready(self._decided[0].pending)
        if ready and not self._may_wait_for_company():
            self._collect()
            return True
        self._look_ahead()
        work = self._upcoming
        if self._exhausted and not self._decided:
            return False
        if self._fill():
            return True
        if work is not None and self._has_room(work):
            self._upcoming = None
            self._decide(work)
        elif ready:
            self._collect()
        else:
            self._pump_waits = True
            if not self._may_go_on():  # what it waits for may have come before it was seen waiting
                self._rings.get()
            self._pump_waits = False
        return True

    def _fill(self) -> bool:
        """Let the levels be filled beside the batches; whether something has arrived and was decided about."""
        filled = None if self._filler is None else self._filler.advance()
        if filled is None:
            return False
        self._decided.append(filled)
        self._count_unasked(filled.unasked)
        return True

    def _finish_filled(self, filled: Filled) -> None:
        assert self._filler is not None
        self._filler.finish(filled)

    def _look_ahead(self) -> None:
        """Know the next batch, unless it depends on feedback that is still to come."""
        if self._upcoming is not None or self._exhausted:
            return
        if self._feedback is None or self._feedback.settle(self._decisions):
            self._upcoming = next(self._schedule, None)
            self._exhausted = self._upcoming is None

    def _may_go_on(self) -> bool:
        if self._upcoming is not None:
            return self._has_room(self._upcoming)
        return not self._exhausted and self._feedback is not None and self._feedback.ready(self._decisions)

    def _may_wait_for_company(self) -> bool:
        """Whether a few more batches may be decided before the oldest is collected: only those that cost no time."""
        last = self._decided[-1]
        if isinstance(last, Filled):
            return False
        together = (len(self._decided) + 1) * last.reserved
        return together <= TOGETHER and self._gatherer.joinable(last.pending) and not last.work.ends_epoch

    def _has_room(self, work: Work) -> bool:
        # A batch that is larger than the whole window is prepared alone: it is the one training waits for.
        if self._entered == self._left:
            return True
        # How much room decoded samples take shows with the first batch: until then there is no second.
        return self._measured and self._reserved - self._released + self._cost(work) <= self._window

    def _cost(self, work: Work) -> int:
        """What a batch occupies: its bytes, or what has become of such bytes so far, if that is more."""
        stored = self._stored(work.ids)
        if self._finish.sample_bytes is not None:
            return max(stored, self._finish.sample_bytes * len(work.ids))
        swell = max(1.0, self._finished_bytes / self._stored_bytes)
        return max(len(work.ids), int(stored * swell))

    def _stored(self, ids: Ids) -> int:
        return self._row_bytes * len(ids) if self._row_bytes is not None else int(self._sizes[ids].sum())

    def _decide(self, work: Work) -> None:
        cost = self._cost(work)
        self._reserved += cost
        self._entered += 1
        if work.asked:
            self._decisions += 1
            work.bypasses = self._probing is not None and self._probing.bypasses(work.epoch, work.at)
            pending = self._gatherer.begin(work.ids, self.ring, self._job, work.bypasses)
        else:
            pending = self._gatherer.begin_unasked(work.ids, self.ring)
        self._decided.append(_Decided(work, cost, pending))

    def _collect(self) -> None:
        """Collect the oldest batch, together with those behind it that are in the topmost tier as it is."""
        first = self._decided.popleft()
        if isinstance(first, Filled):
            self._finish_filled(first)
            return
        if not first.work.asked:
            self._keep_unasked(first)
            return
        line = [first]
        while self._decided and self._gatherer.joins(line[-1].pending, self._decided[0].pending):
            following = self._decided.popleft()
            assert isinstance(following, _Decided)  # what was filled moves bytes and joins nobody
            line.append(following)
        try:
            if len(line) == 1:
                raws = [self._gatherer.finish(line[0].pending)]
            else:
                raws = self._gatherer.finish_together([each.pending for each in line])
        except BaseException:
            for each in line:  # those behind them must not wait for ever
                self._gatherer.abandon(each.pending)
            raise
        for each, raw in zip(line, raws, strict=True):
            self._deliver(each, raw)

    def _keep_unasked(self, decided: _Decided) -> None:
        self._count_unasked(self._gatherer.finish_unasked(decided.pending))
        self._reserved -= decided.reserved
        self._entered -= 1

    def _count_unasked(self, unasked: Unasked) -> None:
        before = self._prefetched
        self._prefetched = Unasked(before.samples + unasked.samples, before.bytes + unasked.bytes)

    def _deliver(self, decided: _Decided, raw: Raw) -> None:
        result: Finished | Future[Finished]
        raw.counts.prefetched, raw.unasked_bytes = self._prefetched
        self._prefetched = Unasked(0, 0)
        before = decided.work.before
        if (computed := decided.work.computed) is not None:
            raw = raw.only(computed)
            before = None if before is None else before[computed]
        chance = Chance(self._seed, decided.work.epoch, before)
        if self._workers is None:
            result = self._finished(raw, chance)
        else:
            result = self._workers.submit(raw, chance)
            result.add_done_callback(partial(self._measure, raw))
        self._delivery.put(Staged(decided.work, decided.reserved, raw, result))

    def _finished(self, raw: Raw, chance: Chance) -> Finished | Future[Finished]:
        """Finish here and now; an error keeps its place in the order, as it would in a pool."""
        try:
            return self._finish(raw, chance)
        except AuguryError as error:
            failed: Future[Finished] = Future()
            failed.set_exception(error)
            return failed

    def _measure(self, raw: Raw, future: Future[Finished]) -> None:
        """A batch is finished: its bytes are not needed any more, and later ones are counted by its real size."""
        stored = self._stored(raw.ids)
        raw.rows = []
        if not future.cancelled() and future.exception() is None and (batch := future.result().batch) is not None:
            self._stored_bytes += max(1, stored)
            self._finished_bytes += nbytes(batch.x)
        self._measured = True
        self.ring()
