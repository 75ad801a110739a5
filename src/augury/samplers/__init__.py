"""In which order samples are visited: each epoch drawn as one array.

Each module is one way of drawing. `ranks.py` cuts an order for several ranks. A sampler knows nothing of bytes
or batches; what it may look at (scores, what is resident) is handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from augury.ids import Ids, Mask, Scores


class Sampler(Protocol):
    """Draws the order in which one job visits the dataset. Pure: any thread may call it."""

    foreseeable: bool
    """draw() ignores scores: any future epoch can be drawn now."""

    def draw(self, epoch: int, scores: Scores) -> Ids:
        """What the epoch visits, for all ranks; pure in (seed, epoch, arguments). May be drawn early."""

    def arrange(self, drawn: Ids, resident: Mask) -> Ids:
        """The order of the rest of the epoch, with the cache in view; by default as drawn."""


MakeSampler: TypeAlias = Callable[[int, int], Sampler]
"""(samples, seed) -> sampler."""
