"""Which batch comes when: epochs drawn by the sampler, cut for this rank, one batch after another without end.

The schedule runs ahead of training, across epoch boundaries, and tells the cache the future where its policy
wants to know. The simulator walks it too. It moves no bytes and has no threads of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from augury.distributed import Place
from augury.errors import ConfigError
from augury.ids import NONE, Ids, Mask, Scores, Times, came_before, first_seen
from augury.knowledge import Knowledge
from augury.samplers import Sampler, View
from augury.samplers.ranks import Number, batches, epoch_size, share, share_size
from augury.samplers.shuffle import InOrder


@dataclass(slots=True)
class Work:
    """One batch to come: what to read, and where it belongs."""

    epoch: int
    ids: Ids
    ends_epoch: bool = False
    """What comes next must be drawn first, which takes a while."""
    asked: bool = True
    """Whether training visits it; otherwise it is read because the policy wants to hold it."""
    before: Times | None = None
    """How often each has come before in the epoch; None: none has."""
    computed: Mask | None = None
    """Who of them is handed to training; None: all."""
    at: int = 0
    """Which batch of its epoch it is."""
    bypasses: bool = False
    """Whether it is read as if there were no cache: to measure what that is worth."""


USUAL = 100
"""Where nobody says how many epochs there will be, training is taken to end after so many."""


class Drawn(NamedTuple):
    """What an epoch visits, before it is arranged."""

    positions: Ids
    weights: Scores | None = None
    """Over all ids: see `Sampler.weights`."""
    before: Times | None = None
    """How often each has come before in the epoch, on any rank, where that is known before it is arranged."""


class Begun(NamedTuple):
    """An epoch that an interrupted run has begun, and that goes on as it was arranged."""

    order: Ids
    done: int
    """How many of its visits are over."""
    weights: Scores | None = None


Begin: TypeAlias = Callable[[int, Ids, "Scores | None"], None]
"""Called with an epoch's number, its order and its weights, before its first batch."""


class Held(Protocol):
    """What the schedule sees of a cache."""

    @property
    def resident(self) -> Mask:
        """Who is held, by any level, after all that was decided so far."""

    @property
    def prefetches(self) -> bool:
        """Whether `wanted` may name somebody."""

    @property
    def refills(self) -> bool:
        """Whether `wanted` may name somebody before any batch."""

    @property
    def room(self) -> float:
        """How many samples can be held, if they are of mean size."""

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> None:
        """What a job will request from now on; see `Policy.plan`."""

    def wanted(self) -> Ids:
        """Who should be read unasked, most urgent first."""

    def progress(self, done: float, spreads: Sequence[float], accuracies: Sequence[float]) -> None:
        """How far training is; see `Policy.progress`."""


