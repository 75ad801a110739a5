"""One training run whose losses are kept: every sample's, as the net is after each epoch.

How it is shown, where it is written and where pictures come from is not here. torch is imported inside functions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from augury import __version__
from augury.errors import ConfigError
from augury.learner import Learner, one_thread
from augury.loader import Loader
from augury.pictures import Pictures
from augury.sim.fields import Recorded

LEARNING = 3
"""What a step costs, in forward passes."""
_BATCH = 250


@dataclass(frozen=True)
class Plan:
    """How to train. Equal plans over equal pictures give equal losses, on one machine."""

    epochs: int
    batch: int
    seed: int
    width: int


@dataclass(frozen=True)
class Epoch:
    """What came of one epoch."""

    loss: float
    """Mean of what is recorded: over all samples, after the epoch."""
    accuracy: float | None
    seconds: float


class Watcher(Protocol):
    """Is told how it goes, in the thread that trains."""

    def worked(self, epoch: int, passes: int) -> None:
        """So many more forward passes of one picture are done, or as much work as that."""

    def epoch(self, number: int, epoch: Epoch) -> None:
        """One more epoch is done."""


class Recording:
    """Trains from scratch. What is recorded so far can be had at any time, also after `run` was interrupted."""

    def __init__(self, name: str, train: Pictures, test: Pictures | None, plan: Plan) -> None:
        if len(train.classes) < 2:
            raise ConfigError(f"{name} has only one class: there is nothing to learn")
        self.name, self.train, self.plan = name, train, plan
        self.test = None if test is None else test.labelled_like(train)
        self._rows: list[NDArray[np.float16]] = []
        self._accuracies: list[float] = []

    @property
    def epochs(self) -> int:
        """How many are done."""
        return len(self._rows)

    @property
    def passes(self) -> int:
        """What `Watcher.worked` will have been told in the end."""
        tested = 0 if self.test is None else len(self.test.x)
        return self.plan.epochs * ((LEARNING + 1) * len(self.train.x) + tested)

    def run(self, watcher: Watcher) -> None:
        plan = self.plan
        with (
            one_thread(),
            _loader(self.train, plan.batch, seed=plan.seed, epochs=plan.epochs) as learning,
            _loader(self.train, _BATCH, shuffle=False) as measuring,
        ):
            learner = Learner(plan.seed, plan.epochs * len(learning), len(self.train.classes), plan.width)
            for number in range(plan.epochs):
                began = time.perf_counter()
                for x, y, ids in learning:
                    learner.learn(x, y)
                    watcher.worked(number, LEARNING * len(ids))
                losses = self._measure(learner, measuring, number, watcher)
                accuracy = self._accuracy(learner, number, watcher)
                if not np.isfinite(losses).all():
                    raise FloatingPointError(f"training has diverged in epoch {number + 1}")
                self._keep(losses, accuracy)
                watcher.epoch(number, Epoch(float(losses.mean()), accuracy, time.perf_counter() - began))

    def _measure(self, learner: Learner, loader: Loader, number: int, watcher: Watcher) -> NDArray[np.float32]:
        losses = np.empty(len(self.train.x), np.float32)
        for x, y, ids in loader:
            losses[ids] = learner.losses(x, y).numpy()
            watcher.worked(number, len(ids))
        return losses

    def _accuracy(self, learner: Learner, number: int, watcher: Watcher) -> float | None:
        if self.test is None:
            return None
        with _loader(self.test, _BATCH, shuffle=False, epochs=1) as loader:
            accuracy = learner.accuracy(loader)
        watcher.worked(number, len(self.test.x))
        return accuracy

    def _keep(self, losses: NDArray[np.float32], accuracy: float | None) -> None:
        """Accuracy first: an interrupt between the two leaves one too many of them, and never one too few."""
        if accuracy is not None:
            self._accuracies.append(accuracy)
        self._rows.append(np.minimum(losses, np.finfo(np.float16).max).astype(np.float16))

    def field(self) -> Recorded:
        """What is recorded; of at least one epoch."""
        plan = self.plan
        meta: dict[str, Any] = {
            "dataset": self.name,
            "classes": list(self.train.classes),
            "model": f"small CNN, width {plan.width}",
            "seed": plan.seed,
            "batch": plan.batch,
            "planned_epochs": plan.epochs,
            "augury": __version__,
        }
        accuracy = self._accuracies[: self.epochs] if self.test is not None else None
        return Recorded(np.stack(self._rows), self.train.y, accuracy, meta)


def _loader(pictures: Pictures, batch: int, **options: Any) -> Loader:
    """The pictures are in memory as they are: a cache would be a second copy."""
    data = pictures.x, pictures.y
    return Loader(data, batch, recipe="none", output="torch", rank=0, world_size=1, **options)
