"""Feedback: what may be told, what is refused and how, and when it takes effect."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import augury
from augury.errors import BadFeedback, Closed
from augury.feedback import Feedback
from augury.knowledge import UNTOLD, Knowledge
from augury.reports import cross_entropy
from augury.scorers.graph import Graph
from augury.scorers.loss import LossRank, RawLoss
from augury.torch import per_sample_cross_entropy
from helpers import arrays, settled


@pytest.fixture
def feedback():
    made = Feedback(RawLoss(), Knowledge.none(20), lambda ids, scores, kin: None, lag=1)
    yield made
    made.close()


def scores_after(feedback: Feedback) -> np.ndarray:
    feedback.restart()
    return feedback.known.scores


@pytest.mark.parametrize(
    "kind",
    [list, tuple, np.array, np.float64, torch.tensor, torch.DoubleTensor],
)
def test_losses_of_every_kind(feedback, kind):
    ids = torch.tensor([3, 1, 4]) if kind is torch.tensor else (3, 1, 4) if kind is tuple else [3, 1, 4]
    feedback.report(ids, kind([0.5, 1.5, 2.5]))
    assert scores_after(feedback)[[3, 1, 4, 0]].tolist() == [0.5, 1.5, 2.5, UNTOLD]
    assert feedback.counts == augury.metrics.FeedbackCounts(reports=1, samples=3)


def test_half_precision_gradients_and_non_contiguous_tensors(feedback):
    losses = torch.arange(6, dtype=torch.bfloat16).reshape(3, 2)[:, 1].requires_grad_()
    feedback.report(torch.tensor([0, 1, 2]), losses)
    assert scores_after(feedback)[:3].tolist() == [1, 3, 5]


def test_a_tensor_that_is_changed_afterwards_was_copied(feedback):
    ids, losses = np.array([0, 1]), torch.tensor([1.0, 2.0])
    feedback.report(ids, losses)
    ids[:], losses[:] = 7, 99
    assert scores_after(feedback)[[0, 1, 7]].tolist() == [1, 2, UNTOLD]


def test_logits_and_labels_are_the_cross_entropy():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(0, 50, (64, 10)).astype(np.float32), rng.integers(0, 10, 64)
    expected = F.cross_entropy(torch.tensor(logits), torch.tensor(labels), reduction="none").numpy()
    assert np.allclose(cross_entropy(logits, labels), expected, rtol=1e-4, atol=1e-4)
    told = Feedback(RawLoss(), Knowledge.none(64), lambda ids, scores, kin: None, lag=1)
    told.report(np.arange(64), logits=torch.tensor(logits), labels=torch.tensor(labels))
    assert np.allclose(scores_after(told), expected, rtol=1e-4, atol=1e-4)
    told.close()


def test_the_helper_gives_one_loss_per_sample():
    logits, labels = torch.randn(8, 5, requires_grad=True), torch.arange(8) % 5
    losses = per_sample_cross_entropy(logits, labels)
    assert losses.shape == (8,)
    assert torch.allclose(losses.mean(), F.cross_entropy(logits, labels))
    losses.mean().backward()
    assert logits.grad is not None
    pixels = per_sample_cross_entropy(torch.randn(4, 3, 6, 6), torch.zeros(4, 6, 6, dtype=torch.long))
    assert pixels.shape == (4,)


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (([0, 1], [0.1, float("nan")]), r"loss of sample 1 is nan \(1 of 2"),
        (([0, 1], [float("inf"), 0.1]), "loss of sample 0 is inf"),
        (([0, 1], [0.1]), r"shape \(1,\) for 2 ids"),
        (([0, 1], 0.3), "reduction='none'"),
        (([0, 1], torch.tensor(0.3)), "reduction='none'"),
        (([0, 1], [[0.1], [0.2]]), r"shape \(2, 1\).*squeeze\(1\)"),
        (([0, 1], np.zeros((2, 10))), "if these are logits"),
        (([0, 20], [0.1, 0.2]), "no sample 20: ids go from 0 to 19"),
        (([-1, 2], [0.1, 0.2]), "no sample -1"),
        (([0.5, 2], [0.1, 0.2]), "whole numbers"),
        ((None, [0.1, 0.2]), "of which samples"),
        (([0, 1], None), "give ids and losses"),
        (([0, 1], "ab"), "cannot be read as an array of numbers"),
        (([0, 1], [0.1, 0.2], np.zeros((2, 3)), [0, 1]), "not both"),
        (([0, 1], None, np.zeros((2, 3))), "go together"),
        (([0, 1], None, np.zeros(2), [0, 1]), r"\(2, classes\)"),
        (([0, 1], None, np.zeros((3, 3)), [0, 1]), r"\(2, classes\)"),
        (([0, 1], None, np.zeros((2, 3)), [0, 1, 2]), "one class per id"),
        (([0, 1], None, np.zeros((2, 3)), [0, 3]), "there are 3 classes"),
    ],
)
def test_what_cannot_be_used_is_refused_counted_and_changes_nothing(feedback, report, message):
    with pytest.raises(BadFeedback, match=message):
        feedback.report(*report)
    assert (scores_after(feedback) == UNTOLD).all()
    assert feedback.counts == augury.metrics.FeedbackCounts(dropped=1)


def test_values_that_must_be_waited_for_are_refused_at_the_next_call(feedback):
    """Logits are looked at by the scorer's thread, like anything on a device."""
    feedback.report([0, 1], logits=np.array([[-np.inf, 1], [1, 2]]), labels=[0, 1])
    feedback.wait()
    feedback.request()  # training itself goes on
    with pytest.raises(BadFeedback, match="loss of sample 0 is inf"):
        feedback.report([3], [0.5])
    feedback.report([4], [0.5])
    assert scores_after(feedback)[[0, 3, 4]].tolist() == [UNTOLD, 0.5, 0.5]
    assert feedback.counts == augury.metrics.FeedbackCounts(reports=2, samples=2, dropped=1)


