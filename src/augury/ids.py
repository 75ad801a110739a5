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

NONE: Ids = np.empty(0, np.int64)
NONE.flags.writeable = False

NEVER = np.iinfo(np.int64).max
"""The next use of an id that the order does not name again."""


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


def first_use(order: Ids, samples: int) -> NDArray[np.int64]:
    """For each id, the position of its first occurrence in the order, or NEVER."""
    head = order[:samples]
    first = _positions(head, samples)
    if len(order) > samples and (first == NEVER).any():  # not all ids come within the first epoch's length
        first = _positions(order, samples)
    return first


def next_use(order: Ids, samples: int) -> NDArray[np.int64]:
    """For each position of the order, the next position of the same id, or NEVER."""
    by_epochs = _next_use_by_epochs(order, samples)
    if by_epochs is not None:
        return by_epochs
    after = np.full(len(order), NEVER, np.int64)
    by_id = np.argsort(order, kind="stable")
    grouped = order[by_id]
    same = np.flatnonzero(grouped[1:] == grouped[:-1])
    after[by_id[same]] = by_id[same + 1]
    return after


def _positions(order: Ids, samples: int) -> NDArray[np.int64]:
    """Where each id first stands, or NEVER."""
    first = np.full(samples, NEVER, np.int64)
    # Of several assignments to one element NumPy keeps the last: going backwards, that is the earliest.
    first[order[::-1]] = np.arange(len(order) - 1, -1, -1)
    return first


def _next_use_by_epochs(order: Ids, samples: int) -> NDArray[np.int64] | None:
    """The same without a sort, where the order is whole permutations one after the other; None where it is not."""
    if samples == 0 or len(order) <= samples or len(order) % samples:
        return None
    after = np.full(len(order), NEVER, np.int64)
    if (_positions(order[:samples], samples) == NEVER).any():
        return None
    for start in range(samples, len(order), samples):
        first = _positions(order[start : start + samples], samples)
        if (first == NEVER).any():
            return None
        after[start - samples : start] = first[order[start - samples : start]]
        after[start - samples : start] += start
    return after
