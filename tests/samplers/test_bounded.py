"""Bounded draws: so many visits, of so many samples, in proportion to scores; and weights that make up for it."""

from __future__ import annotations

import copy
import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.errors import ConfigError
from augury.ids import as_ids
from augury.knowledge import UNTOLD, Knowledge
from augury.samplers.bounded import Bounded, bounded, rounded
from augury.samplers.importance import PADS, PaperPADS, Weighted


def knowledge(scores, seen=9, told=True):
    """Of what was seen in which epoch."""
    known = Knowledge.none(len(scores))
    known.scores[:], known.seen[:], known.told = scores, seen, told
    return known


def ranked(samples, seed=1):
    """Scores as minibatches of 64 give them."""
    return np.log(np.random.default_rng(seed).integers(10, 74, samples)).astype(np.float32)


def counts(sampler, known, epoch=10):
    return np.bincount(sampler.draw(epoch, known), minlength=sampler.samples)


def over_seeds(make, known, runs, epoch=10):
    """Visits of every sample, by run."""
    return np.array([counts(make(seed), known, epoch) for seed in range(runs)])


def in_errors(means, runs):
    """How far means lie from 0, in their standard errors."""
    error = runs.std(0, ddof=1) / np.sqrt(len(runs))
    return np.divide(abs(means), error, out=np.where(abs(means) > 1e-4, np.inf, 0.0), where=error > 1e-9)


class TestTheBound:
    """`bounded`: water that is poured into vessels of one height."""

    @staticmethod
    def obvious(shares, count, due, most):
        """One vessel at a time: the fullest is closed when it is full, and the rest poured out again."""
        visits, open_ones = np.zeros(len(shares)), [id for id in range(len(shares)) if id not in due]
        visits[list(due)] = min(most, count / max(1, len(due)))
        while open_ones:
            left = max(0.0, count - most * (len(shares) - len(open_ones)))
            worth = {id: float(shares[id]) for id in open_ones}
            if not any(worth.values()):
                worth = dict.fromkeys(open_ones, 1.0)
            total = sum(worth.values())
            fullest = max(open_ones, key=worth.__getitem__)
            if left * worth[fullest] / total < most:
                visits[open_ones] = [left * one / total for one in worth.values()]
                break
            visits[fullest] = most
            open_ones.remove(fullest)
        return visits

    @settings(max_examples=200)
    @given(st.data())
    def test_it_is_as_the_obvious_model_says(self, data):
        samples = data.draw(st.integers(1, 12))
        some = st.sampled_from([0.0, 1e-6, 0.5, 1.0, 2.3, 40.0, 1e6])
        shares = np.array(data.draw(st.lists(some, min_size=samples, max_size=samples)), np.float32)
        due = data.draw(st.sets(st.integers(0, samples - 1)))
        most, count = data.draw(st.sampled_from([1.0, 1.5, 2.0, 3.0])), data.draw(st.integers(0, 20))
        expected = self.obvious(shares, count, due, most)
        visits = bounded(shares, count, as_ids(sorted(due)), most)
        np.testing.assert_allclose(visits, expected, rtol=1e-4, atol=1e-6)
        assert visits.max() <= most
        if count <= most * samples:
            assert visits.sum(dtype=float) == pytest.approx(count, rel=1e-5)

    def test_by_hand(self):
        """Of 6 visits two are due to 3; 0 would have 3 of the others, but 2 at most; 1 and 2 share the rest."""
        visits = bounded(np.array([9, 2, 1, 5], np.float32), 6, as_ids([3]), 2)
        np.testing.assert_allclose(visits, [2, 4 / 3, 2 / 3, 2], rtol=1e-6)


class TestRounding:
    """`rounded`: whole samples from expectations."""

    @given(st.lists(st.integers(0, 8), min_size=1, max_size=20), st.integers(0, 99))
    def test_so_many_different_ones_and_those_of_chance_one_for_certain(self, eighths, seed):
        eighths[0] += -sum(eighths) % 8 if eighths[0] + -sum(eighths) % 8 <= 8 else -(sum(eighths) % 8)
        chances = np.array(eighths, np.float32) / 8
        if (count := round(float(chances.sum()))) == 0:
            return
        drawn = rounded(np.random.default_rng(seed), chances, count)
        assert len(drawn) == len(set(drawn.tolist())) == count
        assert set(np.flatnonzero(chances == 1).tolist()) <= set(drawn.tolist())
        assert (chances[drawn] > 0).all()
        assert drawn.dtype == np.int64

    def test_each_comes_with_its_chance(self):
        chances = np.array([0.1, 0.9, 0.5, 0.25, 0.25, 1.0, 0, 0.7, 0.3], np.float32)
        runs = np.zeros((3000, len(chances)))
        for seed, run in enumerate(runs):
            run[rounded(np.random.default_rng(seed), chances, 4)] = 1
        assert in_errors(runs.mean(0) - chances, runs).max() < 5

    def test_whether_one_comes_hardly_depends_on_any_other(self):
        runs = np.zeros((4000, 20))
        for seed, run in enumerate(runs):
            run[rounded(np.random.default_rng(seed), np.full(20, 0.5, np.float32), 10)] = 1
        together = np.corrcoef(runs.T)[~np.eye(20, dtype=bool)]
        np.testing.assert_allclose(together, -1 / 19, atol=0.1)


