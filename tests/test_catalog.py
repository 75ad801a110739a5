"""The catalog: what is saved comes back, by memory map; what is torn is refused."""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from augury.catalog import FILE, Catalog, Strings, default_place, digest_of, is_saved
from augury.errors import CatalogError


def packed(root: str = "/data") -> Catalog:
    return Catalog(
        [10, 20, 30],
        kind="packed",
        root=root,
        fingerprint="f00",
        labels=np.array([1, 0, 1]),
        classes=["cat", "dog"],
        names=Strings.of([b"a", b"", "é\n".encode()]),
        shards=Strings.of([b"x.tar", b"y.tar"]),
        shard=np.array([0, 0, 1], np.int32),
        shard_sizes=np.array([100, 200]),
        offsets=np.array([512, 1024, 512]),
        digests=np.arange(96, dtype=np.uint8).reshape(3, 32),
        options={"labels": "auto", "extensions": [".jpg"]},
    )


def same(one: Catalog, other: Catalog) -> None:
    for name in ("sizes", "labels", "shard", "shard_sizes", "offsets", "digests"):
        left, right = getattr(one, name), getattr(other, name)
        assert (left is None) == (right is None), name
        if left is not None:
            np.testing.assert_array_equal(left, right)
            assert left.dtype == right.dtype, name
    for name in ("kind", "root", "classes", "options", "fingerprint", "uniform_size", "total_bytes"):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("names", "shards"):
        left, right = getattr(one, name), getattr(other, name)
        assert (left and list(left)) == (right and list(right)), name


def is_mapped(array: np.ndarray) -> bool:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


def test_saved_and_opened_it_is_the_same(tmp_path: Path) -> None:
    catalog = packed()
    catalog.save(tmp_path / "deep" / "catalog")
    opened = Catalog.open(tmp_path / "deep" / "catalog")
    same(catalog, opened)
    assert catalog.path == opened.path == tmp_path / "deep" / "catalog"
    assert [opened.location(id) for id in range(3)] == ["/data/x.tar:a", "/data/x.tar:", "/data/y.tar:é\n"]


def test_opening_maps_the_columns_and_reads_none(tmp_path: Path) -> None:
    packed().save(tmp_path)
    opened = Catalog.open(tmp_path)
    assert opened.names is not None
    columns = [
        opened.sizes,
        opened.labels,
        opened.offsets,
        opened.digests,
        opened.names.blob,
        opened.names.ends,
    ]
    assert all(column is not None and is_mapped(column) for column in columns)
    assert all(not column.flags.writeable for column in columns if column is not None)


def test_equal_sizes_take_no_memory_and_no_disk(tmp_path: Path) -> None:
    catalog = Catalog(np.full(100_000, 7), kind="array", root="array", fingerprint="f")
    assert catalog.uniform_size == 7
    assert catalog.sizes.strides == (0,)
    catalog.save(tmp_path)
    assert (tmp_path / FILE).stat().st_size < 1000
    opened = Catalog.open(tmp_path)
    same(catalog, opened)
    assert opened.sizes.strides == (0,)
    assert opened.location(17) == "array[17]"


def test_unequal_sizes_have_no_uniform_size() -> None:
    assert Catalog([1, 2], kind="array", root="", fingerprint="").uniform_size is None


@pytest.mark.parametrize(
    "labels",
    [
        np.arange(12, dtype=np.float32).reshape(3, 2, 2),
        np.array(["a", "bc", "d"]),
        np.array([1, 2, 3], np.uint8),
        np.zeros((3, 0)),
        np.array([True, False, True]),
        np.array(["2020-01-01"] * 3, "datetime64[D]"),
    ],
)
def test_labels_of_any_shape_survive(labels: np.ndarray, tmp_path: Path) -> None:
    catalog = Catalog([1, 2, 3], kind="array", root="array", fingerprint="f", labels=labels)
    catalog.save(tmp_path)
    same(catalog, Catalog.open(tmp_path))
    same(catalog, pickle.loads(pickle.dumps(catalog)))


def test_columns_of_another_length_are_refused() -> None:
    with pytest.raises(CatalogError, match="3 samples but 2 labels"):
        Catalog([1, 2, 3], kind="array", root="", fingerprint="", labels=np.array([1, 2]))
    with pytest.raises(CatalogError, match="object"):
        Catalog([1], kind="array", root="", fingerprint="", labels=np.array([None]))


@pytest.mark.parametrize("id", [-1, 3])
def test_no_location_outside(id: int) -> None:
    with pytest.raises(IndexError, match=str(id)):
        packed().location(id)