@dataclass(frozen=True)
class Schedule:
    """The batches of one rank."""

    sampler: Sampler
    batch_size: int
    place: Place
    samples: int
    """Over all ranks: what an epoch visits, unless the sampler leaves some out."""
    subset: Ids | None = None
    """Where only some ids are visited: the sampler draws positions in this list."""
    drop_last: bool = False
    epochs: int | None = None
    """No epoch from here on is read ahead; None: there is always a next one."""
    lookahead: float = 0.0
    """How many epochs before it starts an epoch is drawn, where that takes what was learned: from 0 to 1."""
    weigh: bool = False
    """Whether weights are wanted with every epoch."""
    job: int = 0
    """Who plans."""

    def size(self, epoch: int) -> int:
        """How many samples an epoch visits, over all ranks."""
        return epoch_size(self.samples, self.place.world_size, self.sampler.part(epoch))

    def batches_from(self, epoch: int, offset: int = 0) -> int:
        """How many batches an epoch still has for each rank, `offset` samples into it."""
        return batches(self._rest(epoch, offset), self.batch_size, self.place.world_size, self.drop_last)

    def offset_after(self, epoch: int, offset: int) -> int:
        """Where in the epoch all ranks are after one more batch."""
        return min(self.size(epoch), offset + self.batch_size * self.place.world_size)

    def walk(
        self,
        epoch: int,
        offset: int,
        cache: Held,
        known: Knowledge,
        plan: bool = False,
        begin: Begin | None = None,
        begun: Begun | None = None,
    ) -> Iterator[Work]:
        """Every batch from a place in an epoch on. With `plan` the cache is told this epoch and the next.

        Where every epoch visits every sample, the next use of anything lies within the two that are planned: to know
        more epochs would change no decision.
        """
        drawn = self._draw(epoch, known, offset) if begun is None else None
        while True:
            last = self.epochs is not None and epoch + 1 >= self.epochs
            if plan:
                cache.progress(*self._progress(epoch, known))
            if drawn is not None:
                order = yield from self._ordered(epoch, drawn.positions, known, cache, offset, plan)
                begun = Begun(order, 0, drawn.weights)
            assert begun is not None
            before = self._before(begun.order) if drawn is None or drawn.before is None else drawn.before
            drawn = None  # its memory is not needed while the epoch lasts
            if begin is not None:
                begin(epoch, begun.order, begun.weights)
            early = yield from self._visited(epoch, begun, before, cache, known, plan, last)
            if last:
                return
            epoch, offset = epoch + 1, 0
            drawn = early or self._draw(epoch, known)

    def _ordered(
        self, epoch: int, drawn: Ids, known: Knowledge, cache: Held, offset: int, plan: bool
    ) -> Generator[Work, None, Ids]:
        """The epoch's order, after whatever the cache wants to read before it."""
        if plan and cache.prefetches and not self.sampler.foreseeable:
            cache.plan(self._ids(drawn), self.job)
            yield from self._unasked(epoch, cache.wanted())
        return self._ids(self._arrange(epoch, drawn, known, cache, offset))

    def _visited(
        self, epoch: int, begun: Begun, before: Times | None, cache: Held, known: Knowledge, plan: bool, last: bool
    ) -> Generator[Work, None, Drawn | None]:
        """The epoch's batches. On the way the next epoch is drawn, as early as it can and may be."""
        early: Drawn | None = None
        order, done, _ = begun
        draw_at = None if last or not plan else self._draw_at(done, len(order))
        for start in range(done, len(order), self.batch_size):
            if start == draw_at:
                early = self._draw(epoch + 1, known.after(order, epoch))
            if plan and start in (done, draw_at):
                cache.plan(order[start:], self.job, later=NONE if early is None else self._ids(early.positions))
                if (
                    start == done and cache.prefetches and self.sampler.foreseeable
                ):  # others have asked before they arranged
                    yield from self._unasked(epoch, cache.wanted())
            if plan and cache.refills and len(wanted := cache.wanted()):
                if cache.prefetches:
                    yield from self._unasked(epoch, wanted)
                else:
                    yield Work(epoch, wanted, asked=False)  # in one piece: they lie together
            stop = start + self.batch_size
            ids = order[start:stop]
            if len(known.seen):
                known.visit(ids, epoch)
            came = None if before is None else before[start:stop]
            computed = self._computed(begun.weights, ids)
            yield Work(epoch, ids, stop >= len(order), True, came, computed, start // self.batch_size)
        return early

    def _computed(self, weights: Scores | None, ids: Ids) -> Mask | None:
        if weights is None or not self.sampler.skips:
            return None
        computed = weights[ids] > 0
        computed[0] |= not computed.any()  # no batch is empty
        return computed

    def _progress(self, epoch: int, known: Knowledge) -> tuple[float, list[float], list[float]]:
        """What a policy is told when an epoch begins; in single precision, as a call log has it."""
        known.note_spread(epoch)
        told = (min(1.0, epoch / (self.epochs or USUAL)),), known.spreads.values(), known.accuracies
        (done,), spreads, accuracies = ([float(np.float32(value)) for value in values] for values in told)
        return done, spreads, accuracies

    def _draw_at(self, done: int, length: int) -> int | None:
        """Before which batch of an epoch, named by its first place, the next epoch is drawn; None: after the last."""
        lookahead = 1.0 if self.sampler.foreseeable else self.lookahead
        from_here = length - done - round(lookahead * length)
        at = done + max(0, -(-from_here // self.batch_size)) * self.batch_size
        return at if at < length else None

    def _came_before(self, order: Ids) -> Times | None:
        return came_before(order, self.samples if self.subset is None else int(self.subset.max()) + 1)

    def _before(self, order: Ids) -> Times | None:
        """How often each has come before. Of a sample that several ranks have drawn each visit has its own number."""
        before = self._came_before(order)
        if self.sampler.foreseeable or self.place.rank == 0:
            return before
        first = np.int32(self.place.rank << 16)
        return np.full(len(order), first) if before is None else before + first

    def tell_run(self, epoch: int, offset: int, cache: Held, known: Knowledge) -> None:
        """Tell the cache, before a walk, all that this rank will request until the end of the run. Takes a while."""
        order, times = self.future(epoch, offset, known)
        cache.plan(order, self.job, times)

    def future(self, epoch: int, offset: int, known: Knowledge) -> tuple[Ids, Times]:
        """Whom this rank requests from there until the end of the run, in the order of first requests; and how often.

        Epochs are drawn one at a time and not kept: a run of any length takes the memory of one order. A rank that is
        alone visits everything in every epoch, which need not be drawn to be known.
        """
        if self.epochs is None or not self.sampler.foreseeable:
            raise ConfigError("to plan the whole run, say how many epochs= there are, and draw them without feedback")
        times = np.zeros(self.samples if self.subset is None else int(self.subset.max()) + 1, np.int32)
        fresh = [NONE]
        whole = self.place.world_size == 1 and not self.drop_last and isinstance(self.sampler, InOrder)
        drawn = min(self.epochs, epoch + 1 + (offset > 0)) if whole else self.epochs
        for number in range(epoch, drawn):
            ids = self._ids(self._draw(number, known, offset if number == epoch else 0).positions)
            fresh.append(first_seen(ids[times[ids] == 0]))
            times += np.bincount(ids, minlength=len(times)).astype(np.int32)
        order = np.concatenate(fresh)
        each = 1 if self.subset is None else np.bincount(self.subset).astype(np.int32)
        times += (self.epochs - drawn) * each
        return order, times[order]

    def _unasked(self, epoch: int, wanted: Ids) -> Iterator[Work]:
        for start in range(0, len(wanted), self.batch_size):
            yield Work(epoch, wanted[start : start + self.batch_size], asked=False)

    def _draw(self, epoch: int, known: Knowledge, offset: int = 0) -> Drawn:
        """Positions that this rank visits, from the global offset on where that is known before they are arranged."""
        if not self.sampler.foreseeable:
            return Drawn(self.sampler.draw(epoch, known.of(self.subset)), self._weights(epoch, known))
        whole = self.sampler.draw(epoch, known)
        before = self._came_before(self._ids(whole)) if self.subset is not None else None
        return Drawn(self._share(whole, offset), None, None if before is None else self._share(before, offset))

    def _share(self, values: NDArray[Number], offset: int) -> NDArray[Number]:
        return share(values[offset:], self.batch_size, *self.place, self.drop_last)

    def _weights(self, epoch: int, known: Knowledge) -> Scores | None:
        wanted = self.weigh or self.sampler.skips
        weights = self.sampler.weights(epoch, known.of(self.subset)) if wanted else None
        if weights is None or self.subset is None:
            return weights
        spread = np.zeros(max(len(known.scores), int(self.subset.max()) + 1), np.float32)
        spread[self.subset] = weights
        return spread

    def _arrange(self, epoch: int, drawn: Ids, known: Knowledge, cache: Held, offset: int) -> Ids:
        resident = cache.resident if self.subset is None else cache.resident[self.subset]
        view = View(resident, cache.room, self.batch_size)
        order = self.sampler.arrange(epoch, drawn, known.of(self.subset), view)
        if not self.sampler.foreseeable:
            # An epoch that was begun otherwise (by another number of ranks, say) has so many samples left.
            left = self.left(epoch, offset)
            order = order if left == len(order) else order[len(order) - left :]
        return order

    def left(self, epoch: int, offset: int = 0) -> int:
        """How many samples this rank still visits, `offset` samples into an epoch."""
        return share_size(self._rest(epoch, offset), self.batch_size, *self.place, self.drop_last)

    def _rest(self, epoch: int, offset: int) -> int:
        """Over all ranks. An epoch of another number of ranks may have been longer."""
        return max(0, self.size(epoch) - offset)

    def _ids(self, positions: Ids) -> Ids:
        return positions if self.subset is None else self.subset[positions]
