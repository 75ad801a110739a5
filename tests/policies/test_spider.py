"""SpiderCache's two sections: the paper's Figure 9, what it does not draw, and a slow model of both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.errors import ConfigError
from augury.ids import NONE, as_ids
from augury.policies.classic import LRU
from augury.policies.foresight import NextUse
from augury.policies.spider import IN_A_ROW, Important, Spider
from augury.step import prefetch, step
from augury.testing import PolicyContract

IDS = 40
ONES = np.ones(IDS, np.int64)
FALLING = [0.9, 0.8, 0.7, 0.6, 0.5]


class TestSpiderContract(PolicyContract):
    def make(self, sizes, capacity, rng):
        return Spider(sizes, capacity, rng)


class TestHalfForStandIns(PolicyContract):
    def make(self, sizes, capacity, rng):
        return Spider(sizes, capacity, rng, start=0.5, end=0.1)


class TestWithForesight(PolicyContract):
    def make(self, sizes, capacity, rng):
        return Spider(sizes, capacity, rng, section=NextUse, start=0.6, end=0.3)


class TestImportantContract(PolicyContract):
    def make(self, sizes, capacity, rng):
        return Important(sizes, capacity, rng)


def held(mask):
    return set(np.flatnonzero(mask).tolist())


def sections(policy):
    """Who is in the importance section, and who in the homophily section."""
    own, hubs = held(policy._own.resident), held(policy._hubs.resident)
    assert not own & hubs
    assert held(policy.resident) == own | hubs
    assert policy.used == int(policy.sizes[policy.resident].sum()) <= policy.capacity
    return own, hubs


def learn(policy, scores, kin=None):
    values = np.array(list(scores.values()), np.float32)
    policy.learn(as_ids(list(scores)), values, None if kin is None else as_ids(kin))


def request(policy, *ids):
    """One batch: who is served, and who left."""
    done = step([policy], as_ids(ids))
    return done.served.tolist(), done.drops[0].tolist()


def refill(policy):
    """What happens before every batch: who came, and who left."""
    done = prefetch([policy], policy.wanted(policy.capacity))
    return done.writes[0].tolist(), done.drops[0].tolist()


def call(policy, hub, *like, score=0.0):
    """Training says that a sample is like others, and it enters: who came, and who left."""
    learn(policy, {hub: score}, [hub, *like])
    return refill(policy)


def made(capacity=10, ratio=0.5, samples=IDS, **options):
    """In use by a job that has planned to visit everybody."""
    sizes = options.pop("sizes", np.ones(samples, np.int64))
    policy = Spider(sizes, capacity, np.random.default_rng(0), start=ratio, end=options.pop("end", ratio), **options)
    policy.plan(np.arange(len(sizes)))
    assert len(policy.wanted(capacity)) == 0  # nothing was learned yet
    return policy


A, B, C, D, E, F, G, H, X, Y = range(10)


class TestFigure9:
    """Three places for the important (a, e and f), two for stand-ins (g came before h); c is like h."""

    @pytest.fixture
    def policy(self):
        policy = made(capacity=5, ratio=0.6)
        learn(policy, {A: 0.4, B: 0.2, C: 0.5, D: 0.6, E: 0.3, F: 0.7})
        call(policy, G, X)
        call(policy, H, C)
        for id in (A, E, F):
            request(policy, id)
        assert sections(policy) == ({A, E, F}, {G, H})
        return policy

    def test_case_1_a_hits_the_importance_section(self, policy):
        done = step([policy], as_ids([A]))
        assert (done.served.tolist(), done.counts().hits) == ([A], 1)
        assert sections(policy) == ({A, E, F}, {G, H})

    def test_case_2_b_misses_both_and_is_less_important_than_e(self, policy):
        done = step([policy], as_ids([B]))
        assert (done.served.tolist(), done.missed.tolist(), done.counts().misses) == ([B], [B], 1)
        assert sections(policy) == ({A, E, F}, {G, H})

    def test_case_3_h_is_served_for_c(self, policy):
        done = step([policy], as_ids([C]))
        assert (done.served.tolist(), done.missed.tolist(), done.counts().substitutes) == ([H], [], 1)
        assert sections(policy) == ({A, E, F}, {G, H})

    def test_case_4_d_misses_both_and_takes_the_place_of_e(self, policy):
        done = step([policy], as_ids([D]))
        assert (done.served.tolist(), done.missed.tolist()) == ([D], [D])
        assert done.drops[0].tolist() == [E]
        assert sections(policy) == ({A, D, F}, {G, H})

    def test_after_the_batch_b_enters_the_homophily_section_and_g_leaves(self, policy):
        for id in (A, B, C, D):
            request(policy, id)
        learn(policy, {A: 0.4, B: 0.2, H: 0.1, D: 0.6}, [B, X, Y])
        assert policy.wanted(5).tolist() == [B]
        assert refill(policy) == ([B], [G])
        assert sections(policy) == ({A, D, F}, {H, B})
        assert request(policy, X, Y, C)[0] == [B, B, H]

    def test_one_batch_of_all_four(self, policy):
        done = step([policy], as_ids([A, B, C, D]))
        assert done.served.tolist() == [A, B, H, D]
        assert done.missed.tolist() == [B, D]
        assert done.drops[0].tolist() == [E]
        assert sections(policy) == ({A, D, F}, {G, H})


class TestImportant:
    def test_while_there_is_room_anybody_enters(self):
        policy = Important(ONES, 2)
        request(policy, 3)
        request(policy, 4)
        assert held(policy.resident) == {3, 4}

    def test_the_least_important_leaves_and_only_for_a_more_important_one(self):
        policy = Important(ONES, 2)
        learn(policy, {0: 0.5, 1: 0.7, 2: 0.4, 3: 0.6})
        request(policy, 0, 1)
        assert request(policy, 2) == ([2], [])
        assert request(policy, 3) == ([3], [0])

    def test_nobody_is_exchanged_for_an_equal(self):
        policy = Important(ONES, 2)
        learn(policy, {0: 0.5, 1: 0.5, 2: 0.5})
        request(policy, 0, 1)
        assert request(policy, 2) == ([2], [])
        assert held(policy.resident) == {0, 1}


class TestStandIns:
    def test_one_asked_for_by_its_own_id_is_a_hit(self):
        policy = made()
        call(policy, 1, 2, 3)
        done = step([policy], as_ids([1]))
        assert (done.served.tolist(), done.counts().hits, done.counts().substitutes) == ([1], 1, 0)

    def test_they_stand_in_for_those_that_are_listed_and_nobody_else(self):
        policy = made(capacity=2)
        call(policy, 1, 2, 3)
        assert request(policy, *range(6))[0] == [0, 1, 1, 1, 4, 5]

    def test_nobody_stands_in_for_one_that_is_held(self):
        policy = made()
        request(policy, 2)
        call(policy, 1, 2, 3)
        assert request(policy, 2, 3)[0] == [2, 1]

    def test_two_stand_ins_that_are_like_each_other_are_served_as_themselves(self):
        policy = made()
        call(policy, 1, 2, 3)
        call(policy, 2, 1, 4)
        assert request(policy, 1, 2, 3, 4)[0] == [1, 2, 1, 2]

    def test_one_that_is_called_but_not_there_yet_stands_in_for_nobody(self):
        policy = made()
        learn(policy, {1: 0.0}, [1, 2])
        assert request(policy, 2)[0] == [2]

    def test_of_two_that_list_the_same_the_last_one_serves(self):
        policy = made()
        call(policy, 1, 5, 6)
        call(policy, 2, 6, 7)
        assert request(policy, 5, 6, 7)[0] == [1, 2, 2]

    def test_that_an_earlier_one_leaves_changes_nothing_for_those_of_a_later_one(self):
        policy = made()
        call(policy, 1, 5, 6)
        call(policy, 2, 6, 7)
        policy.forget(as_ids([1]))
        assert request(policy, 6, 7)[0] == [2, 2]

    def test_when_one_leaves_its_neighbours_are_served_as_themselves(self):
        policy = made(capacity=4)
        call(policy, 1, 11)
        call(policy, 2, 12)
        assert call(policy, 3, 13) == ([3], [1])
        assert request(policy, 11, 12, 13)[0] == [11, 2, 3]

    def test_when_one_is_lost_its_neighbours_are_served_as_themselves(self):
        policy = made()
        call(policy, 1, 11)
        call(policy, 2, 12)
        policy.forget(as_ids([1]))
        assert sections(policy) == (set(), {2})
        assert request(policy, 11, 12)[0] == [11, 2]

    def test_first_in_first_out_whatever_is_used(self):
        policy = made(capacity=6)
        for hub in (1, 2, 3):
            call(policy, hub, 10 + hub, score=1.0 - hub / 10)
        for _ in range(5):
            request(policy, 1, 11)
        assert [call(policy, hub, 10 + hub)[1] for hub in (4, 5, 6)] == [[1], [2], [3]]

    def test_a_new_list_takes_the_place_of_the_old_one(self):
        policy = made(capacity=2)
        call(policy, 1, 5, 6)
        learn(policy, {1: 0.0}, [1, 6, 7])
        assert request(policy, 5, 6, 7)[0] == [5, 1, 1]

    def test_a_new_list_takes_nobody_from_another_one(self):
        policy = made()
        call(policy, 1, 5, 6)
        call(policy, 2, 6)
        learn(policy, {1: 0.0}, [1, 5])
        assert request(policy, 5, 6)[0] == [1, 2]

    def test_a_new_list_does_not_make_it_younger(self):
        policy = made(capacity=4)
        call(policy, 1, 11)
        call(policy, 2, 12)
        learn(policy, {1: 0.0}, [1, 13])
        assert refill(policy) == ([], [])
        assert call(policy, 3, 14) == ([3], [1])

    def test_the_last_list_of_one_that_is_called_counts(self):
        policy = made()
        learn(policy, {1: 0.0}, [1, 5])
        learn(policy, {1: 0.0}, [1, 6])
        assert refill(policy) == ([1], [])
        assert request(policy, 5, 6)[0] == [5, 1]

    @pytest.mark.parametrize("kin", [None, [], [1]])
    def test_scores_without_likeness_call_nobody(self, kin):
        policy = made()
        learn(policy, {1: 0.0}, kin)
        assert policy.wanted(10).tolist() == []
        request(policy, 1)
        assert sections(policy) == ({1}, set())

    def test_one_larger_than_the_section_is_not_called(self):
        policy = made(ratio=0.6, sizes=np.array([5, 4, 1, 1, 1]))
        learn(policy, {0: 0.0}, [0, 2])
        assert policy.wanted(10).tolist() == []
        learn(policy, {1: 0.0}, [1, 3])
        assert policy.wanted(10).tolist() == [1]
        request(policy, 0, 1)
        assert sections(policy) == ({0}, {1})
        assert request(policy, 2, 3)[0] == [2, 1]

    def test_several_small_ones_leave_for_a_large_one(self):
        policy = made(sizes=np.array([1, 1, 2, 4, 1, 1]))
        for hub in (0, 1, 2):
            call(policy, hub, 5)
        assert call(policy, 3, 4) == ([3], [0, 1, 2])
        policy = made(sizes=np.array([1, 1, 2, 3, 1, 1]))
        for hub in (0, 1, 2):
            call(policy, hub, 5)
        assert call(policy, 3, 4) == ([3], [0, 1])


class TestTwoSections:
    def test_one_that_is_called_changes_sections_and_no_byte_moves(self):
        policy = made()
        request(policy, 1, 2)
        learn(policy, {1: 0.0}, [1, 5])
        assert policy.wanted(10).tolist() == []
        done = step([policy], as_ids([3]))
        assert sections(policy) == ({2, 3}, {1})
        assert (done.writes[0].tolist(), done.drops[0].tolist()) == ([3], [])
        assert policy.used == 3

    def test_mixed_sizes_are_counted_once(self):
        sizes = np.random.default_rng(0).integers(1, 9, IDS)
        policy = made(capacity=60, sizes=sizes)
        rng = np.random.default_rng(1)
        for _ in range(200):
            ids = rng.permutation(IDS)[:4]
            learn(policy, dict(zip(ids.tolist(), rng.random(4), strict=True)), rng.permutation(IDS)[:3])
            refill(policy)
            request(policy, *rng.permutation(IDS)[:4])
            sections(policy)
        assert all(sections(policy))

    def test_one_that_comes_by_anyway_enters_with_those_bytes(self):
        policy = made()
        learn(policy, {1: 0.0}, [1, 5])
        done = step([policy], as_ids([1, 2]))
        assert done.writes[0].tolist() == [1, 2]
        assert sections(policy) == ({2}, {1})

    def test_room_without_stand_ins_is_for_the_important(self):
        policy = made(capacity=4)
        learn(policy, {id: float(id) for id in range(10)})
        request(policy, 5, 6, 7, 8)
        assert sections(policy) == ({5, 6, 7, 8}, set())
        assert call(policy, 1, 11) == ([1], [5])
        assert call(policy, 2, 12) == ([2], [6])
        assert sections(policy) == ({7, 8}, {1, 2})
        assert call(policy, 3, 13) == ([3], [1])
        assert sections(policy) == ({7, 8}, {2, 3})

    def test_room_that_a_large_stand_in_leaves_is_used_again(self):
        policy = made(capacity=8, sizes=np.array([4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]))
        call(policy, 0, 10)
        request(policy, 2, 3, 4, 5)
        assert request(policy, 6) == ([6], [])
        assert not policy.resident[6]
        assert call(policy, 1, 9) == ([1], [0])
        request(policy, 6, 7, 8)
        assert sections(policy) == ({2, 3, 4, 5, 6, 7, 8}, {1})

    def test_who_leaves_the_homophily_section_does_not_enter_the_other(self):
        policy = made(capacity=4)
        call(policy, 1, 11, score=9.0)
        call(policy, 2, 12)
        call(policy, 3, 13)
        assert sections(policy) == (set(), {2, 3})

    def test_of_several_that_enter_at_once_those_called_last_stay(self):
        policy = made(capacity=4)
        for hub in (1, 2, 3):
            learn(policy, {hub: 0.0}, [hub, 10 + hub])
        assert refill(policy) == ([1, 2, 3], [])  # the first finds room beside them
        assert sections(policy) == ({1}, {2, 3})
        assert request(policy, 11, 12, 13)[0] == [11, 2, 3]

    def test_one_that_came_and_left_at_once_is_not_read(self):
        policy = made(capacity=4)
        learn(policy, dict.fromkeys((6, 7, 8, 9), 1.0))
        request(policy, 6, 7, 8, 9)
        for hub in (1, 2, 3):
            learn(policy, {hub: 0.0}, [hub, 10 + hub])
        came, left = refill(policy)
        assert (came, len(left)) == ([2, 3], 2)
        assert sections(policy)[1] == {2, 3}

    def test_one_that_changed_sections_and_had_to_leave_is_dropped(self):
        policy = made(capacity=4)
        request(policy, 1, 2, 3, 4)
        for hub in (1, 2, 3):
            learn(policy, {hub: 0.0}, [hub, 10 + hub])
        learn(policy, {5: 1.0})
        assert request(policy, 5) == ([5], [1])
        assert sections(policy) == ({4, 5}, {2, 3})

    def test_without_a_share_for_stand_ins_there_are_none(self):
        policy, other = made(capacity=5, ratio=1), Important(ONES, 5)
        rng = np.random.default_rng(2)
        for _ in range(100):
            ids, scores = rng.permutation(IDS)[:3], rng.random(3).astype(np.float32)
            policy.learn(ids, scores, rng.permutation(IDS)[:5])
            other.learn(ids, scores)
            assert len(policy.wanted(5)) == 0
            asked = rng.permutation(IDS)[:3].tolist()
            assert request(policy, *asked) == request(other, *asked)
            assert request(policy, *asked)[0] == asked
            assert not sections(policy)[1]

    def test_stand_ins_may_have_it_all(self):
        policy = made(capacity=3, ratio=0)
        learn(policy, dict.fromkeys(range(20, 30), 1.0))
        request(policy, 20, 21, 22)
        for hub in (1, 2, 3):
            call(policy, hub, 10 + hub)
        assert sections(policy) == (set(), {1, 2, 3})
        request(policy, 23, 24)
        assert sections(policy) == (set(), {1, 2, 3})
        assert request(policy, 11, 12, 13)[0] == [1, 2, 3]

    def test_bad_ratios_are_refused(self):
        with pytest.raises(ConfigError, match=r"ratios from 0\.5 to 0\.7"):
            Spider(ONES, 5, start=0.5, end=0.7)

    def test_a_policy_of_its_own_for_the_important(self):
        policy = made(capacity=4, section=lambda sizes, capacity, rng: LRU(sizes, capacity, rng))
        call(policy, 1, 11)
        for id in (5, 6, 7, 5, 8):
            request(policy, id)
        assert sections(policy) == ({5, 7, 8}, {1})
        assert request(policy, 11)[0] == [1]

    def test_foresight_for_the_important(self):
        policy = made(capacity=4, ratio=0.75, section=NextUse)
        order = as_ids([5, 6, 7, 8, 5, 6, 7, 8])
        call(policy, 1, 11)
        policy.plan(order)
        for id in (5, 6, 7, 8):
            request(policy, id)
        assert sections(policy)[0] == {5, 6, 7}  # 8 is needed last
        assert request(policy, 11)[0] == [1]

    def test_all_that_is_planned_is_the_important_ones_business(self):
        class Planning(LRU):
            def plan(self, order, job=0, times=None, later=NONE):
                self.told = order.tolist(), job, None if times is None else times.tolist(), later.tolist()
                return order[:2]

            def serve(self, ids, job=0):
                self.told = ids.tolist(), job
                return super().serve(ids, job)

            def leave(self, job):
                self.told = job

        policy = made(section=Planning)
        times = np.array([1, 2, 1], np.int32)
        assert policy.plan(as_ids([3, 4, 5]), 0, times, as_ids([8, 9])).tolist() == [3, 4]
        assert policy._own.told == ([3, 4, 5], 0, [1, 2, 1], [8, 9])
        policy.serve(as_ids([4, 4]), 2)
        assert policy._own.told == ([4, 4], 2)
        policy.leave(7)
        assert policy._own.told == 7


class TestWanted:
    def test_those_that_are_to_stand_in_before_every_batch_until_they_are_there(self):
        policy = made()
        learn(policy, {3: 0.0}, [3, 13])
        learn(policy, {1: 0.0}, [1, 11])
        for _ in range(2):
            assert policy.wanted(10).tolist() == [3, 1]
        refill(policy)
        assert policy.wanted(10).tolist() == []

    def test_within_the_budget(self):
        policy = made(capacity=20, sizes=np.array([3, 5, 2, 1, 1, 1]))
        for hub in (0, 1, 2):
            learn(policy, {hub: 0.0}, [hub, 5])
        assert policy.wanted(5).tolist() == [0, 2]
        assert policy.wanted(0).tolist() == []

    def test_the_most_important_that_are_absent_once_after_a_plan(self):
        policy = made(capacity=4)
        learn(policy, {id: id / 10 for id in range(10)})
        request(policy, 9)
        policy.plan(np.arange(9))
        assert policy.wanted(4).tolist() == [8, 7, 6]
        assert policy.wanted(4).tolist() == []
        policy.plan(np.arange(9))
        assert policy.wanted(2).tolist() == [8, 7]

    def test_only_those_that_the_epoch_visits(self):
        policy = made(capacity=4)
        learn(policy, {id: id / 10 for id in range(10)})
        policy.plan(as_ids([1, 2, 3]))
        assert policy.wanted(4).tolist() == [3, 2, 1]

    def test_after_a_plan_those_that_are_to_stand_in_come_first(self):
        policy = made(capacity=4)
        learn(policy, {id: id / 10 for id in range(10)})
        learn(policy, {2: 0.2}, [2, 12])
        policy.plan(np.arange(9))
        assert policy.wanted(4).tolist() == [2, 8, 7, 6]
        policy.plan(np.arange(9))
        assert policy.wanted(2).tolist() == [2, 8]

    def test_nobody_is_named_twice(self):
        policy = made(capacity=4)
        learn(policy, {id: id / 10 for id in range(10)})
        call(policy, 9, 19, score=0.9)
        learn(policy, {8: 0.8}, [8, 18])
        policy.plan(np.arange(10))
        assert policy.wanted(4).tolist() == [8, 7]  # 9 stands in already

    def test_it_says_so(self):
        assert Spider.prefetches
        assert Spider.refills
        assert len(Spider.packages) == 0


class TestSizes:
    def full(self):
        policy = made(capacity=10, ratio=0.6)
        learn(policy, {id: id / 100 for id in range(20, 26)})
        request(policy, *range(20, 26))
        for hub in (1, 2, 3, 4):
            call(policy, hub, 10 + hub)
        assert sections(policy) == (set(range(20, 26)), {1, 2, 3, 4})
        return policy

    def test_a_smaller_cache_takes_from_both(self):
        policy = self.full()
        assert sorted(policy.resize(5).tolist()) == [1, 2, 20, 21, 22]
        assert policy.capacity == 5
        assert sections(policy) == ({23, 24, 25}, {3, 4})
        assert request(policy, 11, 12, 13, 14)[0] == [11, 12, 3, 4]

    def test_no_cache_at_all(self):
        policy = self.full()
        assert len(policy.resize(0)) == 10
        assert sections(policy) == (set(), set())
        assert request(policy, 11, 1)[0] == [11, 1]
        assert call(policy, 5, 15) == ([], [])

    def test_who_was_called_and_no_longer_fits_is_called_no_more(self):
        policy = made(capacity=10, sizes=np.array([4, 2, 1, 1]))
        learn(policy, {0: 0.0}, [0, 2])
        learn(policy, {1: 0.0}, [1, 3])
        policy.resize(6)
        assert policy.wanted(6).tolist() == [1]

    def test_a_larger_cache_has_more_of_both(self):
        policy = self.full()
        assert len(policy.resize(20)) == 0
        request(policy, *range(26, 40))
        assert len(sections(policy)[0]) == 16
        for hub in range(5, 9):
            call(policy, hub, 10 + hub)
        assert sections(policy)[1] == set(range(1, 9))
        assert call(policy, 9, 19)[1] == [1]

    def test_what_was_found_is_for_the_important(self):
        policy = made(capacity=4)
        call(policy, 1, 11)
        assert policy.adopt(as_ids([1, 5, 6, 6, 7, 8])).tolist() == [8]
        assert sections(policy) == ({5, 6, 7}, {1})
        learn(policy, {5: 0.9, 6: 0.1, 7: 0.8, 9: 0.5})
        assert request(policy, 9) == ([9], [6])

    def test_what_is_lost_of_both_is_forgotten(self):
        policy = self.full()
        policy.forget(as_ids([1, 20, 33, 1]))
        assert sections(policy) == (set(range(21, 26)), {2, 3, 4})


class TestRatio:
    def test_it_is_told(self):
        policy = made(capacity=10, ratio=0.7)
        assert policy.gauges == {"importance_ratio": 0.7, "homophily_used": 0.0}
        call(policy, 1, 11)
        call(policy, 2, 12)
        assert policy.gauges == {"importance_ratio": 0.7, "homophily_used": 0.2}
        assert Spider(ONES, 0).gauges["homophily_used"] == 0

    def converge(self, policy, done=1.0):
        """Scores that differ less from epoch to epoch."""
        policy.progress(done, FALLING, [0.5] * 6)

    def test_as_importance_converges_more_stand_in(self):
        policy = made(capacity=10, ratio=0.9, end=0.5)
        for hub in (11, 12):
            call(policy, hub, 10 + hub, score=1.0)
        assert len(sections(policy)[1]) == 1
        self.converge(policy)
        assert policy.gauges["importance_ratio"] == pytest.approx(0.5)
        for hub in range(11, 20):
            call(policy, hub, 10 + hub)
        assert len(sections(policy)[1]) == 5

    def test_while_it_diverges_nothing_changes(self):
        policy = made(capacity=10, ratio=0.9, end=0.5)
        for epochs in range(8):
            policy.progress(1.0, [0.1 * epoch for epoch in range(epochs)], [0.5] * 6)
        assert policy.gauges["importance_ratio"] == 0.9

    @pytest.mark.parametrize(("start", "end"), [(0.8, 0.9), (1.1, 0.5), (0.9, -0.1), (90, 80), (float("nan"), 0.5)])
    def test_ratios_that_are_none_are_refused(self, start, end):
        with pytest.raises(ConfigError, match=r"give 1 >= start >= end >= 0"):
            Spider(ONES, 4, start=start, end=end)

    def test_accuracy_slows_it_down(self):
        policy = made(capacity=10, ratio=0.9, end=0.5)
        self.converge(policy)
        policy.progress(0.5, FALLING, [0.99, 1.0])
        assert policy.gauges["importance_ratio"] == pytest.approx(0.9 - 0.4 * 0.5**1.5)

    def test_a_section_that_became_smaller_gives_room_back_when_it_is_used_next(self):
        policy = made(capacity=10, ratio=0.9, end=0.5)
        self.converge(policy)
        for hub in range(11, 16):
            call(policy, hub, 10 + hub)
        policy.progress(0.5, FALLING, [0.5] * 6)  # back in time: three places
        assert sections(policy)[1] == set(range(11, 16))
        call(policy, 16, 26)
        assert sections(policy)[1] == {14, 15, 16}

    def test_who_was_called_and_no_longer_fits_is_called_no_more(self):
        policy = made(capacity=10, ratio=0.9, end=0.5, sizes=np.array([1, 1, 4, 2, 1, 1]))
        self.converge(policy)
        learn(policy, {2: 1.0}, [2, 4])
        learn(policy, {3: 1.0}, [3, 5])
        policy.progress(0.5, FALLING, [0.5] * 6)
        assert policy.wanted(10).tolist() == [3]


class TestOthers:
    """Jobs that plan nothing, and samples that nobody plans to visit."""

    def test_a_job_that_never_planned_gets_what_it_asks_for(self):
        policy = made()
        call(policy, 1, 11)
        assert policy.serve(as_ids([11, 12])).tolist() == [1, 12]
        assert policy.serve(as_ids([11, 12]), job=1).tolist() == [11, 12]
        policy.leave(0)
        assert policy.serve(as_ids([11])).tolist() == [11]

    def test_who_was_never_planned_stands_in_for_nobody(self):
        policy = Spider(ONES, 10, start=0.5, end=0.5)
        policy.plan(np.arange(0, IDS, 2))
        learn(policy, {1: 0.1}, [1, 10, 12])
        learn(policy, {2: 0.1}, [2, 10, 12])
        policy.admit(as_ids([1, 2]))
        assert policy.serve(as_ids([10, 12])).tolist() == [2, 2]

    def test_after_two_stand_ins_a_sample_comes_itself(self):
        policy = made()
        call(policy, 1, 11)
        served = [int(policy.serve(as_ids([11]))[0]) for _ in range(6)]
        assert served == [1, 1, 11, 1, 1, 11]

    def test_only_so_many_wait_to_stand_in(self):
        policy = made(samples=200, capacity=100)
        for hub in range(100):
            learn(policy, {hub: 0.1}, [hub, 150])
        assert policy.wanted(1000).tolist() == list(range(36, 100))

    def test_nobody_leaves_where_all_fit(self):
        policy = Spider(np.ones(10, np.int64), 4, start=0.5, end=0.5)
        policy.plan(np.arange(10))
        for hub, like in ((0, 5), (1, 6)):
            learn(policy, {hub: 1.0}, [hub, like])
        policy.admit(as_ids([0, 1]))
        assert len(policy.resize(2)) == 0


class SlowSpider:
    """Two plain lists. Samples have one size; requests come one at a time."""

    UNKNOWN = -1.0

    def __init__(self, capacity, size, ratio):
        self.capacity, self.size = capacity, size
        self.important: set[int] = set()
        self.hubs: list[int] = []
        self.serves: dict[int, int] = {}
        self.called: dict[int, list[int]] = {}
        self.scores: dict[int, float] = {}
        self.replaced: dict[int, int] = {}
        self.room = capacity // size
        self.divide(ratio)

    def divide(self, ratio):
        self.places = (self.capacity - round(ratio * self.capacity)) // self.size
        if self.places == 0:
            self.called.clear()

    def score(self, id):
        return self.scores.get(id, self.UNKNOWN)

    def request(self, id):
        """Who is served; whether it has to be read."""
        if id in self.important or id in self.hubs:
            self.replaced[id] = 0
            return id, False
        if id in self.serves and self.replaced.get(id, 0) < IN_A_ROW:
            self.replaced[id] = self.replaced.get(id, 0) + 1
            return self.serves[id], False
        self.replaced[id] = 0
        return id, True

    def learn(self, id, score, like):
        self.scores[id] = score
        if like and id in self.hubs:
            self.unlist(id)
            self.serves.update(dict.fromkeys(like, id))
        elif like and self.places:
            self.called[id] = like

    def unlist(self, hub):
        self.serves = {id: other for id, other in self.serves.items() if other != hub}

    def forget(self, id):
        self.important.discard(id)
        if id in self.hubs:
            self.hubs.remove(id)
            self.unlist(id)
            self.room = self.capacity // self.size - len(self.hubs)

    def take(self, id, left):
        """The bytes of `id` are here. Of equally unimportant ones any may leave: `left` says who did."""
        before = self.important | set(self.hubs)
        coming = [hub for hub in self.called if hub in self.important] + [id] * (id in self.called)
        for hub in coming:
            self.important.discard(hub)
            while len(self.hubs) >= self.places:
                self.forget(self.hubs[0])
            self.hubs.append(hub)
            self.serves.update(dict.fromkeys(self.called.pop(hub), hub))
            self.room = self.capacity // self.size - len(self.hubs)
        leaving = max(0, len(self.important) - self.room)
        known, lowest = id in self.scores, sorted(map(self.score, self.important))
        if id in self.hubs:
            enters = False
        elif len(self.important) < self.room:
            enters = True
        else:
            enters = known and self.room > 0 and self.score(id) > lowest[leaving]
            leaving += enters
        least = sorted(self.important & left, key=self.score)
        assert [self.score(one) for one in least] == lowest[:leaving]
        self.important -= set(least)
        if enters:
            self.important.add(id)
        assert left == before - self.important - set(self.hubs)


@st.composite
def runs(draw):
    """How large, and many calls: long ones, which shrink badly but try much."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    samples, size = draw(st.integers(2, 30)), draw(st.sampled_from([1, 3]))
    kinds = ["request", "learn", "refill", "forget", "progress"]
    kinds = rng.choice(kinds, draw(st.integers(1, 150)), p=[0.45, 0.3, 0.15, 0.04, 0.06])
    capacity, ratio = draw(st.integers(0, samples * size)), draw(st.sampled_from([0, 0.3, 0.5, 0.8, 1]))
    return samples, size, capacity, ratio, kinds.tolist(), rng


