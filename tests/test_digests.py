"""Content digests: made right, kept, found again, and renewed for what has changed and nothing else."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from augury import digests as digests_module
from augury import journal as journal_module
from augury.catalog import Catalog, Strings, default_place
from augury.digests import DIGEST, carried, digest, digest_samples, digests_of, hashed, known
from augury.errors import AuguryError, CatalogError, InUse
from augury.journal import Journal
from augury.sources import Base, Form
from augury.sources.array import ArraySource
from augury.sources.dataset import DatasetSource
from augury.sources.decoded import DecodedSource
from augury.sources.folder import FolderSource, index_folder
from augury.sources.packed import PackedSource
from augury.sources.slow import SlowSource
from helpers import arrays

LONG_AGO = 1_600_000_000_123_456_789
"""A time of change: nobody has to wait for a file so old to settle."""


def write(file: Path, data: bytes, time: int = LONG_AGO) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    os.utime(file, ns=(time, time))


def folder(root: Path, samples: int = 12) -> dict[str, bytes]:
    """Files in class folders; their bytes by name."""
    rng = np.random.default_rng(len(root.name) + samples)
    contents = {f"class{at % 3}/{at:03d}.bin": rng.bytes(1 + at * 37) for at in range(samples)}
    for name, data in contents.items():
        write(root / name, data)
    return contents


def shard(file: Path, contents: dict[str, bytes], time: int = LONG_AGO) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    write(file, packed.getvalue(), time)


def expected(contents: list[bytes]) -> np.ndarray:
    return np.array([list(blake3(data).digest()) for data in contents], np.uint8).reshape(-1, DIGEST)


def by_name(place: Path) -> dict[str, bytes]:
    """The digests of a saved catalog."""
    catalog = Catalog.open(place)
    assert catalog.names is not None
    assert catalog.digests is not None
    return {name: row.tobytes() for name, row in zip(catalog.names, catalog.digests, strict=True)}


def plant(place: Path, name: str, row: bytes = b"\7" * DIGEST) -> bytes:
    """A digest that is wrong: it stays as long as nobody hashes the sample again."""
    catalog = Catalog.open(place)
    assert catalog.names is not None
    assert catalog.digests is not None
    digests = catalog.digests.copy()
    digests[list(catalog.names).index(name)] = list(row)
    catalog.with_digests(digests).save(place)
    return row


class TestHashing:
    def test_it_is_blake3(self) -> None:
        assert digest(b"abc") == blake3(b"abc").digest()
        assert digest(memoryview(b"xabcx")[1:4]) == digest(b"abc")
        assert len(digest(b"")) == DIGEST

    @settings(max_examples=40)
    @given(
        sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=60),
        threads=st.integers(1, 5),
        limits=st.tuples(st.integers(1, 9), st.integers(1, 9000), st.integers(1, 20000)),
        data=st.data(),
    )
    def test_a_row_per_id_in_their_order(
        self, sizes: list[int], threads: int, limits: tuple[int, int, int], data: st.DataObject
    ) -> None:
        source = Samples(sizes)
        ids = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=80))
        told: list[tuple[int, int]] = []
        with pytest.MonkeyPatch.context() as patch:
            for name, limit in zip(("_SAMPLES", "_BYTES", "_IN_FLIGHT"), limits, strict=True):
                patch.setattr(digests_module, name, limit)
            rows = digest_samples(source, np.array(ids, np.int64), threads, lambda *done: told.append(done))
        np.testing.assert_array_equal(rows, expected([source.data(id) for id in ids]))
        different = set(ids)
        assert sorted(source.reads) == sorted(different)
        assert told == sorted(told)
        if ids:
            assert told[-1] == (len(different), sum(sizes[id] for id in different))
        assert source.most <= max(*limits[1:], *sizes)

    def test_little_is_in_memory_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(digests_module, "_IN_FLIGHT", 100_000)
        monkeypatch.setattr(digests_module, "_BYTES", 10_000)
        source = Samples([40_000] * 20 + [1000] * 500 + [300_000], delay=0.001)
        rows = digest_samples(source, np.arange(521), threads=8)
        assert known(rows).all()
        assert 40_000 < source.most <= 300_000
        assert source.most_small <= 100_000

    def test_bytes_of_shards_are_read_in_the_order_they_lie(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(digests_module, "_SAMPLES", 7)
        contents = {f"{at:03d}.bin": b"%d" % at * 100 for at in range(50)}
        shard(tmp_path / "a.tar", dict(sorted(contents.items(), key=lambda item: digest(item[1]))))
        source = PackedSource(tmp_path / "a.tar")
        assert source.catalog.offsets is not None
        offsets = [source.catalog.offsets[batch.ids] for batch in hashed(source, np.arange(50), threads=1)]
        assert (np.diff(np.concatenate(sorted(offsets, key=min))) > 0).all()
        np.testing.assert_array_equal(digest_samples(source, np.arange(50)), expected(list(contents.values())))

    def test_what_a_busy_store_refuses_is_read_again(self) -> None:
        x, _ = arrays(100)
        source = SlowSource(ArraySource(x), failure_rate=0.3)
        np.testing.assert_array_equal(digest_samples(source, np.arange(100)), expected([row.tobytes() for row in x]))

    def test_one_that_cannot_be_read_spoils_no_other(self, tmp_path: Path) -> None:
        contents = list(folder(tmp_path / "data").values())
        source = FolderSource(tmp_path / "data")
        (tmp_path / "data" / "class0" / "000.bin").unlink()
        batches = list(hashed(source, np.arange(12), threads=2))
        assert [failure.id for batch in batches for failure in batch.failures] == [0]
        rows = digest_samples(source, np.arange(12))
        np.testing.assert_array_equal(known(rows), [False] + [True] * 11)
        np.testing.assert_array_equal(rows[1:], expected([contents[at] for at in (3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11)]))

    def test_stopped_early_it_reads_no_further(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(digests_module, "_SAMPLES", 10)
        monkeypatch.setattr(digests_module, "_REQUESTS", 1)
        source = Samples([10] * 1000)
        source.held = 12
        with closing(hashed(source, np.arange(1000), threads=1)) as batches:
            next(batches)
            source.reached.wait()
            threading.Timer(0.2, source.let_go.set).start()
        assert sorted(source.reads) == list(range(13))  # that no thread is left is checked after every test

    def test_an_error_of_the_source_is_raised(self) -> None:
        with pytest.raises(IndexError, match="17"):
            digest_samples(Samples([1, 2]), np.array([17]))


class Samples(Base):
    """Made-up samples; counts the bytes that are being read at the same time."""

    def __init__(self, sizes: list[int], delay: float = 0.0) -> None:
        self.catalog = Catalog(sizes, kind="samples", root="samples", fingerprint="f")
        self.delay, self.reads, self._lock = delay, list[int](), threading.Lock()
        self.under_way: list[int] = []
        self.held, self.reached, self.let_go = -1, threading.Event(), threading.Event()
        self.most = self.most_small = 0

    def data(self, id: int) -> bytes:
        return (b"%d," % id * (int(self.catalog.sizes[id]) + 1))[: int(self.catalog.sizes[id])]

    def read(self, ids):
        sizes = self.catalog.sizes[self._checked(ids)].tolist()
        with self._lock:
            self.reads += ids.tolist()
            self.under_way += sizes
            self.most = max(self.most, sum(self.under_way))
            if max(self.under_way, default=0) < 100_000:
                self.most_small = max(self.most_small, sum(self.under_way))
        time.sleep(self.delay)
        if self.held in ids:
            self.reached.set()
            self.let_go.wait()
        answers = [self.data(id) for id in ids.tolist()]
        with self._lock:
            for size in sizes:
                self.under_way.remove(size)
        return answers


class TestDigestsOf:
    def test_an_array_in_memory_is_hashed_once(self) -> None:
        x, y = arrays(300)
        source = ArraySource(x, y)
        found = digests_of(source)
        assert found is not None
        np.testing.assert_array_equal(found, expected([row.tobytes() for row in x]))
        assert digests_of(source) is found

    @pytest.mark.parametrize("features", [np.zeros((4, 0)), np.arange(24.0).reshape(4, 6)[:, ::2], np.arange(4)])
    def test_any_shape_of_rows(self, features: np.ndarray) -> None:
        found = digests_of(ArraySource(features))
        assert found is not None
        np.testing.assert_array_equal(found, expected([row.tobytes() for row in features]))

    def test_a_large_array(self) -> None:
        x = np.random.default_rng(0).integers(0, 256, (300, 100_000), dtype=np.uint8)
        found = digests_of(ArraySource(x))
        assert found is not None
        np.testing.assert_array_equal(found, expected([row.tobytes() for row in x]))

    def test_wrappers_share_it(self) -> None:
        slept: list[float] = []
        inner = ArraySource(arrays(50)[0])
        source = SlowSource(SlowSource(inner, latency=9.0, sleep=slept.append), latency=9.0, sleep=slept.append)
        found = digests_of(source)
        assert found is not None
        assert digests_of(inner) is found
        assert slept == []

    @pytest.mark.parametrize("mode", ["r", "c"])
    def test_a_mapped_file_is_not_read(self, mode: str, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", arrays(50)[0])
        mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
        assert digests_of(ArraySource(mapped)) is None
        assert digests_of(ArraySource(mapped[10:])) is None
        assert digests_of(ArraySource(np.asarray(mapped))) is None
        assert digests_of(ArraySource(mapped.copy())) is not None

    def test_what_is_made_before_the_cache_has_none(self, tmp_path: Path) -> None:
        inner = ArraySource(arrays(20)[0])
        assert digests_of(inner) is not None
        decoded = DecodedSource(inner, lambda x: x, Form(np.dtype(np.uint8), (24,)), "same")
        assert digests_of(decoded) is None
        assert digests_of(SlowSource(decoded)) is None
        assert digests_of(DatasetSource([1, 2, 3])) is None

    def test_of_files_those_in_the_catalog_if_complete(self, tmp_path: Path) -> None:
        contents = folder(tmp_path / "data", 9)
        catalog = index_folder(tmp_path / "data")
        assert digests_of(FolderSource(tmp_path / "data")) is None
        assert catalog.names is not None
        rows = expected([contents[name] for name in catalog.names])
        catalog.with_digests(rows).save(default_place(tmp_path / "data"))
        source = FolderSource(tmp_path / "data")
        for each in (source, SlowSource(source)):
            np.testing.assert_array_equal(digests_of(each), rows)
        rows[4] = 0
        catalog.with_digests(rows).save(default_place(tmp_path / "data"))
        assert digests_of(FolderSource(tmp_path / "data")) is None


class TestColumns:
    @pytest.mark.parametrize("wrong", [np.zeros((2, 32), np.uint8), np.zeros((3, 16), np.uint8), np.zeros((3, 32))])
    def test_digests_have_a_row_of_32_bytes_per_sample(self, wrong: np.ndarray, tmp_path: Path) -> None:
        good = Catalog([1, 2, 3], kind="array", root="", fingerprint="")
        for make in (
            lambda: Catalog([1, 2, 3], kind="array", root="", fingerprint="", digests=wrong),
            lambda: good.with_digests(wrong),
        ):
            with pytest.raises(CatalogError, match=r"digests must be uint8 of shape \(3, 32\)"):
                make()
        good.digests = wrong
        good.save(tmp_path)
        with pytest.raises(CatalogError, match="digests must be"):
            Catalog.open(tmp_path)

    def test_times_of_change_are_saved(self, tmp_path: Path) -> None:
        folder(tmp_path / "data", 6)
        catalog = index_folder(tmp_path / "data")
        catalog.save(tmp_path / "out")
        assert Catalog.open(tmp_path / "out").changed.tolist() == [LONG_AGO] * 6  # type: ignore[union-attr]
        with pytest.raises(CatalogError, match="3 files but 2 times"):
            Catalog([1, 2, 3], kind="folder", root="", fingerprint="", changed=np.array([1, 2]))

    def test_a_catalog_without_them_opens(self, tmp_path: Path) -> None:
        folder(tmp_path / "data", 6)
        old = index_folder(tmp_path / "data")
        old.changed = None
        old.save(tmp_path / "out")
        opened = Catalog.open(tmp_path / "out")
        assert opened.changed is None
        assert carried(opened.with_digests(np.ones((6, 32), np.uint8)), index_folder(tmp_path / "data")) is None


FILES = st.dictionaries(
    st.sampled_from([f"dir{at}/file{at}".encode() for at in range(8)]),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    min_size=1,
)


def catalog_of(files: dict[bytes, tuple[int, int]], order: list[bytes], digests: bool) -> Catalog:
    sizes, times = zip(*(files[name] for name in order), strict=True)
    rows = expected([name + bytes(files[name]) for name in order])
    return Catalog(
        sizes,
        kind="folder",
        root="/data",
        fingerprint=str((files, order)),
        names=Strings.of(order),
        changed=np.array(times, np.int64),
        digests=rows if digests else None,
    )


class TestCarrying:
    @given(before=FILES, after=FILES, rnd=st.randoms(use_true_random=False))
    def test_equal_name_size_and_time_and_nothing_else(self, before: dict, after: dict, rnd) -> None:
        order = sorted(after)
        rnd.shuffle(order)
        found = carried(catalog_of(before, sorted(before), True), catalog_of(after, order, False))
        assert found is not None
        for name, row in zip(order, found, strict=True):
            same = before.get(name) == after[name]
            assert row.tobytes() == (digest(name + bytes(after[name])) if same else bytes(DIGEST)), name

    def test_another_kind_has_nothing_to_say(self) -> None:
        old, new = (catalog_of({b"a": (1, 1)}, [b"a"], True) for _ in range(2))
        old.kind = "packed"
        assert carried(old, new) is None

    def test_what_is_carried_is_a_copy(self) -> None:
        old = catalog_of({b"a": (1, 1)}, [b"a"], True)
        found = carried(old, old)
        assert found is not None
        assert old.digests is not None
        assert not np.shares_memory(found, old.digests)


@pytest.fixture
def saved(tmp_path: Path) -> Catalog:
    folder(tmp_path / "data", 9)
    catalog = index_folder(tmp_path / "data")
    catalog.save(tmp_path / "out")
    return catalog


def resumed(catalog: Catalog, place: Path) -> tuple[int, np.ndarray | None]:
    with Journal(place) as journal:
        adopted = journal.adopt(catalog)
        return journal.resumed, adopted.digests


ROWS = expected([b"%d" % at for at in range(9)])


def stopped(catalog: Catalog, place: Path) -> bytes:
    """A journal of a run that was stopped; what is in its file."""
    with Journal(place) as journal:
        journal.save(catalog)
        journal.add(np.array([7, 2]), ROWS[[7, 2]])
        journal.add(np.array([3]), ROWS[[3]])
    return (place / journal_module.FILE).read_bytes()


class TestJournal:
    def test_what_was_added_is_there_for_the_next(self, saved: Catalog, tmp_path: Path) -> None:
        stopped(saved, tmp_path / "out")
        count, digests = resumed(saved, tmp_path / "out")
        assert count == 3
        assert digests is not None
        np.testing.assert_array_equal(np.flatnonzero(known(digests)), [2, 3, 7])
        np.testing.assert_array_equal(digests[[2, 3, 7]], ROWS[[2, 3, 7]])
        assert os.listdir(tmp_path / "out") == ["catalog"]
        np.testing.assert_array_equal(Catalog.open(tmp_path / "out").digests, digests)

    def test_it_adds_to_digests_that_were_there(self, saved: Catalog, tmp_path: Path) -> None:
        before = np.zeros((9, DIGEST), np.uint8)
        before[:2] = 5
        stopped(saved.with_digests(before), tmp_path / "out")
        _, digests = resumed(saved, tmp_path / "out")
        assert digests is not None
        np.testing.assert_array_equal(np.flatnonzero(known(digests)), [0, 1, 2, 3, 7])

    def test_without_rows_nothing_is_left(self, saved: Catalog, tmp_path: Path) -> None:
        assert resumed(saved, tmp_path / "out") == (0, None)
        assert os.listdir(tmp_path / "out") == ["catalog"]
        with pytest.raises(KeyError), Journal(tmp_path / "new" / "er"):
            raise KeyError
        assert not (tmp_path / "new" / "er").exists()
        (tmp_path / "mine").mkdir()
        with Journal(tmp_path / "mine"):
            pass
        assert (tmp_path / "mine").exists()

    def test_torn_anywhere_the_whole_rows_count(self, saved: Catalog, tmp_path: Path) -> None:
        whole = stopped(saved, tmp_path / "out")
        for length in range(0, len(whole) + 1, 7):
            saved.save(tmp_path / "out")
            (tmp_path / "out" / journal_module.FILE).write_bytes(whole[:length])
            count, digests = resumed(saved, tmp_path / "out")
            assert count == length // 48
            if digests is not None:
                np.testing.assert_array_equal(digests[known(digests)], ROWS[known(digests)])

    @settings(max_examples=60)
    @given(at=st.integers(0, 48 * 3 - 1), bit=st.integers(0, 7), tail=st.binary(max_size=200))
    def test_garbled_rows_do_not_count(self, at: int, bit: int, tail: bytes, tmp_path_factory) -> None:
        place = tmp_path_factory.mktemp("journal")
        catalog = Catalog([1] * 9, kind="array", root="array", fingerprint="f", changed=np.zeros(9, np.int64))
        whole = bytearray(stopped(catalog, place))
        whole[at] ^= 1 << bit
        (place / journal_module.FILE).write_bytes(whole + tail)
        count, digests = resumed(catalog, place)
        assert count == 2
        assert digests is not None
        left = np.delete([7, 2, 3], at // 48)
        np.testing.assert_array_equal(np.flatnonzero(known(digests)), sorted(left))
        np.testing.assert_array_equal(digests[left], ROWS[left])

    def test_rows_of_another_catalog_do_not_count(self, saved: Catalog, tmp_path: Path) -> None:
        stopped(saved, tmp_path / "out")
        Catalog([1] * 9, kind="folder", root="/", fingerprint="other", names=saved.names).save(tmp_path / "out")
        assert resumed(saved, tmp_path / "out") == (0, None)

    def test_ids_that_the_catalog_has_not(self, saved: Catalog, tmp_path: Path) -> None:
        with Journal(tmp_path / "out") as journal:
            journal.save(saved)
            journal.add(np.array([9, -1, 4]), ROWS[:3])
        assert resumed(saved, tmp_path / "out")[0] == 1

    def test_one_process_at_a_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(journal_module, "_PATIENCE", 0.05)
        with Journal(tmp_path / "out"), pytest.raises(InUse, match="another process"), Journal(tmp_path / "out"):
            pass
        with Journal(tmp_path / "out"):
            pass

    def test_a_lock_on_a_file_that_was_removed_is_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        lock, calls = journal_module._lock, iter([True])

        def removed_just_before(file: int) -> bool:
            if next(calls, False):  # whoever had the lock has ended, and so removed the file
                (tmp_path / journal_module.FILE).unlink()
            return lock(file)

        monkeypatch.setattr(journal_module, "_PATIENCE", 0.05)
        monkeypatch.setattr(journal_module, "_lock", removed_just_before)
        with Journal(tmp_path), pytest.raises(InUse), Journal(tmp_path):
            pass

    def test_what_was_added_is_adopted_in_the_same_run(self, saved: Catalog, tmp_path: Path) -> None:
        with Journal(tmp_path / "out") as journal:
            journal.save(saved)
            journal.add(np.array([7]), ROWS[[7]])
            adopted = journal.adopt(saved)
        assert adopted.digests is not None
        np.testing.assert_array_equal(np.flatnonzero(known(adopted.digests)), [7])

    def test_many_in_a_row_are_never_together(self, tmp_path: Path) -> None:
        inside, most = 0, 0

        def work() -> None:
            nonlocal inside, most
            for _ in range(20):
                with Journal(tmp_path):
                    inside += 1
                    most = max(most, inside)
                    time.sleep(0.0005)
                    inside -= 1

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == 1

    def test_a_file_system_without_locks(self, saved: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise OSError("no locks here")

        monkeypatch.setattr(journal_module.fcntl, "flock", refuse)
        assert len(stopped(saved, tmp_path / "out")) == 3 * 48

    def test_a_full_disk_is_told_and_what_is_there_stays(
        self, saved: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(CatalogError, match="No space left"), Journal(tmp_path / "out") as journal:
            journal.save(saved)
            journal.add(np.array([7]), ROWS[[7]])
            monkeypatch.setattr(journal_module.os, "write", fill_up)
            journal.add(np.array([2]), ROWS[[2]])
        assert resumed(saved, tmp_path / "out")[0] == 1


def fill_up(*_: object) -> int:
    raise OSError(28, "No space left on device")


# -- the command, as a user calls it -----------------------------------------------------------------------

ENVIRONMENT = os.environ | {"NO_COLOR": "1", "COLUMNS": "200", "PYTHONPATH": os.pathsep.join(sys.path)}


def run(*arguments: object, command: str = "digest", patch: str = "") -> tuple[int, str, str]:
    """The exit code, stdout and stderr. `patch` is code that is run before, in the same process."""
    ended = subprocess.run(
        line(command, arguments, patch), capture_output=True, env=ENVIRONMENT, text=True, timeout=120
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stdout, ended.stderr


def line(command: str, arguments: tuple[object, ...], patch: str) -> list[str]:
    start = ["-c", f"{patch}\nfrom augury.cli import main\nmain()"] if patch else ["-m", "augury.cli"]
    return [sys.executable, *start, command, *map(str, arguments)]


def summary(output: str) -> dict[str, str]:
    return {name: rest for name, _, rest in (line.partition(" ") for line in output.splitlines())}


def count(output: str, name: str) -> int:
    return int(summary(output)[name].split()[0].replace(",", ""))


class TestFolders:
    def test_without_a_catalog_it_indexes_first(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        contents = folder(data)
        code, output, errors = run(data)
        assert (code, errors) == (0, "")
        assert (count(output, "hashed"), count(output, "kept")) == (12, 0)
        assert by_name(data / ".augury") == {name: digest(bytes) for name, bytes in contents.items()}
        assert os.listdir(data / ".augury") == ["catalog"]
        assert Catalog.open(data / ".augury").classes == ("class0", "class1", "class2")
        assert digests_of(FolderSource(data)) is not None

    def test_again_only_what_has_changed(self, tmp_path: Path) -> None:
        data, place = tmp_path / "data", tmp_path / "data" / ".augury"
        contents = folder(data)
        run(data)
        wrong = plant(place, "class1/004.bin")
        code, output, _ = run(data)
        assert (code, count(output, "hashed"), count(output, "kept")) == (0, 0, 12)
        assert by_name(place)["class1/004.bin"] == wrong

        contents["class0/003.bin"] = b"another size"
        write(data / "class0/003.bin", b"another size")
        contents["class2/005.bin"] = contents["class2/005.bin"][::-1]
        write(data / "class2/005.bin", contents["class2/005.bin"], LONG_AGO + 1)
        contents["class0/000a.bin"] = b"new, and all ids behind it move"
        write(data / "class0/000a.bin", contents["class0/000a.bin"])
        (data / "class0/006.bin").unlink()
        del contents["class0/006.bin"]
        code, output, _ = run(data)
        assert (code, count(output, "hashed"), count(output, "kept")) == (0, 3, 9)
        assert by_name(place) == {name: digest(data) for name, data in contents.items()} | {"class1/004.bin": wrong}

    def test_how_it_was_indexed_stays(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        folder(data, 6)
        write(data / "class0/notes.txt", b"not a sample")
        run(data, "--labels", "none", "--extensions", ".bin", "--out", tmp_path / "out", command="index")
        code, output, _ = run(data, "--out", tmp_path / "out", "--quiet")
        assert (code, output) == (0, "")
        catalog = Catalog.open(tmp_path / "out")
        assert (len(catalog), catalog.labels) == (6, None)
        assert not (data / ".augury").exists()
        assert catalog.digest_command == f"augury digest {data} --out {tmp_path}/out"

    def test_index_keeps_what_has_not_changed(self, tmp_path: Path) -> None:
        data, place = tmp_path / "data", tmp_path / "data" / ".augury"
        contents = folder(data)
        _, output, _ = run(data, command="index")
        assert "digests" not in summary(output)
        run(data)
        wrong = plant(place, "class1/004.bin")
        _, output, _ = run(data, command="index")
        assert summary(output)["digests"].strip() == "12"
        write(data / "class0/003.bin", b"another size")
        _, output, _ = run(data, command="index")
        assert summary(output)["digests"].strip() == f"11 of 12; the others with: augury digest {data}"
        now = by_name(place)
        assert now.pop("class0/003.bin") == bytes(DIGEST)
        assert now == {name: digest(contents[name]) for name in now} | {"class1/004.bin": wrong}
        # Other options, other ids: what is known of a file is known of it still.
        run(data, "--labels", "none", command="index")
        assert by_name(place)["class1/004.bin"] == wrong

    def test_names_need_not_be_text(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        write(Path(os.fsdecode(os.fsencode(data) + b"/\xff\n[bold].bin")), b"1")
        assert run(data)[0] == 0
        plant(data / ".augury", os.fsdecode(b"\xff\n[bold].bin"))
        code, output, _ = run(data, "--verify")
        assert code == 1
        assert "[bold].bin: differs" in output

    @pytest.mark.parametrize(
        ("age", "wait"),
        [
            (1, 0.05),
            (10**8 + 1, 0),
            (1 - 10**9, 1.05),  # another clock, which is a second fast
            (1 - 10**10, 0),  # no clock's time
            (10**9, 1.0),  # a file system that knows no fractions
            (3 * 10**9, 0),
        ],
    )
    def test_files_written_a_moment_ago_are_waited_for(
        self, age: int, wait: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slept: list[float] = []
        now = LONG_AGO // 10**9 * 10**9
        monkeypatch.setattr(digests_module, "time", SimpleNamespace(time_ns=lambda: now, sleep=slept.append))
        write(tmp_path / "a", b"1", now - age)
        write(tmp_path / "old", b"1", now - 10**15)
        list(hashed(FolderSource(tmp_path), np.array([0]), steady=True))
        assert sum(slept) == pytest.approx(wait, abs=1e-6)


class TestShards:
    def shards(self, root: Path) -> dict[str, bytes]:
        contents = {}
        for name in ("a", "b", "c"):
            fields = {f"{name}{at}.bin": f"{name}{at}".encode() * (at + 1) for at in range(5)}
            shard(root / f"{name}.tar", fields)
            contents |= {key.removesuffix(".bin"): data for key, data in fields.items()}
        return contents

    def test_digests_of_samples_and_again_by_the_shard(self, tmp_path: Path) -> None:
        data, place = tmp_path / "data", tmp_path / "data" / ".augury"
        contents = self.shards(data)
        code, _, _ = run(data)
        assert code == 0
        assert by_name(place) == {name: digest(data) for name, data in contents.items()}
        wrong = plant(place, "a1"), plant(place, "b1")
        assert count(run(data)[1], "hashed") == 0
        os.utime(data / "b.tar", ns=(LONG_AGO + 5, LONG_AGO + 5))
        shard(data / "0.tar", {"zero.bin": b"0"})  # the number of every other shard moves
        (data / "c.tar").unlink()
        code, output, _ = run(data)
        assert (code, count(output, "hashed"), count(output, "kept")) == (0, 6, 5)
        now = by_name(place)
        assert now.pop("a1") == wrong[0]
        assert set(now) == {"zero", "a0", "a2", "a3", "a4", "b0", "b1", "b2", "b3", "b4"}
        assert now == {name: digest(contents.get(name, b"0")) for name in now}

    def test_a_single_tar(self, tmp_path: Path) -> None:
        shard(tmp_path / "one.tar", {"x.bin": b"1", "y.bin": b"22"})
        assert run(tmp_path / "one.tar")[0] == 0
        assert by_name(tmp_path / "one.tar.augury") == {"x": digest(b"1"), "y": digest(b"22")}
        assert run(tmp_path / "one.tar", "--verify")[0] == 0

    def test_samples_of_several_files(self, tmp_path: Path) -> None:
        shard(tmp_path / "one.tar", {"x.bin": b"1", "x.txt": b"2", "x.cls": b"0", "y.bin": b"3", "y.cls": b"1"})
        assert run(tmp_path / "one.tar")[0] == 0
        source = PackedSource(tmp_path / "one.tar")
        np.testing.assert_array_equal(digests_of(source), digest_samples(source, np.arange(2)))
        wrong = plant(tmp_path / "one.tar.augury", "x")
        # Without the .txt a sample is one file: other bytes, so nothing is known of them.
        run(tmp_path / "one.tar", "--extensions", ".bin", command="index")
        assert wrong not in by_name(tmp_path / "one.tar.augury").values()


SLOW = """
import time
import augury.digests, augury.sources.folder
augury.digests._SAMPLES = augury.digests._REQUESTS = 2
read = augury.sources.folder.FolderSource.read
def slowly(self, ids):
    time.sleep(0.08)
    return read(self, ids)
