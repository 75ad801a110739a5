"""Which batch comes when: epochs drawn by the sampler, cut for this rank, one batch after another without end.

The schedule runs ahead of training, across epoch boundaries, and tells the cache the future where its policy
wants to know. It moves no bytes and has no threads of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from augury.cache import Cache
from augury.distributed import Place
from augury.ids import Ids
from augury.samplers import Sampler
from augury.samplers.ranks import batches, share
from augury.staging import Work


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

    def order(self, epoch: int, offset: int = 0) -> Ids:
        """What this rank visits in an epoch, from the global offset on."""
        drawn = self.sampler.draw(epoch, np.empty(0, np.float32))
        if self.subset is not None:
            drawn = self.subset[drawn]
        return share(drawn[offset:], self.batch_size, *self.place, self.drop_last)

    def walk(
        self, epoch: int, offset: int, cache: Cache, plan: bool, begin: Callable[[int], None] | None = None
    ) -> Iterator[Work]:
        """Every batch from a place in an epoch on. With `plan` the cache is told this epoch and the next.

        `begin` is called with each epoch's number before its first batch.

        Where every epoch visits every sample, the next use of anything lies within these two: to know more
        epochs would change no decision.
        """
        order = self.order(epoch, offset)
        while True:
            ends = self.epochs is not None and epoch + 1 >= self.epochs
            upcoming = self.order(epoch + 1) if plan and not ends else None
            if begin is not None:
                begin(epoch)
            if plan:
                cache.plan(order if upcoming is None else np.concatenate([order, upcoming]))
            for start in range(0, len(order), self.batch_size):
                stop = start + self.batch_size
                yield Work(epoch, order[start:stop], ends_epoch=stop >= len(order))
            if ends:
                return
            epoch += 1
            order = self.order(epoch) if upcoming is None else upcoming
