"""Which L-samples lie together in packages: iCache's dynamic packaging, as decisions about ids.

Chen et al., "iCache", HPCA 2023, section III-C. Missed samples are packed first, then any; a package that has lost most
of its L-samples to the H-list is abandoned. The files are written and read in augury.packages.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from augury.ids import Ids, Mask

ABANDON = 0.5
"""A package of which a smaller part than this are still L-samples is abandoned, and its L-samples are packed anew."""


class Packing:
    """The packages at present, and in which order the L-cache takes them."""

    def __init__(self, sizes: NDArray[np.int64], size: int) -> None:
        self._sizes, self._size = sizes, max(1, size)
        self.packages: list[Ids] = []
        self._of = np.full(len(sizes), -1, np.int32)
        """Which package each is in; -1: none."""
        self._line: list[int] = []

    def repack(self, low: Mask, missed: Ids, rng: np.random.Generator) -> None:
        """The L-samples are others now: give up packages with few of them, and pack those that are in none."""
        lengths = np.array([len(package) for package in self.packages], np.int64)
        self._keep(self._members(low) >= ABANDON * lengths)
        loose = low & (self._of < 0)
        first = missed[loose[missed]]
        loose[first] = False
        self._cut(np.concatenate([first, rng.permutation(np.flatnonzero(loose))]))

    def line_up(self, due: Mask, rng: np.random.Generator) -> None:
        """Take packages in this order: those with most samples that an epoch will visit first; of equals any."""
        count = self._members(due)
        order = rng.permutation(len(count))
        self._line = order[count[order].argsort(kind="stable")].tolist()

    def next(self) -> Ids | None:
        """The next package; None when all were taken."""
        return self.packages[self._line.pop()] if self._line else None

    def _members(self, of: Mask) -> NDArray[np.int64]:
        """How many of these each package has."""
        packed = self._of[of]
        return np.bincount(packed[packed >= 0], minlength=len(self.packages))

    def _keep(self, kept: Mask) -> None:
        """Only these packages, numbered anew."""
        if kept.all():
            return
        number = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
        packed = self._of >= 0
        self._of[packed] = number[self._of[packed]]
        self.packages = [package for package, stays in zip(self.packages, kept, strict=True) if stays]

    def _cut(self, ids: Ids) -> None:
        """Into packages of at least the size; what is left over waits for the next time."""
        total = np.cumsum(self._sizes[ids])
        self.packages = list(self.packages)  # whoever was given the list may still be reading it
        start = base = 0
        while len(ids) and total[-1] - base >= self._size:
            stop = 1 + int(total.searchsorted(base + self._size))
            self._of[ids[start:stop]] = len(self.packages)
            self.packages.append(ids[start:stop].copy())
            start, base = stop, int(total[stop - 1])
