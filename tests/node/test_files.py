"""The disk shelf: what is there after a crash, damage, a full disk or a restart is right or absent; and nobody else's
directory is used."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from augury.errors import ConfigError, InUse
from augury.node.files import BLOCK, LANDING, PAUSE, FileShelf, footprint
from augury.node.holding import Stock
from augury.node.shelves import MemoryShelf


class Someone:
    """A job, as a shelf knows it."""

    def __init__(self):
        self.charged = {"ram": 0.0, "disk": 0.0}


class Clock:
    """Time as a test wants it."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def content(number, size=5000):
    return np.random.default_rng([number, size]).bytes(size)


def key(data):
    return blake3(data).digest()


def store(shelf, data, job, keep=True):
    """Put, write and land; the entry, idle if `keep`."""
    entry = shelf.put(key(data), data, job)
    shelf.land(entry, shelf.write(entry))
    if keep:
        shelf.release(entry, job, keep=True)
    return entry


def clean(shelf):
    shelf.remove(shelf.sweep())


def on_disk(directory):
    return sorted(path for path in (directory / "share-node").rglob("*") if path.is_file() and path.name != "lock")


@pytest.fixture
def shelf(tmp_path):
    made = FileShelf(tmp_path / "disk", 1 << 30, Clock())
    yield made
    made.close()


def reopened(shelf, directory, capacity=1 << 30):
    shelf.close()
    return FileShelf(directory, capacity)


POOL = {key(data): data for data in (content(number, size) for number in range(4) for size in (0, 1, 4096, 4097, 9000))}


