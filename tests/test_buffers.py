"""Buffers are used again only when nobody can see them."""

from __future__ import annotations

import numpy as np
import torch

from augury.buffers import BufferPool


def address(array):
    return array.__array_interface__["data"][0]


def test_a_dropped_buffer_is_used_again():
    pool = BufferPool()
    first = pool.take((4, 8), np.float32)
    where = address(first)
    del first
    assert address(pool.take((4, 8), np.float32)) == where


def test_any_view_or_tensor_keeps_a_buffer_in_use():
    pool = BufferPool()
    first = pool.take((4, 8), np.uint8)
    where = address(first)
    for keep in (
        lambda a: a[1:2],
        lambda a: a.view(np.int16),
        lambda a: torch.from_numpy(a)[0],
        lambda a: memoryview(a),
    ):
        kept = keep(first)
        del first
        other = pool.take((4, 8), np.uint8)
        assert address(other) != where
        del kept, other
        first = pool.take((4, 8), np.uint8)
        assert address(first) == where


def test_the_pool_keeps_a_bounded_number_and_fits_sizes():
    pool = BufferPool(keep=2)
    held = [pool.take((10,), np.uint8) for _ in range(5)]
    assert len({address(array) for array in held}) == 5
    large = pool.take((1000,), np.uint8)
    assert large.nbytes == 1000
    assert pool.take((0, 3), np.uint8).shape == (0, 3)
