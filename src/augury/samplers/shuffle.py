"""Orders that visit every sample once: shuffled anew each epoch, or as the catalog has them."""

from __future__ import annotations

import numpy as np

from augury.ids import Ids, Mask, Scores


def epoch_rng(seed: int, epoch: int) -> np.random.Generator:
    """The generator of one epoch: a counter-based stream, so that any epoch can be drawn without the others."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64)))


class InOrder:
    """Every sample once, by id."""

    foreseeable = True

    def __init__(self, samples: int, seed: int = 0) -> None:
        self.samples = samples

    def draw(self, epoch: int, scores: Scores) -> Ids:
        return np.arange(self.samples, dtype=np.int64)

    def arrange(self, drawn: Ids, resident: Mask) -> Ids:
        return drawn


class Shuffle(InOrder):
    """Every sample once, in an order that is uniformly random and differs from epoch to epoch."""

    def __init__(self, samples: int, seed: int = 0) -> None:
        super().__init__(samples, seed)
        self.seed = seed

    def draw(self, epoch: int, scores: Scores) -> Ids:
        return epoch_rng(self.seed, epoch).permutation(self.samples)