augury.sources.folder.FolderSource.read = slowly
"""


def started(data: Path, *arguments: object) -> subprocess.Popen[str]:
    """The command at work, slowly, with some digests made."""
    command = line("digest", (data, "--threads", 1, *arguments), SLOW)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True, start_new_session=True
    )
    journal = data / ".augury" / journal_module.FILE
    deadline = time.monotonic() + 60
    while not (journal.exists() and journal.stat().st_size >= 6 * 48):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return process


@pytest.fixture
def many(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    data = tmp_path / "data"
    return data, folder(data, 90)


class TestStopped:
    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_the_next_run_goes_on(self, how: signal.Signals, many: tuple[Path, dict[str, bytes]]) -> None:
        data, contents = many
        process = started(data)
        process.send_signal(how)
        output, errors = process.communicate(timeout=60)
        assert output == ""
        assert process.returncode == (130 if how == signal.SIGINT else -how)
        if how == signal.SIGINT:
            assert "of 90 samples are hashed: the same command goes on there" in errors
        assert digests_of(FolderSource(data)) is None  # the catalog is there, its digests are not yet
        rows = (data / ".augury" / journal_module.FILE).stat().st_size // 48
        assert 6 <= rows < 90
        code, output, errors = run(data)
        assert code == 0
        assert f"going on: {rows} samples were hashed before" in errors
        assert (count(output, "hashed"), count(output, "kept")) == (90 - rows, rows)
        assert by_name(data / ".augury") == {name: digest(data) for name, data in contents.items()}
        assert os.listdir(data / ".augury") == ["catalog"]

    def test_also_after_files_have_changed(self, many: tuple[Path, dict[str, bytes]]) -> None:
        data, contents = many
        process = started(data)
        process.kill()
        process.communicate()
        catalog = Catalog.open(data / ".augury")
        with Journal(data / ".augury") as journal:
            before = journal._before()
        assert before is not None
        assert before.digests is not None
        done = [catalog.location(id) for id in np.flatnonzero(known(before.digests)).tolist()]
        write(Path(done[1]), b"changed since")
        write(data / "class0/0.bin", b"the first of all ids")
        contents |= {os.path.relpath(done[1], data): b"changed since", "class0/0.bin": b"the first of all ids"}
        code, output, _ = run(data)
        assert (code, count(output, "kept")) == (0, len(done) - 1)
        assert by_name(data / ".augury") == {name: digest(data) for name, data in contents.items()}

    def test_index_takes_over_what_was_made(self, many: tuple[Path, dict[str, bytes]]) -> None:
        data, _ = many
        process = started(data)
        process.send_signal(signal.SIGSTOP)  # or it might end meanwhile
        code, _, errors = run(data, command="index")
        assert code == 2
        assert "another process is making the digests" in errors
        process.kill()
        process.communicate()
        rows = (data / ".augury" / journal_module.FILE).stat().st_size // 48
        code, output, _ = run(data, command="index")
        assert code == 0
        assert summary(output)["digests"].strip().startswith(f"{rows} of 90")
        assert os.listdir(data / ".augury") == ["catalog"]

    def test_two_at_once(self, many: tuple[Path, dict[str, bytes]]) -> None:
        data, contents = many
        first = started(data)
        first.send_signal(signal.SIGSTOP)
        code, output, errors = run(data)
        first.send_signal(signal.SIGCONT)
        assert (code, output) == (2, "")
        assert errors.startswith("error: another process is making the digests of")
        first.communicate(timeout=60)
        assert first.returncode == 0
        assert by_name(data / ".augury") == {name: digest(data) for name, data in contents.items()}

    def test_a_journal_of_rubbish(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        contents = folder(data)
        run(data, command="index")
        (data / ".augury" / journal_module.FILE).write_bytes(os.urandom(1000))
        code, output, errors = run(data)
        assert (code, errors, count(output, "hashed")) == (0, "", 12)
        assert by_name(data / ".augury") == {name: digest(data) for name, data in contents.items()}

    def test_the_catalog_is_replaced_at_once(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        folder(data)
        run(data)
        before = (data / ".augury" / "catalog").read_bytes()
        write(data / "class0" / "new.bin", b"new")
        fail = "import os\ndef fsync(file): raise KeyboardInterrupt\nos.fsync = fsync"
        assert run(data, patch=fail)[0] == 130
        assert (data / ".augury" / "catalog").read_bytes() == before
        assert os.listdir(data / ".augury") == ["catalog"]


REFUSE = """
import os
opened = os.open
def open_or_refuse(path, *rest, **more):
    if os.fspath(path).endswith(b"/003.bin" if isinstance(path, bytes) else "/003.bin"):
        raise PermissionError(13, "Permission denied", path)
    return opened(path, *rest, **more)
