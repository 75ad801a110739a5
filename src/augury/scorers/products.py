"""Products of matrices in the calling thread alone.

BLAS divides a large product among all cores. A scorer works while a network trains on those cores, and where a thread
of BLAS has to wait for one, the product waits: measured on two busy cores, eight milliseconds instead of sixty
microseconds. Pieces below the size at which BLAS divides stay in one thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
PIECE = 1 << 18
"""Multiplications of one piece: OpenBLAS divides products of more than 4 x 65,536."""
ROWS = 16
"""A piece has at least so many rows: fewer would be as slow as no BLAS at all."""


def product(left: Matrix, right: Matrix) -> Matrix:
    """left @ right."""
    depth, width = right.shape
    deepest = max(1, PIECE // (ROWS * max(1, width)))
    made = _product(left[:, :deepest], right[:deepest])
    for start in range(deepest, depth, deepest):
        made += _product(left[:, start : start + deepest], right[start : start + deepest])
    return made


def _product(left: Matrix, right: Matrix) -> Matrix:
    """As many rows at a time as make a piece."""
    left = np.ascontiguousarray(left)
    height, (depth, width) = len(left), right.shape
    made = np.empty((height, width), np.float32)
    rows = max(1, PIECE // max(1, depth * width))
    whole = height // rows * rows
    if whole:
        np.matmul(left[:whole].reshape(-1, rows, depth), right, out=made[:whole].reshape(-1, rows, width))
    if whole < height:
        np.matmul(left[whole:], right, out=made[whole:])
    return made


def squares(rows: Matrix) -> Matrix:
    """The squared length of each row."""
    found: Matrix = np.einsum("ij,ij->i", rows, rows)
    return found


def distances(rows: Matrix, others: Matrix) -> Matrix:
    """From each row to each of the others."""
    gaps = product(rows, np.ascontiguousarray(others.T))
    gaps *= -2
    gaps += squares(others)
    gaps += squares(rows)[:, None]
    return np.sqrt(np.maximum(gaps, 0, out=gaps), out=gaps)