def test_a_scorer_that_fails_is_told_of_and_training_goes_on():
    class Broken(RawLoss):
        def score(self, ids, losses):
            if ids[0] == 13:
                raise ZeroDivisionError("thirteen")
            return super().score(ids, losses)

    feedback = Feedback(Broken(), Knowledge.none(20), lambda ids, scores, kin: None, lag=1)
    feedback.report([13], [1.0])
    feedback.wait()
    with pytest.raises(BadFeedback, match="ZeroDivisionError: thirteen"):
        feedback.report([2], [1.5])
    assert scores_after(feedback)[[2, 13]].tolist() == [1.5, UNTOLD]
    feedback.close()
    feedback.wait()  # nobody waits for a thread that has ended


@pytest.mark.filterwarnings("error")
def test_odd_values_warn_nobody(feedback):
    for values in ([1e300, 0.1], [[1j], [0]], [torch.ones(1, requires_grad=True)] * 2, torch.ones(2, device="meta")):
        with pytest.raises(BadFeedback):
            feedback.report([0, 1], values)
    with pytest.raises(BadFeedback, match="classes"):
        feedback.report([], logits=np.empty((0, 0)), labels=[])
    with pytest.raises(BadFeedback, match="whole numbers"):
        feedback.report([0], logits=[[0.1, 0.2]], labels=[0.5])
    feedback.report([], [])
    assert feedback.counts.dropped == 6


@pytest.mark.parametrize("accuracy", [float("nan"), "high", None, [0.1, 0.2]])
def test_accuracy_is_a_number(feedback, accuracy):
    with pytest.raises(BadFeedback, match="accuracy"):
        feedback.report_accuracy(accuracy)


def test_a_round_takes_effect_before_its_decision_and_not_earlier():
    learned = []
    feedback = Feedback(RawLoss(), Knowledge.none(50), lambda ids, scores, kin: learned.append(ids.tolist()), lag=3)
    for batch in range(10):
        # Decisions may run ahead as far as requests allow, and no further.
        feedback.request()
        feedback.wait()
        assert feedback.ready(batch + 2)
        assert not feedback.ready(batch + 3)
        assert feedback.settle(batch + 2)
        assert not feedback.settle(batch + 3)
        assert learned == [[told] for told in range(batch)]  # of batch k before decision k + 3
        feedback.report([batch], [1.0])
    feedback.close()