class Files(RuleBasedStateMachine):
    """Each digest with its holders, the idle in their order, and whose file is written, through restarts and damage."""

    @initialize(blocks=st.integers(0, 20), jobs=st.integers(1, 3))
    def begin(self, blocks, jobs):
        self.directory = Path(os.environ["PYTEST_FILES"]) / f"{random.getrandbits(60):x}"
        self.capacity, self.clock = blocks * BLOCK, Clock()
        self.shelf = FileShelf(self.directory, self.capacity, self.clock)
        self.jobs = [Someone() for _ in range(jobs)]
        self.holders, self.idle, self.landing, self.damaged = {}, [], [], set()

    def teardown(self):
        if hasattr(self, "shelf"):
            self.shelf.close()
            shutil.rmtree(self.directory)

    def size(self):
        return sum(footprint(len(POOL[key])) for key in self.holders)

    @rule(data=st.data())
    def put(self, data):
        key, job = data.draw(st.sampled_from(sorted(POOL))), data.draw(st.sampled_from(self.jobs))
        if key in self.holders:
            return
        size = footprint(len(POOL[key]))
        held = sum(footprint(len(POOL[each])) for each in self.holders if self.holders[each])
        entry = self.shelf.put(key, POOL[key], job)
        assert (entry is not None) == (held + size <= self.capacity)
        while self.idle and self.size() + size > self.capacity:
            del self.holders[self.idle.pop(0)]
        if entry is not None:
            self.holders[key] = [job]
            self.damaged.discard(key)
            self.landing.append(entry)

    @precondition(lambda self: self.landing)
    @rule(data=st.data())
    def land(self, data):
        entry = self.landing.pop(data.draw(st.integers(0, len(self.landing) - 1)))
        assert self.shelf.write(entry)
        self.shelf.land(entry, True)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), keep=st.booleans())
    def change_holders(self, data, keep):
        key, job = data.draw(st.sampled_from(sorted(self.holders))), data.draw(st.sampled_from(self.jobs))
        if job not in self.holders[key]:
            self.shelf.hold(self.shelf.entries[key], job)
            self.holders[key].append(job)
            self.idle = [each for each in self.idle if each != key]
            return
        self.shelf.release(self.shelf.entries[key], job, keep)
        self.holders[key].remove(job)
        if not self.holders[key] and keep:
            self.idle.append(key)
        elif not self.holders[key]:
            del self.holders[key]

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), how=st.sampled_from(["cut", "flip", "remove", "lengthen"]))
    def damage(self, data, how):
        key = data.draw(st.sampled_from(sorted(self.holders)))
        path = self.directory / "share-node" / self.shelf.entries[key].name
        if not path.exists() or key in self.damaged:
            return  # still in memory, and right; or it might be mended
        held = path.read_bytes()
        if how == "remove":
            path.unlink()
        elif how == "lengthen":
            path.write_bytes(held + b"\0")
        elif held:
            path.write_bytes(held[:-1] if how == "cut" else bytes([held[0] ^ 1]) + held[1:])
        else:
            return
        self.damaged.add(key)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def look(self, data):
        key = data.draw(st.sampled_from(sorted(self.holders)))
        entry = self.shelf.entries[key]
        read = self.shelf.read(entry)
        assert read == (None if key in self.damaged else POOL[key])
        if read is None:
            before = self.shelf.damaged
            assert self.shelf.spoil(entry)
            assert not self.shelf.spoil(entry), "once"
            assert self.shelf.damaged == before + 1
            del self.holders[key]
            self.idle = [each for each in self.idle if each != key]

    @rule()
    def restart(self):
        written = {entry for entry, each in self.shelf.entries.items() if each.data is None}
        clean(self.shelf)
        self.shelf.close()
        self.shelf = FileShelf(self.directory, self.capacity, self.clock)
        there = set(self.shelf.entries)
        assert there <= written
        assert there >= written - self.damaged or self.damaged  # one that has grown may not fit any more
        self.jobs, self.landing = [Someone() for _ in self.jobs], []
        self.holders, self.idle = {key: [] for key in self.shelf.entries}, list(self.shelf.entries)
        for key in there & self.damaged:  # its file may count for more, or less, than it would
            assert self.shelf.read(self.shelf.entries[key]) is None
            self.shelf.spoil(self.shelf.entries[key])
            del self.holders[key]
            self.idle.remove(key)
        assert self.shelf.idle == len(self.idle)

    @rule()
    def sweep(self):
        clean(self.shelf)
        names = {f"{path.parent.name}/{path.name}" for path in on_disk(self.directory)}
        known = {entry.name for key, entry in self.shelf.entries.items() if entry.data is None}
        assert {name for name in known if bytes.fromhex(name[3:67]) not in self.damaged} <= names <= known

    @invariant()
    def books_are_right(self):
        if not hasattr(self, "shelf"):
            return
        assert self.shelf.entries.keys() == self.holders.keys()
        assert self.shelf.used == self.size() <= self.capacity
        for job in self.jobs:
            parts = [footprint(len(POOL[key])) / len(jobs) for key, jobs in self.holders.items() if job in jobs]
            assert job.charged["disk"] == pytest.approx(sum(parts), abs=1e-6)


@pytest.fixture(autouse=True, scope="module")
def _place_for_files(tmp_path_factory):
    os.environ["PYTEST_FILES"] = str(tmp_path_factory.mktemp("files"))
    yield
    del os.environ["PYTEST_FILES"]


Files.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestFiles = Files.TestCase


