"""The memory tier: the contract for both storages, and what only a matrix can do."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from augury.errors import Closed
from augury.ids import as_ids
from augury.testing import TierContract
from augury.tiers import Tier
from augury.tiers.memory import BufferTier, MatrixTier, memory_tier


class TestBufferTier(TierContract):
    def make(self, tmp_path: Path, sizes: NDArray[np.int64], capacity: int) -> Tier:
        return memory_tier(len(sizes), sizes, capacity)

    def test_keeps_bytes_by_reference(self) -> None:
        tier = memory_tier(3, np.full(3, 5), 15)
        item = b"abcde"
        tier.write(as_ids([1]), [item])
        assert tier.read(as_ids([1]))[0] is item

    def test_smaller_than_the_catalog_says(self) -> None:
        tier = memory_tier(3, np.full(3, 5), 10)
        tier.write(as_ids([0, 1]), [b"a", b""])
        assert tier.read(as_ids([0, 1])) == [b"a", b""]
        assert tier.holds(as_ids([0, 1, 2])).tolist() == [True, True, False]


class TestMatrixTier(TierContract):
    uniform = 300

    def make(self, tmp_path: Path, sizes: NDArray[np.int64], capacity: int) -> Tier:
        return memory_tier(len(sizes), sizes, capacity, uniform_size=300)


def matrix(samples: int, size: int, capacity: int) -> MatrixTier:
    tier = memory_tier(samples, np.broadcast_to(np.int64(size), samples), capacity, uniform_size=size)
    assert isinstance(tier, MatrixTier)
    return tier


def table(ids: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    return np.stack([np.random.default_rng(id).integers(0, 256, size, np.uint8) for id in ids.tolist()])


def test_take_gathers_a_batch() -> None:
    ids = as_ids([5, 1, 8])
    with closing(matrix(10, 33, 33 * 4)) as tier:
        tier.write(ids, table(ids, 33))
        out = np.zeros((4, 33), np.uint8)
        tier.take(as_ids([8, 5, 8, 1]), out)
        assert (out == table(as_ids([8, 5, 8, 1]), 33)).all()


def test_take_leaves_absent_rows_to_the_caller() -> None:
    with closing(matrix(10, 33, 33 * 4)) as tier:
        tier.write(as_ids([5]), table(as_ids([5]), 33))
        ids, out = as_ids([2, 5, 9]), np.zeros((3, 33), np.uint8)
        assert tier.take(ids, out).tolist() == [False, True, False]
        assert tier.holds(ids).tolist() == [False, True, False]
        assert (out[1] == table(as_ids([5]), 33)[0]).all()


@pytest.mark.parametrize("size", [0, 7])
def test_take_from_a_tier_without_room(size: int) -> None:
    with closing(matrix(4, size, 0)) as tier:
        out = np.zeros((2, size), np.uint8)
        assert not tier.take(as_ids([0, 3]), out).any()
        assert not tier.holds(as_ids([0, 3])).any()


def test_empty_samples_cost_nothing() -> None:
    with closing(matrix(4, 0, 0)) as tier:
        tier.write(np.arange(4), np.zeros((4, 0), np.uint8))
        assert tier.read(np.arange(4)) == [b""] * 4


def test_a_matrix_of_another_width_is_refused() -> None:
    with closing(matrix(4, 7, 28)) as tier, pytest.raises(ValueError, match="7 bytes"):
        tier.write(as_ids([1]), np.zeros((1, 8), np.uint8))


def test_some_held_some_new_in_one_write() -> None:
    with closing(matrix(10, 5, 15)) as tier:
        tier.write(as_ids([4, 2]), np.zeros((2, 5), np.uint8))
        ids = as_ids([2, 9, 4])
        tier.write(ids, table(ids, 5))
        out = np.zeros((3, 5), np.uint8)
        tier.take(ids, out)
        assert (out == table(ids, 5)).all()


def test_rows_are_never_shared_under_churn() -> None:
    rng = np.random.default_rng(0)
    held: dict[int, Any] = {}
    with closing(matrix(100, 9, 9 * 30)) as tier:
        for _ in range(200):
            leaving = rng.permutation(list(held))[: rng.integers(0, 12)].astype(np.int64)
            tier.drop(leaving)
            for id in leaving.tolist():
                del held[id]
            absent = np.setdiff1d(np.arange(100), list(held))
            coming = rng.permutation(absent)[: min(rng.integers(0, 12), 30 - len(held))]
            if len(coming):
                tier.write(coming, table(coming, 9))
                held.update(zip(coming.tolist(), table(coming, 9), strict=True))
            ids = as_ids(sorted(held))
            out = np.empty((len(ids), 9), np.uint8)
            tier.take(ids, out)
            assert all((row == held[id]).all() for id, row in zip(ids.tolist(), out, strict=True))


def test_closed_matrix() -> None:
    tier = matrix(4, 7, 28)
    tier.close()
    with pytest.raises(Closed):
        tier.take(as_ids([1]), np.empty((1, 7), np.uint8))
    with pytest.raises(Closed):
        tier.holds(as_ids([1]))


def test_factory_chooses() -> None:
    assert isinstance(memory_tier(3, np.array([1, 2, 3]), 10), BufferTier)
    assert isinstance(memory_tier(3, np.array([2, 2, 2]), 10, uniform_size=2), MatrixTier)
