"""How a rate is measured: threads that share work out for a short while, again and again; the median counts.

The rounds of the different numbers of threads take turns, so that a machine that is busy for a while is so for all of
them. Nothing here knows what is being read.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from augury.ids import Ids
from augury.sim.model import Throughput

ROUNDS = 5
ENOUGH = 0.9
"""The share of the best throughput with which fewer threads are content."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""What is being measured, how many rounds are done, of how many."""
Reader: TypeAlias = Callable[[Ids], int]
"""Reads these, returns how many bytes they were. Of one thread."""


@dataclass(frozen=True)
class Curve:
    """MB/s of one place, as a function of how many threads use it at once."""

    place: str
    """"ram", "disk" or "source"."""
    action: str
    """"read" or "write"."""
    rates: Mapping[int, Sequence[float]]
    """Of each round, by number of threads."""

    @property
    def throughput(self) -> Throughput:
        """The medians, to four digits: there is no more in them."""
        return Throughput({count: float(f"{statistics.median(rates):.4g}") for count, rates in self.rates.items()})

    @property
    def enough(self) -> int:
        """The smallest number of threads that reaches nine tenths of the best throughput."""
        measured = self.throughput.measured
        best = max(measured.values())
        return min(count for count, rate in measured.items() if rate >= ENOUGH * best)


class Run:
    """What all measurements of one run share. One thread owns it."""

    def __init__(self, seconds: float, rng: np.random.Generator, total: int, progress: Progress) -> None:
        self.seconds, self.rng = seconds, rng
        self.curves: list[Curve] = []
        self.notes: list[str] = []
        self._progress, self._done, self._total = progress, 0, total

    def curve(
        self,
        place: str,
        action: str,
        counts: Sequence[int],
        measure: Callable[[int], float | None],
        rounds: int = ROUNDS,
    ) -> Curve:
        """Rounds by turns; `measure` gives the MB/s of one round of so many threads, None where nothing is left."""
        rates: dict[int, list[float]] = {count: [] for count in counts}
        for _, count in itertools.product(range(rounds), counts):
            self._progress(f"{place}: {action}, {count} thread{'s' * (count > 1)}", self._done, self._total)
            rate = measure(count)
            if rate is not None:
                rates[count].append(rate)
            self._done += 1
        self.curves.append(Curve(place, action, rates))
        return self.curves[-1]


def timed(pieces: Iterable[Ids], reader: Callable[[], Reader], threads: int, seconds: float) -> float:
    """MB/s of so many threads that share the pieces out, until all are read or time is up.

    What is under way when time is up is waited for, and counts. An error in a thread is raised here.
    """
    shared = _Shared(iter(pieces), reader)
    workers: list[_Worker] = []
    try:
        for at in range(threads):
            workers.append(_Worker(shared.work, at))
            workers[-1].start()
        began = time.perf_counter()
        shared.deadline = began + seconds
        shared.go.set()
        for worker in workers:
            worker.ended.wait()
    finally:
        # Also after Ctrl-C: nobody may read what is about to be removed.
        shared.stop()
        for worker in workers:
            worker.finish()
    if shared.errors:
        raise shared.errors[0]
    return shared.bytes / 1e6 / max(shared.ended - began, 1e-9)


class _Worker(threading.Thread):
    """A thread that can be waited for again after Ctrl-C: a `join` that is interrupted takes it for ended."""

    def __init__(self, work: Callable[[], None], number: int) -> None:
        super().__init__(name=f"augury-probe-{number}", daemon=True)
        self._work, self.ended = work, threading.Event()

    def run(self) -> None:
        try:
            self._work()
        finally:
            self.ended.set()

    def finish(self) -> None:
        if self.ident is not None:
            self.ended.wait()
            self.join()


class _Shared:
    """What the threads of one round have in common."""

    def __init__(self, pieces: Iterator[Ids], reader: Callable[[], Reader]) -> None:
        self._pieces, self._reader = pieces, reader
        self.go = threading.Event()
        self.deadline, self.ended, self.bytes = -np.inf, 0.0, 0
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()

    def stop(self) -> None:
        self.deadline = -np.inf
        self.go.set()

    def work(self) -> None:
        try:
            read = self._reader()
            self.go.wait()
            done = sum(map(read, self._until_deadline()))
            with self._lock:
                self.bytes += done
                self.ended = max(self.ended, time.perf_counter())
        except BaseException as error:
            self.errors.append(error)
            self.stop()

    def _until_deadline(self) -> Iterator[Ids]:
        """Every thread begins at least one piece: a round too short for any would have no rate."""
        while True:
            with self._lock:
                piece = next(self._pieces, None)
            if piece is None:
                return
            yield piece
            if time.perf_counter() >= self.deadline:
                return
