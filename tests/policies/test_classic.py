"""The textbook policies against well-known libraries, slow obvious models, formulas and brute force."""

from __future__ import annotations

from functools import lru_cache

import cachetools
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.errors import ConfigError
from augury.ids import as_ids
from augury.policies import front
from augury.policies.classic import FIFO, LFU, LRU, MIN, MinIO, Nothing, Random
from augury.step import step

ALL = [LRU, LFU, FIFO, Random, MinIO, MIN, Nothing]


@pytest.fixture(autouse=True, params=[2, 2048], ids=["tiny front", "usual front"], scope="module")
def _front(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front, "_LEAST", request.param)
        yield


def one_by_one(policy, requests):
    """Hit or miss, and the contents afterwards, of each request."""
    for id in requests:
        hit = step([policy], as_ids([id])).level[0] == 0
        yield bool(hit), set(np.flatnonzero(policy.resident).tolist())


worlds = st.tuples(
    st.lists(st.integers(1, 6), min_size=12, max_size=12) | st.just([1] * 12),
    st.integers(1, 20),
    st.lists(st.integers(0, 11), max_size=120),
)
library = settings(deadline=None, max_examples=100)


@pytest.mark.parametrize(("policy", "reference"), [(LRU, cachetools.LRUCache), (FIFO, cachetools.FIFOCache)])
def test_equals_cachetools_request_by_request(policy, reference):
    @library
    @given(worlds)
    def run(world):
        sizes, capacity, requests = world
        ours = one_by_one(policy(np.array(sizes), capacity, None), requests)
        theirs = reference(capacity, getsizeof=sizes.__getitem__)
        for id, (hit, held) in zip(requests, ours, strict=True):
            assert hit == (id in theirs)
            if hit:
                theirs[id]
            elif sizes[id] <= capacity:
                theirs[id] = id
            assert held == set(theirs)

    run()


@pytest.mark.parametrize(("policy", "reference"), [(LRU, cachetools.LRUCache), (FIFO, cachetools.FIFOCache)])
def test_equals_cachetools_over_a_long_run(policy, reference):
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 50, 3000)
    capacity = int(sizes.sum()) // 3
    requests = np.minimum(rng.zipf(1.2, 8_000) - 1, 2999)
    theirs = reference(capacity, getsizeof=sizes.__getitem__)
    ours = policy(sizes, capacity, None)
    for id in requests.tolist():
        hit = step([ours], as_ids([id])).level[0] == 0
        assert hit == (id in theirs)
        if hit:
            theirs[id]
        else:
            theirs[id] = id
    assert set(np.flatnonzero(ours.resident).tolist()) == set(theirs)


@settings(deadline=None, max_examples=100)
@given(worlds)
def test_lfu_equals_an_obvious_model(world):
    sizes, capacity, requests = world
    held: dict[int, tuple[int, int]] = {}  # id -> (uses, time of the last one)
    ours = one_by_one(LFU(np.array(sizes), capacity, None), requests)
    for now, (id, (hit, contents)) in enumerate(zip(requests, ours, strict=True)):
        assert hit == (id in held)
        if hit:
            held[id] = (held[id][0] + 1, now)
        elif sizes[id] <= capacity:
            while sum(sizes[i] for i in held) + sizes[id] > capacity:
                del held[min(held, key=held.__getitem__)]
            held[id] = (1, now)
        assert contents == set(held)


def test_lfu_counts_repeats_within_a_batch():
    policy = LFU(np.ones(4, np.int64), 2, None)
    step([policy], as_ids([0, 1]))
    step([policy], as_ids([0, 0, 1, 1, 1]))
    step([policy], as_ids([0, 0, 1]))  # 0 was used five times, 1 as well, and 1 last
    step([policy], as_ids([2]))
    assert set(np.flatnonzero(policy.resident)) == {1, 2}


@pytest.mark.parametrize("capacity", [2, 5, 20])
def test_random_victims_are_uniform(capacity):
    """By how long each was held: at every age the chance is the same. (Chi-square, wide.)"""
    samples, turns = 3 * capacity, 6_000
    policy = Random(np.ones(samples, np.int64), capacity, np.random.default_rng(5))
    rng, held = np.random.default_rng(6), []
    chosen = np.zeros(capacity)
    for _ in range(turns):
        absent = np.flatnonzero(~policy.resident)
        _, evicted = policy.admit(rng.choice(absent, 1))
        newest = absent[policy.resident[absent]][0]
        if len(evicted):
            chosen[held.index(evicted[0])] += 1  # 0 is the one held longest
            held.remove(evicted[0])
        held.append(newest)
    expected = chosen.sum() / capacity
    chi_square = float(((chosen - expected) ** 2 / expected).sum())
    assert chi_square < capacity - 1 + 6 * np.sqrt(2 * capacity)


