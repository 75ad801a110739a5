"""A loader that learns: its feedback, the orders it drew, whom training has seen, and what must be saved of all that.

Between the loader (training's thread) and feedback.py (the scorer's thread). For a recipe that learns nothing it does
nothing. Scoring, drawing and holding live elsewhere.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from augury.cache import Cache
from augury.errors import AuguryWarning, ConfigError
from augury.exchange import open_exchange
from augury.feedback import Exchange, Feedback
from augury.ids import Ids, Scores
from augury.knowledge import UNTOLD, Knowledge, pack, unpack
from augury.metrics import FeedbackCounts
from augury.recipes import Recipe
from augury.schedule import Begun, Schedule


class Learning:
    """What one loader learns. Its methods are called by the training thread, unless they say otherwise."""

    def __init__(self, recipe: Recipe, cache: Cache, lag: int, teaches: bool, job: int = 0) -> None:
        self._recipe, self._samples = recipe, cache.samples
        self._teach = partial(cache.learn, job=job)
        self.gauges: dict[int, dict[str, float]] = {}
        """Of epochs that were begun: what the policy said of itself."""
        self._cache = cache
        scorer = recipe.scorer(self._samples) if recipe.scorer is not None and teaches else None
        self._nothing = Knowledge.none(0)
        self.feedback: Feedback | None = None
        if scorer is not None:
            self.feedback = Feedback(scorer, Knowledge.none(self._samples), self._teach, lag)
        self._seen = np.full(0 if scorer is None else self._samples, -1, np.int32)
        """The epoch in which training has last seen each sample. (What is known runs ahead: it is decided earlier.)"""
        self._exchange: Exchange | None = None
        self._orders: dict[int, tuple[Ids, Scores | None]] = {}
        """What this rank visits in the epochs that were begun and are not over, and by which weights."""
        self._taken = 0
        """How many samples of the present epoch's order training has taken."""
        self._requests = self._ahead = 0
        """How many batches training has asked for; and of those decided so far, how many lie before the next epoch."""
        self._schedule: Schedule | None = None
        self._meets_in = 0
        """The epoch that is drawn after the next exchange with other ranks."""
        self._loaded: tuple[dict[str, Any], Begun] | None = None
        """From a state that was loaded: where it was saved, and the epoch that had begun."""
        self._warned = False

    @property
    def known(self) -> Knowledge:
        """What there is to draw by."""
        return self._nothing if self.feedback is None else self.feedback.known

    @property
    def counts(self) -> FeedbackCounts:
        return FeedbackCounts() if self.feedback is None else self.feedback.counts

    def close(self) -> None:
        if self.feedback is not None:
            self.feedback.close()

    def tell(self, ids: Any, losses: Any, logits: Any, labels: Any, embeddings: Any) -> None:
        """A report of one minibatch."""
        if self.feedback is None:
            return
        strange = (told := self.feedback.report(ids, losses, logits, labels, embeddings))[self._seen[told] < 0]
        if len(strange):
            self._warn_once(
                f"feedback names samples that this loader has not handed out, such as {strange[0]}: pass the ids that "
                "came with the batch, and not positions or labels"
            )

    def tell_accuracy(self, accuracy: float) -> None:
        """The model's accuracy on held-out data."""
        if self.feedback is not None:
            self.feedback.report_accuracy(accuracy)

    def start(self, schedule: Schedule, epoch: int, offset: int) -> Begun | None:
        """A walk begins there; in this epoch, if a run that was interrupted has begun it."""
        if self.feedback is None:
            return None
        self._requests, self._ahead = 0, schedule.batches_from(epoch, offset)
        self._schedule, self._meets_in = schedule, epoch + 1
        self.feedback.epoch, self._taken = epoch, 0
        self._orders.clear()
        self.feedback.restart()
        self._exchange = open_exchange(schedule.place.world_size, self._exchange)
        self.feedback.shares = self._exchange is not None
        if self._exchange is not None:
            self._meet(self._exchange)
            self.feedback.restart()
        loaded, self._loaded = self._loaded, None
        if loaded is None or loaded[0] != _where(schedule.place, epoch, offset):
            return None
        begun = loaded[1]
        if len(begun.order) - begun.done != schedule.left(epoch, offset):
            return None
        self._orders[epoch], self._taken = (begun.order, begun.weights), begun.done
        return begun

    def request(self) -> None:
        """Training asks for its next batch."""
        if self.feedback is None:
            return
        # What is told up to here is what this decision may know; with an epoch's first one the epoch is drawn.
        decision = self._requests + self.feedback.lag - 1
        assert self._schedule is not None
        while decision >= self._ahead:
            if decision == self._ahead and self._exchange is not None:
                self._meet(self._exchange)
            self._ahead += max(1, self._schedule.batches_from(self._meets_in))
            self._meets_in += 1
        self._requests += 1
        self.feedback.request()

    def begin_epoch(self, epoch: int, order: Ids, weights: Scores | None) -> None:
        """An epoch is drawn. Called by the thread that decides."""
        if self.feedback is not None:
            self._orders[epoch] = order, weights
        self.gauges[epoch] = self._cache.gauges

    def weights(self, epoch: int, ids: Ids) -> Scores:
        """What the losses of samples of an epoch are to be multiplied by."""
        _, weights = self._orders.get(epoch, (None, None))
        return np.ones(len(ids), np.float32) if weights is None else weights[ids]

    def take(self, epoch: int, ids: Ids, visits: int) -> int:
        """Training has taken these samples of so many visits of an epoch; how many for the first time in it."""
        if self.feedback is None:
            return len(ids)
        if epoch != self.feedback.epoch:
            self._orders.pop(self.feedback.epoch, None)
            self.feedback.epoch, self._taken = epoch, 0
            self._warn_of_silence()
            self._warn_of_haste()
        self._taken += visits
        fresh = np.unique(ids[self._seen[ids] != epoch])
        self._seen[fresh] = epoch
        return len(fresh)

    def state_dict(self, epoch: int, offset: int, place: tuple[int, int]) -> dict[str, Any]:
        """What was learned, and the order that training is in. The same whatever is decided ahead."""
        if self.feedback is None:
            return {}
        here = _where(place, epoch, offset)
        begun: dict[str, Any] = {"where": here, "order": None}
        if self._loaded is not None and self._loaded[0] == here:  # and not iterated since
            begun |= _packed(self._loaded[1])
        elif offset > 0 and epoch == self.feedback.epoch and epoch in self._orders:
            order, weights = self._orders[epoch]
            begun |= _packed(Begun(order, self._taken, weights))
        known, fresh = self.feedback.snapshot()
        known.seen = self._seen
        known.spreads = {number: spread for number, spread in known.spreads.items() if number <= epoch}
        saved = {"fresh": pack(fresh), "scorer": self.feedback.scorer_state()}
        return {"learned": begun | saved | known.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was learned. Nothing changes if the state cannot be used."""
        if self.feedback is None:
            return
        if "learned" not in state:
            raise ConfigError("this state holds no scores: it was saved by a loader that shares another one's cache")
        learned = state["learned"]
        known = Knowledge.from_state(learned, self._samples)
        fresh = self._saved_ids(learned, "fresh")
        begun = self._saved_epoch(learned)
        self.feedback.replace(known, fresh, learned.get("scorer", {}))
        told = np.flatnonzero(known.scores != UNTOLD)
        self._teach(told, known.scores[told], None)
        self._seen = known.seen.copy()
        self._orders.clear()
        self._taken = 0
        self._loaded = begun

    def _saved_epoch(self, learned: dict[str, Any]) -> tuple[dict[str, Any], Begun] | None:
        if learned.get("order") is None:
            return None
        order, done = self._saved_ids(learned, "order"), learned.get("done", 0)
        if not isinstance(done, int) or not 0 <= done <= len(order):
            raise ConfigError(f"this state is damaged: of {len(order)} visits {done!r} are done")
        weights = None if learned.get("weights") is None else unpack(learned["weights"], np.float32)
        if weights is not None and len(weights) != self._samples:
            raise ConfigError(f"this state is damaged: it has weights of {len(weights)} samples, not {self._samples}")
        return learned.get("where", {}), Begun(order, done, weights)

    def _saved_ids(self, learned: dict[str, Any], name: str) -> Ids:
        try:
            ids = unpack(learned[name], np.int64)
        except KeyError:
            raise ConfigError(f"this state is damaged: it has no {name!r}") from None
        if len(ids) and (ids.min() < 0 or ids.max() >= self._samples):
            raise ConfigError(f"this state is damaged: {name!r} has ids from {ids.min()} to {ids.max()}")
        return ids

    def _meet(self, exchange: Exchange) -> None:
        """Tell the other ranks what was learned here, and learn theirs."""
        assert self.feedback is not None
        for ids in self.feedback.exchange(exchange):
            self._seen[ids] = self.feedback.epoch

    def _warn_of_silence(self) -> None:
        if self.feedback is not None and not self.known.told and self.counts.reports == 0:
            told = {"losses": "losses", "embeddings": "embeddings=..., labels=..."}[self.feedback.needs]
            self._warn_once(
                f"recipe {self._recipe.name!r} learns from loader.feedback(ids, {told}), and an epoch has passed "
                "without any: until it is called all samples count alike, and importance decides nothing",
                deeper=2,
            )

    def _warn_of_haste(self) -> None:
        counts = self.counts
        if 2 * counts.overtaken > counts.reports:
            self._warn_once(
                f"of {counts.reports} reports {counts.overtaken} were not scored: training is faster than the scorer "
                f"of recipe {self._recipe.name!r}. Report every second minibatch, or a narrower layer",
                deeper=2,
            )

    def _warn_once(self, text: str, deeper: int = 0) -> None:
        """`deeper`: how many calls further away the user's own line is."""
        if not self._warned:
            self._warned = True
            warnings.warn(text, AuguryWarning, stacklevel=4 + deeper)


def _packed(begun: Begun) -> dict[str, Any]:
    weights = None if begun.weights is None else pack(begun.weights)
    return {"order": pack(begun.order), "done": begun.done, "weights": weights}


def _where(place: tuple[int, int], epoch: int, offset: int) -> dict[str, Any]:
    return {"rank": place[0], "world_size": place[1], "epoch": epoch, "offset": offset}
