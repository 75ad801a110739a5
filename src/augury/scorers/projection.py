"""Embeddings in few numbers: random mixtures of them, in which distances are kept on average.

A network's last embedding has hundreds or thousands of numbers. Mixtures by fixed chance (Johnson and Lindenstrauss)
need nothing to be learned, so that vectors of different times of training can be compared; 64 of them keep a distance
to within 9 % as a rule. Directions in which embeddings differ most would keep it better, but they move as training goes
on, and vectors along the old ones cannot be turned into the new (docs/decisions/0011-spider.md).
"""

from __future__ import annotations

import numpy as np

from augury.scorers import Embeddings
from augury.scorers.products import Matrix, product

DIMENSIONS = 64
"""At most so many numbers of each sample."""


class Projection:
    """From embeddings of one width to vectors of at most `DIMENSIONS` numbers. Those of no more stay as they are."""

    def __init__(self, width: int) -> None:
        self.width, self.dimensions = width, min(width, DIMENSIONS)
        self._mixtures: Matrix | None = None
        if width > DIMENSIONS:
            drawn = np.random.default_rng(width).standard_normal((width, DIMENSIONS), np.float32)
            self._mixtures = drawn / np.float32(np.sqrt(DIMENSIONS))

    def project(self, embeddings: Embeddings) -> Matrix:
        """Vectors whose distances are those of the embeddings, or nearly."""
        return embeddings if self._mixtures is None else product(embeddings, self._mixtures)