def test_feedback_does_not_wait_for_the_scorer():
    class Slow(RawLoss):
        def score(self, ids, losses):
            time.sleep(0.2)
            return losses

    feedback = Feedback(Slow(), Knowledge.none(5), lambda ids, scores, kin: None, lag=2)
    began = time.perf_counter()
    for _ in range(5):
        feedback.report([0], [1.0])
    assert time.perf_counter() - began < 0.2  # a fifth of what scoring takes
    feedback.wait()
    assert feedback.counts.reports == 5
    feedback.close()


def test_recipes_that_learn_nothing_ignore_it():
    x, y = arrays()
    before = threading.active_count()
    with augury.Loader((x, y), 16, recipe="minio", output="numpy") as loader:
        for _, _, ids in loader:
            loader.feedback(ids, np.full(len(ids), np.nan))
        loader.feedback(accuracy=0.5)
        assert loader.stats().feedback == augury.metrics.FeedbackCounts()
        assert not any(thread.name == "augury-scorer" for thread in threading.enumerate())
    assert settled(lambda: threading.active_count() == before)


def test_a_loader_says_what_is_wrong_and_goes_on():
    x, y = arrays()
    with augury.Loader((x, y), 16, recipe="shade", output="numpy") as loader:
        refused = 0
        for number, (_, _, ids) in enumerate(loader):
            losses = np.full(len(ids), np.nan if number % 2 else 1.0)
            try:
                loader.feedback(ids, losses)
            except BadFeedback:
                refused += 1
        with pytest.raises(BadFeedback, match="given nothing"):
            loader.feedback()
        assert loader.stats().feedback.dropped == refused == len(loader) // 2
    with pytest.raises(Closed):
        loader.feedback([0], [1.0])


def test_ranks_of_a_minibatch_reach_the_cache():
    learned = {}
    feedback = Feedback(
        LossRank(), Knowledge.none(10), lambda ids, scores, kin: learned.update(zip(ids, scores, strict=True)), 1
    )
    feedback.report([4, 5, 6], [0.3, 0.5, 0.4])
    feedback.restart()
    assert learned == pytest.approx({4: np.log(10), 5: np.log(12), 6: np.log(11)})
    feedback.close()


def rows(count, width=4):
    return np.arange(count * width, dtype=np.float32).reshape(count, width) / 1000


