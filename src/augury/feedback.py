"""Feedback: reports of the training thread, scored in a thread of its own, taking effect at a fixed decision.

What is told between two requests for a batch is one round. A round takes effect before one certain decision, never
earlier or later, so that the same seed gives the same run however fast training, scoring and reading are. A loop that
reports each batch before it asks for the next one has

    feedback of batch k  ->  before decision k + lag        (`augury replay --lag` does the same)

So at most `lag` batches are decided ahead of training. Whether and when training reports is its own affair: decisions
wait for its requests, not for its reports. How losses become scores is in scorers/, what users may pass in reports.py.

A scorer whose work takes long may have little patience: then training does not wait for it either, what is not scored
in time is left or comes a round later, and two runs are alike only as far as their timing is.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from augury.errors import BadFeedback
from augury.ids import NONE, Ids, Scores
from augury.knowledge import Knowledge
from augury.metrics import FeedbackCounts
from augury.reports import Report, check_accuracy, read_report
from augury.scorers import Needs, Scorer

NO_SCORES: Scores = np.empty(0, np.float32)


class Scored(NamedTuple):
    """What one report, or one word about accuracy, amounts to."""

    epoch: int
    """Of training, when it was told."""
    ids: Ids
    scores: Scores
    losses: tuple[float, int] = (0.0, 0)
    """Their sum and number."""
    kin: Ids | None = None
    """One of them, and after it those that it may stand in for."""
    accuracy: float | None = None
    visits: bool = False
    """It comes from all ranks: so do visits that this one has not seen."""

    def teach(self, known: Knowledge) -> None:
        """Let it be known."""
        if self.accuracy is not None:
            known.accuracies.append(self.accuracy)
        known.add_losses(self.epoch, *self.losses)
        if self.visits:
            known.visit(self.ids, self.epoch)
        known.learn(self.ids, self.scores)


Learn: TypeAlias = Callable[[Ids, Scores, "Ids | None"], None]
"""Teaches the cache new scores, and perhaps who may stand in for whom."""

Exchange: TypeAlias = Callable[[Ids, Scores], Sequence[tuple[Ids, Scores]]]
"""Gives this rank's scores to all ranks; returns each rank's."""


@dataclass
class _Task:
    """A report that is to be scored."""

    epoch: int
    report: Report


@dataclass
class _Mark:
    """Training asks for a batch: what was told before is a round."""

    round: int


@dataclass
class _Pause:
    """Somebody waits until what was told before is scored; perhaps so that it be a round at once."""

    ends_round: bool
    reached: threading.Event = field(default_factory=threading.Event)


_Item: TypeAlias = _Task | Scored | _Mark | _Pause | None


class Feedback:
    """One loader's feedback. The training thread reports and requests; the thread that decides settles.

    Where the scorer has little patience, training never waits for it: when too many rounds wait to be scored, the
    oldest takes effect as it is, and reports in it that are not scored yet are dropped and counted.
    """

    def __init__(self, scorer: Scorer, known: Knowledge, learn: Learn, lag: int) -> None:
        self.known, self.lag = known, lag
        self.epoch = 0
        """Where training is."""
        self.wake: Callable[[], None] = nobody
        """Called when more is scored, in the scorer's thread."""
        self.shares = False
        """Whether what is scored here is kept for the other ranks."""
        self._told, self._late = FeedbackCounts(), FeedbackCounts()
        """Counted by the training thread; and, below zero, what the scorer's thread had to drop later."""
        self._scorer, self._learn = scorer, learn
        # Half of what may be decided ahead: the other half is for reading while the scorer works.
        self._patience = None if scorer.patience is None else max(1, min(scorer.patience, lag // 2))
        self._line: deque[_Item] = deque()
        """What the scorer's thread has still to do."""
        self._change = threading.Condition()
        """Guards the line and the rounds."""
        self._marks = 0
        """Rounds in the line."""
        self._round: list[Scored] = []
        self._rounds: deque[list[Scored]] = deque()
        self._settling = threading.Lock()
        self._requested = self._scored = self._settled = 0
        """Rounds that training has ended, that are scored, and that have taken effect."""
        self._fresh: list[Scored] = []
        """Scored here since the last exchange with other ranks."""
        self._error: BadFeedback | None = None
        self._thread = threading.Thread(target=self._run, name="augury-scorer", daemon=True)
        self._thread.start()

    @property
    def needs(self) -> Needs:
        """What it must be told."""
        return self._scorer.needs

    @property
    def counts(self) -> FeedbackCounts:
        """What became of all reports so far."""
        return self._told + self._late

    def report(
        self, ids: Any, losses: Any = None, logits: Any = None, labels: Any = None, embeddings: Any = None
    ) -> Ids:
        """Take a minibatch's evidence; of whom it is. Does not wait; BadFeedback where it cannot be used: at once, or
        at the next call where its values have to be waited for."""
        with self._counting_refusals():
            told = ids, losses, logits, labels, embeddings
            report = read_report(*told, len(self.known.scores), self.needs)
        self._told.reports += 1
        self._told.samples += len(report.ids)
        self._put(_Task(self.epoch, report))
        error, self._error = self._error, None
        if error is not None:
            raise error
        return report.ids

    def report_accuracy(self, accuracy: Any) -> None:
        """The model's accuracy on held-out data."""
        with self._counting_refusals():
            value = check_accuracy(accuracy)
        self._put(Scored(self.epoch, NONE, NO_SCORES, accuracy=value))

    def request(self) -> None:
        """Training asks for its next batch: whatever it has told so far is one round."""
        self._requested += 1
        with self._change:
            self._line.append(_Mark(self._requested))
            self._marks += 1
            ended = self._overtake()
            self._change.notify()
        if ended:
            self.wake()

    def ready(self, decision: int) -> bool:
        """Whether all that must take effect before a decision is scored. Decisions are counted from 0."""
        return self._scored >= self._due(decision)

    def settle(self, decision: int) -> bool:
        """Let take effect what must before a decision; False if it is not there yet."""
        if not self.ready(decision):
            return False
        while self._settled < self._due(decision):
            self._apply_next()
            self._settled += 1
        return True

    def restart(self) -> None:
        """Begin to count requests and decisions anew; all that was told takes effect. Nobody may be deciding."""
        self.wait(end_round=True)
        while self._rounds:
            self._apply_next()
        self._requested = self._scored = self._settled = 0

    def exchange(self, with_all: Exchange) -> list[Ids]:
        """Give what was scored here since the last time to all ranks, and learn theirs with the round that training
        is ending. All ranks must come here at the same request. Returns whom each has scored."""
        self.wait()
        fresh, self._fresh = self._fresh, []
        told = with_all(*together((one.ids, one.scores) for one in fresh))
        for ids, scores in told:
            self._put(Scored(self.epoch, ids, scores, visits=True))
        return [ids for ids, _ in told]

    def snapshot(self) -> tuple[Knowledge, Ids]:
        """All that was told until now, whether it has taken effect or not; and who is fresh to the other ranks."""
        self.wait()
        with self._settling, self._change:
            known = self.known.copy()
            for scored in (*self._rounds, self._round):
                for one in scored:
                    one.teach(known)
        return known, np.concatenate([NONE, *(one.ids for one in self._fresh)])

    def scorer_state(self) -> dict[str, Any]:
        """What the scorer remembers of all that was told until now."""
        self.wait()
        return self._scorer.state_dict()

    def replace(self, known: Knowledge, fresh: Ids, scorer: dict[str, Any]) -> None:
        """Know this instead, and let the scorer go on as it was saved. Nobody may be deciding."""
        self.restart()
        self._scorer.load_state_dict(scorer)  # or refuses it, and nothing changes
        self.known = known
        self._fresh = [Scored(self.epoch, fresh, known.scores[fresh])]

    def wait(self, end_round: bool = False) -> None:
        """Until all that was told is scored."""
        pause = _Pause(end_round)
        self._put(pause)
        while not pause.reached.wait(0.1):
            if not self._thread.is_alive():  # closed: what was told before that is scored
                return

    def close(self) -> None:
        """End the thread. What a scorer of little patience has not scored yet is left."""
        with self._change:
            if self._patience is not None:
                self._line = deque(item for item in self._line if not isinstance(item, _Task))
        self._put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _due(self, decision: int) -> int:
        """The round that takes effect before a decision: feedback of batch k is in round k + 2, which ends with the
        request for batch k + 1."""
        return decision - self.lag + 2

    def _apply_next(self) -> None:
        with self._settling:
            for one in self._rounds.popleft():
                one.teach(self.known)
                if len(one.ids):
                    self._learn(one.ids, one.scores, one.kin)

    def _put(self, item: _Item) -> None:
        with self._change:
            self._line.append(item)
            self._change.notify()

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._line:
                    self._change.wait()
                item = self._line.popleft()
                if item is None:
                    return
                ended = not isinstance(item, _Task) and self._pass(item)
            if isinstance(item, _Task):
                self._score(item.epoch, item.report)
            if ended:
                self.wake()

    def _pass(self, item: Scored | _Mark | _Pause) -> bool:
        """What takes no time; whether a round ends with it."""
        if isinstance(item, Scored):
            self._round.append(item)
        elif isinstance(item, _Mark):
            self._marks -= 1
            self._end_round()
            self._scored = item.round
            return True
        else:
            if item.ends_round:
                self._end_round()
            item.reached.set()
        return False

    def _overtake(self) -> bool:
        """Training goes on without the scores of the oldest rounds, if too many wait; whether it does."""
        ended = False
        while self._patience is not None and self._marks > self._patience:
            item = self._line.popleft()
            assert item is not None  # nobody asks for a batch after the end
            if isinstance(item, _Task):
                self._told.overtaken += 1
            else:
                ended |= self._pass(item)
        return ended

    def _end_round(self) -> None:
        self._rounds.append(self._round)
        self._round = []

    def _score(self, epoch: int, report: Report) -> None:
        try:
            scored = judged(self._scorer, epoch, report)
        except Exception as error:  # a scorer that dies would leave training waiting for ever
            self._late += FeedbackCounts(-1, -len(report.ids), 1)
            self._error = error if isinstance(error, BadFeedback) else _refusal(error)
            return
        with self._change:
            self._round.append(scored)
            if self.shares:
                self._fresh.append(scored)

    @contextlib.contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except BadFeedback:
            self._told.dropped += 1
            raise


def judged(scorer: Scorer, epoch: int, report: Report) -> Scored:
    """What a scorer makes of a report. May wait for a device."""
    losses = report.losses()
    evidence = (losses,) if scorer.needs == "losses" else report.embeddings()
    scores = scorer.score(report.ids, *evidence)
    return Scored(epoch, report.ids, scores, (float(losses.sum()), len(losses)), scorer.kin)


def together(parts: Iterator[tuple[Ids, Scores]] | Sequence[tuple[Ids, Scores]]) -> tuple[Ids, Scores]:
    """Scores of several minibatches as one."""
    ids, scores = zip((NONE, NO_SCORES), *parts, strict=True)
    return np.concatenate(ids), np.concatenate(scores)


def nobody() -> None:
    """Nobody waits for scores."""


def _refusal(error: Exception) -> BadFeedback:
    refused = BadFeedback(f"an earlier report could not be scored: {type(error).__name__}: {error}")
    refused.__cause__ = error
    return refused
