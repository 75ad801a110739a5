"""Which byte ranges to ask a store for: pure planning, no I/O.

Two samples that lie close together cost less as one request than as two, as long as the bytes between them
arrive sooner than a second answer would. Whoever reads the ranges decides what "close" means.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Range(NamedTuple):
    """One request: bytes [start, stop), and the positions (in the arguments of `merge`) of what it holds."""

    start: int
    stop: int
    members: NDArray[np.int64]


def merge(offsets: NDArray[np.int64], sizes: NDArray[np.int64], gap: int, limit: int) -> list[Range]:
    """Join neighbours that are at most `gap` bytes apart into ranges of at most `limit` bytes.

    A single extent longer than `limit` is a range of its own. Extents may come in any order, overlap and
    repeat; each is a member of exactly one range. Ranges come in the order of their start, and so do their
    members.
    """
    if not len(offsets):
        return []
    by_offset = np.argsort(offsets, kind="stable")
    starts = offsets[by_offset].tolist()
    stops = (offsets[by_offset] + sizes[by_offset]).tolist()
    ranges: list[Range] = []
    first, end = 0, stops[0]
    for position in range(1, len(starts)):
        joined = max(end, stops[position])
        fits = joined == end or joined - starts[first] <= limit
        if fits and starts[position] - end <= gap:
            end = joined
            continue
        ranges.append(Range(starts[first], end, by_offset[first:position]))
        first, end = position, stops[position]
    ranges.append(Range(starts[first], end, by_offset[first:]))
    return ranges
