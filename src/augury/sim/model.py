"""How long bytes take: HDMLP's performance model, the one that both the simulator and the live fetch use.

Chapter 3.1 of the HDMLP thesis. A node has storage classes (0 is the staging buffer), each with a throughput that
depends on the number of threads, peers behind a network, and a shared source whose throughput depends on the
number of readers. Pure arithmetic: no ids, no clock, no files. The unit is MB and MB/s, but any pair of units will do.

Two readings of the published model, chosen by `Environment.paper`:

- The default. Of an aggregate throughput each thread gets its part: r_j(p_j)/p_j from a class (Eqs. 3.6 and 3.7) and
  t(g)/g from the source (Eq. 3.5), where g counts the threads that read from it, on all nodes.
- `paper`, what the published figures rest on: a thread gets all of r_j(p_j), and g counts nodes, so that each of a
  node's threads gets the share of a whole node.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from augury.errors import ConfigError

STAGING = 0
"""The storage class that is the staging buffer."""


class Throughput:
    """Aggregate MB/s as a function of how many threads (or nodes) use something at once.

    Between the numbers that were measured it is interpolated linearly, beyond them it stays as it was (Eq. 4.1).
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        if not measured:
            raise ConfigError("a throughput needs at least one measured value, such as {1 = 66}")
        for count, value in measured.items():
            if count < 1 or not value > 0:
                raise ConfigError(f"a throughput of {value} MB/s for {count} threads makes no sense: both are positive")
        points = sorted((int(count), float(value)) for count, value in measured.items())
        self._counts = [count for count, _ in points]
        self._values = [value for _, value in points]

    def __call__(self, count: float) -> float:
        after = bisect_right(self._counts, count)
        if after == 0:
            return self._values[0]
        if after == len(self._counts):
            return self._values[-1]
        low, high = self._counts[after - 1], self._counts[after]
        part = (count - low) / (high - low)
        return self._values[after - 1] + part * (self._values[after] - self._values[after - 1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Throughput) and self.measured == other.measured

    def __hash__(self) -> int:
        return hash(tuple(self.measured.items()))

    def __repr__(self) -> str:
        return f"Throughput({self.measured})"

    @property
    def measured(self) -> dict[int, float]:
        """The values between which it is interpolated."""
        return dict(zip(self._counts, self._values, strict=True))


@dataclass(frozen=True)
class StorageClass:
    """Storage of one kind on a node, such as RAM or an SSD."""

    capacity: float
    """d_j, in MB."""
    threads: int
    """p_j: how many fill it."""
    read: Throughput
    """r_j(p)."""
    write: Throughput | None = None
    """w_j(p); None: as fast as it is read."""


class Holder(NamedTuple):
    """Where a sample can be read: from a storage class, of this node or of a peer, or from the source."""

    where: str
    storage: int | None = None


SOURCE = Holder("source")


def local(storage: int) -> Holder:
    """A storage class of this node."""
    return Holder("local", storage)


def remote(storage: int) -> Holder:
    """A storage class of another node."""
    return Holder("remote", storage)


@dataclass(frozen=True)
class Environment:
    """The nodes, their storage and the source that they share (section 3.1.1)."""

    nodes: int
    """N."""
    compute: float
    """c: MB/s that training consumes on one node."""
    preprocess: float
    """beta: MB/s that one thread decodes and transforms."""
    network: float
    """b_c: MB/s between two nodes; 0 where they exchange nothing."""
    source_network: float
    """b_fs: MB/s between a node and the source."""
    source: Throughput
    """t(g)."""
    classes: tuple[StorageClass, ...]
    """The staging buffer, then the others in the order in which they are to be filled."""
    paper: bool = False
    """Whether rates are those behind the published figures; see the head of this file."""

    def rate(self, holder: Holder, readers: int) -> float:
        """MB/s at which one thread gets a sample from a holder, when `readers` read from the source (Eqs. 3.5-3.7)."""
        if holder.where == "source":
            return min(self.source_network, self.source(readers) / readers)
        assert holder.storage is not None
        storage = self.classes[holder.storage]
        aggregate = storage.read(storage.threads)
        rate = aggregate if self.paper else aggregate / max(1, storage.threads)
        return rate if holder.where == "local" else min(self.network, rate)

    @property
    def write_seconds(self) -> float:
        """Seconds per MB to transform a sample and put it into the staging buffer (write_i of section 3.1.3)."""
        staging = self.classes[STAGING]
        write = (staging.write or staging.read)(staging.threads)
        return max(1 / self.preprocess, staging.threads / write)

    def read_seconds(self, holder: Holder, readers: int) -> float:
        """Seconds per MB until a sample is in the staging buffer (read_i, Eq. 3.4)."""
        return 1 / self.rate(holder, readers) + self.write_seconds

    def fill_seconds(self, storage: int, holder: Holder, readers: int) -> float:
        """Seconds per MB until a sample is in a storage class other than the staging buffer.

        The published figures rest on the time that it takes to get it into the staging buffer, transforms included.
        """
        if self.paper:
            return self.read_seconds(holder, readers)
        return 1 / self.rate(holder, readers) + self.write_into_seconds(storage)

    def write_into_seconds(self, storage: int) -> float:
        """Seconds per MB that one of its threads takes to write into a storage class."""
        into = self.classes[storage]
        return into.threads / (into.write or into.read)(into.threads)

    def fastest(self, holders: list[Holder], readers: int) -> Holder:
        """Of those that hold a sample, the one that one thread reads it from soonest; of equals, the first."""
        return max(holders, key=lambda holder: self.rate(holder, readers))

    @property
    def readers(self) -> int:
        """The most that can read from the source at once: what a node assumes that cannot see the others."""
        return self.nodes if self.paper else self.nodes * sum(max(1, each.threads) for each in self.classes)
