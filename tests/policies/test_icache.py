"""iCache's policies against Algorithm 1, Figure 5 and slow obvious models, alone and in a live cache."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.cache import Cache, Level
from augury.ids import NONE, as_ids
from augury.policies import Policy, front, icache, importance
from augury.policies.classic import LRU, MinIO
from augury.policies.icache import PACKAGE, FromHigh, ICache
from augury.policies.importance import PIECES, UNKNOWN, ByImportance
from augury.recipes import find
from augury.sim.fields import Synthetic
from augury.sim.replay import replay
from augury.sim.verify import verify
from augury.step import prefetch, step
from augury.testing.policies import PolicyContract
from augury.tiers.memory import memory_tier
from augury.trace import Recorder, Trace

IDS = 40
ONES = np.ones(IDS, np.int64)


def make_small(patch):
    """So that few ids make several scans, pieces and handfuls."""
    patch.setattr(front, "_LEAST", 2)
    patch.setattr(importance, "PIECE", 3)
    patch.setattr(icache, "HANDFUL", 3)


@pytest.fixture
def small(monkeypatch):
    make_small(monkeypatch)


class SmallParts(PolicyContract):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _small(cls):
        with pytest.MonkeyPatch.context() as patch:
            make_small(patch)
            yield


class TestByImportanceContract(SmallParts):
    def make(self, sizes, capacity, rng) -> Policy:
        return ByImportance(sizes, capacity, rng)


class TestICacheContract(SmallParts):
    def make(self, sizes, capacity, rng) -> Policy:
        return ICache(sizes, capacity, rng)


class TestFromHighContract(SmallParts):
    def make(self, sizes, capacity, rng) -> Policy:
        return FromHigh(sizes, capacity, rng)


def contents(policy):
    return set(np.flatnonzero(policy.resident).tolist())


def learn(policy, scores):
    policy.learn(as_ids(list(scores)), np.array(list(scores.values()), np.float32))


def plan(policy, order, job=0, times=None):
    """An epoch of a job that has visited everything before."""
    if isinstance(policy, ICache) and job not in policy._jobs:
        importance = policy._h.importance.copy()
        policy.learn(np.arange(len(importance)), np.ones(len(importance), np.float32))
        policy.plan(np.arange(len(importance)), job)  # all are H-samples: nothing else changes
        policy.learn(np.arange(len(importance)), importance)
    policy.plan(as_ids(list(order)), job, None if times is None else np.array(times, np.int32))


def request(policy, *ids, job=0):
    """One batch: who is served, and who left."""
    done = step([policy], as_ids(ids), job)
    return done.served.tolist(), done.drops[0].tolist()


def admit(policy, *ids):
    """Bytes that nobody asked for: who stays, and who left."""
    done = prefetch([policy], as_ids(ids))
    return done.writes[0].tolist(), done.drops[0].tolist()


def planned(kind=ICache, capacity=10, order=range(20), samples=IDS, seed=0, sizes=None):
    """The importance of a sample is its id: of an epoch that visits twenty, those from 6 on are H-samples."""
    policy = kind(np.ones(samples, np.int64) if sizes is None else sizes, capacity, np.random.default_rng(seed))
    learn(policy, {id: float(id) for id in range(samples)})
    plan(policy, order)
    return policy


def holding(kind, held, capacity=None, **others):
    """A policy that holds these ids, by the importance given; it knows that of the others as well."""
    policy = kind(ONES, len(held) if capacity is None else capacity, np.random.default_rng(0))
    learn(policy, held | others.get("others", {}))
    policy.adopt(as_ids(list(held)))
    plan(policy, [])
    settle(policy)
    return policy


def settle(policy):
    """Minibatches without samples: the order by what was learned before the plan is complete."""
    for _ in range(PIECES + 1):
        policy.serve(NONE)


class TestFigure5:
    """Capacity three; 1, 2, 3 are held, 2 is the least important; 4 comes."""

    def test_lru_gives_up_the_least_recently_used(self):
        policy = LRU(ONES, 3)
        assert [request(policy, id)[1] for id in (1, 2, 3, 4)] == [[], [], [], [1]]

    def test_icache_gives_up_the_least_important(self):
        policy = ByImportance(ONES, 3)
        learn(policy, {1: 0.9, 2: 0.1, 3: 0.5, 4: 0.7})
        assert [request(policy, id)[1] for id in (1, 2, 3, 4)] == [[], [], [], [2]]
        assert contents(policy) == {1, 3, 4}


class TestByImportance:
    def test_a_resident_is_found(self):
        policy = holding(ByImportance, {0: 1.0, 1: 2.0})
        assert request(policy, 0) == ([0], [])
        assert contents(policy) == {0, 1}

    def test_while_there_is_room_anybody_enters(self):
        policy = holding(ByImportance, {0: 1.0}, capacity=2, others={5: 0.0})
        assert request(policy, 5) == ([5], [])
        assert contents(policy) == {0, 5}

    def test_the_least_important_leaves_for_a_more_important_one(self):
        policy = holding(ByImportance, {0: 1.0, 1: 2.0}, others={5: 1.5})
        assert request(policy, 5) == ([5], [0])
        assert contents(policy) == {1, 5}

    @pytest.mark.parametrize("importance", [0.5, 1.0], ids=["less", "equally"])
    def test_who_is_not_more_important_stays_out(self, importance):
        policy = holding(ByImportance, {0: 1.0, 1: 2.0}, others={5: importance})
        assert request(policy, 5) == ([5], [])
        assert contents(policy) == {0, 1}

    def test_of_whom_nothing_is_known_counts_as_the_hardest(self):
        """Losses' percentiles end at 1."""
        policy = holding(ByImportance, {0: 0.9, 1: 1.0})
        assert request(policy, 5) == ([5], [0])
        assert request(policy, 6) == ([6], [])

    def test_of_equally_important_residents_the_lowest_id_leaves(self):
        policy = holding(ByImportance, {4: 1.0, 2: 1.0, 9: 1.0}, others={5: 2.0})
        assert request(policy, 5) == ([5], [2])

    def test_a_batch_is_decided_as_a_whole(self):
        policy = holding(ByImportance, {0: 1.0, 1: 2.0, 2: 3.0}, others={5: 2.5, 6: 0.5, 7: 4.0})
        assert request(policy, 5, 6, 7) == ([5, 6, 7], [0, 1])
        assert contents(policy) == {2, 5, 7}


