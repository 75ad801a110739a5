"""torch samplers that draw by weight or by what was learned: for any number of ranks, resumable, checked."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from augury.errors import BadFeedback, ConfigError
from augury.recipes import find
from augury.samplers.selective import IIS
from augury.torch import CachedDataset, Sampler, WeightedSampler
from helpers import arrays


def drawn(sampler):
    return np.array(list(sampler))


def test_weights_are_kept_to_like_torch():
    weights = np.array([1.0, 2, 3, 4, 0])
    ours = np.bincount(drawn(WeightedSampler(weights, 50_000, seed=1)), minlength=5) / 50_000
    theirs = torch.utils.data.WeightedRandomSampler(weights.tolist(), 50_000)
    assert np.allclose(ours, weights / 10, atol=0.01)
    assert np.allclose(ours, np.bincount(list(theirs), minlength=5) / 50_000, atol=0.02)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_cut_one_draw(world, drop_last):
    weights = np.arange(100.0)
    whole = drawn(WeightedSampler(weights, seed=4))
    parts = [
        WeightedSampler(weights, seed=4, num_replicas=world, rank=rank, drop_last=drop_last) for rank in range(world)
    ]
    ids = [drawn(part) for part in parts]
    assert [len(part) for part in ids] == [len(part) for part in parts] == [len(parts[0])] * world
    together = np.stack(ids, axis=1).reshape(-1)[: len(whole)]
    assert np.array_equal(together, whole[: len(together)])


def test_epochs_differ_and_can_be_had_again():
    sampler = WeightedSampler(torch.ones(50), seed=2)
    first, second = drawn(sampler), drawn(sampler)
    assert not np.array_equal(first, second)
    sampler.set_epoch(0)
    assert np.array_equal(drawn(sampler), first)


def test_without_replacement_nobody_comes_twice():
    weights = np.array([0, 5, 1, 1, 1, 1, 1, 0])
    counts = np.zeros(8)
    for seed in range(300):
        ids = drawn(WeightedSampler(weights, 3, replacement=False, seed=seed))
        assert len(set(ids.tolist())) == 3
        counts[ids] += 1
    assert counts[[0, 7]].sum() == 0
    assert counts[1] > 1.5 * counts[2:7].max()


@pytest.mark.parametrize("weights", [[1e308] * 10, [1e-320] * 10, [1e-30] * 10, [5] * 10])
@pytest.mark.parametrize("replacement", [False, True])
def test_weights_of_any_size(weights, replacement):
    seen = {id for seed in range(40) for id in drawn(WeightedSampler(weights, 5, replacement=replacement, seed=seed))}
    assert seen == set(range(10))


@pytest.mark.parametrize("consumed", [0, 30, 70, 90])
def test_a_run_with_workers_resumes_where_training_is(consumed):
    weights, x = np.arange(1.0, 101), CachedDataset(arrays(100), with_ids=True)
    sampler = WeightedSampler(weights, seed=3)
    whole = drawn(sampler)
    sampler.set_epoch(0)
    loader = DataLoader(x, 10, sampler=sampler, num_workers=2, prefetch_factor=4)
    for number, _ in enumerate(loader):
        if (number + 1) * 10 >= consumed:
            break
    state = sampler.state_dict(consumed=consumed)
    again = WeightedSampler(weights)
    again.load_state_dict(state)
    assert np.array_equal(drawn(again), whole[consumed:])
    x.close()


def test_an_epoch_that_was_consumed_whole_is_over():
    sampler = WeightedSampler(np.ones(20))
    list(sampler)
    assert sampler.state_dict(consumed=20)["epoch"] == 1
    assert sampler.state_dict()["epoch"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": []}, "weights must be"),
        ({"weights": [1, -1]}, "weights must be"),
        ({"weights": [0, 0]}, "weights must be"),
        ({"weights": [1, np.nan]}, "weights must be"),
        ({"weights": "abc"}, "not an array of numbers"),
        ({"weights": [1, 2], "num_samples": 0}, "number of samples"),
        ({"weights": [1, 2], "num_samples": 2.5}, "number of samples"),
        ({"weights": [1, 0], "num_samples": 2, "replacement": False}, "without replacement"),
        ({"weights": [1, 2], "seed": -1}, "seed"),
        ({"weights": [1, 2], "seed": 2**64}, "seed"),
        ({"weights": [1, 2], "rank": 2, "num_replicas": 2}, "rank 2 of 2"),
    ],
)
def test_what_cannot_work_is_said(options, message):
    with pytest.raises(ConfigError, match=message):
        WeightedSampler(**options)


def test_weights_may_change_between_epochs():
    sampler = WeightedSampler([1, 0, 0], 5)
    assert set(drawn(sampler)) == {0}
    sampler.set_weights([0, 0, 1])
    assert set(drawn(sampler)) == {2}
    with pytest.raises(ConfigError, match="4 weights now"):
        sampler.set_weights([1, 1, 1, 1])
    once = WeightedSampler([1, 1, 1], 2, replacement=False)
    with pytest.raises(ConfigError, match="without replacement"):
        once.set_weights([1, 0, 0])
    with pytest.raises(ConfigError, match="counted from 0"):
        sampler.set_epoch(-1)
    with pytest.raises(ConfigError, match="does not exist"):
        sampler.load_state_dict(sampler.state_dict() | {"offset": 99})


def test_a_recipe_that_learns_draws_the_hard_ones_more_often():
    sampler = Sampler(400, recipe="shade", seed=1)
    assert np.array_equal(np.sort(drawn(sampler)), np.arange(400))
    for start in range(0, 400, 40):
        ids = np.arange(start, start + 40)
        sampler.feedback(ids, losses=(ids % 40).astype(float))
    often = np.zeros(400)
    for _ in range(20):
        often += np.bincount(drawn(sampler), minlength=400)
    hard = np.arange(400) % 40 >= 30
    assert often[hard].mean() > 1.2 * often[~hard].mean()
    sampler.feedback(accuracy=0.5)
    with pytest.raises(BadFeedback, match="no sample 400"):
        sampler.feedback([400], [1.0])


def test_ranks_of_a_learning_recipe_draw_equally_much():
    samplers = [Sampler(401, recipe="shade", num_replicas=3, rank=rank) for rank in range(3)]
    first = [drawn(sampler) for sampler in samplers]
    assert set(np.concatenate(first).tolist()) == set(range(401))
    for sampler, ids in zip(samplers, first, strict=True):
        sampler.feedback(ids, np.ones(len(ids)))
    assert {len(drawn(sampler)) for sampler in samplers} == {134} == {len(sampler) for sampler in samplers}


def test_a_learning_state_brings_the_scores():
    sampler = Sampler(100, recipe="shade", seed=1)
    ids = drawn(sampler)
    sampler.feedback(ids, ids.astype(float))
    state = sampler.state_dict()
    again = Sampler(100, recipe="shade")
    again.load_state_dict(state)
    assert np.array_equal(drawn(again), drawn(sampler))
    with pytest.raises(ConfigError, match="no scores of recipe 'sh-lru'"):
        Sampler(100, recipe="sh-lru").load_state_dict(state)
    with pytest.raises(ConfigError, match="no scores"):
        again.load_state_dict(Sampler(100).state_dict())


IIS_SOON = replace(find("iis-lru"), sampler=partial(IIS, warm_up=1))
"""Epochs 1, 2, 4 and 5 leave samples out."""


class TestPartialEpochs:
    def test_epochs_are_as_long_as_the_sampler_says(self):
        sampler = Sampler(200, recipe=IIS_SOON, seed=1)
        for epoch in range(6):
            expected = 200 if epoch in (0, 3) else 150
            assert len(sampler) == expected
            ids = drawn(sampler)
            assert len(ids) == len(np.unique(ids)) == expected
            sampler.feedback(ids, ids / 200)
        for epoch, expected in ((4, 150), (3, 200)):
            sampler.set_epoch(epoch)
            assert len(sampler) == len(drawn(sampler)) == expected

    def test_a_data_loader_follows(self):
        data = CachedDataset(arrays(200), with_ids=True)
        sampler = Sampler(data, recipe=IIS_SOON)
        loader = DataLoader(data, 16, sampler=sampler)
        for epoch in range(3):
            expected = 13 if epoch == 0 else 10
            assert len(loader) == expected
            count = 0
            for _, _, ids in loader:
                sampler.feedback(ids, torch.rand(len(ids)))
                count += 1
            assert count == expected
        data.close()

    def test_the_important_come_and_others_are_left_out(self):
        sampler = Sampler(200, recipe=replace(IIS_SOON, sampler=partial(IIS, beta=2, warm_up=1, reuse=None)))
        often = np.zeros(200)
        for epoch in range(16):
            ids = drawn(sampler)
            sampler.feedback(ids, ids / 200)
            often[ids] += epoch > 0
        assert often[:50].mean() < 3 < 9 < often[150:].mean()
        assert often[199] == 15

    @pytest.mark.parametrize(("world", "drop_last"), [(2, False), (3, True), (7, False), (7, True), (250, False)])
    def test_ranks_have_equally_many_and_nobody_in_common(self, world, drop_last):
        samplers = [
            Sampler(200, recipe=IIS_SOON, num_replicas=world, rank=rank, drop_last=drop_last) for rank in range(world)
        ]
        for epoch in range(3):
            each = [drawn(sampler) for sampler in samplers]
            assert {len(ids) for ids in each} == {len(each[0])}
            together = np.concatenate(each)
            if epoch and world < 200:
                assert len(together) == len(np.unique(together)) == pytest.approx(150, abs=world)
            for sampler, ids in zip(samplers, each, strict=True):
                assert sampler.epoch == epoch + 1
                sampler.feedback(ids, ids / 200)

    @pytest.mark.parametrize("place", [{}, {"num_replicas": 2, "rank": 1}])
    @pytest.mark.parametrize("stop", [1, 40, 74])
    def test_a_run_resumes_where_it_was_and_goes_on_as_it_would_have(self, stop, place):
        def run(sampler, epochs):
            for _ in range(epochs):
                ids = drawn(sampler)
                sampler.feedback(ids, ids % 37)
            return ids

        sampler = Sampler(200, recipe=IIS_SOON, seed=5, **place)
        run(sampler, 2)
        whole = [id for _, id in zip(range(stop), sampler, strict=False)]
        state = json.loads(json.dumps(sampler.state_dict()))
        assert (state["epoch"], state["offset"]) == (2, stop * place.get("num_replicas", 1))
        sampler.set_epoch(2)
        again, resumed = drawn(sampler), Sampler(200, recipe=IIS_SOON, seed=9, **place)
        resumed.load_state_dict(state)
        assert len(resumed) == len(again)
        rest = drawn(resumed)
        assert [*whole, *rest] == again.tolist()
        for one in (sampler, resumed):
            one.feedback(rest, rest % 31)
        for _ in range(3):
            assert run(sampler, 1).tolist() == run(resumed, 1).tolist()

    def test_an_epoch_that_was_consumed_whole_is_over(self):
        sampler = Sampler(200, recipe=IIS_SOON)
        sampler.feedback(np.arange(200), np.arange(200))
        sampler.set_epoch(1)
        list(sampler)
        state = sampler.state_dict(consumed=149)
        assert (state["epoch"], state["offset"]) == (1, 149)
        state = sampler.state_dict(consumed=150)
        assert (state["epoch"], state["offset"]) == (2, 0)

    def test_another_number_of_ranks_goes_on_with_the_rest(self):
        sampler = Sampler(200, recipe=IIS_SOON)
        sampler.feedback(np.arange(200), np.arange(200))
        sampler.set_epoch(1)
        for _ in zip(range(90), sampler, strict=False):
            pass
        state, lengths = sampler.state_dict(), set()
        for rank in range(3):
            resumed = Sampler(200, recipe=IIS_SOON, num_replicas=3, rank=rank)
            resumed.load_state_dict(state)
            lengths.add(len(drawn(resumed)))
            assert resumed.epoch == 2
        assert lengths == {20}

    def test_what_is_fetched_and_not_handed_out_is_for_the_loader_alone(self):
        with pytest.raises(ConfigError, match=r"'cis-lru' .*Loader"):
            Sampler(200, recipe="cis-lru")
        assert drawn(Sampler(20, recipe="cis-lru", shuffle=False)).tolist() == list(range(20))
