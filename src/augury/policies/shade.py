"""What to hold by importance: SHADE's APP cache with its ghost list, and the plain priority queues it is compared with.

Khan et al., "SHADE: Enable Fundamental Cacheability for Distributed Deep Learning Training", FAST 2023, section 4.2.2
and Algorithm 1. The key is the score learned last; the keys of the absent are the ghost list, one float per id.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from augury.ids import NONE, Ids, Mask, Scores, Times, frequency
from augury.policies.ranking import Ranked


class ByScore(Ranked):
    """The least important leaves, and every newcomer enters: a priority queue (`sh_pq` of Figure 7)."""

    def learn(self, ids: Ids, scores: Scores, kin: Ids | None = None) -> None:
        self.key[ids] = scores
        self._front.note(ids[self.resident[ids]])


class ByScoreAndUse(ByScore):
    """The least important leaves; of equals, the least often used (`sh_pqlfu` of Figure 7)."""

    _TICK = 2.0**-45
    """Uses raise the key by so little that a million of them do not reach the next higher score, a 32-bit float."""
    _MOST = 2.0**20
    _LEAST = 2.0**-100
    """Of whom nothing was told, and whose score is nothing: among them, too, use decides."""

    def __init__(self, sizes: NDArray[np.int64], capacity: int, rng: np.random.Generator | None = None) -> None:
        super().__init__(sizes, capacity, rng)
        self._score = np.zeros(len(sizes), np.float32)
        self._used = np.zeros(len(sizes), np.int32)

    def serve(self, ids: Ids, job: int = 0) -> Ids:
        np.add.at(self._used, ids, 1)
        self._rank(ids)
        return ids

    def learn(self, ids: Ids, scores: Scores, kin: Ids | None = None) -> None:
        self._score[ids] = scores
        self._rank(ids)

    def _rank(self, ids: Ids) -> None:
        self.key[ids] = np.maximum(self._score[ids], self._LEAST) * (
            1 + self._TICK * np.minimum(self._used[ids], self._MOST)
        )
        self._front.note(ids[self.resident[ids]])


class APP(ByScore):
    """Adaptive priority-aware prediction, Algorithm 1: a newcomer enters a full cache only if it is known to be at
    least as important as the least important resident, which then leaves. Of whom nothing was learned is not known.

    Deviations: in the paper a score is known when the sample is accessed; here it is learned after the sample was
    trained on, so the ghost list has the score of the last visit (as its own `ghost_cache.get(s)` says). A resident of
    whom nothing was learned counts as less important than any other.
    """

    bypass = True
    prefetches = True
    _UNKNOWN, _STRANGER = -1.0, -2.0
    """Keys of those of whom nothing was learned: while they are resident, and when they ask to enter."""

    def __init__(self, sizes: NDArray[np.int64], capacity: int, rng: np.random.Generator | None = None) -> None:
        super().__init__(sizes, capacity, rng)
        self.key[:] = self._UNKNOWN
        self._planned: Mask | None = None

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> Ids:
        self._planned = np.zeros(len(self.key), np.bool_)
        self._planned[order] = True
        return NONE

    def admit(self, ids: Ids) -> tuple[Mask, Ids]:
        strangers = ids[self.key[ids] < 0]
        self.key[strangers] = self._STRANGER
        kept, evicted = super().admit(ids)
        self.key[strangers] = self._UNKNOWN
        self._front.note(strangers[self.resident[strangers]])
        return kept, evicted

    def wanted(self, budget: int) -> Ids:
        """The most important absent ids that would enter: the paper's prefetching at the start of an epoch.

        Where the epoch's order was told, only those that it visits: then no read is in vain.
        """
        absent = ~self.resident & (self.key >= 0)
        if self._planned is not None:
            absent &= self._planned
        # Residents first: for one as important as a resident no byte need be read.
        pool = np.concatenate([np.flatnonzero(self.resident), np.flatnonzero(absent)])
        pool = pool[self.sizes[pool] <= self.capacity]
        best = pool[(-self.key[pool]).argsort(kind="stable")]
        best = best[self.sizes[best].cumsum() <= self.capacity]
        wanted = best[~self.resident[best]]
        return wanted[self.sizes[wanted].cumsum() <= budget] if len(wanted) else NONE


class APPByLot(APP):
    """APP with importance as odds: the more important, the likelier is a high key, drawn anew with each score.

    Held strictly by score, the hardest tenth of the samples stays, and it is what PADS repeats: training then sees them
    three times per epoch, again and again, and ends 2.5 points lower (docs/decisions/0006-by-lot.md). The key here is
    exp(-e / score) with e exponential: the highest keys are a sample of all, in proportion to the scores, and a
    different one from epoch to epoch (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).

    Residents that the epoch will visit again leave last, so that no repeat that was planned is read again; and nothing
    is read unasked, which saves reads: whoever is visited comes by anyway.
    """

    prefetches = False

    def __init__(self, sizes: NDArray[np.int64], capacity: int, rng: np.random.Generator | None = None) -> None:
        super().__init__(sizes, capacity, rng)
        self._rng = np.random.default_rng() if rng is None else rng
        self._lot = np.full(len(sizes), self._UNKNOWN)
        """Between 0 and 1, where something was learned. The key adds 1 to it while the sample is due."""
        self._due = np.zeros(len(sizes), np.int32)
        """How often the rest of the epoch visits each."""

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> Ids:
        self._due = frequency(order, len(self.key)).astype(np.int32)
        self.key[:] = self._lot + ((self._due > 0) & (self._lot >= 0))
        self._front.restart()
        return NONE

    def serve(self, ids: Ids, job: int = 0) -> Ids:
        np.subtract.at(self._due, ids, 1)
        self._rank(ids)
        return ids

    def learn(self, ids: Ids, scores: Scores, kin: Ids | None = None) -> None:
        with np.errstate(divide="ignore"):
            self._lot[ids] = np.exp(-self._rng.standard_exponential(len(ids)) / scores)
        self._rank(ids)

    def wanted(self, budget: int) -> Ids:
        return NONE

    def _rank(self, ids: Ids) -> None:
        lot = self._lot[ids]
        self.key[ids] = lot + ((self._due[ids] > 0) & (lot >= 0))
        self._front.note(ids[self.resident[ids]])
