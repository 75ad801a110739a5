"""Feedback: reports of the training thread, scored in a thread of its own, taking effect at a fixed decision.

What is told between two requests for a batch is one round. A round takes effect before one certain decision, never
earlier or later, so that the same seed gives the same run however fast training, scoring and reading are:

    feedback of batch k  ->  before decision k + lag        (`augury replay --lag` does the same)

So at most `lag` batches are decided ahead of training. Whether and when training reports is its own affair: decisions
wait for its requests, not for its reports. How losses become scores is in scorers/, what users may pass in reports.py.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from augury.errors import BadFeedback
from augury.ids import Ids, Scores
from augury.knowledge import Knowledge
from augury.metrics import FeedbackCounts
from augury.reports import Report, read_report
from augury.scorers import Scorer


class Scored(NamedTuple):
    """What one report, or one word about accuracy, amounts to."""

    ids: Ids
    scores: Scores
    loss_sum: float = 0.0
    accuracy: float | None = None
    exchanged: bool = False
    """It comes from any rank, and so do the visits."""


Exchange: TypeAlias = Callable[[Ids, Scores], Sequence[tuple[Ids, Scores]]]
"""Gives this rank's scores to all ranks; returns each rank's."""


@dataclass
class _Mark:
    """Training asks for a batch: what was told before is complete."""

    round: int


@dataclass
class _Others:
    """Scores of all ranks, to be learned with the next round."""

    scores: list[Scored]


class Feedback:
    """One loader's feedback. The training thread reports and requests; the thread that decides settles."""

    def __init__(self, scorer: Scorer, known: Knowledge, learn: Callable[[Ids, Scores], None], lag: int) -> None:
        self.known, self.lag = known, lag
        self._told = FeedbackCounts()
        """Counted by the training thread."""
        self._late = FeedbackCounts()
        """What the scorer's thread found wrong: told, and then dropped."""
        self._scorer, self._learn = scorer, learn
        self._queue: queue.SimpleQueue[Report | float | _Mark | _Others | threading.Event | None] = queue.SimpleQueue()
        self._round: list[Scored] = []
        self._rounds: deque[list[Scored]] = deque()
        self._requested = self._scored = self._settled = 0
        """Rounds that training has ended, that are scored, and that have taken effect."""
        self._fresh: list[Scored] = []
        """Scored here since the last exchange with other ranks."""
        self._error: BadFeedback | None = None
        self.wake: Callable[[], None] = lambda: None
        """Called when more is scored, in the scorer's thread."""
        self._thread = threading.Thread(target=self._run, name="augury-scorer", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> FeedbackCounts:
        """What became of all reports so far."""
        return self._told + self._late

    def report(self, ids: Any, losses: Any = None, logits: Any = None, labels: Any = None) -> None:
        """Take a minibatch's evidence. Does not wait; BadFeedback, now or at the next call, where it cannot be used."""
        self._raise_late_error()
        try:
            report = read_report(ids, losses, logits, labels, len(self.known.scores))
        except BadFeedback:
            self._told.dropped += 1
            raise
        self._told.reports += 1
        self._told.samples += len(report.ids)
        self._queue.put(report)

    def report_accuracy(self, accuracy: float) -> None:
        """The model's accuracy on held-out data."""
        self._queue.put(_check_accuracy(accuracy))

    def request(self) -> None:
        """Training asks for its next batch: whatever it has told so far is one round."""
        self._raise_late_error()
        self._requested += 1
        self._queue.put(_Mark(self._requested))

    def ready(self, decision: int) -> bool:
        """Whether all that must take effect before a decision is scored. Decisions are counted from 0."""
        return self._scored >= decision - self.lag + 2

    def settle(self, decision: int) -> bool:
        """Let take effect what must before a decision; False if it is not there yet."""
        due = decision - self.lag + 2
        if self._scored < due:
            return False
        while self._settled < due:
            self._apply(self._rounds.popleft())
            self._settled += 1
        return True

    def restart(self) -> None:
        """Begin to count requests and decisions anew; all that was told takes effect. Nobody may be deciding."""
        self.wait()
        while self._rounds:
            self._apply(self._rounds.popleft())
        self._apply(self._round)
        self._round = []
        self._requested = self._scored = self._settled = 0

    def exchange(self, with_all: Exchange) -> None:
        """Give what was scored here since the last time to all ranks, and learn theirs with the round that training
        is ending. All ranks must come here at the same request."""
        self.wait()
        fresh, self._fresh = self._fresh, []
        ids = np.concatenate([np.empty(0, np.int64), *(one.ids for one in fresh)])
        scores = np.concatenate([np.empty(0, np.float32), *(one.scores for one in fresh)])
        self._queue.put(_Others([Scored(*pair, exchanged=True) for pair in with_all(ids, scores)]))

    def wait(self) -> None:
        """Until all that was told is scored."""
        done = threading.Event()
        self._queue.put(done)
        done.wait()

    def close(self) -> None:
        """End the thread."""
        self._queue.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _apply(self, scored: list[Scored]) -> None:
        for one in scored:
            if one.accuracy is not None:
                self.known.accuracies.append(one.accuracy)
            if one.exchanged:
                self.known.visit(one.ids)
            else:
                self.known.add_losses(one.loss_sum, len(one.ids))
            if len(one.ids):
                self.known.learn(one.ids, one.scores)
                self._learn(one.ids, one.scores)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, Report):
                self._score(item)
            elif isinstance(item, _Mark):
                self._rounds.append(self._round)
                self._round = []
                self._scored = item.round
                self.wake()
            elif isinstance(item, _Others):
                self._round.extend(item.scores)
            elif isinstance(item, threading.Event):
                item.set()
            else:
                self._round.append(Scored(np.empty(0, np.int64), np.empty(0, np.float32), accuracy=item))

    def _score(self, report: Report) -> None:
        try:
            losses = report.losses()
            scored = Scored(report.ids, self._scorer.score(report.ids, losses), float(losses.sum()))
        except BadFeedback as error:
            self._late.reports -= 1
            self._late.samples -= len(report.ids)
            self._late.dropped += 1
            self._error = error
            return
        self._round.append(scored)
        self._fresh.append(scored)

    def _raise_late_error(self) -> None:
        """Values on a device were found wrong only after `report` had returned."""
        error, self._error = self._error, None
        if error is not None:
            raise error


def _check_accuracy(accuracy: Any) -> float:
    """A share or a percentage: any finite number, as long as more is better."""
    try:
        value = float(accuracy)
    except (TypeError, ValueError):
        raise BadFeedback(f"accuracy={accuracy!r}: give a number") from None
    if not np.isfinite(value):
        raise BadFeedback(f"accuracy={accuracy!r}: give a finite number")
    return value
