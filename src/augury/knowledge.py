"""What training has told of the samples so far: filled from feedback, read by samplers when they draw.

Plain arrays over all ids and two short curves. How a loss becomes a score is the scorers' business, what a score is
good for the samplers' and policies'.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.ids import Ids, Scores

Kind = TypeVar("Kind", bound=np.generic)

UNTOLD = 1.0
"""The score of a sample of which nothing was told yet: below that of any ranked one, which is at least ln 10 (SHADE);
where scores are percentiles (iCache), that of the hardest."""

LAG = 8
"""Feedback of batch k takes effect before decision k + LAG, neither earlier nor later: then the same seed gives the
same run, however fast training is. Eight batches are what is read ahead by default."""


@dataclass
class Knowledge:
    """What is known when an epoch is drawn. Owned by the thread that decides."""

    scores: Scores
    """How much each sample still teaches; UNTOLD where nothing was told."""
    seen: NDArray[np.int32]
    """The epoch in which each was last visited; -1: never."""
    told: bool = False
    """Whether anything was ever told."""
    losses: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Of each epoch that told any: the sum and the number of its losses."""
    accuracies: list[float] = field(default_factory=list)
    """Of the model on held-out data, as reported."""
    spreads: dict[int, float] = field(default_factory=dict)
    """The standard deviation of all scores that were told when each epoch began."""

    @classmethod
    def none(cls, samples: int) -> Knowledge:
        """Before training."""
        return cls(np.full(samples, UNTOLD, np.float32), np.full(samples, -1, np.int32))

    def learn(self, ids: Ids, scores: Scores) -> None:
        """New scores. Where an id comes twice its last one holds."""
        self.scores[ids] = scores
        self.told = self.told or len(ids) > 0

    def visit(self, ids: Ids, epoch: int) -> None:
        """They were visited, by whichever rank."""
        self.seen[ids] = epoch

    def add_losses(self, epoch: int, total: float, count: int) -> None:
        """What the loss curve is made of."""
        if count:
            before = self.losses.get(epoch, (0.0, 0))
            self.losses[epoch] = before[0] + total, before[1] + count

    def loss_curve(self) -> list[float]:
        """The mean loss of each epoch that told any."""
        return [total / count for _, (total, count) in sorted(self.losses.items())]

    def note_spread(self, epoch: int) -> None:
        """An epoch begins, or goes on: how far the scores differ. Later epochs, of another course, are forgotten."""
        self.spreads = {number: spread for number, spread in self.spreads.items() if number <= epoch}
        told = self.scores[self.scores != UNTOLD]
        if len(told) and epoch not in self.spreads:
            self.spreads[epoch] = float(told.std(dtype=np.float64))

    def after(self, ids: Ids, epoch: int) -> Knowledge:
        """What will be known of visits when these have been visited; everything else as it is."""
        if len(self.seen) == 0:
            return self
        seen = self.seen.copy()
        seen[ids] = epoch
        return replace(self, seen=seen)

    def of(self, subset: Ids | None) -> Knowledge:
        """The same with arrays over a subset's positions; None: all ids, and no copy."""
        if subset is None or len(self.scores) == 0:
            return self
        return replace(self, scores=self.scores[subset], seen=self.seen[subset])

    def copy(self) -> Knowledge:
        """One that may change without this one."""
        arrays = self.scores.copy(), self.seen.copy()
        return Knowledge(*arrays, self.told, dict(self.losses), list(self.accuracies), dict(self.spreads))

    def state_dict(self) -> dict[str, Any]:
        """Everything, in strings and plain numbers."""
        curve = [[epoch, *sums] for epoch, sums in self.losses.items()]
        arrays = {"scores": pack(self.scores), "seen": pack(self.seen)}
        curves = {
            "losses": curve,
            "accuracies": list(self.accuracies),
            "spreads": [list(item) for item in self.spreads.items()],
        }
        return {**arrays, "told": self.told, **curves}

    @classmethod
    def from_state(cls, state: dict[str, Any], samples: int) -> Knowledge:
        """What `state_dict` saved; ConfigError where that is damaged, or of another dataset."""
        try:
            scores, seen = unpack(state["scores"], np.float32), unpack(state["seen"], np.int32)
            losses = {int(epoch): (float(total), int(count)) for epoch, total, count in state["losses"]}
            accuracies = [float(value) for value in state["accuracies"]]
            spreads = {int(epoch): float(spread) for epoch, spread in state.get("spreads", ())}
            known = cls(scores, seen, bool(state["told"]), losses, accuracies, spreads)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"this state is damaged: {error!r}") from None
        if len(scores) != samples or len(seen) != samples:
            raise ConfigError(f"this state has scores of {len(scores)} samples, and there are {samples}")
        if not np.isfinite(scores).all() or (len(scores) and scores.min() < 0):
            raise ConfigError("this state is damaged: it has scores that are no finite numbers from 0 on")
        return known


def pack(array: NDArray[Any]) -> str:
    """An array as text: a state that holds it can be saved by torch, as JSON, or by anything else."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 1)).decode()


def unpack(text: str, kind: type[Kind]) -> NDArray[Kind]:
    """What `pack` made of an array of that kind."""
    try:
        return np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), kind).copy()
    except (ValueError, TypeError, zlib.error) as error:
        raise ConfigError(f"this state is damaged: {error}") from None
