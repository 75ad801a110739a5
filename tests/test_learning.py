"""Loaders that learn: live runs are what the simulator says, resume, ranks, shared caches, silence, faults."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import augury
import augury.torch
from augury.errors import AuguryWarning, Closed, ConfigError
from augury.knowledge import UNTOLD, pack, unpack
from augury.recipes import RECIPES
from augury.sim.fields import Synthetic
from augury.sim.replay import replay
from augury.sim.verify import verify
from augury.trace import Trace

SAMPLES, BATCH, WIDTH = 1000, 16, 24
LEARNING = [name for name, recipe in RECIPES.items() if recipe.learns]
FIELD = Synthetic(SAMPLES)


def rows(samples=SAMPLES):
    x = np.random.default_rng(1).integers(0, 256, (samples, WIDTH), np.uint8)
    return x, np.arange(samples)


def learner(recipe="shade", cache=0.2, **options):
    window = 4 * BATCH * WIDTH
    defaults = {"ram": int(cache * SAMPLES * WIDTH) + window, "readahead": window, "readers": 4, "output": "numpy"}
    return augury.Loader(rows(), BATCH, recipe=recipe, **(defaults | options))


def patient(name):
    """A recipe that scores all it is told, however fast this loop is."""
    recipe = RECIPES[name]
    likeness = recipe.scorer(1).needs == "embeddings"
    return replace(recipe, scorer=partial(recipe.scorer, patience=None)) if likeness else recipe


def epoch_of(loader, epoch, stop=None):
    """Train an epoch, or as many batches of it; what was visited."""
    x, _ = rows()
    visited = []
    for number, (data, labels, ids) in enumerate(loader):
        assert np.array_equal(data, x[ids])
        assert np.array_equal(labels, ids)
        like = {"embeddings": FIELD.embeddings[ids], "labels": FIELD.labels[ids]}
        loader.feedback(ids, FIELD.losses(epoch, ids), **like)
        visited.append(ids)
        if number + 1 == stop:
            break
    return np.concatenate(visited)


@pytest.mark.parametrize("recipe", LEARNING)
@pytest.mark.parametrize("lag", [1, 5])
def test_a_live_run_is_what_replay_says(recipe, lag, tmp_path):
    with learner(patient(recipe), lag=lag, epochs=4, trace=tmp_path / "trace") as loader:
        live = [epoch_of(loader, epoch) for epoch in range(4)]
        stats = loader.stats()
    said = replay(recipe, SAMPLES, 4, 0.2, BATCH, 0, losses=FIELD, lag=lag)
    assert [epoch.counts.shares()["hit_ratio"] for epoch in stats.epochs] == said.per_epoch
    assert [epoch.counts.shares()["reads"] for epoch in stats.epochs] == said.reads_per_epoch
    assert [epoch.distinct / SAMPLES for epoch in stats.epochs] == said.coverage_per_epoch
    assert [len(set(ids.tolist())) / SAMPLES for ids in live] == said.coverage_per_epoch
    assert stats.feedback.samples >= 3 * SAMPLES
    calls, difference = verify(Trace.open(tmp_path / "trace"))
    assert calls > 200
    assert difference is None


def test_speed_changes_nothing():
    """A slow store, a slow loop and another window: the same orders."""
    with learner(epochs=3) as loader:
        quick = [epoch_of(loader, epoch) for epoch in range(3)]
    slow = augury.SlowSource(augury.ArraySource(*rows()), latency=0.001, seed=2)
    options = {"readers": 2, "ram": 200 * WIDTH + 16 * WIDTH, "readahead": 16 * WIDTH, "epochs": 3}
    with augury.Loader(slow, BATCH, recipe="shade", output="numpy", **options) as loader:
        for epoch in range(3):
            assert np.array_equal(epoch_of(loader, epoch), quick[epoch])


def test_what_is_read_unasked_is_counted():
    with learner("sh-app", epochs=3) as loader:
        for epoch in range(3):
            epoch_of(loader, epoch)
        first, *later = loader.stats().epochs
        assert first.counts.prefetched == first.prefetched_bytes == 0
        for epoch in later:
            assert epoch.counts.prefetched > 0
            assert epoch.prefetched_bytes == epoch.counts.prefetched * WIDTH
            assert sum(epoch.bytes_from.values()) == (SAMPLES - epoch.counts.joined) * WIDTH
        assert "prefetched" in str(loader.stats())
        assert loader.stats().as_dict()["feedback"]["dropped"] == 0


@pytest.mark.parametrize("stop", [1, 17, 62])
def test_a_run_resumes_where_it_was(stop):
    with learner(epochs=4) as loader:
        whole = [epoch_of(loader, epoch) for epoch in range(3)]
    with learner(epochs=4) as loader:
        for epoch in range(2):
            assert np.array_equal(epoch_of(loader, epoch), whole[epoch])
        before = epoch_of(loader, 2, stop)
        state = json.loads(json.dumps(loader.state_dict()))
        assert np.array_equal(before, whole[2][: len(before)])
    with learner(epochs=4) as loader:
        loader.load_state_dict(state)
        assert np.array_equal(epoch_of(loader, 2), whole[2][len(before) :])  # as it was drawn
        assert len(np.unique(epoch_of(loader, 3))) < SAMPLES  # and it still knows whom to repeat
        again = loader.state_dict()["learned"]
        assert len(again["losses"]) >= 2


def test_a_state_survives_torch_save(tmp_path):
    with learner() as loader:
        epoch_of(loader, 0)
        epoch_of(loader, 1, 5)
        torch.save(loader.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    with learner() as loader:
        loader.load_state_dict(state)
        assert len(epoch_of(loader, 1)) == SAMPLES - 5 * BATCH


def test_another_number_of_ranks_goes_on_with_what_was_learned():
    with learner() as loader:
        epoch_of(loader, 0)
        epoch_of(loader, 1, 20)
        state = loader.state_dict()
    lengths = []
    for rank in range(3):
        with learner(rank=rank, world_size=3) as loader:
            loader.load_state_dict(state)
            lengths.append(len(epoch_of(loader, 1)))
    assert max(lengths) - min(lengths) <= 1
    assert sum(lengths) >= SAMPLES - 20 * BATCH


def test_states_that_do_not_fit_are_refused():
    with learner() as loader:
        epoch_of(loader, 0, 3)
        state = loader.state_dict()
        with pytest.raises(ConfigError, match="holds no scores"):
            loader.load_state_dict({key: value for key, value in state.items() if key != "learned"})


def test_an_epoch_that_is_left_midway_is_followed_by_the_next():
    with learner() as loader:
        for epoch in range(4):
            epoch_of(loader, epoch, 10)
        assert [epoch.epoch for epoch in loader.stats().epochs] == [0, 1, 2, 3]
        assert loader.stats().feedback.reports == 40


def test_ranks_draw_equally_much_and_differently():
    visited = []
    for rank in range(3):
        with learner(rank=rank, world_size=3, epochs=3) as loader:
            visited.append([epoch_of(loader, epoch) for epoch in range(3)])
            assert len(loader) == 21
    full = np.concatenate([epochs[0] for epochs in visited])
    assert set(full.tolist()) == set(range(SAMPLES))  # the first epoch is shared out
    assert len({len(epochs[at]) for epochs in visited for at in range(3)}) <= 2
    assert not np.array_equal(visited[0][1], visited[1][1])


def test_a_subset_is_kept_to():
    subset = np.arange(100, 400, 3)
    with learner(subset=subset, epochs=3) as loader:
        for epoch in range(3):
            ids = epoch_of(loader, epoch)
            assert len(ids) == len(subset)
            assert np.isin(ids, subset).all()


def test_silence_is_told_once_and_costs_no_sample():
    with learner() as loader, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            visited = np.concatenate([ids for _, _, ids in loader])
            assert np.array_equal(np.sort(visited), np.arange(SAMPLES))
    assert [str(one.message) for one in told if one.category is AuguryWarning] == [
        "recipe 'shade' learns from loader.feedback(ids, losses), and an epoch has passed without any: until it is "
        "called all samples count alike, and importance decides nothing"
    ]


def test_feedback_for_some_batches_is_enough():
    with learner(epochs=3) as loader:
        for epoch in range(3):
            for number, (_, _, ids) in enumerate(loader):
                if number % 3 == 0:
                    loader.feedback(ids, FIELD.losses(epoch, ids))
        assert loader.stats().epochs[-1].distinct < SAMPLES


def test_accuracy_that_stagnates_ends_repetition():
    hits = {}
    for name, accuracies in {"rising": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "stagnant": [0.5] * 6}.items():
        with learner(epochs=6) as loader:
            for epoch in range(6):
                epoch_of(loader, epoch)
                loader.feedback(accuracy=accuracies[epoch])
            hits[name] = loader.stats().epochs[-1].counts.shares()["hit_ratio"]
    assert hits["stagnant"] < 0.7 * hits["rising"]


def test_a_loader_that_shares_the_cache_disturbs_nothing():
    with learner(epochs=3) as loader:
        alone = [epoch_of(loader, epoch) for epoch in range(3)]
    with learner(epochs=3) as loader:
        for epoch in range(3):
            assert np.array_equal(epoch_of(loader, epoch), alone[epoch])
            with augury.Loader(rows(), BATCH, cache=loader.cache, admit=False, output="numpy") as other:
                assert sum(len(ids) for _, _, ids in other) == SAMPLES
                other.feedback(np.arange(3), [1.0, 2.0, 3.0])


@pytest.mark.parametrize("recipe", ["shade", "sh-app"])
def test_samples_that_cannot_be_read_unasked_spoil_nothing(recipe):
    slow = augury.SlowSource(augury.ArraySource(*rows()), failure_rate=0.1, seed=5)
    options = {"ram": 300 * WIDTH, "readahead": 64 * WIDTH, "retries": 0, "on_error": "skip", "epochs": 4}
    with augury.Loader(slow, BATCH, recipe=recipe, output="numpy", **options) as loader:
        for epoch in range(4):
            epoch_of(loader, epoch)
        assert loader.quarantine
        assert loader.stats().total.counts.hits > 0


@pytest.mark.parametrize("recipe", ["shade", "sh-app"])
def test_a_disk_tier_learns_too(recipe, tmp_path):
    with learner(recipe, epochs=3, disk=(tmp_path / "disk", 200 * WIDTH * 40)) as loader:
        for epoch in range(3):
            epoch_of(loader, epoch)
        assert loader.stats().epochs[-1].bytes_from["disk"] > 0


def test_closing_while_the_loader_waits_for_training():
    with learner(lag=1) as loader:
        iterator = iter(loader)
        next(iterator)
    with learner(lag=2) as loader:
        iter(loader)


@pytest.mark.parametrize("lag", [0, -1, 1.5, None, True])
def test_lag_is_a_number_of_batches(lag):
    with pytest.raises(ConfigError, match="lag"):
        learner(lag=lag)


def test_an_error_in_training_leaves_nothing_behind():
    with pytest.raises(ZeroDivisionError), learner() as loader:
        for _, _, ids in loader:
            loader.feedback(ids, np.ones(len(ids)))
            raise ZeroDivisionError


RANK = """
import json, sys
import numpy as np, torch
import augury, augury.torch
from augury.knowledge import unpack
from augury.sim.fields import Synthetic

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
field, samples = Synthetic(600), 600
x = np.arange(samples * 8, dtype=np.uint8).reshape(samples, 8)
sampler = augury.torch.Sampler(samples, recipe="shade", seed=3)
lengths, taken = [], []
with augury.Loader((x, None), 16, recipe="shade", ram=0.5, output="numpy", lag=4, seed=5) as loader:
    for epoch in range(4):
        count = 0
        for _, _, ids in loader:
            loader.feedback(ids, field.losses(epoch, ids))
            count += len(ids)
            torch.distributed.all_reduce(torch.ones(1))  # training has collectives of its own
        drawn = np.array(list(sampler))
        sampler.feedback(drawn, field.losses(epoch, drawn))
        lengths.append((count, len(drawn)))
    iter(loader)  # what is told is exchanged when an epoch starts
    iter(sampler).__next__()
    states = loader.state_dict()["learned"], sampler.state_dict()["learned"]