os.open = open_or_refuse
"""

WRITE = """
import augury.sources.folder, os, pathlib
read = augury.sources.folder.FolderSource.read
def meddle(self, ids):
    data = read(self, ids)
    file = pathlib.Path(self.catalog.root, "class0/003.bin")
    file.write_bytes({content!r})
    return data
augury.sources.folder.FolderSource.read = meddle
"""


class TestSamplesThatFail:
    def test_unreadable(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        contents = folder(data)
        code, output, errors = run(data, "--quiet", patch=REFUSE)
        assert (code, output) == (1, "")
        assert f"{data}/class0/003.bin: Permission denied\n" in errors
        assert "1 sample could not be hashed: make them readable" in errors
        assert f"run again: augury digest {data}\n" in errors
        now = by_name(data / ".augury")
        assert now.pop("class0/003.bin") == bytes(DIGEST)
        assert now == {name: digest(contents[name]) for name in now}
        assert digests_of(FolderSource(data)) is None
        assert count(run(data, patch=REFUSE)[1], "hashed") == 0
        code, output, _ = run(data)
        assert (code, count(output, "hashed")) == (0, 1)

    def test_many_are_counted_and_some_named(self, tmp_path: Path) -> None:
        folder(tmp_path / "data", 90)
        refuse = REFUSE.replace("/003.bin", ".bin")
        code, _, errors = run(tmp_path / "data", patch=refuse)
        assert code == 1
        assert errors.count("Permission denied") == 20
        assert "90 samples could not be hashed" in errors

    @pytest.mark.parametrize("content", [b"", b"another size", None])
    def test_written_while_they_are_hashed(self, content: bytes | None, tmp_path: Path) -> None:
        data = tmp_path / "data"
        contents = folder(data)
        content = contents["class0/003.bin"][::-1] if content is None else content  # of the same size
        code, _, errors = run(data, patch=WRITE.format(content=content))
        assert code == 1
        assert "class0/003.bin: it was written or taken away" in errors
        assert "augury index" not in errors
        assert "1 sample could not be hashed: let nobody write to the data" in errors
        assert by_name(data / ".augury")["class0/003.bin"] == bytes(DIGEST)
        code, output, _ = run(data)
        assert (code, count(output, "hashed")) == (0, 1)
        contents["class0/003.bin"] = content
        assert by_name(data / ".augury") == {name: digest(data) for name, data in contents.items()}

    def test_a_shard_written_while_it_is_hashed(self, tmp_path: Path) -> None:
        shard(tmp_path / "a.tar", {"x.bin": b"1", "y.bin": b"2"})
        shard(tmp_path / "b.tar", {"z.bin": b"3"})
        meddle = """
