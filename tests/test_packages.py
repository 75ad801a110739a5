"""Packages: whole or absent, within their limit, never wrong bytes; and the threads that write them.

With real files and real processes. Which samples form a package is the business of a policy, and is tested there.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.errors import AuguryWarning, Closed, ConfigError, InUse, Unreadable
from augury.ids import NONE, Ids, as_ids
from augury.packages import PackagedSource, PackageStore, Packer, check_apart
from augury.packages.layout import head_bytes
from augury.packages.tap import Tap
from augury.sources import Base, Buffer
from augury.sources.array import ArraySource
from augury.sources.folder import FolderSource
from augury.sources.slow import SlowSource
from augury.testing.sources import Made, SourceContract
from helpers import Gate, arrays, folder, settled, threads

PLENTY = 1 << 24
SAMPLES, SIZE = 240, 500
GROUP = 20


def rows() -> ArraySource:
    return ArraySource(arrays(SAMPLES, SIZE)[0])


def items(source: ArraySource, ids: Ids) -> list[bytes]:
    return [source.features[id].tobytes() for id in ids.tolist()]


def groups(seed: int = 0) -> list[Ids]:
    """All samples, in packages of twenty."""
    return list(np.random.default_rng(seed).permutation(SAMPLES).reshape(-1, GROUP))


def open_store(path: Path, limit: int = PLENTY, **options: Any) -> closing[PackageStore]:
    fingerprint = options.pop("fingerprint", None) or rows().catalog.fingerprint
    return closing(PackageStore(path / "packages", limit, fingerprint, **options))


def plain(samples: dict[int, memoryview] | None) -> dict[int, bytes]:
    assert samples is not None
    return {id: bytes(data) for id, data in samples.items()}


def files(path: Path, pattern: str = "*.package*") -> list[Path]:
    return sorted((path / "packages").glob(pattern))


def disk_bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in files(path))


@contextlib.contextmanager
def packing(path: Path, source: Any, limit: int = PLENTY, tap: int = 1 << 20, **options: Any) -> Iterator[Any]:
    """A source, its store, the source with packages, and a packer."""
    line = options.pop("line", None)
    with contextlib.ExitStack() as parts:
        store = parts.enter_context(open_store(path, limit, fingerprint=source.catalog.fingerprint, line=line))
        packaged = parts.enter_context(closing(PackagedSource(source, store, tap)))
        yield store, packaged, parts.enter_context(closing(Packer(packaged, store, **options)))


def check_reads(source: PackagedSource, expected: ArraySource, ids: Ids) -> None:
    assert [bytes(data) for data in source.read(ids)] == items(expected, ids)


# The store


def test_round_trip_and_restart(tmp_path: Path) -> None:
    ids, data = as_ids([7, 3, 1 << 40]), [b"seven", b"", bytes(1000)]
    with open_store(tmp_path) as store:
        name = store.name_of(ids)
        assert store.read(name) is None
        assert store.write(ids, [data[0], bytearray(data[1]), memoryview(data[2])])
        assert plain(store.read(name)) == dict(zip(ids.tolist(), data, strict=True))
        assert name in store
        assert store.bytes_used == disk_bytes(tmp_path) == store.size_of(name) == store.cost_of(3, 1005)
        assert store.write(ids[::-1], data[::-1])  # the same group in another order is the same package
        assert len(store.ready) == 1
    with open_store(tmp_path) as store:
        assert {name: ids.tolist() for name, ids in store.ready.items()} == {name: ids.tolist()}
        assert store.bytes_used == disk_bytes(tmp_path)
        assert plain(store.read(name)) == dict(zip(ids.tolist(), data, strict=True))
        store.remove(name)
        store.remove(name)
        assert (store.ready, store.bytes_used, files(tmp_path)) == ({}, 0, [])


@settings(max_examples=40)
@given(st.dictionaries(st.integers(0, (1 << 62)), st.binary(max_size=300), max_size=40))
def test_any_ids_and_bytes_come_back(tmp_path_factory: pytest.TempPathFactory, samples: dict[int, bytes]) -> None:
    with open_store(tmp_path_factory.mktemp("any")) as store:
        ids = as_ids(list(samples))
        assert store.write(ids, list(samples.values()))
        read = store.read(store.name_of(ids))
        assert plain(read) == samples
        assert all(view.readonly for view in (read or {}).values())


def test_what_cannot_be_a_package_is_said(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        with pytest.raises(ValueError, match="twice"):
            store.write(as_ids([1, 1]), [b"a", b"a"])
        with pytest.raises(ValueError, match="2 ids with 1"):
            store.write(as_ids([1, 2]), [b"a"])
    with pytest.raises(ConfigError):
        PackageStore(tmp_path / "none", 0, "a")


def test_another_dataset_starts_afresh(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.write(as_ids([1]), [b"one"])
    with open_store(tmp_path, fingerprint="b") as store:
        assert (store.ready, files(tmp_path)) == ({}, [])


def test_the_limit_holds_at_every_moment(tmp_path: Path) -> None:
    rng, refused, most = np.random.default_rng(0), 0, 20_000
    seen: list[int] = []

    def line(size: int) -> None:
        seen.append(disk_bytes(tmp_path) + size)  # what is reserved is not there yet

    with open_store(tmp_path, most, line=line) as store:
        for _ in range(80):
            ids = rng.permutation(1000)[: rng.integers(1, 30)]
            if not store.write(ids, [bytes(rng.integers(0, 300)) for _ in ids]):
                refused += 1
                store.remove(min(store.ready))
            assert disk_bytes(tmp_path) == store.bytes_used <= most
        assert refused > 25
        assert max(seen) <= most
        held = store.bytes_used
    with open_store(tmp_path, held // 2) as store:  # a smaller limit next time
        assert 0 < disk_bytes(tmp_path) == store.bytes_used <= held // 2


def test_the_line_is_asked_before_each_package_is_moved(tmp_path: Path) -> None:
    asked: list[int] = []
    with open_store(tmp_path, line=asked.append) as store:
        store.write(as_ids([1, 2]), [b"one", b"two"])
        store.read(store.name_of(as_ids([1, 2])))
        assert asked == [disk_bytes(tmp_path)] * 2


def test_removed_while_it_is_being_read(tmp_path: Path) -> None:
    """That is no damage: nobody is warned, and what was written anew meanwhile stays."""
    ids, once = as_ids([1, 2]), list[bool]()

    def line(size: int) -> None:
        if once and once.pop():
            store.remove(name)
            store.write(as_ids([3]), [b"other"])

    with open_store(tmp_path, line=line) as store, warnings.catch_warnings():
        warnings.simplefilter("error")
        name = store.name_of(ids)
        store.write(ids, [b"one", b"two"])
        once.append(True)
        assert store.read(name) is None
        assert list(store.ready) == [store.name_of(as_ids([3]))]
        assert store.bytes_used == disk_bytes(tmp_path)


def test_a_slow_source_shares_its_line(tmp_path: Path) -> None:
    slow = SlowSource(rows(), bandwidth=1e9)
    with open_store(tmp_path, line=slow.transfer) as store:
        store.write(as_ids([1]), [b"one"])
        assert (slow.requests_made, slow.bytes_read) == (1, disk_bytes(tmp_path))


def test_a_closed_store_holds_and_takes_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.write(as_ids([1]), [b"one"])
        store.close()
        assert store.read(store.name_of(as_ids([1]))) is None
        assert not store.write(as_ids([2]), [b"two"])
    assert len(files(tmp_path)) == 1


# Whose directory it is


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    folder(tmp_path / "packages")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="not Augury's"):
        open_store(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_not_a_package_is_left_alone(tmp_path: Path) -> None:
    with open_store(tmp_path):
        (tmp_path / "packages" / "notes.package").write_text("mine")
    with open_store(tmp_path) as store:
        assert store.ready == {}
    assert (tmp_path / "packages" / "notes.package").read_text() == "mine"


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with open_store(tmp_path), pytest.raises(InUse, match=str(os.getpid())):
        open_store(tmp_path)
    with open_store(tmp_path) as store:
        child = os.fork()
        if child == 0:
            store.close()  # the lock is its parent's
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(InUse):
            open_store(tmp_path)


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "packages").write_text("a file")
    with pytest.raises(ConfigError, match="packages cannot be kept in"):
        open_store(tmp_path)


def test_packages_stay_apart_from_the_data(tmp_path: Path) -> None:
    data = tmp_path / "all" / "data"
    folder(data)
    (tmp_path / "link").symlink_to(data)
    for wrong in (data, data / "new" / "deep", data.parent, tmp_path / "link" / "new", data / ".." / "data"):
        with pytest.raises(ConfigError, match="apart"):
            check_apart(wrong, data)
    for right in (tmp_path / "packages", tmp_path / "all" / "data2", tmp_path / "all" / "packages"):
        check_apart(right, data)
    check_apart(tmp_path / "packages", "array")  # samples in memory lie nowhere


# Damage


def one_package(path: Path) -> tuple[Path, dict[int, bytes], str]:
    ids = np.arange(5)
    samples = {id: bytes([id]) * (10 + id) for id in ids.tolist()}
    with open_store(path) as store:
        store.write(ids, list(samples.values()))
        return files(path)[0], samples, store.name_of(ids)


def test_a_torn_file_is_never_read(tmp_path: Path) -> None:
    file, samples, name = one_package(tmp_path)
    whole = file.read_bytes()
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        with open_store(tmp_path) as store:
            assert (store.ready, store.bytes_used) == ({}, 0)
            assert store.read(name) is None
        assert not file.exists()
    file.write_bytes(whole + b"more")
    with open_store(tmp_path) as store:
        assert store.ready == {}
    file.write_bytes(whole)
    with open_store(tmp_path) as store:
        assert plain(store.read(name)) == samples
        file.write_bytes(whole[:-1])  # torn while it is in use
        with pytest.warns(AuguryWarning, match="does not match its checksum"):
            assert store.read(name) is None
        assert (store.ready, store.bytes_used, files(tmp_path)) == ({}, 0, [])


def test_a_flipped_byte_is_never_read(tmp_path: Path) -> None:
    file, _, name = one_package(tmp_path)
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with warnings.catch_warnings(record=True) as caught, open_store(tmp_path) as store:
            warnings.simplefilter("always")
            assert (name in store.ready) == (at >= head_bytes(5))  # the heads are looked at when opening
            assert store.read(name) is None
            assert store.ready == {}
        assert len(caught) == (at >= head_bytes(5))
    file.write_bytes(whole)
    file.rename(file.with_name(f"{'0' * 32}.package"))
    with open_store(tmp_path) as store:  # a name that is not that of its ids
        assert store.ready == {}


def test_damage_costs_packages_and_nothing_else(tmp_path: Path) -> None:
    inner = rows()
    with packing(tmp_path, inner) as (store, source, packer):
        packer.follow(groups())
        assert packer.wait(10)
        for file in files(tmp_path)[:3]:
            data = bytearray(file.read_bytes())
            data[-5] ^= 1
            file.write_bytes(data)
        files(tmp_path)[3].unlink()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_reads(source, inner, np.arange(SAMPLES))
        assert len(caught) == 1
        assert caught[0].category is AuguryWarning
        assert len(store.ready) == len(groups()) - 4
        assert source.packages_read == len(groups()) - 4
        packer.follow(groups())  # mends them
        assert packer.wait(10)
        assert len(store.ready) == len(groups())


def killed_at(path: Path, step: int) -> None:
    """In a fork: write and remove packages, and be killed at the n-th change to the disk."""
    child = os.fork()
    if child == 0:
        try:
            with open_store(path) as store:
                left = [step]

                def torn(call: Any) -> Any:
                    def act(*arguments: Any, **options: Any) -> Any:
                        left[0] -= 1
                        if left[0] < 0:
                            if call is write:
                                call(arguments[0], arguments[1][: len(arguments[1]) // 2])
                            os.kill(os.getpid(), signal.SIGKILL)
                        return call(*arguments, **options)

                    return act

                write = os.write
                for name in ("write", "fsync", "replace", "unlink"):
                    setattr(os, name, torn(getattr(os, name)))
                for seed in range(100):
                    churn(store, seed)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def churn(store: PackageStore, seed: int) -> None:
    inner, rng = rows(), np.random.default_rng(seed)
    ids = rng.permutation(SAMPLES)[:GROUP]
    store.write(ids, items(inner, ids))
    if len(store.ready) > 3:
        store.remove(min(store.ready))


def check_whole(path: Path) -> int:
    """After a crash: all that is ready is right, and nothing else is there."""
    inner = rows()
    with open_store(path) as store:
        assert files(path, "*.new") == []
        assert disk_bytes(path) == store.bytes_used
        for name, ids in store.ready.items():
            assert plain(store.read(name)) == dict(zip(ids.tolist(), items(inner, ids), strict=True))
        return len(store.ready)


def test_killed_at_every_step(tmp_path: Path) -> None:
    assert sum(check_whole(tmp_path) for step in range(24) if not killed_at(tmp_path, step)) > 24


def test_killed_while_packing(tmp_path: Path) -> None:
    """A process that packs at full speed, killed at moments that nobody chose."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path; import test_packages as tests\n"
        f"store = tests.PackageStore(Path({str(tmp_path)!r}) / 'packages', 60_000, tests.rows().catalog.fingerprint)\n"
        "packer = tests.Packer(tests.PackagedSource(tests.rows(), store), store)\n"
        "for seed in range(100_000):\n"
        "    packer.follow(tests.groups(seed)[:6])\n"
        "    packer.wait(0.02)\n"
        "    print(seed, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    rng, ready = np.random.default_rng(0), 0
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            time.sleep(float(rng.uniform(0, 0.1)))
            process.kill()
        ready += check_whole(tmp_path)
        assert disk_bytes(tmp_path) <= 60_000
    assert ready > 3


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A disk of 160 KiB at `path`; where mounting is not permitted, files that end at 8 KiB."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160k", "augury-test", path], capture_output=True, check=False
    )
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if mounted.returncode:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        if not mounted.returncode:
            subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk(tmp_path: Path) -> None:
    inner = rows()
    with small_disk(tmp_path / "disk"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with packing(tmp_path / "disk", inner) as (store, source, packer):
            hog = tmp_path / "disk" / "hog"
            with contextlib.suppress(OSError):
                hog.write_bytes(bytes(130_000))
            packer.follow(groups())
            assert packer.wait(10)
            assert packer.given_up > 0
            assert packer.written + packer.given_up == len(groups())
            assert files(tmp_path / "disk", "*.new") == []
            assert store.bytes_used == disk_bytes(tmp_path / "disk")
            check_reads(source, inner, np.arange(SAMPLES))
            hog.unlink()
            resource.setrlimit(resource.RLIMIT_FSIZE, (-1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            packer.follow(groups()[:6])  # there is room now
            assert packer.wait(10)
            assert len(store.ready) == 6
    (warned,) = caught
    assert "packages cannot be written" in str(warned.message)


# The source


class TestContract(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        """Of files with mixed sizes, two thirds of them in packages."""
        expected = folder(tmp_path / "data")
        inner = FolderSource(tmp_path / "data")
        store = PackageStore(tmp_path / "packages", PLENTY, inner.catalog.fingerprint)
        for ids in np.random.default_rng(0).permutation(len(expected))[:40].reshape(4, 10):
            assert store.write(ids, [expected[id] for id in ids.tolist()])
        return PackagedSource(inner, store), expected


class TestContractOfArrays(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        inner = rows()
        store = PackageStore(tmp_path / "packages", PLENTY, inner.catalog.fingerprint)
        for ids in groups()[:3]:
            store.write(ids, items(inner, ids))
        return PackagedSource(inner, store), items(inner, np.arange(SAMPLES))


def as_sets(requests: list[Ids]) -> list[set[int]]:
    return [set(group.tolist()) for group in requests]


def test_enough_of_one_package_is_one_request(tmp_path: Path) -> None:
    inner = Gate(rows())
    first, second, third = groups()[:3]
    with open_store(tmp_path) as store, closing(PackagedSource(inner, store)) as source:
        assert source.requests(NONE) == []
        for ids in (first, second):
            store.write(ids, items(inner.inner, ids))
        asked = np.random.default_rng(1).permutation(np.concatenate((first[:5], second[:2], third[:4])))
        # Two of twenty are less than an eighth of the package.
        requests = as_sets(source.requests(asked))
        assert requests[0] == set(first[:5].tolist())
        assert sorted(min(each) for each in requests[1:]) == sorted([*second[:2].tolist(), *third[:4].tolist()])
        check_reads(source, inner.inner, asked)
        assert sorted(inner.reads) == sorted([*second[:2].tolist(), *third[:4].tolist()])
        assert (source.packages_read, source.packaged_samples) == (1, 5)
        store.remove(store.name_of(first))
        assert len(source.requests(asked)) == len(asked)
        check_reads(source, inner.inner, asked)
        assert source.packages_read == 1


def test_one_sample_alone_is_no_reason_to_read_a_package(tmp_path: Path) -> None:
    inner = Gate(rows())
    with open_store(tmp_path) as store, closing(PackagedSource(inner, store)) as source:
        store.write(np.arange(4), items(inner.inner, np.arange(4)))
        check_reads(source, inner.inner, as_ids([2]))
        assert (inner.reads, source.packages_read) == ([2], 0)


def test_the_latest_package_counts_where_several_hold_a_sample(tmp_path: Path) -> None:
    inner = Gate(rows())
    old, new = np.arange(10), np.arange(5, 15)
    with open_store(tmp_path) as store, closing(PackagedSource(inner, store)) as source:
        for ids in (old, new):
            store.write(ids, items(inner.inner, ids))
        assert as_sets(source.requests(np.arange(15))) == [set(range(5)), set(range(5, 15))]
        store.remove(store.name_of(old))
        assert as_sets(source.requests(np.arange(15)))[0] == set(range(5, 15))
        check_reads(source, inner.inner, np.arange(15))
        assert sorted(inner.reads) == [0, 1, 2, 3, 4]


def test_everything_else_is_that_of_the_source_within(tmp_path: Path) -> None:
    inner = rows()
    with open_store(tmp_path) as store:
        source = PackagedSource(inner, store)
        assert source.catalog is inner.catalog
        assert source.form == inner.form
        assert source.self_labelled == inner.self_labelled
        assert source.decode(inner.read(as_ids([3]))[0]).tolist() == inner.features[3].tolist()
        source.close()
        assert inner.read(as_ids([3])) == items(inner, as_ids([3]))
        assert store.write(as_ids([3]), [b"open"])


def test_errors_of_the_source_within_stay_in_their_place(tmp_path: Path) -> None:
    expected = folder(tmp_path / "data")
    inner = FolderSource(tmp_path / "data")
    (tmp_path / "data" / "class0" / "005.bin").unlink()
    with (
        open_store(tmp_path, fingerprint=inner.catalog.fingerprint) as store,
        closing(PackagedSource(inner, store)) as source,
    ):
        ids = np.arange(4)
        store.write(ids, expected[:4])
        data = source.read(as_ids([6, 0, 5, 1, 2]))
        assert [each if isinstance(each, Unreadable) else bytes(each) for each in data] == [
            *(expected[6], expected[0], data[2], expected[1], expected[2])
        ]
        assert isinstance(data[2], Unreadable)
        assert data[2].id == 5


def test_a_forked_child_reads_without_packages(tmp_path: Path) -> None:
    inner = rows()
    with packing(tmp_path, inner) as (_, source, packer):
        packer.follow(groups())
        assert packer.wait(10)
        child = os.fork()
        if child == 0:
            try:
                check_reads(source, inner, np.arange(SAMPLES))
                assert source.packages_read == 0
                packer.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        check_reads(source, inner, np.arange(SAMPLES))
        assert source.packages_read == len(groups())


def test_readers_get_right_bytes_while_packages_come_and_go(tmp_path: Path) -> None:
    inner, wrong = rows(), list[Ids]()
    ending = threading.Event()

    def reader(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not ending.is_set():
            requests = source.requests(rng.permutation(SAMPLES)[:60])
            wrong.extend(ids for ids in requests if [*map(bytes, source.read(ids))] != items(inner, ids))

    with packing(tmp_path, inner, limit=80_000) as (store, source, packer), warnings.catch_warnings():
        warnings.simplefilter("error")
        readers = [threading.Thread(target=reader, args=(seed,)) for seed in range(3)]
        for each in readers:
            each.start()
        for seed in range(15):
            packer.follow(groups(seed)[:9])
            packer.wait(0.05)
            assert store.bytes_used <= 80_000
        ending.set()
        for each in readers:
            each.join()
        assert wrong == []
        assert source.packages_read > 0
        assert packer.wait(10)


# The packer


def names(wanted: list[Ids]) -> set[str]:
    return {PackageStore.name_of(ids) for ids in wanted}


def test_what_is_wanted_is_written_and_the_rest_removed(tmp_path: Path) -> None:
    inner = Gate(rows())
    with packing(tmp_path, inner) as (store, source, packer):
        assert packer.wait(1)
        packer.follow(groups(0)[:6])
        assert packer.wait(10)
        assert store.ready.keys() == names(groups(0)[:6])
        assert sorted(inner.reads) == sorted(np.concatenate(groups(0)[:6]).tolist())
        packer.follow([*groups(0)[3:6], *groups(0)[8:10]])
        assert packer.wait(10)
        assert store.ready.keys() == names([*groups(0)[3:6], *groups(0)[8:10]])
        assert len(inner.reads) == 8 * GROUP
        assert (packer.written, packer.given_up) == (8, 0)
        packer.follow([])
        assert packer.wait(10)
        assert (store.ready, store.bytes_used, files(tmp_path)) == ({}, 0, [])
        check_reads(source, inner.inner, np.arange(SAMPLES))
    with pytest.raises(Closed):
        packer.follow([])


def test_abandoned_packages_are_read_for_new_ones(tmp_path: Path) -> None:
    inner = Gate(rows())
    halves = [np.concatenate((groups()[at][:10], groups()[at + 1][:10])) for at in range(0, 6, 2)]
    with packing(tmp_path, inner) as (store, source, packer):
        packer.follow(groups()[:6])
        assert packer.wait(10)
        inner.reads.clear()
        packer.follow(halves)
        assert packer.wait(10)
        assert store.ready.keys() == names(halves)
        assert inner.reads == []
        assert source.packages_read == 0  # those of the packer are its own
        check_reads(source, inner.inner, np.concatenate(halves))
        assert inner.reads == []


class Shut(Gate):
    """A gate for the packer alone."""

    def read(self, ids: Ids) -> list[Buffer | Unreadable]:
        if threading.current_thread().name.startswith("augury-packer"):
            return super().read(ids)
        self.reads.extend(ids.tolist())
        return self.inner.read(ids)


def test_bytes_that_pass_by_are_not_read_again(tmp_path: Path) -> None:
    inner, wanted = Shut(rows()), groups()[:5]
    room = 2 * GROUP * SIZE
    with packing(tmp_path, inner, tap=room, threads=1) as (store, source, packer):
        inner.open.clear()
        packer.follow(wanted)
        settled(lambda: list(packer._work.making))  # it hangs in a read for the first
        for each in wanted:
            check_reads(source, inner.inner, each)
        assert source.tap.bytes_used == room  # of the next two; those after them would be too much
        packer.follow([wanted[0], wanted[2], wanted[3]])
        assert source.tap.bytes_used == room // 2  # what is still wanted stays
        check_reads(source, inner.inner, np.arange(SAMPLES))
        assert source.tap.bytes_used == room
        inner.reads.clear()
        inner.open.set()
        assert packer.wait(10)
        assert store.ready.keys() == names([wanted[0], wanted[2], wanted[3]])
        assert set(inner.reads) <= set(wanted[0].tolist())
        assert (packer.samples_tapped, packer.samples_read) == (2 * GROUP, GROUP)
        assert source.tap.bytes_used == 0
        check_reads(source, inner.inner, np.concatenate(wanted))


def test_a_tap_keeps_to_its_budget() -> None:
    tap, ids = Tap(10, 25), np.arange(5)
    tap.offer(ids, [bytes(10)] * 5)
    assert tap.bytes_used == 0  # nobody wants any
    tap.want(ids)
    tap.offer(ids, [bytes(10), Unreadable(1, "here", "of a test"), memoryview(bytes(10)), bytes(10), b"small"])
    assert tap.bytes_used == 25
    assert {id: len(data) for id, data in tap.take(as_ids([0, 1, 4, 9])).items()} == {0: 10, 4: 5}
    assert tap.bytes_used == 10
    tap.offer(ids, [bytes(10)] * 5)  # of those taken none is wanted any more
    assert tap.bytes_used == 20
    held, data = tap.shut()
    assert (held.tolist(), data, tap.bytes_used) == ([2, 3], [bytes(10)] * 2, 0)


def test_the_limit_holds_while_packages_are_exchanged(tmp_path: Path) -> None:
    inner, cost = rows(), PackageStore.cost_of(GROUP, GROUP * SIZE)
    with packing(tmp_path, inner, limit=5 * cost + 10, threads=3) as (store, _, packer):
        for seed in range(4):
            packer.follow(groups(seed))
            while not packer.wait(0.001):
                assert store.bytes_used <= store.limit
            assert disk_bytes(tmp_path) == store.bytes_used
            assert store.ready.keys() == names(groups(seed)[:5])  # the first in the list come first
        assert packer.given_up == 4 * (len(groups()) - 5)
        smaller = [*groups(9)[:4], groups(9)[4][:10], groups(9)[5], groups(9)[6][:9]]
        packer.follow(smaller)
        assert packer.wait(10)
        # What does not fit is passed over, and what is smaller may follow.
        assert store.ready.keys() == names([*smaller[:5], smaller[6]])


def test_what_is_given_up_for_lack_of_room_is_never_read(tmp_path: Path) -> None:
    inner, cost = Gate(rows()), PackageStore.cost_of(GROUP, GROUP * SIZE)
    with packing(tmp_path, inner, limit=2 * cost) as (_, _, packer):
        packer.follow(groups())
        assert packer.wait(10)
        assert sorted(inner.reads) == sorted(np.concatenate(groups()[:2]).tolist())


def test_a_new_list_replaces_the_old_at_once(tmp_path: Path) -> None:
    inner = Gate(rows())
    with packing(tmp_path, inner) as (store, _, packer):
        inner.open.clear()
        packer.follow(groups(0))
        settled(lambda: list(packer._work.making))
        packer.follow(groups(1)[:3])
        packer.follow([groups(1)[1], groups(0)[1]])
        inner.open.set()
        assert packer.wait(10)
        assert store.ready.keys() == names([groups(1)[1], groups(0)[1]])
        # One read each of the packages that were under way, and what is wanted.
        assert len(inner.reads) <= 2 + 2 * GROUP
        for seed in range(30):  # and at any moment
            packer.follow(groups(seed % 3))
            time.sleep(0.002)
        packer.follow(groups(7))
        assert packer.wait(10)
        assert store.ready.keys() == names(groups(7))


def test_wanted_no_more_while_it_is_written(tmp_path: Path) -> None:
    writing, go_on = threading.Event(), threading.Event()

    def line(size: int) -> None:
        writing.set()
        go_on.wait()

    with packing(tmp_path, rows(), line=line) as (store, _, packer):
        packer.follow(groups()[:1])
        assert writing.wait(10)
        packer.follow(groups()[1:2])
        go_on.set()
        assert packer.wait(10)
        assert (store.ready.keys(), packer.written) == (names(groups()[1:2]), 2)


def test_wanted_again_while_it_leaves(tmp_path: Path) -> None:
    inner = rows()
    with packing(tmp_path, inner, threads=3) as (store, _, packer):
        for at in range(60):
            packer.follow(groups()[:4] if at % 2 else groups()[2:6])
            time.sleep(0.001 * (at % 5))
        packer.follow(groups()[:6])
        assert packer.wait(10)
        assert store.ready.keys() == names(groups()[:6])
        for name in store.ready:
            assert store.read(name) is not None


class Faulty(Base):
    """Some samples cannot be read, others only at the second attempt."""

    def __init__(self, inner: ArraySource, bad: set[int], shy: set[int]) -> None:
        self.inner, self.catalog, self.bad, self.shy = inner, inner.catalog, bad, set(shy)

    def read(self, ids: Ids) -> list[Buffer | Unreadable]:
        return [self._sample(id) for id in ids.tolist()]

    def _sample(self, id: int) -> Buffer | Unreadable:
        if id in self.bad or id in self.shy:
            transient = id in self.shy
            self.shy.discard(id)
            return Unreadable(id, "here", "of a test", transient=transient)
        return self.inner.read(as_ids([id]))[0]


def test_a_sample_that_cannot_be_read_costs_its_package(tmp_path: Path) -> None:
    wanted = groups()[:5]
    bad = {int(wanted[1][3]), int(wanted[3][0]), int(wanted[3][1])}
    inner = Faulty(rows(), bad, shy={int(wanted[2][7])})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with packing(tmp_path, inner) as (store, _, packer):
            packer.follow(wanted)
            assert packer.wait(10)
            assert store.ready.keys() == names([wanted[0], wanted[2], wanted[4]])
            assert (packer.written, packer.given_up) == (3, 2)
    (warned,) = caught
    assert "a package is left out" in str(warned.message)


def test_a_warning_made_an_error_ends_no_thread(tmp_path: Path) -> None:
    wanted = groups()[:5]
    inner = Faulty(rows(), {int(ids[0]) for ids in wanted[:4]}, set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with packing(tmp_path, inner) as (store, _, packer):
            packer.follow(wanted)
            assert packer.wait(10)
            assert store.ready.keys() == names(wanted[4:])


def test_a_source_that_is_closed_first(tmp_path: Path) -> None:
    inner = rows()
    with packing(tmp_path, inner) as (store, source, packer):
        source.close()
        packer.follow(groups())
        assert packer.wait(10)
        assert (store.ready, packer.given_up) == ({}, len(groups()))


def test_ids_that_are_none_are_refused(tmp_path: Path) -> None:
    with packing(tmp_path, rows()) as (store, _, packer):
        for wrong in (-1, SAMPLES):
            with pytest.raises(IndexError):
                packer.follow([as_ids([0, wrong])])
        packer.follow([NONE, as_ids([5, 5, 6])])
        assert packer.wait(10)
        assert [ids.tolist() for ids in store.ready.values()] == [[5, 6]]


def test_closing_waits_for_one_read_at_most(tmp_path: Path) -> None:
    slow = SlowSource(Gate(rows()), latency=0.2)
    with packing(tmp_path, slow) as (_, _, packer):
        packer.follow(groups())
        time.sleep(0.05)
        began = time.monotonic()
        packer.close()
        packer.close()
        assert time.monotonic() - began < 0.3
        assert not packer.wait(0)
    assert slow.requests_made <= 4
    assert files(tmp_path, "*.new") == []


def test_a_packer_that_is_forgotten_ends(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        packer = Packer(PackagedSource(rows(), store), store)
        packer.follow(groups())
        del packer
        gc.collect()
        assert settled(threads) == []


def test_no_process_is_kept_alive(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path; import test_packages as tests\n"
        "slow = tests.SlowSource(tests.Gate(tests.rows()), latency=60)\n"
        f"store = tests.PackageStore(Path({str(tmp_path)!r}) / 'packages', 60_000, tests.rows().catalog.fingerprint)\n"
        "packer = tests.Packer(tests.PackagedSource(slow, store), store)\n"
        "packer.follow(tests.groups())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=20, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_store_of_another_dataset_is_refused(tmp_path: Path) -> None:
    """Ids would name other samples."""
    with open_store(tmp_path, fingerprint="another") as store, pytest.raises(ConfigError, match="another dataset"):
        PackagedSource(rows(), store)


def test_a_store_has_one_packer_at_a_time(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        source = PackagedSource(rows(), store)
        with closing(Packer(source, store)), pytest.raises(ConfigError, match="in use by another loader"):
            Packer(source, store)
        Packer(source, store).close()