np.savez(f"{folder}/{rank}.npz", lengths=lengths, **{
    f"{name}{at}": unpack(state[name], kind)
    for at, state in enumerate(states) for name, kind in (("scores", np.float32), ("seen", np.int32))
})
torch.distributed.destroy_process_group()
"""


def test_ranks_exchange_what_they_learned(tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    runs = [
        subprocess.Popen([sys.executable, tmp_path / "rank.py", str(rank), tmp_path], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for run in runs:
        _, said = run.communicate(timeout=120)
        assert run.returncode == 0, said.decode()
    one, other = (np.load(tmp_path / f"{rank}.npz") for rank in range(2))
    assert np.array_equal(one["lengths"], other["lengths"])
    for name in ("scores0", "scores1"):
        assert (one[name] != UNTOLD).all()
    # The torch sampler exchanges as each epoch starts; the loader a few batches before, so as to read ahead.
    assert np.array_equal(one["scores1"], other["scores1"])
    assert (one["scores0"] == other["scores0"]).mean() > 0.8


def test_ranks_without_a_process_group_keep_to_themselves():
    scores = []
    for rank in range(2):
        with learner(rank=rank, world_size=2, epochs=2) as loader:
            epoch_of(loader, 0)
            epoch_of(loader, 1, 3)
            scores.append(unpack(loader.state_dict()["learned"]["scores"], np.float32))
    assert ((scores[0] == UNTOLD) & (scores[1] != UNTOLD)).any()


def test_a_state_is_the_same_however_far_ahead_is_read():
    states = []
    for window, pause in ((2, 0.0), (12, 0.05)):
        options = {"ram": 200 * WIDTH + window * BATCH * WIDTH, "readahead": window * BATCH * WIDTH}
        with learner(**options) as loader:
            for epoch, stop in ((0, None), (1, 55)):
                epoch_of(loader, epoch, stop)
                time.sleep(pause)
            states.append(loader.state_dict())
            taken = np.concatenate([ids for _, _, ids in itertools.islice(loader, 1)])
            assert len(taken) == BATCH
    assert states[0] == states[1]
    assert (unpack(states[0]["learned"]["scores"], np.float32) != UNTOLD).all()  # of every sample something was told


def test_saving_changes_nothing_and_loading_brings_all_back():
    with learner() as loader:
        epoch_of(loader, 0)
        epoch_of(loader, 1, 20)
        state = loader.state_dict()
        assert loader.state_dict() == state
        rest = unpack(state["learned"]["order"], np.int64)[state["learned"]["done"] :]
        assert len(rest) == SAMPLES - 20 * BATCH
        loader.set_epoch(0)
        assert loader.state_dict()["learned"]["order"] is None  # it is no longer in that order
    with learner() as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        iter(loader)
        assert loader.state_dict() == state
        assert np.array_equal(epoch_of(loader, 1), rest)
        loader.load_state_dict(state)  # back in time
        assert loader.state_dict() == state


@pytest.mark.parametrize(
    "change",
    [
        {"order": pack(np.array([-1] * SAMPLES))},
        {"order": pack(np.array([SAMPLES] * SAMPLES))},
        {"done": SAMPLES + 1},
        {"done": -1},
        {"scores": pack(np.full(SAMPLES, np.nan, np.float32))},
        {"scores": pack(np.ones(5, np.float32))},
        {"scores": "?"},
        {"losses": 3},
        {"fresh": pack(np.array([-5]))},
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(change):
    with learner() as loader:
        epoch_of(loader, 0)
        epoch_of(loader, 1, 20)
        state = loader.state_dict()
        with pytest.raises(ConfigError, match=r"damaged|scores of 5 samples"):
            loader.load_state_dict(state | {"learned": state["learned"] | change})
        with pytest.raises(ConfigError, match="does not exist"):
            loader.load_state_dict(state | {"offset": 10**9})
        assert loader.state_dict() == state


def test_a_closed_loader_still_tells_its_state():
    with learner() as loader:
        epoch_of(loader, 0, 5)
        state = loader.state_dict()
    assert loader.state_dict() == state
    with pytest.raises(Closed):
        loader.load_state_dict(state)


def test_without_ranks_nothing_is_kept_for_them():
    with learner(epochs=2) as loader:
        for epoch in range(2):
            epoch_of(loader, epoch)
        assert len(unpack(loader.state_dict()["learned"]["fresh"], np.int64)) == 0


def test_a_loader_that_may_not_change_the_cache_draws_all():
    for recipe in LEARNING:
        with learner(recipe, admit=False) as loader:
            visited = np.concatenate([ids for _, _, ids in loader])
            assert np.array_equal(np.sort(visited), np.arange(SAMPLES))


def test_ids_that_were_not_handed_out_are_told_of_once():
    with learner() as loader, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _, _, ids in loader:
            loader.feedback(np.arange(len(ids)), np.ones(len(ids)))  # positions
    assert [one.filename for one in told if "has not handed out" in str(one.message)] == [__file__]


def test_silence_of_the_drop_ins_is_told_too():
    with pytest.warns(AuguryWarning, match="cannot be told how training goes"):
        augury.torch.CachedDataset(rows(), recipe="shade").close()
    sampler = augury.torch.Sampler(50, recipe="shade")
    list(sampler)
    with pytest.warns(AuguryWarning, match=r"learns from sampler\.feedback"):
        list(sampler)


def test_statistics_name_what_was_dropped():
    with learner() as loader:
        for _, _, ids in itertools.islice(loader, 3):
            with pytest.raises(augury.BadFeedback):
                loader.feedback(ids, np.full(len(ids), np.inf))
        assert "feedback: 0 reports of 0 samples, 3 dropped" in str(loader.stats())
