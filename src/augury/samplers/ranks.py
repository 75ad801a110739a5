"""Cutting one epoch's order for several ranks, with equal numbers of batches by construction.

A global batch is `world_size * batch_size` consecutive samples of the order; each rank takes one piece of it. So
a place in the epoch is one number, the global offset, and a run may be resumed there by any number of ranks.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.integer[Any])


def batches(samples: int, batch_size: int, world_size: int = 1, drop_last: bool = False) -> int:
    """How many batches every rank gets from `samples` samples."""
    whole, rest = divmod(samples, batch_size * world_size)
    return whole + (rest > 0 and not drop_last)


def portion(samples: int, world_size: int, part: float) -> int:
    """How many samples each rank visits in an epoch of a part of them: the same for all ranks."""
    return max(1, round(part * max(1, samples // world_size)))


def epoch_size(samples: int, world_size: int, part: float) -> int:
    """How many samples such an epoch visits, over all ranks."""
    return samples if part == 1 else world_size * portion(samples, world_size, part)


def share_size(samples: int, batch_size: int, rank: int = 0, world_size: int = 1, drop_last: bool = False) -> int:
    """How many samples one rank gets from `samples`: the length of its `share`."""
    whole, rest = divmod(samples, batch_size * world_size)
    if drop_last or rest == 0:
        return whole * batch_size
    return whole * batch_size + max(1, rest // world_size + (rank < rest % world_size))


def share(
    order: NDArray[Number], batch_size: int, rank: int = 0, world_size: int = 1, drop_last: bool = False
) -> NDArray[Number]:
    """What one rank visits. Only its last batch may be shorter.

    The last, partial global batch is dealt out evenly, so that it differs by at most one sample between ranks.
    Where it has fewer samples than there are ranks, they are repeated: an empty batch would hang the others.
    """
    step = batch_size * world_size
    whole = len(order) // step
    full = order[: whole * step].reshape(whole, world_size, batch_size)[:, rank].reshape(-1)
    rest = order[whole * step :]
    if drop_last or len(rest) == 0:
        return full
    return np.concatenate([full, np.array_split(np.resize(rest, max(len(rest), world_size)), world_size)[rank]])
