"""Loaders and datasets through a node: decisions as embedded, right bytes, and training that goes on without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import augury
from augury.digests import digests_of
from augury.errors import AuguryWarning, ConfigError
from augury.node.client import shared_memory
from augury.node.remote import Membership, RemoteCache
from augury.recipes import RECIPES
from augury.sources import open_source
from augury.trace import Trace
from helpers import Gate, arrays, check_batches, folder, visited
from nodes import Process, process, served

X, Y = arrays(samples=400, size=96)
pytestmark = pytest.mark.filterwarnings("ignore:recipe '.*' learns from:augury.errors.AuguryWarning")
BY_TIMING = {"hdmlp", "spider", "spider-imp", "spider-90", "spider-90-50", "augury-spider"}
"""Filled beside training, or scored by a thread that training may overtake: two runs of these need not be alike."""


def run(epochs=3, told=True, **arguments):
    """Who was visited, what was counted, and where bytes came from."""
    seen = []
    with augury.Loader((X, Y), 32, ram=0.3, output="numpy", seed=3, epochs=epochs, **arguments) as loader:
        for _ in range(epochs):
            for x, y, ids in loader:
                np.testing.assert_array_equal(x, X[ids])
                np.testing.assert_array_equal(y, Y[ids])
                seen.append(ids)
                if told and loader.recipe.learns:
                    loader.feedback(ids, np.abs(np.sin(ids + 1.0)).astype(np.float32))
        stats = loader.stats()
    return np.concatenate(seen), [epoch.counts for epoch in stats.epochs], stats.total.bytes_from


@pytest.mark.parametrize("recipe", sorted(RECIPES.keys() - BY_TIMING))
def test_a_recipe_decides_the_same_as_embedded(tmp_path, recipe):
    with served(tmp_path) as node:
        mine, theirs = run(recipe=recipe), run(recipe=recipe, node=node.config.socket)
    np.testing.assert_array_equal(mine[0], theirs[0])
    assert mine[1] == theirs[1]


@pytest.mark.parametrize("recipe", ["lru", "augury", "icache"])
def test_and_with_a_disk_below(tmp_path, recipe):
    blocks = 200 * 4096
    embedded = run(recipe=recipe, disk=(tmp_path / "own", 200 * (16 + 96 + 8)))
    with served(tmp_path, disk=tmp_path / "disk", disk_bytes=blocks) as node:
        theirs = run(recipe=recipe, node=node.config.socket, disk=("unused", blocks))
    np.testing.assert_array_equal(embedded[0], theirs[0])
    assert embedded[1] == theirs[1]
    assert theirs[2]["disk"] > 0


@pytest.mark.parametrize("recipe", sorted(BY_TIMING))
def test_recipes_whose_runs_differ_serve_right_bytes(tmp_path, recipe):
    with served(tmp_path) as node:
        _, counts, _ = run(recipe=recipe, node=node.config.socket, told=False)
    assert sum(each.hits for each in counts) > 0


@pytest.mark.parametrize("recipe", sorted(RECIPES.keys() - {"none"}))
def test_a_log_replayed_through_the_node_gives_the_same_decisions(tmp_path, recipe):
    """Every call of an embedded run's log, made again by a client of the node: the same are held after each."""
    run(recipe=recipe, trace=tmp_path / "log", told=recipe not in BY_TIMING)
    log = Trace.open(tmp_path / "log")
    (level,) = log.levels()
    source = open_source((X, Y))
    member = Membership(os.urandom(16), "replay", RECIPES[recipe], log.header["seed"], level.capacity, 0, mirrors=True)
    held, asked = np.zeros(len(X), np.bool_), None
    memory = shared_memory(X.nbytes)
    with served(tmp_path) as node:
        cache = RemoteCache(node.config.socket, digests_of(source), source.catalog.sizes, "", member)
        for record in log:
            if record.op == "plan":
                cache.plan(record.ids, record.job, record.times, record.later)
            elif record.op == "learn":
                cache.learn(record.ids, record.scores, record.kin)
            elif record.op == "progress":
                done, *told = record.scores.tolist()
                cache.progress(done, told[: record.number], told[record.number :])
            elif record.op == "wanted":
                np.testing.assert_array_equal(cache.wanted(), record.answer)
            elif record.op == "serve":
                asked = record
                taken = cache.take(record.ids, record.job, True, False, memory)
                served_ids = record.ids if record.answer is None else record.answer
                np.testing.assert_array_equal(taken.served, served_ids)
                np.testing.assert_array_equal(taken.level == 0, held[served_ids])
            elif record.op == "admit":
                if asked is None:
                    cache.unasked(record.ids)
                held[record.ids[record.kept]] = True
                held[record.answer] = False
                asked = None
                np.testing.assert_array_equal(cache.resident, held)
            if record.op == "serve" and held[taken.served].all():
                asked = None  # everything was there: nothing is offered to the policy
        cache.close()


