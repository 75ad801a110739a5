"""Folders: which ids files get, odd names, and what is said when files are not as the catalog says."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from augury.catalog import Catalog, default_place
from augury.errors import AuguryWarning, CatalogError, ConfigError, Stale, Unreadable
from augury.sources import folder as folder_module
from augury.sources.folder import FolderSource, index_folder
from augury.testing.sources import Made, SourceContract

CLASSES = {"dog": ["2.jpg", "10.jpg"], "cat": ["b.jpg", "a.jpg"], "cat-like": ["x.jpg"]}


def fill(root: Path) -> Path:
    for name, files in CLASSES.items():
        (root / name).mkdir(parents=True)
        for number, file in enumerate(files):
            (root / name / file).write_bytes(f"{name}/{file}".encode() * (number + 1))
    return root


def write(root: Path, *names: str | bytes) -> Path:
    for name in names:
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"<" + os.fsencode(name)[:40] + b">")
    return root


def names_of(source: FolderSource) -> list[str]:
    assert source.catalog.names is not None
    return list(source.catalog.names)


class TestContract(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        source = FolderSource(fill(tmp_path))
        return source, [(tmp_path / name).read_bytes() for name in names_of(source)]


class TestSaved(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        index_folder(fill(tmp_path)).save(default_place(tmp_path))
        source = FolderSource(tmp_path)
        assert source.catalog.path == default_place(tmp_path)
        return source, [(tmp_path / name).read_bytes() for name in names_of(source)]


class TestOddNames(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        odd = [
            "a b/c d",
            "new\nline/x",
            "日本/é.png",
            b"bytes/\xff\xfe.bin",
            "deep/" + "n" * 200 + "/" + "m" * 200,
            "quo'te/\"*?",
        ]
        source = FolderSource(write(tmp_path, *odd))
        assert sorted(map(os.fsencode, names_of(source))) == sorted(map(os.fsencode, odd))
        return source, [b"<" + os.fsencode(name)[:40] + b">" for name in names_of(source)]


def test_ids_are_sorted_by_class_and_name(tmp_path: Path) -> None:
    source = FolderSource(fill(tmp_path))
    # "cat-like/x" < "cat/a" as paths, but "cat" < "cat-like" as classes: classes come first.
    assert names_of(source) == ["cat/a.jpg", "cat/b.jpg", "cat-like/x.jpg", "dog/10.jpg", "dog/2.jpg"]
    assert source.catalog.classes == ("cat", "cat-like", "dog")
    np.testing.assert_array_equal(source.catalog.labels, [0, 0, 1, 2, 2])
    assert source.catalog.location(0) == f"{tmp_path}/cat/a.jpg"


def test_the_order_does_not_depend_on_threads_or_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, *(f"c{number % 3}/d{number % 5}/{number}" for number in range(200)))
    whole = index_folder(tmp_path)
    monkeypatch.setattr(folder_module, "_CHUNK", 3)
    pieces = index_folder(tmp_path, threads=3)
    assert whole.names is not None
    assert pieces.names is not None
    assert list(whole.names) == list(pieces.names)
    assert whole.fingerprint == pieces.fingerprint
    np.testing.assert_array_equal(whole.labels, pieces.labels)


def test_a_class_without_files_keeps_its_number(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "bird").mkdir()
    source = FolderSource(tmp_path)
    assert source.catalog.classes == ("bird", "cat", "cat-like", "dog")
    np.testing.assert_array_equal(source.catalog.labels, [1, 1, 2, 3, 3])


def test_a_file_in_the_root_means_no_labels(tmp_path: Path) -> None:
    write(fill(tmp_path), "readme.txt")
    source = FolderSource(tmp_path)
    assert source.catalog.labels is None
    assert source.catalog.classes == ()
    assert names_of(source) == sorted(names_of(source))
    assert FolderSource(tmp_path, extensions=["JPG"]).catalog.labels is not None
    with pytest.raises(CatalogError, match=r"readme\.txt lies directly in the root"):
        FolderSource(tmp_path, labels="folders")


def test_labels_can_be_declined(tmp_path: Path) -> None:
    assert FolderSource(fill(tmp_path), labels="none").catalog.labels is None


def test_hidden_files_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, "a/1", "a/.2", ".git/3", ".4")
    assert names_of(FolderSource(tmp_path)) == ["a/1"]


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    write(tmp_path / "data", "a/1")
    write(tmp_path / "other", "2")
    (tmp_path / "data" / "b").symlink_to(tmp_path / "other")
    (tmp_path / "data" / "a" / "up").symlink_to(tmp_path / "data")
    assert names_of(FolderSource(tmp_path / "data")) == ["a/1", "b/2"]


def test_pipes_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, "a/1")
    os.mkfifo(tmp_path / "a" / "pipe")
    assert names_of(FolderSource(tmp_path)) == ["a/1"]


def test_a_link_to_nothing_is_left_out_by_name(tmp_path: Path) -> None:
    write(tmp_path, "a/1")
    (tmp_path / "a" / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.warns(AuguryWarning, match="a/gone is a link to nothing"):
        source = FolderSource(tmp_path)
    assert len(source) == 1


def test_empty_files_are_samples(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    source = FolderSource(tmp_path)
    assert source.read(np.array([0])) == [b""]
    assert source.catalog.uniform_size == 0


def test_what_cannot_work_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        FolderSource(tmp_path / "nothing")
    with pytest.raises(CatalogError, match="holds no files"):
        FolderSource(tmp_path)
    write(tmp_path, "file")
    with pytest.raises(ConfigError, match="is a file: give the directory"):
        FolderSource(tmp_path / "file")
    with pytest.raises(CatalogError, match=r"no files ending in \.jpg"):
        FolderSource(tmp_path, extensions="jpg")
    with pytest.raises(ConfigError, match="labels must be"):
        FolderSource(tmp_path, labels="yes")


def test_progress_counts_the_files(tmp_path: Path) -> None:
    seen: list[int] = []
    FolderSource(fill(tmp_path), progress=lambda done, total: seen.append(done))
    assert seen[-1] == 5


def test_the_fingerprint_sees_changes(tmp_path: Path) -> None:
    first = index_folder(fill(tmp_path)).fingerprint
    assert index_folder(tmp_path).fingerprint == first
    os.utime(tmp_path / "cat" / "a.jpg", ns=(1, 1))
    assert index_folder(tmp_path).fingerprint != first


class TestStale:
    @pytest.fixture
    def source(self, tmp_path: Path) -> FolderSource:
        index_folder(fill(tmp_path)).save(default_place(tmp_path))
        return FolderSource(tmp_path)

    def test_a_missing_file(self, source: FolderSource, tmp_path: Path) -> None:
        (tmp_path / "cat" / "a.jpg").unlink()
        bad, good = source.read(np.array([0, 1]))
        assert good == b"cat/b.jpg"
        assert isinstance(bad, Stale)
        assert (bad.id, bad.transient, bad.location) == (0, False, f"{tmp_path}/cat/a.jpg")
        assert f"missing (expected 18 bytes); refresh the catalog with: augury index {tmp_path}" in str(bad)

    @pytest.mark.parametrize("content", [b"", b"short", b"longer than it ever was"])
    def test_a_file_of_another_size(self, content: bytes, source: FolderSource, tmp_path: Path) -> None:
        (tmp_path / "cat" / "a.jpg").write_bytes(content)
        (bad,) = source.read(np.array([0]))
        assert isinstance(bad, Stale)
        assert f"expected 18 bytes, found {len(content)}" in str(bad)
        assert isinstance(pickle.loads(pickle.dumps(bad)), Stale)

    def test_a_class_that_became_a_file(self, source: FolderSource, tmp_path: Path) -> None:
        (tmp_path / "cat-like" / "x.jpg").unlink()
        (tmp_path / "cat-like").rmdir()
        (tmp_path / "cat-like").write_bytes(b"")
        (bad,) = source.read(np.array([2]))
        assert isinstance(bad, Stale)


@pytest.mark.parametrize(
    ("code", "transient"),
    [
        (errno.EIO, True),
        (errno.ESTALE, True),
        (errno.EMFILE, True),
        (errno.EACCES, False),
        (errno.ELOOP, False),
    ],
)
def test_other_failures_say_whether_to_try_again(
    code: int, transient: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FolderSource(fill(tmp_path))

    def fail(*arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", fail)
    (bad,) = source.read(np.array([0]))
    monkeypatch.undo()
    assert isinstance(bad, Unreadable)
    assert not isinstance(bad, Stale)
    assert bad.transient == transient
    assert os.strerror(code) in str(bad)
    assert isinstance(bad.__cause__, OSError)


def test_reads_in_pieces_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    monkeypatch.setattr(folder_module, "_READ_AT_MOST", 7)
    assert FolderSource(tmp_path).read(np.array([0])) == [bytes(range(100))]


class TestCatalogs:
    def test_a_saved_catalog_made_otherwise_is_not_used(self, tmp_path: Path) -> None:
        index_folder(fill(tmp_path)).save(default_place(tmp_path))
        source = FolderSource(tmp_path, labels="none")
        assert source.catalog.labels is None
        assert source.catalog.path is None

    def test_defaults_take_what_is_saved(self, tmp_path: Path) -> None:
        write(fill(tmp_path), "cat/notes.txt")
        index_folder(tmp_path, labels="none", extensions=[".txt"]).save(default_place(tmp_path))
        assert names_of(FolderSource(tmp_path)) == ["cat/notes.txt"]

    def test_one_may_be_given_for_data_mounted_elsewhere(self, tmp_path: Path) -> None:
        fill(tmp_path / "here")
        index_folder(tmp_path / "here").save(tmp_path / "catalog")
        (tmp_path / "here").rename(tmp_path / "there")
        source = FolderSource(tmp_path / "there", catalog=tmp_path / "catalog")
        assert source.read(np.array([1])) == [b"cat/b.jpg"]
        assert pickle.loads(pickle.dumps(source)).read(np.array([1])) == [b"cat/b.jpg"]

    def test_one_of_another_kind_is_refused(self, tmp_path: Path) -> None:
        other = Catalog([1], kind="array", root="array", fingerprint="f")
        with pytest.raises(ConfigError, match="kind 'array', not 'folder'"):
            FolderSource(fill(tmp_path), catalog=other)
