"""What to hold where some of the future is known: whoever is needed last leaves (recipes `augury`, `augury-exact`).

Belady's rule over three horizons: the rest of this epoch, whose order is known; the next one, of which only is known
who is in it, because its order will be chosen with the cache in view; and whatever comes after, by probability. Nothing
here is of a paper. How epochs are drawn early is schedule.py's business, how they are arranged samplers/foresight.py's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.ids import NONE, Ids, Mask, Scores, Times, uses
from augury.knowledge import UNTOLD
from augury.policies.ranking import Ranked

_HOPE = 1.05
"""Of whom nothing is known counts so much better than the mean: whoever turns out to be as likely as not to come makes
way for others, until the cache holds those who surely will."""
_KEPT = 0.9
"""The weight of earlier minibatches in the mean of the scores, beside the last one's."""


class NextUse(Ranked):
    """The one whose next use is furthest leaves, and a newcomer that is not needed sooner than all stays out.

    Keys, from the top: minus the position of the next visit in this epoch; then all that the next epoch visits, of
    whom a smaller one is worth more per byte (as many bytes saved, in more requests); then all others by the score that
    the next draws will go by, times what a byte of them saves. Of equals residents stay: without a plan, or where every
    epoch visits everything, nobody is exchanged for another of the same size. (Of mixed sizes the first epoch settles
    on the small ones, and writes about twice what the tier holds to get there.)

    A visit is found by its id, not by counting requests, and those of other jobs are no part of the plan.
    """

    bypass = True
    loyal = True
    _NEVER = np.uint32(0xFFFFFFFF)
    _LATER, _BEYOND, _SPAN = -(2.0**33), -(2.0**34), 2.0**20
    """The highest key of each horizon below that of this epoch, which has less than 2^32 requests; and their depth."""

    def __init__(self, sizes: NDArray[np.int64], capacity: int, rng: np.random.Generator | None = None) -> None:
        super().__init__(sizes, capacity, rng)
        self._job = 0
        self._after = np.empty(0, np.uint32)
        """For each position of the plan, the next of the same sample."""
        self._later: Mask = np.zeros(len(sizes), np.bool_)
        self._scores: Scores = np.broadcast_to(np.float32(np.nan), len(sizes))
        """One number that looks like an array until something is learned; not a number where nothing was."""
        self._expected: float | None = None
        """The mean of the scores that were learned of late: what to expect of the others."""
        self._mean = float(sizes.mean()) if len(sizes) else 1.0
        self._forget_plan()

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> Ids:
        if len(self._after) and job != self._job:
            raise ConfigError(
                f"foresight plans for one job, and job {self._job} has planned already: "
                f"give job {job} a cache of its own"
            )
        if len(order) >= self._NEVER:
            raise ConfigError(f"foresight plans at most {self._NEVER - 1:,} requests ahead, not {len(order):,}")
        self._job = job
        self._later[:] = False
        self._later[later] = True
        first, self._after = uses(order, len(self.key), np.uint32)
        self._once = not (self._after != self._NEVER).any()
        self._all_later = bool(self._later.all())
        self._set_all(first)
        return NONE

    def serve(self, ids: Ids, job: int = 0) -> Ids:
        if job != self._job:
            return ids  # no part of the plan: what is known of these ids still holds
        waiting = ids[self.key[ids] > self._LATER]
        if self._once:
            self.key[waiting] = self._over(waiting)
            self._front.note(waiting[self.resident[waiting]])
            return ids
        while len(waiting):
            distinct, at = np.unique(waiting, return_index=True)
            self._set(distinct, self._after[(-self.key[distinct]).astype(np.int64)])
            self._front.note(distinct[self.resident[distinct]])
            again = np.delete(waiting, at) if len(at) < len(waiting) else NONE
            waiting = again[self.key[again] > self._LATER]
        return ids

    def learn(self, ids: Ids, scores: Scores, kin: Ids | None = None) -> None:
        if not self._scores.flags.writeable:
            self._scores = self._scores.copy()
        if len(scores):
            mean = float(scores.mean())
            self._expected = mean if self._expected is None else _KEPT * self._expected + (1 - _KEPT) * mean
        self._scores[ids] = scores
        beyond = ids[self.key[ids] <= self._BEYOND]
        self.key[beyond] = self._beyond(beyond)
        self._front.note(beyond[self.resident[beyond]])

    def leave(self, job: int) -> None:
        if job == self._job:
            self._forget_plan()

    def _forget_plan(self) -> None:
        self._after = np.empty(0, np.uint32)
        self._once, self._all_later = True, False
        self._later[:] = False
        self._set_all(np.broadcast_to(self._NEVER, len(self.key)))

    def _set_all(self, positions: NDArray[np.uint32]) -> None:
        np.negative(positions, out=self.key, dtype=np.float64)
        over = positions == self._NEVER
        later = np.flatnonzero(over & self._later)
        self.key[later] = self._next_epoch(later)
        beyond = np.flatnonzero(over & ~self._later)
        self.key[beyond] = self._beyond(beyond)
        self._front.restart()

    def _set(self, ids: Ids, positions: NDArray[np.uint32]) -> None:
        """Keys from the positions of next visits in this epoch."""
        keys = -positions.astype(np.float64)
        over = np.flatnonzero(positions == self._NEVER)
        keys[over] = self._over(ids[over])
        self.key[ids] = keys

    def _over(self, ids: Ids) -> NDArray[np.float64]:
        """Keys of those that this epoch does not visit any more."""
        if self._all_later:
            return self._next_epoch(ids)
        return np.where(self._later[ids], self._next_epoch(ids), self._beyond(ids))

    def _next_epoch(self, ids: Ids) -> NDArray[np.float64]:
        return self._LATER - self._SPAN / self._per_byte(ids)

    def _beyond(self, ids: Ids) -> NDArray[np.float64]:
        """A sample of twice the score is drawn twice as often, and so needed in half the time."""
        scores = self._scores[ids].astype(np.float64)
        scores[np.isnan(scores)] = UNTOLD if self._expected is None else _HOPE * self._expected
        worth = scores * self._per_byte(ids)
        return self._BEYOND - self._SPAN / (1 + worth)

    def _per_byte(self, ids: Ids) -> NDArray[np.float64]:
        """What a byte of each saves: itself, and its part of a request, which counts like a sample of mean size."""
        return 1 + self._mean / np.maximum(1, self.sizes[ids])
