"""What a simulated run of a cluster came to: seconds, stalls, reads by holder, and the series per batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from augury.sim.scenario import Scenario
from augury.sim.strategies import Access

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the batches done and all of them."""


@dataclass
class Reads:
    """Samples read, by who held them. Those that fill storage classes count as well."""

    source: int = 0
    local: int = 0
    remote: int = 0


@dataclass
class Outcome:
    """A run of one policy."""

    ends: NDArray[np.float64]
    """When each batch was finished, by the slowest node."""
    stalls: NDArray[np.float64]
    """How much longer each batch took than it was computed on; the first includes what came before training."""
    reads: Reads

    @property
    def runtime(self) -> float:
        """Seconds until the slowest node has finished the last batch."""
        return float(self.ends[-1])

    @property
    def stall(self) -> float:
        """Seconds of it that were lost to waiting for data."""
        return float(self.stalls.sum())

    def as_dict(self, series: bool = False) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = {"runtime": self.runtime, "stall": self.stall, "reads": asdict(self.reads)}
        if series:
            found |= {"ends": self.ends.tolist(), "stalls": self.stalls.tolist()}
        return found


def computing(scenario: Scenario, accesses: list[Access]) -> NDArray[np.float64]:
    """Seconds that each batch is computed on, by the node with most to do: all that it takes if data is at hand."""
    longest = np.zeros(len(accesses[0].ends))
    for access in accesses:
        total = np.concatenate([[0.0], np.cumsum(scenario.sizes[access.ids])])
        np.maximum(longest, np.diff(total[access.ends], prepend=0.0), out=longest)
    return longest / scenario.environment.compute


def outcome(scenario: Scenario, accesses: list[Access], ends: NDArray[np.float64], reads: Reads) -> Outcome:
    """From when each batch ended to what the run came to."""
    stalls = np.diff(ends, prepend=0.0) - computing(scenario, accesses)
    return Outcome(ends, np.maximum(stalls, 0.0), reads)