def test_strings_may_be_any_bytes() -> None:
    raw = [b"plain", b"", b"\xff\xfe", "日本".encode(), b"a b\nc", b"x" * 5000]
    strings = Strings.of(raw)
    assert len(strings) == len(raw)
    assert [os.fsencode(text) for text in strings] == raw
    assert [strings.raw(index) for index in range(len(raw))] == raw
    with pytest.raises(IndexError):
        strings[len(raw)]
    assert list(Strings.of([])) == []


def test_a_costly_fingerprint_is_asked_for_once() -> None:
    calls = []
    catalog = Catalog([1], kind="array", root="", fingerprint=lambda: calls.append(1) or "abc")  # type: ignore[func-returns-value]
    assert not calls
    assert catalog.fingerprint == catalog.fingerprint == "abc"
    assert len(calls) == 1


def test_a_digest_knows_where_parts_end() -> None:
    assert digest_of(b"ab", b"c") != digest_of(b"a", b"bc")
    assert digest_of(np.array([1, 2])) == digest_of(np.array([1, 2]))


class TestRefusals:
    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(CatalogError, match=r"no catalog at .*augury index"):
            Catalog.open(tmp_path / "nothing")

    def test_not_a_catalog(self, tmp_path: Path) -> None:
        (tmp_path / FILE).write_bytes(b"something else entirely, and long enough")
        with pytest.raises(CatalogError, match="is not a catalog"):
            Catalog.open(tmp_path)

    def test_empty_file(self, tmp_path: Path) -> None:
        (tmp_path / FILE).write_bytes(b"")
        with pytest.raises(CatalogError, match="is not a catalog"):
            Catalog.open(tmp_path)

    def test_torn_at_any_place(self, tmp_path: Path) -> None:
        packed().save(tmp_path)
        whole = (tmp_path / FILE).read_bytes()
        for length in [10, 19, 25, 300, len(whole) - 1]:
            (tmp_path / FILE).write_bytes(whole[:length])
            with pytest.raises(CatalogError):
                Catalog.open(tmp_path)

    def test_a_flipped_bit_in_the_header(self, tmp_path: Path) -> None:
        packed().save(tmp_path)
        whole = bytearray((tmp_path / FILE).read_bytes())
        whole[30] ^= 1
        (tmp_path / FILE).write_bytes(whole)
        with pytest.raises(CatalogError, match="damaged"):
            Catalog.open(tmp_path)

    def test_another_version(self, tmp_path: Path) -> None:
        packed().save(tmp_path)
        whole = bytearray((tmp_path / FILE).read_bytes())
        whole[8] = 99
        (tmp_path / FILE).write_bytes(whole)
        with pytest.raises(CatalogError, match="format 99"):
            Catalog.open(tmp_path)


