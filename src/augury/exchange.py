"""From rank to rank, over `torch.distributed`: scores, once per epoch, and a seed. Called in every training thread.

In the training thread, because collectives of one group must be called in the same order everywhere, and training calls
its own there. Arrays only, no pickles. Where no process group exists each rank keeps to its own scores.
"""

from __future__ import annotations

import secrets
import sys
from typing import Any

import numpy as np

from augury.distributed import Place
from augury.errors import ConfigError
from augury.feedback import Exchange
from augury.ids import Ids, Scores


def open_exchange(world_size: int, before: Exchange | None = None) -> Exchange | None:
    """How these ranks tell each other their scores; None where they cannot. All ranks must call it.

    `before` is what it gave the last time: it is kept as long as the process group is the same.
    """
    distributed = _group_of(world_size)
    if world_size == 1 or distributed is None:
        return None
    world = distributed.group.WORLD
    if isinstance(before, _Collective) and before.world is world:
        return before
    return _Collective(distributed, _host_group(distributed), world)


def agree_on_seed(place: Place) -> int:
    """A seed that rank 0 draws and tells the others. All ranks must call it."""
    seed = secrets.randbits(63)
    if place.world_size == 1:
        return seed
    distributed = _group_of(place.world_size)
    if distributed is None:
        raise ConfigError(
            f"seed=None: {place.world_size} ranks can agree on a seed only in a process group of as many: call "
            "torch.distributed.init_process_group before iterating, or give every rank the same seed="
        )
    import torch

    told = torch.tensor([seed], dtype=torch.int64)
    distributed.broadcast(told, src=0, group=_host_group(distributed))
    return int(told.item())


def _group_of(world_size: int) -> Any:
    """`torch.distributed`, if it has a process group of so many ranks."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed if distributed.get_world_size() == world_size else None


def _host_group(distributed: Any) -> Any:
    """What is told lies in host memory: a group of our own, unless the default one handles that already."""
    return None if distributed.get_backend() == "gloo" else distributed.new_group(backend="gloo")


class _Collective:
    """Everybody's scores, by rank."""

    def __init__(self, distributed: Any, group: Any, world: Any) -> None:
        self._distributed, self._group, self.world = distributed, group, world

    def __call__(self, ids: Ids, scores: Scores) -> list[tuple[Ids, Scores]]:
        counts = [int(count[0]) for count in self._gather(np.array([len(ids)], np.int64))]
        # Tensors of one collective have one shape: all are filled up to the longest.
        most = max(counts)
        all_ids = self._gather(np.pad(ids, (0, most - len(ids))))
        all_scores = self._gather(np.pad(scores, (0, most - len(scores))))
        return [(ids[:count], scores[:count]) for ids, scores, count in zip(all_ids, all_scores, counts, strict=True)]

    def _gather(self, mine: Any) -> list[Any]:
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(mine))
        parts = [torch.empty_like(tensor) for _ in range(self._distributed.get_world_size(self._group))]
        self._distributed.all_gather(parts, tensor, group=self._group)
        return [part.numpy() for part in parts]
