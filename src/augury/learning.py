"""A loader that learns: its feedback, what is known from it, the orders it drew, and what must be saved of all that.

Between the loader (training's thread) and feedback.py (the scorer's thread). For a recipe that learns nothing it does
nothing. Scoring, drawing and holding live elsewhere.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from augury.cache import Cache
from augury.errors import AuguryWarning, ConfigError
from augury.exchange import open_exchange
from augury.feedback import Exchange, Feedback
from augury.ids import Ids, Mask
from augury.knowledge import UNTOLD, Knowledge, pack, unpack
from augury.metrics import FeedbackCounts
from augury.recipes import Recipe
from augury.schedule import Schedule


class Learning:
    """What one loader learns. Its methods are called by the training thread, unless they say otherwise."""

    def __init__(self, recipe: Recipe, cache: Cache, lag: int, owns_cache: bool) -> None:
        self._recipe, self._cache, self._samples = recipe, cache, cache.samples
        learns = recipe.scorer is not None and owns_cache
        self.known = Knowledge.none(self._samples if learns else 0)
        self.feedback: Feedback | None = None
        if learns and recipe.scorer is not None:
            self.feedback = Feedback(recipe.scorer(self._samples), self.known, cache.learn, lag)
        self._exchange: Exchange | None = None
        self._orders: dict[int, Ids] = {}
        """What this rank visits in the epochs that were begun and are not over."""
        self._taken = 0, 0
        """How many samples of an epoch's order training has taken."""
        self._requests, self._first, self._per_epoch = 0, 0, 1
        self._visited: tuple[int, Mask] | None = None
        """Whom training has seen in an epoch."""
        self._resumed: dict[str, Any] | None = None
        self._warned = False

    @property
    def counts(self) -> FeedbackCounts:
        return FeedbackCounts() if self.feedback is None else self.feedback.counts

    def close(self) -> None:
        if self.feedback is not None:
            self.feedback.close()

    def tell(self, ids: Any, losses: Any, logits: Any, labels: Any) -> None:
        """A report of one minibatch."""
        if self.feedback is not None:
            self.feedback.report(ids, losses, logits, labels)

    def tell_accuracy(self, accuracy: float) -> None:
        """The model's accuracy on held-out data."""
        if self.feedback is not None:
            self.feedback.report_accuracy(accuracy)

    def start(self, schedule: Schedule, epoch: int, offset: int) -> Ids | None:
        """A walk begins there. The rest of the epoch's order, if a run that was interrupted has drawn it."""
        if self.feedback is None:
            return None
        self._requests, self._first, self._per_epoch = 0, schedule.batches_from(offset), len(schedule)
        self._taken = epoch, 0
        self._orders.clear()
        self.feedback.restart()
        if self._exchange is None:
            self._exchange = open_exchange(schedule.place.world_size)
        if self._exchange is not None:
            self.feedback.exchange(self._exchange)
            self.feedback.restart()
        saved, self._resumed = self._resumed, None
        here = {"place": list(schedule.place), "at": [epoch, offset]}
        if saved is None or saved["order"] is None or any(saved[name] != value for name, value in here.items()):
            return None
        return unpack(saved["order"], np.int64)

    def request(self) -> None:
        """Training asks for its next batch."""
        if self.feedback is None:
            return
        # What is told up to here is what this decision may know; with an epoch's first one the epoch is drawn.
        decision = self._requests + self.feedback.lag - 1
        if self._exchange is not None and decision >= self._first and (decision - self._first) % self._per_epoch == 0:
            self.feedback.exchange(self._exchange)
        self._requests += 1
        self.feedback.request()

    def begin_epoch(self, epoch: int, order: Ids) -> None:
        """An epoch is drawn. Called by the thread that decides."""
        if self.feedback is not None:
            self._orders[epoch] = order

    def take(self, epoch: int, ids: Ids) -> int:
        """Training has taken these samples of an epoch; how many of them for the first time in it."""
        if self.feedback is None:
            return len(ids)
        if epoch != self._taken[0]:
            self._orders.pop(self._taken[0], None)
            self._taken = epoch, 0
            self._warn_of_silence()
        self._taken = epoch, self._taken[1] + len(ids)
        if self._visited is None or self._visited[0] != epoch:
            self._visited = epoch, np.zeros(self._samples, np.bool_)
        before = self._visited[1]
        fresh = np.unique(ids[~before[ids]])
        before[fresh] = True
        return len(fresh)

    def _warn_of_silence(self) -> None:
        if not self._warned and not self.known.told and self.counts.reports == 0:
            self._warned = True
            warnings.warn(
                f"recipe {self._recipe.name!r} learns from loader.feedback(ids, losses), and an epoch has passed "
                "without any: until it is called every epoch visits every sample, and the cache keeps what came first",
                AuguryWarning,
                stacklevel=6,
            )

    def state_dict(self, epoch: int, offset: int, place: tuple[int, int]) -> dict[str, Any]:
        """What was learned, and the rest of the order that training is in."""
        if self.feedback is None:
            return {}
        taken = self._taken[1] if self._taken[0] == epoch else 0
        order = self._orders.get(epoch)
        rest = None if order is None else pack(order[taken:])
        where = {"place": list(place), "at": [epoch, offset], "order": rest}
        return {"learned": where | self.known.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was learned."""
        if self.feedback is None:
            return
        if "learned" not in state:
            raise ConfigError("this state holds no scores: it was saved by a loader that shares another one's cache")
        learned = state["learned"]
        known = Knowledge.from_state(learned, self._samples)
        self.feedback.restart()
        self.known = self.feedback.known = known
        told = np.flatnonzero(known.scores != UNTOLD)
        self._cache.learn(told, known.scores[told])
        self._resumed = learned
