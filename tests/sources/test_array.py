"""Arrays and memory maps as sources."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from augury.errors import ConfigError
from augury.sources import Form
from augury.sources.array import ArraySource
from augury.testing.sources import Made, SourceContract


class TestContract(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        features = np.random.default_rng(0).random((9, 3, 2), np.float32)
        return ArraySource(features, np.arange(9)), [row.tobytes() for row in features]


class TestMemmap(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        features = np.random.default_rng(0).integers(0, 255, (2000, 7), np.uint8)
        np.save(tmp_path / "x.npy", features)
        return ArraySource(np.load(tmp_path / "x.npy", mmap_mode="r")[1500:1520]), [
            row.tobytes() for row in features[1500:1520]
        ]


class TestStrided(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        features = np.arange(60).reshape(6, 10)[:, ::2]
        return ArraySource(features), [row.tobytes() for row in features]


class TestFlat(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        features = np.arange(5, dtype=np.int64).astype("datetime64[s]")
        return ArraySource(features), [row.tobytes() for row in features]


class TestNoBytes(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        return ArraySource(np.zeros((5, 0))), [b""] * 5


def test_rows_are_views() -> None:
    features = np.zeros((4, 2), np.uint8)
    (row,) = ArraySource(features).read(np.array([2]))
    features[2] = 7
    assert isinstance(row, memoryview)
    assert row.format == "B"
    assert bytes(row) == b"\7\7"


def test_the_form_and_one_request() -> None:
    source = ArraySource(np.zeros((4, 2, 3), np.float32), np.zeros((4, 5)))
    assert source.form == Form(np.dtype(np.float32), (2, 3))
    assert [group.tolist() for group in source.requests(np.array([3, 1]))] == [[3, 1]]
    assert source.catalog.labels is not None
    assert source.catalog.labels.shape == (4, 5)


def test_the_fingerprint_is_of_the_content() -> None:
    features = np.arange(12).reshape(4, 3)
    same, other = ArraySource(features.copy()), ArraySource(features + 1)
    assert ArraySource(features).catalog.fingerprint == same.catalog.fingerprint
    assert ArraySource(features).catalog.fingerprint != other.catalog.fingerprint
    assert ArraySource(features.reshape(2, 6)).catalog.fingerprint != same.catalog.fingerprint


def test_a_memory_map_travels_by_name(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(100_000).reshape(1000, 100))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    source, part = ArraySource(mapped), ArraySource(mapped[500:])
    pickled = pickle.dumps(part)
    assert len(pickled) < 2000
    twin = pickle.loads(pickled)
    assert bytes(twin.read(np.array([3]))[0]) == mapped[503].tobytes()
    assert source.catalog.location(7) == f"{tmp_path}/x.npy[7]"
    assert source.catalog.fingerprint != part.catalog.fingerprint


def test_changes_that_only_memory_knows_travel_as_content(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 3), np.uint8))
    features = np.load(tmp_path / "x.npy", mmap_mode="c")
    features[1] = 9
    twin = pickle.loads(pickle.dumps(ArraySource(features)))
    assert bytes(twin.read(np.array([1]))[0]) == b"\x09\x09\x09"


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.array([None, 1]), None, "object"),
        (np.zeros((3, 2)), np.zeros(4), r"3 samples but labels of shape \(4,\)"),
        (np.zeros((0, 2)), None, "no samples"),
        (np.float32(1), None, "NumPy array"),
        (np.array(1), None, "no samples"),
        ([1, 2], None, "NumPy array"),
        (np.zeros(2), [object(), object()], "plain numbers"),
    ],
)
def test_what_cannot_work_is_said(features: np.ndarray, labels: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ArraySource(features, labels)  # type: ignore[arg-type]
