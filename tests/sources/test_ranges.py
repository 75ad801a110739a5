"""Merged ranges against an obvious model."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from augury.sources.ranges import merge

EXTENTS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=20)


def model(extents: list[tuple[int, int]], gap: int, limit: int) -> list[tuple[int, int, list[int]]]:
    """Walk along the extents; join where allowed."""
    answer: list[tuple[int, int, list[int]]] = []
    for index in sorted(range(len(extents)), key=lambda index: (extents[index][0], index)):
        start, stop = extents[index][0], sum(extents[index])
        if answer:
            first, last, members = answer[-1]
            inside = stop <= last
            if inside or (start - last <= gap and stop - first <= limit):
                answer[-1] = (first, max(last, stop), [*members, index])
                continue
        answer.append((start, stop, [index]))
    return answer


@given(EXTENTS, st.integers(0, 50), st.integers(1, 200))
def test_as_the_model(extents: list[tuple[int, int]], gap: int, limit: int) -> None:
    offsets, sizes = np.array(extents, np.int64).reshape(-1, 2).T
    ranges = merge(offsets, sizes, gap, limit)
    assert [(part.start, part.stop, part.members.tolist()) for part in ranges] == model(extents, gap, limit)


@given(EXTENTS, st.integers(0, 50), st.integers(1, 200))
def test_every_extent_is_read_once_and_no_range_is_too_long(
    extents: list[tuple[int, int]], gap: int, limit: int
) -> None:
    offsets, sizes = np.array(extents, np.int64).reshape(-1, 2).T
    ranges = merge(offsets, sizes, gap, limit)
    members = [member for part in ranges for member in part.members.tolist()]
    assert sorted(members) == list(range(len(extents)))
    for part in ranges:
        assert part.start <= offsets[part.members].min()
        assert part.stop >= (offsets + sizes)[part.members].max()
        assert part.stop - part.start <= max(limit, sizes[part.members].max())


def test_neighbours_are_one_request() -> None:
    offsets = np.array([1000, 0, 100, 5000])
    (first, second, third) = merge(offsets, np.full(4, 100), gap=10, limit=1000)
    assert (first.start, first.stop, first.members.tolist()) == (0, 200, [1, 2])
    assert (second.start, third.start) == (1000, 5000)
