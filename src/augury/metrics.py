"""Counters: what happened to requests, where bytes came from, how long training waited.

Pure bookkeeping, the same for the simulator and for live runs. The call log lives in trace.py.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
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
    prefetched: int = 0
    """Samples read from the source that nobody had asked for yet; no requests."""

    @classmethod
    def of(cls, asked: Ids, served: Ids, hit: Mask, missed: Ids) -> Counts:
        """The counts of one step."""
        requests, found = len(asked), int(np.count_nonzero(hit))
        stood_in = 0 if asked is served else int(np.count_nonzero(hit & (served != asked)))
        misses = len(missed)
        return cls(requests, found - stood_in, stood_in, requests - found - misses, misses)

    @property
    def reads(self) -> int:
        """Samples fetched from the source, asked for or not."""
        return self.misses + self.prefetched

    def add(self, other: Counts) -> None:
        self.requests += other.requests
        self.hits += other.hits
        self.substitutes += other.substitutes
        self.joined += other.joined
        self.misses += other.misses
        self.prefetched += other.prefetched

    def correct(self, lost: int) -> None:
        """So many hits were none: the bytes had been lost and were read from the source."""
        self.hits -= lost
        self.misses += lost

    def shares(self) -> dict[str, float]:
        """hit_ratio, substitutes, joined and misses as shares of all requests, which add up to 1; and `reads`: samples
        fetched from the source, per request."""
        of = max(1, self.requests)
        return {
            "hit_ratio": self.hits / of,
            "substitutes": self.substitutes / of,
            "joined": self.joined / of,
            "misses": self.misses / of,
            "reads": self.reads / of,
        }


@dataclass
class EpochStats:
    """One epoch as training saw it: counted when a batch is handed out."""

    epoch: int
    counts: Counts = field(default_factory=Counts)
    batches: int = 0
    distinct: int = 0
    """Different samples among the requests: fewer where a recipe repeats some and leaves out others."""
    bytes_from: dict[str, int] = field(default_factory=dict)
    """Bytes delivered, by who held them: "ram", "disk", "source", or "in flight" if another batch was reading them."""
    prefetched_bytes: int = 0
    """Bytes read because the policy wanted to hold them; not delivered."""
    bad_samples: int = 0
    """Samples that could not be read or decoded; what was done about them is `on_error`'s choice."""
    stall_seconds: float = 0.0
    """How long the consumer waited for batches."""
    seconds: float = 0.0
    """From the first request for a batch to the end of the epoch, training included."""
    gauges: dict[str, float] = field(default_factory=dict)
    """What the policy says of itself when the epoch begins, such as the share of a part of the cache."""

    def add(self, other: EpochStats) -> None:
        self.counts.add(other.counts)
        self.batches += other.batches
        self.distinct += other.distinct
        self.prefetched_bytes += other.prefetched_bytes
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
            "distinct": self.distinct,
            "bytes_from": dict(self.bytes_from),
            "prefetched_bytes": self.prefetched_bytes,
            "bad_samples": self.bad_samples,
            "stall_seconds": self.stall_seconds,
            "seconds": self.seconds,
            **({"gauges": dict(self.gauges)} if self.gauges else {}),
        }


@dataclass
class FeedbackCounts:
    """What became of what training reported."""

    reports: int = 0
    """That were taken."""
    samples: int = 0
    """In them."""
    dropped: int = 0
    """Reports that could not be used."""
    overtaken: int = 0
    """Reports that were taken and never scored: training was faster than the scorer."""

    def __add__(self, other: FeedbackCounts) -> FeedbackCounts:
        return FeedbackCounts(*(mine + more for mine, more in zip(astuple(self), astuple(other), strict=True)))


@dataclass
class Stats:
    """What a loader has handed out, per epoch and in total, and what it was told."""

    epochs: list[EpochStats]
    feedback: FeedbackCounts = field(default_factory=FeedbackCounts)

    @property
    def total(self) -> EpochStats:
        """All epochs together; its `epoch` is -1."""
        total = EpochStats(-1)
        for epoch in self.epochs:
            total.add(epoch)
        return total

    def __str__(self) -> str:
        """A line per epoch and one for all. `distinct`: the share of requests that name a sample for the first time."""
        replaced = any(one.counts.substitutes for one in self.epochs)
        lines = [f"epoch  batches  hit ratio  {'stand-ins  ' * replaced}distinct  stall s  seconds  bad  bytes from"]
        for one in (*self.epochs, self.total):
            holders = {**one.bytes_from, "prefetched": one.prefetched_bytes}
            held = ", ".join(f"{holder} {format_size(n)}" for holder, n in sorted(holders.items()) if n)
            name = "all" if one.epoch < 0 else str(one.epoch)
            share = one.counts.shares()
            stand_ins = f"{share['substitutes']:9.3f}  " * replaced
            times = f"{one.stall_seconds:7.2f}  {one.seconds:7.2f}"
            shares = f"{share['hit_ratio']:9.3f}  {stand_ins}{one.distinct / max(1, one.counts.requests):8.3f}"
            lines.append(f"{name:>5}  {one.batches:7d}  {shares}  {times}  {one.bad_samples:3d}  {held}")
        told = self.feedback
        if told.reports or told.dropped:
            late = f", {told.overtaken} not scored in time" if told.overtaken else ""
            lines.append(f"feedback: {told.reports} reports of {told.samples} samples, {told.dropped} dropped{late}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for printing and JSON."""
        epochs = [epoch.as_dict() for epoch in self.epochs]
        return {"total": self.total.as_dict(), "epochs": epochs, "feedback": vars(self.feedback).copy()}
