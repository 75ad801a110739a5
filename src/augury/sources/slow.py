"""Any source made slow and faulty: latency, bandwidth and failures of a remote store, without one.

For demonstrations, benchmarks and tests. It wraps and delays; bytes and ids are those of the source within.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from augury.errors import ConfigError, Unreadable
from augury.ids import Ids
from augury.sources import Base, Buffer, Source


class SlowSource(Base):
    """`source` behind a line of `latency` seconds per request, and `bandwidth` bytes and `rate` requests per second.

    A read of several requests makes them one after the other; readers in other threads share the line. A
    share `failure_rate` of reads fails for the time being, decided by (seed, id, how often the id was read):
    the same run fails in the same places, and trying again helps.
    """

    def __init__(
        self,
        source: Source,
        latency: float = 0.0,
        bandwidth: float | None = None,
        failure_rate: float = 0.0,
        seed: int = 0,
        rate: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        wrong = any(limit is not None and limit <= 0 for limit in (bandwidth, rate))
        if wrong or latency < 0 or not 0 <= failure_rate <= 1:
            raise ConfigError("latency must be >= 0, bandwidth and rate > 0 and failure_rate in [0, 1]")
        self.source, self.latency, self.bandwidth, self.rate = source, latency, bandwidth, rate
        self.failure_rate, self.seed = failure_rate, seed
        self.catalog, self.form, self.self_labelled = source.catalog, source.form, source.self_labelled
        self.requests_made, self.bytes_read = 0, 0
        self._clock, self._sleep = clock, sleep
        self._free = -np.inf
        self._attempts = np.zeros(len(source.catalog) if failure_rate else 0, np.int32)
        self._lock = threading.Lock()

    def read(self, ids: Ids) -> list[Buffer | Unreadable]:
        """What the source within reads, after the time it would have taken."""
        ids = self._checked(ids)
        for group in self.source.requests(ids):
            self.transfer(int(self.catalog.sizes[group].sum()))
        data = self.source.read(ids)
        if self.failure_rate:
            for position in self._failures(ids):
                data[position] = self._failure(int(ids[position]))
        return data

    def requests(self, ids: Ids) -> list[Ids]:
        """As the source within groups them."""
        return self.source.requests(self._checked(ids))

    def decode(self, data: Buffer) -> Any:
        """As the source within does."""
        return self.source.decode(data)

    def close(self) -> None:
        """Closes the source within, too."""
        super().close()
        self.source.close()

    def transfer(self, size: int) -> None:
        """One request of so many bytes: reserve the line for them, then wait for them outside the lock.

        Public, so that others who stand in for the same store can share the line.
        """
        with self._lock:
            now = self._clock()
            self._free = max(now, self._free) + (size / self.bandwidth if self.bandwidth else 0.0)
            self._free += 1 / self.rate if self.rate else 0.0
            arrival = self._free + self.latency
            self.requests_made += 1
            self.bytes_read += size
        if arrival > now:
            self._sleep(arrival - now)

    def _failures(self, ids: Ids) -> list[int]:
        with self._lock:
            np.add.at(self._attempts, ids, 1)
            attempts = self._attempts[ids]
        return np.flatnonzero(_chance(self.seed, ids, attempts) < self.failure_rate).tolist()

    def _failure(self, id: int) -> Unreadable:
        return Unreadable(id, self.catalog.location(id), "simulated failure of the store", transient=True)

    def __getstate__(self) -> dict[str, Any]:
        # Each process has a line of its own: only threads share one.
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_free")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._free = -np.inf
        self._lock = threading.Lock()


def _chance(seed: int, ids: Ids, attempts: np.ndarray[Any, np.dtype[np.int32]]) -> np.ndarray[Any, Any]:
    """Numbers in [0, 1), one per (seed, id, attempt): splitmix64, which needs no generator per id."""
    state = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state += attempts.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03) + np.uint64(seed % (1 << 64))
    for multiplier, shift in ((0xBF58476D1CE4E5B9, 30), (0x94D049BB133111EB, 27)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(multiplier)
    return (state ^ (state >> np.uint64(31))) / 2.0**64
