"""What every tier asks of a batch before it writes any of it. No storage here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augury.ids import Ids, has_duplicates
from augury.sources import Buffer


def check_batch(ids: Ids, data: Sequence[Buffer] | NDArray[np.uint8]) -> None:
    """Raise ValueError unless there is one item per id, and each id is written once."""
    if len(ids) != len(data):
        raise ValueError(f"{len(ids)} ids with {len(data)} items")
    if has_duplicates(ids):
        raise ValueError("an id occurs twice in one write")


def byte_lengths(data: Sequence[Buffer]) -> NDArray[np.int64]:
    """The bytes of each item; `len` alone would count the first axis of a memoryview."""
    lengths = (len(each) if type(each) is bytes else memoryview(each).nbytes for each in data)
    return np.fromiter(lengths, np.int64, len(data))


def check_sizes(ids: Ids, lengths: NDArray[np.int64], sizes: NDArray[Any]) -> None:
    """Raise ValueError where an item is larger than the catalog says: no room was reserved for the rest."""
    larger = np.flatnonzero(lengths > sizes[ids])
    if len(larger):
        id, length = int(ids[larger[0]]), int(lengths[larger[0]])
        raise ValueError(f"sample {id} has {length} bytes, but its catalog entry says {int(sizes[id])}")
