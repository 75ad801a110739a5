"""The table of recipes: names, what is suggested for a misspelt one, and the chance of each level."""

from __future__ import annotations

import numpy as np
import pytest

from augury.errors import ConfigError, UnknownName
from augury.knowledge import Knowledge
from augury.recipes import DEFAULT, RECIPES, Recipe, find, policy_rng
from augury.samplers.shuffle import InOrder


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_built_and_says_what_it_does(name):
    recipe = find(name)
    assert recipe.name == name
    assert recipe.summary
    policy = recipe.policy(np.ones(10, np.int64), 4, policy_rng(0, 0))
    sampler = recipe.sampler(10, 0)
    policy.plan(sampler.draw(0, Knowledge.none(10)))
    assert policy.capacity == 4


def test_the_default_changes_nothing_about_training():
    sampler = find(DEFAULT).sampler(10, 0)
    assert sorted(sampler.draw(0, Knowledge.none(10))) == list(range(10))
    policy = find(DEFAULT).policy(np.ones(10, np.int64), 4, policy_rng(0, 0))
    ids = np.arange(10)
    assert np.array_equal(policy.serve(ids), ids)


def test_a_recipe_of_the_users_own_passes_as_it_is():
    mine = Recipe("mine", RECIPES["lru"].policy, "in order", sampler=InOrder)
    assert find(mine) is mine


def test_a_misspelt_name_gets_a_suggestion():
    with pytest.raises(UnknownName, match="did you mean 'minio'"):
        find("mimio")
    with pytest.raises(ConfigError, match=r"Known: .*lru"):
        find("zzzzz")


def test_levels_have_their_own_chance():
    draws = {tuple(policy_rng(seed, level).integers(0, 1000, 4)) for seed in range(3) for level in range(3)}
    assert len(draws) == 9
    assert np.array_equal(policy_rng(3, 1).random(5), policy_rng(3, 1).random(5))
