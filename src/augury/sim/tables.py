"""Per node and access: its size, which storage class of the node holds it from when on, and since when peers do.

Looked up once for a whole plan. Used by paper.py.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from augury.sim.model import local, remote
from augury.sim.scenario import Scenario
from augury.sim.strategies import NEVER, Plan


class Tables:
    """What the simulation asks of a plan."""

    def __init__(self, scenario: Scenario, plan: Plan) -> None:
        environment = scenario.environment
        classes = range(1, len(environment.classes))
        count = len(scenario.sizes)
        mine = {at: environment.read_seconds(local(at), environment.readers) for at in classes}
        shares = environment.nodes > 1 and environment.network > 0
        theirs = {at: environment.read_seconds(remote(at), environment.readers) for at in classes if shares}
        self.sizes = [_numbers(scenario.sizes[access.ids]) for access in plan.accesses]
        self.near_seconds: list[array[float]] = []
        self.near_since: list[array[float]] = []
        self.filled: list[float] = []
        shared = {at: np.full(count, NEVER) for at in theirs if any(len(held.ids[at]) for held in plan.held)}
        for held, access in zip(plan.held, plan.accesses, strict=True):
            seconds, since = np.full(count, NEVER), np.full(count, NEVER)
            for at in mine:
                seconds[held.ids[at]], since[held.ids[at]] = mine[at], held.since[at]
            self.near_seconds.append(_numbers(seconds[access.ids]))
            self.near_since.append(_numbers(since[access.ids]))
            for at, earliest in shared.items():
                earliest[held.ids[at]] = np.minimum(earliest[held.ids[at]], held.since[at])
            arrivals = [times.max() for times in held.since if len(times)]
            self.filled.append(max(arrivals, default=-NEVER))
        self._peers = [
            (theirs[at], [_numbers(earliest[access.ids]) for access in plan.accesses])
            for at, earliest in shared.items()
        ]

    def near(self, node: int, position: int) -> tuple[float, float]:
        """Seconds per MB from the node's own storage, and from when on it is there."""
        return self.near_seconds[node][position], self.near_since[node][position]

    def peers(self, node: int, position: int) -> list[tuple[float, float]]:
        """The same from other nodes, per storage class."""
        return [(seconds, since[node][position]) for seconds, since in self._peers]


def _numbers(values: NDArray[np.float64]) -> array[float]:
    """A tenth of the memory of a list, and as fast to index."""
    return array("d", values.tobytes())
