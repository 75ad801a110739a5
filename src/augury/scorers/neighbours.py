"""Who lies within a radius of whom: the search behind graph.py, over vectors that keep moving.

Vectors lie in cells, each around a centre. Cells that lie too far away as a whole are not looked at; of a large
dataset, neither are those beyond the few nearest. That is exact up to `EXACT` samples; above, it costs about the same
per sample however many there are, and numbers are kept in one byte each. docs/decisions/0011-spider.md measures it
beside an HNSW index (usearch). Labels and scores are not known here, nor how embeddings become vectors (projection.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from augury.ids import Ids, Mask
from augury.scorers.products import Matrix as Vectors
from augury.scorers.products import distances, product, squares

EXACT = 100_000
"""Up to so many samples all neighbours are found. That costs up to three times as much, and where embeddings do not lie
in clusters finds a third more."""
CELL, LARGE_CELL = 512, 1024
"""Samples per cell, where the search is exact and where it is not."""
LOOKS = 4
"""Where it is not, so many of the nearest cells are looked at."""
FEW = 1024
"""Before so many updates nothing is arranged anew."""
LARGEST = 127
"""The largest number of a byte."""
BLOCK = 1 << 22
"""So many distances are looked at together, at most."""
CLIPPED = 0.01
"""When more of the numbers than this are too large for their byte, a byte's unit is chosen anew."""


class Edges(NamedTuple):
    """Pairs of neighbours: `rows` are places in what was asked for, `ids` whom they lie near."""

    rows: NDArray[np.int64]
    ids: Ids


