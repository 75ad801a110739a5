"""What users may hand to the loader: each check names the argument and says what to write. No part is made here."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from augury.errors import ConfigError
from augury.ids import Ids, as_ids
from augury.recipes import RECIPES, Recipe


def check_positive(**numbers: int) -> None:
    """Numbers that count something."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
            raise ConfigError(f"{name}={number!r}: give a whole number from 1 on")


def check_seed(seed: int) -> None:
    """What Philox takes as a key."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ConfigError(f"seed={seed!r}: give a number from 0 to 2^63 - 1")


def check_callable(**functions: Any) -> None:
    """Functions, or nothing."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            hint = ", or augury.transforms.Compose([...])" if isinstance(function, list | tuple) else ""
            raise ConfigError(f"{name}={function!r}: give a function{hint}")


def checked_subset(subset: ArrayLike, samples: int) -> Ids:
    """Ids that the dataset has."""
    ids = as_ids(subset)
    if len(ids) == 0:
        raise ConfigError("subset= names no sample")
    if ids.min() < 0 or ids.max() >= samples:
        raise ConfigError(f"subset= names ids from {ids.min()} to {ids.max()}; the dataset has ids 0 to {samples - 1}")
    return ids


def refuse_with_cache(**given: Any) -> None:
    """What a shared cache has settled already."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name}= belongs to the loader that made the cache; leave it out beside cache=")


def refuse_with_node(**given: Any) -> None:
    """What only a cache of the process's own has."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name}= is for a cache of the loader's own; leave it out beside node=")


def check_joins(recipe: Recipe, cache_recipe: Recipe | None, admit: bool) -> None:
    """A job that draws, tells and plans on another loader's cache."""
    if not admit:
        raise ConfigError("recipe= beside cache= is for a job that trains; with admit=False leave it out")
    if cache_recipe is None or not (recipe.shared and recipe.policy is cache_recipe.policy):
        shared = ", ".join(name for name, each in RECIPES.items() if each.shared)
        raise ConfigError(
            f"recipe={recipe.name!r} beside cache=: several jobs share a cache only where both have one recipe of "
            f"{shared}; leave recipe= out to visit every sample once"
        )


def check_order(recipe: Recipe, shuffle: bool) -> None:
    """Who wants catalog order wants every sample in its place."""
    if recipe.substitutes and not shuffle:
        raise ConfigError(
            f"shuffle=False: recipe {recipe.name!r} hands out other samples than it is asked for: leave "
            "it out; to validate on its cache, give another loader cache=, admit=False and no recipe="
        )


def check_packs(recipe: Recipe, packages: object) -> None:
    """Packages are of use to policies that want samples by the package."""
    if packages is not None and not recipe.packs:
        raise ConfigError(f"packages= is of no use to recipe {recipe.name!r}: leave it out, or take recipe 'icache'")


def check_state(state: dict[str, Any], samples: int, recipe: Recipe) -> tuple[int, int]:
    """The epoch and the offset of a saved state, if it is of such a run: of this recipe, or one of the same orders."""
    if state.get("version") != 1:
        raise ConfigError(f"this state has version {state.get('version')!r}; this release reads version 1")
    saved = RECIPES.get(state["recipe"], recipe)
    alike = not recipe.learns and saved.sampler is recipe.sampler
    for name, mine in (("samples", samples), ("recipe", state["recipe"] if alike else recipe.name)):
        if state[name] != mine:
            raise ConfigError(f"this state was saved with {name}={state[name]!r}, and this loader has {mine!r}")
    epoch, offset = int(state["epoch"]), int(state["offset"])
    if epoch < 0 or not 0 <= offset <= samples:
        raise ConfigError(f"this state is at sample {offset} of epoch {epoch}, which does not exist")
    return epoch, offset
