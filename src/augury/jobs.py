"""Several jobs on one cache: what each gains from it, and their importance as one (iCache's multi-job handling).

Chen et al., "iCache: An Importance-Sampling-Informed Cache for Accelerating I/O-Bound DNN Model Training", HPCA 2023,
section III-D. Pure bookkeeping: times and scores are told, batches are read elsewhere. A job that is alone is not
measured, and its importance stays as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from augury.ids import Ids, Scores
from augury.knowledge import UNTOLD

PROBE = 20
"""So many minibatches of an epoch are served without the cache, and as many then with it."""
SETTLE = 8
"""Of each twenty the first are not timed: what was read ahead before them still carries training."""
FADING = 0.8
"""The weight of earlier epochs' times: other jobs come and go in between, and one epoch's are noisy."""
SHORT = 4 * PROBE
"""Epochs of fewer minibatches are not measured: too much of them would be read without the cache."""
ELIGIBLE = 1.5
"""Who is not faster by more than this factor gains too little: its importance does not count."""
DOUBT = 1.2
"""... but who counted before counts until it is below this: each change of mind exchanges the cache."""


@dataclass
class _Job:
    importance: Scores
    benefit: float | None = None
    """Time without the cache by time with it; None: not measured yet."""
    counts: bool = True
    """Whether it gains enough."""


class Jobs:
    """The jobs of one cache that learn. Any thread may call it."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._jobs: dict[int, _Job] = {}
        self._lock = threading.Lock()

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self._jobs) > 1

    def learn(self, job: int, ids: Ids, scores: Scores) -> None:
        """New importance, as a job sees it."""
        with self._lock:
            if job not in self._jobs:
                self._jobs[job] = _Job(np.full(self._samples, UNTOLD, np.float32))
            self._jobs[job].importance[ids] = scores

    def rate(self, job: int, benefit: float) -> None:
        """How much faster a job is with the cache than without."""
        with self._lock:
            if (rated := self._jobs.get(job)) is not None:
                before, rated.benefit = rated.benefit, benefit
                rated.counts = benefit > (DOUBT if rated.counts and before is not None else ELIGIBLE)

    def leave(self, job: int) -> bool:
        """It has ended; whether it had told anything."""
        with self._lock:
            return self._jobs.pop(job, None) is not None

    def alone(self) -> Scores | None:
        """The importance of the only job; None where there are none or several."""
        with self._lock:
            return next(iter(self._jobs.values())).importance.copy() if len(self._jobs) == 1 else None

    def benefits(self) -> dict[int, float | None]:
        """What was measured of each."""
        with self._lock:
            return {number: job.benefit for number, job in self._jobs.items()}

    def adjusted(self) -> Scores:
        """The adjusted importance (AIV) of every id: the relative importance that eligible jobs give it, each as much
        as it gains from the cache. Where nobody is eligible, all count alike."""
        with self._lock:
            jobs = [(job.importance.copy(), job.counts * (job.benefit or 1.0)) for job in self._jobs.values()]
        weights = [weight for _, weight in jobs]
        total = np.zeros(self._samples)
        for (importance, _), weight in zip(jobs, weights if any(weights) else [1.0] * len(jobs), strict=True):
            if weight:
                total += weight * relative(importance)
        return total.astype(np.float32)


def relative(importance: Scores) -> NDArray[np.float64]:
    """The percentile position of each among all: which share of them is at most as important."""
    return np.sort(importance).searchsorted(importance, side="right") / max(1, len(importance))


class Probing(Protocol):
    """What decides whether a minibatch is served without the cache."""

    def bypasses(self, epoch: int, at: int) -> bool:
        """Of the minibatch at this place of an epoch."""


class Benefit:
    """Measures what one job gains, anew in each epoch while there are several: T without / T with the cache.

    The thread that decides asks `bypasses`, training's thread tells when it was handed a minibatch.
    """

    def __init__(self, jobs: Jobs, job: int) -> None:
        self._jobs, self._job = jobs, job
        self.batches: Callable[[int], int] = _many
        """Of an epoch."""
        self._probing = self._timing = False
        self._began = self._without = 0.0
        self._totals = np.zeros(2)
        """Seconds without and with the cache, of all epochs, older ones fading."""

    def bypasses(self, epoch: int, at: int) -> bool:
        if at == 0:
            self._probing = self._jobs.several and self.batches(epoch) >= SHORT
        return self._probing and at < PROBE

    def note(self, at: int, bypassed: bool, now: float) -> None:
        """Training was handed the minibatch at this place of its epoch."""
        if at == 0:
            self._timing = bypassed
        if not self._timing:
            return
        if at in (SETTLE, PROBE + SETTLE):
            self._began = now
        elif at == PROBE:
            self._without = now - self._began
        elif at == 2 * PROBE:
            self._totals = FADING * self._totals + (self._without, now - self._began)
            self._jobs.rate(self._job, float(self._totals[0] / max(1e-9, self._totals[1])))


def _many(epoch: int) -> int:
    return SHORT
