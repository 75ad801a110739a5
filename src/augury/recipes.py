"""Each paper, and each ablation, as one line of a table: which sampler, which policy.

A recipe is a name for a combination; it holds no state. To add one, add a line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from augury.errors import UnknownName
from augury.policies import MakePolicy
from augury.policies.classic import FIFO, LFU, LRU, MIN, MinIO, Nothing, Random
from augury.samplers import MakeSampler
from augury.samplers.shuffle import Shuffle


@dataclass(frozen=True)
class Recipe:
    """A named combination of parts."""

    name: str
    policy: MakePolicy
    summary: str
    sampler: MakeSampler = Shuffle
    foresight: bool = False
    """Whether the policy uses `plan`: then it is given the future, as far as it is known."""


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("none", Nothing, "holds nothing: the cost of training without a cache"),
        Recipe("lru", LRU, "the least recently used leaves"),
        Recipe("lfu", LFU, "the least often used leaves"),
        Recipe("fifo", FIFO, "the longest held leaves"),
        Recipe("random", Random, "any one leaves"),
        Recipe("minio", MinIO, "fill, then never evict (CoorDL)"),
        Recipe("min", MIN, "the one needed furthest in the future leaves (Belady)", foresight=True),
    )
}

DEFAULT = "minio"


def find(name: str | Recipe) -> Recipe:
    """The recipe of that name; a recipe made by the user passes as it is."""
    if isinstance(name, Recipe):
        return name
    try:
        return RECIPES[name]
    except KeyError:
        raise UnknownName("recipe", name, RECIPES) from None


def policy_rng(seed: int, level: int) -> np.random.Generator:
    """The chance of one level's policy: the same in a live run, in the simulator and when a log is verified."""
    return np.random.default_rng([seed, level])
