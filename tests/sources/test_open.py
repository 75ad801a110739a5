"""What users write, and which source it becomes."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augury.errors import AuguryWarning, ConfigError
from augury.sources import open_source
from augury.sources.array import ArraySource
from augury.sources.dataset import DatasetSource
from augury.sources.folder import FolderSource
from augury.sources.packed import PackedSource
from augury.sources.slow import SlowSource


def tar(path: Path) -> Path:
    (path.parent / "member").write_bytes(b"data")
    with tarfile.open(path, "w") as file:
        file.add(path.parent / "member", "key.bin")
    (path.parent / "member").unlink()
    return path


def test_a_directory_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "1").write_bytes(b"x")
    for path in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        assert isinstance(open_source(path), FolderSource)
    assert isinstance(open_source(f"file://{tmp_path}/a%20b"), FolderSource)
    assert open_source(tmp_path, labels="none").catalog.labels is None
    assert open_source(tmp_path, extensions=None).catalog.labels is not None


def test_tars_are_packed(tmp_path: Path) -> None:
    path = tar(tmp_path / "x.tar")
    (tmp_path / ".hidden").write_text("")
    for data in (path, tmp_path, str(tmp_path), [path], (str(path),)):
        assert isinstance(open_source(data), PackedSource)
    (tmp_path / "x.tar.augury").mkdir()
    assert isinstance(open_source(tmp_path), PackedSource)
    (tmp_path / "other.txt").write_text("")
    with pytest.warns(AuguryWarning, match="1 other files are passed over .other.txt"):
        assert isinstance(open_source(tmp_path), PackedSource)
    (tmp_path / "class").mkdir()
    assert isinstance(open_source(tmp_path), FolderSource)


def test_arrays(tmp_path: Path) -> None:
    features = np.zeros((4, 2))
    assert isinstance(open_source(features), ArraySource)
    for source in (open_source((features, np.arange(4))), open_source(features, labels=[0, 1, 2, 3])):
        np.testing.assert_array_equal(source.catalog.labels, [0, 1, 2, 3])


def test_sources_stay_and_datasets_are_wrapped() -> None:
    source = SlowSource(ArraySource(np.zeros(3)))
    assert open_source(source) is source
    assert isinstance(open_source([b"a", b"b"], item_bytes=99), DatasetSource)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("s3://bucket/train", {}, "s3:// is not supported yet"),
        (17, {}, "int: give a path"),
        ({"a": 1}, {}, "dict: give a path"),
        (b"/path", {}, "bytes: give a path"),
        (ArraySource(np.zeros(3)), {"labels": np.zeros(3)}, "is a source already"),
        ((np.zeros(3), np.zeros(3)), {"labels": np.zeros(3)}, "twice"),
        (([1, 2], [3, 4]), {}, "TensorDataset"),
        ([1, 2], {"labels": [1, 2]}, "a dataset returns"),
        ("/nowhere", {"labels": np.zeros(3)}, "labels of a path"),
        ("/nowhere", {}, "does not exist"),
        ("/nowhere/x.tar", {}, "does not exist"),
    ],
)
def test_what_cannot_work_is_said(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_source(data, **options)