class TestRestart:
    def test_what_was_written_is_there_and_idle(self, shelf, tmp_path):
        job = Someone()
        data = [content(number, size) for number, size in enumerate((0, 1, 4096, 4097, 100_000))]
        for each in data:
            store(shelf, each, job, keep=False)
        again = reopened(shelf, tmp_path / "disk")
        assert {again.read(again.entries[key(each)]) for each in data} == set(data)
        assert again.idle == 5
        assert again.used == shelf.used == sum(footprint(len(each)) for each in data)
        new = content(99)
        assert store(again, new, job).name not in {entry.name for entry in shelf.entries.values()}
        assert again.read(again.entries[key(new)]) == new
        again.close()

    def test_what_was_never_written_is_not_there(self, shelf, tmp_path):
        shelf.put(key(content(0)), content(0), Someone())
        again = reopened(shelf, tmp_path / "disk")
        assert (again.entries, again.used, on_disk(tmp_path / "disk")) == ({}, 0, [])
        again.close()

    def test_less_capacity_keeps_less_and_removes_the_rest(self, shelf, tmp_path):
        for number in range(10):
            store(shelf, content(number), Someone())
        again = reopened(shelf, tmp_path / "disk", 3 * footprint(5000) + 100)
        assert (len(again.entries), again.used, len(on_disk(tmp_path / "disk"))) == (3, 3 * footprint(5000), 3)
        assert all(key(again.read(entry)) == each for each, entry in again.entries.items())
        again.close()

    def test_a_file_of_the_same_content_twice_counts_once(self, shelf, tmp_path):
        data = content(0)
        path = tmp_path / "disk" / "share-node" / store(shelf, data, Someone()).name
        shutil.copy(path, path.with_name(path.name + "7"))
        again = reopened(shelf, tmp_path / "disk")
        assert (len(again.entries), again.used, len(on_disk(tmp_path / "disk"))) == (1, footprint(5000), 1)
        assert again.read(again.entries[key(data)]) == data
        again.close()

    def test_what_is_not_ours_or_half_written_is_removed(self, shelf, tmp_path):
        data = content(0)
        entry = store(shelf, data, Someone())
        folder = (tmp_path / "disk" / "share-node" / entry.name).parent
        zeros = "0" * 64
        for name in ("new-5", "readme.txt", zeros[1:] + "-1", zeros, f"{zeros}-", f"{zeros}-1.bak", "X" * 64 + "-1"):
            (folder / name).write_bytes(b"not ours")
        (folder / ("0" * 64 + "-1")).symlink_to("/nowhere")
        (folder / ("1" * 64 + "-1")).symlink_to(tmp_path / "disk" / "AUGURY-CACHE")
        (folder / ("2" * 64 + "-1")).mkdir()
        again = reopened(shelf, tmp_path / "disk")
        assert list(again.entries) == [key(data)]
        assert on_disk(tmp_path / "disk") == [tmp_path / "disk" / "share-node" / entry.name]
        assert (tmp_path / "disk" / "AUGURY-CACHE").exists()
        again.close()

    def test_a_foreign_file_beside_ours_is_left_alone(self, shelf, tmp_path):
        shelf.close()
        (tmp_path / "disk" / "share-node" / "thesis.tex").write_text("years of work")
        with pytest.raises(ConfigError, match=r"thesis\.tex"):
            FileShelf(tmp_path / "disk", 1 << 20)
        assert (tmp_path / "disk" / "share-node" / "thesis.tex").exists()

    def test_serials_go_on_from_the_highest(self, shelf, tmp_path):
        for number in range(30):
            store(shelf, content(number, 10), Someone())
        for _ in range(2):
            shelf = reopened(shelf, tmp_path / "disk")
            store(shelf, content(random.getrandbits(30), 10), Someone())
        serials = [int(entry.name.rpartition("-")[2]) for entry in shelf.entries.values()]
        assert sorted(serials) == list(range(32))
        shelf.close()


WRITER = """
import sys, numpy as np
from pathlib import Path
from blake3 import blake3
from augury.node.files import FileShelf
class Job:
    charged = {"disk": 0.0}
shelf, job, rng = FileShelf(Path(sys.argv[1]), 4 << 20), Job(), np.random.default_rng(int(sys.argv[2]))
print("ready", flush=True)
while True:
    data = rng.bytes(int(rng.integers(0, 200_000)))
    entry = shelf.put(blake3(data).digest(), data, job)
    shelf.land(entry, shelf.write(entry))
    shelf.release(entry, job, keep=bool(rng.random() < 0.9))
    shelf.remove(shelf.sweep())
"""


def environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def test_a_node_killed_while_it_writes_leaves_what_is_right_or_nothing(tmp_path):
    there = 0
    for turn in range(4):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "disk"), str(turn)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as writer:
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(0.05 + 0.03 * turn)
            assert writer.poll() is None
            writer.kill()
        shelf = FileShelf(tmp_path / "disk", 4 << 20)
        assert all(key(shelf.read(entry)) == each for each, entry in shelf.entries.items())
        names = sorted(entry.name for entry in shelf.entries.values())
        paths = on_disk(tmp_path / "disk")
        assert names == [f"{path.parent.name}/{path.name}" for path in paths]
        assert shelf.used == sum(footprint(path.stat().st_size) for path in paths) <= shelf.capacity
        there += len(names)
        shelf.close()
    assert there