def follow(run):
    samples, size, capacity, ratio, kinds, rng = run
    policy = made(capacity, ratio, sizes=np.full(samples, size), end=ratio / 3)
    model, happened = SlowSpider(capacity, size, ratio), set()
    for kind in kinds:
        id = int(rng.integers(samples))
        if kind == "learn":
            score = float(np.float32(rng.integers(0, 8) / 8))
            like = [int(other) for other in rng.permutation(samples)[: rng.integers(0, 4)] if other != id]
            learn(policy, {id: score}, [id, *like] if like else None)
            model.learn(id, score, like)
        elif kind == "forget":
            policy.forget(as_ids([id]))
            model.forget(id)
        elif kind == "progress":
            policy.progress(float(rng.random()), sorted(rng.random(6))[::-1], rng.random(3).tolist())
            model.divide(policy.gauges["importance_ratio"])
        elif kind == "refill":
            wanted = policy.wanted(capacity).tolist()
            absent = [hub for hub in model.called if hub not in model.important]
            assert wanted == absent[: capacity // size]
            for one in wanted[:1]:
                done = prefetch([policy], as_ids([one]))
                model.take(one, set(done.drops[0].tolist()))
                happened.add("called in")
        else:
            served, reads = model.request(id)
            done = step([policy], as_ids([id]))
            assert done.served.tolist() == [served]
            assert len(done.missed) == reads
            happened.add("read" if reads else "hit" if served == id else "stand-in")
            if reads:
                model.take(id, set(done.drops[0].tolist()))
        assert sections(policy) == (model.important, set(model.hubs))
        assert {id: hub for id, hub in enumerate(policy._hubs.stands_in.tolist()) if hub >= 0} == model.serves
    return happened


@settings(deadline=None, max_examples=150)
@given(runs())
def test_equals_a_slow_model_request_by_request(run):
    follow(run)


@pytest.mark.parametrize("ratio", [0.3, 0.8])
def test_a_long_run_equals_the_slow_model(ratio):
    rng = np.random.default_rng(3)
    kinds = rng.choice(["request", "learn", "refill", "forget", "progress"], 2500, p=[0.6, 0.25, 0.13, 0.01, 0.01])
    assert follow((60, 1, 25, ratio, kinds.tolist(), rng)) == {"read", "hit", "stand-in", "called in"}
