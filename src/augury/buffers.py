"""Buffers that batches are made in, used again once nobody refers to them any more.

Fresh memory costs more than the copy into it: the operating system zeroes every page. A batch handed out belongs
to the user, so a buffer is free again only when the user has dropped every array or tensor that shows it.
"""

from __future__ import annotations

import math
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from augury.errors import AuguryWarning

Bytes = NDArray[np.uint8]

_ALONE = 2
"""References to a buffer that nobody uses: the pool's list, and the argument of getrefcount itself."""


def plain(nbytes: int) -> Bytes:
    """Ordinary memory."""
    return np.empty(nbytes, np.uint8)


class BufferPool:
    """Hands out arrays. Any thread may call it. With `keep=0` every buffer is fresh, and its allocator's to reuse."""

    def __init__(self, allocate: Callable[[int], Bytes] = plain, keep: int = 16) -> None:
        self._allocate, self._keep = allocate, keep
        self.reuses = keep > 0
        self._buffers: list[Bytes] = []
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array with arbitrary content. Every view of it, and every tensor made from it, keeps it in use."""
        kind = np.dtype(dtype)
        nbytes = kind.itemsize * math.prod(shape)
        if not self.reuses:
            buffer = self._allocate(nbytes)
        else:
            with self._lock:
                buffer = self._free(nbytes)
        return buffer[:nbytes].view(kind).reshape(shape)

    def _free(self, nbytes: int) -> Bytes:
        for at in range(len(self._buffers)):
            if sys.getrefcount(self._buffers[at]) == _ALONE and nbytes <= self._buffers[at].nbytes <= 2 * nbytes:
                return self._buffers[at]
        fresh = self._allocate(nbytes)
        self._buffers.append(fresh)
        # What leaves the list is freed when its user is done with it.
        del self._buffers[: -self._keep]
        return fresh


def pinned_buffers() -> BufferPool:
    """Memory that a device reads without an extra copy, where there is a device.

    Not reused by us: a copy to the device may still run when the batch is dropped. torch, which reuses such memory
    itself, knows when it has ended.
    """
    import torch

    if not torch.cuda.is_available():
        warnings.warn("pin_memory=True has no effect: torch finds no CUDA device", AuguryWarning, stacklevel=3)
        return BufferPool()

    def allocate(nbytes: int) -> Bytes:
        pinned: Bytes = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
        return pinned

    return BufferPool(allocate, keep=0)