import augury.sources.packed, os
read = augury.sources.packed.PackedSource.read
def touching(self, ids):
    os.utime(os.path.join(self.catalog.root, "a.tar"))
    return read(self, ids)
augury.sources.packed.PackedSource.read = touching
"""
        code, _, errors = run(tmp_path, patch=meddle)
        assert (code, errors.count("it was written")) == (1, 2)
        assert by_name(tmp_path / ".augury") == {"x": bytes(DIGEST), "y": bytes(DIGEST), "z": digest(b"3")}

    def test_taken_away_since_it_was_found(self, tmp_path: Path) -> None:
        folder(tmp_path)
        gone = WRITE.replace("file.write_bytes({content!r})", "file.unlink(missing_ok=True)")
        code, _, errors = run(tmp_path, patch=gone)
        assert code == 1
        assert "class0/003.bin: it was written or taken away" in errors


class TestVerify:
    def test_all_as_it_was(self, tmp_path: Path) -> None:
        folder(tmp_path / "data")
        run(tmp_path / "data")
        before = (tmp_path / "data" / ".augury" / "catalog").stat().st_mtime_ns
        code, output, errors = run(tmp_path / "data", "--verify")
        assert (code, output, errors) == (0, "", "12 samples are what their digests say\n")
        assert run(tmp_path / "data", "--verify", "--quiet") == (0, "", "")
        assert (tmp_path / "data" / ".augury" / "catalog").stat().st_mtime_ns == before

    def test_what_differs_is_named(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        contents = folder(data)
        run(data)
        write(data / "class0/003.bin", contents["class0/003.bin"][::-1])
        write(data / "class1/004.bin", contents["class1/004.bin"][::-1], LONG_AGO + 1)
        write(data / "class1/007.bin", contents["class1/007.bin"], LONG_AGO + 1)
        write(data / "class2/005.bin", b"short")
        (data / "class2/008.bin").unlink()
        for quiet in ((), ("--quiet",)):
            code, output, errors = run(data, "--verify", *quiet)
            assert code == 1
            assert sorted(output.splitlines()) == [
                f"{data}/class0/003.bin: differs from its digest, though its modification time is the same",
                f"{data}/class1/004.bin: differs from its digest, it was written since",
                f"{data}/class2/005.bin: expected {len(contents['class2/005.bin'])} bytes, found 5",
                f"{data}/class2/008.bin: the file is missing (expected {len(contents['class2/008.bin'])} bytes)",
            ]
            assert "4 of 12 samples not as their digests say" in errors
            assert f"augury digest {data}" in errors

    def test_without_digests_there_is_nothing_to_verify(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        folder(data)
        code, _, errors = run(data, "--verify")
        assert code == 2
        assert "no catalog at" in errors
        run(data, command="index")
        code, _, errors = run(data, "--verify")
        assert code == 2
        assert f"make them with: augury digest {data}" in errors
        run(data, patch=REFUSE)
        code, output, errors = run(data, "--verify")
        assert (code, output) == (1, "")
        assert "1 sample without a digest" in errors


class TestTheCommandLine:
    def test_help_teaches(self) -> None:
        code, output, _ = run("--help")
        assert code == 0
        for word in ("--out", "--verify", "--threads", "--quiet", "augury digest /data/train"):
            assert word in output

    def test_mistakes_are_told(self, tmp_path: Path) -> None:
        code, output, errors = run(tmp_path / "nothing")
        assert (code, output) == (2, "")
        assert errors == f"error: {tmp_path}/nothing does not exist\n"
        assert run(tmp_path / "nothing", "--verify")[2] == errors
        folder(tmp_path / "data")
        assert "--threads" in run(tmp_path / "data", "--threads", 0)[2]
        (tmp_path / "file").write_text("")
        code, _, errors = run(tmp_path / "data", "--out", tmp_path / "file" / "below")
        assert code == 2
        assert "--out DIR" in errors
        (tmp_path / "empty").mkdir()
        code, _, errors = run(tmp_path / "empty")
        assert code == 2
        assert "holds no files" in errors
        assert os.listdir(tmp_path / "empty") == []

    def test_a_damaged_catalog_is_told_of(self, tmp_path: Path) -> None:
        folder(tmp_path)
        run(tmp_path)
        catalog = tmp_path / ".augury" / "catalog"
        catalog.write_bytes(catalog.read_bytes()[:-1])
        code, _, errors = run(tmp_path)
        assert code == 2
        assert "augury index" in errors
        assert run(tmp_path, command="index")[0] == 0
        assert count(run(tmp_path)[1], "hashed") == 12

    def test_a_line_now_and_then(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from rich.console import Console

        from augury.commands import digest as command

        printed = io.StringIO()
        clock = iter([0.0, 5.0, 10.0, 12.0, 20.0])
        monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
        report = command._line_now_and_then(Console(file=printed, width=200), "hashing", 1000, 10_000_000)
        for samples in (250, 500, 600, 999):
            report(samples, samples * 10_000)
        assert printed.getvalue().splitlines() == [
            "hashing: 500 of 1,000, 50 samples/s, 500 kB/s, 0:00:10 left",
            "hashing: 999 of 1,000, 50 samples/s, 500 kB/s, 0:00:00 left",
        ]

    def test_what_differs_goes_to_a_pipe_beside_a_bar(self, tmp_path: Path) -> None:
        import pty

        data = tmp_path / "data"
        folder(data)
        run(data)
        plant(data / ".augury", "class1/004.bin")
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            line("digest", (data, "--verify"), ""), stdout=subprocess.PIPE, stderr=theirs, env=ENVIRONMENT, text=True
        )
        os.close(theirs)
        output, _ = process.communicate(timeout=60)
        bar = b""
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            try:
                while part := terminal.read(65536):
                    bar += part
            except OSError:
                pass  # the other end is closed
        assert output.splitlines() == [
            f"{data}/class1/004.bin: differs from its digest, though its modification time is the same"
        ]
        assert b"verifying" in bar
        assert b"samples/s" in bar


def test_import_augury_does_not_load_it() -> None:
    code = "import augury, augury.catalog, augury.sources.folder, sys; sys.exit('blake3' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)


def test_errors_are_those_of_augury() -> None:
    assert issubclass(InUse, AuguryError)