class TestEmbeddings:
    @pytest.fixture
    def told(self):
        """Feedback that is scored by embeddings, and what the cache learned."""
        learned = []
        made = Feedback(Graph(20, decay=0.01), Knowledge.none(20), lambda *told: learned.append(told), lag=1)
        made.learned = learned
        yield made
        made.close()

    @pytest.mark.parametrize("kind", [np.array, torch.tensor, np.ndarray.tolist, np.float64, torch.DoubleTensor])
    def test_of_every_kind(self, told, kind):
        ids = told.report([3, 1, 4], embeddings=kind(rows(3)), labels=torch.tensor([0, 1, 0]))
        assert ids.tolist() == [3, 1, 4]
        told.restart()
        expected = np.log([2 + 1 / 500, 1 + 1 + 2 / 500, 2 + 1 / 500])
        np.testing.assert_allclose(told.known.scores[[3, 1, 4]], expected, rtol=1e-6)
        assert told.known.scores[0] == UNTOLD
        assert told.counts == augury.metrics.FeedbackCounts(reports=1, samples=3)

    def test_tensors_with_gradients_and_of_half_precision(self, told):
        layer = torch.nn.Linear(4, 4)
        told.report([0, 1], embeddings=layer(torch.ones(2, 4)), labels=torch.zeros(2, dtype=torch.int8))
        told.report([2], embeddings=100 * torch.ones(1, 4, dtype=torch.bfloat16), labels=[0])
        told.restart()
        np.testing.assert_allclose(told.known.scores[:3], np.log(2), rtol=1e-6)

    def test_what_is_changed_afterwards_was_copied(self, told):
        embeddings, labels = torch.zeros(2, 4), np.array([5, 5])
        told.report([0, 1], embeddings=embeddings, labels=labels)
        embeddings[1], labels[1] = 1000, 6
        told.report([2], embeddings=np.zeros((1, 4)), labels=[5])
        told.restart()
        assert told.known.scores[2] == pytest.approx(np.log(1.5))

    def test_who_is_alike_reaches_the_cache(self, told):
        told.report([3, 1, 4, 5], embeddings=[[0.0], [50.0], [1.0], [0.5]], labels=[2, 2, 2, 2])
        told.report([7], embeddings=[[90.0]], labels=[2])
        told.restart()
        (ids, scores, kin), (_, _, nobody) = told.learned
        assert ids.tolist() == [3, 1, 4, 5]
        np.testing.assert_allclose(scores, np.log([1.5, 2, 1.5, 1.5]), rtol=1e-6)
        assert kin[0] == 3
        assert sorted(kin[1:].tolist()) == [4, 5]
        assert nobody is None

    def test_losses_or_logits_beside_are_for_the_loss_curve_alone(self, told):
        told.report([0, 1], [1.0, 3.0], embeddings=rows(2), labels=[7, -8])
        told.report([2], logits=[[0.0, 0.0]], embeddings=rows(1), labels=[1])
        told.report([3], embeddings=rows(1), labels=[1])
        told.restart()
        assert told.known.loss_curve() == pytest.approx([(4 + np.log(2)) / 3])
        assert (told.known.scores[:4] != UNTOLD).all()
        assert told.known.scores[0] == pytest.approx(np.log(2 + 1 / 500))

    @pytest.mark.parametrize(
        ("report", "message"),
        [
            ({}, r"learns from embeddings.*capture_embeddings"),
            ({"losses": [0.1, 0.2]}, "learns from embeddings"),
            ({"embeddings": rows(2)}, "labels="),
            ({"embeddings": rows(2), "losses": [0.1, 0.2]}, "labels="),
            ({"labels": [0, 1]}, "learns from embeddings"),
            ({"logits": np.zeros((2, 3)), "labels": [0, 1]}, "learns from embeddings"),
            (
                {"embeddings": rows(3), "labels": [0, 1]},
                r"has shape \(3, 4\); for 2 ids it is \(2, numbers\)",
            ),
            ({"embeddings": np.zeros(2), "labels": [0, 1]}, r"shape \(2,\)"),
            ({"embeddings": np.zeros((2, 3, 4)), "labels": [0, 1]}, r"shape \(2, 3, 4\)"),
            ({"embeddings": np.zeros((2, 0)), "labels": [0, 1]}, r"shape \(2, 0\)"),
            ({"embeddings": rows(2), "labels": [0]}, "one class per id"),
            ({"embeddings": rows(2), "labels": [[0], [1]]}, "one class per id"),
            ({"embeddings": rows(2), "labels": [0.5, 1]}, "labels cannot be read.*whole numbers"),
            ({"embeddings": "ab", "labels": [0, 1]}, "embeddings cannot be read"),
            ({"embeddings": [[1, 2], [1, np.nan]], "labels": [0, 1]}, r"embedding of sample 9 .*\(so have 1 of 2\)"),
            ({"embeddings": [[1, np.inf], [1, np.nan]], "labels": [0, 1]}, r"embedding of sample 6 .*have 2 of 2"),
            ({"embeddings": [[1e300, 1], [1, 1]], "labels": [0, 1]}, "embedding of sample 6"),
            ({"embeddings": rows(2), "labels": [0, 1], "losses": [0.1, np.nan]}, "loss of sample 9 is nan"),
            ({"embeddings": rows(2), "labels": [0, 1], "losses": [0.1]}, r"losses has shape \(1,\)"),
            ({"embeddings": rows(2), "labels": [0, 3], "logits": np.zeros((2, 3))}, "there are 3 classes"),
        ],
    )
    def test_what_cannot_be_used_is_refused_counted_and_changes_nothing(self, told, report, message):
        with pytest.raises(BadFeedback, match=message):
            told.report([6, 9], **report)
        assert (scores_after(told) == UNTOLD).all()
        assert told.counts == augury.metrics.FeedbackCounts(dropped=1)

    def test_another_width_is_refused_at_the_next_call(self, told):
        told.report([0, 1], embeddings=rows(2), labels=[0, 1])
        told.report([2, 3], embeddings=rows(2, width=5), labels=[0, 1])
        told.wait()
        with pytest.raises(BadFeedback, match="have 5 numbers, and earlier ones had 4"):
            told.report([4], embeddings=rows(1), labels=[0])
        assert (scores_after(told)[:5] != UNTOLD).tolist() == [True, True, False, False, True]
        assert told.counts == augury.metrics.FeedbackCounts(reports=2, samples=3, dropped=1)

    def test_a_minibatch_of_nobody(self, told):
        told.report([], embeddings=np.empty((0, 4)), labels=[])
        told.restart()
        assert told.counts == augury.metrics.FeedbackCounts(reports=1)
        assert told.learned == []

    @pytest.mark.parametrize("embeddings", [np.full((2, 3), np.nan), rows(7), "nothing at all"])
    def test_recipes_that_learn_from_losses_ignore_them(self, feedback, embeddings):
        feedback.report([0, 1], [0.5, 1.5], labels=[0, 1], embeddings=embeddings)
        feedback.report([2], logits=[[0.0, 0.0]], labels=[1], embeddings=embeddings)
        assert scores_after(feedback)[:3].tolist() == pytest.approx([0.5, 1.5, np.log(2)])
        with pytest.raises(BadFeedback, match="give ids and losses"):
            feedback.report([0, 1], labels=[0, 1], embeddings=embeddings)


