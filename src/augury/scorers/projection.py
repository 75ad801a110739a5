"""Embeddings in few numbers: the directions in which they differ most, found again as training moves them.

A network's last embedding has hundreds or thousands of numbers and differs in few directions. What is lost is kept as
one number per sample, the squared length of the rest: lost parts of two samples are about orthogonal, so both add to
their squared distance. What is searched among such vectors is in neighbours.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from augury.scorers import Embeddings
from augury.scorers.products import product, squares

Vectors = NDArray[np.float32]
DIMENSIONS = 64
"""At most so many numbers of each sample."""
ROUNDS = 3
"""Of subspace iteration."""
RECENT = 1024
"""From so many embeddings that came last directions are found."""


class Projection:
    """From embeddings of one width to vectors of at most `DIMENSIONS` numbers. Those of no more stay as they are."""

    def __init__(self, width: int) -> None:
        self.width, self.dimensions = width, min(width, DIMENSIONS)
        self.origin: Vectors | None = None
        """Subtracted from all, so that differences of large numbers keep their digits."""
        self.basis: Vectors | None = None
        self._recent = np.empty((0, width), np.float32)
        self._rng = np.random.default_rng(0)

    @property
    def loses(self) -> bool:
        """Whether there are fewer numbers than before."""
        return self.width > self.dimensions

    def project(self, embeddings: Embeddings) -> tuple[Vectors, Vectors]:
        """Vectors, and the squared length of what they lack."""
        if self.origin is None:
            self.origin = embeddings.mean(axis=0, dtype=np.float64).astype(np.float32)
        centred = embeddings - self.origin
        if not self.loses:
            return centred, np.zeros(len(centred), np.float32)
        self._recent = np.concatenate([self._recent, centred])[-RECENT:]
        if self.basis is None:
            self.basis = self._directions()
        vectors = product(centred, self.basis)
        return vectors, np.maximum(squares(centred) - squares(vectors), 0)

    def refit(self) -> Vectors:
        """Take the directions in which the last embeddings differ most; how older vectors are to be turned."""
        assert self.basis is not None
        old, self.basis = self.basis, self._directions()
        turn: Vectors = old.T @ self.basis
        return turn

    def _directions(self) -> Vectors:
        """An orthonormal basis, of directions of equal weight: one byte then holds any of the numbers equally well."""
        # Noise fills up where there are fewer samples than dimensions.
        rows = self._recent - self._recent.mean(axis=0)
        noise = self._rng.standard_normal((self.dimensions, self.width), np.float32)
        rows = np.concatenate([rows, 1e-6 * (np.abs(rows).max(initial=0) or 1) * noise])
        basis = noise.T if self.basis is None else self.basis
        for _ in range(ROUNDS):
            basis = np.linalg.qr(product(rows.T, product(rows, basis)))[0]
        turned, _ = np.linalg.qr(self._rng.standard_normal((self.dimensions, self.dimensions)))
        return product(basis, turned.astype(np.float32))
