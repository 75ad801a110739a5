"""In which order samples are visited: each epoch drawn as one array.

Each module is one way of drawing. `ranks.py` cuts an order for several ranks. A sampler knows nothing of bytes
or batches; what it may look at (what training has told, what is resident) is handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from augury.ids import Ids, Mask, Scores
from augury.knowledge import Knowledge


@dataclass(frozen=True)
class View:
    """What a sampler sees of the cache when it arranges an epoch."""

    resident: Mask
    """Who is held, by any level."""
    room: float
    """How many samples can be held, if they are of mean size."""
    batch_size: int
    """Samples per minibatch."""


class Sampler(Protocol):
    """Draws the order in which one job visits the dataset. Pure: any thread may call it."""

    @property
    def foreseeable(self) -> bool:
        """Whether draw() ignores what is known: then any future epoch can be drawn now, and it is drawn for all ranks.

        Otherwise each rank draws for itself, as many as the others.
        """

    @property
    def skips(self) -> bool:
        """Whether samples of weight 0 are fetched like all others, but not handed to training."""

    def part(self, epoch: int) -> float:
        """How much of the dataset the epoch visits: 1, or less, and then `ranks.portion` for each rank."""

    def draw(self, epoch: int, known: Knowledge) -> Ids:
        """What the epoch visits; pure in (seed, epoch, known). May be drawn early."""

    def weights(self, epoch: int, known: Knowledge) -> Scores | None:
        """What each sample's loss is to be multiplied by so that, on average, training learns as if every sample came
        equally often: p/q of SHADE's Eq. 1. None: it does. Of what `draw` would draw now; ConfigError: not known."""

    def arrange(self, epoch: int, drawn: Ids, known: Knowledge, cache: View) -> Ids:
        """The order of the epoch, with the cache in view; by default as drawn. As long as what was drawn."""


class MakeSampler(Protocol):
    """Makes a sampler for one rank, which visits `count` samples per epoch (by default an equal part of all)."""

    def __call__(
        self, samples: int, seed: int, rank: int = 0, world_size: int = 1, count: int | None = None
    ) -> Sampler: ...
