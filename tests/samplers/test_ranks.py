"""Cutting an order for several ranks: equal numbers of batches, every sample once, resumable by any world."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from augury.samplers.ranks import batches, epoch_size, portion, share, share_size

counts = st.integers(0, 120)
batch_sizes = st.integers(1, 9)
worlds = st.integers(1, 7)


def shares(order, batch_size, world, drop_last=False):
    return [share(order, batch_size, rank, world, drop_last) for rank in range(world)]


@given(counts, batch_sizes, worlds, st.booleans())
def test_all_ranks_get_the_same_number_of_batches(samples, batch_size, world, drop_last):
    expected = batches(samples, batch_size, world, drop_last)
    for rank, part in enumerate(shares(np.arange(samples), batch_size, world, drop_last)):
        assert math.ceil(len(part) / batch_size) == expected
        assert share_size(samples, batch_size, rank, world, drop_last) == len(part)


@given(counts, batch_sizes, worlds)
def test_every_sample_once_over_all_ranks(samples, batch_size, world):
    order = np.random.default_rng(samples).permutation(samples)
    got = np.concatenate(shares(order, batch_size, world))
    rest = samples % (batch_size * world)
    if 0 < rest < world:  # an empty batch would hang the others: some of the rest are visited twice
        assert len(got) == samples - rest + world
        assert set(got.tolist()) == set(range(samples))
        assert (np.bincount(got, minlength=samples)[order[: samples - rest]] == 1).all()
    else:
        assert np.array_equal(np.sort(got), np.arange(samples))


@given(counts, batch_sizes, worlds)
def test_drop_last_leaves_out_less_than_a_global_batch(samples, batch_size, world):
    got = np.concatenate(shares(np.arange(samples), batch_size, world, drop_last=True))
    whole = samples // (batch_size * world) * batch_size * world
    assert np.array_equal(np.sort(got), np.arange(whole))


@given(counts, batch_sizes, worlds)
def test_a_global_batch_is_consecutive_in_the_order(samples, batch_size, world):
    """So that what has been visited after k batches is one number."""
    order = np.random.default_rng(1).permutation(samples)
    parts = shares(order, batch_size, world)
    for k in range(samples // (batch_size * world)):
        together = np.concatenate([part[k * batch_size : (k + 1) * batch_size] for part in parts])
        assert np.array_equal(together, order[k * batch_size * world : (k + 1) * batch_size * world])


@given(counts, batch_sizes, worlds, worlds, st.data())
def test_another_world_resumes_at_any_offset_and_visits_exactly_the_rest(samples, batch_size, before, after, data):
    order = np.random.default_rng(2).permutation(samples)
    done = data.draw(st.integers(0, batches(samples, batch_size, before)))
    offset = min(samples, done * batch_size * before)
    visited = [part[: done * batch_size] for part in shares(order, batch_size, before)]
    resumed = shares(order[offset:], batch_size, after)
    assert len({math.ceil(len(part) / batch_size) for part in resumed}) == 1
    got = np.concatenate(visited + resumed)
    assert set(got.tolist()) == set(range(samples))
    assert set(np.concatenate(resumed).tolist()) == set(order[offset:].tolist())
    assert len(got) < samples + before + after


@given(counts, batch_sizes, worlds)
def test_the_last_global_batch_is_dealt_out_evenly(samples, batch_size, world):
    lengths = [len(part) for part in shares(np.arange(samples), batch_size, world)]
    assert max(lengths) - min(lengths) <= 1


@given(counts.filter(bool), batch_sizes, worlds, st.sampled_from([0.01, 0.3, 0.5, 0.75, 0.99]), st.booleans())
def test_an_epoch_of_a_part_gives_every_rank_the_same_samples_in_the_same_batches(
    samples, batch_size, world, part, drop_last
):
    """Not only as many batches: as many samples."""
    each, size = portion(samples, world, part), epoch_size(samples, world, part)
    assert size == world * each
    assert 1 <= each <= max(1, samples // world)
    assert abs(each - part * samples / world) <= 1.5 or each == 1
    sizes = {share_size(size, batch_size, rank, world, drop_last) for rank in range(world)}
    assert sizes == {each // batch_size * batch_size if drop_last else each}
    assert batches(size, batch_size, world, drop_last) == math.ceil(max(sizes) / batch_size)


@given(counts, worlds)
def test_a_whole_epoch_leaves_nobody_out(samples, world):
    assert epoch_size(samples, world, 1.0) == samples


def test_parts_by_hand():
    assert [portion(200, world, 0.75) for world in (1, 2, 3, 7, 200, 300)] == [150, 75, 50, 21, 1, 1]
    assert [epoch_size(10, world, 0.75) for world in (1, 2, 3, 4)] == [8, 8, 6, 8]
