"""Policies as keys: the lowest key leaves; the keys of the absent are the ghost list.

`Holding` counts bytes and keeps `resident` true; `Ranked` adds the order of leaving. A policy is then its key
and perhaps its admission rule: a screenful (see classic.py). Neither knows why a key is high.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from augury.ids import NONE, Ids, Mask, Scores, Times, first_seen
from augury.policies.front import Front


def fitting(sizes: NDArray[np.int64], free: int) -> Mask:
    """Which of these, taken in order, fit into `free` bytes; one too large does not stop the next."""
    total = np.cumsum(sizes)
    if len(sizes) == 0 or total[-1] <= free:
        return np.ones(len(sizes), np.bool_)
    fits = total <= free
    free -= int(total[np.count_nonzero(fits) - 1]) if fits[0] else 0
    left = np.flatnonzero(~fits & (sizes <= free))
    while len(left):
        total = np.cumsum(sizes[left])
        count = int(np.searchsorted(total, free, side="right"))
        fits[left[:count]] = True
        free -= int(total[count - 1]) if count else 0
        left = left[count:]
        left = left[sizes[left] <= free]  # whoever does not fit now never will
    return fits


class Holding:
    """What is held, in bytes; the answers of a policy that has nothing special to say."""

    prefetches = refills = False
    packages: Sequence[Ids] = ()

    def __init__(self, sizes: NDArray[np.int64], capacity: int, rng: np.random.Generator | None = None) -> None:
        # Equal sizes are kept as one number that looks like an array: bytes are then counted without looking at ids.
        equal = len(sizes) > 0 and bool((sizes == sizes[0]).all())
        self.sizes = np.broadcast_to(sizes[:1], len(sizes)) if equal else sizes
        self._each: int | None = int(sizes[0]) if equal else None
        self.capacity = int(capacity)
        self.used = 0
        self.held = 0
        self.resident: Mask = np.zeros(len(sizes), np.bool_)

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> Ids:
        return NONE

    def serve(self, ids: Ids, job: int = 0) -> Ids:
        return ids

    def wanted(self, budget: int) -> Ids:
        return NONE

    def learn(self, ids: Ids, scores: Scores, kin: Ids | None = None) -> None:
        pass

    def progress(self, done: float, spreads: Sequence[float], accuracies: Sequence[float]) -> None:
        pass

    @property
    def gauges(self) -> Mapping[str, float]:
        return {}

    def forget(self, ids: Ids) -> None:
        self._release(first_seen(ids[self.resident[ids]]))

    def adopt(self, ids: Ids) -> Ids:
        ids = first_seen(ids[~self.resident[ids]])
        fits = self._fill(ids)
        self._hold(ids[fits])
        return ids[~fits]

    def leave(self, job: int) -> None:
        pass

    def _fill(self, ids: Ids) -> Mask:
        """Which of the ids, taken in order, fit into the free space; one too large does not stop the next."""
        return fitting(self.sizes[ids], self.capacity - self.used)

    def _bytes(self, ids: Ids) -> int:
        return int(self.sizes[ids].sum()) if self._each is None else self._each * len(ids)

    def _hold(self, ids: Ids) -> None:
        self.resident[ids] = True
        self.used += self._bytes(ids)
        self.held += len(ids)

    def _release(self, ids: Ids) -> None:
        self.resident[ids] = False
        self.used -= self._bytes(ids)
        self.held -= len(ids)


class Ranked(Holding):
    """The lowest key leaves.

    A newcomer pushes out the lowest keys until it fits. With `bypass` it must itself have a higher key (or an
    equal one) than those it pushes out, otherwise it is not admitted; without, the last newcomer of a batch
    always stays. At batch size 1 this is the textbook algorithm of the key; a larger batch is decided as a
    whole: of the residents and the newcomers together the lowest keys leave.
    """

    bypass = False
    loyal = False
    """Whether of equal keys the resident stays, so that nobody is exchanged in vain."""

    def __init__(self, sizes: NDArray[np.int64], capacity: int, rng: np.random.Generator | None = None) -> None:
        super().__init__(sizes, capacity, rng)
        self.key = np.zeros(len(sizes), np.float64)
        self._front = Front(self.key, self.resident)

    def _enter(self, ids: Ids) -> None:
        """Give newcomers their keys, where serving them has not done so."""

    def _left(self, ids: Ids) -> None:
        """Residents `ids` leave, lowest key first: a last look at their keys."""

    def admit(self, ids: Ids) -> tuple[Mask, Ids]:
        self._enter(ids)
        kept, newcomers = self._admissible(ids)
        need = self.used + self._bytes(newcomers) - self.capacity
        evicted = NONE
        if need > 0:
            stays, evicted = self._contest(newcomers, need)
            newcomers = newcomers[stays]
            kept[kept] = stays
            self._left(evicted)
            self._release(evicted)
        self._hold(newcomers)
        self._front.note(newcomers)
        return kept, evicted

    def _admissible(self, ids: Ids) -> tuple[Mask, Ids]:
        """Those that are not larger than the whole."""
        if self._each is not None:
            fits = self._each <= self.capacity
            return np.full(len(ids), fits), ids if fits else NONE
        kept = self.sizes[ids] <= self.capacity
        return kept, ids if kept.all() else ids[kept]

    def adopt(self, ids: Ids) -> Ids:
        ids = first_seen(ids[~self.resident[ids]])
        self._enter(ids)
        rejected = super().adopt(ids)
        self._front.restart()
        return rejected

    def resize(self, capacity: int) -> Ids:
        self.capacity = int(capacity)
        evicted, _ = self._lowest(self.used - self.capacity)
        self._left(evicted)
        self._release(evicted)
        return evicted

    def _contest(self, newcomers: Ids, need: int) -> tuple[Mask, Ids]:
        """Which newcomers stay and which residents leave so that `need` bytes are given back."""
        victims, given = self._lowest(need)
        key_in, key_out = self.key[newcomers], self.key[victims]
        if not self.bypass:
            key_in[-1] = np.inf
        if self.loyal:
            key_in = np.nextafter(key_in, -np.inf)
        stays = np.ones(len(newcomers), np.bool_)
        if len(victims) and given >= need and key_in.min() >= key_out[-1]:
            return stays, victims
        # Stable, residents first: at equal keys the resident leaves and the newcomer stays.
        order = np.concatenate([key_out, key_in]).argsort(kind="stable")
        out = order[: self._enough(np.concatenate([victims, newcomers])[order], need)]
        rejected = out[out >= len(victims)] - len(victims)
        stays[rejected] = False
        # Where large newcomers stayed out, residents that were to make room for them need not leave.
        return stays, victims[: self._enough(victims, need - self._bytes(newcomers[rejected]))]

    def _enough(self, ids: Ids, need: int) -> int:
        """How many of the ids, from the first on, give back `need` bytes."""
        if need <= 0:
            return 0
        if self._each is not None:
            return -(-need // self._each)
        return 1 + int(self.sizes[ids].cumsum().searchsorted(need))

    def _lowest(self, need: int) -> tuple[Ids, int]:
        """The lowest residents, just so many that they free `need` bytes (or all), and what they free."""
        if need <= 0 or self.used == 0:  # residents of no size give nothing back
            return NONE, 0
        count = -(-need * self.held // self.used)  # exact where all sizes are equal
        while True:
            victims = self._front.lowest(count)
            given = self._bytes(victims)
            if len(victims) < count or given >= need:
                victims = victims[: self._enough(victims, need)]
                return victims, min(given, self._bytes(victims))
            count *= 2
