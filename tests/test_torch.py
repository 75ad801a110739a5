"""The cache under torch's own DataLoader, and tensors from our loader."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import augury
from augury.errors import ConfigError, Unreadable
from augury.torch import CachedDataset, Sampler
from helpers import Gate, arrays, folder


def test_tensors_come_where_torch_is_loaded():
    x, y = arrays()
    with augury.Loader((x, y), 16, ram=0.5) as loader:
        for features, labels, ids in loader:
            assert isinstance(features, torch.Tensor)
            assert isinstance(labels, torch.Tensor)
            assert torch.equal(features, torch.from_numpy(x[ids]))
            assert torch.equal(labels, torch.from_numpy(y[ids]))


@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork"), (2, "spawn"), (2, "forkserver")])
def test_a_cached_dataset_under_worker_processes(workers, start, tmp_path):
    contents = folder(tmp_path / "data")
    disk = (tmp_path / "cache", "1MB")
    dataset = CachedDataset(tmp_path / "data", ram=0.3, disk=disk, recipe="lru", transform=len, with_ids=True)
    sampler = Sampler(dataset, seed=1)
    loader = DataLoader(
        dataset, 8, sampler=sampler, num_workers=workers, multiprocessing_context=start, persistent_workers=workers > 0
    )
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = []
        for lengths, labels, ids in loader:
            assert lengths.tolist() == [len(contents[id]) for id in ids]
            assert labels.tolist() == [id // 20 for id in ids.tolist()]
            seen += ids.tolist()
        assert sorted(seen) == list(range(60))
    if workers == 0:
        assert dataset.counts().requests == 120
        assert dataset.counts().hits > 0
    dataset.close()


def test_image_folder_attributes(tmp_path):
    contents = folder(tmp_path, samples=6)
    dataset = CachedDataset(tmp_path, ram="1MB")
    assert dataset.classes == ["class0", "class1", "class2"]
    assert dataset.class_to_idx == {"class0": 0, "class1": 1, "class2": 2}
    assert dataset.targets == [0, 0, 1, 1, 2, 2]
    assert dataset.samples[3] == (str(tmp_path / "class1" / "001.bin"), 1)
    assert dataset[-1] == (contents[5], 2)
    with pytest.raises(IndexError):
        dataset[6]
    (tmp_path / "class0" / "000.bin").unlink()
    with pytest.raises(Unreadable, match=r"000\.bin"):
        dataset[0]
    dataset.close()


def test_a_cached_dataset_skips_and_substitutes_bad_samples(tmp_path):
    folder(tmp_path, samples=6)
    augury.FolderSource(tmp_path).catalog.save(tmp_path / ".augury")
    (tmp_path / "class0" / "001.bin").unlink()
    for on_error, expected in (("skip", [0, 2]), ("substitute", [0, 2, 2])):
        dataset = CachedDataset(tmp_path, ram="1MB", on_error=on_error, with_ids=True)
        assert sorted(id for _, _, id in dataset.__getitems__([0, 1, 2])) == expected
        assert [bad.id for bad in dataset.quarantine] == [1]
        dataset.close()


def test_the_main_process_may_use_the_dataset_beside_its_workers(tmp_path):
    folder(tmp_path / "data")
    dataset = CachedDataset(tmp_path / "data", ram="1MB", disk=(tmp_path / "cache", "1MB"), transform=len)
    assert dataset.counts().requests == 0
    first = dataset[0]
    # The worker whose share of the disk is taken goes on without it.
    seen = sum(len(lengths) for lengths, _ in DataLoader(dataset, 8, num_workers=2))
    assert seen == 60
    assert dataset[0] == first
    dataset.close()


def test_the_sampler_draws_the_next_epoch_by_itself():
    sampler = Sampler(20, seed=4)
    orders = [list(sampler), list(sampler)]
    assert orders[0] != orders[1]
    sampler.set_epoch(1)
    assert list(sampler) == orders[1]
    next(iter(sampler))
    assert list(sampler) == list(_epoch(Sampler(20, seed=4), 3)), "an epoch left midway is over"


def _epoch(sampler, epoch):
    sampler.set_epoch(epoch)
    return sampler


def test_an_interrupt_while_waiting_leaves_nothing_behind():
    x, y = arrays(200, 64)
    gate = Gate(augury.ArraySource(x, y))
    dataset = CachedDataset(gate, ram=0.3, recipe="lru", readers=2)
    for start in (0, 40):
        gate.open.clear()
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            dataset.__getitems__(range(start, start + 20))
        signal.signal(signal.SIGALRM, before)
        gate.open.set()
        for item, label in dataset.__getitems__(range(start, start + 40)):
            assert label == y[int(item[:8].view("<i8")[0])]
    dataset.close()


def test_iterating_a_dataset_with_a_bad_item_does_not_end_early(tmp_path):
    folder(tmp_path, samples=6)
    augury.FolderSource(tmp_path).catalog.save(tmp_path / ".augury")
    (tmp_path / "class0" / "001.bin").unlink()
    dataset = CachedDataset(tmp_path, ram="1MB", on_error="skip")
    with pytest.raises(Unreadable, match=r"001\.bin"):
        list(dataset)
    dataset.close()


def test_any_torch_dataset_can_be_wrapped():
    x, y = torch.arange(60.0).reshape(20, 3), torch.arange(20)
    dataset = CachedDataset(torch.utils.data.TensorDataset(x, y), ram=1.0)
    for _ in range(2):
        for features, labels in DataLoader(dataset, 6, shuffle=True):
            assert torch.equal(features, x[labels])
    assert dataset.counts().hits == 20
    dataset.close()


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_sampler_gives_every_rank_equally_many_and_each_sample_once(world):
    parts = [list(Sampler(20, seed=4, num_replicas=world, rank=rank)) for rank in range(world)]
    assert {len(part) for part in parts} == {-(-20 // world)}
    assert {id for part in parts for id in part} == set(range(20))
    assert all(len(Sampler(20, num_replicas=world, rank=rank)) == len(parts[0]) for rank in range(world))
    assert (
        sum(map(len, (list(Sampler(20, num_replicas=world, rank=r, drop_last=True)) for r in range(world))))
        == 20 // world * world
    )


def test_the_sampler_resumes_with_another_world_size():
    done, states = [], []
    for rank in range(2):
        sampler = Sampler(30, seed=2, num_replicas=2, rank=rank)
        done += list(itertools.islice(sampler, 5))
        states.append(sampler.state_dict())
    assert states[0] == states[1]
    assert states[0] == Sampler(30, seed=2, num_replicas=2, rank=0).state_dict(consumed=5)
    for rank in range(3):
        sampler = Sampler(30, seed=7, num_replicas=3, rank=rank)
        sampler.load_state_dict(states[0])
        done += list(sampler)
    assert set(done) == set(range(30))
    assert len(done) == 31, "20 samples over 3 ranks: one is repeated"
    with pytest.raises(ConfigError, match="30 samples"):
        Sampler(10).load_state_dict(states[0])


def test_ranks_are_asked_of_the_process_group_when_iteration_starts(tmp_path):
    x, y = arrays(101)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    script = tmp_path / "rank.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys, numpy as np, torch, torch.distributed as dist, augury
            data = np.load(sys.argv[1])
            for name in ("RANK", "WORLD_SIZE"):
                os.environ["KEPT_" + name] = os.environ.pop(name)
            loader = augury.Loader((data["x"], data["y"]), 8, ram=0.5, disk=(sys.argv[2], "1MB"), recipe="lru")
            for name in ("RANK", "WORLD_SIZE"):
                os.environ[name] = os.environ["KEPT_" + name]
            dist.init_process_group("gloo")
            seen = open(f"{sys.argv[1]}.{dist.get_rank()}", "w")
            for epoch in range(2):
                for x, y, ids in loader:
                    assert (x.numpy() == data["x"][ids]).all()
                    step = torch.ones(1)
                    dist.all_reduce(step)   # hangs if the ranks differ in their number of batches
                    print(epoch, *ids, file=seen)
            loader.close()
            dist.destroy_process_group()
            """
        )
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", script]
    done = subprocess.run(
        [*map(str, command), str(tmp_path / "data.npz"), str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [
        line.split() for rank in range(3) for line in Path(f"{tmp_path / 'data.npz'}.{rank}").read_text().splitlines()
    ]
    for epoch in "01":
        seen = [int(id) for line in lines if line[0] == epoch for id in line[1:]]
        assert sorted(seen) == list(range(101))
