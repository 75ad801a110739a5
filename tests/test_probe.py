"""Measuring storage: against stores of known speed, in real directories that must be left as they were.

No test asserts on absolute time but with a SlowSource, whose speed is known, and within a loose factor.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.cli import main
from augury.errors import Closed, ConfigError, InUse, TierFailed
from augury.probe import Curve, Disk, default_threads, probe
from augury.probe.disk import spare, temporary_tier
from augury.probe.rounds import ROUNDS, timed
from augury.probe.source import cached_before, plan_rounds
from augury.sources import open_source
from augury.sources.slow import SlowSource
from augury.storage import Storage
from augury.tiers.disk import DiskTier
from augury.tiers.memory import BufferTier, MatrixTier
from helpers import Gate, arrays, folder, threads

BRIEF = {"threads": [1, 2], "seconds": 0.05}


def tree(root: Path) -> dict[str, object]:
    """All that lies below a directory, with contents."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))
    }


# What is made of rates ----------------------------------------------------------------------------------------


def test_a_curve_is_medians_and_names_the_fewest_threads_that_are_enough():
    curve = Curve("ram", "read", {1: [10, 30, 20], 2: [89, 900, 1], 4: [91, 95, 90], 8: [100, 100, 10]})
    assert curve.throughput.measured == {1: 20, 2: 89, 4: 91, 8: 100}
    assert curve.enough == 4
    assert Curve("ram", "read", {1: [90], 2: [100]}).enough == 1
    assert Curve("ram", "read", {1: [89.9], 2: [100], 4: [50]}).enough == 2
    assert Curve("ram", "write", {1: [3.14159]}).throughput.measured == {1: 3.142}


