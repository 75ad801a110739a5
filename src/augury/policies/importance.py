"""What to hold by importance alone, and how its order changes without a pause: iCache's H-cache and shadow heap.

Chen et al., "iCache: An Importance-Sampling-Informed Cache for Accelerating I/O-Bound DNN Model Training", HPCA 2023,
sections III-A and III-B. The L-cache and what it does for the rest is in icache.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from augury.ids import NONE, Ids, Mask, Scores, Times
from augury.policies.front import Front, Keys
from augury.policies.ranking import Ranked

PIECES, PIECE = 32, 1 << 12
"""A new order of leaving is built in so many pieces, one per minibatch, each of at least so many ids."""
UNKNOWN = 1.0
"""The importance of those of whom nothing was learned: that of the hardest."""


class ByImportance(Ranked):
    """The H-cache, alone: the least important leaves, and only for a more important one.

    Importance takes effect when an epoch is planned, and not at once: the order of leaving by the new values is built
    aside (the paper's shadow heap), a piece with each minibatch. Until it is complete, the old order says who leaves.
    """

    bypass = loyal = True

    def __init__(self, sizes: NDArray[np.int64], capacity: int, rng: np.random.Generator | None = None) -> None:
        super().__init__(sizes, capacity, rng)
        self.importance = np.full(len(sizes), UNKNOWN, np.float32)
        """As learned last."""
        self.key[:] = UNKNOWN
        self._shadow: _Shadow | None = None
        self._spare: Keys = self.key.copy()
        """Where the next order's keys are put: fresh memory would cost a fault per page while training waits."""

    def learn(self, ids: Ids, scores: Scores, kin: Ids | None = None) -> None:
        self.importance[ids] = scores

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> Ids:
        while self._shadow is not None:  # epochs of a few minibatches; then it is short
            self._build()
        self._shadow = _Shadow(self._spare, self.importance, self.resident)
        return NONE

    def serve(self, ids: Ids, job: int = 0) -> Ids:
        self._build()
        return ids

    def _build(self) -> None:
        shadow = self._shadow
        if shadow is not None and shadow.advance():
            self._spare = self.key
            self.key, self._front, self._shadow = shadow.key, shadow.front, None

    def _enter(self, ids: Ids) -> None:
        self.key[ids] = self.importance[ids]
        if self._shadow is not None:
            self._shadow.key[ids] = self.importance[ids]

    def _hold(self, ids: Ids) -> None:
        super()._hold(ids)
        if self._shadow is not None:
            self._shadow.front.note(ids)


class _Shadow:
    """An order of leaving that is being built."""

    def __init__(self, key: Keys, importance: Scores, resident: Mask) -> None:
        self.key, self.front = key, Front(key, resident)
        self._importance, self._at = importance, 0
        self._piece = max(PIECE, -(-len(importance) // PIECES))

    def advance(self) -> bool:
        """One more piece; whether it was the last."""
        start, self._at = self._at, min(len(self.key), self._at + self._piece)
        self.key[start : self._at] = self._importance[start : self._at]
        self.front.gather(start, self._at)
        done = self._at == len(self.key)
        if done:
            self.front.gathered()
        return done
