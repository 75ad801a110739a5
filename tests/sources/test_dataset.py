"""Wrapped datasets: items come back as they were, bad ones are named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augury import encoding
from augury.errors import ConfigError, Unreadable
from augury.sources.dataset import DatasetSource
from augury.testing.sources import Made, SourceContract

torch = pytest.importorskip("torch")


class Lazy:
    """A dataset out of a function."""

    def __init__(self, length: int, function: Callable[[int], Any]) -> None:
        self.length, self.function, self.asked = length, function, []

    asked: list[int]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return self.function(index)


def pair(index: int) -> tuple[Any, int]:
    return np.full(index + 1, index, np.float32), index % 3


class TestContract(SourceContract):
    sizes_are_bounds = True

    def make(self, tmp_path: Path) -> Made:
        return DatasetSource(Lazy(20, pair)), [encoding.encode(pair(index)) for index in range(20)]


class TestTorch(SourceContract):
    sizes_are_bounds = True

    def make(self, tmp_path: Path) -> Made:
        dataset = torch.utils.data.TensorDataset(torch.arange(24).reshape(8, 3), torch.arange(8))
        return DatasetSource(dataset), [encoding.encode(dataset[index]) for index in range(8)]


def test_items_come_back(tmp_path: Path) -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(24).reshape(8, 3), torch.arange(8))
    source = DatasetSource(dataset)
    (data,) = source.read(np.array([5]))
    assert not isinstance(data, Unreadable)
    x, y = source.decode(data)
    assert torch.equal(x, torch.tensor([15, 16, 17]))
    assert int(y) == 5
    assert source.self_labelled


def test_only_pairs_label_themselves() -> None:
    assert not DatasetSource([b"a", b"b"]).self_labelled
    assert not DatasetSource([[1, 2], [3, 4]]).self_labelled
    assert not DatasetSource([(1, 2), (1, 2, 3)]).self_labelled


def test_the_size_is_the_largest_of_a_few_probes() -> None:
    dataset = Lazy(1000, pair)
    source = DatasetSource(dataset)
    assert dataset.asked[0] == 0
    assert dataset.asked[-1] == 999
    assert len(dataset.asked) == 16
    assert source.catalog.uniform_size == len(encoding.encode(pair(999)))
    assert DatasetSource(dataset, item_bytes=77).catalog.uniform_size == 77


def test_larger_items_than_reckoned_are_read_all_the_same() -> None:
    source = DatasetSource(Lazy(5, pair), item_bytes=1)
    assert [len(data) for data in source.read(np.arange(5)) if not isinstance(data, Unreadable)] == [
        len(encoding.encode(pair(index))) for index in range(5)
    ]


def test_classes_are_kept() -> None:
    dataset = Lazy(4, pair)
    dataset.classes = ["a", "b"]  # type: ignore[attr-defined]
    assert DatasetSource(dataset).catalog.classes == ("a", "b")


def fail_at_3(index: int) -> tuple[Any, int]:
    if index == 3:
        raise KeyError("corrupt")
    return pair(index)


def test_a_bad_item_is_named_and_spoils_no_other() -> None:
    source = DatasetSource(Lazy(10, fail_at_3))
    good, bad, also_good = source.read(np.array([2, 3, 4]))
    assert isinstance(bad, Unreadable)
    assert (bad.id, bad.location, bad.transient) == (3, "Lazy[3]", False)
    assert "KeyError: 'corrupt'" in str(bad)
    assert isinstance(bad.__cause__, KeyError)
    assert not isinstance(good, Unreadable)
    assert not isinstance(also_good, Unreadable)


def test_types_without_an_encoding_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"Lazy\[0\] holds an item of type builtins\.set.*convert it in the dataset"):
        DatasetSource(Lazy(10, lambda index: {index}))


def test_a_strange_item_among_others_is_unreadable() -> None:
    source = DatasetSource(Lazy(1000, lambda index: {1} if index == 1 else index))
    (bad,) = source.read(np.array([1]))
    assert isinstance(bad, Unreadable)
    assert "set" in str(bad)
    assert isinstance(bad.__cause__, ConfigError)


def test_what_cannot_work_is_said() -> None:
    with pytest.raises(ConfigError, match="is empty"):
        DatasetSource([])
    with pytest.raises(ConfigError, match="no length"):
        DatasetSource(iter([1]))
    with pytest.raises(ConfigError, match="item_bytes"):
        DatasetSource([1], item_bytes=0)
    with pytest.raises(ConfigError, match=r"no item .* can be read.*ZeroDivisionError"):
        DatasetSource(Lazy(3, lambda index: 1 // 0))


def test_the_fingerprint_sees_items_length_and_version() -> None:
    prints = [
        DatasetSource(dataset, version=version).catalog.fingerprint
        for dataset, version in (([1, 2], ""), ([1, 3], ""), ([1, 2, 2], ""), ([1, 2], "v2"))
    ]
    assert len(set(prints)) == 4
    assert DatasetSource([1, 2]).catalog.fingerprint == prints[0]


def test_torch_is_not_loaded() -> None:
    code = (
        "import sys; from augury.sources import open_source; s = open_source([(b'x', 1), (b'y', 2)]);"
        "s.decode(s.read([0])[0]); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
