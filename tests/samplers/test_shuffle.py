"""Orders: every sample once, and the same whenever and wherever they are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.knowledge import Knowledge
from augury.samplers import View
from augury.samplers.shuffle import InOrder, Shuffle

NO_SCORES = Knowledge.none(0)


@given(st.integers(0, 200), st.integers(0, 2**63), st.integers(0, 1000))
def test_every_sample_once(samples, seed, epoch):
    for sampler in (InOrder(samples, seed), Shuffle(samples, seed)):
        order = sampler.draw(epoch, NO_SCORES)
        assert order.dtype == np.int64
        assert np.array_equal(np.sort(order), np.arange(samples))


def test_an_epoch_is_a_function_of_seed_and_epoch():
    one, other = Shuffle(100, 7), Shuffle(100, 7)
    later = other.draw(5, NO_SCORES)
    for epoch in range(5):
        one.draw(epoch, NO_SCORES)
    assert np.array_equal(one.draw(5, Knowledge.none(100)), later)
    assert np.array_equal(one.draw(5, NO_SCORES), later)


def test_epochs_and_seeds_differ():
    orders = {tuple(Shuffle(50, seed).draw(epoch, NO_SCORES)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_the_order_of_seed_0_is_the_same_on_every_machine():
    assert Shuffle(10, 0).draw(0, NO_SCORES).tolist() == [0, 7, 8, 6, 9, 5, 1, 3, 2, 4]


def test_shuffles_are_uniform():
    """Every sample is as often first as any other. (Chi-square, wide.)"""
    first = np.bincount([Shuffle(8, 1).draw(epoch, NO_SCORES)[0] for epoch in range(4000)], minlength=8)
    assert ((first - 500.0) ** 2 / 500).sum() < 30


@pytest.mark.parametrize("make", [InOrder, Shuffle])
def test_the_default_is_foreseeable_and_arranges_nothing(make):
    sampler = make(20, 3)
    drawn = sampler.draw(2, NO_SCORES)
    assert sampler.foreseeable
    assert sampler.arrange(0, drawn, NO_SCORES, View(np.ones(20, np.bool_), 20, 4)) is drawn