@st.composite
def draws(draw):
    """A sampler, what it knows, and whom it must visit, who are not too many."""
    repetition, world = draw(st.sampled_from([1.0, 1.25, 1.5, 2.0, 2.5, 3.0])), draw(st.integers(1, 3))
    count = draw(st.integers(1, 30))
    samples, place = world * count, (draw(st.integers(0, 99)), draw(st.integers(0, world - 1)), world)
    sampler = Bounded(samples, *place, repetition=repetition)
    some = st.sampled_from([0.0, 0.01, UNTOLD, 2.3, 5.0, 1e5])
    known = knowledge(draw(st.lists(some, min_size=samples, max_size=samples)))
    mine = sampler.draw(0, Knowledge.none(samples))
    due = mine[: draw(st.integers(0, math.ceil(count / repetition)))]
    known.seen[due] = 3
    return sampler, known, due


class TestDraws:
    @settings(max_examples=200)
    @given(draws())
    def test_as_many_as_asked_for_of_no_more_samples_than_needed_and_of_all_who_are_due(self, drawn):
        sampler, known, due = drawn
        visits = counts(sampler, known)
        assert visits.sum() == sampler.count
        assert np.count_nonzero(visits) == math.ceil(sampler.count / sampler.repetition)
        assert visits.max() <= math.ceil(sampler.repetition)
        assert (visits[due] > 0).all()

    def test_where_the_last_round_is_not_whole_some_come_less_often(self):
        for seed in range(20):
            visits = counts(Bounded(10, seed), knowledge([2.0] * 10))
            assert sorted(visits.tolist()) == [0] * 3 + [1] * 4 + [2] * 3
            visits = counts(Bounded(3, seed, repetition=2), knowledge([2.0] * 3, seen=[9, 9, 0]))
            assert sorted(visits.tolist()) == [0, 1, 2]

    def test_where_there_are_too_few_samples_all_come_and_more_often(self):
        sampler, known = Bounded(10, 0, 0, 1, 30), knowledge(np.arange(10))
        assert counts(sampler, known).tolist() == [3] * 10
        np.testing.assert_allclose(sampler.weights(10, known), 1)

    def test_of_too_many_who_are_due_as_many_come_as_can_and_all_are_alike(self):
        runs = over_seeds(lambda seed: Bounded(12, seed), knowledge(np.arange(12), seen=0), 500)
        assert (np.count_nonzero(runs, axis=1) == 8).all()
        assert in_errors(runs.mean(0) - 1, runs).max() < 5

    @pytest.mark.parametrize("sharpness", [0.0, 1.0, 2.0])
    def test_visits_are_expected_in_proportion_to_scores(self, sharpness):
        scores = np.linspace(2.3, 3.0, 60)
        expected = scores**sharpness * 60 / (scores**sharpness).sum()
        assert expected.max() < 1.5
        runs = over_seeds(lambda seed: Bounded(60, seed, sharpness=sharpness), knowledge(scores), 1000)
        assert in_errors(runs.mean(0) - expected, runs).max() < 5

    def test_who_is_due_or_stands_out_comes_as_often_as_any_may_and_the_others_share_the_rest(self):
        scores = np.array([3.0, 6.0] * 10 + [90.0])
        known = knowledge(scores, seen=[3, *[9] * 20])
        runs = over_seeds(lambda seed: Bounded(21, seed), known, 1000)
        full = np.array([0, 20])
        rest = np.delete(scores, full) * 18 / np.delete(scores, full).sum()
        expected = np.insert(rest, 0, 1.5)
        assert in_errors(runs.mean(0) - np.append(expected, 1.5), runs).max() < 5
        assert (runs[:, full] > 0).all()

    def test_of_whom_nothing_was_told_is_expected_what_is_of_the_mean(self):
        known = knowledge([2.0, 4.0, UNTOLD, 3.0, UNTOLD, 3.0])
        np.testing.assert_allclose(Bounded(6).visits(10, known), [2 / 3, 4 / 3, 1, 1, 1, 1], rtol=1e-6)

    @pytest.mark.parametrize(
        "scores", [0.0, 2.5, UNTOLD, [1e30, *[2.0] * 29], [1e30, *[0.0] * 29]], ids=lambda scores: str(scores)[:12]
    )
    def test_strange_scores_are_fine(self, scores):
        known = knowledge(np.full(30, scores) if isinstance(scores, float) else scores)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            runs = over_seeds(lambda seed: Bounded(30, seed), known, 400)
        assert (runs.sum(1) == 30).all()
        alike = runs[:, 1:]
        assert alike.mean(0) == pytest.approx(np.full(29, alike.mean()), abs=0.25)
        if not isinstance(scores, float):
            assert (runs[:, 0] > 0).all()

    def test_any_power_of_any_score_is_fine(self):
        known = knowledge([1e30, *[2.0] * 29])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            visits = Bounded(30, sharpness=10.0).visits(10, known)
        assert visits[0] == 1.5
        np.testing.assert_allclose(visits[1:], 28.5 / 29, rtol=1e-5)

    def test_drawing_is_pure(self):
        known = knowledge(ranked(60), seen=np.arange(60) % 10)
        before = copy.deepcopy(known)
        for array in (known.scores, known.seen):
            array.flags.writeable = False
        sampler = Bounded(60, 5, 1, 2)
        sampler.draw(9, known)
        assert np.array_equal(sampler.draw(10, known), Bounded(60, 5, 1, 2).draw(10, before))
        assert np.array_equal(sampler.weights(10, known), Bounded(60, 5, 1, 2).weights(10, before))
        assert np.array_equal(known.scores, before.scores)

    def test_seeds_epochs_and_ranks_draw_differently_and_in_random_order(self):
        known = knowledge(ranked(60))
        drawn = {
            tuple(Bounded(60, seed, rank, 2).draw(at, known)) for seed in (0, 1) for rank in (0, 1) for at in (4, 5)
        }
        assert len(drawn) == 8
        order = Bounded(60).draw(10, known)
        assert order[:40].tolist() != sorted(order[:40].tolist())
        assert len(np.unique(order[:40])) < 40, "repeats do not wait until all were visited once"

    @pytest.mark.parametrize(
        "wrong", [{"repetition": 0.9}, {"repetition": 11}, {"sharpness": -1}, {"sharpness": 11}, {"explore": 0}]
    )
    def test_what_cannot_work_is_said(self, wrong):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Bounded(10, **wrong)
        Bounded(10, repetition=10, sharpness=0, explore=None)


