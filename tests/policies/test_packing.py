"""Packages of L-samples against a slow obvious model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.ids import NONE, as_ids
from augury.policies.packing import ABANDON, Packing

IDS = 24


def rng(seed=0):
    return np.random.default_rng(seed)


def mask(ids, samples=IDS):
    low = np.zeros(samples, np.bool_)
    low[as_ids(list(ids))] = True
    return low


def lists(packing):
    return [package.tolist() for package in packing.packages]


def taken(packing):
    """All that are left in line."""
    found = []
    while (package := packing.next()) is not None:
        found.append(package.tolist())
    return found


def packed(sizes, size, low, missed=(), seed=0):
    packing = Packing(np.array(sizes, np.int64), size)
    packing.repack(mask(low, len(sizes)), as_ids(list(missed)), rng(seed))
    return packing


@st.composite
def rounds(draw):
    """Sizes, the size of a package, and several epochs: who is an L-sample, and who was missed, each once."""
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=IDS))
    ids = st.integers(0, len(sizes) - 1)
    epochs = st.tuples(st.sets(ids), st.lists(ids, unique=True, max_size=8))
    return sizes, draw(st.integers(1, 30)), draw(st.lists(epochs, min_size=1, max_size=5))


@settings(deadline=None, max_examples=120)
@given(rounds(), st.integers(0, 9))
def test_equals_an_obvious_model(world, seed):
    """Which of those that were not missed lie together is chance: all the rest is not."""
    sizes, size, epochs = world
    chance, packing = rng(seed), Packing(np.array(sizes, np.int64), size)
    before: list[list[int]] = []
    for low, missed in epochs:
        packing.repack(mask(low, len(sizes)), as_ids(missed), chance)
        kept = [package for package in before if len(low & set(package)) >= len(package) / 2]
        now = lists(packing)
        assert now[: len(kept)] == kept
        fresh = now[len(kept) :]
        loose = low - {id for package in kept for id in package}
        first = [id for id in missed if id in loose]
        in_order = [id for package in fresh for id in package]
        assert set(in_order) <= loose, "only L-samples that lie nowhere are packed"
        assert len(set(in_order)) == len(in_order), "each in one package"
        assert in_order[: len(first)] == first[: len(in_order)], "those that were missed come first"
        for package in fresh:
            assert sum(sizes[id] for id in package) >= size
            assert sum(sizes[id] for id in package[:-1]) < size, "and no larger than it must be"
        assert sum(sizes[id] for id in loose - set(in_order)) < size, "what is left over fills no package"
        before = now


@settings(deadline=None, max_examples=100)
@given(rounds(), st.sets(st.integers(0, IDS - 1)), st.integers(0, 9))
def test_most_visited_first_and_each_once(world, due, seed):
    sizes, size, epochs = world
    packing = packed(sizes, size, *epochs[0], seed=seed)
    assert packing.next() is None, "nobody has lined up yet"
    due = {id for id in due if id < len(sizes)}
    for again in range(2):
        packing.line_up(mask(due, len(sizes)), rng(seed + again))
        found = taken(packing)
        assert sorted(found) == sorted(lists(packing))
        visited = [len(due & set(package)) for package in found]
        assert visited == sorted(visited, reverse=True)
        assert packing.next() is None


def test_a_new_line_begins_anew():
    packing = packed([1] * 12, 3, range(12))
    packing.line_up(mask([], 12), rng())
    packing.next()
    packing.line_up(mask([], 12), rng())
    assert len(taken(packing)) == 4


def test_equally_useful_packages_come_in_random_order():
    packing = packed([1] * 24, 2, range(24))
    orders = set()
    for seed in range(5):
        packing.line_up(mask([]), rng(seed))
        orders.add(str(taken(packing)))
    assert len(orders) > 1


def test_who_lies_together_is_chance():
    assert len({str(lists(packed([1] * 24, 4, range(24), seed=seed))) for seed in range(5)}) > 1
    assert lists(packed([1] * 24, 4, range(24))) == lists(packed([1] * 24, 4, range(24)))


def test_a_package_of_which_half_are_l_samples_stays_and_of_which_fewer_are_does_not():
    packing = packed([1] * 4, 4, range(4))
    [package] = lists(packing)
    assert ABANDON == 0.5
    packing.repack(mask(package[:2], 4), NONE, rng())
    assert lists(packing) == [package]
    packing.repack(mask(package[:1], 4), NONE, rng())
    assert lists(packing) == []


def test_those_of_an_abandoned_package_are_packed_anew():
    packing = packed([1] * 8, 4, [0, 1, 2, 3])
    packing.repack(mask([0, 4, 5, 6], 8), NONE, rng())
    [package] = lists(packing)
    assert set(package) == {0, 4, 5, 6}


def test_those_of_a_package_that_stays_are_not_packed_twice():
    """Also where they were missed, and where they come back from the H-list."""
    packing = packed([1] * 8, 4, [0, 1, 2, 3])
    packing.repack(mask([0, 1, 4, 5], 8), as_ids([0, 1]), rng())
    assert [set(package) for package in lists(packing)] == [{0, 1, 2, 3}]
    packing.repack(mask(range(8), 8), NONE, rng())
    assert [set(package) for package in lists(packing)] == [{0, 1, 2, 3}, {4, 5, 6, 7}]


def test_h_samples_that_were_missed_are_not_packed():
    assert [set(package) for package in lists(packed([1] * 6, 2, [0, 1], missed=[5, 1]))] == [{0, 1}]


def test_the_leftover_waits_for_the_next_time():
    packing = packed([1] * 5, 3, range(5), missed=[4, 0])
    [first] = lists(packing)
    assert first[:2] == [4, 0]
    left = sorted(set(range(5)) - set(first))
    packing.repack(mask(range(5), 5), NONE, rng())
    assert lists(packing) == [first]
    packing = Packing(np.ones(6, np.int64), 3)
    packing.repack(mask(range(5), 6), as_ids(first), rng())
    packing.repack(mask(range(6), 6), NONE, rng())
    assert [set(package) for package in lists(packing)] == [set(first), {*left, 5}]


@pytest.mark.parametrize("low", [[0, 1], range(12)], ids=["some are given up", "some are added"])
def test_what_was_handed_out_does_not_change(low):
    """Files are named by packages, and written by another thread."""
    packing = packed([1] * 12, 2, range(8))
    given, before = packing.packages, lists(packing)
    packing.repack(mask(low, 12), NONE, rng(1))
    packing.line_up(mask([0], 12), rng(1))
    assert lists(packing) != before
    assert [package.tolist() for package in given] == before


@pytest.mark.parametrize(
    ("sizes", "size", "low", "expected"),
    [
        ([], 5, [], []),
        ([3], 5, [0], []),
        ([3], 3, [0], [[0]]),
        ([9], 3, [0], [[0]]),
        ([3], 3, [], []),
        ([0, 0, 0], 1, [0, 1, 2], []),
        ([1, 2, 3], 7, [0, 1, 2], []),
        ([4, 4], 0, [0, 1], [[0], [1]]),
        ([0, 0], 0, [0, 1], []),
    ],
    ids=["nobody", "too small", "just", "too large", "no L-sample", "no bytes", "not enough", "of no size", "nothing"],
)
def test_degenerate(sizes, size, low, expected):
    packing = packed(sizes, size, low)
    assert sorted(lists(packing)) == expected
    packing.line_up(mask(low, len(sizes)), rng())
    assert sorted(taken(packing)) == expected