def test_the_usual_numbers_of_threads(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert default_threads() == [1, 2, 4, 6, 8]
    assert default_threads(32) == [1, 2, 4, 6, 8, 16, 32]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert default_threads() == [1, 2, 4, 8, 64]


@given(st.integers(1, 10**6), st.lists(st.integers(1, 64), min_size=1, max_size=8, unique=True))
def test_a_dataset_is_shared_out_so_that_nothing_is_read_twice(samples, counts):
    plan = plan_rounds(samples, counts)
    if plan.repeats:
        assert samples // len(counts) < 4 * max(counts)
        assert plan.quota == samples
    else:
        assert plan.rounds * len(counts) * plan.quota <= samples
        assert plan.quota >= 4 * max(counts)
        assert 1 <= plan.rounds <= ROUNDS


# One round ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_round_shares_all_pieces_out(count):
    seen = []

    def reader():
        def read(ids):
            seen.append((threading.get_ident(), ids))
            time.sleep(0.001)
            return 1000

        return read

    rate = timed(range(50), reader, count, seconds=60)
    assert sorted(ids for _, ids in seen) == list(range(50))
    assert len({thread for thread, _ in seen}) == count
    assert 0 < rate < count * 1.0  # 1000 bytes per millisecond and thread, and never faster


def test_a_round_ends_in_time_and_every_thread_does_something():
    seen = []

    def reader():
        def read(ids):
            seen.append(threading.get_ident())
            time.sleep(0.002)
            return 1

        return read

    assert timed(itertools.repeat(0), reader, 4, seconds=1e-9) > 0
    assert len(set(seen)) == len(seen) == 4


def test_what_is_under_way_is_waited_for_and_counts():
    def reader():
        def read(ids):
            time.sleep(0.2)
            return 1_000_000

        return read

    assert 2 < timed(itertools.repeat(0), reader, 2, seconds=0.01) < 10.1


def test_an_error_in_a_thread_ends_the_round():
    def reader():
        def read(ids):
            if ids == 20:
                raise RuntimeError("no more")
            return 1

        return read

    with pytest.raises(RuntimeError, match="no more"):
        timed(itertools.count(), reader, 3, seconds=60)
    assert threads() == []


def test_an_interrupted_round_leaves_no_thread():
    begun, ended = [], []

    def reader():
        def read(ids):
            begun.append(ids)
            time.sleep(0.2)
            ended.append(ids)
            return 1

        return read

    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        timed(itertools.repeat(0), reader, 3, seconds=60)
    assert threads() == []
    assert len(begun) == len(ended)
    timer.join()


# Sources ------------------------------------------------------------------------------------------------------


class Single(Gate):
    """Every sample is one request, and what is read is counted."""


def slow_store(samples=4000, size=20_000, **options):
    rows = np.zeros((samples, size), np.uint8)
    return Single(SlowSource(open_source(rows), **options))


def test_a_line_of_known_bandwidth_is_found():
    # Ten milliseconds per sample: a busy machine oversleeps by a few.
    found = probe(slow_store(400, 200_000, bandwidth=20e6), threads=[1, 4], seconds=0.5)
    measured = found.storage.source.measured
    assert list(measured) == [1, 4]
    for rate in measured.values():
        assert 10 < rate < 26
    assert found.storage.levels == ()


def test_latency_is_hidden_by_more_readers_until_the_line_is_full():
    found = probe(slow_store(latency=0.02, bandwidth=8e6), threads=[1, 4, 16], seconds=0.5)
    one, four, sixteen = found.storage.source.measured.values()
    assert 0.4 < one < 1.3
    assert 1.8 < four < 5
    assert 3.5 < sixteen < 10
    assert one < four < sixteen
    (curve,) = found.curves
    assert curve.enough == 16


def test_every_sample_is_read_once_at_most():
    source = slow_store(samples=2000, size=100)
    (note,) = probe(source, threads=[1, 2, 4], seconds=60).notes
    assert len(set(source.reads)) == len(source.reads) >= 1900
    assert "each read once" in note
    assert "too small" not in note


def test_a_small_dataset_gets_fewer_rounds_and_a_tiny_one_a_warning():
    small = slow_store(samples=40, size=100)
    found = probe(small, threads=[1, 2], seconds=0.05)
    assert {len(rates) for rates in found.curves[0].rates.values()} == {2}
    assert "2 of 5 rounds only" in found.notes[0]
    assert len(set(small.reads)) == len(small.reads)
    (note,) = probe(slow_store(samples=5, size=100), threads=[1, 2], seconds=0.05).notes
    assert "too small to read each sample once" in note


def test_reads_that_fail_are_told():
    (note,) = probe(slow_store(failure_rate=0.3, latency=0.001), threads=[1, 2], seconds=0.1).notes
    assert "reads failed, such as: sample" in note
    with pytest.raises(ConfigError, match=r"cannot be measured: sample .* simulated failure"):
        probe(slow_store(failure_rate=1.0), threads=[1], seconds=0.1)


def test_samples_without_bytes_have_no_speed():
    with pytest.raises(ConfigError, match="its samples are empty"):
        probe(open_source(np.empty((100, 0), np.uint8)), **BRIEF)


def test_views_of_an_array_are_copied_out():
    """An array hands out views: their bytes have been read by nobody, and would seem infinitely fast."""
    source = open_source(np.zeros((2000, 1_000_000), np.uint8)[:, :])
    (rate,) = probe(source, threads=[1], seconds=0.1).storage.source.measured.values()
    assert rate < 200_000


def test_whether_files_were_in_memory_before(tmp_path):
    folder(tmp_path / "data")
    source = open_source(tmp_path / "data")
    cached = cached_before(source, np.random.default_rng(0))
    assert cached is None or cached > 0.9  # they were written just now
    assert cached_before(open_source(arrays()[0]), np.random.default_rng(0)) is None
    (note,) = probe(source, **BRIEF).notes
    assert ("was in the page cache before" in note) == (cached is not None)
    source.close()


# Memory and disk ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixed", [False, True])
def test_memory_and_disk_with_the_samples_of_the_dataset(tmp_path, mixed):
    if mixed:
        folder(tmp_path / "data", samples=90, largest=5000)
        source = open_source(tmp_path / "data")
    else:
        source = open_source(arrays(300, 3000)[0])
    told = []
    found = probe(
        source, 0.5, Disk(tmp_path / "cache", "10MB"), **BRIEF, progress=lambda what, *numbers: told.append(numbers)
    )
    ram, disk = found.storage.levels
    assert (ram.name, ram.capacity, ram.path) == ("ram", 0.5, None)
    assert (disk.name, disk.capacity, disk.path) == ("disk", "10MB", str(tmp_path / "cache"))
    for level in (ram, disk):
        assert list(level.read.measured) == [1, 2]
        assert list(level.write.measured) == [1]
        assert level.threads in (1, 2)
    assert [(curve.place, curve.action) for curve in found.curves] == [
        ("ram", "write"),
        ("ram", "read"),
        ("disk", "write"),
        ("disk", "read"),
        ("source", "read"),
    ]
    assert all(rate > 0 for curve in found.curves for rates in curve.rates.values() for rate in rates)
    assert [note.split(":")[0] for note in found.notes] == ["ram", "disk", "source"]
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {total for _, total in told} == {5 * (3 + 3 + 2)}
    assert not (tmp_path / "cache").exists()
    source.close()


@pytest.mark.parametrize(("mixed", "used"), [(False, "take"), (True, "read")])
def test_memory_is_read_as_the_loader_reads_it(tmp_path, monkeypatch, mixed, used):
    calls = set()
    for tier, method in ((MatrixTier, "take"), (BufferTier, "read")):
        original = getattr(tier, method)
        monkeypatch.setattr(tier, method, lambda *given, do=original, name=method: calls.add(name) or do(*given))
    folder(tmp_path / "data")
    source = open_source(tmp_path / "data") if mixed else open_source(arrays()[0])
    probe(source, 0.9, **BRIEF)
    assert calls == {used}
    source.close()


def test_what_is_read_is_what_was_written(tmp_path, monkeypatch):
    """A rate of reads that find nothing would be worth nothing."""
    reads = []
    original = DiskTier.read

    def read(self, ids):
        found = original(self, ids)
        reads.extend(found)
        return found

    monkeypatch.setattr(DiskTier, "read", read)
    probe(disk=Disk(tmp_path / "cache", "1MB"), size=1000, **BRIEF)
    assert len(reads) > 100
    assert all(len(data) == 1000 for data in reads)


def test_without_a_dataset_samples_have_the_size_given():
    found = probe(ram="3MB", size=1000, **BRIEF)
    assert found.storage.source is None
    assert "3,000 samples (3 MB)" in found.notes[0]
    assert "30 samples (3 MB)" in probe(ram="3MB", **BRIEF).notes[0]


def test_the_limit_of_the_disk_holds_at_every_moment(tmp_path):
    largest = 0

    def look(*_):
        nonlocal largest
        largest = max(largest, sum(path.stat().st_blocks * 512 for path in (tmp_path / "c").rglob("data.*")))

    probe(disk=Disk(tmp_path / "c", "2MB"), size=10_000, **BRIEF, progress=look)
    assert 500_000 < largest <= 2_000_000


def test_a_directory_is_left_as_it_was(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "beside").write_text("mine")
    sizes = np.full(10, 100)
    with contextlib.closing(DiskTier(tmp_path / "cache", 10_000, sizes, "data")) as tier:
        tier.write(np.arange(5), [b"x" * 100] * 5)
    (tmp_path / "marked").mkdir()
    (tmp_path / "marked" / "AUGURY-CACHE").touch()
    before = tree(tmp_path)
    for directory in ("new", "a/b/c", "empty", "cache", "marked"):
        probe(disk=Disk(tmp_path / directory, "1MB"), size=1000, **BRIEF)
        assert tree(tmp_path) == before
    with contextlib.closing(DiskTier(tmp_path / "cache", 10_000, sizes, "data")) as tier:
        assert tier.found().tolist() == [0, 1, 2, 3, 4]


def test_a_relative_directory_is_noted_as_an_absolute_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (disk,) = probe(disk=Disk(Path("some/cache"), "1MB"), size=1000, **BRIEF).storage.levels
    assert disk.path == str(tmp_path / "some" / "cache")
    assert tree(tmp_path) == {}


def test_beside_a_training_that_uses_the_directory(tmp_path):
    with contextlib.closing(DiskTier(tmp_path / "c", 10_000, np.full(10, 100), "data")) as tier:
        tier.write(np.arange(5), [b"x" * 100] * 5)
        probe(disk=Disk(tmp_path / "c", "1MB"), size=1000, **BRIEF)
        assert [bytes(data) for data in tier.read(np.arange(5))] == [b"x" * 100] * 5


def test_files_of_others_are_refused_and_stay(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="not Augury's"):
        probe(disk=Disk(tmp_path, "1MB"), **BRIEF)
    assert tree(tmp_path) == {"thesis.tex": b"years of work"}


def test_a_share_that_holds_files_of_others_stays(tmp_path):
    DiskTier(tmp_path / "c", 10_000, np.full(10, 100), "data").close()
    (tmp_path / "c" / "share-probe").mkdir()
    (tmp_path / "c" / "share-probe" / "mine").write_text("x")
    (tmp_path / "c" / "share-probe" / "index").write_text("also mine")
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match="not Augury's"):
        probe(disk=Disk(tmp_path / "c", "1MB"), **BRIEF)
    assert tree(tmp_path) == before