class TestTheStart:
    def test_the_first_epoch_visits_everything_once_over_all_ranks(self):
        parts = [Bounded(50, 3, rank, 3).draw(0, Knowledge.none(50)) for rank in range(3)]
        assert {len(part) for part in parts} == {17}
        assert set(np.concatenate(parts).tolist()) == set(range(50))

    def test_every_such_epoch_has_an_order_of_its_own(self):
        for world in (1, 2):
            sampler = Bounded(50, 3, 0, world)
            assert len({tuple(sampler.draw(epoch, Knowledge.none(50))) for epoch in range(3)}) == 3

    def test_also_where_there_are_fewer_samples_than_ranks(self):
        parts = [Bounded(2, 3, rank, 3).draw(0, Knowledge.none(2)) for rank in range(3)]
        assert {len(part) for part in parts} == {1}

    def test_the_second_one_may_be_drawn_before_anything_is_told_then_all_are_alike(self):
        known = knowledge([UNTOLD] * 30, seen=0, told=False)
        runs = over_seeds(lambda seed: Bounded(30, seed), known, 1000, epoch=1)
        assert (np.count_nonzero(runs, axis=1) == 20).all()
        assert in_errors(runs.mean(0) - 1, runs).max() < 5

    def test_in_a_run_that_stays_silent_all_stay_alike(self):
        known = knowledge([UNTOLD] * 30, seen=7, told=False)
        runs = over_seeds(lambda seed: Bounded(30, seed), known, 1000, epoch=8)
        assert in_errors(runs.mean(0) - 1, runs).max() < 5
        np.testing.assert_allclose(Bounded(30).weights(8, known), 1, rtol=1e-6)

    def test_where_many_were_never_seen_everything_is_visited_and_a_few_come_with_the_others(self):
        """As after an epoch that was left midway."""
        known = knowledge([2.0] * 30)
        known.seen[:21] = -1
        assert sorted(Bounded(30).draw(2, known).tolist()) == list(range(30))
        assert Bounded(30).weights(2, known) is None
        known.seen[:10] = 1
        visits = counts(Bounded(30, explore=5), known, 2)
        assert np.count_nonzero(visits) == 20
        assert (visits[10:21] > 0).all()

    def test_without_any_knowledge_everything_is_visited(self):
        assert sorted(Bounded(30).draw(5, Knowledge.none(0)).tolist()) == list(range(30))