class _Cell:
    """Members of a cell: their vectors side by side, with room for more."""

    def __init__(self, dimensions: int, kind: type[Any]) -> None:
        self.count = 0
        self._vectors = np.empty((0, dimensions), kind)
        self._ids = np.empty(0, np.int32)
        self._halves = np.empty(0, np.float32)

    @property
    def vectors(self) -> NDArray[Any]:
        return self._vectors[: self.count]

    @property
    def ids(self) -> NDArray[np.int32]:
        return self._ids[: self.count]

    @property
    def halves(self) -> Vectors:
        return self._halves[: self.count]

    @property
    def nbytes(self) -> int:
        return self._vectors.nbytes + self._ids.nbytes + self._halves.nbytes

    def add(self, ids: Ids, vectors: NDArray[Any], halves: Vectors) -> NDArray[np.int64]:
        """New members; their rows."""
        start, stop = self.count, self.count + len(ids)
        if stop > len(self._ids):
            room = stop + stop // 8 + 8
            self._vectors, self._ids, self._halves = (
                np.concatenate([old[:start], np.empty((room - start, *old.shape[1:]), old.dtype)])
                for old in (self._vectors, self._ids, self._halves)
            )
        self._vectors[start:stop], self._ids[start:stop], self._halves[start:stop] = vectors, ids, halves
        self.count = stop
        return np.arange(start, stop)

    def take_out(self, rows: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Members of these rows leave, and the last ones take their places: who moves, and to which rows."""
        rest = self.count - len(rows)
        stays = np.ones(self.count, np.bool_)
        stays[rows] = False
        movers, holes = rest + np.flatnonzero(stays[rest:]), rows[rows < rest]
        for array in (self._vectors, self._ids, self._halves):
            array[holes] = array[movers]
        self.count = rest
        return self._ids[holes], holes


class Neighbours:
    """The vectors of one dataset. One owner thread."""

    def __init__(self, samples: int, dimensions: int, *, exact: bool | None = None) -> None:
        self.exact = samples <= EXACT if exact is None else exact
        self._dimensions = dimensions
        self._kind: type[Any] = np.float32 if self.exact else np.int8
        self._unit = 1.0 if self.exact else 0.0
        """What 1 stands for in the vectors as they are held; 0: nothing was seen yet."""
        self._cell = np.full(samples, -1, np.int32)
        self._row = np.zeros(samples, np.int32)
        self._centres: Vectors = np.zeros((1, dimensions), np.float32)
        self._reach: Vectors = np.zeros(1, np.float32)
        """How far each cell's members are from its centre, at most."""
        self._cells = [_Cell(dimensions, self._kind)]
        self._origin: Vectors = np.zeros(dimensions, np.float32)
        """Subtracted from all vectors that are held, so that differences of large numbers keep their digits."""
        self._buffer: Vectors = np.empty((0, dimensions), np.float32)
        self._since = self._due = self._clipped = 0
        self._rng = np.random.default_rng(0)

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        arrays = self._cell, self._row, self._centres, self._reach, self._buffer
        return sum(array.nbytes for array in arrays) + sum(cell.nbytes for cell in self._cells)

    def known(self, ids: Ids) -> Mask:
        """Whose vector is there."""
        there: Mask = self._cell[ids] >= 0
        return there

    def update(self, ids: Ids, vectors: Vectors) -> None:
        """New vectors of different samples."""
        if self._due == 0 and len(ids):
            self._origin = vectors.mean(axis=0)
        self._since += len(ids)
        self._put(ids, vectors - self._origin)
        if self._since >= self._due:
            self.arrange()

    def get(self, ids: Ids) -> Vectors:
        """Vectors as they were given, or in bytes nearly so."""
        return self._get(ids) + self._origin

    def within(self, ids: Ids, radius: float, most: int) -> Edges:
        """Who lies within the radius of each, at most so many and then the nearest; oneself left out."""
        vectors = self._get(ids)
        look = self._cells_to_look_at(vectors, radius)
        # Of vectors x and y: xy - |y|²/2 >= (|x|² - radius²)/2 where they are near.
        limit = (squares(vectors) - np.float32(radius**2)) * np.float32(0.5)
        vectors *= np.float32(self._unit)
        rows, others, excess = [], [], []
        for at, cell in zip(look.T, self._cells, strict=True):
            asked = np.flatnonzero(at)
            together = max(1, BLOCK // max(1, cell.count))
            for start in range(0, len(asked) if cell.count else 0, together):
                some = asked[start : start + together]
                near = product(self._floats(cell), np.ascontiguousarray(vectors[some].T))
                near -= cell.halves[:, None]
                close = near >= limit[some]
                _keep_nearest(close, near, most + 1)  # one of them is oneself
                found = np.flatnonzero(close)
                member, row = np.divmod(found, len(some))
                rows.append(some[row])
                others.append(cell.ids[member])
                excess.append(near.ravel()[found] - limit[rows[-1]])
        return _nearest(ids, rows, others, excess, most)

    def arrange(self) -> None:
        """Choose cells anew, and the unit."""
        ids = np.flatnonzero(self._cell >= 0)
        self._since, self._due, self._clipped = 0, max(FEW, len(ids)), 0
        if len(ids) == 0:
            return
        count = max(1, len(ids) // (CELL if self.exact else LARGE_CELL))
        sample = self._get(self._rng.choice(ids, min(len(ids), 16 * count), replace=False))
        move = sample.mean(axis=0)
        sample -= move
        self._origin = self._origin + move
        old, unit = self._cells, self._unit
        self._cells = [_Cell(self._dimensions, self._kind) for _ in range(count)]
        if not self.exact:
            self._unit = _unit_for(sample)
        self._centres, self._reach = _means(sample, count), np.zeros(count, np.float32)
        self._cell[ids] = -1
        while old:
            cell = old.pop()  # its memory is not needed while the others are put
            for start in range(0, cell.count, FEW):
                part = slice(start, min(start + FEW, cell.count))
                held = cell.vectors[part].astype(np.float32) * np.float32(unit)
                self._put(cell.ids[part].astype(np.int64), held - move)

    def _floats(self, cell: _Cell) -> Vectors:
        """A cell's vectors; of bytes, in memory that the next cell uses again."""
        if self.exact:
            return cell.vectors
        if len(self._buffer) < cell.count:
            self._buffer = np.empty((cell.count + cell.count // 4, self._dimensions), np.float32)
        floats = self._buffer[: cell.count]
        np.copyto(floats, cell.vectors)
        return floats

    def _get(self, ids: Ids) -> Vectors:
        """Vectors without their origin."""
        vectors = np.empty((len(ids), self._dimensions), np.float32)
        for cell, at in _by_cell(self._cell[ids]):
            vectors[at] = self._cells[cell].vectors[self._row[ids[at]]]
        vectors *= np.float32(self._unit)
        return vectors

    def _put(self, ids: Ids, vectors: Vectors) -> None:
        if self._unit == 0:
            self._unit = _unit_for(vectors)
        held = vectors
        if not self.exact:
            held = np.rint(vectors / np.float32(self._unit))
            self._clipped += int(np.count_nonzero(np.abs(held) > LARGEST))
            held = np.clip(held, -LARGEST, LARGEST)
            vectors = held * np.float32(self._unit)
            if self._clipped > CLIPPED * self._dimensions * (FEW + self._since):
                self._due = 1  # the unit is too small by now
        self._take_out(ids[self._cell[ids] >= 0])
        gaps = distances(vectors, self._centres)
        nearest = gaps.argmin(axis=1)
        np.maximum.at(self._reach, nearest, gaps[np.arange(len(ids)), nearest])
        halves = squares(vectors) * np.float32(0.5)
        for cell, at in _by_cell(nearest):
            self._row[ids[at]] = self._cells[cell].add(ids[at], held[at], halves[at])
        self._cell[ids] = nearest

    def _take_out(self, ids: Ids) -> None:
        for cell, at in _by_cell(self._cell[ids]):
            moved, rows = self._cells[cell].take_out(self._row[ids[at]])
            self._row[moved] = rows
        self._cell[ids] = -1

    def _cells_to_look_at(self, vectors: Vectors, radius: float) -> Mask:
        """(asked, cells): those that are not too far away for the triangle inequality; of many, the nearest."""
        gaps = distances(vectors, self._centres)
        look: Mask = gaps <= self._reach + np.float32(1.001 * radius)
        if not self.exact and len(self._cells) > LOOKS:
            look &= gaps <= np.partition(gaps, LOOKS - 1, axis=1)[:, LOOKS - 1 : LOOKS]
        return look


def _by_cell(cells: NDArray[Any]) -> list[tuple[int, NDArray[np.int64]]]:
    """Each cell that is named, and the places where it is."""
    if len(cells) == 0:
        return []
    order = cells.argsort(kind="stable")
    ordered = cells[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    return list(zip(ordered[starts].tolist(), np.split(order, starts[1:]), strict=True))


def _keep_nearest(close: Mask, near: Vectors, most: int) -> None:
    """Of each column that has more close ones than that, only the nearest stay so (and those as near as the last)."""
    for column in np.flatnonzero(np.count_nonzero(close, axis=0) > most):
        values = near[:, column]
        close[:, column] &= values >= np.partition(values, len(values) - most)[len(values) - most]


def _means(vectors: Vectors, count: int) -> Vectors:
    """Centres of so many cells: the means of those that are nearest to each of the first so many (Lloyd's step)."""
    centres = vectors[:count].copy()
    parts = (vectors[start : start + FEW] for start in range(0, len(vectors), FEW))
    nearest = np.concatenate([distances(part, centres).argmin(axis=1) for part in parts])
    sums = np.zeros_like(centres)
    np.add.at(sums, nearest, vectors)
    sizes = np.bincount(nearest, minlength=len(centres))
    filled = sizes > 0
    centres[filled] = sums[filled] / sizes[filled, None]
    return centres


def _unit_for(vectors: Vectors) -> float:
    """So that a byte holds nearly all numbers of such vectors, and twice that: they grow while a network learns."""
    return max(2 * float(np.quantile(np.abs(vectors), 0.999)) / LARGEST, 1e-30)


def _nearest(
    asked: Ids, rows: list[NDArray[np.int64]], others: list[NDArray[np.int32]], excess: list[Vectors], most: int
) -> Edges:
    """The pairs without those of one with himself; of each only the nearest."""
    if not rows:
        return Edges(np.empty(0, np.int64), np.empty(0, np.int64))
    row, other, near = np.concatenate(rows), np.concatenate(others).astype(np.int64), np.concatenate(excess)
    apart = other != asked[row]
    row, other, near = row[apart], other[apart], near[apart]
    often = np.bincount(row, minlength=len(asked))
    if len(row) and often.max() > most:
        keep = np.ones(len(row), np.bool_)
        order = row.astype(np.int16 if len(asked) < 1 << 15 else np.int64).argsort(kind="stable")  # by radix
        for one, places in zip(often, np.split(order, np.cumsum(often)[:-1]), strict=True):
            if one > most:
                keep[places[near[places].argpartition(one - most)[: one - most]]] = False
        row, other = row[keep], other[keep]
    return Edges(row, other)
