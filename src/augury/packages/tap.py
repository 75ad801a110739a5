"""Bytes that pass by on their way to training and are still to be packed: kept, so that nobody reads them twice.

Whose bytes to keep is said beforehand; the tap takes them as they come, up to a budget. Nothing is read here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from augury.errors import Unreadable
from augury.ids import Ids, as_ids
from augury.sources import Buffer


class Tap:
    """Any thread may call it. Costs a byte per sample of the dataset, and never more than `budget` bytes of samples."""

    def __init__(self, samples: int, budget: int) -> None:
        self.budget = budget
        self._wanted = np.zeros(samples, np.bool_)
        self._open = False
        self._held: dict[int, bytes] = {}
        self._used = 0
        self._lock = threading.Lock()

    @property
    def bytes_used(self) -> int:
        """Of what is held."""
        return self._used

    def want(self, ids: Ids) -> None:
        """Keep the bytes of these when they pass by."""
        with self._lock:
            self._wanted[ids] = True
            self._open = True

    def offer(self, ids: Ids, data: Iterable[Buffer | Unreadable]) -> None:
        """Bytes that pass by; those wanted are kept, as far as the budget goes."""
        if not self._open:
            return
        wanted = self._wanted[ids]
        if not wanted.any():
            return
        for id, item, keep in zip(ids.tolist(), data, wanted.tolist(), strict=True):
            if keep and not isinstance(item, Unreadable):
                self._keep(id, item)

    def take(self, ids: Ids) -> dict[int, bytes]:
        """Hand over what is held of these; they are wanted no more."""
        with self._lock:
            self._wanted[ids] = False
            found = {id: self._held.pop(id) for id in ids.tolist() if id in self._held}
            self._used -= sum(map(len, found.values()))
        return found

    def shut(self) -> tuple[Ids, list[bytes]]:
        """Want nothing, and hand over all that is held."""
        with self._lock:
            self._wanted[:] = False
            self._open = False
            held, self._held, self._used = self._held, {}, 0
        return as_ids(list(held)), list(held.values())

    def _keep(self, id: int, item: Buffer) -> None:
        size = memoryview(item).nbytes
        with self._lock:
            if self._wanted[id] and self._used + size <= self.budget:
                # `bytes` by reference; a view is copied, as it would keep alive what it shows a part of.
                self._held[id] = bytes(item)
                self._used += size
                self._wanted[id] = False
