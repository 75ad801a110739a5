"""Placement against a slow and obvious model, by a worked example, and as a policy among others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.errors import ConfigError
from augury.ids import NONE, as_ids, counted
from augury.policies.classic import MinIO
from augury.policies.placement import Placement, place
from augury.step import plan, prefetch, step


def sizes(count, size=1):
    return np.full(count, size, np.int64)


def times(*counts):
    return np.array(counts, np.int32)


class TestSixSamplesByHand:
    """Four epochs over three ranks of two; this rank draws 4 2, 0 4, 2 4, 1 2: of six samples it never sees 3 and 5.

    Sample 4 is requested three times and so is 2, sample 0 once and sample 1 once; first requests come as 4 2 0 1. A
    memory of two samples holds 4 and 2, a disk of one the first of the equals 0 and 1, and 1 stays in the source.
    """

    ORDER = as_ids([4, 2, 0, 4, 2, 4, 1, 2])

    def test_frequency_and_first_requests(self):
        first, how_often = counted(self.ORDER)
        assert first.tolist() == [4, 2, 0, 1]
        assert how_often.tolist() == [3, 3, 1, 1]

    def test_each_level_has_its_samples(self):
        first, how_often = counted(self.ORDER)
        memory, disk = place(first, how_often, [sizes(6), sizes(6)], [2, 1])
        assert (memory.tolist(), disk.tolist()) == ([4, 2], [0])

    def test_the_policies_do_the_same_as_they_are_asked(self):
        stack = [Placement(sizes(6), 2), Placement(sizes(6), 1)]
        first, how_often = counted(self.ORDER)
        plan(stack, first, times=how_often)
        assert [policy.wanted(9).tolist() for policy in stack] == [[4, 2], [0]]
        hits = [(step(stack, self.ORDER[at : at + 2]).level < 2).tolist() for at in range(0, 8, 2)]
        assert hits == [[False, False], [False, True], [True, True], [False, True]]
        assert [np.flatnonzero(policy.resident).tolist() for policy in stack] == [[2, 4], [0]]

    def test_filled_ahead_all_but_the_one_without_a_place_are_hits(self):
        stack = [Placement(sizes(6), 2), Placement(sizes(6), 1)]
        plan(stack, self.ORDER)
        assert prefetch(stack, as_ids([4, 0, 2, 1])).missed.tolist() == [4, 0, 2]
        level = step(stack, self.ORDER).level
        assert level.tolist() == [0, 0, 1, 0, 0, 0, 2, 0]


def obvious(order, how_often, costs, capacities):
    """By the book: go through the samples by frequency, of equals by first request; take what fits, level by level."""
    left = sorted(range(len(order)), key=lambda at: (-how_often[at], at))
    levels = []
    for cost, room in zip(costs, capacities, strict=True):
        taken = []
        for at in list(left):
            if cost[order[at]] <= room:
                room -= cost[order[at]]
                taken.append(at)
                left.remove(at)
        levels.append([order[at] for at in sorted(taken)])
    return levels


@st.composite
def runs(draw):
    samples = draw(st.integers(1, 16))
    order = draw(st.lists(st.integers(0, samples - 1), max_size=60))
    levels = draw(st.integers(1, 3))
    costs = [
        np.array(draw(st.lists(st.integers(0, 6), min_size=samples, max_size=samples)), np.int64) for _ in range(levels)
    ]
    return as_ids(order), samples, costs, draw(st.lists(st.integers(0, 30), min_size=levels, max_size=levels))


@given(runs())
def test_placement_is_that_of_the_obvious_model(run):
    order, _, costs, capacities = run
    first, how_often = counted(order)
    levels = place(first, how_often, costs, capacities)
    assert [level.tolist() for level in levels] == obvious(first.tolist(), how_often.tolist(), costs, capacities)


@given(runs(), st.booleans())
def test_a_stack_of_policies_places_as_the_function_does(run, compressed):
    order, _, costs, capacities = run
    first, how_often = counted(order)
    stack = [Placement(cost, room) for cost, room in zip(costs, capacities, strict=True)]
    plan(stack, *((first, 0, how_often) if compressed else (order,)))
    levels = place(first, how_often, costs, capacities)
    assert [policy.wanted(999).tolist() for policy in stack] == [level.tolist() for level in levels]
    for at in range(0, len(order), 3):
        step(stack, order[at : at + 3])
    held = [set(np.flatnonzero(policy.resident).tolist()) for policy in stack]
    assert held == [set(level.tolist()) for level in levels], "whoever has a place was requested, and stays"


@given(runs(), st.data())
def test_whatever_was_there_before_those_with_a_place_get_in_and_never_leave(run, data):
    order, samples, costs, capacities = run
    policy = Placement(costs[0], capacities[0])
    found = as_ids(data.draw(st.lists(st.integers(0, samples - 1), unique=True)))
    policy.adopt(found)
    placed = policy.plan(order)
    assert costs[0][placed].sum() <= capacities[0]
    for id in first_of(order):
        if not policy.resident[id]:
            fits = policy.used + costs[0][id] <= capacities[0]
            kept, evicted = policy.admit(as_ids([id]))
            assert kept[0] or (id not in placed and not fits), "room is used by whoever comes"
            assert not np.isin(evicted, placed).any()
    assert policy.resident[placed].all()


def first_of(order):
    return list(dict.fromkeys(order.tolist()))


def test_of_equals_a_warm_level_keeps_what_it_has():
    policy = Placement(sizes(8), 3)
    policy.adopt(as_ids([5, 7]))
    assert policy.plan(as_ids([0, 1, 2, 5, 6, 7])).tolist() == [0, 5, 7]
    assert policy.wanted(9).tolist() == [0]


def test_a_higher_frequency_counts_more_than_being_there():
    policy = Placement(sizes(4), 2)
    policy.adopt(as_ids([0, 1]))
    policy.plan(as_ids([0, 1, 2]), times=times(1, 2, 3))
    assert policy.wanted(9).tolist() == [2]
    kept, evicted = policy.admit(as_ids([2, 3]))
    assert kept.tolist() == [True, False]
    assert evicted.tolist() == [0]


def test_those_without_a_place_leave_the_least_requested_first_and_only_as_room_is_needed():
    policy = Placement(sizes(6), 4)
    policy.adopt(as_ids([0, 1, 2, 3]))
    policy.plan(as_ids([0, 1, 2, 4, 5]), times=times(1, 2, 9, 9, 9))
    assert policy.admit(as_ids([4]))[1].tolist() == [3], "nobody requests it"
    assert policy.admit(as_ids([5]))[1].tolist() == [0]
    assert policy.resident.tolist() == [False, True, True, False, True, True]


def test_a_smaller_level_gives_up_the_least_frequent_and_a_larger_one_wants_more():
    policy = Placement(sizes(5), 3)
    policy.plan(as_ids([0, 1, 2, 3, 4]), times=times(1, 2, 3, 4, 5))
    policy.admit(as_ids([2, 3, 4]))
    assert policy.resize(2).tolist() == [2]
    assert policy.admit(as_ids([2]))[0].tolist() == [False]
    assert policy.resize(4).tolist() == []
    assert policy.wanted(9).tolist() == [1, 2]


def test_what_is_lost_is_wanted_again_and_comes_back_when_it_is_requested():
    policy = Placement(sizes(3), 2)
    policy.plan(as_ids([2, 0, 1]))
    policy.admit(as_ids([2, 0]))
    policy.forget(as_ids([0]))
    assert policy.wanted(9).tolist() == [0]
    assert policy.admit(as_ids([0]))[0].all()


def test_wanted_keeps_to_its_budget_in_the_order_of_first_requests():
    policy = Placement(np.array([4, 1, 3], np.int64), 8)
    policy.plan(as_ids([2, 0, 1]), times=times(1, 5, 9))
    assert policy.wanted(3).tolist() == [2]
    assert policy.wanted(7).tolist() == [2, 0]
    assert policy.wanted(8).tolist() == [2, 0, 1]


def test_guests_have_the_room_of_those_who_are_still_to_come_the_least_frequent_leaves_first():
    policy = Placement(sizes(6), 3)
    policy.plan(as_ids([0, 1, 2, 3, 4, 5]), times=times(1, 9, 2, 1, 9, 9))
    assert policy.admit(as_ids([0]))[0].all()
    assert policy.admit(as_ids([1, 2]))[0].all()
    assert policy.admit(as_ids([4]))[1].tolist() == [0]
    assert policy.admit(as_ids([3]))[0].tolist() == [False], "a guest that is less frequent than the last one there"
    assert policy.admit(as_ids([5]))[1].tolist() == [2]


def test_one_job_plans_and_when_it_left_another_may():
    policy = Placement(sizes(4), 2)
    policy.plan(as_ids([0, 1, 2]), job=3)
    with pytest.raises(ConfigError, match="job 3 has planned"):
        policy.plan(as_ids([1]), job=4)
    policy.leave(4)
    assert policy.wanted(9).tolist() == [0, 1]
    policy.leave(3)
    assert policy.wanted(9).tolist() == []
    assert policy.plan(as_ids([1]), job=4).tolist() == [1]


def test_the_levels_below_plan_without_what_is_set_aside_above():
    told = []

    class Below(MinIO):
        def plan(self, order, job=0, times=None, later=NONE):
            told.append((order.tolist(), None if times is None else times.tolist(), later.tolist()))
            return super().plan(order, job, times, later)

    stack = [Placement(sizes(5), 2), Below(sizes(5), 2), Below(sizes(5), 2)]
    plan(stack, as_ids([4, 3, 2]), times=times(1, 5, 5))
    plan(stack, as_ids([4, 3, 3, 4, 2]), later=as_ids([1, 3, 2, 1]))
    assert told == [([4], [1], [])] * 2 + [([2], None, [1, 2, 1])] * 2