class TestDamage:
    @pytest.fixture
    def entry(self, shelf):
        return store(shelf, content(0), Someone(), keep=False)

    @pytest.fixture
    def path(self, entry, tmp_path):
        return tmp_path / "disk" / "share-node" / entry.name

    def test_a_torn_file(self, shelf, entry, path):
        path.write_bytes(content(0)[:4096])
        assert shelf.read(entry) is None

    def test_an_empty_file(self, shelf, entry, path):
        path.write_bytes(b"")
        assert shelf.read(entry) is None

    @pytest.mark.parametrize("bit", [0, 5000 * 8 - 1, 12345])
    def test_a_flipped_bit(self, shelf, entry, path, bit):
        data = bytearray(content(0))
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        assert shelf.read(entry) is None

    def test_another_samples_file(self, shelf, entry, path):
        path.write_bytes(content(1))
        assert shelf.read(entry) is None

    def test_a_file_that_is_gone(self, shelf, entry, path):
        path.unlink()
        assert shelf.read(entry) is None
        assert shelf.spoil(entry)
        assert (shelf.damaged, shelf.used, shelf.entries) == (1, 0, {})

    def test_what_was_put_anew_meanwhile_is_not_spoiled(self, shelf, entry, path):
        path.write_bytes(b"damaged")
        assert shelf.read(entry) is None
        shelf.discard(entry)
        new = store(shelf, content(0), Someone(), keep=False)
        assert not shelf.spoil(entry)
        clean(shelf)
        assert shelf.read(new) == content(0)
        assert (shelf.damaged, list(shelf.entries)) == (0, [key(content(0))])


class TestWriting:
    def test_it_can_be_read_before_during_and_after(self, shelf):
        entry = shelf.put(key(content(0)), content(0), Someone())
        assert shelf.read(entry) == content(0)
        assert shelf.write(entry)
        assert shelf.read(entry) == content(0)
        shelf.land(entry, True)
        assert entry.data is None
        assert shelf.read(entry) == content(0)

    def test_written_bytes_are_not_readable_by_others(self, shelf, tmp_path):
        store(shelf, content(0), Someone())
        share = tmp_path / "disk" / "share-node"
        assert share.stat().st_mode & 0o777 == 0o700
        assert all(path.parent.stat().st_mode & 0o777 == 0o700 for path in on_disk(tmp_path / "disk"))

    @pytest.mark.parametrize("after_writing", [False, True])
    def test_given_up_while_it_is_written_it_leaves_no_file(self, shelf, tmp_path, after_writing):
        job = Someone()
        entry = shelf.put(key(content(0)), content(0), job)
        if after_writing:
            assert shelf.write(entry)
        shelf.release(entry, job)
        clean(shelf)
        if not after_writing:
            assert shelf.write(entry)
        shelf.land(entry, True)
        clean(shelf)
        assert on_disk(tmp_path / "disk") == []
        assert (shelf.used, shelf.failures, job.charged["disk"]) == (0, 0, 0)

    def test_given_up_and_put_again_while_it_is_written_the_new_one_stays(self, shelf, tmp_path):
        job = Someone()
        first = shelf.put(key(content(0)), content(0), job)
        shelf.release(first, job)
        second = shelf.put(key(content(0)), content(0), job)
        for entry in (second, first):
            assert shelf.write(entry)
            shelf.land(entry, True)
        clean(shelf)
        assert [path.name for path in on_disk(tmp_path / "disk")] == [Path(second.name).name]
        assert shelf.read(second) == content(0)

    def test_only_so_much_waits_in_memory(self, shelf):
        job, data = Someone(), bytes(1 << 20)
        entries = [shelf.put(bytes([number]) * 32, data, job) for number in range(LANDING >> 20)]
        assert None not in entries
        assert shelf.put(b"x" * 32, b"x", job) is None
        assert shelf.put(b"x" * 32, b"", job) is not None
        assert shelf.write(entries[0])
        shelf.land(entries[0], True)
        assert shelf.put(b"y" * 32, data, job) is not None
        assert shelf.put(b"z" * 32, b"z", job) is None

    def test_what_was_given_up_waits_until_it_is_written(self, shelf):
        """Its bytes are still in memory, in the hands of who writes them."""
        job, data = Someone(), bytes(LANDING)
        entry = shelf.put(b"1" * 32, data, job)
        shelf.release(entry, job)
        assert shelf.put(b"2" * 32, b"x", job) is None
        shelf.land(entry, False)
        assert shelf.failures == 1

    def test_finishing_writes_all_and_removes_what_has_left(self, shelf, tmp_path):
        stock, job = Stock(MemoryShelf(0), shelf), Someone()
        landing = [shelf.put(key(content(number)), content(number), job) for number in range(5)]
        stock.finish(landing[:4])
        shelf.release(landing[0], job)
        shelf.release(landing[4], job)
        stock.finish(landing[4:])
        assert len(on_disk(tmp_path / "disk")) == 3
        assert all(shelf.read(entry) == content(number) for number, entry in enumerate(landing[1:4], start=1))