def test_the_same_content_is_read_once_whatever_it_is_called(tmp_path):
    contents = folder(tmp_path / "one", samples=30)
    folder(tmp_path / "two", samples=30)  # the same bytes under other names
    for name in ("one", "two"):
        subprocess.run(
            [sys.executable, "-m", "augury.cli", "digest", str(tmp_path / name), "--quiet"],
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
    total = sum(map(len, contents))
    with served(tmp_path) as node:
        holders = []
        for name in ("one", "two"):
            with augury.Loader(tmp_path / name, 5, node=node.config.socket, output="numpy", ram="1MB") as loader:
                for x, _, ids in loader:
                    assert [bytes(each) for each in x] == [contents[id] for id in ids]
                holders.append(loader.stats().total.bytes_from)
        assert holders[0] == {"source": total}
        assert holders[1] == {"ram": total}  # left by a job that has ended, taken over by the next


def test_jobs_divide_the_memory_and_shares_change_as_they_come_and_go(tmp_path):
    size = X.nbytes
    with served(tmp_path, ram=size) as node:
        with augury.Loader((X, Y), 32, node=node.config.socket, ram=2 * size, recipe="minio", output="numpy") as first:
            check_batches(first, X, Y)
            assert [job["shares"] for job in node.report(0)["jobs"]] == [[size]]
            with augury.Loader(
                (X[::-1].copy(), Y[::-1].copy()),
                32,
                node=node.config.socket,
                ram=2 * size,
                recipe="lru",
                output="numpy",
            ) as second:
                assert [job["shares"] for job in node.report(0)["jobs"]] == [[size // 2]] * 2
                for _ in range(2):
                    check_batches(first, X, Y)
                    check_batches(second, X[::-1], Y[::-1])
                second.cache.resize(0, size // 4)
                assert sorted(job["shares"][0] for job in node.report(0)["jobs"]) == [size // 4, size - size // 4]
                check_batches(second, X[::-1], Y[::-1])
            until(lambda: [job["shares"] for job in node.report(0)["jobs"]] == [[size]])
            for _ in range(4):  # some of it was read ahead with the smaller share
                check_batches(first, X, Y)
            assert first.stats().epochs[-1].counts.hits == len(X)
        assert node.report(0)["shelves"][0]["used"] <= size


def test_validation_shares_the_cache_and_does_not_disturb_it(tmp_path):
    with (
        served(tmp_path) as node,
        augury.Loader((X, Y), 32, node=node.config.socket, ram=0.5, recipe="lru", epochs=1, output="numpy") as train,
        augury.Loader((X, Y), 64, cache=train.cache, admit=False, shuffle=False, output="numpy") as check,
    ):
        check_batches(train, X, Y)
        before = train.cache.resident.copy()
        check_batches(check, X, Y)
        np.testing.assert_array_equal(train.cache.resident, before)
        assert check.stats().total.counts.hits == before.sum()


def test_killed_and_restarted_it_is_gone_without_and_comes_back(tmp_path):
    blocks = str(len(X) * 4096)
    with process(tmp_path, "--ram", "0.02MB", "--disk", f"{tmp_path / 'disk'}:{blocks}") as node:
        source = Gate(open_source((X, Y)))
        digests_of(source.inner)
        with augury.Loader(source, 32, node=node.socket, recipe="minio", output="numpy", ram=0.3, seed=1) as loader:
            check_batches(loader, X, Y)
            check_batches(loader, X, Y)
            with pytest.warns(AuguryWarning, match="goes on from the source") as told:
                node.kill()
                assert len(check_batches(loader, X, Y)) == len(X)
                assert len(check_batches(loader, X, Y)) == len(X)
            assert len(told) == 1
            assert not loader.cache.connected
            node.start()
            until(lambda: loader.cache.connected)
            source.reads.clear()
            check_batches(loader, X, Y)
            check_batches(loader, X, Y)
            last = loader.stats().epochs[-1].bytes_from
        assert last["disk"] > 0
        assert last.get("source", 0) < 0.2 * X.nbytes  # what was on its way to the disk when it was killed is lost


def test_a_node_that_hangs_is_done_without(tmp_path):
    with (
        process(tmp_path, "--ram", "10MB") as node,
        augury.Loader((X, Y), 32, node=node.socket, output="numpy", ram=0.5) as loader,
    ):
        check_batches(loader, X, Y)
        began = time.monotonic()
        with pytest.warns(AuguryWarning, match="does not answer"):
            node.signal(signal.SIGSTOP)
            check_batches(loader, X, Y)
        assert time.monotonic() - began < 10
        node.signal(signal.SIGCONT)
        until(lambda: loader.cache.connected)
        check_batches(loader, X, Y)


def until(true, patience=30.0):
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_data_that_has_changed_is_used_as_it_is_and_never_shared(tmp_path):
    contents = folder(tmp_path / "data", samples=9)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "augury.cli", "digest", str(tmp_path / "data"), "--quiet"]
    subprocess.run(command, check=True, env=environment)
    changed = bytes(len(contents[4]))
    next(path for path in (tmp_path / "data").rglob("*.bin") if path.read_bytes() == contents[4]).write_bytes(changed)
    contents[4] = changed
    with (
        served(tmp_path) as node,
        augury.Loader(tmp_path / "data", 3, node=node.config.socket, output="numpy") as loader,
    ):
        with pytest.warns(AuguryWarning, match="augury digest"):
            for _ in range(3):
                for x, _, ids in loader:
                    assert [bytes(each) for each in x] == [contents[id] for id in ids]
        assert node.report(0)["counts"]["poisoned"] >= 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"recipe": replace(RECIPES["lru"], name="mine")}, "not one of the table"),
        ({"trace": "log"}, "trace= is for a cache of the loader's own"),
        ({"levels": "levels.toml"}, "levels= is for a cache of the loader's own"),
        ({"node": "/nowhere/node.sock"}, "augury serve --socket /nowhere/node.sock"),
    ],
)
def test_what_cannot_go_through_a_node_is_said(tmp_path, arguments, complaint):
    with served(tmp_path) as node, pytest.raises(ConfigError, match=complaint):
        augury.Loader((X, Y), 32, **({"node": node.config.socket} | arguments))


