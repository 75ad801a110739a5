"""torch samplers that draw by weight or by what was learned: for any number of ranks, resumable, checked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from augury.errors import BadFeedback, ConfigError
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
