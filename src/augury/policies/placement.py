"""What to hold where the whole run is known: each sample has its place, by how often this rank will request it.

Böhringer, "Clairvoyant Prefetching for Machine Learning I/O", ETH Zürich 2020 (HDMLP), section 3.2: the samples of
highest access frequency go to the fastest storage class, and every class is filled in the order of first accesses.
`place` is that rule for a node with several levels, `Placement` is one level of it. Nothing here reads what is placed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.ids import NONE, Ids, Mask, Times, counted
from augury.policies.ranking import Ranked, fitting


def place(order: Ids, times: Times, costs: Sequence[NDArray[np.int64]], capacities: Sequence[int]) -> list[Ids]:
    """Whom each level holds, the fastest level first: the most often requested, of equals the first requested.

    `order` names distinct ids by first request and `times` how often each is requested; `costs` has, per level, what
    every id costs there. Each answer is in the order of first requests, in which the level is to be filled.
    """
    levels = []
    for cost, capacity in zip(costs, capacities, strict=True):
        chosen = choose(order, times, cost, capacity)
        levels.append(order[chosen])
        order, times = order[~chosen], times[~chosen]
    return levels


def choose(
    order: Ids, times: Times, costs: NDArray[np.int64], capacity: int, resident: Mask | None = None
) -> NDArray[np.bool_]:
    """Which of the order one level holds: where it saves most reads; of equals who is resident, then by order.

    Who is not resident must be read once to be held, so one request of it is not saved.

    One that does not fit into the room that is left stands back for the next.
    """
    if resident is None:
        ranks = np.argsort(-times, kind="stable")
    else:
        here = resident[order]
        ranks = np.lexsort((~here, ~here - times.astype(np.int64)))
    chosen = np.zeros(len(order), np.bool_)
    chosen[ranks] = fitting(costs[order[ranks]], capacity)
    return chosen


class Placement(Ranked):
    """Holds those that the plan of the run places here, and never gives one up for another.

    HDMLP, section 3.2.2. Deviations: the staging buffer is no level (it is the read-ahead window). A sample that does
    not fit into what is left of a level stands back for the next, where the thesis closes the level: its samples are of
    similar sizes. Of equally frequent ones those that are resident stay, so that a warm disk is not read anew. Samples
    stay after their last use, as in the thesis without `cleanup`. A request for a sample that is placed here and has
    not been read yet admits it. Until those with a place have come, guests use their room (docs/decisions/0008).

    The key is the frequency, above all others for those that have their place here. Guests (whoever was requested, what
    an earlier run left) leave as room is needed, the least often requested first.
    """

    bypass = True
    _HERE = 2.0**32
    """Added to the keys of those that have their place here: more than any frequency."""

    def __init__(self, sizes: NDArray[np.int64], capacity: int, rng: np.random.Generator | None = None) -> None:
        super().__init__(sizes, capacity, rng)
        self._job = 0
        self._order, self._times = NONE, np.empty(0, np.int32)
        self._placed = NONE
        """In the order of first requests."""
        self._here: Mask = np.zeros(len(sizes), np.bool_)

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> Ids:
        if len(self._order) and job != self._job:
            raise ConfigError(
                f"hdmlp plans for one job, and job {self._job} has planned already: give job {job} a cache of its own"
            )
        self._job = job
        self._order, self._times = counted(order) if times is None else (order, times)
        self._place()
        return self._placed

    def wanted(self, budget: int) -> Ids:
        """Those that have their place here and are absent, in the order of first requests."""
        absent = self._placed[~self.resident[self._placed]]
        return absent[np.cumsum(self.sizes[absent]) <= budget]

    def resize(self, capacity: int) -> Ids:
        self.capacity = int(capacity)
        self._place()
        return super().resize(capacity)

    def leave(self, job: int) -> None:
        if job == self._job:
            self._order, self._times = NONE, np.empty(0, np.int32)
            self._place()

    def _place(self) -> None:
        chosen = choose(self._order, self._times, self.sizes, self.capacity, self.resident)
        self._placed = self._order[chosen]
        self._here[:] = False
        self._here[self._placed] = True
        self.key[:] = self._here * self._HERE
        self.key[self._order] += self._times
        self._front.restart()
