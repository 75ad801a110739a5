"""Foresight against Belady's MIN, MinIO and a slow obvious model: who is needed last leaves, and no one in vain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.errors import ConfigError
from augury.ids import NONE, as_ids, first_seen
from augury.policies import Policy, front
from augury.policies.classic import MIN, MinIO
from augury.policies.foresight import NextUse
from augury.step import plan, step
from augury.testing import PolicyContract


@pytest.fixture(autouse=True, scope="module")
def _tiny_front():
    """A dozen ids never fill a front of the usual size: shrink it, so that runs, merges, rescans happen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front, "_LEAST", 2)
        yield


class TestContract(PolicyContract):
    def make(self, sizes, capacity, rng) -> Policy:
        return NextUse(sizes, capacity, rng)


def ones(count):
    return np.ones(count, np.int64)


def holding(*ids, samples=None, capacity=None, sizes=None):
    """A policy that holds these and is full."""
    sizes = ones(samples or 10) if sizes is None else np.array(sizes, np.int64)
    policy = NextUse(sizes, int(sizes[list(ids)].sum()) if capacity is None else capacity)
    assert len(policy.adopt(as_ids(ids))) == 0
    return policy


def held(policy):
    return np.flatnonzero(policy.resident).tolist()


def hits(policy, order, batch=1):
    """Which requests find their sample, batch by batch."""
    levels = [step([policy], order[at : at + batch]).level == 0 for at in range(0, len(order), batch)]
    return np.concatenate([np.empty(0, np.bool_), *levels]).tolist()


def scores(*values):
    return np.array(values, np.float32)


class TestFiveSamplesByHand:
    """Room for two. This epoch visits 0 1 2 0 3 1, the next one 3 and 4.

    0 and 1 fill it. 2 does not come again: it stays out. 0 was there for the last time: 3, which the next epoch
    visits, takes its place. 1 is found, and whoever comes then finds that it is of no more use.
    """

    ORDER = as_ids([0, 1, 2, 0, 3, 1])

    def test_request_by_request(self):
        policy = NextUse(ones(5), 2)
        assert len(policy.plan(self.ORDER, later=as_ids([3, 4]))) == 0, "nothing is set aside"
        contents = []
        for id in self.ORDER:
            step([policy], as_ids([id]))
            contents.append(held(policy))
        assert contents == [[0], [0, 1], [0, 1], [0, 1], [1, 3], [1, 3]]
        policy.plan(as_ids([4, 3]))
        assert hits(policy, as_ids([4, 3])) == [False, True]

    def test_what_is_told_replaces_what_was(self):
        policy = holding(0, 1)
        policy.plan(as_ids([0, 2, 0]), later=as_ids([1]))
        policy.plan(as_ids([1, 2, 1]), later=as_ids([2]))
        policy.serve(as_ids([2]))
        assert policy.admit(as_ids([2]))[1].tolist() == [0]


@st.composite
def runs(draw, samples=8, length=60):
    count = draw(st.integers(1, samples))
    order = as_ids(draw(st.lists(st.integers(0, count - 1), max_size=length)))
    return order, count, draw(st.integers(0, count)), draw(st.integers(1, 5))


@given(runs())
def test_where_the_whole_future_is_planned_it_misses_as_often_as_min(run):
    order, samples, capacity, batch = run
    policies = [make(ones(samples), capacity) for make in (NextUse, MIN)]
    for policy in policies:
        policy.plan(order)
    ours, best = (hits(policy, order, batch) for policy in policies)
    assert sum(ours) == sum(best)


class Obvious:
    """What is to come as lists, and a key made anew whenever it is asked for."""

    def __init__(self, sizes):
        self.sizes, self.mean = sizes, sum(sizes) / len(sizes)
        self.ahead = {id: [] for id in range(len(sizes))}
        self.later, self.scores = set(), {}

    def plan(self, order, later):
        self.ahead = {id: [at for at, one in enumerate(order) if one == id] for id in range(len(self.sizes))}
        self.later = set(later)

    def serve(self, ids):
        for id in ids:
            del self.ahead[id][:1]

    def key(self, id):
        if self.ahead[id]:
            return 2, -self.ahead[id][0]
        if id in self.later:
            return 1, -self.sizes[id]
        return 0, self.scores[id] * (1 + self.mean / self.sizes[id])


def told(draw, model, policy, ids):
    some = draw(st.lists(st.sampled_from([1.1, 2.7, 7.3]), min_size=len(ids), max_size=len(ids)))
    model.scores.update(zip(ids, some, strict=True))
    policy.learn(as_ids(ids), scores(*some))


