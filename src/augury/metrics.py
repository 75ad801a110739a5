"""Counters: what happened to requests, where bytes came from, how long training waited.

Pure bookkeeping, the same for the simulator and for live runs. The call log lives in trace.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from augury.ids import Ids, Mask
from augury.units import format_size


@dataclass
class Counts:
    """What happened to requests. hits + substitutes + joined + misses = requests, always."""

    requests: int = 0
    hits: int = 0
    """The requested id itself was held."""
    substitutes: int = 0
    """Another id that was held stood in."""
    joined: int = 0
    """A repeat, within the batch, of a sample that was being read already."""
    misses: int = 0

    @classmethod
    def of(cls, asked: Ids, served: Ids, hit: Mask, missed: Ids) -> Counts:
        """The counts of one step."""
        requests, found = len(asked), int(np.count_nonzero(hit))
        stood_in = 0 if asked is served else int(np.count_nonzero(hit & (served != asked)))
        misses = len(missed)
        return cls(requests, found - stood_in, stood_in, requests - found - misses, misses)

    def add(self, other: Counts) -> None:
        self.requests += other.requests
        self.hits += other.hits
        self.substitutes += other.substitutes
        self.joined += other.joined
        self.misses += other.misses

    def correct(self, lost: int) -> None:
        """So many hits were none: the bytes had been lost and were read from the source."""
        self.hits -= lost
        self.misses += lost

    def shares(self) -> dict[str, float]:
        """hit_ratio, substitutes, joined and misses as shares of all requests; they add up to 1."""
        of = max(1, self.requests)
        return {
            "hit_ratio": self.hits / of,
            "substitutes": self.substitutes / of,
            "joined": self.joined / of,
            "misses": self.misses / of,
        }


@dataclass
class EpochStats:
    """One epoch as training saw it: counted when a batch is handed out."""

    epoch: int
    counts: Counts = field(default_factory=Counts)
    batches: int = 0
    bytes_from: dict[str, int] = field(default_factory=dict)
    """Bytes delivered, by who held them: "ram", "disk", "source", or "in flight" if another batch was reading them."""
    bad_samples: int = 0
    """Samples that could not be read or decoded; what was done about them is `on_error`'s choice."""
    stall_seconds: float = 0.0
    """How long the consumer waited for batches."""
    seconds: float = 0.0
    """From the first request for a batch to the end of the epoch, training included."""

    def add(self, other: EpochStats) -> None:
        self.counts.add(other.counts)
        self.batches += other.batches
        self.bad_samples += other.bad_samples
        self.stall_seconds += other.stall_seconds
        self.seconds += other.seconds
        for holder, amount in other.bytes_from.items():
            self.bytes_from[holder] = self.bytes_from.get(holder, 0) + amount

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for printing and JSON."""
        return {
            "epoch": self.epoch,
            "batches": self.batches,
            **vars(self.counts),
            "hit_ratio": self.counts.shares()["hit_ratio"],
            "bytes_from": dict(self.bytes_from),
            "bad_samples": self.bad_samples,
            "stall_seconds": self.stall_seconds,
            "seconds": self.seconds,
        }


@dataclass
class Stats:
    """What a loader has handed out, per epoch and in total."""

    epochs: list[EpochStats]

    @property
    def total(self) -> EpochStats:
        """All epochs together; its `epoch` is -1."""
        total = EpochStats(-1)
        for epoch in self.epochs:
            total.add(epoch)
        return total

    def __str__(self) -> str:
        """A line per epoch and one for all."""
        lines = ["epoch  batches  hit ratio  stall s  seconds  bad  bytes from"]
        for one in (*self.epochs, self.total):
            held = ", ".join(f"{holder} {format_size(amount)}" for holder, amount in sorted(one.bytes_from.items()))
            name = "all" if one.epoch < 0 else str(one.epoch)
            ratio = one.counts.shares()["hit_ratio"]
            times = f"{one.stall_seconds:7.2f}  {one.seconds:7.2f}"
            lines.append(f"{name:>5}  {one.batches:7d}  {ratio:9.3f}  {times}  {one.bad_samples:3d}  {held}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for printing and JSON."""
        return {"total": self.total.as_dict(), "epochs": [epoch.as_dict() for epoch in self.epochs]}
