"""SHADE's policies against Algorithm 1 as it is written and slow obvious models; reading unasked over levels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.ids import as_ids
from augury.policies import Policy, front
from augury.policies.classic import LRU, MinIO, Nothing
from augury.policies.shade import APP, APPByLot, ByScore, ByScoreAndUse
from augury.step import prefetch, step
from augury.testing.policies import PolicyContract

IDS = 12
ONES = np.ones(IDS, np.int64)


@pytest.fixture(autouse=True, scope="module")
def _tiny_front():
    """A dozen ids never fill a front of the usual size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front, "_LEAST", 2)
        yield


class TestAPPContract(PolicyContract):
    def make(self, sizes, capacity, rng) -> Policy:
        return APP(sizes, capacity, rng)


class TestAPPByLotContract(PolicyContract):
    def make(self, sizes, capacity, rng) -> Policy:
        return APPByLot(sizes, capacity, rng)


class TestByScoreContract(PolicyContract):
    def make(self, sizes, capacity, rng) -> Policy:
        return ByScore(sizes, capacity, rng)


class TestByScoreAndUseContract(PolicyContract):
    def make(self, sizes, capacity, rng) -> Policy:
        return ByScoreAndUse(sizes, capacity, rng)


def contents(policy):
    return set(np.flatnonzero(policy.resident).tolist())


def learn(policy, scores):
    policy.learn(as_ids(list(scores)), np.array(list(scores.values()), np.float32))


def request(policy, id):
    """Whether it was a hit, whether it is held now, and who left."""
    done = step([policy], as_ids([id]))
    return bool(done.level[0] == 0), bool(policy.resident[id]), done.drops[0].tolist()


def holding(kind, held, capacity=None, sizes=ONES):
    """A policy that holds these ids and knows their scores."""
    policy = kind(sizes, len(held) if capacity is None else capacity)
    for id in held:
        request(policy, id)
    learn(policy, held)
    assert contents(policy) == set(held)
    return policy


class Algorithm1:
    """Line by line, one sample at a time. Who was never learned has no score in PQ: less than any."""

    NONE = -1.0

    def __init__(self, capacity):
        self.capacity, self.pq, self.ghost = capacity, {}, {}

    def score(self, s, v):  # lines 5 and 6
        self.ghost[s] = v
        if s in self.pq:
            self.pq[s] = v

    def request(self, s):
        """What happens, and who may leave: any of the least important."""
        if s in self.pq:  # line 7
            return "hit", set()
        if len(self.pq) < self.capacity:  # line 9
            return "insert", set()
        if s in self.ghost and self.pq:  # line 12
            least = min(self.pq.values())
            if self.ghost[s] >= least:  # line 16
                return "evict", {id for id, score in self.pq.items() if score == least}
        return "skip", set()

    def insert(self, s, evicted=None):
        if evicted is not None:
            del self.pq[evicted]
        self.pq[s] = self.ghost.get(s, self.NONE)