def epochs(draw, model, policy, samples):
    """Two epochs of requests, planned; the cache is told scores before them, and on the way."""
    some = st.lists(st.integers(0, samples - 1), max_size=30)
    told(draw, model, policy, list(range(samples)))
    for _ in range(2):
        order, later = draw(some), draw(some)
        model.plan(order, later)
        policy.plan(as_ids(order), later=as_ids(later))
        at = 0
        while at < len(order):
            batch = draw(st.integers(1, 4))
            yield order[at : at + batch]
            at += batch
            told(draw, model, policy, sorted(draw(st.sets(st.integers(0, samples - 1), max_size=2))))


@settings(max_examples=80)
@given(st.integers(1, 10), st.data())
def test_those_of_the_highest_keys_stay_and_of_equals_the_residents(samples, data):
    capacity = data.draw(st.integers(0, samples))
    policy, model = NextUse(ones(samples), capacity), Obvious([1] * samples)
    for ids in epochs(data.draw, model, policy, samples):
        before = set(held(policy))
        step([policy], as_ids(ids))
        model.serve(ids)
        after, there = set(held(policy)), before | set(ids)
        best = sorted(map(model.key, there))[max(0, len(there) - capacity) :]
        assert sorted(map(model.key, after)) == best
        came, left = (set(map(model.key, some)) for some in (after - before, before - after))
        assert not came & left, "of equals one was exchanged for another"


@settings(max_examples=80)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=10), st.data())
def test_of_several_sizes_one_comes_if_all_who_must_leave_for_it_are_needed_less(sizes, data):
    samples, capacity = len(sizes), data.draw(st.integers(1, sum(sizes)))
    policy, model = NextUse(np.array(sizes, np.int64), capacity), Obvious(sizes)
    for ids in epochs(data.draw, model, policy, samples):
        for id in ids:
            before = held(policy)
            step([policy], as_ids([id]))
            model.serve([id])
            if id in before or sizes[id] > capacity:
                assert held(policy) == before
                continue
            need, leaving = sum(sizes[one] for one in [*before, id]) - capacity, []
            for key, size in sorted((model.key(one), sizes[one]) for one in before):
                if need > 0:
                    need -= size
                    leaving.append(key)
            comes = all(key < model.key(id) for key in leaving)
            assert policy.resident[id] == comes
            assert sorted(model.key(one) for one in set(before) - set(held(policy))) == (leaving if comes else [])


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_under_shuffled_epochs_nobody_is_exchanged_and_hits_are_those_of_minio(share):
    rng, samples, batch = np.random.default_rng(0), 200, 8
    ours, minio = (make(ones(samples), int(share * samples)) for make in (NextUse, MinIO))
    orders = [rng.permutation(samples) for _ in range(4)]
    filled = None
    for order, after in zip(orders, [*orders[1:], NONE], strict=True):
        ours.plan(order, later=after)
        assert sum(hits(ours, order, batch)) == sum(hits(minio, order, batch))
        filled = filled or held(ours)
        assert held(ours) == filled


class TestTheNextEpoch:
    def test_a_smaller_one_is_preferred(self):
        policy = holding(0, 1, sizes=[4, 2, 2, 1, 1])
        policy.plan(NONE, later=as_ids([0, 1, 2, 3]))
        assert policy.admit(as_ids([2]))[1].tolist() == [0], "as many bytes, in two requests"
        assert policy.admit(as_ids([3]))[1].tolist() == []
        assert policy.admit(as_ids([0]))[0].tolist() == [False]

    def test_it_counts_less_than_this_one_and_more_than_what_comes_after(self):
        policy = holding(0, sizes=[1, 1, 9])
        policy.learn(as_ids([0]), scores(1e30))
        policy.plan(as_ids([1, 2, 1]), later=as_ids([2]))
        policy.resize(10)
        policy.serve(as_ids([1, 2]))
        assert policy.admit(as_ids([1]))[0].all()
        assert policy.admit(as_ids([2]))[1].tolist() == [0], "however high its score, and however large the other"
        policy.resize(9)
        assert held(policy) == [1]

    def test_being_named_twice_is_being_named(self):
        policy = holding(1)
        policy.plan(NONE, later=as_ids([1, 0, 0]))
        assert policy.admit(as_ids([0]))[0].tolist() == [False]


