"""The textbook policies, each as a key over `Ranked`: LRU, LFU, FIFO, random, MIN; and MinIO, never evicting.

None of them looks at scores. What they are compared with lives in the papers' own modules beside this one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.ids import NONE, Ids, Mask, Times, uses
from augury.policies.ranking import Holding, Ranked


class Nothing(Holding):
    """Holds nothing: what training costs without a cache."""

    def admit(self, ids: Ids) -> tuple[Mask, Ids]:
        return np.zeros(len(ids), np.bool_), NONE

    def adopt(self, ids: Ids) -> Ids:
        return ids

    def resize(self, capacity: int) -> Ids:
        self.capacity = int(capacity)
        return NONE


class LRU(Ranked):
    """The least recently used leaves: the key is the time of use, in requests."""

    _now = 0

    def serve(self, ids: Ids, job: int = 0) -> Ids:
        # The new keys are above all others, so the front need not be told: it passes over outdated entries.
        self.key[ids] = np.arange(self._now, self._now + len(ids))
        self._now += len(ids)
        return ids


class FIFO(Ranked):
    """The longest held leaves: the key is the time of entry."""

    _now = 0

    def _enter(self, ids: Ids) -> None:
        self.key[ids] = np.arange(self._now, self._now + len(ids))
        self._now += len(ids)


class LFU(Ranked):
    """The least often used since it was admitted leaves; of equals, the least recently used."""

    _now = 0
    _TICK = 2.0**-33
    """The time of use is the fraction of the key: it orders equal counts for eight billion requests."""

    def serve(self, ids: Ids, job: int = 0) -> Ids:
        held = ids[self.resident[ids]]
        counts = np.floor(self.key[held])
        self.key[held] = counts
        np.add.at(self.key, held, 1.0)  # an id may stand several times in one batch
        self._stamp(held)
        self._front.note(held)  # above their old keys, but not above all
        return ids

    def _enter(self, ids: Ids) -> None:
        self.key[ids] = 1.0
        self._stamp(ids)

    def _stamp(self, ids: Ids) -> None:
        fraction = np.arange(self._now, self._now + len(ids)) * self._TICK
        self.key[ids] = np.floor(self.key[ids]) + np.minimum(fraction, 1 - self._TICK)
        self._now += len(ids)


class Random(Ranked):
    """A resident chosen uniformly leaves.

    As a key: the time at which the resident would die of itself, its lifetime exponentially distributed.
    That distribution has no memory: whoever dies next is a uniform choice, however long each was held.
    """

    _clock = 0.0

    def __init__(self, sizes: NDArray[np.int64], capacity: int, rng: np.random.Generator | None = None) -> None:
        super().__init__(sizes, capacity, rng)
        self._rng = rng or np.random.default_rng()

    def _enter(self, ids: Ids) -> None:
        self.key[ids] = self._clock + self._rng.exponential(size=len(ids))

    def _left(self, ids: Ids) -> None:
        if len(ids):
            self._clock = max(self._clock, float(self.key[ids[-1]]))

    def admit(self, ids: Ids) -> tuple[Mask, Ids]:
        kept, evicted = super().admit(ids)
        if len(evicted):
            # Whoever stays lives from now on: the last newcomer may have stayed past its time.
            overdue = ids[kept & (self.key[ids] < self._clock)]
            if len(overdue):
                self._enter(overdue)
                self._front.note(overdue)
        return kept, evicted


class MinIO(Holding):
    """Fill, then never evict: the hit ratio of shuffled epochs is the cached fraction, exactly.

    Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021 (CoorDL).
    """

    def admit(self, ids: Ids) -> tuple[Mask, Ids]:
        kept = self._fill(ids)
        self._hold(ids[kept])
        return kept, NONE

    def resize(self, capacity: int) -> Ids:
        self.capacity = int(capacity)
        held = np.flatnonzero(self.resident)
        given = np.cumsum(self.sizes[held])
        need = self.used - self.capacity
        evicted = held[: int(np.searchsorted(given, need)) + 1] if need > 0 else NONE
        self._release(evicted)
        return evicted


class MIN(Ranked):
    """The one needed furthest in the future leaves, and a newcomer needed later than all stays out.

    Belady, "A study of replacement algorithms for a virtual-storage computer", 1966. Optimal for samples of
    one size over the planned order, which `serve` must follow; what is beyond the plan counts as never used.
    """

    bypass = True
    _UNKNOWN = np.uint32(0xFFFFFFFF)
    """Not needed again, as far as is known. In keys the id is added: who leaves first must not be chance."""

    def __init__(self, sizes: NDArray[np.int64], capacity: int, rng: np.random.Generator | None = None) -> None:
        super().__init__(sizes, capacity, rng)
        self._job = 0
        self._at = 0
        self._after = np.empty(0, np.uint32)

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> Ids:
        if len(self._after) and job != self._job:
            raise ConfigError(
                f"min plans for one job, and job {self._job} has planned already: give job {job} a cache of its own"
            )
        if len(later):
            order = np.concatenate([order, later])
        if len(order) >= self._UNKNOWN:
            raise ConfigError(f"min plans at most {self._UNKNOWN - 1:,} requests ahead, not {len(order):,}")
        samples = len(self.resident)
        self._job, self._at = job, 0
        first, self._after = uses(order, samples, np.uint32)
        self._set(slice(None), first)
        self._front.restart()
        return NONE

    def serve(self, ids: Ids, job: int = 0) -> Ids:
        if job != self._job:
            return ids  # no part of the plan: what is known of these ids still holds
        after = self._after[self._at : self._at + len(ids)]
        if len(after) < len(ids):
            after = np.append(after, np.full(len(ids) - len(after), self._UNKNOWN))
        self._at += len(ids)
        self._set(ids, after)
        self._front.note(ids[self.resident[ids]])
        return ids

    def _set(self, ids: Ids | slice, uses: NDArray[Any]) -> None:
        """Keys from next uses."""
        keys = -uses.astype(np.float64)
        unknown = uses == self._UNKNOWN
        if unknown.any():
            keys[unknown] -= np.flatnonzero(unknown) if isinstance(ids, slice) else ids[unknown]
        self.key[ids] = keys

    def _enter(self, ids: Ids) -> None:
        # For one that is not needed again nobody need leave, not even another such one.
        unneeded = ids[self.key[ids] <= -float(self._UNKNOWN)]
        self.key[unneeded] -= len(self.key)

    def leave(self, job: int) -> None:
        if job == self._job:
            self._after = np.empty(0, np.uint32)
            self._set(slice(None), np.full(len(self.key), self._UNKNOWN))
            self._front.restart()
