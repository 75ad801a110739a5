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
"""The score of a sample of which nothing was told yet: below that of any ranked one, which is at least ln 10."""

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
    losses: list[float] = field(default_factory=list)
    """The mean loss of each epoch that told any."""
    accuracies: list[float] = field(default_factory=list)
    """Of the model on held-out data, as reported."""
    running: tuple[float, int] = (0.0, 0)
    """The sum and the number of losses since the last epoch began."""
    epoch: int = 0
    """The epoch that was drawn last."""

    @classmethod
    def none(cls, samples: int) -> Knowledge:
        """Before training."""
        return cls(np.full(samples, UNTOLD, np.float32), np.full(samples, -1, np.int32))

    def learn(self, ids: Ids, scores: Scores) -> None:
        """New scores. Where an id comes twice its last one holds."""
        self.scores[ids] = scores
        self.told = self.told or len(ids) > 0

    def add_losses(self, total: float, count: int) -> None:
        """What the loss curve is made of."""
        self.running = self.running[0] + total, self.running[1] + count

    def visit(self, ids: Ids) -> None:
        """They were visited, by whichever rank, in the epoch that was drawn last."""
        self.seen[ids] = self.epoch

    def begin_epoch(self, epoch: int) -> None:
        """An epoch is about to be drawn: what was told since the last one is one point of the loss curve."""
        self.epoch = epoch
        total, count = self.running
        if count:
            self.losses.append(total / count)
        self.running = 0.0, 0

    def of(self, subset: Ids | None) -> Knowledge:
        """The same with arrays over a subset's positions; None: all ids, and no copy."""
        if subset is None or len(self.scores) == 0:
            return self
        return replace(self, scores=self.scores[subset], seen=self.seen[subset])

    def state_dict(self) -> dict[str, Any]:
        """Everything, in strings and plain numbers."""
        arrays = {"scores": pack(self.scores), "seen": pack(self.seen)}
        curves = {"losses": list(self.losses), "accuracies": list(self.accuracies), "running": list(self.running)}
        return {**arrays, **curves, "told": self.told, "epoch": self.epoch}

    @classmethod
    def from_state(cls, state: dict[str, Any], samples: int) -> Knowledge:
        """What `state_dict` saved."""
        scores, seen = unpack(state["scores"], np.float32), unpack(state["seen"], np.int32)
        if len(scores) != samples or len(seen) != samples:
            raise ConfigError(f"this state has scores of {len(scores)} samples, and there are {samples}")
        total, count = state["running"]
        curves = [float(loss) for loss in state["losses"]], [float(value) for value in state["accuracies"]]
        return cls(scores, seen, bool(state["told"]), *curves, (float(total), int(count)), int(state["epoch"]))


def pack(array: NDArray[Any]) -> str:
    """An array as text: a state that holds it can be saved by torch, as JSON, or by anything else."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 1)).decode()


def unpack(text: str, kind: type[Kind]) -> NDArray[Kind]:
    """What `pack` made of an array of that kind."""
    try:
        return np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), kind).copy()
    except (ValueError, TypeError, zlib.error) as error:
        raise ConfigError(f"this state is damaged: {error}") from None