class TestBeyond:
    def test_the_lowest_score_leaves(self):
        policy = holding(0, 1, 2)
        policy.learn(as_ids([0, 1, 2, 3, 4]), scores(3, 1, 2, 2.5, 0.5))
        policy.serve(as_ids([3, 4]))
        assert policy.admit(as_ids([4]))[0].tolist() == [False]
        assert policy.admit(as_ids([3]))[1].tolist() == [1]

    def test_a_score_that_is_told_late_counts_at_once(self):
        policy = holding(0, 1)
        policy.learn(as_ids([0, 1, 2]), scores(3, 2, 1))
        policy.plan(as_ids([5]))
        assert policy.admit(as_ids([2]))[0].tolist() == [False]
        policy.learn(as_ids([2, 0]), scores(4, 1))
        assert policy.admit(as_ids([2]))[1].tolist() == [0]

    def test_a_byte_of_a_smaller_one_saves_more(self):
        policy = holding(0, sizes=[3, 1, 2])
        policy.learn(as_ids([0, 1, 2]), scores(1, 1, 1))
        assert policy.admit(as_ids([1, 2]))[1].tolist() == [0]

    def test_a_score_of_nothing_and_a_large_one_are_fine(self):
        policy = holding(0, 1)
        policy.learn(as_ids([0, 1, 2]), scores(1e9, 0, 1e12))
        assert policy.admit(as_ids([2]))[1].tolist() == [1]

    def test_one_that_is_waited_for_or_due_does_not_become_less_by_a_score(self):
        policy = holding(0, 1)
        policy.learn(np.arange(3), scores(5, 5, 9))
        policy.plan(as_ids([0]), later=as_ids([1]))
        policy.learn(as_ids([0, 1]), scores(0, 0))
        assert policy.admit(as_ids([2]))[0].tolist() == [False]

    def test_unknown_ones_count_as_slightly_better_than_the_mean(self):
        for score, kept in ((2.0, True), (2.2, False)):
            policy = holding(0)
            policy.learn(as_ids([0, 1, 2]), scores(score, 1.0, 6.0 - score - 1.0))
            policy.plan(NONE)
            assert policy.admit(as_ids([9]))[0].tolist() == [kept]

    def test_the_mean_is_of_what_was_told_of_late(self):
        policy = holding(0)
        for _ in range(100):
            policy.learn(as_ids([1, 2]), scores(10.0, 30.0))
        for _ in range(60):
            policy.learn(as_ids([3, 4]), scores(1.0, 3.0))
        policy.learn(as_ids([0]), scores(2.3))
        policy.plan(NONE)
        assert policy.admit(as_ids([9]))[0].tolist() == [False]
        policy.learn(as_ids([0]), scores(2.0))
        policy.plan(NONE)
        assert policy.admit(as_ids([9]))[0].tolist() == [True]

    def test_nothing_told_changes_nothing(self):
        policy = holding(0)
        policy.learn(NONE, scores())
        policy.plan(NONE)
        assert policy.admit(as_ids([9]))[0].tolist() == [False]


def test_without_a_plan_it_fills_and_nobody_is_exchanged():
    policy, order = NextUse(ones(20), 5), np.random.default_rng(1).integers(0, 20, 200)
    filled = None
    for id in order:
        step([policy], as_ids([id]))
        filled = filled or (held(policy) if policy.held == 5 else None)
    assert held(policy) == filled == sorted(first_seen(order)[:5].tolist())


def test_without_a_plan_a_byte_of_a_smaller_one_saves_more():
    policy = holding(0, sizes=[3, 1, 2])
    assert policy.admit(as_ids([1, 2]))[1].tolist() == [0]
    assert policy.admit(as_ids([0]))[0].tolist() == [False]


def test_a_new_plan_is_for_all_who_are_held():
    """Also for those whom nobody has looked at for long, because others were of less use."""
    policy = holding(*range(40), samples=50)
    policy.learn(np.arange(50), np.arange(50, dtype=np.float32))
    policy.plan(np.arange(10))
    policy.serve(as_ids([49, 48]))
    assert policy.admit(as_ids([49, 48]))[1].tolist() == [10, 11], "0 to 9 are waited for"
    policy.plan(np.arange(20, 28))
    assert policy.admit(as_ids([47, 46]))[1].tolist() == [0, 1]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 1, 2, 3, 2]], ids=["each once", "one twice"])
def test_whoever_was_visited_for_the_last_time_is_one_among_the_others(order):
    policy = holding(*range(20), samples=30)
    policy.learn(np.arange(30), np.arange(30, dtype=np.float32))
    policy.plan(as_ids(order))
    assert policy.admit(as_ids([29]))[1].tolist() == [4], "the lowest score of those who are not waited for"
    policy.serve(as_ids([0, 1]))
    assert [policy.admit(as_ids([id]))[1].tolist() for id in (28, 27, 26)] == [[0], [1], [5]]


def test_over_no_samples_at_all():
    policy = NextUse(ones(0), 0)
    policy.plan(NONE, later=NONE)
    assert len(policy.serve(NONE)) == len(policy.admit(NONE)[0]) == 0


@given(runs(6, 30), st.data())
def test_requests_of_whom_the_plan_does_not_know_disturb_nothing(run, data):
    """Whoever makes them, and however often: those who are planned are found as if nobody had asked."""
    order, samples, capacity, _ = run
    alone, disturbed = (NextUse(ones(samples + 4), capacity) for _ in range(2))
    for policy in (alone, disturbed):
        policy.plan(order)
    for id in order:
        for stranger in data.draw(st.lists(st.integers(samples, samples + 3), max_size=2)):
            step([disturbed], as_ids([stranger]), job=data.draw(st.integers(0, 1)))
        assert hits(alone, as_ids([id])) == hits(disturbed, as_ids([id]))