class TestFailure:
    def test_after_a_failure_nothing_is_written_for_a_while(self, tmp_path):
        clock, job = Clock(), Someone()
        shelf = FileShelf(tmp_path / "disk", 1 << 20, clock)
        (tmp_path / "disk" / "share-node" / key(content(0)).hex()[:2]).write_text("in the way")
        entry = shelf.put(key(content(0)), content(0), job)
        assert not shelf.write(entry)
        shelf.land(entry, False)
        assert (shelf.failures, shelf.entries, shelf.used, job.charged["disk"]) == (1, {}, 0, 0)
        assert shelf.reason
        assert shelf.put(key(content(1)), content(1), job) is None
        clock.now += PAUSE - 0.1
        assert shelf.put(key(content(1)), content(1), job) is None
        clock.now += 0.2
        assert store(shelf, content(1), job)
        shelf.close()

    def test_a_nearly_full_disk_is_left_alone(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "statvfs", lambda path: _System(1000, 51, 4096))
        shelf, job = FileShelf(tmp_path / "disk", 1 << 20, Clock()), Someone()
        fits = shelf.put(key(content(0, 4096)), content(0, 4096), job)
        assert shelf.write(fits)
        shelf.land(fits, True)
        too_much = shelf.put(key(content(0, 4097)), content(0, 4097), job)
        assert not shelf.write(too_much)
        shelf.land(too_much, False)
        assert "nearly full" in shelf.reason
        assert len(on_disk(tmp_path / "disk")) == 1
        shelf.close()


class _System:
    def __init__(self, blocks, free, block):
        self.f_blocks, self.f_bavail, self.f_frsize = blocks, free, block


FILLER = """
import resource, sys, numpy as np
from pathlib import Path
from blake3 import blake3
from augury.node.files import FileShelf
class Job:
    charged = {"disk": 0.0}
directory, job, written, now = Path(sys.argv[1]), Job(), [], [1000.0]
shelf = FileShelf(directory, 64 << 20, lambda: now[0])
if sys.argv[2] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
for number in range(100):
    data = np.random.default_rng(number).bytes(60_000)
    now[0] += 31
    entry = shelf.put(blake3(data).digest(), data, job)
    done = shelf.write(entry)
    shelf.land(entry, done)
    shelf.remove(shelf.sweep())
    if done:
        written.append((entry, data))
assert shelf.failures == 100 - len(written), (shelf.failures, len(written))
assert all(shelf.read(entry) == data for entry, data in written)
assert len(shelf.entries) == len(written)
found = [path for path in (directory / "share-node").rglob("*") if path.is_file() and path.name != "lock"]
assert len(found) == len(written), found
print(len(written), shelf.reason)
"""