def test_files_without_digests_are_named_with_what_to_do(tmp_path):
    folder(tmp_path / "data", samples=9)
    with (
        served(tmp_path) as node,
        pytest.raises(ConfigError, match=f"9 of 9 samples have no digest.*augury digest {tmp_path / 'data'}"),
    ):
        augury.Loader(tmp_path / "data", 3, node=node.config.socket)


def test_auto_finds_the_node_of_the_environment_or_none(tmp_path, monkeypatch):
    monkeypatch.setenv("AUGURY_NODE", str(tmp_path / "node" / "node.sock"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with augury.Loader((X, Y), 32, node="auto", output="numpy") as alone:
            assert not isinstance(alone.cache, RemoteCache)
            check_batches(alone, X, Y)
    with served(tmp_path):
        for said in (None, "auto"):
            with augury.Loader((X, Y), 32, node=said, output="numpy") as shared:
                assert isinstance(shared.cache, RemoteCache)
                check_batches(shared, X, Y)
        with augury.Loader((X, Y), 32, node="off", output="numpy") as own:
            assert not isinstance(own.cache, RemoteCache)


WORKERS = """
import sys
import numpy as np
import torch
from torch.utils.data import DataLoader
from augury.torch import CachedDataset
from helpers import arrays

if __name__ == "__main__":
    X, Y = arrays(samples=400, size=96)
    place, context = sys.argv[1:]
    data = CachedDataset((X, Y), ram=0.3, recipe="minio", node=place, with_ids=True)
    loader = DataLoader(data, batch_size=20, shuffle=True, num_workers=2, multiprocessing_context=context,
                        persistent_workers=context != "fork")
    for epoch in range(3):
        seen = []
        for x, y, ids in loader:
            assert (x.numpy() == X[ids]).all() and (y.numpy() == Y[ids]).all()
            seen += ids.tolist()
        assert sorted(seen) == list(range(400))
    print("good")
"""


def script(tmp_path, text, *arguments, launcher=()):
    file = tmp_path / "job.py"
    file.write_text(textwrap.dedent(text))
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.run(
        [sys.executable, *launcher, str(file), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_worker_processes_share_one_cache(tmp_path, context):
    with served(tmp_path) as node:
        done = script(tmp_path, WORKERS, str(node.config.socket), context)
        assert done.stdout.endswith("good\n"), done.stderr
        (job,) = node.report(0)["jobs"]
        assert job["requests"] == 1200
        assert job["hit_ratio"] == pytest.approx(0.3 * 2 / 3, abs=0.01)  # nothing is held in the first epoch


RANKS = """
import sys
import numpy as np
import torch.distributed as distributed
import augury
from augury.torch import CachedDataset
from helpers import arrays

distributed.init_process_group("gloo")
X, Y = arrays(samples=400, size=96)
with augury.Loader((X, Y), 20, node=sys.argv[1], ram=0.2, recipe="minio", seed=0) as loader:
    for epoch in range(3):
        for x, y, ids in loader:
            assert (x.numpy() == X[ids]).all() and (y.numpy() == Y[ids]).all()
data = CachedDataset((X, Y), ram=0.2, recipe="minio", node=sys.argv[1])
for start in range(0, 400, 20):
    for (x, y), id in zip(data.__getitems__(range(start, start + 20)), range(start, start + 20)):
        assert (np.asarray(x) == X[id]).all() and y == Y[id]
distributed.barrier()
data.close()
distributed.destroy_process_group()
print("good")
"""


def test_ranks_of_torchrun_share_one_node(tmp_path):
    with served(tmp_path) as node:
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
        done = script(tmp_path, RANKS, str(node.config.socket), launcher=launcher)
        assert done.stdout.count("good") == 2, done.stderr
        (job,) = node.report(0)["jobs"]  # both ranks' datasets are one job
        assert job["requests"] == 800


def test_a_killed_client_leaves_nothing(tmp_path):
    text = """
    import sys, os, signal
    import augury
    from helpers import arrays
    loader = augury.Loader(arrays(samples=400, size=96), 20, node=sys.argv[1], ram=0.5)
    batches = iter(loader)
    next(batches)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    with served(tmp_path) as node:
        files = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            assert script(tmp_path, text, str(node.config.socket)).returncode == -signal.SIGKILL
        until(lambda: node.report(0)["clients"] == 0 and not node.report(0)["jobs"])
        assert len(os.listdir("/proc/self/fd")) == files


def test_many_samples_with_one_content_are_held_once(tmp_path):
    x = np.zeros((5000, 64), np.uint8)
    with served(tmp_path) as node, augury.Loader(x, 250, node=node.config.socket, ram=0.8, output="numpy") as loader:
        for _ in range(3):
            assert not any(batch.any() for batch, _, _ in loader)
        (job,) = node.report(0)["jobs"]
        assert job["charged"]["ram"] == 64
        assert job["hit_ratio"] > 0.3


def test_loaders_on_one_cache_come_and_go_without_end(tmp_path):
    with (
        served(tmp_path) as node,
        augury.Loader((X, Y), 100, node=node.config.socket, ram=0.5, recipe="minio", output="numpy") as train,
    ):
        check_batches(train, X, Y)
        for _ in range(70):
            with augury.Loader((X, Y), 100, cache=train.cache, recipe=None, output="numpy", readers=1) as check:
                next(iter(check))
        assert train.cache.outages == 0


def test_a_forked_childs_batch_stays_as_it_was(tmp_path):
    with (
        served(tmp_path) as node,
        augury.Loader((X, Y), 100, node=node.config.socket, ram=0.9, recipe="minio", output="numpy") as loader,
    ):
        check_batches(loader, X, Y)
        batch = next(iter(loader))
        ready, told = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forks beside threads
            child = os.fork()
        if child == 0:
            os.read(ready, 1)
            os._exit(0 if (batch.x == X[batch.ids]).all() else 1)
        del batch
        for _ in range(3):
            check_batches(loader, X, Y)
        os.write(told, b"!")
        assert os.waitpid(child, 0)[1] == 0
        os.close(ready)
        os.close(told)


def test_batches_that_are_kept_do_not_use_up_the_open_files(tmp_path):
    text = """
    import resource, sys
    import numpy as np
    import augury
    from helpers import arrays
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    X, Y = arrays(samples=400, size=96)
    kept = []
    with augury.Loader((X, Y), 2, node=sys.argv[1], ram=0.5, output="numpy") as loader:
        for batch in loader:
            kept.append(batch)
    assert all((x == X[ids]).all() for x, _, ids in kept)
    print("good")
    """
    with served(tmp_path) as node:
        done = script(tmp_path, text, str(node.config.socket))
        assert done.stdout == "good\n", done.stderr
        assert "open files" in done.stderr


def test_a_process_is_started_and_stopped(tmp_path):
    node = Process(tmp_path, "--ram", "1MB")
    with augury.Loader((X, Y), 32, node=node.socket, output="numpy") as loader:
        assert len(visited(loader)) == len(X)
    assert node.stop() == 0
    assert not node.socket.exists()