def test_requests_of_another_job_disturb_nothing():
    """As of MIN: 0 comes next and 1 last, whatever others ask for."""
    order = as_ids([0, 1, 2, 0, 2, 1])
    found = {}
    for make in (MIN, NextUse):
        policy = make(ones(3), 2)
        policy.plan(order)
        found[make] = hits(policy, order[:2])
        step([policy], as_ids([0]), job=1)
        found[make] += hits(policy, order[2:])
    assert found[MIN] == [False, False, False, True, True, False]
    assert found[NextUse] == found[MIN]


def test_repeats_within_a_batch_are_visits_each():
    policy = holding(0, 1, 2)
    policy.plan(as_ids([0, 0, 1, 0, 2, 3, 1, 2, 3, 0]))
    policy.serve(as_ids([0, 0, 1, 0]))  # next: 2, 1, 0
    policy.serve(as_ids([2, 3]))  # next: 1, 2, 3, 0
    assert policy.admit(as_ids([3]))[1].tolist() == [0]


def test_more_visits_than_planned_are_of_no_use_to_those_who_made_them():
    policy = holding(0, 1)
    policy.plan(as_ids([0, 1, 2, 1, 2]))
    policy.serve(as_ids([0, 0, 0, 1]))
    policy.serve(as_ids([2]))
    assert policy.admit(as_ids([2]))[1].tolist() == [0]


def test_the_order_of_visits_need_not_be_the_one_that_was_planned():
    """A visit is found by its id: read ahead out of order, each is still counted once."""
    policy = holding(0, 1, 2)
    policy.plan(as_ids([0, 1, 2, 3, 3, 0, 1, 2]))
    policy.serve(as_ids([3, 2]))
    assert policy.admit(as_ids([3]))[1].tolist() == [2]


def test_one_job_plans_and_when_it_left_another_may():
    policy = holding(0, 1)
    policy.plan(as_ids([2, 1, 2]), 3, later=as_ids([3]))
    with pytest.raises(ConfigError, match="job 3 has planned already: give job 4"):
        policy.plan(as_ids([1]), 4)
    policy.leave(4)
    policy.serve(as_ids([2]), 3)
    assert policy.admit(as_ids([2]))[1].tolist() == [0], "what was planned still holds"
    policy.leave(3)
    assert policy.admit(as_ids([3]))[0].tolist() == [False], "nobody is due any more"
    policy.plan(as_ids([3, 4, 3]), 4)
    policy.serve(as_ids([3]), 4)
    assert policy.admit(as_ids([3]))[0].tolist() == [True]


def test_a_job_that_leaves_takes_its_plan_with_it_but_not_what_was_learned():
    policy = holding(0, 1)
    policy.learn(as_ids([0, 1, 2]), scores(1, 3, 2))
    policy.plan(as_ids([0, 0]), later=as_ids([0]))
    policy.leave(0)
    assert policy.admit(as_ids([2]))[1].tolist() == [0]


def test_a_plan_that_is_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(NextUse, "_NEVER", np.uint32(5))
    policy = NextUse(ones(2), 1)
    with pytest.raises(ConfigError, match="at most 4 requests ahead, not 5"):
        policy.plan(as_ids([0, 1, 0, 1, 0]))


class TestTwoLevels:
    def test_the_lower_one_holds_the_nearest_of_what_the_upper_gave_up(self):
        stack = [NextUse(ones(6), 1), NextUse(ones(6), 2)]
        plan(stack, as_ids([0, 1, 2, 3, 4, 4, 3, 2, 1, 0]))
        contents = []
        for id in range(5):
            step(stack, as_ids([id]))
            contents.append([held(policy) for policy in stack])
        assert contents == [[[0], []], [[1], [0]], [[2], [0, 1]], [[3], [1, 2]], [[4], [2, 3]]]
        levels = [int(step(stack, as_ids([id])).level[0]) for id in (4, 3, 2, 1, 0)]
        assert levels == [0, 1, 1, 2, 2]

    @given(runs(), st.integers(0, 4))
    def test_together_they_miss_as_often_as_one_of_both_sizes(self, run, below):
        order, samples, capacity, _ = run
        stack = [NextUse(ones(samples), capacity), NextUse(ones(samples), below)]
        one = NextUse(ones(samples), capacity + below)
        plan(stack, order)
        one.plan(order)
        missed = sum(len(step(stack, as_ids([id])).missed) for id in order)
        assert missed == len(order) - sum(hits(one, order))
