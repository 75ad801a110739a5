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