def test_a_cache_that_is_opened_meanwhile_stays(tmp_path):
    with temporary_tier(tmp_path / "c", np.full(10, 100)):
        DiskTier(tmp_path / "c", 10_000, np.full(10, 100), "data").close()
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["AUGURY-CACHE", "share-0"]


def test_pages_are_forgotten_before_reads(tmp_path):
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip("files are always in memory here")
    with temporary_tier(tmp_path / "c", np.full(10, 100_000)) as (tier, file):
        tier.write(np.arange(10), [b"y" * 100_000] * 10)
        assert file.resident() > 0.9
        file.forget()
        assert file.resident() < 0.1


def test_two_probes_at_once_are_refused_and_the_first_goes_on(tmp_path):
    with temporary_tier(tmp_path / "c", np.full(10, 100)) as (tier, _):
        tier.write(np.arange(10), [b"y" * 100] * 10)
        with pytest.raises(InUse):
            probe(disk=Disk(tmp_path / "c", "1MB"), **BRIEF)
        assert (tmp_path / "c" / "share-probe" / "data.0").exists()
        assert all(tier.read(np.arange(10)))
    assert not (tmp_path / "c").exists()


def test_files_go_while_the_lock_is_held_and_the_tier_is_closed(tmp_path, monkeypatch):
    """Else another probe could take the share over and lose its files."""
    left = []
    original = DiskTier.close

    def close(self):
        left.extend(path.name for path in (tmp_path / "c" / "share-probe").iterdir())
        original(self)

    monkeypatch.setattr(DiskTier, "close", close)
    with temporary_tier(tmp_path / "c", np.full(10, 100)) as (tier, _):
        tier.write(np.arange(10), [b"y" * 100] * 10)
    assert left == ["lock"]
    with pytest.raises(Closed):
        tier.read(np.arange(10))


