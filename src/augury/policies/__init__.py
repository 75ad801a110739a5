"""What to hold: pure decisions, ids in, ids out.

A policy decides what one tier holds. It sees no bytes, clock, threads or I/O, so that the same object serves
in the simulator, in the embedded cache and in the node. All policies pass `augury.testing.PolicyContract`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from augury.ids import NONE, Ids, Mask, Scores, Times


class Foresight(IntEnum):
    """How much of the future a policy uses: what it is told with `plan`."""

    NOTHING = 0
    EPOCHS = 1
    """This epoch and, where it is known, the next; told anew for each."""
    RUN = 2
    """Everything until the end of training: who is requested, in which order first, and how often."""


class Policy(Protocol):
    """Decides what one tier holds. No I/O, clock or threads; one owner thread.

    Constructors take (sizes, capacity, rng). `sizes` is each id's cost in bytes of capacity.
    """

    @property
    def resident(self) -> Mask:
        """Over all ids: the only truth of contents. To be read by others, not written."""

    @property
    def capacity(self) -> int:
        """The limit, in bytes."""

    @property
    def used(self) -> int:
        """Bytes of what is resident; never above capacity."""

    @property
    def prefetches(self) -> bool:
        """Whether `wanted` may name somebody when an epoch was planned; then it is asked before the epoch begins."""

    @property
    def refills(self) -> bool:
        """Whether `wanted` may name somebody at any time; then it is asked before every batch."""

    @property
    def packages(self) -> Sequence[Ids]:
        """Groups of ids that `wanted` names together: worth to lie together in the store."""

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> Ids:
        """What `job` will request from now on, as far as known (may span epochs). It replaces what was told before.

        With `times`, `order` names each id once, in the order of first requests, and `times` says how often each is
        requested. `later` is requested after that, in an order that may yet change. Returns those that this policy has
        set aside for its tier: the levels below plan without them.
        """

    def serve(self, ids: Ids, job: int = 0) -> Ids:
        """Note requests; return each id or its stand-in."""

    def admit(self, ids: Ids) -> tuple[Mask, Ids]:
        """Absent ids whose bytes are at hand or on their way: which stay, who leaves. Net: none in both."""

    def wanted(self, budget: int) -> Ids:
        """Absent ids worth reading unasked, most urgent first, of at most `budget` bytes."""

    def learn(self, ids: Ids, scores: Scores, kin: Ids | None = None) -> None:
        """New importance of ids; `kin`: one of them, and after it those of its class that it may stand in for."""

    def progress(self, done: float, spreads: Sequence[float], accuracies: Sequence[float]) -> None:
        """An epoch begins: how much of the training is over, from 0 to 1; the standard deviation of the scores when
        each epoch began, this one included; and the model's accuracies so far."""

    @property
    def gauges(self) -> Mapping[str, float]:
        """Numbers of its own that are worth watching."""

    def resize(self, capacity: int) -> Ids:
        """New byte limit; returns who must leave."""

    def forget(self, ids: Ids) -> None:
        """Their bytes were lost (a read or a tier failed, a checksum did not match)."""

    def adopt(self, ids: Ids) -> Ids:
        """Bytes found from an earlier run; returns those that do not fit."""

    def leave(self, job: int) -> None:
        """The job ended or died: nothing more is kept for it."""


MakePolicy: TypeAlias = Callable[[NDArray[np.int64], int, np.random.Generator], Policy]