def epochs(samples, count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.permutation(samples) for _ in range(count)]


def hits(policy, order, batch=1) -> int:
    return sum(
        int(np.count_nonzero(step([policy], order[at : at + batch]).level == 0)) for at in range(0, len(order), batch)
    )


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75])
def test_lru_under_shuffled_epochs_follows_its_formula(share):
    samples = 4000
    policy = LRU(np.ones(samples, np.int64), int(share * samples), None)
    first, *rest = epochs(samples, 4)
    hits(policy, first, 16)
    measured = np.mean([hits(policy, order, 16) / samples for order in rest])
    assert measured == pytest.approx(share + (1 - share) * np.log(1 - share), abs=0.02)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_minio_gives_the_cached_fraction(share):
    policy = MinIO(np.ones(1000, np.int64), int(share * 1000), None)
    first, *rest = epochs(1000, 4)
    assert hits(policy, first, 32) == 0
    assert [hits(policy, order, 32) for order in rest] == [int(share * 1000)] * 3


def test_minio_passes_over_what_does_not_fit():
    policy = MinIO(np.array([5, 9, 2, 9, 3]), 10, None)
    kept, evicted = policy.admit(np.arange(5))
    assert kept.tolist() == [True, False, True, False, True]
    assert len(evicted) == 0


def best_possible(order: tuple[int, ...], capacity: int) -> int:
    """The most hits that any decisions could give: tries them all, staying out included."""

    @lru_cache(None)
    def most(at: int, held: frozenset[int]) -> int:
        if at == len(order):
            return 0
        if order[at] in held:
            return 1 + most(at + 1, held)
        choices = [held]
        if len(held) < capacity:
            choices.append(held | {order[at]})
        choices += [(held - {victim}) | {order[at]} for victim in held]
        return max(most(at + 1, choice) for choice in choices)

    return most(0, frozenset())


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=14), st.integers(1, 4))
def test_min_equals_brute_force(order, capacity):
    policy = MIN(np.ones(6, np.int64), capacity, None)
    policy.plan(as_ids(order))
    assert hits(policy, as_ids(order)) == best_possible(tuple(order), capacity)


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("seed", range(3))
def test_min_planned_over_all_epochs_is_never_beaten(batch, seed):
    samples, capacity = 300, 60
    order = np.concatenate(epochs(samples, 4, seed))
    scores = {}
    for make in ALL:
        policy = make(np.ones(samples, np.int64), capacity, np.random.default_rng(seed))
        policy.plan(order)
        scores[make.__name__] = hits(policy, order, batch)
    assert scores["MIN"] == max(scores.values())


def test_nothing_beats_minio_under_whole_shuffled_epochs():
    """Whatever is hit in an epoch was held across its start, so even MIN gives the cached fraction only."""
    samples, capacity = 300, 60
    orders = epochs(samples, 4)
    policy = MIN(np.ones(samples, np.int64), capacity, None)
    policy.plan(np.concatenate(orders))
    assert [hits(policy, order, 16) for order in orders] == [0, capacity, capacity, capacity]


def test_min_knows_repeats_within_a_batch():
    order = as_ids([0, 1, 0, 2, 0, 1])
    policy = MIN(np.ones(3, np.int64), 1, None)
    policy.plan(order)
    step([policy], order[:3])
    assert np.flatnonzero(policy.resident).tolist() == [0]


def test_min_plans_for_one_job_and_takes_no_notice_of_others():
    order = as_ids([0, 1, 2, 0, 1, 2])
    policy, twin = (MIN(np.ones(3, np.int64), 2, None) for _ in range(2))
    policy.plan(order, job=1)
    twin.plan(order, job=1)
    with pytest.raises(ConfigError, match="job 2"):
        policy.plan(order, job=2)
    policy.serve(as_ids([2, 2, 1]), job=2)
    for at in range(6):
        policy.serve(order[at : at + 1], 1)
        twin.serve(order[at : at + 1], 1)
        assert np.array_equal(policy.key, twin.key)
    policy.leave(1)
    policy.plan(order, job=2)


def test_min_without_a_plan_still_holds_its_limit():
    policy = MIN(np.ones(10, np.int64), 3, None)
    hits(policy, np.random.default_rng(0).integers(0, 10, 100))
    assert policy.used == 3


def test_nothing_holds_nothing():
    policy = Nothing(np.ones(10, np.int64), 5, None)
    assert hits(policy, np.concatenate(epochs(10, 3))) == 0


@pytest.mark.parametrize("make", [LRU, LFU, FIFO, Random, MIN])
def test_residents_of_no_size_do_not_stand_in_the_way(make):
    policy = make(np.array([0, 6, 6]), 10, np.random.default_rng(0))
    policy.admit(as_ids([0]))
    kept, _ = policy.admit(as_ids([1, 2]))
    assert kept.sum() == 1
    assert policy.used == 6