@st.composite
def runs(draw, scores=(0.0, 0.5, 1.0, 2.3, 2.4, 5.5), learned=0.5):
    """A capacity, and many requests, new scores and losses of bytes: long ones, which shrink badly but try much."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    ids, length = draw(st.integers(1, IDS)), draw(st.integers(1, 150))
    few = draw(st.integers(1, len(scores)))
    events = []
    for id, what in zip(rng.integers(0, ids, length).tolist(), rng.random(length), strict=True):
        if what < learned:
            events.append(("learn", id, float(np.float32(scores[rng.integers(few)]))))
        else:
            events.append(("forget" if what > 0.95 else "request", id, None))
    return draw(st.integers(0, 8)), events


class TestAPP:
    @settings(deadline=None, max_examples=150)
    @given(runs())
    def test_equals_algorithm_1_request_by_request(self, run):
        """Of equally unimportant residents any may leave."""
        capacity, events = run
        ours, model = APP(ONES, capacity), Algorithm1(capacity)
        for kind, id, score in events:
            if kind == "request":
                expected, may_leave = model.request(id)
                hit, held, left = request(ours, id)
                assert hit == (expected == "hit")
                assert held == (expected != "skip")
                assert len(left) == (expected == "evict")
                assert set(left) <= may_leave
                if expected in ("insert", "evict"):
                    model.insert(id, *left)
            elif kind == "forget":
                ours.forget(as_ids([id]))
                model.pq.pop(id, None)
            else:
                learn(ours, {id: score})
                model.score(id, score)
            assert contents(ours) == set(model.pq)

    @pytest.mark.parametrize("least", [2, 256, 2048])
    def test_a_long_run_equals_algorithm_1(self, least, monkeypatch):
        """So many residents that the front holds a part of them only. No two scores are equal."""
        monkeypatch.setattr(front, "_LEAST", least)
        rng = np.random.default_rng(0)
        samples, capacity = 1500, 700
        ours, model = APP(np.ones(samples, np.int64), capacity), Algorithm1(capacity)
        scores = iter(rng.permutation(20_000).astype(np.float32).tolist())
        happened = set()
        for id in rng.integers(0, samples, 4000).tolist():
            expected, may_leave = model.request(id)
            hit, held, left = request(ours, id)
            happened.add(expected)
            assert (hit, held) == (expected == "hit", expected != "skip")
            unknown = [other for other in may_leave if model.pq[other] < 0]
            assert set(left) <= may_leave
            assert len(left) == (expected == "evict")
            assert len(may_leave) <= 1 or unknown
            if expected in ("insert", "evict"):
                model.insert(id, *left)
            for other in (id, int(rng.integers(0, samples))):
                if rng.random() < 0.6:
                    score = next(scores)
                    learn(ours, {other: score})
                    model.score(other, score)
        assert contents(ours) == set(model.pq)
        assert happened == {"hit", "insert", "evict", "skip"}

    def test_hit(self):
        policy = holding(APP, {0: 3.0, 1: 4.0})
        assert request(policy, 0) == (True, True, [])
        assert contents(policy) == {0, 1}

    def test_miss_while_there_is_room(self):
        """Whether anything is known of it or not, and however little it matters."""
        policy = holding(APP, {0: 3.0}, capacity=3)
        assert request(policy, 5) == (False, True, [])
        learn(policy, {6: 0.0})
        assert request(policy, 6) == (False, True, [])
        assert contents(policy) == {0, 5, 6}

    def test_miss_when_full_and_more_important_than_the_least(self):
        policy = holding(APP, {0: 3.0, 1: 4.0})
        learn(policy, {5: 3.5})
        assert request(policy, 5) == (False, True, [0])
        assert contents(policy) == {1, 5}

    def test_miss_when_full_and_as_important_as_the_least(self):
        policy = holding(APP, {0: 3.0, 1: 4.0})
        learn(policy, {5: 3.0})
        assert request(policy, 5) == (False, True, [0])

    def test_of_equally_important_residents_the_lowest_id_leaves(self):
        policy = holding(APP, {4: 3.0, 2: 3.0, 9: 3.0})
        learn(policy, {5: 3.0})
        assert request(policy, 5) == (False, True, [2])

    def test_miss_when_full_and_less_important_than_all(self):
        policy = holding(APP, {0: 3.0, 1: 4.0})
        learn(policy, {5: 2.9})
        assert request(policy, 5) == (False, False, [])
        assert contents(policy) == {0, 1}

    def test_miss_when_full_and_nothing_is_known_of_it(self):
        policy = holding(APP, {0: 0.0, 1: 4.0})
        assert request(policy, 5) == (False, False, [])
        assert request(policy, 5) == (False, False, [])  # having been asked for is no score
        assert contents(policy) == {0, 1}

    def test_nothing_known_of_anyone(self):
        policy = APP(ONES, 2)
        assert [request(policy, id)[1] for id in (3, 4, 5)] == [True, True, False]
        assert contents(policy) == {3, 4}

    def test_a_resident_of_whom_nothing_is_known_leaves_first(self):
        policy = APP(ONES, 2)
        request(policy, 3)
        request(policy, 4)
        learn(policy, {3: 0.0, 5: 0.0})
        assert request(policy, 5) == (False, True, [4])

    def test_a_ghost_returns(self):
        policy = holding(APP, {0: 3.0, 1: 4.0})
        learn(policy, {5: 3.5})
        assert request(policy, 5)[2] == [0]
        assert request(policy, 0) == (False, False, [])  # the ghost still has 3.0
        learn(policy, {0: 3.6})
        assert request(policy, 0) == (False, True, [5])
        assert request(policy, 5) == (False, False, [])
        assert contents(policy) == {0, 1}

    def test_a_resident_that_lost_its_importance_leaves(self):
        policy = holding(APP, {0: 3.0, 1: 4.0})
        learn(policy, {5: 2.0})
        assert request(policy, 5) == (False, False, [])
        learn(policy, {1: 1.0})
        assert contents(policy) == {0, 1}, "nobody leaves before somebody comes"
        assert request(policy, 5) == (False, True, [1])

    def test_who_left_for_good_keeps_its_ghost(self):
        policy = holding(APP, {0: 3.0, 1: 4.0})
        policy.forget(as_ids([0]))
        assert request(policy, 7) == (False, True, [])
        assert request(policy, 0) == (False, True, [7])

    def test_a_stranger_that_took_free_room_late_leaves_first(self):
        """After the front has looked for the least important once."""
        policy = holding(APP, {0: 3.0, 1: 4.0, 2: 5.0})
        learn(policy, {5: 3.5})
        assert request(policy, 5)[2] == [0]
        policy.forget(as_ids([1]))
        assert request(policy, 7) == (False, True, [])
        assert request(policy, 0) == (False, True, [7])

    def test_a_score_of_nothing_is_known(self):
        policy = holding(APP, {0: 0.0})
        learn(policy, {1: 0.0})
        assert request(policy, 1) == (False, True, [0])

    def test_of_two_scores_for_one_id_the_later_holds(self):
        policy = holding(APP, {0: 3.0, 1: 4.0})
        policy.learn(as_ids([5, 5]), np.array([9, 1], np.float32))
        assert request(policy, 5) == (False, False, [])

    @settings(deadline=None, max_examples=100)
    @given(st.data())
    def test_a_batch_is_decided_as_a_whole(self, data):
        """Residents and newcomers together: the most important stay; strangers take what room is left."""
        capacity = data.draw(st.integers(0, IDS))
        ours, scores = APP(ONES, capacity), {}
        values = iter(np.random.default_rng(data.draw(st.integers(0, 99))).permutation(200).tolist())
        for _ in range(data.draw(st.integers(1, 8))):
            told = {id: float(next(values)) for id in data.draw(st.sets(st.integers(0, IDS - 1)))}
            learn(ours, told)
            scores.update(told)
            before = contents(ours)
            batch = data.draw(st.lists(st.integers(0, IDS - 1), max_size=IDS))
            done = step([ours], as_ids(batch))
            after = contents(ours)
            pool = before | set(batch)
            known = sorted((id for id in pool if id in scores), key=scores.__getitem__, reverse=True)
            assert {id for id in after if id in scores} == set(known[:capacity])
            unknown = before - set(scores)
            room = max(0, capacity - len(known))
            assert len(after & unknown) == min(room, len(unknown))
            assert len(after) == min(capacity, len(pool))
            assert set(done.drops[0].tolist()) == before - after

    @settings(deadline=None, max_examples=100)
    @given(st.data())
    def test_mixed_sizes_a_newcomer_is_more_important_than_all_who_make_room(self, data):
        sizes = np.array(data.draw(st.lists(st.integers(1, 6), min_size=IDS, max_size=IDS)))
        capacity = data.draw(st.integers(0, 20))
        ours = APP(sizes, capacity)
        scores = dict(enumerate(np.random.default_rng(data.draw(st.integers(0, 99))).permutation(IDS).tolist()))
        learn(ours, scores)
        for id in data.draw(st.lists(st.integers(0, IDS - 1), max_size=60)):
            before = contents(ours)
            hit, held, left = request(ours, id)
            assert hit == (id in before)
            if hit:
                continue
            room, must = capacity - sum(sizes[other] for other in before), []
            for other in sorted(before, key=scores.__getitem__):
                if room >= sizes[id]:
                    break
                must.append(other)
                room += sizes[other]
            enters = room >= sizes[id] and all(scores[id] >= scores[other] for other in must)
            assert held == enters
            assert left == (must if enters else [])


def most_important(policy, scores, planned, capacity, budget):
    """The slow way to `wanted`, for samples of size 1."""
    held = contents(policy)
    absent = [id for id in scores if id not in held and (planned is None or id in planned)]
    keys = {id: scores.get(id, -1.0) for id in (*held, *absent)}
    best = sorted(keys, key=lambda id: (-keys[id], id not in held, id))[:capacity]
    return [id for id in best if id not in held][:budget]


class TestWanted:
    @settings(deadline=None, max_examples=100)
    @given(st.data())
    def test_equals_an_obvious_model(self, data):
        capacity, budget = data.draw(st.integers(0, IDS)), data.draw(st.integers(0, IDS))
        policy = APP(ONES, capacity)
        for id in data.draw(st.lists(st.integers(0, IDS - 1))):
            request(policy, id)
        scores = data.draw(st.dictionaries(st.integers(0, IDS - 1), st.sampled_from([0.0, 1.0, 2.0, 3.0])))
        learn(policy, scores)
        planned = data.draw(st.none() | st.lists(st.integers(0, IDS - 1)))
        if planned is not None:
            policy.plan(as_ids(planned))
        assert policy.wanted(budget).tolist() == most_important(policy, scores, planned, capacity, budget)

    def test_the_most_important_first(self):
        policy = holding(APP, {0: 3.0, 1: 4.0, 2: 1.0})
        learn(policy, {5: 3.5, 6: 9.0, 7: 0.5})
        assert policy.wanted(3).tolist() == [6, 5]
        assert policy.wanted(1).tolist() == [6]
        assert policy.wanted(0).tolist() == []

    def test_only_what_is_planned(self):
        policy = holding(APP, {0: 3.0, 1: 4.0, 2: 1.0})
        learn(policy, {5: 3.5, 6: 9.0, 7: 0.5})
        policy.plan(as_ids([5, 7, 5, 0]))
        assert policy.wanted(3).tolist() == [5]
        policy.plan(as_ids([6]))
        assert policy.wanted(3).tolist() == [6]

    def test_none_as_important_as_a_resident(self):
        policy = holding(APP, {0: 3.0, 1: 3.0})
        learn(policy, {5: 3.0})
        assert policy.wanted(2).tolist() == []
        learn(policy, {0: 2.9})
        assert policy.wanted(2).tolist() == [5]

    def test_none_of_whom_nothing_is_known(self):
        policy = APP(ONES, 4)
        assert policy.wanted(4).tolist() == []
        policy.plan(np.arange(IDS))
        assert policy.wanted(4).tolist() == []

    def test_free_room_is_filled(self):
        policy = holding(APP, {0: 3.0}, capacity=3)
        learn(policy, {5: 1.0, 6: 2.0, 7: 0.5})
        assert policy.wanted(3).tolist() == [6, 5]

    @settings(deadline=None, max_examples=100)
    @given(st.data())
    def test_mixed_sizes_nothing_is_read_in_vain(self, data):
        """All that is wanted fits into budget and capacity, enters, and is more important than who leaves for it."""
        sizes = np.array(data.draw(st.lists(st.integers(0, 6), min_size=IDS, max_size=IDS)))
        capacity, budget = data.draw(st.integers(0, 25)), data.draw(st.integers(0, 25))
        policy = APP(sizes, capacity)
        step([policy], as_ids(data.draw(st.lists(st.integers(0, IDS - 1)))))
        scores = data.draw(st.dictionaries(st.integers(0, IDS - 1), st.sampled_from([0.0, 1.0, 2.0, 3.0])))
        learn(policy, scores)
        wanted = policy.wanted(budget)
        assert sizes[wanted].sum() <= budget
        assert not policy.resident[wanted].any()
        worth = [scores[id] for id in wanted.tolist()]
        assert worth == sorted(worth, reverse=True)
        size = data.draw(st.integers(1, IDS))
        for start in range(0, len(wanted), size):
            part = wanted[start : start + size]
            done = prefetch([policy], part)
            assert done.missed.tolist() == part.tolist()
            least = min(scores[id] for id in part.tolist())
            assert all(scores.get(id, -1.0) <= least for id in done.drops[0].tolist())
        assert policy.resident[wanted].all()
        assert policy.used <= capacity


class TestByScore:
    @settings(deadline=None, max_examples=100)
    @given(runs())
    def test_equals_a_priority_queue(self, run):
        capacity, events = run
        ours, scores, held = ByScore(ONES, capacity), dict.fromkeys(range(IDS), 0.0), set()
        for kind, id, score in events:
            if kind == "request":
                hit, stays, left = request(ours, id)
                assert hit == (id in held)
                assert stays == (capacity > 0)
                assert len(left) == (not hit and len(held) == capacity > 0)
                if left:
                    assert scores[left[0]] == min(scores[other] for other in held)
                held = (held | {id}) - set(left) if capacity else set()
            elif kind == "forget":
                ours.forget(as_ids([id]))
                held -= {id}
            else:
                learn(ours, {id: score})
                scores[id] = score
            assert contents(ours) == held


UP = float(np.nextafter(np.float32(1), np.float32(2)))
SCORES = (1.0, UP, 1e-30, 0.5, 3.0, 1e30)


class TestByScoreAndUse:
    """The least important leaves; of equals the one used less often, as far as anyone remembers; then any."""

    def check(self, policy, capacity, events, scores):
        used, held = dict.fromkeys(range(IDS), 0), set()
        for kind, id, score in events:
            if kind == "request":
                hit, _, left = request(policy, id)
                assert hit == (id in held)
                used[id] += 1
                assert len(left) == (not hit and len(held) == capacity > 0)
                if left:
                    rank = {other: (scores[other], used[other]) for other in held}
                    assert rank[left[0]] == min(rank.values()), (left, rank)
                held = (held | {id}) - set(left) if capacity else set()
            elif kind == "forget":
                policy.forget(as_ids([id]))
                held -= {id}
            else:
                learn(policy, {id: score})
                scores[id] = score
            assert contents(policy) == held

    @settings(deadline=None, max_examples=100)
    @given(runs(SCORES, learned=0.1), st.sampled_from(SCORES))
    def test_equals_a_lexicographic_model(self, run, first):
        capacity, events = run
        policy, scores = ByScoreAndUse(ONES, capacity), dict.fromkeys(range(IDS), float(np.float32(first)))
        learn(policy, scores)
        self.check(policy, capacity, events, scores)

    @settings(deadline=None, max_examples=100)
    @given(runs((0.0, 1.0), learned=0.1))
    def test_where_nothing_is_told_or_scores_are_zero_use_decides(self, run):
        capacity, events = run
        self.check(ByScoreAndUse(ONES, capacity), capacity, events, dict.fromkeys(range(IDS), 0.0))

    def test_any_number_of_uses_weighs_less_than_the_next_higher_score(self):
        policy = holding(ByScoreAndUse, {0: 1.0, 1: UP})
        for _ in range(3):
            policy.serve(np.zeros(1_000_000, np.int64))
        learn(policy, {5: 3.0})
        assert request(policy, 5)[2] == [0]

    def test_one_use_more_weighs_something_after_many(self):
        policy = holding(ByScoreAndUse, {0: 5.5, 1: 5.5})
        policy.serve(np.repeat(np.array([0, 1]), [500_001, 500_000]))
        learn(policy, {5: 9.0})
        assert request(policy, 5)[2] == [1]

    def test_repeats_within_a_batch_count(self):
        policy = holding(ByScoreAndUse, {0: 2.0, 1: 2.0, 2: 2.0})
        step([policy], as_ids([0, 0, 2, 1, 2]))
        assert request(policy, 7)[2] == [1]


def stack_of(kinds, rooms, sizes, scores):
    stack = [kind(sizes, room, np.random.default_rng(0)) for kind, room in zip(kinds, rooms, strict=True)]
    for policy in stack:
        learn(policy, scores)
    return stack


class TestPrefetch:
    @settings(deadline=None, max_examples=150)
    @given(st.lists(st.sampled_from([APP, ByScore, LRU, MinIO, Nothing]), min_size=1, max_size=3), st.data())
    def test_any_stack(self, kinds, data):
        sizes = np.array(data.draw(st.lists(st.integers(1, 4), min_size=IDS, max_size=IDS)))
        rooms = data.draw(st.lists(st.integers(0, 16), min_size=len(kinds), max_size=len(kinds)))
        scores = data.draw(st.dictionaries(st.integers(0, IDS - 1), st.floats(0, 5, width=32)))
        stack = stack_of(kinds, rooms, sizes, scores)
        for asked in data.draw(st.lists(st.lists(st.integers(0, IDS - 1), max_size=8), max_size=6)):
            step(stack, as_ids(asked))
        ids = as_ids(data.draw(st.lists(st.integers(0, IDS - 1), unique=True)))
        given_ids = ids.copy()
        before = [policy.resident.copy() for policy in stack]
        done = prefetch(stack, ids)

        assert np.array_equal(ids, given_ids)
        anywhere = np.any(before, axis=0)
        now = np.any([policy.resident for policy in stack], axis=0)
        assert sum(policy.resident.astype(int) for policy in stack).max() <= 1
        assert now[done.missed].all(), "nothing is read that is not kept"
        assert not anywhere[done.missed].any(), "nothing is read that is held"
        assert set(done.missed.tolist()) == {id for id in ids.tolist() if now[id] and not anywhere[id]}
        assert done.missed.tolist() == [id for id in ids.tolist() if id in set(done.missed.tolist())], "in this order"
        assert done.served is done.asked or np.array_equal(done.served, done.asked)
        assert set(done.served.tolist()) <= set(ids.tolist())
        for id, level in zip(done.served.tolist(), done.level.tolist(), strict=True):
            assert level == next((depth for depth, held in enumerate(before) if held[id]), len(stack))
        for depth, policy in enumerate(stack):
            held = before[depth].copy()
            assert held[done.drops[depth]].all()
            held[done.drops[depth]] = False
            assert not held[done.writes[depth]].any()
            held[done.writes[depth]] = True
            assert np.array_equal(held, policy.resident)
            assert policy.used == sizes[policy.resident].sum() <= policy.capacity
        bytes_at_hand = anywhere.copy()
        bytes_at_hand[done.missed] = True
        assert bytes_at_hand[np.concatenate(done.writes)].all()

    def test_one_level_takes_what_it_wants_and_reads_nothing_else(self):
        policy = holding(APP, {0: 3.0, 1: 4.0})
        learn(policy, {5: 3.5, 6: 1.0})
        done = prefetch([policy], as_ids([6, 5, 1, 7]))
        assert done.missed.tolist() == [5]
        assert done.writes[0].tolist() == [5]
        assert done.drops[0].tolist() == [0]

    def test_what_the_upper_level_gives_up_goes_down_and_is_not_read(self):
        scores = {0: 3.0, 1: 4.0, 5: 5.0}
        stack = stack_of([APP, APP], [2, 2], ONES, scores)
        step(stack, as_ids([0, 1]))
        done = prefetch(stack, as_ids([5]))
        assert done.missed.tolist() == [5]
        assert [part.tolist() for part in done.writes] == [[5], [0]]
        assert [contents(policy) for policy in stack] == [{1, 5}, {0}]

    def test_what_a_lower_level_holds_rises_without_a_read(self):
        stack = stack_of([APP, APP], [1, 2], ONES, {0: 3.0, 1: 2.0, 2: 1.0})
        step(stack, as_ids([0, 1, 2]))
        assert [contents(policy) for policy in stack] == [{0}, {1, 2}]
        for policy in stack:
            learn(policy, {2: 9.0})
        done = prefetch(stack, as_ids([2]))
        assert done.missed.tolist() == []
        assert done.level.tolist() == [1]
        assert [contents(policy) for policy in stack] == [{2}, {0, 1}]

    def test_without_any_level_nothing_is_read(self):
        done = prefetch([], as_ids([1, 2]))
        assert len(done.missed) == len(done.served) == 0


class TestAPPByLot:
    def test_a_stranger_is_not_let_into_a_full_cache(self):
        policy = APPByLot(np.ones(4, np.int64), 2, np.random.default_rng(0))
        step([policy], np.array([0, 1]))
        step([policy], np.array([2]))
        assert np.flatnonzero(policy.resident).tolist() == [0, 1]

    def test_the_more_important_are_held_more_often_but_not_always_the_same(self):
        """A tenth of a hundred samples is held: mostly those of triple score, but each of them in its turn."""
        policy = APPByLot(np.ones(100, np.int64), 10, np.random.default_rng(3))
        scores = np.where(np.arange(100) < 50, 3.0, 1.0).astype(np.float32)
        rng, held = np.random.default_rng(4), np.zeros(100)
        for _ in range(200):
            order = rng.permutation(100)
            policy.plan(order)
            for start in range(0, 100, 10):
                ids = order[start : start + 10]
                step([policy], ids)
                policy.learn(ids, scores[ids])
            held += policy.resident
        assert 2 < held[:50].sum() / held[50:].sum() < 8
        assert (held[:50] > 0).all()
        assert held.max() < 100

    def test_who_is_due_leaves_last(self):
        policy = APPByLot(np.ones(6, np.int64), 2, np.random.default_rng(1))
        policy.learn(np.arange(6), np.array([1, 1, 1, 1, 1, 1], np.float32))
        step([policy], np.array([0, 1]))
        policy.plan(np.array([2, 0, 3, 0, 4, 0]))
        for id in (2, 0, 3, 0, 4):
            step([policy], np.array([id]))
            assert policy.resident[0]

    def test_nothing_is_wanted(self):
        policy = APPByLot(np.ones(6, np.int64), 2, np.random.default_rng(1))
        policy.learn(np.arange(6), np.ones(6, np.float32))
        assert len(policy.wanted(10)) == 0

    def test_a_score_of_nothing_is_the_worst_lot(self):
        policy = APPByLot(np.ones(3, np.int64), 1, np.random.default_rng(1))
        policy.learn(np.arange(3), np.array([0, 1, 1], np.float32))
        step([policy], np.array([1]))
        step([policy], np.array([0]))
        assert policy.resident[1]
