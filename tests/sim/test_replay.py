"""Replay: shares that add up, known formulas, given orders, samplers that look at the cache or at scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.errors import ConfigError
from augury.ids import NONE, Ids, Mask, Times
from augury.knowledge import Knowledge
from augury.policies import Foresight
from augury.policies.classic import LRU, MIN
from augury.recipes import RECIPES, Recipe, policy_rng
from augury.samplers import View
from augury.samplers.shuffle import Shuffle
from augury.sim.replay import replay
from augury.step import step


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(name for name, recipe in RECIPES.items() if not recipe.learns)),
    st.integers(5, 60),
    st.integers(1, 4),
    st.floats(0.2, 1),
    st.integers(1, 70),
    st.integers(0, 5),
)
def test_shares_add_up_and_every_sample_is_covered(recipe, samples, epochs, cache, batch, seed):
    result = replay(recipe, samples, epochs, cache, batch, seed)
    assert result.hit_ratio + result.substitutes + result.joined + result.misses == pytest.approx(1)
    assert result.reads == result.misses
    assert len(result.per_epoch) == len(result.reads_per_epoch) == epochs
    assert np.mean(result.per_epoch) == pytest.approx(result.hit_ratio)
    assert np.mean(result.reads_per_epoch) == pytest.approx(result.reads)
    assert result.coverage == 1
    assert result.per_epoch[0] == 0
    again = replay(recipe, samples, epochs, cache, batch, seed)
    assert {**again.as_dict(), "us_per_access": 0} == {**result.as_dict(), "us_per_access": 0}


def test_the_replay_is_the_live_objects_stepped():
    samples, cache, batch, seed = 500, 0.3, 16, 9
    policy = LRU(np.ones(samples, np.int64), 150, policy_rng(seed, 0))
    sampler, hits = Shuffle(samples, seed), []
    for epoch in range(3):
        order = sampler.draw(epoch, Knowledge.none(0))
        done = [step([policy], order[at : at + batch]) for at in range(0, samples, batch)]
        hits.append(sum(one.counts().hits for one in done) / samples)
    assert replay("lru", samples, 3, cache, batch, seed).per_epoch == hits


def test_formulas():
    results = {name: replay(name, 5000, 4, 0.2, 32, 1) for name, recipe in RECIPES.items() if not recipe.learns}
    assert results["minio"].per_epoch[1:] == [0.2, 0.2, 0.2]
    assert np.mean(results["lru"].per_epoch[1:]) == pytest.approx(0.2 + 0.8 * np.log(0.8), abs=0.01)
    assert results["min"].hit_ratio == max(result.hit_ratio for result in results.values())
    assert results["none"].hit_ratio == 0


def test_the_cache_is_a_fraction_of_bytes():
    sizes = np.random.default_rng(0).integers(1, 1000, 2000)
    result = replay("minio", 2000, 3, 0.25, 32, sizes=sizes)
    assert result.per_epoch[2] == pytest.approx(0.25, abs=0.03)


def test_given_orders_and_repeats_within_them():
    orders = [np.array([0, 0, 1, 2]), [np.array([2, 1]), np.array([0])]]
    result = replay("lru", 4, 99, 0.5, 4, orders=orders)
    assert result.per_epoch == [0, pytest.approx(2 / 3)]  # 1 and 2 are held; 0 was joined, then pushed out
    assert result.joined == pytest.approx(1 / 7)
    assert result.coverage == pytest.approx(3 / 4)


def test_min_knows_all_given_orders():
    order = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
    planned = replay("min", 3, 1, 2 / 3, 1, orders=[order[:4], order[4:]])
    assert planned.hit_ratio == pytest.approx(replay("min", 3, 1, 2 / 3, 1, orders=[order]).hit_ratio)


class Watched(MIN):
    """Remembers its plans, and who was held when they were made."""

    def __init__(self, sizes, capacity, rng):
        super().__init__(sizes, capacity, rng)
        self.plans: list[tuple[Ids, Ids, Mask]] = []
        MADE.append(self)

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> Ids:
        self.plans.append((order, later, self.resident.copy()))
        return super().plan(order, job, times, later)


MADE: list[Watched] = []


class HeldFirst(Shuffle):
    """Arranges an epoch with the cache in view."""

    def arrange(self, epoch: int, drawn: Ids, known: Knowledge, cache: View) -> Ids:
        return drawn[np.argsort(~cache.resident[drawn], kind="stable")]


class ByScore(Shuffle):
    """Draws by score, so nothing can be drawn early."""

    foreseeable = False

    def draw(self, epoch: int, known: Knowledge) -> Ids:
        assert known.scores.dtype == np.float32
        return super().draw(epoch, known)


def plans(sampler, epochs=3) -> list[tuple[int, int]]:
    """How many come in the order that is told, and how many later."""
    MADE.clear()
    replay(Recipe("watched", Watched, "", sampler, foresight=Foresight.EPOCHS), 20, epochs, 0.3, 4)
    return [(len(order), len(later)) for order, later, _ in MADE[0].plans]


def test_what_a_policy_is_told_of_the_future():
    assert plans(Shuffle) == [(20, 20), (20, 20), (20, 0)]  # an epoch and the next: nothing is used first after that
    assert plans(ByScore) == [(20, 0)] * 3  # as arranged: it wants nothing that it would have to be told before
    assert plans(HeldFirst) == [(20, 20), (20, 20), (20, 0)]
    for order, _, held in MADE[0].plans:
        assert held[order[: np.count_nonzero(held)]].all(), "an epoch is told as it is arranged"
    assert held.any()


def test_an_arranged_order_is_the_one_that_is_followed():
    held = replay(Recipe("held", RECIPES["lru"].policy, "", HeldFirst), 100, 3, 0.2, 10)
    assert held.per_epoch[1:] == [0.2, 0.2]
    assert held.coverage == 1


def test_time_is_an_argument():
    now = iter(range(10**9))
    result = replay("lru", 10, 1, 0.5, 5, clock=lambda: float(next(now)))
    assert result.us_per_access == pytest.approx(2e6 / 10)  # two batches, a second each


def test_progress_is_told_after_each_epoch():
    seen = []
    replay("lru", 10, 3, 0.5, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": "lruu"}, "did you mean 'lru'"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"epochs": 0}, "epochs must be"),
        ({"batch": 0}, "batch must be"),
        ({"cache": 0}, "fraction"),
        ({"cache": 1.1}, "fraction"),
        ({"cache": float("nan")}, "fraction"),
        ({"cache": 0.001}, "not even one"),
        ({"seed": -1}, "seed"),
        ({"sizes": np.ones(3, np.int64)}, "sizes"),
    ],
)
def test_what_cannot_work_is_said(change, message):
    good = {"recipe": "lru", "samples": 50, "epochs": 2, "cache": 0.5, "batch": 8}
    with pytest.raises(ConfigError, match=message):
        replay(**{**good, **change})
