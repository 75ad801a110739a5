"""Which batch comes when: epochs drawn by the sampler, cut for this rank, one batch after another without end.

The schedule runs ahead of training, across epoch boundaries, and tells the cache the future where its policy
wants to know. The simulator walks it too. It moves no bytes and has no threads of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from augury.distributed import Place
from augury.errors import ConfigError
from augury.ids import NONE, Ids, Mask, Times, first_seen
from augury.knowledge import Knowledge
from augury.samplers import Sampler
from augury.samplers.ranks import batches, share, share_size
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


class Held(Protocol):
    """What the schedule sees of a cache."""

    @property
    def resident(self) -> Mask:
        """Who is held, by any level, after all that was decided so far."""

    def plan(self, order: Ids, *, times: Times | None = None) -> None:
        """What will be requested from now on; with `times` each id once, and how often."""

    def wanted(self) -> Ids:
        """Who should be read unasked, most urgent first."""


@dataclass(frozen=True)
class Schedule:
    """The batches of one rank."""

    sampler: Sampler
    batch_size: int
    place: Place
    samples: int
    """Per epoch, over all ranks."""
    subset: Ids | None = None
    """Where only some ids are visited: the sampler draws positions in this list."""
    drop_last: bool = False
    epochs: int | None = None
    """No epoch from here on is read ahead; None: there is always a next one."""

    def __len__(self) -> int:
        return self.batches_from(0)

    def batches_from(self, offset: int) -> int:
        """How many batches an epoch still has for each rank, `offset` samples into it."""
        return batches(self.samples - offset, self.batch_size, self.place.world_size, self.drop_last)

    def offset_after(self, offset: int) -> int:
        """Where in the epoch all ranks are after one more batch."""
        return min(self.samples, offset + self.batch_size * self.place.world_size)

    def walk(
        self,
        epoch: int,
        offset: int,
        cache: Held,
        known: Knowledge,
        plan: bool = False,
        begin: Callable[[int, Ids], None] | None = None,
        rest: Ids | None = None,
    ) -> Iterator[Work]:
        """Every batch from a place in an epoch on. With `plan` the cache is told this epoch and the next.

        `begin` is called with each epoch's number and order before its first batch. `rest` is the order of the rest of
        the first epoch, where it is known from a run that was interrupted.

        Where every epoch visits every sample, the next use of anything lies within the two that are planned: to know
        more epochs would change no decision.
        """
        upcoming = self._draw(epoch, known, offset) if rest is None else None
        while True:
            drawn, last = upcoming, self.epochs is not None and epoch + 1 >= self.epochs
            upcoming = self._draw(epoch + 1, known) if plan and self.sampler.foreseeable and not last else None
            if drawn is None:
                assert rest is not None
                order = rest
                self._tell(cache, order, upcoming, plan)
            else:
                order = self._ids(drawn)
                self._tell(cache, order, upcoming, plan)
                if plan:
                    yield from self._unasked(epoch, cache.wanted())
                arranged = self._arrange(epoch, drawn, known, cache, offset)
                if arranged is not drawn:
                    order = self._ids(arranged)
                    self._tell(cache, order, upcoming, plan)
            if begin is not None:
                begin(epoch, order)
            yield from self._asked(epoch, order, known)
            if last:
                return
            epoch, offset = epoch + 1, 0
            if upcoming is None:
                upcoming = self._draw(epoch, known)

    def tell_run(self, epoch: int, offset: int, cache: Held, known: Knowledge) -> None:
        """Tell the cache, before a walk, all that this rank will request until the end of the run. Takes a while."""
        order, times = self.future(epoch, offset, known)
        cache.plan(order, times=times)

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
            ids = self._ids(self._draw(number, known, offset if number == epoch else 0))
            fresh.append(first_seen(ids[times[ids] == 0]))
            times += np.bincount(ids, minlength=len(times)).astype(np.int32)
        order = np.concatenate(fresh)
        each = 1 if self.subset is None else np.bincount(self.subset).astype(np.int32)
        times += (self.epochs - drawn) * each
        return order, times[order]

    def _tell(self, cache: Held, order: Ids, upcoming: Ids | None, plan: bool) -> None:
        if plan:
            cache.plan(order if upcoming is None else np.concatenate([order, self._ids(upcoming)]))

    def _asked(self, epoch: int, order: Ids, known: Knowledge) -> Iterator[Work]:
        for start in range(0, len(order), self.batch_size):
            stop = start + self.batch_size
            ids = order[start:stop]
            if len(known.seen):
                known.visit(ids, epoch)
            yield Work(epoch, ids, ends_epoch=stop >= len(order))

    def _unasked(self, epoch: int, wanted: Ids) -> Iterator[Work]:
        for start in range(0, len(wanted), self.batch_size):
            yield Work(epoch, wanted[start : start + self.batch_size], asked=False)

    def _draw(self, epoch: int, known: Knowledge, offset: int = 0) -> Ids:
        """Positions that this rank visits, from the global offset on where that is known before they are arranged."""
        if not self.sampler.foreseeable:
            return self.sampler.draw(epoch, known.of(self.subset))
        return share(self.sampler.draw(epoch, known)[offset:], self.batch_size, *self.place, self.drop_last)

    def _arrange(self, epoch: int, drawn: Ids, known: Knowledge, cache: Held, offset: int) -> Ids:
        resident = cache.resident if self.subset is None else cache.resident[self.subset]
        order = self.sampler.arrange(epoch, drawn, known.of(self.subset), resident)
        if not self.sampler.foreseeable:
            # An epoch that was begun otherwise (by another number of ranks, say) has so many samples left.
            left = self.left(offset)
            order = order if left == len(order) else order[len(order) - left :]
        return order

    def left(self, offset: int) -> int:
        """How many samples this rank still visits, `offset` samples into an epoch."""
        return share_size(self.samples - offset, self.batch_size, *self.place, self.drop_last)

    def _ids(self, positions: Ids) -> Ids:
        return positions if self.subset is None else self.subset[positions]