class SlowHCache:
    """A dict and `min`. The order by what was learned last is made a piece with every batch, from the plan on."""

    def __init__(self, samples, capacity):
        self.samples, self.capacity = samples, capacity
        self.importance = dict.fromkeys(range(samples), UNKNOWN)
        self.order: dict[int, float] = {}
        self.shadow: dict[int, float] | None = None
        self.at = 0

    def plan(self):
        while self.shadow is not None:
            self.batch()
        self.shadow, self.at = {}, 0

    def batch(self):
        if self.shadow is None:
            return
        piece = max(importance.PIECE, -(-self.samples // PIECES))
        for id in range(self.at, min(self.samples, self.at + piece)):
            if id in self.order:
                self.shadow[id] = self.importance[id]
        self.at += piece
        if self.at >= self.samples:
            self.order, self.shadow = self.shadow, None

    def request(self, id):
        """What happens, and who may leave."""
        self.batch()
        if id in self.order:
            return "hit", set()
        if len(self.order) < self.capacity:
            return "insert", set()
        least = min(self.order.values(), default=np.inf)
        if self.importance[id] > least:
            return "evict", {other for other, value in self.order.items() if value == least}
        return "skip", set()

    def insert(self, id, evicted=None):
        if evicted is not None:
            self.forget(evicted)
        self.order[id] = self.importance[id]
        if self.shadow is not None:
            self.shadow[id] = self.importance[id]

    def forget(self, id):
        self.order.pop(id, None)
        if self.shadow is not None:
            self.shadow.pop(id, None)


def follow(ours, model, events):
    """Request by request. Of equally unimportant residents any may leave."""
    happened = set()
    for kind, id, score in events:
        if kind == "learn":
            learn(ours, {id: score})
            model.importance[id] = float(np.float32(score))
        elif kind == "plan":
            plan(ours, [id])
            model.plan()
        elif kind == "forget":
            ours.forget(as_ids([id]))
            model.forget(id)
        else:
            expected, may_leave = model.request(id)
            held = id in contents(ours)
            served, left = request(ours, id)
            assert served == [id]
            assert held == (expected == "hit")
            assert bool(ours.resident[id]) == (expected != "skip")
            assert len(left) == (expected == "evict")
            assert set(left) <= may_leave
            if expected in ("insert", "evict"):
                model.insert(id, *left)
            happened.add(expected)
        assert contents(ours) == set(model.order)
    return happened


@st.composite
def runs(draw):
    """A capacity, and many calls: long ones, which shrink badly but try much."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    samples, different = draw(st.integers(1, 60)), draw(st.integers(1, 40))
    kinds = rng.choice(["request", "learn", "plan", "forget"], draw(st.integers(1, 200)), p=[0.5, 0.4, 0.06, 0.04])
    ids, scores = rng.integers(0, samples, len(kinds)), rng.integers(0, different, len(kinds)) / 8
    events = list(zip(kinds.tolist(), ids.tolist(), scores.tolist(), strict=True))
    return samples, draw(st.integers(0, samples)), events


class TestShadow:
    @pytest.fixture(autouse=True)
    def _pieces_of_ten(self, small, monkeypatch):
        """Forty ids are four minibatches."""
        monkeypatch.setattr(importance, "PIECE", 10)

    @pytest.mark.parametrize("piece", [1, 3])
    def test_equals_a_slow_model_request_by_request(self, piece, monkeypatch):
        monkeypatch.setattr(importance, "PIECE", piece)

        @settings(deadline=None, max_examples=60)
        @given(runs())
        def check(run):
            samples, capacity, events = run
            follow(ByImportance(np.ones(samples, np.int64), capacity), SlowHCache(samples, capacity), events)

        check()

    @pytest.mark.parametrize("least", [2, 64, 2048])
    def test_a_long_run_equals_the_slow_model(self, least, monkeypatch):
        """So many residents that the front holds a part of them only. No two are equally important."""
        monkeypatch.setattr(front, "_LEAST", least)
        monkeypatch.setattr(importance, "PIECE", 60)
        rng = np.random.default_rng(0)
        samples, capacity, length = 1200, 500, 2500
        kinds = rng.choice(["request", "learn", "plan"], length, p=[0.6, 0.39, 0.01])
        scores = (rng.permutation(length) / length).tolist()
        events = [("learn", id, 2 + id / samples) for id in range(samples)]
        events += zip(kinds.tolist(), rng.integers(0, samples, length).tolist(), scores, strict=True)
        happened = follow(ByImportance(np.ones(samples, np.int64), capacity), SlowHCache(samples, capacity), events)
        assert happened == {"hit", "insert", "evict", "skip"}

    def test_as_large_as_it_is_in_use(self, monkeypatch):
        """Pieces of which the front takes a part: the least important leaves all the same."""
        monkeypatch.undo()
        rng = np.random.default_rng(0)
        samples, capacity = 30_000, 25_000
        policy, values = ByImportance(np.ones(samples, np.int64), capacity), np.arange(samples, dtype=np.float32)
        values[::2] = rng.permutation(samples)[: samples // 2]
        policy.learn(np.arange(samples), values)
        policy.adopt(rng.permutation(samples)[:capacity])
        plan(policy, [])
        settle(policy)
        for batch in np.array_split(rng.permutation(np.flatnonzero(~policy.resident)), 40):
            pool = np.union1d(np.flatnonzero(policy.resident), batch)
            request(policy, *batch.tolist())
            assert np.array_equal(np.sort(values[policy.resident]), np.sort(values[pool])[-capacity:])

    def test_what_is_learned_changes_nothing_before_the_next_plan(self):
        policy = holding(ByImportance, {0: 1.0, 1: 2.0}, others={5: 3.0})
        learn(policy, {0: 9.0})
        settle(policy)
        assert request(policy, 5) == ([5], [0])

    @pytest.mark.parametrize("batches", range(4))
    def test_while_it_is_built_the_old_order_says_who_leaves(self, batches):
        policy = holding(ByImportance, {0: 1.0, 15: 2.0, 35: 3.0}, others={5: 5.0})
        learn(policy, {0: 9.0, 35: 4.0})
        plan(policy, [])
        for _ in range(batches):
            policy.serve(NONE)
        assert request(policy, 5) == ([5], [0] if batches < 3 else [15])

    def test_a_batch_of_any_size_is_one_piece(self):
        policy = holding(ByImportance, {0: 1.0, 15: 2.0}, others={5: 5.0})
        learn(policy, {0: 9.0})
        plan(policy, [])
        policy.serve(as_ids([0, 15] * 50))
        assert request(policy, 5) == ([5], [0])

    @pytest.mark.parametrize("id", [5, 12, 38], ids=["seen already", "just being seen", "still to be seen"])
    def test_who_enters_meanwhile_is_in_the_new_order(self, id):
        policy = holding(ByImportance, {0: 1.0, 15: 2.0, 35: 3.0}, others={id: 5.0, 7: 6.0, 8: 5.5})
        learn(policy, {0: 9.0, 15: 8.0, 35: 7.0})
        plan(policy, [])
        policy.serve(NONE)
        assert request(policy, id) == ([id], [0])
        settle(policy)
        assert request(policy, 7) == ([7], [id])
        assert request(policy, 8) == ([8], [])

    @pytest.mark.parametrize("id", [5, 38], ids=["seen already", "still to be seen"])
    def test_what_is_learned_of_a_newcomer_afterwards(self, id):
        """Takes effect with its piece, or at the next plan."""
        policy = holding(ByImportance, {0: 1.0, 15: 2.0, 35: 3.0}, others={id: 5.0, 7: 6.5})
        learn(policy, {0: 9.0, 15: 8.0, 35: 7.0})
        plan(policy, [])
        policy.serve(NONE)
        request(policy, id)
        learn(policy, {id: 6.8})
        settle(policy)
        assert request(policy, 7) == ([7], [id] if id == 5 else [])
        policy.forget(as_ids([7]))

    def test_who_stays_out_is_not_in_the_new_order(self):
        policy = holding(ByImportance, {0: 1.0, 15: 2.0}, others={5: 0.5, 7: 3.0})
        plan(policy, [])
        policy.serve(NONE)
        assert request(policy, 5) == ([5], [])
        settle(policy)
        assert request(policy, 7) == ([7], [0])

    @pytest.mark.parametrize("batches", [1, 3])
    def test_who_leaves_meanwhile_does_not_come_back(self, batches):
        policy = holding(ByImportance, {0: 1.0, 15: 2.0, 35: 3.0}, others={5: 4.0, 6: 5.0, 7: 6.0, 8: 7.0})
        plan(policy, [])
        for _ in range(batches):
            policy.serve(NONE)
        policy.forget(as_ids([15]))
        assert request(policy, 5) == ([5], [])
        assert request(policy, 6) == ([6], [0])
        settle(policy)
        assert request(policy, 7) == ([7], [35])
        assert request(policy, 8) == ([8], [5])
        assert contents(policy) == {6, 7, 8}

    def test_a_resident_that_left_and_came_back_with_another_importance(self):
        policy = holding(ByImportance, {0: 1.0, 15: 2.0, 35: 3.0}, others={5: 4.0, 6: 6.0, 7: 6.5})
        plan(policy, [])
        policy.serve(NONE)
        policy.forget(as_ids([0]))
        learn(policy, {0: 5.0})
        assert request(policy, 0) == ([0], [])
        settle(policy)
        assert [request(policy, id)[1] for id in (5, 6, 7)] == [[15], [35], [5]]
        assert contents(policy) == {0, 6, 7}

    def test_a_plan_before_the_order_is_complete(self):
        """Of several plans the last one counts, and none is waited for."""
        policy = holding(ByImportance, {0: 1.0, 15: 2.0, 35: 3.0}, others={5: 4.0, 6: 5.0})
        learn(policy, {0: 9.0})
        plan(policy, [])
        policy.serve(NONE)
        learn(policy, {15: 8.0})
        plan(policy, [])
        assert request(policy, 5) == ([5], [35]), "the order of the first plan is complete, with what was learned since"
        learn(policy, {5: 10.0})
        settle(policy)
        assert request(policy, 6) == ([6], [5]), "what was learned after its piece waits for the next plan"

    def test_a_resize_and_what_is_found_meanwhile(self):
        policy = holding(ByImportance, {0: 1.0, 15: 2.0, 35: 3.0}, capacity=5, others={5: 1.5, 38: 9.0, 6: 4.0})
        learn(policy, {0: 9.0})
        plan(policy, [])
        policy.serve(NONE)
        assert policy.adopt(as_ids([5, 38])).tolist() == []
        assert policy.resize(4).tolist() == [0], "by the old order"
        settle(policy)
        assert policy.resize(2).tolist() == [5, 15]
        assert contents(policy) == {35, 38}

    def test_without_samples(self):
        policy = ByImportance(np.empty(0, np.int64), 5)
        plan(policy, [])
        settle(policy)
        assert request(policy) == ([], [])


class TestAlgorithm1:
    """Line by line, at batch size 1. Seven samples are H-cache, three L-cache."""

    def test_an_h_sample_that_is_held(self):
        policy = planned()
        request(policy, 10)
        before = contents(policy)
        assert request(policy, 10) == ([10], [])
        assert contents(policy) == before == {10}

    def test_an_h_sample_while_there_is_room(self):
        policy = planned()
        for id in range(6, 13):
            assert request(policy, id) == ([id], [])
        assert contents(policy) == set(range(6, 13))

    def test_an_h_sample_more_important_than_the_least(self):
        policy = planned()
        request(policy, *range(6, 13))
        assert request(policy, 15) == ([15], [6])
        assert contents(policy) == {*range(7, 13), 15}

    @pytest.mark.parametrize("importance", [7.0, 8.0], ids=["less", "equally"])
    def test_an_h_sample_that_is_not_more_important(self, importance):
        policy = planned()
        request(policy, *range(8, 15))
        learn(policy, {7: importance})
        assert request(policy, 7) == ([7], [])
        assert contents(policy) == set(range(8, 15))

    def test_h_samples_do_not_take_the_l_cache(self):
        policy = planned()
        assert admit(policy, 30, 31, 32) == ([30, 31, 32], [])
        for id in range(6, 20):
            request(policy, id)
        assert contents(policy) == {30, 31, 32, *range(13, 20)}

    def test_an_l_sample_that_is_held(self):
        policy = planned()
        admit(policy, 0, 30)
        assert request(policy, 0) == ([0], [])

    def test_an_l_sample_that_the_h_cache_holds(self):
        """It was an H-sample in the epoch before."""
        policy = planned()
        request(policy, 6, 10)
        admit(policy, 39)
        plan(policy, range(6, 36))
        assert request(policy, 6) == ([6], [])

    def test_an_l_sample_that_is_not_held_is_replaced_by_one_of_the_l_cache(self):
        policy = planned()
        request(policy, 10, 11)
        admit(policy, 30)
        assert request(policy, 0) == ([30], [])
        assert contents(policy) == {10, 11, 30}, "it is not read"

    def test_any_of_the_l_cache(self):
        served = set()
        for seed in range(20):
            policy = planned(seed=seed)
            admit(policy, 30, 31, 32)
            served.add(request(policy, 0)[0][0])
        assert served == {30, 31, 32}

    def test_also_of_those_that_were_there_when_the_epoch_began(self):
        served = set()
        for seed in range(20):
            policy = planned(seed=seed)
            admit(policy, 30, 31, 32)
            plan(policy, range(20))
            served.add(request(policy, 0)[0][0])
        assert served == {30, 31, 32}

    def test_an_h_sample_is_never_replaced(self):
        policy = planned()
        admit(policy, 30, 31, 32)
        assert request(policy, 10, 11) == ([10, 11], [])
        assert {10, 11} <= contents(policy)

    def test_who_was_requested_does_not_stand_in(self):
        policy = planned()
        admit(policy, 30, 31)
        assert request(policy, 30) == ([30], [])
        assert request(policy, 0) == ([31], [])
        assert request(policy, 1) == ([1], [])

    def test_who_stood_in_does_not_again(self):
        policy = planned()
        admit(policy, 30, 31)
        assert {request(policy, id)[0][0] for id in (0, 1)} == {30, 31}
        assert request(policy, 2) == ([2], [])

    def test_nor_in_the_same_batch(self):
        policy = planned()
        admit(policy, 30, 31, 32)
        served, _ = request(policy, 0, 31, 1, 2, 10)
        assert served[1] == 31
        assert served[4] == 10
        assert sorted(served[at] for at in (0, 2, 3)) == [2, 30, 32]
        assert served[3] == 2, "those that come first are replaced"

    def test_a_sample_that_was_admitted_twice_stands_in_once(self):
        """Its bytes were lost, and it came with a package again."""
        policy = planned()
        admit(policy, 30)
        policy.forget(as_ids([30]))
        admit(policy, 30)
        assert request(policy, 0, 1) == ([30, 1], [])

    def test_who_was_read_alone_does_not_stand_in(self):
        policy = planned()
        assert request(policy, 0) == ([0], [])
        assert contents(policy) == {0}
        assert request(policy, 1) == ([1], [])

    def test_who_was_lost_does_not_stand_in(self):
        policy = planned()
        admit(policy, 30)
        policy.forget(as_ids([30]))
        assert request(policy, 0) == ([0], [])

    def test_who_became_an_h_sample_does_not_stand_in(self):
        policy = planned()
        admit(policy, 30)
        plan(policy, range(20, 40))
        assert request(policy, 21) == ([21], [])

    def test_in_the_next_epoch_it_may_stand_in_again(self):
        policy = planned()
        admit(policy, 30)
        assert request(policy, 0) == ([30], [])
        plan(policy, range(20))
        assert request(policy, 1) == ([30], [])

    def test_without_a_plan_nobody_is_replaced(self):
        policy = planned()
        admit(policy, 30)
        assert request(policy, 0, job=1) == ([0], [])
        policy.leave(0)
        assert request(policy, 1) == ([1], [])

    def test_before_any_plan_all_are_h_samples(self):
        policy = ICache(ONES, 10, np.random.default_rng(0))
        learn(policy, {id: float(id) for id in range(IDS)})
        for id in range(IDS):
            assert request(policy, id)[0] == [id]
        assert contents(policy) == set(range(31, 40))

    def test_equally_important_ones_are_all_h_samples(self):
        policy = ICache(ONES, 10, np.random.default_rng(0))
        plan(policy, range(20))
        admit(policy, 30)
        assert request(policy, 5) == ([5], [])
        assert request(policy, 25) == ([30], []), "who is not visited is none of them"


class TestStandIns:
    def test_those_that_the_epoch_does_not_visit_come_first(self):
        for seed in range(10):
            policy = planned(seed=seed)
            admit(policy, 4, 30, 5)
            assert request(policy, 0) == ([30], [])
            assert {request(policy, id)[0][0] for id in (1, 2)} == {4, 5}

    def test_also_where_they_were_there_before_or_come_later(self):
        for seed in range(10):
            policy = planned(seed=seed)
            admit(policy, 4, 30)
            plan(policy, range(20))
            admit(policy, 31)
            assert {request(policy, id)[0][0] for id in (0, 1)} == {30, 31}
            assert request(policy, 2) == ([4], [])

    def test_who_was_replaced_will_not_be_visited_any_more(self):
        for seed in range(10):
            policy = planned(seed=seed)
            admit(policy, 30)
            assert request(policy, 4) == ([30], [])
            admit(policy, 3, 4)
            assert request(policy, 0) == ([4], [])

    def test_used_ones_leave_first_and_the_earliest_first(self):
        policy = planned()
        admit(policy, 30, 31, 32)
        request(policy, 31)
        request(policy, 30)
        assert admit(policy, 33) == ([33], [31])
        assert admit(policy, 34) == ([34], [30])

    def test_nobody_leaves_before_it_was_used(self):
        policy = planned()
        admit(policy, 30, 31, 32)
        assert admit(policy, 33) == ([], [])
        assert request(policy, 0)[0][0] in {30, 31, 32}
        stood_in = {30, 31, 32} - {*request(policy, 1)[0], *request(policy, 2)[0]}
        assert admit(policy, 33)[1] == list(stood_in)

    def test_who_was_read_alone_takes_free_room_only(self):
        policy = planned()
        assert request(policy, 0) == ([0], [])
        assert request(policy, 1) == ([1], [])
        assert request(policy, 2) == ([2], [])
        assert request(policy, 3) == ([3], [])
        assert contents(policy) == {0, 1, 2}
        assert admit(policy, 30) == ([30], [0]), "and leaves again as it was used"

    def test_unused_newcomers_take_the_room_before_those_that_were_used(self):
        policy = planned()
        policy.serve(as_ids([0, 1, 2]))
        kept, left = policy.admit(as_ids([0, 30, 1, 31, 2]))
        assert kept.tolist() == [True, True, False, True, False]
        assert left.tolist() == []

    def test_in_the_next_epoch_none_was_used(self):
        policy = planned()
        admit(policy, 30, 31, 32)
        request(policy, 30, 31, 32)
        plan(policy, range(20))
        assert admit(policy, 33) == ([], [])

    def test_the_earliest_used_in_this_epoch(self):
        policy = planned()
        admit(policy, 30, 31, 32)
        request(policy, 30, 31, 32)
        plan(policy, range(20))
        request(policy, 31)
        request(policy, 30)
        assert admit(policy, 33) == ([33], [31])
        assert admit(policy, 34) == ([34], [30])

    def test_who_was_used_lost_and_brought_again_for_another_job_was_not_used(self):
        policy = planned()
        plan(policy, range(20), job=1)
        admit(policy, 30, 31, 32)
        request(policy, 30)
        policy.forget(as_ids([30]))
        policy.leave(0)
        admit(policy, 30)
        assert admit(policy, 33) == ([], [])
        assert contents(policy) == {30, 31, 32}


class TestDivision:
    """A hundred bytes for a thousand samples; a package is ten of them.

    The H-list is looked up inside, as no call tells it: tests say in words who is on it, and count by it.
    """

    SAMPLES = 1000

    def policy(self, capacity=100):
        policy = ICache(np.ones(self.SAMPLES, np.int64), capacity, np.random.default_rng(0))
        learn(policy, {id: float(id) for id in range(200)})
        learn(policy, dict.fromkeys(range(200, self.SAMPLES), 0.5))
        return policy

    def fill_high(self, policy, jobs=(0,)):
        """How many H-samples it holds when all were requested."""
        for job in jobs:
            request(policy, *np.flatnonzero(policy._high).tolist(), job=job)
        return int(np.count_nonzero(policy.resident & policy._high))

    def fill_low(self, policy):
        """How many L-samples it holds when packages were loaded as long as there is room."""
        while len(wanted := policy.wanted(10**9)):
            admit(policy, *wanted.tolist())
        return int(np.count_nonzero(policy.resident & ~policy._high))

    def test_nine_to_one_before_anything_is_planned(self):
        policy = self.policy()
        assert self.fill_high(policy) == 90
        assert len(policy.wanted(100)) == 0

    def test_after_an_empty_plan_too(self):
        policy = self.policy()
        plan(policy, [])
        assert self.fill_low(policy) == 10

    def test_by_the_share_of_accesses_to_h_samples(self):
        policy = self.policy()
        plan(policy, range(200))
        assert np.flatnonzero(policy._high).tolist() == list(range(60, 200))
        assert self.fill_high(policy) == 70
        assert self.fill_low(policy) == 30
        assert self.fill_high(policy) == 70
        assert policy.used == 100

    @pytest.mark.parametrize(
        ("high", "low", "parts"),
        [(1, 1, (70, 30)), (1, 7, (25, 70)), (9, 1, (90, 10)), (0, 1, (0, 100))],
        ids=["alike", "mostly L, in whole packages", "mostly H, but for a package", "L only"],
    )
    def test_an_access_counts_as_often_as_it_comes(self, high, low, parts):
        policy = self.policy()
        plan(policy, range(200), times=[low if id < 60 else high for id in range(200)])
        assert (self.fill_high(policy), self.fill_low(policy)) == parts

    def test_the_l_cache_has_room_for_a_package_at_least(self):
        policy = self.policy()
        plan(policy, range(200, 400))  # equally important
        assert self.fill_high(policy) == 90
        assert self.fill_low(policy) == 10

    def test_jobs_are_added_up_and_leave(self):
        policy = self.policy()
        plan(policy, range(200), job=0, times=[1 if id >= 60 else 6 for id in range(200)])  # 140 : 360
        plan(policy, range(300, 400), job=1, times=[5] * 100)  # 500 : 0
        assert self.fill_high(policy, (0, 1)) == 64
        plan(policy, range(300, 400), job=1, times=[1] * 100)  # 100 : 0
        assert self.fill_high(policy, (0, 1)) == 40
        policy.leave(1)
        assert self.fill_high(policy) == 28
        assert np.flatnonzero(policy._high).tolist() == list(range(60, 200))
        policy.leave(0)
        assert self.fill_high(policy) == 90
        policy.leave(5)

    def test_an_h_sample_of_any_job_is_kept_by_importance(self):
        policy = self.policy()
        plan(policy, range(200), job=0)
        plan(policy, range(60), job=1)
        assert np.flatnonzero(policy._high).tolist() == list(range(18, 200))
        assert 20 not in admit(policy, 20, 5)[1]
        policy.leave(0)
        assert np.flatnonzero(policy._high).tolist() == list(range(18, 60))

    def test_each_job_has_its_own_epoch(self):
        """Who was used by one may stand in for the other; and also what one has read alone."""
        policy = planned()
        plan(policy, range(20), job=1)
        admit(policy, 30)
        assert request(policy, 0, job=0) == ([30], [])
        assert request(policy, 1, job=0) == ([1], [])
        assert {request(policy, id, job=1)[0][0] for id in (2, 3)} == {30, 1}
        assert request(policy, 4, job=1) == ([4], [])

    def test_an_h_sample_too_large_for_what_became_of_the_h_cache(self):
        policy = ICache(np.where(np.arange(IDS) == 15, 8, 1), 10, np.random.default_rng(0))
        learn(policy, {id: float(id) for id in range(IDS)})
        request(policy, *range(20, 29))
        plan(policy, range(20))  # the H-cache has 7 of 10 bytes now, not 9
        assert request(policy, 15) == ([15], [20, 21])
        assert contents(policy) == set(range(22, 29))

    def test_nobody_leaves_when_the_division_changes(self):
        policy = self.policy()
        plan(policy, range(200))
        self.fill_high(policy)
        self.fill_low(policy)
        before = contents(policy)
        plan(policy, range(200, 400))
        assert contents(policy) == before

    def test_then_the_l_cache_gives_way_to_h_samples_as_they_come(self):
        policy = self.policy()
        plan(policy, range(200))
        self.fill_low(policy)
        low = contents(policy)
        assert len(low) == 30
        request(policy, *range(130, 200))
        assert policy.used == 100
        learn(policy, dict.fromkeys(range(600, 700), 500.0))
        plan(policy, range(600, 700))  # all H-samples: 90 to 10
        used = sorted(low)[-3:]
        request(policy, *used)
        assert request(policy, 600, 601) == ([600, 601], used[:2])
        assert policy.used == 100
        request(policy, *range(600, 700))
        assert len(low & contents(policy)) == 10
        assert used[2] not in contents(policy)

    def test_and_the_h_cache_to_l_samples(self):
        policy = self.policy()
        request(policy, *range(100, 190))
        plan(policy, range(200))
        assert admit(policy, 950)[0] == [950]
        assert contents(policy) == {950, *range(120, 190)}

    def test_a_cache_of_a_few_bytes_has_no_packages(self):
        policy = planned(capacity=9)
        assert len(policy.packages) == 0
        assert len(policy.wanted(9)) == 0
        request(policy, *range(6, 20))
        assert len(contents(policy)) == 6

    def test_a_resize_takes_from_who_has_more_than_its_share(self):
        policy = self.policy()
        plan(policy, range(200))
        self.fill_low(policy)
        self.fill_high(policy)
        low = contents(policy) - set(range(60, 200))
        assert contents(policy) - low == set(range(130, 200))
        used = sorted(low)[5]
        request(policy, used)
        left = policy.resize(50).tolist()
        assert len(left) == 50
        assert left[0] == used
        assert contents(policy) - low == set(range(165, 200))
        assert len(contents(policy) & low) == 15
        assert policy.resize(80).tolist() == []
        assert self.fill_high(policy) == 56

    def test_a_resize_to_nothing(self):
        policy = self.policy()
        plan(policy, range(200))
        self.fill_low(policy)
        self.fill_high(policy)
        assert len(policy.resize(0)) == 100
        assert request(policy, 5, 100) == ([5, 100], [])
        assert contents(policy) == set()

    def test_what_is_found_from_an_earlier_run_may_take_all(self):
        policy = self.policy()
        assert len(policy.adopt(np.arange(200, 320))) == 20
        assert policy.used == 100
        assert request(policy, 199) == ([199], list(range(200, 211))), "down to its part, and one makes room"


class TestPackages:
    """A hundred samples of a byte, twenty are held; a package has two."""

    def policy(self, capacity=20, order=range(50)):
        return planned(capacity=capacity, order=order, samples=100)

    def test_one_package_at_a_time_as_long_as_there_is_room(self):
        policy = self.policy()
        packages = [set(package.tolist()) for package in policy.packages]
        low = set(range(100)) - set(range(15, 50))
        assert set().union(*packages) <= low
        for _ in range(3):
            wanted = policy.wanted(20).tolist()
            assert set(wanted) in packages
            packages.remove(set(wanted))
            assert admit(policy, *wanted) == (wanted, [])
        assert len(policy.wanted(20)) == 0, "six of twenty are L-cache"

    def test_when_they_were_used_the_next_one(self):
        policy = self.policy()
        seen: set[int] = set()
        for _ in range(3):
            admit(policy, *policy.wanted(20).tolist())
        for id in range(6):
            served, _ = request(policy, id)
            seen.update(served)
            wanted = policy.wanted(20).tolist()
            assert not seen & set(wanted)
            assert len(wanted) == (0 if id % 2 == 0 else 2)
            kept, left = admit(policy, *wanted)
            assert kept == wanted
            assert set(left) <= seen

    def test_each_at_most_once_per_epoch(self):
        policy = self.policy()
        named = []
        while len(wanted := policy.wanted(20)):
            named.append(wanted.tolist())
        assert sorted(named) == sorted(package.tolist() for package in policy.packages)
        plan(policy, range(50))
        assert len(policy.wanted(20)) == 2

    def test_those_with_most_samples_to_be_visited_come_first(self):
        policy = self.policy()
        sums = []
        while len(wanted := policy.wanted(20)):
            sums.append(sum(id < 15 for id in wanted.tolist()))
        assert sums == sorted(sums, reverse=True)
        assert sums[0] > sums[-1]

    def test_samples_that_are_held_do_not_count_as_to_be_visited(self):
        for seed in range(5):
            policy = planned(capacity=20, order=range(50), samples=100, seed=seed)
            admit(policy, *range(4))
            plan(policy, range(50))
            visited = []
            while len(wanted := policy.wanted(20)):
                visited.append(sum(4 <= id < 15 for id in wanted.tolist()))
            assert visited == sorted(visited, reverse=True)
            assert sum(visited) > 5

    def test_without_those_that_are_held_used_or_h_samples(self):
        policy = self.policy()
        first, second, third = (package.tolist() for package in policy.packages[:3])
        request(policy, first[0])
        policy.forget(as_ids([first[0]]))
        admit(policy, second[0])
        learn(policy, {third[0]: 999.0})
        plan(policy, [third[0]], job=1)
        named: set[int] = set()
        while len(wanted := policy.wanted(20)):
            named.update(wanted.tolist())
        assert not named & {first[0], second[0], third[0]}
        assert {first[1], second[1], third[1]} <= named

    def test_a_package_without_any_is_passed_over(self):
        policy = self.policy(capacity=20)
        packages = [package.tolist() for package in policy.packages]
        last = packages.pop()
        for ids in packages:
            request(policy, *ids)
            policy.forget(as_ids(ids))
        assert policy.wanted(20).tolist() == last

    @pytest.mark.parametrize("budget", range(4))
    def test_within_the_budget(self, budget):
        assert len(self.policy().wanted(budget)) == min(2, budget)

    def test_no_more_than_there_is_room_for(self):
        """Packages are somewhat larger than they need be."""
        sizes = np.where(np.arange(100) % 2, 3, 1)
        policy = planned(capacity=40, order=range(50), sizes=sizes, samples=100)
        assert max(int(sizes[package].sum()) for package in policy.packages) > 4
        while len(wanted := policy.wanted(40)):
            kept, _ = admit(policy, *wanted.tolist())
            assert kept == wanted.tolist()
            assert int(sizes[contents_list(policy)].sum()) <= 12

    def test_a_package_is_a_megabyte_or_a_tenth_of_the_cache(self):
        size = 1 << 16
        for capacity, expected in ((PACKAGE * 50, PACKAGE), (PACKAGE * 5, PACKAGE // 2)):
            policy = planned(capacity=capacity, order=range(500), sizes=np.full(1000, size, np.int64), samples=1000)
            assert {len(package) * size for package in policy.packages} == {expected}

    @pytest.mark.parametrize("stand_in", [True, False], ids=["replaced", "read alone"])
    def test_who_was_missed_is_packed_first_and_once(self, stand_in):
        policy = self.policy()
        packed = {id for package in policy.packages for id in package.tolist()}
        [loose] = {*range(15), *range(50, 100)} - packed
        if stand_in:
            admit(policy, *policy.wanted(20).tolist())
        for _ in range(2):
            assert (request(policy, loose) == ([loose], [])) != stand_in
            policy.forget(as_ids([loose]))
        before = [package.tolist() for package in policy.packages]
        plan(policy, range(20))  # those from 20 to 49 are L-samples now
        fresh = [id for package in policy.packages if package.tolist() not in before for id in package.tolist()]
        assert fresh[0] == loose
        assert len(fresh) > 20
        assert len(set(fresh)) == len(fresh)

    def test_packages_that_have_lost_their_l_samples_are_given_up(self):
        policy = self.policy()
        before = {frozenset(package.tolist()) for package in policy.packages}
        plan(policy, range(50, 100))
        low = set(range(65))
        after = {frozenset(package.tolist()) for package in policy.packages}
        assert {package for package in before if package & low} <= after
        assert not {package for package in after if not package & low}

    def test_all_h_samples_want_no_package(self):
        policy = planned(capacity=20, order=range(50), samples=100)
        learn(policy, dict.fromkeys(range(100), 1.0))
        plan(policy, range(100))
        assert len(policy.wanted(20)) == 0


def contents_list(policy):
    return sorted(contents(policy))


class SlowICache:
    """Who is an H-sample, which part holds whom, who was used: as sets. It follows what a policy did, and objects."""

    def __init__(self, sizes, capacity):
        self.sizes, self.capacity = sizes, capacity
        self.package = min(icache.PACKAGE, capacity // 10)
        self.importance = dict.fromkeys(range(len(sizes)), UNKNOWN)
        self.high: dict[int, set[int]] = {}
        self.used: dict[int, set[int]] = {}
        self.due: dict[int, set[int]] = {}
        self.accesses: dict[int, tuple[int, int]] = {}
        self.visited: dict[int, set[int]] = {}
        self.in_h: set[int] = set()
        self.in_l: set[int] = set()
        self.spent: set[int] = set()
        self.named: list[set[int]] = []
        self.passed: list[set[int]] = []
        """Packages that had nothing to give, and may have been passed over."""

    def bytes(self, ids):
        return sum(self.sizes[id] for id in ids)

    @property
    def low_part(self):
        high, low = (sum(part) for part in zip((0, 0), *self.accesses.values(), strict=True))
        share = high / (high + low) if high + low else 0.9
        return max(self.capacity - round(share * self.capacity), min(self.package, self.capacity))

    @property
    def on_a_list(self):
        return set().union(*self.high.values()) if self.high else set(range(len(self.sizes)))

    @property
    def ever_used(self):
        return set().union(*self.used.values())

    @property
    def low(self):
        """Nobody's H-samples, of whom some job has ever visited."""
        return set().union(*self.visited.values()) - self.on_a_list

    def plan(self, job, order):
        self.visited[job] = self.visited.get(job, set()) | set(order)
        values = sorted(self.importance[id] for id in order)
        self.high[job] = {id for id in order if self.importance[id] >= values[3 * len(order) // 10]}
        count = sum(id in self.high[job] for id in order)
        self.accesses[job] = count, len(order) - count
        self.due[job], self.used[job] = set(order), set()
        self.spent = set()
        if len(self.on_a_list) < len(self.sizes):  # otherwise there is nothing to be lined up
            self.named, self.passed = [], []

    def leave(self, job):
        for part in (self.high, self.used, self.due, self.accesses, self.visited):
            part.pop(job, None)

    def check_served(self, job, asked, served):
        held = self.in_h | self.in_l
        if job not in self.high:
            assert served == asked
            return
        self.due[job] -= set(asked)
        used = self.used[job] | (set(asked) & held)
        may_stand_in = (self.in_l & self.visited[job]) - self.high[job] - used
        replaced = [at for at, id in enumerate(asked) if id not in held and id not in self.high[job]]
        assert all(asked[at] == served[at] for at in range(len(asked)) if at not in replaced)
        stood_in = [served[at] for at in replaced if served[at] != asked[at]]
        assert len(set(stood_in)) == len(stood_in) == min(len(replaced), len(may_stand_in))
        assert set(stood_in) <= may_stand_in
        if set(stood_in) & self.due[job]:
            assert may_stand_in - self.due[job] <= set(stood_in), "those that are not visited come first"
        self.used[job] |= set(served)
        self.spent |= set(served) & self.in_l

    def check_admitted(self, offered, kept, left):
        high = set(offered) & self.on_a_list
        low = set(offered) - high
        if not high:
            assert set(left) & self.in_l <= self.spent, "nobody leaves the L-cache before it was used"
        if not low and self.bytes(self.in_l) <= self.low_part:
            assert not set(left) & self.in_l, "H-samples take nothing from the L-cache's part"
        if not high and self.bytes(self.in_h) <= self.capacity - self.low_part:
            assert not set(left) & self.in_h, "nor L-samples from the H-cache's"
        self.drop(left)
        self.in_h |= set(kept) & high
        self.in_l |= set(kept) & low
        self.spent |= set(kept) & low & self.ever_used
        if set(kept) & high:
            assert self.bytes(self.in_h) <= self.capacity - self.low_part
        if set(kept) & low:
            assert self.bytes(self.in_l) <= self.low_part

    def check_wanted(self, wanted, budget, packages):
        room = self.low_part - self.bytes(self.in_l) + self.bytes(self.spent)
        packages = [set(package.tolist()) for package in packages]
        worth = [(package & self.low) - self.in_h - self.in_l - self.ever_used for package in packages]
        if self.package == 0 or room < self.package:
            assert wanted == []
            return
        room = min(budget, room)
        left = [at for at, ids in enumerate(worth) if min((self.sizes[id] for id in ids), default=np.inf) <= room]
        if not wanted:
            assert all(packages[at] in self.named + self.passed for at in left)
        else:
            [at] = [at for at, package in enumerate(packages) if set(wanted) <= package]
            assert packages[at] not in self.named
            self.named.append(packages[at])
            assert set(wanted) <= worth[at]
            assert self.bytes(wanted) <= room
            if self.bytes(worth[at]) <= room:
                assert set(wanted) == worth[at], "the whole package"
        self.passed += [package for at, package in enumerate(packages) if at not in left]

    def drop(self, ids):
        self.in_h -= set(ids)
        self.in_l -= set(ids)
        self.spent -= set(ids)


def play(policy, model, rng, length, jobs):
    """Any calls, each checked against the model."""
    samples = len(model.sizes)
    happened = set()
    for _ in range(length):
        job = int(rng.integers(jobs))
        call = rng.choice([*["step"] * 10, *["wanted"] * 6, "learn", "plan", "forget", "leave", "resize", "adopt"])
        ids = rng.integers(0, samples, rng.integers(1, 12))
        if call == "step":
            done = step([policy], ids, job)
            happened.update("replaced" for asked, served in zip(ids, done.served, strict=True) if asked != served)
            model.check_served(job, ids.tolist(), done.served.tolist())
            model.check_admitted(done.missed.tolist(), done.writes[0].tolist(), done.drops[0].tolist())
        elif call == "wanted":
            budget = int(rng.choice([model.capacity, rng.integers(0, model.capacity + 1)]))
            wanted = policy.wanted(budget)
            model.check_wanted(wanted.tolist(), budget, policy.packages)
            done = prefetch([policy], wanted)
            assert done.writes[0].tolist() == wanted.tolist(), "what is wanted is kept"
            model.check_admitted(wanted.tolist(), wanted.tolist(), done.drops[0].tolist())
            happened.update("loaded" for _ in wanted)
        elif call == "learn":
            scores = {int(id): float(score) for id, score in zip(ids, rng.integers(0, 30, len(ids)), strict=True)}
            learn(policy, scores)
            model.importance.update(scores)
        elif call == "plan":
            order = rng.permutation(samples)[: rng.integers(1, samples + 1)]
            policy.plan(order, job)
            model.plan(job, order.tolist())
        elif call == "forget":
            policy.forget(ids)
            model.drop(ids.tolist())
        elif call == "leave" and rng.random() < 0.3:
            policy.leave(job)
            model.leave(job)
        elif call == "resize" and rng.random() < 0.3:
            model.capacity = int(rng.integers(model.package * 3, model.bytes(range(samples)) + 1))
            left = policy.resize(model.capacity).tolist()
            low = model.bytes(model.in_l)
            model.drop(left)
            if left and low > model.low_part:
                assert model.bytes(model.in_l) >= model.low_part - max(model.sizes) + 1
        elif call == "adopt" and rng.random() < 0.3:
            before = contents(policy)
            policy.adopt(ids)
            model.in_h |= contents(policy) - before
        assert contents(policy) == model.in_h | model.in_l
        assert policy.used == model.bytes(model.in_h | model.in_l) <= policy.capacity == model.capacity
    return happened


class TestAnyCalls:
    @pytest.mark.usefixtures("small")
    def test_equals_a_slow_model(self):
        @settings(deadline=None, max_examples=80)
        @given(st.integers(0, 1 << 30), st.integers(1, 2), st.booleans())
        def check(seed, jobs, equal):
            rng = np.random.default_rng(seed)
            sizes = np.full(rng.integers(1, 60), 2) if equal else rng.integers(1, 5, rng.integers(1, 60))
            capacity = int(rng.integers(0, int(sizes.sum()) + 1))
            policy, model = ICache(sizes, capacity, np.random.default_rng(seed)), SlowICache(sizes.tolist(), capacity)
            play(policy, model, rng, 60, jobs)

        check()

    def test_a_long_run_equals_the_slow_model(self):
        sizes = np.random.default_rng(0).integers(1, 5, 300)
        policy, model = ICache(sizes, 200, np.random.default_rng(1)), SlowICache(sizes.tolist(), 200)
        assert play(policy, model, np.random.default_rng(2), 1500, 2) == {"replaced", "loaded"}


class TestFromHigh:
    def policy(self, *held, order=range(20), seed=0):
        """An epoch begins while these are in the H-cache."""
        policy = planned(FromHigh, seed=seed)
        request(policy, *held)
        plan(policy, order)
        return policy

    def test_those_of_the_h_cache_stand_in_each_once_per_epoch(self):
        policy = self.policy(10, 11, 12)
        admit(policy, 30, 31, 32)
        assert {request(policy, id)[0][0] for id in (0, 1, 2)} == {10, 11, 12}
        assert request(policy, 3) == ([3], [])
        plan(policy, range(20))
        assert sorted(request(policy, 4, 5, 1, 2)[0][:3]) == [10, 11, 12]
        assert request(policy, 3) == ([3], [])

    def test_training_sees_them_twice(self):
        policy = self.policy(10, 11)
        assert request(policy, 10, 11) == ([10, 11], [])
        assert {request(policy, id)[0][0] for id in (0, 1)} == {10, 11}
        assert request(policy, 10, 11) == ([10, 11], [])

    def test_in_random_order(self):
        orders = {str(request(self.policy(*range(10, 17), seed=seed), *range(6))[0]) for seed in range(5)}
        assert len(orders) > 1

    def test_those_that_have_left_do_not(self):
        policy = self.policy(*range(6, 13))
        assert request(policy, 19, 18, 17)[1] == [6, 7, 8]
        policy.forget(as_ids([9, 10]))
        assert {request(policy, id)[0][0] for id in range(6)} == {11, 12, 2, 3, 4, 5}

    def test_none_in_an_epoch_that_visits_everything(self):
        policy = self.policy(10, 11, 12, order=range(IDS))
        admit(policy, 0)
        assert request(policy, 1, 10, 0) == ([1, 10, 0], [])
        plan(policy, range(1, IDS))
        assert request(policy, 2)[0][0] in {10, 11, 12}

    def test_nobody_there(self):
        policy = self.policy()
        admit(policy, 30)
        assert request(policy, 0) == ([0], [])

    def test_an_h_sample_and_one_that_is_held_are_served_as_themselves(self):
        policy = self.policy(10, 11)
        admit(policy, 0)
        assert request(policy, 0, 12) == ([0, 12], [])


class TestLive:
    """As the cache of a running training uses it."""

    SAMPLES, SIZE, CAPACITY = 600, 16, 200 * 16

    def test_several_threads(self):
        """Decisions, packages, what is learned and plans come from many threads; tier and policy agree at the end."""
        policy = ICache(np.full(self.SAMPLES, self.SIZE), self.CAPACITY, np.random.default_rng(0))
        tier = memory_tier(self.SAMPLES, policy.sizes, self.CAPACITY, self.SIZE)
        cache = Cache([Level(policy, tier)], policy.sizes)
        data = [id.to_bytes(8, "little") * 2 for id in range(self.SAMPLES)]
        errors: list[BaseException] = []
        counts = {"served": 0, "replaced": 0, "loaded": 0}
        lock = threading.Lock()

        def carry_out(ticket, **more):
            cache.wait_turn(ticket)
            done = ticket.step
            try:
                held = done.served[done.level == 0]
                for id, found in zip(held.tolist(), tier.read(held), strict=True):
                    assert found == data[id], "the bytes served are those of the id"
            finally:
                cache.commit(ticket, {id: data[id] for id in done.missed.tolist()})
            assert policy.used <= self.CAPACITY
            with lock:
                for name, count in more.items():
                    counts[name] += count

        def train(job):
            rng = np.random.default_rng(job)
            try:
                for _ in range(3):
                    order = rng.permutation(self.SAMPLES)[:400]
                    cache.plan(order, job)
                    for batch in np.array_split(order, 25):
                        if len(wanted := cache.wanted()):
                            ticket = cache.decide_unasked(wanted)
                            carry_out(ticket, loaded=len(ticket.step.missed))
                        ticket = cache.decide(batch, job)
                        carry_out(ticket, served=len(batch), replaced=int((ticket.step.served != batch).sum()))
                        cache.learn(ticket.step.served, rng.random(len(batch), np.float32))
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=train, args=(cache.join(),)) for _ in range(4)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a tier that overflows would be turned off with a warning
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        try:
            assert errors == []
            everybody = np.arange(self.SAMPLES)
            assert np.array_equal(tier.holds(everybody), policy.resident)
            assert policy.used == self.SIZE * len(contents(policy)) <= self.CAPACITY
            assert counts["served"] == 4 * 3 * 400
            assert counts["replaced"] > 0
            assert counts["loaded"] > 0
        finally:
            cache.close()

    @pytest.mark.parametrize("recipe", ["iis-h", "icache", "icache-sthc"])
    def test_a_twin_reproduces_every_decision(self, tmp_path, recipe):
        """Whole epochs with packages, stand-ins and what was learned; see sim/verify.py."""
        sizes = np.random.default_rng(0).integers(1, 9, 1500)
        original, logs = find(recipe), []

        def recorded(sizes, capacity, rng):
            logs.append(Recorder(tmp_path / "log", {"recipe": recipe, "seed": 3, "batch": 32}, sizes))
            return logs[0].wrap(original.policy(sizes, capacity, rng))

        losses = Synthetic(1500)
        result = replay(replace(original, policy=recorded), 1500, 9, 0.2, 32, 3, sizes, losses=losses)
        plain = replay(original, 1500, 9, 0.2, 32, 3, sizes, losses=losses)
        logs[0].close()
        trace = Trace.open(tmp_path / "log")
        calls, difference = verify(trace)
        assert difference is None
        assert calls > 9 * 1500 // 32
        happened = {record.op for record in trace}
        assert {"plan", "serve", "admit", "learn"} <= happened
        assert result.hit_ratio == plain.hit_ratio > 0
        if recipe != "iis-h":
            assert "wanted" in happened
            assert result.substitutes == plain.substitutes > 0

    def test_more_hits_than_a_cache_that_does_not_look_at_importance(self):
        """And far fewer reads of L-samples one by one: those come in packages, or others stand in."""
        ours, plain = (
            replay(replace(find("icache"), policy=policy), 2000, 9, 0.2, 32, losses=Synthetic(2000))
            for policy in (ICache, MinIO)
        )
        assert ours.steady["hit_ratio"] > plain.steady["hit_ratio"]
        assert ours.steady["substitutes"] > 0.1
