"""Id arrays: the types that all parts exchange, and pure arithmetic on orders.

An id is a sample's number, int64 in [0, N). Parts hand each other arrays of ids, a batch per call.
Nothing here knows of bytes, catalogs or policies.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ids: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Scores: TypeAlias = NDArray[np.float32]
Times: TypeAlias = NDArray[np.int32]
"""How often each of some ids is requested."""

NONE: Ids = np.empty(0, np.int64)
NONE.flags.writeable = False


def as_ids(ids: ArrayLike) -> Ids:
    """Any array-like of whole numbers as a one-dimensional id array, without a copy where none is needed."""
    array: NDArray[Any] = np.asarray(ids)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"ids must be whole numbers, not {array.dtype}")
    return np.ascontiguousarray(array, np.int64).reshape(-1)


def has_duplicates(ids: Ids) -> bool:
    """Whether any id occurs twice."""
    if len(ids) < 2:
        return False
    ordered = np.sort(ids)
    return bool((ordered[1:] == ordered[:-1]).any())


def first_seen(ids: Ids) -> Ids:
    """The distinct ids, in the order of their first occurrence."""
    if not has_duplicates(ids):
        return ids
    _, first = np.unique(ids, return_index=True)
    first.sort()
    return ids[first]


def frequency(order: Ids, samples: int) -> NDArray[np.int64]:
    """How often the order names each id."""
    return np.bincount(order, minlength=samples)


def counted(order: Ids) -> tuple[Ids, Times]:
    """The distinct ids, in the order of their first occurrence, and how often each occurs."""
    distinct, first, times = np.unique(order, return_index=True, return_counts=True)
    by_first = np.argsort(first)
    return distinct[by_first], times[by_first].astype(np.int32)


def by_value(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the values stand, in ascending order, equal ones as they stand: a stable argsort, several times as fast.

    Value and place in one number make all numbers different: then they can be sorted themselves, and by whichever
    method is fastest. Values from 0 on, their largest times their number below 2^63.
    """
    bits = max(1, len(values) - 1).bit_length()
    numbers = values << bits
    numbers |= np.arange(len(values))
    numbers.sort()
    numbers &= (1 << bits) - 1
    return numbers


def several_times(order: Ids, samples: int) -> tuple[NDArray[np.int64], Mask]:
    """The places of ids that an order names more than once, by id and then as they stand; and which are the first of
    their id."""
    places = np.flatnonzero((frequency(order, samples) > 1)[order])
    places = places[by_value(order[places])]
    first = np.ones(len(places), np.bool_)
    ids = order[places]
    np.not_equal(ids[1:], ids[:-1], out=first[1:])
    return places, first


def came_before(order: Ids, samples: int) -> Times | None:
    """For each place of an order, how often its id stands before it; None where none does."""
    places, first = several_times(order, samples)
    if len(places) == 0:
        return None
    begins = np.flatnonzero(first)
    before = np.zeros(len(order), np.int32)
    before[places] = np.arange(len(places)) - np.repeat(begins, np.diff(np.append(begins, len(places))))
    return before


def uses(order: Ids, samples: int, kind: type[np.integer[Any]] = np.int64) -> tuple[NDArray[Any], NDArray[Any]]:
    """For each id its first position in the order, and for each position the next one of the same id.

    Where there is none, the largest number of `kind`. A smaller kind makes this faster: it is bound by memory.
    """
    never = np.iinfo(kind).max
    first = _positions(order[:samples], samples, kind)
    first_epoch_is_whole = not (first == never).any()
    after = _next_by_epochs(order, samples, kind) if first_epoch_is_whole else None
    if after is None:
        after = _next_by_sorting(order, samples, kind)
    if len(order) > samples and not first_epoch_is_whole:
        first = _positions(order, samples, kind)
    return first, after


def _positions(order: Ids, samples: int, kind: type[np.integer[Any]]) -> NDArray[Any]:
    """Where each id first stands."""
    first = np.full(samples, np.iinfo(kind).max, kind)
    # Of several assignments to one element NumPy keeps the last: going backwards, that is the earliest.
    first[order[::-1]] = np.arange(len(order) - 1, -1, -1, dtype=kind)
    return first


def _next_by_sorting(order: Ids, samples: int, kind: type[np.integer[Any]]) -> NDArray[Any]:
    after = np.full(len(order), np.iinfo(kind).max, kind)
    places, first = several_times(order, samples)  # mostly few: those alone need be sorted
    again = np.flatnonzero(~first)
    after[places[again - 1]] = places[again]
    return after


def _next_by_epochs(order: Ids, samples: int, kind: type[np.integer[Any]]) -> NDArray[Any] | None:
    """The same without a sort, where the order is whole permutations one after the other; None where it is not."""
    if samples == 0 or len(order) % samples:
        return None
    never = np.iinfo(kind).max
    after = np.full(len(order), never, kind)
    for start in range(samples, len(order), samples):
        first = _positions(order[start : start + samples], samples, kind)
        if (first == never).any():
            return None
        np.add(first[order[start - samples : start]], start, out=after[start - samples : start], casting="unsafe")
    return after
