"""Epochs by importance in which nobody comes too often and nobody is left out for long: what recipe `augury` draws.

Scores come from elsewhere, and in which order what is drawn is visited is the business of foresight.py. Nothing here is
of a paper; docs/decisions/0009-foresight.md has what other draws cost in accuracy.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.ids import NONE, Ids, Scores
from augury.knowledge import UNTOLD, Knowledge
from augury.samplers.importance import Weighted
from augury.samplers.shuffle import Shuffle, epoch_rng

REPETITION = 1.5
"""How often what is drawn is visited: the fewest reads that cost no accuracy (docs/recipes/augury.md)."""
_PARTING = 1 << 40
"""The stream of chance that divides the samples among ranks."""


class Bounded(Weighted):
    """Draws a part of the samples, by importance and each once, and visits each of them `repetition` times.

    A sample that is read serves several visits, so an epoch of N visits reads at most N / repetition samples. How often
    a sample comes is expected in proportion to its score; never more than `repetition` times (rounded up) in an epoch.
    Who has been left out of `explore` epochs in a row comes in the next, as far as those find room in it. One
    random number rounds all that is expected to whole visits (systematic sampling), with the ids in random order:
    whether one comes hardly depends on others.

    The first epoch visits every sample once; the second may be drawn before anything is told, and then all are alike.
    Several ranks have parts of their own, divided at random by the seed: what a rank reads is of use to itself again.
    """

    def __init__(
        self,
        samples: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        count: int | None = None,
        *,
        repetition: float = REPETITION,
        sharpness: float = 1.0,
        explore: int | None = 1,
    ) -> None:
        super().__init__(samples, seed, rank, world_size, count)
        if not 1 <= repetition <= 10:
            raise ConfigError(f"repetition={repetition}: give a number from 1 (none) to 10")
        if not 0 <= sharpness <= 10:
            raise ConfigError(f"sharpness={sharpness}: give the power of the score that visits go with, from 0 to 10")
        if explore is not None and explore < 1:
            raise ConfigError(f"explore={explore}: give a number of epochs, or None to leave samples unseen for ever")
        self.repetition, self.sharpness, self.explore = repetition, sharpness, explore

    def draw(self, epoch: int, known: Knowledge) -> Ids:
        mine = known.of(self._part)
        if self._starts(mine):
            return self._named(np.resize(self._every(epoch), self.count))
        rng = epoch_rng(self.seed, epoch, 1 + self.rank)
        chosen = rounded(rng, self._chances(epoch, mine), self._different)
        drawn = np.resize(chosen, self.count).copy()  # in turn, so that all come equally often, to within one
        rng.shuffle(drawn)
        return self._named(drawn)

    def weights(self, epoch: int, known: Knowledge) -> Scores | None:
        weights = super().weights(epoch, known.of(self._part))
        if weights is None or self._part is None:
            return weights
        of_all = np.zeros(self.samples, np.float32)
        of_all[self._part] = weights
        return of_all

    def visits(self, epoch: int, known: Knowledge) -> NDArray[np.floating]:
        """As `Weighted.visits`, of this rank's part; so is what is known."""
        visits = self._chances(epoch, known)
        visits *= self.count / max(1, self._different)
        return visits

    def _chances(self, epoch: int, known: Knowledge) -> NDArray[np.floating]:
        """Of being visited at all."""
        chances = known.scores.copy()
        told = chances != UNTOLD
        chances[~told] = chances[told].mean() if told.any() else UNTOLD  # nothing speaks for or against them
        if self.sharpness != 1:
            chances /= max(chances.max(), np.finfo(np.float32).tiny)  # so that no power is too large
            chances **= self.sharpness
        due = NONE if self.explore is None else np.flatnonzero(known.seen < max(0, epoch - self.explore))
        return bounded(chances, self._different, due)

    @property
    def _different(self) -> int:
        """How many samples an epoch visits."""
        samples = self.samples if self._part is None else len(self._part)
        return min(samples, math.ceil(self.count / self.repetition))

    @cached_property
    def _part(self) -> Ids | None:
        """Whom this rank visits; None: all."""
        if self.world_size == 1:
            return None
        order = epoch_rng(self.seed, 0, _PARTING).permutation(self.samples)
        return np.resize(order, max(self.samples, self.world_size))[self.rank :: self.world_size].copy()

    def _every(self, epoch: int) -> Ids:
        if self._part is None:
            return Shuffle(self.samples, self.seed).draw(epoch, Knowledge.none(0))
        return epoch_rng(self.seed, epoch, 1 + self.rank).permutation(len(self._part))

    def _named(self, positions: Ids) -> Ids:
        return positions if self._part is None else self._part[positions]

    def _starts(self, known: Knowledge) -> bool:
        """Whether so many were never seen that they do not find room in a part of the samples."""
        return len(known.seen) == 0 or int(np.count_nonzero(known.seen < 0)) * self.repetition > self.count


def bounded(shares: NDArray[np.floating], count: float, due: Ids, most: float = 1.0) -> NDArray[np.floating]:
    """Scales shares in place to `count` in all, none above the most, and those that are due at the most."""
    shares[due] = 0
    full = np.zeros(len(shares), np.bool_)
    full[due] = True
    while True:  # each time some more are full, or it ends
        left = max(0.0, count - most * float(np.count_nonzero(full)))
        if (total := float(shares.sum(dtype=np.float64))) <= 0:  # of those that are left none is worth anything
            shares[~full] = 1
            total = max(1.0, float(np.count_nonzero(~full)))
        shares *= left / total
        over = shares >= most
        if not over.any():
            break
        full |= over
        shares[over] = 0
    # Where more are due than find room, all have the same chance of it.
    shares[full] = min(most, count / max(1, int(np.count_nonzero(full))))
    return shares


def rounded(rng: np.random.Generator, chances: NDArray[np.floating], count: int) -> Ids:
    """`count` positions, each drawn with its chance (of which `count` is the sum), those of chance 1 for certain."""
    order = rng.permutation(np.arange(len(chances), dtype=np.int32))
    edges = np.zeros(len(chances) + 1)
    np.cumsum(chances[order], dtype=np.float64, out=edges[1:])
    edges *= count / edges[-1]
    edges += rng.random()
    np.floor(edges, out=edges)
    return order[edges[1:] > edges[:-1]].astype(np.int64)
