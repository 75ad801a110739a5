"""How fast this machine's memory, a local disk and a source are, used as the loader uses them.

Measures the very tiers and sources of a live run with several numbers of threads, and says what it measured. What is
found is a `Storage` (storage.py), which others reckon with. Each place has its module; how a rate is measured is in
rounds.py. Files of its own lie in the disk's directory only while it runs; nobody else's are touched. No printing here:
see commands/probe.py.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from augury.errors import ConfigError
from augury.fetch import READERS
from augury.probe.disk import Disk, probe_disk
from augury.probe.memory import probe_memory
from augury.probe.rounds import ROUNDS, Curve, Progress, Run
from augury.probe.samples import one_size, sample_sizes
from augury.probe.source import probe_source
from augury.sources import Source
from augury.storage import Storage
from augury.units import Size, parse_size

__all__ = ["Curve", "Disk", "Findings", "Progress", "default_threads", "probe"]


@dataclass
class Findings:
    """What was measured, and what must be known of it."""

    storage: Storage
    curves: list[Curve]
    notes: list[str]


def default_threads(most: int = 8) -> list[int]:
    """1, 2, 4 ... and as many as this process has processors."""
    powers = itertools.takewhile(lambda count: count <= most, (2**power for power in itertools.count()))
    return sorted({*powers, len(os.sched_getaffinity(0))})


def probe(
    source: Source | None = None,
    ram: Size | None = None,
    disk: Disk | None = None,
    threads: Sequence[int] | None = None,
    seconds: float = 2.0,
    size: int | None = None,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> Findings:
    """Measure what is given. Each figure takes `seconds` at most, but for requests that are under way by then.

    `size` is that of samples in memory and on disk; else they are as those of the dataset.
    """
    _check(source, ram, disk, threads, seconds, size)
    counts = sorted(set(threads)) if threads else default_threads()
    # The loader has many readers for a source: they wait for it more than they compute.
    readers = counts if threads else default_threads(READERS)
    figures = ((ram is not None) + (disk is not None)) * (len(counts) + 1) + (source is not None) * len(readers)
    run = Run(seconds / ROUNDS, np.random.default_rng(seed), ROUNDS * figures, progress)
    sizes, same = sample_sizes(source, size, run.rng), one_size(source, size)
    whole = None if source is None else source.catalog.total_bytes
    levels = []
    if ram is not None:
        levels.append(probe_memory(run, counts, sizes, same, ram, parse_size(ram, "ram", whole)))
    if disk is not None:
        levels.append(probe_disk(run, counts, sizes, disk, parse_size(disk.capacity, "disk", whole)))
    found = None if source is None else probe_source(run, readers, source)
    return Findings(Storage(tuple(levels), found), run.curves, run.notes)


def _check(
    source: Source | None,
    ram: Size | None,
    disk: Disk | None,
    threads: Sequence[int] | None,
    seconds: float,
    size: int | None,
) -> None:
    if source is None and ram is None and disk is None:
        raise ConfigError("nothing to measure: give a dataset, a size of memory or a disk")
    if threads is not None and (not threads or min(threads) < 1):
        raise ConfigError(f"threads={list(threads)}: give whole numbers from 1 on")
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"seconds={seconds}: give a positive number")
    if size is not None and size < 1:
        raise ConfigError(f"size={size}: a sample has at least one byte")
