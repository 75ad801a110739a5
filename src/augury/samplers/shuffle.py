"""Orders that visit every sample once: shuffled anew each epoch, or as the catalog has them."""

from __future__ import annotations

import numpy as np

from augury.ids import Ids, Scores
from augury.knowledge import Knowledge
from augury.samplers import View


def epoch_rng(seed: int, epoch: int, stream: int = 0) -> np.random.Generator:
    """The generator of one epoch: a counter-based stream, so that any epoch can be drawn without the others.

    Other streams of the same epoch are for other ranks and other purposes.
    """
    counter = np.array([0, 0, 0, stream], np.uint64)
    return np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64), counter=counter))


class InOrder:
    """Every sample once, by id."""

    foreseeable = True
    skips = False

    def __init__(
        self, samples: int, seed: int = 0, rank: int = 0, world_size: int = 1, count: int | None = None
    ) -> None:
        self.samples, self.seed = samples, seed

    def part(self, epoch: int) -> float:
        return 1.0

    def draw(self, epoch: int, known: Knowledge) -> Ids:
        return np.arange(self.samples, dtype=np.int64)

    def weights(self, epoch: int, known: Knowledge) -> Scores | None:
        return None

    def arrange(self, epoch: int, drawn: Ids, known: Knowledge, cache: View) -> Ids:
        return drawn


class Shuffle(InOrder):
    """Every sample once, in an order that is uniformly random and differs from epoch to epoch."""

    def draw(self, epoch: int, known: Knowledge) -> Ids:
        return epoch_rng(self.seed, epoch).permutation(self.samples)
