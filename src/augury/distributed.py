"""Who am I among the ranks? Asked when iteration starts, because the process group may not exist before.

Looks at `torch.distributed` if torch is loaded, else at the variables that launchers set. Moves no data.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from augury.errors import ConfigError


class Place(NamedTuple):
    """One rank among `world_size`."""

    rank: int
    world_size: int


def place(rank: int | None = None, world_size: int | None = None) -> Place:
    """This process's rank: as given, else of the process group, else of the launcher, else the only one."""
    if (rank is None) != (world_size is None):
        raise ConfigError("give rank and world_size together, or neither")
    if rank is None or world_size is None:
        found = _group() or _launcher("RANK", "WORLD_SIZE") or Place(0, 1)
    else:
        found = Place(rank, world_size)
    if found.world_size < 1 or not 0 <= found.rank < found.world_size:
        raise ConfigError(f"rank {found.rank} of {found.world_size}: ranks go from 0 to world_size - 1")
    return found


def local_place() -> Place:
    """This process among those of its machine, as the launcher numbers them."""
    return _launcher("LOCAL_RANK", "LOCAL_WORLD_SIZE") or Place(0, 1)


def _group() -> Place | None:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Place(distributed.get_rank(), distributed.get_world_size())


def _launcher(rank: str, size: str) -> Place | None:
    values = os.environ.get(rank), os.environ.get(size)
    if values[0] is None or values[1] is None:
        return None
    try:
        return Place(int(values[0]), int(values[1]))
    except ValueError:
        raise ConfigError(f"{rank}={values[0]!r} and {size}={values[1]!r} in the environment are not numbers") from None