class Slow(RawLoss):
    """Scores nothing while it is shut."""

    def __init__(self, patience):
        self.patience, self.open, self.busy, self.scored = patience, threading.Event(), threading.Event(), []

    def score(self, ids, losses, labels=None):
        self.busy.set()
        assert self.open.wait(60)
        self.scored.append(ids.tolist())
        return super().score(ids, losses)


@pytest.fixture
def slow_feedback():
    """(patience, lag) -> a scorer that is shut, its feedback, and whom the cache has learned of."""
    made = []

    def make(patience, lag, kind=Slow):
        scorer, learned = kind(patience), []
        feedback = Feedback(scorer, Knowledge.none(50), lambda ids, scores, kin: learned.append(ids.tolist()), lag)
        made.append((scorer, feedback))
        return scorer, feedback, learned

    yield make
    for scorer, feedback in made:
        scorer.open.set()
        feedback.close()


def train(feedback, scorer, batches, start=0):
    """As a loop does: ask for a batch, then report it. The scorer holds the first one when the next comes."""
    for batch in range(start, start + batches):
        feedback.request()
        feedback.report([batch], [0.5])
        assert scorer.busy.wait(60)


class TestPatience:
    @pytest.mark.parametrize(("patience", "lag", "rounds"), [(2, 8, 2), (4, 8, 4), (9, 8, 4), (4, 4, 2), (4, 1, 1)])
    def test_so_many_rounds_may_wait_and_then_the_oldest_is_overtaken(self, slow_feedback, patience, lag, rounds):
        """No more than half of what may be decided ahead."""
        scorer, feedback, learned = slow_feedback(patience, lag)
        train(feedback, scorer, 1 + rounds)  # the first round is empty and ends at once
        assert not feedback.ready(lag)  # which needs the second, with the batch that the scorer has in its hands
        assert feedback.counts.overtaken == 0
        train(feedback, scorer, 1, start=1 + rounds)  # ends a round too many: this one goes without a score
        assert feedback.ready(lag)
        assert not feedback.ready(lag + 1)
        assert feedback.counts.overtaken == 0, "what is being scored is no loss: it takes effect later"
        train(feedback, scorer, 1, start=2 + rounds)
        assert feedback.ready(lag + 1)
        assert not feedback.ready(lag + 2)
        assert feedback.counts.overtaken == 1
        assert feedback.settle(lag + 1)
        assert learned == []
        scorer.open.set()
        feedback.restart()
        assert learned == [[0], *([batch] for batch in range(2, 3 + rounds))]
        assert feedback.counts == augury.metrics.FeedbackCounts(reports=3 + rounds, samples=3 + rounds, overtaken=1)

    def test_training_goes_on_however_long_a_score_takes(self, slow_feedback):
        scorer, feedback, learned = slow_feedback(2, 8)
        woken = []
        feedback.wake = lambda: woken.append(threading.current_thread())
        for batch in range(40):
            train(feedback, scorer, 1, start=batch)
            assert feedback.ready(batch)
            assert feedback.settle(batch)
        assert feedback.counts.overtaken == 40 - 4
        assert woken.count(threading.current_thread()) == 40 - 3, "whoever decides is told that a round has ended"
        scorer.open.set()
        feedback.wait()
        assert scorer.scored == [[0], [37], [38], [39]]
        assert feedback.settle(46)
        assert learned == [[0], [37], [38]], "the last one waits for the next request"

    def test_what_is_not_scored_is_not_known_and_the_rest_is(self, slow_feedback):
        scorer, feedback, _ = slow_feedback(1, 2)
        train(feedback, scorer, 6)
        feedback.report_accuracy(0.5)
        train(feedback, scorer, 6, start=6)
        feedback.report_accuracy(0.75)
        feedback.request()
        scorer.open.set()
        feedback.restart()
        assert feedback.known.accuracies == [0.5, 0.75]  # of overtaken rounds too
        told = np.flatnonzero(feedback.known.scores != UNTOLD).tolist()
        assert told == [0, 11]
        assert feedback.counts.overtaken == 10

    def test_after_a_new_start_it_has_its_patience_again(self, slow_feedback):
        scorer, feedback, learned = slow_feedback(1, 2)
        train(feedback, scorer, 5)
        scorer.open.set()
        feedback.restart()
        overtaken = feedback.counts.overtaken
        learned.clear()
        scorer.open.clear()
        scorer.busy.clear()
        train(feedback, scorer, 2, start=10)
        assert not feedback.ready(2)
        assert feedback.counts.overtaken == overtaken
        scorer.open.set()
        feedback.restart()
        assert learned == [[10], [11]]

    def test_without_patience_for_it_nothing_is_dropped_and_rounds_keep_their_order(self, slow_feedback):
        scorer, feedback, learned = slow_feedback(None, 3)
        train(feedback, scorer, 20)
        assert not feedback.ready(3)
        assert not feedback.settle(3)
        scorer.open.set()
        feedback.wait()
        assert feedback.counts == augury.metrics.FeedbackCounts(reports=20, samples=20)
        for decision in range(22):
            assert feedback.settle(decision)
            assert learned == [[batch] for batch in range(decision - 2)]
        feedback.restart()
        assert learned == [[batch] for batch in range(20)]

    def test_a_fast_scorer_is_never_overtaken(self, slow_feedback):
        scorer, feedback, learned = slow_feedback(1, 2)
        scorer.open.set()
        for batch in range(30):
            train(feedback, scorer, 1, start=batch)
            feedback.wait()
        feedback.restart()
        assert learned == [[batch] for batch in range(30)]
        assert feedback.counts.overtaken == 0

    @pytest.mark.parametrize("patience", [None, 1])
    def test_it_can_be_closed_while_the_scorer_is_busy(self, slow_feedback, patience):
        scorer, feedback, _ = slow_feedback(patience, 2)
        train(feedback, scorer, 5)
        closing = threading.Thread(target=feedback.close)
        closing.start()
        scorer.open.set()
        closing.join(60)
        assert not closing.is_alive()
        assert not any(thread.name == "augury-scorer" for thread in threading.enumerate())
        feedback.wait()  # nobody waits for a thread that has ended
        assert scorer.scored == ([[0]] if patience else [[batch] for batch in range(5)])

    def test_a_score_that_fails_late_is_told_of_and_not_counted_as_overtaken(self, slow_feedback):
        class Broken(Slow):
            def score(self, ids, losses, labels=None):
                super().score(ids, losses)
                raise ZeroDivisionError("late")

        scorer, feedback, _ = slow_feedback(1, 2, Broken)
        train(feedback, scorer, 4)
        scorer.open.set()
        feedback.wait()
        with pytest.raises(BadFeedback, match="ZeroDivisionError: late"):
            feedback.report([9], [1.0])
        feedback.wait()
        assert feedback.counts == augury.metrics.FeedbackCounts(reports=1, samples=1, dropped=4, overtaken=1)
