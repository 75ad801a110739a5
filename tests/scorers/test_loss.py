"""Scores from losses: the paper's example, Eq. 6 as it is written, Eq. 5, percentiles, and what a scorer never does."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.errors import ConfigError
from augury.ids import as_ids
from augury.scorers import loss as scorers
from augury.scorers.loss import MEMORY, RANK_BIAS, WINDOW, BatchLoss, LossHistory, LossRank, RawLoss

FORGETFUL = [LossRank, BatchLoss, RawLoss]
ALL = [*FORGETFUL, LossHistory]

losses_of_a_batch = st.lists(st.floats(0, 1e6, width=32), max_size=40)
with_ties = st.lists(st.sampled_from([0.0, 0.1, 0.5, 2.0]), max_size=40)


def score(make, losses, ids=None):
    ids = np.arange(len(losses)) if ids is None else as_ids(ids)
    return make(100).score(ids, np.array(losses, np.float32))


def equation_6(losses, i):
    """As written, but of equal losses the later one counts as higher."""
    lower = 0
    for k in range(len(losses)):
        if k != i and (losses[i] > losses[k] or (losses[i] == losses[k] and k < i)):
            lower += 1
    return math.log(lower + RANK_BIAS)


def test_the_papers_two_minibatches():
    first = dict(zip([4, 5, 6], score(LossRank, [0.3, 0.5, 0.4], [4, 5, 6]), strict=True))
    second = dict(zip([7, 8, 9], score(LossRank, [0.6, 1.2, 0.8], [7, 8, 9]), strict=True))
    assert sorted(first, key=first.__getitem__) == [4, 6, 5]
    assert sorted(second, key=second.__getitem__) == [7, 9, 8]
    assert first[5] == second[8] > first[6] == second[9] > first[4] == second[7]
    raw = np.concatenate([score(RawLoss, [0.3, 0.5, 0.4]), score(RawLoss, [0.6, 1.2, 0.8])])
    assert raw.argsort().tolist().index(1) < 3  # what ranks are for: by its loss, 5 is in the lower half


@given(losses_of_a_batch | with_ties)
def test_ranks_equal_equation_6(losses):
    losses = np.array(losses, np.float32)
    expected = [equation_6(losses, i) for i in range(len(losses))]
    np.testing.assert_allclose(score(LossRank, losses), expected, rtol=1e-6)


@given(losses_of_a_batch | with_ties)
def test_a_minibatch_has_each_rank_once(losses):
    got = np.sort(score(LossRank, losses))
    np.testing.assert_allclose(got, np.log(np.arange(len(losses)) + 10.0), rtol=1e-6)


def test_the_range_for_a_minibatch_of_256():
    scores = score(LossRank, np.random.default_rng(0).random(256))
    assert round(float(scores.min()), 2) == 2.30
    assert round(float(scores.max()), 2) == 5.58
    assert RANK_BIAS == 10


@given(with_ties)
def test_of_equal_losses_the_later_ranks_higher(losses):
    scores = score(LossRank, losses)
    for value in set(losses):
        assert (np.diff(scores[np.array(losses) == value]) > 0).all()


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(-20, 20))
def test_ranks_do_not_change_where_all_losses_fall_alike(losses, halvings):
    losses = np.array(losses, np.float32)
    np.testing.assert_array_equal(score(LossRank, losses * 2.0**-halvings), score(LossRank, losses))


@given(losses_of_a_batch.filter(len))
def test_the_coarse_score_is_equation_5(losses):
    got = score(BatchLoss, losses)
    assert len(set(got.tolist())) == 1
    assert got[0] == pytest.approx(sum(np.float32(loss).item() for loss in losses) / len(losses), rel=1e-5, abs=1e-30)


@given(st.lists(st.floats(-1e6, 1e6, width=32), max_size=40))
def test_the_raw_score_is_the_loss_and_never_negative(losses):
    assert score(RawLoss, losses).tolist() == [max(0.0, loss) for loss in losses]


@pytest.mark.parametrize("make", ALL)
def test_an_empty_minibatch_has_no_scores(make):
    got = score(make, [])
    assert got.shape == (0,)
    assert got.dtype == np.float32


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize(
    "losses", [[0.0], [3.5], [1.0, 1.0, 1.0], [0.0, 0.0], [-2.0, -1.0], [-2.0, 1.0], [1e30, 1e-30]]
)
def test_scores_are_single_precision_finite_and_never_negative(make, losses):
    got = score(make, losses)
    assert got.dtype == np.float32
    assert got.shape == (len(losses),)
    assert np.isfinite(got).all()
    assert (got >= 0).all()


@pytest.mark.parametrize("make", ALL)
def test_arguments_are_not_changed_and_results_are_the_callers(make):
    scorer = make(100)
    losses, ids = np.array([0.5, -0.1, 0.4], np.float32), np.array([7, 1, 7])
    kept = losses.copy(), ids.copy()
    first = scorer.score(ids, losses)
    scores = first.copy()
    again = scorer.score(ids, losses)
    assert not np.shares_memory(first, losses)
    assert np.array_equal(losses, kept[0])
    assert np.array_equal(ids, kept[1])
    again[:] = losses[:] = -5
    assert np.array_equal(first, scores)
    assert (scorer.score(ids, kept[0]) >= 0).all()


@pytest.mark.parametrize("make", FORGETFUL)
def test_they_remember_nothing_and_save_nothing(make):
    scorer = make(100)
    losses, ids = np.array([0.5, -0.1, 0.4], np.float32), np.array([7, 1, 7])
    first = scorer.score(ids, losses)
    scorer.score(ids[:1], losses[:1])
    assert scorer.state_dict() == {}
    scorer.load_state_dict({})
    assert np.array_equal(scorer.score(ids, losses), first)


def test_a_large_minibatch_still_has_distinct_ranks():
    """Single precision tells ln(j + 10) of neighbours apart in any minibatch that is ever used."""
    assert len(np.unique(score(LossRank, np.arange(65_536)))) == 65_536


class SlowHistory:
    """Percentiles one loss at a time, with lists and loops."""

    def __init__(self, window, memory):
        self.window, self.memory, self.last, self.before = window, memory, [], {}

    def score(self, ids, losses):
        self.last.extend(losses)
        self.last = self.last[-max(self.window, len(losses)) :]
        scores, before = [], dict(self.before)
        for id, loss in zip(ids, losses, strict=True):
            percentile = sum(other <= loss for other in self.last) / len(self.last)
            if id in before:
                percentile = self.memory * before[id] + (1 - self.memory) * percentile
            scores.append(percentile)
            self.before[id] = percentile
        return scores


some_losses = st.floats(0, 100, width=32) | st.sampled_from([0.0, 0.5, 2.0])
minibatches = st.lists(st.dictionaries(st.integers(0, 19), some_losses, max_size=12), max_size=8)


def score_all(scorer, batches):
    return [scorer.score(as_ids(list(batch)), np.array(list(batch.values()), np.float32)) for batch in batches]


class TestHistory:
    @settings(max_examples=100)
    @given(minibatches, st.integers(1, 30), st.sampled_from([0.0, 0.25, 0.5, 0.9]))
    def test_scores_are_as_the_slow_model_says(self, batches, window, memory):
        slow = SlowHistory(window, memory)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scorers, "WINDOW", window)
            got = score_all(LossHistory(20, memory=memory), batches)
        for batch, scores in zip(batches, got, strict=True):
            np.testing.assert_allclose(scores, slow.score(list(batch), list(batch.values())), atol=1e-6)
            assert scores.dtype == np.float32
            assert ((scores > 0) & (scores <= 1)).all(), "nobody scores 0, and nobody above the hardest"

    def test_by_hand(self):
        scorer = LossHistory(10)
        assert scorer.score(as_ids([4, 5, 6, 7]), np.array([3, 1, 4, 2], np.float32)).tolist() == [0.75, 0.25, 1, 0.5]
        # among 1 2 3 4 and 1 1 the loss 1 reaches three of six; 5 was at 1/4, 8 is new
        assert scorer.score(as_ids([5, 8]), np.array([1, 1], np.float32)).tolist() == [0.375, 0.5]
        assert (WINDOW, MEMORY) == (1024, 0.5)

    def test_a_percentile_is_of_the_last_losses_alone(self):
        """Hard then, easy now: nothing but the last so many losses counts."""
        scorer = LossHistory(5000, memory=0)
        scorer.score(np.arange(1024), np.full(1024, 100, np.float32))
        assert scorer.score(as_ids([2000]), np.array([50], np.float32))[0] == np.float32(1 / 1024)
        scorer.score(np.arange(1022), np.full(1022, 1, np.float32))  # one loss of 100 is left
        assert scorer.score(as_ids([2001]), np.array([50], np.float32))[0] == 1
        scorer.score(np.arange(1023), np.full(1023, 1, np.float32))
        assert scorer.score(as_ids([2002]), np.array([2], np.float32))[0] == 1

    def test_a_minibatch_that_is_larger_than_the_window_is_ranked_whole(self):
        scores = LossHistory(3000).score(np.arange(3000), np.arange(3000, dtype=np.float32))
        np.testing.assert_allclose(scores, np.arange(1, 3001) / 3000, rtol=1e-6)

    def test_the_hardest_scores_one_and_stays_there(self):
        scorer, rng = LossHistory(100), np.random.default_rng(0)
        for scale in (8.0, 4.0, 2.0, 1.0):
            losses = rng.random(100).astype(np.float32) * scale
            losses[17] = 9.0
            scores = scorer.score(np.arange(100), losses)
            assert scores[17] == 1
            assert (np.delete(scores, 17) < 1).all()
            assert scores.min() > 0

    def test_scores_do_not_fall_with_the_losses(self):
        """Of minibatches as large as the window: the same order of losses scores the same, however small they are."""
        losses = np.random.default_rng(0).random(1024).astype(np.float32)
        first = LossHistory(1024).score(np.arange(1024), losses)
        scorer = LossHistory(1024)
        for halvings in range(5):
            np.testing.assert_allclose(scorer.score(np.arange(1024), losses * 2.0**-halvings), first, rtol=1e-6)

    def test_what_was_before_fades(self):
        moved = {}
        for memory in (0.0, 0.5, 0.9):
            scorer, ids = LossHistory(100, memory=memory), np.arange(100)
            scorer.score(ids, np.arange(100, dtype=np.float32))
            for _ in range(3):
                score = scorer.score(ids, np.arange(100, 0, -1, dtype=np.float32))[0]
            moved[memory] = score
        assert moved[0.0] == 1
        assert moved[0.0] > moved[0.5] > moved[0.9] > 0.01

    @settings(max_examples=60)
    @given(minibatches, minibatches)
    def test_restored_it_scores_as_the_original_would(self, before, after):
        scorer, restored = LossHistory(20), LossHistory(20)
        score_all(scorer, before)
        score_all(restored, after)  # whatever it knew before
        state = json.loads(json.dumps(scorer.state_dict()))
        restored.load_state_dict(state)
        assert restored.state_dict() == scorer.state_dict()
        for one, other in zip(score_all(scorer, after), score_all(restored, after), strict=True):
            np.testing.assert_array_equal(one, other)

    def test_restored_the_hardest_are_remembered_as_such(self):
        """A score of 1 is also that of a sample of which nothing was told."""
        scorer, restored, ids = LossHistory(4), LossHistory(4), np.arange(4)
        scores = scorer.score(ids, np.full(4, 2.0, np.float32))
        assert scores.tolist() == [1] * 4
        restored.load_state_dict(scorer.state_dict())
        easier = np.array([1, 1, 3, 3], np.float32)
        assert restored.score(ids, easier).tolist() == scorer.score(ids, easier).tolist()

    @pytest.mark.parametrize("damage", [{"window": "?"}, {"window": 3}, {"before": "?"}, {"before": "eJwDAAAAAAE="}])
    def test_a_damaged_state_is_refused_and_changes_nothing(self, damage):
        scorer, ids = LossHistory(4), np.arange(4)
        scorer.score(ids, np.arange(4, dtype=np.float32))
        state = scorer.state_dict()
        with pytest.raises(ConfigError, match="damaged"):
            scorer.load_state_dict(state | damage)
        assert scorer.state_dict() == state

    @pytest.mark.parametrize("memory", [-0.1, 1.0, 2])
    def test_what_cannot_work_is_said(self, memory):
        with pytest.raises(ConfigError, match=f"memory={memory}"):
            LossHistory(10, memory=memory)
