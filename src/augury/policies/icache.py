"""What to hold by importance, in two parts: iCache's H-cache of important samples and L-cache of stand-ins.

Chen et al., "iCache: An Importance-Sampling-Informed Cache for Accelerating I/O-Bound DNN Model Training", HPCA 2023,
sections III-A to III-C and Algorithm 1. Which L-samples lie in one package is decided in packing.py; their bytes are
moved elsewhere. docs/recipes/icache.md lists where this differs from the paper and why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from augury.ids import NONE, Ids, Mask, Scores, Times, first_seen
from augury.policies.importance import ByImportance
from augury.policies.packing import Packing
from augury.policies.ranking import Holding, fitting

HIGH = 0.7
"""The share of the samples an epoch visits that is on its H-list; the paper's public code has 0.7."""
START = 0.9
"""The part of the cache that is H-cache until accesses are known."""
PACKAGE = 1 << 20
"""Bytes of a package, at least; of a cache below ten of them, a tenth of the cache."""
HANDFUL = 1 << 9
"""So many that may stand in are looked at together: some have left, and to look at all each time would take long."""


class _Low(Holding):
    """The L-cache: who was used in this epoch leaves first; nobody leaves before that for a newcomer."""

    def __init__(self, sizes: NDArray[np.int64], capacity: int) -> None:
        super().__init__(sizes, capacity)
        self.spent = np.zeros(len(sizes), np.bool_)
        """Residents that were used in this epoch."""
        self._line: deque[Ids] = deque()
        self._spent_bytes = 0

    @property
    def room(self) -> int:
        """Bytes that are free or can be had from those who were used."""
        return self.capacity - self.used + self._spent_bytes

    def renew(self) -> None:
        """An epoch begins: nobody was used in it."""
        self.spent[:] = False
        self._line.clear()
        self._spent_bytes = 0

    def use(self, ids: Ids) -> None:
        """Residents that are used."""
        fresh = first_seen(ids[self.resident[ids] & ~self.spent[ids]])
        if len(fresh):
            self.spent[fresh] = True
            self._line.append(fresh)
            self._spent_bytes += self._bytes(fresh)

    def take(self, ids: Ids, used: Mask) -> tuple[Mask, Ids]:
        """Newcomers: which stay, and who leaves for them. Those that were used already find free room, or none."""
        evicted = self.give(self.used + self._bytes(ids[~used]) - self.capacity, spent_only=True)
        first = np.argsort(used, kind="stable")
        kept = np.zeros(len(ids), np.bool_)
        kept[first] = fitting(self.sizes[ids[first]], self.capacity - self.used)
        self._hold(ids[kept])
        self.use(ids[kept & used])
        return kept, evicted

    def give(self, need: int, spent_only: bool = False) -> Ids:
        """Who leaves so that `need` bytes are given back (or all): first those that were used, the earliest first."""
        left: list[Ids] = [NONE]
        while need > 0 and self._line:
            ids = self._line.popleft()
            ids = ids[self.spent[ids]]  # the others were lost; they may be back, and not used since
            count = len(ids) if self._bytes(ids) <= need else 1 + int(self.sizes[ids].cumsum().searchsorted(need))
            if count < len(ids):
                self._line.appendleft(ids[count:])
            left.append(ids[:count])
            need -= self._bytes(ids[:count])
            self._release(ids[:count])
        if need > 0 and not spent_only:
            ids = np.flatnonzero(self.resident)
            ids = ids[: 1 + int(self.sizes[ids].cumsum().searchsorted(need))]
            left.append(ids)
            self._release(ids)
        return np.concatenate(left)

    def _release(self, ids: Ids) -> None:
        used = ids[self.spent[ids]]
        self._spent_bytes -= self._bytes(used)
        self.spent[used] = False
        super()._release(ids)


class _Job:
    """What one job does in its epoch."""

    def __init__(self, samples: int, before: _Job | None = None) -> None:
        self.may: Mask = np.zeros(samples, np.bool_) if before is None else before.may
        """Whom it has ever planned to visit: nobody else stands in, who may be held back for validation."""
        self.longest: int = 0 if before is None else before.longest
        """Visits of its longest epoch so far: that is one that visits everything."""
        self.high: Mask = np.ones(samples, np.bool_)
        """Its H-list; before an epoch is planned, everybody."""
        self.used: Mask = np.zeros(samples, np.bool_)
        self.due: Mask = np.zeros(samples, np.bool_)
        self.accesses = (0, 0)
        """Of the epoch: to H-samples and to L-samples."""
        self.missed: list[Ids] = []
        """L-samples for which another was served, or that had to be read alone."""
        self.pools: tuple[deque[Ids], deque[Ids]] = (deque(), deque())
        """Who may stand in: those that the epoch does not visit itself, and, after them, those that it does."""

    def offer(self, ids: Ids) -> None:
        """More residents that may stand in, in random order."""
        ids = ids[self.may[ids] & ~self.used[ids] & ~self.high[ids]]
        due = self.due[ids]
        for pool, part in zip(self.pools, (ids[~due], ids[due]), strict=True):
            pool.extend(part[start : start + HANDFUL] for start in range(0, len(part), HANDFUL))

    def take(self, count: int, resident: Mask) -> Ids:
        """Up to so many that stand in now."""
        taken = [NONE]
        for pool in self.pools:
            while count and pool:
                ids = pool.popleft()
                ids = ids[resident[ids] & ~self.used[ids]]
                if len(ids) > count:
                    pool.appendleft(ids[count:])
                taken.append(ids[:count])
                self.used[taken[-1]] = True  # they may be in line twice: lost, and brought again
                count -= len(taken[-1])
        return np.concatenate(taken)


