"""When things break, training goes on from the source with one clear warning; and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import augury
from augury.errors import TierFailed
from helpers import Gate, arrays, check_batches, folder


def two_levels(x, y, disk, **options):
    options = {"recipe": "lru", "ram": 0.2, "readahead": 800, "readers": 4, "output": "numpy"} | options
    return augury.Loader((x, y), 16, disk=disk, **options)


def test_a_disk_below_the_memory_adds_to_what_is_held(tmp_path):
    x, y = arrays(size=4096)
    source = Gate(augury.ArraySource(x, y))
    options = {"ram": 0.3, "readahead": 40_000, "output": "numpy", "recipe": "minio"}
    with augury.Loader(source, 16, disk=(tmp_path / "cache", 0.6), **options) as loader:
        for _ in range(3):
            assert sorted(check_batches(loader, x, y)) == list(range(len(x)))
        last = loader.stats().epochs[-1]
    assert last.bytes_from["ram"] > 0
    assert last.bytes_from["disk"] > 0.4 * x.nbytes
    assert last.counts.hits > 0.7 * len(x)


@pytest.mark.parametrize("recipe", ["lru", "fifo", "lfu", "random", "minio", "min"])
def test_two_levels_serve_right_bytes_under_every_policy(recipe, tmp_path):
    x, y = arrays()
    with two_levels(x, y, (tmp_path / "cache", 80 * 4096), recipe=recipe) as loader:
        for _ in range(4):
            assert sorted(check_batches(loader, x, y)) == list(range(len(x)))
    stack = [level.policy for level in loader.cache.levels]  # nobody decides any more
    assert not (stack[0].resident & stack[1].resident).any(), "a sample is held by one level only"


def test_batches_that_nobody_takes_are_not_taken_for_damage(tmp_path):
    x, y = arrays()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for attempt in range(12):
            with two_levels(x, y, (tmp_path / f"cache{attempt}", 80 * 4096), recipe="lfu") as loader:
                for _ in range(3):
                    check_batches(loader, x, y)
                next(iter(loader))  # the batches read ahead are abandoned here, with their reads under way


def test_a_disk_without_memory_above_it(tmp_path, monkeypatch):
    x, y = arrays(size=4000)
    with two_levels(x, y, (tmp_path / "cache", "2MB"), ram=65_000, readahead=65_000) as loader:
        assert [level.tier.name for level in loader.cache.levels] == ["disk"]
        for _ in range(2):
            assert sorted(check_batches(loader, x, y)) == list(range(len(x)))
        assert loader.stats().epochs[1].bytes_from["disk"] > 0
        assert "ram" not in loader.stats().epochs[1].bytes_from
        monkeypatch.setattr(os, "pread", lambda *arguments: (_ for _ in ()).throw(OSError(5, "input/output error")))
        with pytest.warns(augury.AuguryWarning, match="disk tier"):
            assert sorted(check_batches(loader, x, y)) == list(range(len(x)))


def test_the_disk_is_warm_after_a_restart(tmp_path):
    x, y = arrays()
    for run in range(2):
        source = Gate(augury.ArraySource(x, y))
        with augury.Loader(
            source,
            16,
            recipe="minio",
            ram=0.1,
            readahead=400,
            disk=(tmp_path / "cache", 300 * 4096),
            output="numpy",
            epochs=1,
        ) as loader:
            check_batches(loader, x, y)
        assert len(source.reads) == (200 if run == 0 else 3), "what the memory held is all that is read again"


def test_other_data_in_the_cache_directory_is_never_served(tmp_path):
    for seed in range(2):
        x, y = arrays(seed=seed)
        with two_levels(x, y, (tmp_path / "cache", "1MB")) as loader:
            check_batches(loader, x, y)


def test_shares_of_more_processes_than_now_are_given_back(tmp_path, monkeypatch):
    x, y = arrays(size=4096)
    for rank, world in ((1, 2), (0, 2), (0, 1)):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(world))
        with two_levels(x, y, (tmp_path / "cache", "400kB"), readahead=70_000) as loader:
            check_batches(loader, x, y)
    used = sum(file.stat().st_blocks * 512 for file in (tmp_path / "cache").rglob("*"))
    assert used < 400_000 + 16 * 4096


def corrupt(directory: Path) -> None:
    for file in directory.rglob("*"):
        if file.is_file() and file.stat().st_size > 4096:
            with open(file, "r+b") as stream:
                for at in range(0, file.stat().st_size, 512):
                    stream.seek(at)
                    stream.write(b"\xff\x00\xff")


def test_corrupted_bytes_on_disk_are_read_again_from_the_source(tmp_path):
    x, y = arrays(size=4000)
    with two_levels(x, y, (tmp_path / "cache", "2MB"), readahead=65_000) as loader:
        check_batches(loader, x, y)
        check_batches(loader, x, y)
        with pytest.warns(augury.AuguryWarning, match="disk tier has lost or damaged samples"):
            corrupt(tmp_path / "cache")
            for _ in range(3):
                assert sorted(check_batches(loader, x, y)) == list(range(len(x)))
        for epoch in loader.stats().epochs:
            assert epoch.counts.misses * 4000 == epoch.bytes_from.get("source", 0), "what was lost is no hit"


class Breaking:
    """A tier that fails after some writes."""

    def __init__(self, tier, writes) -> None:
        self._tier, self._left = tier, writes
        self.name, self.capacity = tier.name, tier.capacity

    def __getattr__(self, name):
        return getattr(self._tier, name)

    def write(self, ids, data):
        self._left -= 1
        if self._left < 0:
            raise TierFailed("no space left on device")
        self._tier.write(ids, data)

    def read(self, ids):
        if self._left < 0:
            raise OSError("input/output error")
        return self._tier.read(ids)


def test_a_tier_that_fails_is_turned_off_with_one_warning(tmp_path):
    x, y = arrays()
    with two_levels(x, y, (tmp_path / "cache", "1MB")) as loader:
        disk = loader.cache.levels[1]
        loader.cache.levels[1] = disk._replace(tier=Breaking(disk.tier, 7))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(4):
                assert sorted(check_batches(loader, x, y)) == list(range(len(x)))
        ours = [warning for warning in caught if issubclass(warning.category, augury.AuguryWarning)]
        assert len(ours) == 1
        assert "disk tier is turned off: no space left" in str(ours[0].message)
        assert loader.stats().epochs[-1].bytes_from.get("disk", 0) == 0
        assert loader.stats().epochs[-1].bytes_from["ram"] > 0


def test_a_full_file_system_turns_the_disk_off_and_training_goes_on(tmp_path):
    x, y = arrays(400, size=4096)
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(mount)], check=True)
    try:
        with (
            pytest.warns(augury.AuguryWarning, match="disk tier is turned off"),
            two_levels(x, y, (mount / "cache", "2MB"), readahead=70_000, ram=0.1) as loader,
        ):
            for _ in range(3):
                assert sorted(check_batches(loader, x, y)) == list(range(len(x)))
    finally:
        gc.collect()  # the files close with the last error that refers to them
        subprocess.run(["umount", str(mount)], check=True)


def test_resize_while_training(tmp_path):
    x, y = arrays()
    with two_levels(x, y, (tmp_path / "cache", "1MB")) as loader:
        with pytest.raises(augury.AuguryError, match="was made for 160 B"):
            loader.cache.resize(0, 400)
        for size in (100, 160, 24):
            loader.cache.resize(0, size)
            check_batches(loader, x, y)
            assert loader.cache.levels[0].policy.used <= size


PROGRAM = textwrap.dedent(
    """
    import os, sys, numpy as np, augury
    source = augury.SlowSource(augury.FolderSource(sys.argv[1]), latency=0.02)
    def work(data): return len(data)
    if __name__ == "__main__":
        loader = augury.Loader(source, 4, ram="100kB", transform=work, processes=len(sys.argv) > 3, workers=2,
                               disk=(sys.argv[2], "1MB"))
        print("ready", flush=True)
        while True:
            for batch in loader:
                print(os.getpid(), flush=True)
    """
)


def children(pid):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize(("blow", "processes"), [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGKILL, True)])
def test_a_stopped_run_leaves_nothing_behind(tmp_path, blow, processes):
    folder(tmp_path / "data")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, program, tmp_path / "data", tmp_path / "cache", *(["processes"] if processes else [])]
    shared = set(os.listdir("/dev/shm"))
    run = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = iter(run.stdout.readline, "")
    assert next(lines) == "ready\n"
    for _ in range(3):
        next(lines)
    born = children(run.pid)
    assert bool(born) == processes
    run.send_signal(blow)
    _, errors = run.communicate(timeout=30)
    if blow == signal.SIGINT:
        assert "KeyboardInterrupt" in errors
        assert errors.count("Traceback") == 1, errors
    deadline = time.monotonic() + 20
    while any(map(alive, born)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, born))
    left = set(os.listdir("/dev/shm")) - shared
    while left and time.monotonic() < deadline:  # tests that run beside this one have theirs for a moment
        time.sleep(0.05)
        left &= set(os.listdir("/dev/shm"))
    assert not left
    # The disk cache is free again, and what is in it is right.
    contents = [(tmp_path / "data" / f"class{id // 20}" / f"{id % 20:03d}.bin").read_bytes() for id in range(60)]
    with augury.Loader(tmp_path / "data", 4, ram="100kB", disk=(tmp_path / "cache", "1MB"), output="numpy") as loader:
        for x, _, ids in loader:
            assert x == [contents[id] for id in ids]


def test_a_loader_of_another_process_says_so():
    x, y = arrays()
    with augury.Loader((x, y), 16, output="numpy") as loader:
        pid = os.fork()
        if pid == 0:
            try:
                iter(loader)
            except augury.AuguryError as error:
                os._exit(0 if "another process" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert len(np.concatenate([ids for _, _, ids in loader])) == len(x)