def test_a_disk_that_fills_up(tmp_path):
    """A file system of 2 MB: a twentieth of it stays free, and what does not fit leaves no file."""
    (tmp_path / "mount").mkdir()
    mount = f"mount -t tmpfs -o size=2m none {tmp_path}/mount && "
    if subprocess.run(["unshare", "-m", "sh", "-c", mount + "true"], capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    script = tmp_path / "fill.py"
    script.write_text(FILLER)
    command = f"{mount} exec {sys.executable} {script} {tmp_path}/mount/disk 0"
    answer = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, env=environment(), check=False)
    assert answer.returncode == 0, answer.stderr
    count, reason = answer.stdout.decode().split(maxsplit=1)
    assert 20 <= int(count) <= 34
    assert "nearly full" in reason


def test_a_write_that_breaks_off(tmp_path):
    command = [sys.executable, "-c", FILLER, str(tmp_path / "disk"), "50000"]
    answer = subprocess.run(command, capture_output=True, env=environment(), check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.decode().strip() == "0 File too large"


class TestWhoseDirectory:
    def test_one_of_another_user_is_refused(self, tmp_path):
        (tmp_path / "disk").mkdir(mode=0o700)
        try:
            os.chown(tmp_path / "disk", 12345, 12345)
        except PermissionError:
            pytest.skip("only root can give a directory away")
        with pytest.raises(ConfigError, match="another user"):
            FileShelf(tmp_path / "disk", 1 << 20)
        assert os.listdir(tmp_path / "disk") == []

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
    def test_one_that_others_may_write_to_is_refused(self, tmp_path, mode):
        (tmp_path / "disk").mkdir()
        (tmp_path / "disk").chmod(mode)
        with pytest.raises(ConfigError, match="written to by others"):
            FileShelf(tmp_path / "disk", 1 << 20)
        assert os.listdir(tmp_path / "disk") == []

    @pytest.mark.parametrize("mode", [0o700, 0o755])
    def test_one_of_our_own_is_used(self, tmp_path, mode):
        (tmp_path / "disk").mkdir()
        (tmp_path / "disk").chmod(mode)
        FileShelf(tmp_path / "disk", 1 << 20).close()

    @pytest.mark.parametrize("there", [True, False])
    def test_a_link_is_refused(self, tmp_path, there):
        if there:
            (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / "disk").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ConfigError, match="link"):
            FileShelf(tmp_path / "disk", 1 << 20)

    def test_a_link_in_the_place_of_the_share_is_refused(self, tmp_path):
        FileShelf(tmp_path / "disk", 1 << 20).close()
        (tmp_path / "disk" / "share-node").rename(tmp_path / "elsewhere")
        (tmp_path / "disk" / "share-node").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ConfigError, match="not a directory of this user"):
            FileShelf(tmp_path / "disk", 1 << 20)

    def test_one_with_files_of_others_is_refused(self, tmp_path):
        (tmp_path / "disk").mkdir(mode=0o700)
        (tmp_path / "disk" / "photo.jpg").write_bytes(b"dear")
        with pytest.raises(ConfigError, match=r"photo\.jpg"):
            FileShelf(tmp_path / "disk", 1 << 20)

    def test_one_that_another_node_uses_is_refused_until_it_ends(self, shelf, tmp_path):
        data = content(0)
        store(shelf, data, Someone())
        with pytest.raises(InUse, match=str(os.getpid())):
            FileShelf(tmp_path / "disk", 1 << 20)
        again = reopened(shelf, tmp_path / "disk")
        assert again.read(again.entries[key(data)]) == data
        again.close()

    def test_a_shelf_that_cannot_begin_lets_go_of_the_directory(self, shelf, tmp_path, monkeypatch):
        shelf.close()
        with monkeypatch.context() as patch:
            patch.setattr(os, "scandir", lambda path: (_ for _ in ()).throw(PermissionError(13, "no")))
            with pytest.raises(PermissionError) as failure:
                FileShelf(tmp_path / "disk", 1 << 20)
        FileShelf(tmp_path / "disk", 1 << 20).close()
        assert failure.tb, "which refers to the shelf: nothing waits for it to be collected"


@pytest.mark.parametrize(("size", "cost"), [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (1 << 40, 1 << 40)])
def test_a_sample_costs_whole_blocks(size, cost):
    assert footprint(size) == cost