class ICache:
    """H-cache and L-cache. H-samples are the more important of those that an epoch visits, all others L-samples.

    An H-sample is served as itself. An L-sample that is not held is replaced by another L-sample of the L-cache that
    was not used in this epoch, if there is one. The L-cache is filled with packages as its samples are used up; the
    H-cache with H-samples that were missed, for less important ones.
    """

    prefetches = False
    refills = packs = True

    def __init__(self, sizes: NDArray[np.int64], capacity: int, rng: np.random.Generator | None = None) -> None:
        self._rng = np.random.default_rng() if rng is None else rng
        self.capacity = int(capacity)
        self.resident: Mask = np.zeros(len(sizes), np.bool_)
        self._h, self._l = ByImportance(sizes, capacity), _Low(sizes, 0)
        self.sizes = self._h.sizes
        self._package = min(PACKAGE, self.capacity // 10)
        self.packing = Packing(self.sizes, self._package)
        self._jobs: dict[int, _Job] = {}
        self._high: Mask = np.ones(len(sizes), np.bool_)
        """Who is on any job's H-list."""
        self._low: Mask = np.zeros(len(sizes), np.bool_)
        """Who is on none, and visited by some job."""
        self._divide(START)

    @property
    def used(self) -> int:
        return self._h.used + self._l.used

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> Ids:
        self._h.plan(order)
        before = self._jobs.get(job)
        now = self._jobs[job] = _Job(len(self.sizes), before)
        now.may[order] = True
        now.longest = max(now.longest, len(order))
        now.high = self._list(order)
        now.due[order] = True
        often = np.ones(len(order), np.int64) if times is None else times
        high = int(often[now.high[order]].sum())
        now.accesses = high, int(often.sum()) - high
        self._note_jobs()
        self._l.renew()
        now.offer(self._rng.permutation(np.flatnonzero(self._l.resident)))
        if not self._high.all() and self._package:
            missed = first_seen(np.concatenate([NONE, *(() if before is None else before.missed)]))
            self.packing.repack(self._low, missed, self._rng)
            self.packing.line_up(now.due & ~self.resident, self._rng)
        return NONE

    def serve(self, ids: Ids, job: int = 0) -> Ids:
        self._h.serve(ids)
        now = self._jobs.get(job)
        if now is None:
            return ids
        now.due[ids] = False
        held = self.resident[ids]
        now.used[ids[held]] = True
        served = ids
        if not held.all():
            missed = np.flatnonzero(~held & ~now.high[ids])
            if len(missed):
                now.missed.append(ids[missed])
                instead = self._stand_ins(now, len(missed))
                served = ids.copy()
                served[missed[: len(instead)]] = instead
            now.used[served] = True
        self._l.use(served)
        return served

    def admit(self, ids: Ids) -> tuple[Mask, Ids]:
        high = self._high[ids]
        kept = np.zeros(len(ids), np.bool_)
        kept[high], left = self._admit_high(ids[high])
        kept[~high], gone = self._admit_low(ids[~high])
        evicted = np.concatenate([left, gone])
        self.resident[evicted] = False
        self.resident[ids[kept]] = True
        return kept, evicted

    def wanted(self, budget: int) -> Ids:
        """The next package, when there is room for one in the L-cache: those of it that are L-samples, and not used."""
        if self._package == 0 or self._l.room < self._package:
            return NONE
        room = min(budget, self._l.room)
        while (package := self.packing.next()) is not None:
            absent = package[~self.resident[package] & self._low[package]]
            for job in self._jobs.values():
                absent = absent[~job.used[absent]]
            absent = absent[fitting(self.sizes[absent], room)]
            if len(absent):
                return absent
        return NONE

    def learn(self, ids: Ids, scores: Scores, kin: Ids | None = None) -> None:
        self._h.learn(ids, scores)

    def progress(self, done: float, spreads: Sequence[float], accuracies: Sequence[float]) -> None:
        """The parts go by accesses, not by time."""

    @property
    def gauges(self) -> Mapping[str, float]:
        """The part of the cache that is for H-samples."""
        return {"h_part": self._h.capacity / max(1, self.capacity)}

    def resize(self, capacity: int) -> Ids:
        self.capacity = int(capacity)
        self._note_jobs()
        left = [self._l.give(min(self.used - self.capacity, self._l.used - self._l.capacity))]
        if self.used > self.capacity:
            target = self._h.capacity
            left.append(self._h.resize(max(0, self.capacity - self._l.used)))
            self._h.capacity = target
        evicted = np.concatenate(left)
        self.resident[evicted] = False
        return evicted

    def forget(self, ids: Ids) -> None:
        self._h.forget(ids)
        self._l.forget(ids)
        self.resident[ids] = False

    def adopt(self, ids: Ids) -> Ids:
        """All by importance: they were found before anything was planned, as a rule."""
        ids = first_seen(ids[~self.resident[ids]])
        target, self._h.capacity = self._h.capacity, self.capacity - self._l.used
        rejected = self._h.adopt(ids)
        self._h.capacity = target
        self.resident |= self._h.resident
        return rejected

    def leave(self, job: int) -> None:
        if self._jobs.pop(job, None) is not None:
            self._note_jobs()

    def _list(self, order: Ids) -> Mask:
        """The H-list: the more important part of those to be visited. Of equal importance, all."""
        high = np.zeros(len(self.sizes), np.bool_)
        if len(order):
            importance = self._h.importance[order]
            last = int((1 - HIGH) * len(order))
            high[order] = importance >= np.partition(importance, last)[last]
        return high

    def _note_jobs(self) -> None:
        """Who is on an H-list, and how the cache is divided: by how often jobs access H-samples and L-samples."""
        jobs = list(self._jobs.values())
        self._high = np.logical_or.reduce([job.high for job in jobs]) if jobs else np.ones_like(self.resident)
        self._low = ~self._high
        if jobs:
            self._low &= np.logical_or.reduce([job.may for job in jobs])
        high, low = (sum(counts) for counts in zip((0, 0), *(job.accesses for job in jobs), strict=True))
        self._divide(high / (high + low) if high + low else START)

    def _divide(self, high: float) -> None:
        low = max(self.capacity - round(high * self.capacity), min(self._package, self.capacity))
        self._l.capacity, self._h.capacity = low, self.capacity - low

    def _admit_high(self, ids: Ids) -> tuple[Mask, Ids]:
        if len(ids) == 0:
            return np.zeros(0, np.bool_), NONE
        target = self._h.capacity
        grows = min(int(self.sizes[ids].sum()), max(0, target - self._h.used))
        left = self._l.give(min(self._l.used - self._l.capacity, self.used + grows - self.capacity))
        self._h.capacity = max(0, min(target, self.capacity - self._l.used))
        over = self._h.resize(self._h.capacity)  # the newcomers may all be too large to contest
        kept, evicted = self._h.admit(ids)
        self._h.capacity = target
        return kept, np.concatenate([left, over, evicted])

    def _admit_low(self, ids: Ids) -> tuple[Mask, Ids]:
        if len(ids) == 0:
            return np.zeros(0, np.bool_), NONE
        left, target = NONE, self._l.capacity
        if self._h.used > self._h.capacity:
            left = self._h.resize(self._h.capacity)
        self._l.capacity = max(0, min(target, self.capacity - self._h.used))
        used = np.logical_or.reduce([job.used[ids] for job in self._jobs.values()] or [np.ones(len(ids), np.bool_)])
        kept, evicted = self._l.take(ids, used)
        self._l.capacity = target
        for job in self._jobs.values():
            job.offer(self._rng.permutation(ids[kept]))
        return kept, np.concatenate([left, evicted])

    def _stand_ins(self, job: _Job, count: int) -> Ids:
        return job.take(count, self._l.resident)

    @property
    def packages(self) -> Sequence[Ids]:
        """Which L-samples are to lie together."""
        return self.packing.packages


class FromHigh(ICache):
    """Stand-ins from the H-cache (ST_HC of the paper's Table III), each once per epoch: training sees them twice.

    None in epochs that visit everything: there everybody's importance is to be renewed.
    """

    def __init__(self, sizes: NDArray[np.int64], capacity: int, rng: np.random.Generator | None = None) -> None:
        super().__init__(sizes, capacity, rng)
        self._turn = NONE

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> Ids:
        taken = super().plan(order, job, times, later)
        now = self._jobs[job]
        everything = len(order) == now.longest
        self._turn = NONE if everything else self._rng.permutation(np.flatnonzero(self._h.resident & now.may))
        return taken

    def _stand_ins(self, job: _Job, count: int) -> Ids:
        held = self._turn[self._h.resident[self._turn]]
        taken, self._turn = held[:count], held[count:]
        return taken
