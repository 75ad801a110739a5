"""A source's speed, by how many read from it at once: in random order, each sample once as far as possible."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from augury.errors import ConfigError, Unreadable
from augury.ids import Ids
from augury.probe.rounds import ROUNDS, Reader, Run, timed
from augury.probe.samples import copier, cut
from augury.sim.model import Throughput
from augury.sources import Buffer, Source

_BATCH = 256


def probe_source(run: Run, readers: Sequence[int], source: Source) -> Throughput:
    """Through its protocol alone, so that any source will do."""
    samples = len(source.catalog)
    plan = plan_rounds(samples, readers)
    unread = iter(cut(run.rng.permutation(samples), plan.quota))
    asked = _Asked()
    cached = cached_before(source, run.rng)

    def read(count: int) -> float | None:
        ids = run.rng.permutation(samples) if plan.repeats else next(unread)
        rate = timed(_requests(source, ids), lambda: _reader(source, asked), count, run.seconds)
        return rate or None

    curve = run.curve("source", "read", readers, read, plan.rounds)
    if not all(curve.rates.values()):
        reason = asked.failures[0] if asked.failures else "its samples are empty"
        raise ConfigError(f"the source cannot be measured: {reason}")
    run.notes.append(_note(plan, samples, asked, cached))
    return curve.throughput


class Plan(NamedTuple):
    """How a dataset is shared out between the rounds."""

    rounds: int
    quota: int
    """Samples for one number of threads in one round."""
    repeats: bool
    """Whether samples must be read more than once, because there are too few."""


def plan_rounds(samples: int, counts: Sequence[int]) -> Plan:
    """As many rounds as leave each thread four samples, every sample being read once."""
    enough = 4 * max(counts)
    for rounds in range(ROUNDS, 0, -1):
        quota = samples // (rounds * len(counts))
        if quota >= enough:
            return Plan(rounds, quota, repeats=False)
    return Plan(ROUNDS, samples, repeats=True)


@dataclass
class _Asked:
    """Reads of a source: how many, and which of them failed. Threads share it."""

    reads: int = 0
    failures: list[Unreadable] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, data: Sequence[Buffer | Unreadable]) -> None:
        failed = [item for item in data if isinstance(item, Unreadable)]
        with self.lock:
            self.reads += len(data)
            self.failures += failed


def _requests(source: Source, ids: Ids) -> Iterator[Ids]:
    """Batch by batch, as the store wants to be asked for them: each is one thread's work, as in the loader."""
    for batch in cut(ids, _BATCH):
        yield from source.requests(batch)


def _reader(source: Source, asked: _Asked) -> Reader:
    copy = copier()

    def read(ids: Ids) -> int:
        data = source.read(ids)
        asked.note(data)
        return copy(data)

    return read


def _note(plan: Plan, samples: int, asked: _Asked, cached: float | None) -> str:
    note = f"source: {asked.reads:,} reads of {samples:,} samples in random order, by this machine alone"
    if plan.repeats:
        note += (
            "; the dataset is too small to read each sample once, so what the operating system had cached was read "
            "again: take the figures for upper bounds"
        )
    else:
        note += ", each read once"
    if plan.rounds < ROUNDS:
        note += f"; samples for {plan.rounds} of {ROUNDS} rounds only"
    if cached is None:
        note += "; what the operating system had cached before came from its memory"
    elif cached > 0.1:
        note += (
            f"; {cached:.0%} of the data was in the page cache before, so the store itself is slower than that (empty "
            "it with: sync; echo 1 | sudo tee /proc/sys/vm/drop_caches)"
        )
    if asked.failures:
        note += f"; {len(asked.failures)} reads failed, such as: {asked.failures[0]}"
    return note


def cached_before(source: Source, rng: np.random.Generator, most: int = 32) -> float | None:
    """The share of the dataset that is in the page cache, by a few samples; None where the system does not tell."""
    if source.catalog.names is None:
        return None
    ids = rng.choice(len(source.catalog), min(most, len(source.catalog)), replace=False)
    answers = [_in_page_cache(*_place(source, id)) for id in ids.tolist()]
    known = [answer for answer in answers if answer is not None]
    return sum(known) / len(known) if known else None


def _place(source: Source, id: int) -> tuple[str, int]:
    """A sample's file and where in it the sample begins."""
    catalog = source.catalog
    if catalog.shards is None or catalog.shard is None or catalog.offsets is None:
        return catalog.location(id), 0
    return os.path.join(catalog.root, catalog.shards[int(catalog.shard[id])]), int(catalog.offsets[id])


def _in_page_cache(path: str, offset: int) -> bool | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return os.preadv(file.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    except (OSError, AttributeError):
        return None