def test_what_a_killed_probe_has_left_is_removed(tmp_path):
    script = (
        "import os, sys, numpy as np; from pathlib import Path; from augury.probe.disk import temporary_tier\n"
        "with temporary_tier(Path(sys.argv[1]), np.full(10, 100)) as (tier, _): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script, tmp_path / "c"]).returncode == 9
    assert (tmp_path / "c" / "share-probe").exists()
    probe(disk=Disk(tmp_path / "c", "1MB"), size=1000, **BRIEF)
    assert not (tmp_path / "c" / "share-probe").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, TierFailed])
@pytest.mark.parametrize("method", ["read", "write", "found"])
def test_everything_is_removed_after_an_error(tmp_path, monkeypatch, method, error):
    (tmp_path / "empty").mkdir()

    def fail(*_):
        raise error("in the middle")

    monkeypatch.setattr(DiskTier, method, fail)
    for directory in ("empty", "new/one"):
        with pytest.raises(error):
            probe(disk=Disk(tmp_path / directory, "1MB"), size=1000, **BRIEF)
    assert tree(tmp_path) == {"empty": None}
    assert threads() == []


def test_a_tier_that_cannot_be_opened_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(DiskTier, "_take_over", lambda *_: (_ for _ in ()).throw(TierFailed("no")))
    with pytest.raises(TierFailed):
        probe(disk=Disk(tmp_path / "c", "1MB"), **BRIEF)
    assert tree(tmp_path) == {}


def test_free_space_is_respected(tmp_path, monkeypatch):
    real = os.statvfs(tmp_path)

    class Nearly:
        f_frsize, f_blocks, f_bavail = 4096, 10**9, (1 << 30) // 4096 + 50

    monkeypatch.setattr(os, "statvfs", lambda _: Nearly)
    with pytest.raises(ConfigError, match=r"disk .*/c: the 102 kB that may be used hold none"):
        probe(disk=Disk(tmp_path / "c", "1GB"), size=200_000, **BRIEF)
    assert tree(tmp_path) == {}
    monkeypatch.setattr(os, "statvfs", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(ConfigError, match="Permission denied"):
        probe(disk=Disk(tmp_path / "c", "1GB"), **BRIEF)
    monkeypatch.setattr(os, "statvfs", lambda _: real)
    assert spare(tmp_path / "not" / "there") <= real.f_bavail * real.f_frsize // 2


def test_limits_that_hold_no_sample(tmp_path):
    with pytest.raises(ConfigError, match=r"ram: the 10 B that may be used hold none .*smallest has 100 B"):
        probe(ram=10, size=100, **BRIEF)
    with pytest.raises(ConfigError, match=r"disk .*/c: the 5 kB that may be used"):
        probe(disk=Disk(tmp_path / "c", 5000), size=100, **BRIEF)
    assert tree(tmp_path) == {}


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no disk in memory here")
def test_a_disk_in_memory_is_called_so():
    place = Path(f"/dev/shm/augury-test-{os.getpid()}")
    (note,) = probe(disk=Disk(place, "1MB"), size=1000, **BRIEF).notes
    assert "this is the speed of memory" in note
    assert not place.exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing to measure"),
        ({"ram": "1MB", "threads": []}, "whole numbers from 1 on"),
        ({"ram": "1MB", "threads": [0]}, "whole numbers from 1 on"),
        ({"ram": "1MB", "seconds": 0}, "positive"),
        ({"ram": "1MB", "seconds": float("nan")}, "positive"),
        ({"ram": "1MB", "size": 0}, "at least one byte"),
        ({"ram": "1XB"}, "ram='1XB' is not a size"),
        ({"ram": 0.5}, "fraction"),
    ],
)
def test_what_cannot_work_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        probe(**given)


