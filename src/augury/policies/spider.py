"""What to hold where samples may stand in for those they are like: SpiderCache's two sections.

Wang et al., "SpiderCache: Semantic-Aware Caching Strategy for DNN Training", ICPP 2025, section 4.2 and Algorithm 1.
Who is like whom is found by scorers/graph.py; how the sections share the cache by elastic.py. docs/recipes/spider.md
lists where this differs from the paper and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.ids import NONE, Ids, Mask, Scores, Times, first_seen
from augury.policies import MakePolicy
from augury.policies.elastic import END, START, importance_ratio
from augury.policies.ranking import Holding, fitting
from augury.policies.shade import APP

NOBODY = -1
IN_A_ROW = 2
"""So often a sample is replaced before it is read itself: its own embedding would grow old."""
WAITING = 64
"""So many that are to stand in may wait for their bytes."""


class Important(APP):
    """The importance section, alone: the least important leaves, and only for a more important one (a min-heap).

    Like SHADE's, it takes those of whom nothing was learned while there is room, and asks for the most important absent
    ones when an epoch begins.
    """

    loyal = True


class _Hubs(Holding):
    """The homophily section: samples that many are like, each with the list of those; first in, first out."""

    def __init__(self, sizes: NDArray[np.int64], capacity: int) -> None:
        super().__init__(sizes, capacity)
        self.stands_in = np.full(len(sizes), NOBODY, np.int64)
        """For each sample, the one held here that is like it; of several, the last that came."""
        self._lists: dict[int, Ids] = {}
        """In the order of coming."""

    def enter(self, hub: int, like: Ids) -> Ids:
        """Hold it with those that it is like; who leaves for it."""
        left = self.shrink(self.capacity - int(self.sizes[hub]))
        self._hold(np.array([hub]))
        self._list(hub, like)
        return left

    def relist(self, hub: int, like: Ids) -> None:
        """Others are like it now; its turn to leave stays."""
        self._unlist(hub)
        self._list(hub, like)

    def shrink(self, room: int) -> Ids:
        """Who leaves so that no more than `room` bytes are used: the longest held first."""
        left, over = [], self.used - room
        for hub in self._lists:
            if over <= 0:
                break
            left.append(hub)
            over -= int(self.sizes[hub])
        gone = np.array(left, np.int64)
        self._release(gone)
        return gone

    def _list(self, hub: int, like: Ids) -> None:
        self._lists[hub] = like
        self.stands_in[like] = hub

    def _unlist(self, hub: int) -> None:
        like = self._lists[hub]
        self.stands_in[like[self.stands_in[like] == hub]] = NOBODY

    def _release(self, ids: Ids) -> None:
        for hub in ids.tolist():
            self._unlist(hub)
            del self._lists[hub]
        super()._release(ids)


class Spider:
    """An importance section and a homophily section, exclusive of each other.

    A sample that the first does not hold is served by one of the second that it is like and that has its class, if
    there is one; else it is read, and may enter the first. Of each minibatch the sample that most others are like
    enters the second: with the first bytes of it that come by, or it is read for that. Room that the second does not
    use yet is the first one's.

    Only jobs that plan are served stand-ins, and only by those whom they have ever planned to visit.
    """

    prefetches = refills = True
    packages: Sequence[Ids] = ()

    def __init__(
        self,
        sizes: NDArray[np.int64],
        capacity: int,
        rng: np.random.Generator | None = None,
        *,
        start: float = START,
        end: float = END,
        section: MakePolicy = Important,
    ) -> None:
        if not 0 <= end <= start <= 1:
            raise ConfigError(f"ratios from {start} to {end}: give 1 >= start >= end >= 0")
        self._bounds, self._ratio = (start, end), start
        self.capacity = int(capacity)
        self._own = section(sizes, capacity, np.random.default_rng() if rng is None else rng)
        self._hubs = _Hubs(sizes, 0)
        self.sizes = self._hubs.sizes
        self.resident: Mask = np.zeros(len(sizes), np.bool_)
        self._called: dict[int, Ids] = {}
        """Who is to enter the homophily section, and whom each is like."""
        self._jobs: set[int] = set()
        self._may: Mask = np.zeros(len(sizes), np.bool_)
        """Whom they have planned to visit: nobody else stands in, who may be held back for validation."""
        self._replaced = np.zeros(len(sizes), np.uint8)
        """How often in a row another has stood in for each."""
        self._planned = False
        self._divide()

    @property
    def used(self) -> int:
        return self._own.used + self._hubs.used

    @property
    def gauges(self) -> Mapping[str, float]:
        """The importance section's share of the cache, by plan; and the share that stand-ins use."""
        return {"importance_ratio": self._ratio, "homophily_used": self._hubs.used / max(1, self.capacity)}

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> Ids:
        self._planned = True
        self._jobs.add(job)
        self._may[order] = True
        return self._own.plan(order, job, times, later)

    def serve(self, ids: Ids, job: int = 0) -> Ids:
        self._own.serve(ids, job)
        if job not in self._jobs:
            return ids
        like = self._hubs.stands_in[ids]
        instead = (like != NOBODY) & ~self.resident[ids] & (self._replaced[ids] < IN_A_ROW)
        self._replaced[ids[~instead]] = 0
        if not instead.any():
            return ids
        self._replaced[ids[instead]] += 1
        return np.where(instead, like, ids)

    def admit(self, ids: Ids) -> tuple[Mask, Ids]:
        kept = np.zeros(len(ids), np.bool_)
        left = self._call_in(ids)
        rest = ~self._hubs.resident[ids]
        kept[~rest] = True
        kept[rest], evicted = self._own.admit(ids[rest])
        evicted = np.concatenate([left, evicted])
        self.resident[evicted] = False
        self.resident[ids[kept]] = True
        return kept, evicted

    def wanted(self, budget: int) -> Ids:
        """Those that are to stand in; and when an epoch was planned, the most important that are absent."""
        hubs = np.fromiter(self._called, np.int64, len(self._called))
        hubs = hubs[~self.resident[hubs]]
        hubs = hubs[fitting(self.sizes[hubs], budget)]
        if not self._planned:
            return hubs
        self._planned = False
        wanted = self._own.wanted(budget - int(self.sizes[hubs].sum()))
        return np.concatenate([hubs, wanted[~self.resident[wanted] & ~np.isin(wanted, hubs)]])

    def learn(self, ids: Ids, scores: Scores, kin: Ids | None = None) -> None:
        self._own.learn(ids, scores)
        if kin is None or len(kin) < 2 or not self._may[kin[0]]:
            return
        hub, like = int(kin[0]), kin[1:]
        if self._hubs.resident[hub]:
            self._hubs.relist(hub, like)
        elif self.sizes[hub] <= self._hubs.capacity:
            self._called[hub] = like
            if len(self._called) > WAITING:
                del self._called[next(iter(self._called))]

    def progress(self, done: float, spreads: Sequence[float], accuracies: Sequence[float]) -> None:
        self._ratio = importance_ratio(done, spreads, accuracies, *self._bounds)
        self._divide()

    def resize(self, capacity: int) -> Ids:
        self.capacity = int(capacity)
        self._divide()
        left = self._hubs.shrink(min(self.capacity, max(self._hubs.capacity, self.capacity - self._own.used)))
        evicted = np.concatenate([left, self._own.resize(self.capacity - self._hubs.used)])
        self.resident[evicted] = False
        return evicted

    def forget(self, ids: Ids) -> None:
        self._own.forget(ids)
        self._hubs.forget(ids)
        self._own.resize(self.capacity - self._hubs.used)  # more room, nobody leaves
        self.resident[ids] = False

    def adopt(self, ids: Ids) -> Ids:
        ids = first_seen(ids[~self.resident[ids]])
        rejected = self._own.adopt(ids)
        self.resident |= self._own.resident
        return rejected

    def leave(self, job: int) -> None:
        self._jobs.discard(job)
        self._own.leave(job)

    def _divide(self) -> None:
        self._hubs.capacity = self.capacity - round(self._ratio * self.capacity)
        self._called = {hub: like for hub, like in self._called.items() if self.sizes[hub] <= self._hubs.capacity}

    def _call_in(self, ids: Ids) -> Ids:
        """Those that were called and whose bytes are here, or come with `ids`, enter the homophily section; who leaves,
        of both sections. Afterwards the other section has the room that is left."""
        if not self._called:
            return NONE
        coming = [hub for hub in self._called if self.resident[hub]]
        coming += [id for id in ids.tolist() if id in self._called]
        left = [NONE]
        for hub in coming:
            if self._own.resident[hub]:
                self._own.forget(np.array([hub]))
            left.append(self._hubs.enter(hub, self._called.pop(hub)))
        gone = np.concatenate(left)
        gone = gone[self.resident[gone]]  # one that came and left at once was never there
        return np.concatenate([gone, self._own.resize(self.capacity - self._hubs.used)])