class TestSaving:
    def test_it_replaces_at_once_and_leaves_nothing_aside(self, tmp_path: Path) -> None:
        packed().save(tmp_path)
        old = Catalog.open(tmp_path)
        Catalog([1], kind="array", root="array", fingerprint="new").save(tmp_path)
        assert os.listdir(tmp_path) == [FILE]
        assert len(Catalog.open(tmp_path)) == 1
        same(old, packed())  # who has it open keeps what was open

    @pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
    def test_when_stopped_nothing_is_left(
        self, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(descriptor: int) -> None:
            raise error("stop")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises((KeyboardInterrupt, CatalogError)):
            packed().save(tmp_path / "new")
        assert not (tmp_path / "new").exists()
        (tmp_path / "old").mkdir()
        with pytest.raises((KeyboardInterrupt, CatalogError)):
            packed().save(tmp_path / "old")
        assert os.listdir(tmp_path / "old") == []

    def test_a_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(CatalogError, match="cannot write the catalog"):
            packed().save(tmp_path / "file")

    def test_beside_its_data_it_travels(self, tmp_path: Path) -> None:
        (tmp_path / "here").mkdir()
        place = default_place(tmp_path / "here")
        packed(str(tmp_path / "here")).save(place)
        assert is_saved(place)
        shutil.move(tmp_path / "here", tmp_path / "there")
        assert Catalog.open(tmp_path / "there" / ".augury").root == str(tmp_path / "there")

    def test_elsewhere_it_remembers_its_root(self, tmp_path: Path) -> None:
        packed().save(tmp_path)
        assert Catalog.open(tmp_path).root == "/data"


def report(catalog: Catalog, answers: multiprocessing.Queue[str]) -> None:
    assert catalog.labels is not None
    mapped = is_mapped(catalog.labels)
    answers.put(json.dumps([len(catalog), catalog.location(2), mapped, int(catalog.labels.sum())]))


class TestOtherProcesses:
    def test_a_saved_catalog_goes_by_name(self, tmp_path: Path) -> None:
        catalog = packed()
        catalog.save(tmp_path)
        pickled = pickle.dumps(catalog)
        assert len(pickled) < 500
        same(catalog, pickle.loads(pickled))

    def test_a_replaced_catalog_is_noticed(self, tmp_path: Path) -> None:
        catalog = packed()
        catalog.save(tmp_path)
        pickled = pickle.dumps(catalog)
        Catalog([1], kind="array", root="array", fingerprint="new").save(tmp_path)
        with pytest.raises(CatalogError, match="replaced"):
            pickle.loads(pickled)

    def test_an_unsaved_one_is_mapped_from_one_copy(self) -> None:
        catalog = packed()
        assert pickle.dumps(catalog) == pickle.dumps(catalog)
        twin = pickle.loads(pickle.dumps(catalog))
        copy = twin._copy
        assert copy == catalog._copy
        assert is_mapped(twin.labels)
        assert twin.path is None
        same(catalog, twin)

    def test_the_copy_goes_with_the_process(self, tmp_path: Path) -> None:
        code = (
            "import pickle; from augury.catalog import Catalog;"
            "catalog = Catalog([1, 2], kind='array', root='array', fingerprint='f');"
            "pickle.dumps(catalog); assert catalog._copy.exists()"
        )
        environment = os.environ | {"TMPDIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        assert os.listdir(tmp_path) == []

    def test_a_forked_child_does_not_remove_the_copy(self) -> None:
        code = (
            "import os, pickle, sys; from augury.catalog import Catalog;"
            "catalog = Catalog([1, 2], kind='array', root='array', fingerprint='f');"
            "pickle.dumps(catalog); child = os.fork();"
            "child or sys.exit(0); os.waitpid(child, 0);"
            "assert catalog._copy.exists()"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_a_spawned_worker_shares_the_map(self) -> None:
        context = multiprocessing.get_context("spawn")
        answers = context.Queue()
        process = context.Process(target=report, args=(packed(), answers))
        process.start()
        answer = answers.get(timeout=60)
        process.join()
        assert json.loads(answer) == [3, "/data/y.tar:é\n", True, 2]


class TestRefreshing:
    def folder(self, root: Path, **options: object) -> Catalog:
        (root / "a").write_bytes(b"12345")
        (root / "b c").write_bytes(b"1")
        names = Strings.of([b"a", b"b c"])
        return Catalog([5, 1], kind="folder", root=str(root), fingerprint="f", names=names, options=options)

    def test_the_command_repeats_how_it_was_indexed(self, tmp_path: Path) -> None:
        (tmp_path / "a b").mkdir()
        catalog = self.folder(tmp_path / "a b", labels="none", extensions=[".jpg", ".png"])
        expected = f"augury index '{tmp_path}/a b' --labels none --extensions .jpg,.png"
        assert catalog.refresh_command == expected
        catalog.save(default_place(catalog.root))
        assert catalog.refresh_command == expected
        catalog.save(tmp_path / "out")
        assert f"--out {tmp_path}/out" in catalog.refresh_command

    def test_the_hint_fits(self, tmp_path: Path) -> None:
        catalog = self.folder(tmp_path)
        assert "open it again" in catalog.refresh_hint
        catalog.save(default_place(tmp_path))
        assert f"augury index {tmp_path}" in catalog.refresh_hint

    def test_check_names_what_differs(self, tmp_path: Path) -> None:
        catalog = self.folder(tmp_path)
        seen: list[tuple[int, int | None]] = []
        assert catalog.check(lambda done, total: seen.append((done, total))) == []
        assert seen[-1] == (2, 2)
        (tmp_path / "a").write_bytes(b"1234")
        (tmp_path / "b c").unlink()
        first, second = catalog.check()
        assert first == f"{tmp_path}/a: expected 5 bytes, found 4"
        assert second.startswith(f"{tmp_path}/b c: no such file")
        assert len(catalog.check(limit=1)) == 1

    def test_arrays_have_nothing_to_check(self) -> None:
        assert Catalog([1], kind="array", root="array", fingerprint="f").check() == []

    def test_the_same_catalog_elsewhere(self, tmp_path: Path) -> None:
        catalog = packed()
        moved = catalog.rooted(tmp_path)
        assert (catalog.root, moved.root) == ("/data", str(tmp_path))
        assert pickle.loads(pickle.dumps(moved)).root == str(tmp_path)
