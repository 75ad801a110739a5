"""Tar shards: where samples begin, labels, merged reads, and shards that are not as the catalog says."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import tarfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from augury.catalog import Catalog, default_place
from augury.errors import CatalogError, ConfigError, Stale, Unreadable
from augury.sources.packed import PackedSource
from augury.sources.tarindex import index_packed, split_name
from augury.testing.sources import Made, SourceContract

Members = Iterable[tuple[str, bytes]]


def pack(path: Path, members: Members, format: int = tarfile.USTAR_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def images(first: int, count: int) -> list[tuple[str, bytes]]:
    rng = np.random.default_rng(first)
    members = []
    for number in range(first, first + count):
        members.append((f"{number:04}.jpg", rng.bytes(100 + 61 * (number % 17))))
        members.append((f"{number:04}.cls", str(number // 100).encode() + b"\n"))
    return members


def shards(root: Path) -> list[bytes]:
    """Three shards; returns the images in the order of their ids."""
    expected = []
    for shard, count in enumerate([10, 1, 7]):
        members = images(shard * 100, count)
        pack(root / f"part-{shard}.tar", members)
        expected += [data for name, data in members if name.endswith(".jpg")]
    return expected


class TestContract(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        expected = shards(tmp_path)
        return PackedSource(tmp_path), expected


class TestSaved(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        expected = shards(tmp_path)
        index_packed(tmp_path).save(default_place(tmp_path))
        source = PackedSource(tmp_path, open_files=1)
        assert source.catalog.path is not None
        return source, expected


class TestUnmerged(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        expected = shards(tmp_path)
        return PackedSource(sorted(tmp_path.iterdir()), gap=0, limit=1), expected


class TestManyFields(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        path = pack(
            tmp_path / "x.tar",
            [(f"dir.v1/{key}.{field}", f"{key}{field}".encode()) for key in "abcd" for field in ("png", "json", "cls")],
        )
        source = PackedSource(path)
        raw = path.read_bytes()
        assert source.catalog.offsets is not None
        extents = zip(source.catalog.offsets, source.catalog.sizes, strict=True)
        return source, [raw[offset : offset + size] for offset, size in extents]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
class TestFormats:
    NAMES = ("short", "é日本", "n" * 150, "d/" * 60 + "deep")

    def test_one_field(self, format: int, tmp_path: Path) -> None:
        names = [name for name in self.NAMES if format != tarfile.USTAR_FORMAT or len(name) < 150]
        pack(tmp_path / "x.tar", [(f"{name}.bin", name.encode()) for name in names], format)
        source = PackedSource(tmp_path)
        names.sort(key=str.encode)
        assert source.read(np.arange(len(names))) == [name.encode() for name in names]
        assert source.catalog.names is not None
        assert list(source.catalog.names) == names

    def test_several_fields(self, format: int, tmp_path: Path) -> None:
        names = [name for name in self.NAMES if format != tarfile.USTAR_FORMAT or len(name) < 150]
        fields = {"jpg": b"image", "json": b"{}" * 400, "cls": b"1"}
        pack(
            tmp_path / "x.tar",
            [(f"{name}.{field}", fields[field]) for name in names for field in fields],
            format,
        )
        source = PackedSource(tmp_path)
        for id in range(len(names)):
            (data,) = source.read(np.array([id]))
            assert not isinstance(data, Unreadable)
            assert source.decode(data) == fields


def test_keys_are_those_of_webdataset() -> None:
    assert split_name("a/b.c/key.seg.PNG") == ("a/b.c/key", "seg.png")
    assert split_name("key.jpg") == ("key", "jpg")
    assert split_name("noextension") is None
    assert split_name("a/.hidden") is None
    assert split_name("new\nline.jpg") == ("new\nline", "jpg")


def test_only_files_with_an_extension_are_samples(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        folder = tarfile.TarInfo("a.dir")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name in ("readme", "a.dir/x.bin", "a.dir/y.bin"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    source = PackedSource(tmp_path / "x.tar")
    assert [source.catalog.location(id) for id in range(2)] == [
        f"{tmp_path}/x.tar:a.dir/x",
        f"{tmp_path}/x.tar:a.dir/y",
    ]


def test_ids_follow_labels_then_names(tmp_path: Path) -> None:
    pack(tmp_path / "b.tar", [("1.x", b"b1"), ("1.cls", b"0")])
    pack(tmp_path / "a.tar", [("2.x", b"a2"), ("2.cls", b"0"), ("1.x", b"a1"), ("1.cls", b"1")])
    source = PackedSource(tmp_path)
    assert source.read(np.arange(3)) == [b"a2", b"b1", b"a1"]
    np.testing.assert_array_equal(source.catalog.labels, [0, 0, 1])


def test_ids_follow_the_shards(tmp_path: Path) -> None:
    pack(tmp_path / "b.tar", [("1.x", b"b1")])
    pack(tmp_path / "a.tar", [("2.x", b"a2"), ("1.x", b"a1")])
    assert PackedSource(tmp_path).read(np.arange(3)) == [b"a1", b"a2", b"b1"]
    assert PackedSource([tmp_path / "b.tar", tmp_path / "a.tar"]).read(np.arange(3)) == [b"a1", b"a2", b"b1"]


class TestLabels:
    def test_numbers(self, tmp_path: Path) -> None:
        shards(tmp_path)
        catalog = index_packed(tmp_path)
        assert catalog.labels is not None
        assert catalog.labels.dtype == np.int64
        assert catalog.labels.tolist() == [0] * 10 + [1] + [2] * 7
        assert catalog.classes == ()
        assert index_packed(tmp_path, labels="none").labels is None

    def test_names(self, tmp_path: Path) -> None:
        classes = ["dog", "cat", "dog", "7"]
        pack(
            tmp_path / "x.tar",
            [(f"{n}.{f}", d) for n, c in enumerate(classes) for f, d in (("cls", c.encode()), ("x", b"data"))],
        )
        source = PackedSource(tmp_path)
        assert source.catalog.classes == ("7", "cat", "dog")
        np.testing.assert_array_equal(source.catalog.labels, [0, 1, 2, 2])
        assert list(source.catalog.names) == ["3", "1", "0", "2"]
        assert source.read(np.array([0])) == [b"data"]

    def test_none(self, tmp_path: Path) -> None:
        pack(tmp_path / "x.tar", [("a.x", b"1"), ("b.x", b"2")])
        assert index_packed(tmp_path).labels is None

    def test_some(self, tmp_path: Path) -> None:
        pack(tmp_path / "x.tar", [("a.x", b"1"), ("a.cls", b"1"), ("b.x", b"2")])
        with pytest.raises(CatalogError, match=r"sample b has no \.cls"):
            index_packed(tmp_path)
        with pytest.raises(ConfigError, match="labels of"):
            index_packed(tmp_path, labels="folders")


def test_extensions_choose_the_field(tmp_path: Path) -> None:
    pack(
        tmp_path / "x.tar",
        [(f"{key}.{field}", (key + field).encode()) for key in "ab" for field in ("jpg", "json", "cls0")],
    )
    assert PackedSource(tmp_path, extensions=[".jpg"]).read(np.arange(2)) == [b"ajpg", b"bjpg"]
    both = PackedSource(tmp_path, extensions=["jpg", "json"])
    (data,) = both.read(np.array([1]))
    assert not isinstance(data, Unreadable)
    assert both.decode(data) == {"jpg": b"bjpg", "json": b"bjson"}


def test_neighbours_are_one_request(tmp_path: Path) -> None:
    shards(tmp_path)
    source = PackedSource(tmp_path)
    groups = [group.tolist() for group in source.requests(np.array([11, 3, 2, 10, 17]))]
    assert groups == [[2, 3], [10], [11, 17]]
    assert len(PackedSource(tmp_path, gap=0).requests(np.arange(18))) == 18


def test_a_sample_owns_its_bytes(tmp_path: Path) -> None:
    expected = shards(tmp_path)
    answers = PackedSource(tmp_path).read(np.arange(18))
    assert all(type(data) is bytes for data in answers)
    assert answers == expected


def test_open_files_are_bounded_and_closed(tmp_path: Path) -> None:
    for shard in range(12):
        pack(tmp_path / f"{shard:02}.tar", images(shard * 100, 3))
    before = set(os.listdir("/proc/self/fd"))
    source = PackedSource(tmp_path, open_files=2)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda seed: source.read(np.random.default_rng(seed).integers(0, 36, 9)), range(60)))
    assert len(source._files._open) <= 2
    source.close()
    assert set(os.listdir("/proc/self/fd")) <= before


def child(source: PackedSource, answers: multiprocessing.SimpleQueue[list[bytes]]) -> None:
    answers.put(source.read(np.arange(18)))  # type: ignore[arg-type]


def test_after_a_fork_both_read(tmp_path: Path) -> None:
    expected = shards(tmp_path)
    source = PackedSource(tmp_path)
    source.read(np.arange(18))
    source._files._lock.acquire()  # as if another thread held it at the moment of the fork
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=child, args=(source, answers))
    process.start()
    source._files._lock.release()
    assert answers.get() == expected
    process.join()
    assert source.read(np.arange(18)) == expected


def saved(tmp_path: Path) -> PackedSource:
    shards(tmp_path)
    index_packed(tmp_path).save(default_place(tmp_path))
    return PackedSource(tmp_path)


class TestStale:
    def assert_stale(self, source: PackedSource, reason: str) -> None:
        answers = source.read(np.arange(18))
        assert not any(isinstance(answer, Unreadable) for answer in answers[10:])  # other shards are well
        for id, answer in enumerate(answers[:10]):
            assert isinstance(answer, Stale)
            assert answer.location == f"{source.catalog.root}/part-0.tar:{id:04}"
            assert reason in str(answer)
            assert f"augury index {source.catalog.root}" in str(answer)

    def test_missing(self, tmp_path: Path) -> None:
        source = saved(tmp_path)
        (tmp_path / "part-0.tar").unlink()
        self.assert_stale(source, "the shard is missing")

    def test_cut_short(self, tmp_path: Path) -> None:
        source = saved(tmp_path)
        size = (tmp_path / "part-0.tar").stat().st_size
        os.truncate(tmp_path / "part-0.tar", 3000)
        self.assert_stale(source, f"had {size} bytes when it was indexed, now 3000")

    def test_rewritten_with_the_same_size(self, tmp_path: Path) -> None:
        source = saved(tmp_path)
        size = (tmp_path / "part-0.tar").stat().st_size
        pack(tmp_path / "part-0.tar", [*images(50, 1), *images(0, 9)])
        assert (tmp_path / "part-0.tar").stat().st_size == size
        self.assert_stale(source, "rewritten")

    def test_cut_short_while_open(self, tmp_path: Path) -> None:
        source = saved(tmp_path)
        source.read(np.array([0]))
        assert source.catalog.offsets is not None
        os.truncate(tmp_path / "part-0.tar", int(source.catalog.offsets[5]))
        answers = source.read(np.arange(10))
        assert [isinstance(answer, Stale) for answer in answers] == [False] * 5 + [True] * 5

    def test_checked(self, tmp_path: Path) -> None:
        source = saved(tmp_path)
        os.truncate(tmp_path / "part-0.tar", 3000)
        (difference,) = source.catalog.check()
        assert "part-0.tar: expected" in difference


def test_a_bad_block_spoils_one_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = shards(tmp_path)
    source = PackedSource(tmp_path)
    source.read(np.arange(18))
    assert source.catalog.offsets is not None
    bad = int(source.catalog.offsets[4]) + 10
    pread = os.pread

    def faulty(file: int, size: int, offset: int) -> bytes:
        if offset <= bad < offset + size:
            raise OSError(errno.EIO, "bad block")
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", faulty)
    answers = source.read(np.arange(10))
    monkeypatch.undo()
    failed = answers.pop(4)
    assert isinstance(failed, Unreadable)
    assert failed.transient
    assert failed.id == 4
    assert answers == expected[:4] + expected[5:10]


class TestRefusals:
    def test_compressed(self, tmp_path: Path) -> None:
        (tmp_path / "x.tar.gz").write_bytes(b"\x1f\x8b")
        for path in (tmp_path, tmp_path / "x.tar.gz"):
            with pytest.raises(ConfigError, match=r"x\.tar\.gz is not a plain \.tar.*unpack"):
                PackedSource(path)

    def test_missing_and_empty(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="does not exist"):
            PackedSource(tmp_path / "x.tar")
        with pytest.raises(CatalogError, match="holds no"):
            PackedSource(tmp_path)
        with pytest.raises(ConfigError, match="empty"):
            PackedSource([])
        pack(tmp_path / "x.tar", [])
        with pytest.raises(CatalogError, match="no samples"):
            PackedSource(tmp_path)

    def test_not_a_tar(self, tmp_path: Path) -> None:
        (tmp_path / "x.tar").write_bytes(b"no" * 5000)
        with pytest.raises(CatalogError, match=r"x\.tar is not a readable \.tar"):
            PackedSource(tmp_path)

    @pytest.mark.parametrize("keep", [700, 1300])
    def test_cut_short(self, keep: int, tmp_path: Path) -> None:
        pack(tmp_path / "x.tar", [("a.x", b"1" * 100), ("b.x", b"2" * 900)])
        os.truncate(tmp_path / "x.tar", 512 * 2 + keep - 300)
        with pytest.raises(CatalogError, match=r"x\.tar"):
            PackedSource(tmp_path)

    def test_damaged_in_the_middle(self, tmp_path: Path) -> None:
        path = pack(tmp_path / "x.tar", [("a.x", b"1"), ("b.x", b"2"), ("c.x", b"3")])
        raw = bytearray(path.read_bytes())
        raw[1024:1034] = b"##########"
        path.write_bytes(raw)
        with pytest.raises(CatalogError, match="damaged at byte 1024"):
            PackedSource(tmp_path)

    def test_files_of_a_sample_apart(self, tmp_path: Path) -> None:
        pack(tmp_path / "x.tar", [("a.x", b"1"), ("b.x", b"2"), ("a.y", b"3")])
        with pytest.raises(CatalogError, match="files of a are not neighbours"):
            PackedSource(tmp_path)

    def test_a_file_twice(self, tmp_path: Path) -> None:
        pack(tmp_path / "x.tar", [("a.x", b"1"), ("a.x", b"2")])
        with pytest.raises(CatalogError, match="twice"):
            PackedSource(tmp_path)


def test_one_tar_has_its_catalog_beside_it(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", [("a.x", b"1"), ("b.x", b"2")])
    index_packed(path).save(default_place(path))
    opened = Catalog.open(tmp_path / "x.tar.augury")
    assert opened.refresh_command == f"augury index {path}"
    (tmp_path / "moved").mkdir()
    path.rename(tmp_path / "moved" / "x.tar")
    (tmp_path / "x.tar.augury").rename(tmp_path / "moved" / "x.tar.augury")
    source = PackedSource(tmp_path / "moved" / "x.tar")
    assert source.catalog.path is not None
    assert source.read(np.arange(2)) == [b"1", b"2"]
