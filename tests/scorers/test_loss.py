"""Scores from losses: the paper's example, Eq. 6 as it is written, Eq. 5, and what a scorer must never do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.ids import as_ids
from augury.scorers.loss import RANK_BIAS, BatchLoss, LossRank, RawLoss

ALL = [LossRank, BatchLoss, RawLoss]

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
def test_arguments_are_not_changed_and_nothing_is_remembered(make):
    scorer = make(100)
    losses, ids = np.array([0.5, -0.1, 0.4], np.float32), np.array([7, 1, 7])
    kept = losses.copy(), ids.copy()
    first = scorer.score(ids, losses)
    scorer.score(ids[:1], losses[:1])
    again = scorer.score(ids, losses)
    assert np.array_equal(first, again)
    assert not np.shares_memory(first, losses)
    assert np.array_equal(losses, kept[0])
    assert np.array_equal(ids, kept[1])


def test_a_large_minibatch_still_has_distinct_ranks():
    """Single precision tells ln(j + 10) of neighbours apart in any minibatch that is ever used."""
    assert len(np.unique(score(LossRank, np.arange(65_536)))) == 65_536