class TestNobodyIsForgotten:
    """Each is visited at least in every epoch after `explore` others."""

    @staticmethod
    def longest(scores, explore, world=1, exchange=True, epochs=30, **options):
        """For how many epochs anybody was not visited by anyone, at most."""
        samples = len(scores)
        samplers = [Bounded(samples, 1, rank, world, explore=explore, **options) for rank in range(world)]
        known = [Knowledge.none(samples) for _ in range(world)]
        last, longest = np.full(samples, -1), 0
        for epoch in range(epochs):
            drawn = [sampler.draw(epoch, own) for sampler, own in zip(samplers, known, strict=True)]
            for rank, own in enumerate(known):
                for ids in drawn if exchange else [drawn[rank]]:
                    own.visit(ids, epoch)
                own.learn(np.arange(samples), scores)
            last[np.concatenate(drawn)] = epoch
            longest = max(longest, epoch - last.min())
        return longest

    def test_alone(self):
        for explore, skew in itertools.product((1, 2, 5), (0, 1, 20)):
            scores = np.exp(np.linspace(0, skew, 300)).astype(np.float32)
            assert self.longest(scores, explore) <= explore

    def test_over_ranks(self):
        for world, exchange in itertools.product((2, 3), (False, True)):
            assert self.longest(ranked(300), 5, world, exchange) <= 5

    def test_ranks_have_parts_of_their_own_for_the_whole_run(self):
        """What a rank has read is of use to itself again."""
        known, parts = knowledge(ranked(50)), [set(), set(), set()]
        for epoch in range(10, 20):
            for rank, part in enumerate(parts):
                part.update(Bounded(50, 3, rank, 3).draw(epoch, known).tolist())
        assert sorted(itertools.chain(*parts)) == list(range(50))
        assert parts[0] != set(range(0, 50, 3)), "divided at random"
        assert Bounded(50, 4, 0, 3).draw(0, Knowledge.none(50)).sum() != sum(parts[0]), "by the seed"

    def test_unless_nobody_asked_for_it(self):
        scores = np.exp(np.linspace(0, 20, 300)).astype(np.float32)
        assert self.longest(scores, None) == 29


UNBIASED = {
    "bounded": Bounded,
    "bounded by 2": lambda *place: Bounded(*place, repetition=2.0, sharpness=1.5),
    "weighted": Weighted,
    "shade-1": lambda *place: PADS(*place, repetition=1),
}


@pytest.mark.parametrize("make", UNBIASED.values(), ids=UNBIASED)
class TestWeights:
    """SHADE's Eq. 1: drawn by q instead of p, what is learned of a sample is multiplied by p / q."""

    @pytest.mark.parametrize("world", [1, 2])
    def test_weighted_visits_are_those_of_uniform_draws(self, make, world):
        """Over all ranks: each sample counts as if it came once."""
        known = knowledge(np.exp(np.linspace(0, 4, 60)), seen=[2, *[9] * 30, 2, *[9] * 28])
        weighted = np.zeros((1000, 60))
        for seed, run in enumerate(weighted):
            for rank in range(world):
                sampler = make(60, seed, rank, world)
                weights = sampler.weights(10, known)
                assert weights.dtype == np.float32
                run += counts(sampler, known) * weights
        assert in_errors(weighted.mean(0) - 1, weighted).max() < 5

    def test_the_mean_of_a_minibatch_is_that_of_all(self, make):
        """Of losses that go with the scores, which plain means of what is drawn exaggerate."""
        scores = ranked(200)
        losses, known = scores**2, knowledge(scores)
        weights = make(200, 0).weights(10, known)
        drawn = np.array([make(200, seed).draw(10, known) for seed in range(600)])
        estimates = (weights * losses)[drawn].mean(1)
        assert abs(estimates.mean() - losses.mean()) < 5 * estimates.std() / np.sqrt(600)
        assert losses[drawn].mean() > 1.03 * losses.mean()


def test_there_are_none_while_every_sample_is_visited():
    for make in UNBIASED.values():
        assert make(30, 0).weights(0, Knowledge.none(30)) is None
        assert make(30, 0).weights(5, Knowledge.none(0)) is None


def test_equal_scores_weigh_nothing():
    for make in UNBIASED.values():
        np.testing.assert_allclose(make(30, 0).weights(10, knowledge([2.5] * 30)), 1, rtol=1e-6)


def test_whoever_does_not_come_has_no_weight_and_no_warning():
    known = knowledge([0.0, 2.0, 4.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(Weighted(3).weights(10, known), [0, 1, 0.5], rtol=1e-6)
        np.testing.assert_allclose(Weighted(3).weights(10, knowledge([0.0] * 3)), 1, rtol=1e-6)


@pytest.mark.parametrize("make", [PADS, PaperPADS])
def test_where_cached_samples_are_repeated_there_are_no_weights(make):
    for known in (Knowledge.none(30), knowledge([2.0] * 30)):
        with pytest.raises(ConfigError, match="take recipe 'augury', or 'shade-1'"):
            make(30).weights(1, known)