# The command --------------------------------------------------------------------------------------------------


def command(*arguments):
    return [sys.executable, "-m", "augury.cli", "probe", *map(str, arguments)]


def augury(*arguments, code=0):
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def data(tmp_path):
    folder(tmp_path / "data", samples=90, largest=3000)
    return tmp_path / "data"


def test_json_and_the_file_agree(data, tmp_path):
    given = ("--ram", "0.5", "--disk", f"{tmp_path}/cache:5MB", "--threads", "2,1", "--seconds", 0.05)
    done = augury(data, *given, "--out", tmp_path / "levels.toml", "--json")
    assert done.stderr == ""
    told = json.loads(done.stdout)
    storage = Storage.load(tmp_path / "levels.toml")
    assert [level["name"] for level in told["levels"]] == [level.name for level in storage.levels] == ["ram", "disk"]
    assert [level.capacity for level in storage.levels] == [0.5, "5MB"]
    assert storage.levels[1].path == str(tmp_path / "cache")
    by_name = {(one["place"], one["action"]): one for one in told["measured"]}
    for (place, action), one in by_name.items():
        measured = {int(count): rate for count, rate in one["throughput"].items()}
        level = {level.name: level for level in storage.levels}.get(place)
        assert measured == (storage.source if level is None else getattr(level, action)).measured
        if level is not None and action == "read":
            assert one["threads"] == level.threads
    assert len(told["notes"]) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "levels.toml"]


def test_a_table_for_people(data):
    done = augury(data, "--ram", "1MB", "--seconds", 0.02, "--threads", "1,2")
    assert all(word in done.stdout for word in ("MB/s", "ram", "source", "read", "write", "threads", "readers="))
    assert done.stderr == ""


def test_the_dataset_is_closed_again(data, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr("augury.commands.probe.open_source", lambda path: opened.append(open_source(path)) or opened[0])
    monkeypatch.setattr(sys, "argv", ["augury", "probe", str(data), "--seconds", "0.02", "--threads", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    with pytest.raises(Closed):
        opened[0].read(np.arange(1))


def test_help_teaches():
    said = augury("--help").stdout
    assert "augury probe /data --ram 8GB" in said
    assert "--disk" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "nothing to measure"),
        ("/nowhere", "/nowhere"),
        ("--ram 8XB", "8XB"),
        ("--ram 0.5", "fraction"),
        ("--ram 1MB --threads 1,x", "not '1,x'"),
        ("--ram 1MB --threads 0", "not '0'"),
        ("--ram 1MB --threads ,", "not ','"),
        ("--ram 1MB --seconds 0", "positive"),
        ("--ram 1MB --size big", "--size"),
        ("--ram 1MB --out /nowhere/x.toml", "no directory /nowhere"),
        ("--ram 1MB --out /tmp", "is a directory"),
        ("--disk /nvme/augury", "like /nvme/augury:200GB"),
        ("--disk :5GB", "like /nvme/augury:200GB"),
        ("--disk /proc/nothing:5GB", "/proc/nothing"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["augury", "probe", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("error: ")
    assert message in said.err


@pytest.mark.parametrize("after", ["data.0", "tier.json"])
def test_ctrl_c_cleans_up(tmp_path, after):
    # So many numbers of threads that it would go on for long.
    counts = ",".join(map(str, range(1, 101)))
    given = (
        "--disk",
        f"{tmp_path}/new/cache:50MB",
        "--threads",
        counts,
        "--size",
        "10kB",
        "--out",
        tmp_path / "x.toml",
    )
    with subprocess.Popen(command(*given), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        deadline = time.monotonic() + 60
        while not list(tmp_path.rglob(after)) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in told
    assert tree(tmp_path) == {}
