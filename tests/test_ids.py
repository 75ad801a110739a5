"""Arithmetic on orders against obvious loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.ids import NONE, as_ids, first_seen, frequency, has_duplicates, uses

orders = st.lists(st.integers(0, 9), max_size=40)


NEVER = np.iinfo(np.int64).max


def next_use(ids, samples):
    small, large = uses(ids, samples, np.uint32)[1], uses(ids, samples)[1]
    assert np.array_equal(small == np.iinfo(np.uint32).max, large == NEVER)
    assert np.array_equal(small[large != NEVER], large[large != NEVER])
    return large


def first_use(ids, samples):
    return uses(ids, samples)[0]


def next_use_slowly(order):
    return [next((j for j in range(i + 1, len(order)) if order[j] == order[i]), NEVER) for i in range(len(order))]


@given(orders)
def test_next_use(order):
    assert next_use(as_ids(order), 10).tolist() == next_use_slowly(order)


@given(st.integers(1, 8), st.integers(1, 5), st.randoms(use_true_random=False))
def test_next_use_over_whole_epochs(samples, epochs, random):
    order = [id for _ in range(epochs) for id in random.sample(range(samples), samples)]
    assert next_use(as_ids(order), samples).tolist() == next_use_slowly(order)


@given(st.integers(1, 6), st.integers(2, 4), st.randoms(use_true_random=False))
def test_next_use_of_an_order_as_long_as_epochs_but_with_repeats(samples, epochs, random):
    order = [random.randrange(samples) for _ in range(epochs * samples)]
    assert next_use(as_ids(order), samples).tolist() == next_use_slowly(order)


@given(orders)
def test_first_use(order):
    expected = [order.index(id) if id in order else NEVER for id in range(10)]
    assert first_use(as_ids(order), 10).tolist() == expected


@given(orders)
def test_first_seen_and_has_duplicates(order):
    assert first_seen(as_ids(order)).tolist() == list(dict.fromkeys(order))
    assert has_duplicates(as_ids(order)) == (len(set(order)) < len(order))


@given(orders)
def test_frequency(order):
    assert frequency(as_ids(order), 10).tolist() == [order.count(id) for id in range(10)]


def test_as_ids_takes_whole_numbers_of_any_shape():
    assert as_ids([3, 1]).dtype == np.int64
    assert as_ids(np.array([[1, 2], [3, 4]], np.uint8)).tolist() == [1, 2, 3, 4]
    assert as_ids(7).tolist() == [7]
    assert as_ids([]).dtype == np.int64
    same = np.arange(4)
    assert np.shares_memory(as_ids(same), same)


def test_as_ids_refuses_fractions():
    with pytest.raises(TypeError, match="whole numbers"):
        as_ids([1.5])


def test_the_shared_empty_array_cannot_be_written_to():
    assert len(NONE) == 0
    assert not NONE.flags.writeable
