"""Epochs that leave samples out: how many, whom, how often, for any number of ranks; and weights to make up for it."""

from __future__ import annotations

import copy
import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.errors import ConfigError
from augury.knowledge import UNTOLD, Knowledge
from augury.samplers.ranks import portion, share_size
from augury.samplers.selective import BETA, CIS, HARDEST, IIS, REUSE, WARM_UP

BOTH = [IIS, CIS]
PARTIAL = WARM_UP
"""The first epoch that leaves samples out."""


def knowledge(scores):
    known = Knowledge.none(len(scores))
    known.learn(np.arange(len(scores)), np.array(scores, np.float32))
    return known


def percentiles(samples, seed=1):
    """Scores without ties, in random order of ids: the share of all that each reaches."""
    return (np.random.default_rng(seed).permutation(samples) + 1) / samples


def kept(make, known, runs, epoch=PARTIAL):
    """Who is visited, by run."""
    visited = np.zeros((runs, len(known.scores)), np.bool_)
    for seed, run in enumerate(visited):
        run[make(seed).draw(epoch, known)] = True
    return visited


def in_errors(values, expected):
    """How far the means of runs lie from what is expected, in their standard errors."""
    values = np.asarray(values, float)
    error = values.std(0, ddof=1) / np.sqrt(len(values))
    away = abs(values.mean(0) - expected)
    return np.divide(away, error, out=np.where(away > 1e-6, np.inf, 0.0), where=error > 1e-9)


def slow_chances(scores, beta, count):
    """Of samples without ties: one at a time, as the paper has it, and scaled so that as many as promised are kept."""
    chances = []
    for one in scores:
        percentile = sum(other <= one for other in scores) / len(scores)
        chances.append(None if percentile > HARDEST + 1e-9 else percentile**beta)
    sure = chances.count(None)
    rest = sum(chance for chance in chances if chance is not None)
    return np.array([1.0 if chance is None else chance * (count - sure) / rest for chance in chances])


class TestHowMany:
    @pytest.mark.parametrize("beta", [0, 0.33, 1, 2])
    def test_the_share_of_beta_is_kept_exactly(self, beta):
        assert IIS(10, beta=beta).part(PARTIAL) == 1 / (1 + beta)
        for samples, seed in itertools.product((1, 2, 7, 100, 1000), range(5)):
            drawn = IIS(samples, seed, beta=beta).draw(PARTIAL, knowledge(percentiles(samples)))
            assert len(drawn) == portion(samples, 1, 1 / (1 + beta))
            assert len(drawn) == pytest.approx(samples / (1 + beta), abs=1)

    def test_by_hand(self):
        known = knowledge(percentiles(5000))
        lengths = {beta: len(IIS(5000, beta=beta).draw(PARTIAL, known)) for beta in (0, 0.33, 1, 2)}
        assert lengths == {0: 5000, 0.33: 3759, 1: 2500, 2: 1667}
        assert (BETA, WARM_UP, REUSE, HARDEST) == (0.33, 5, 3, 0.99)

    @settings(max_examples=100)
    @given(st.integers(1, 60), st.integers(1, 9), st.sampled_from([0, 1e-17, 0.1, 0.33, 1, 2, 10]), st.integers(0, 99))
    def test_ranks_keep_equally_many_and_nobody_comes_twice(self, samples, world, beta, seed):
        known = knowledge(percentiles(samples, seed))
        batch = 1 + seed % 4
        for epoch in range(2):
            parts = []
            for rank in range(world):
                count = share_size(samples, batch, rank, world)
                sampler = IIS(samples, seed, rank, world, count, beta=beta, warm_up=1, reuse=None)
                drawn = sampler.draw(epoch, known)
                many = count if sampler.part(epoch) == 1 else portion(samples, world, sampler.part(epoch))
                assert len(drawn) == many
                parts.append(drawn)
            together = np.bincount(np.concatenate(parts), minlength=samples)
            assert len(together) == samples
            if sampler.part(epoch) < 1:
                assert together.max() == 1 or world > samples, "ranks have nobody in common"
            else:
                assert together.min() >= 1, "everything is visited"
                assert together.sum() < samples + world

    def test_where_ranks_outnumber_samples_each_still_has_one(self):
        parts = [IIS(3, 2, rank, 8).draw(PARTIAL, knowledge([0.1, 0.5, 0.9])) for rank in range(8)]
        assert [len(part) for part in parts] == [1] * 8
        assert set(np.concatenate(parts).tolist()) == {0, 1, 2}

    def test_who_does_not_fit_equal_parts_is_not_always_the_same(self):
        known = knowledge(percentiles(10))
        runs = np.zeros((400, 10))
        for seed, run in enumerate(runs):
            for rank in range(4):
                run[IIS(10, seed, rank, 4, beta=0.01).draw(PARTIAL, known)] += 1
        assert (runs.sum(1) == 8).all()
        assert in_errors(runs, 0.8).max() < 5


class TestFullEpochs:
    @pytest.mark.parametrize(
        ("options", "full"),
        [
            ({}, [0, 1, 2, 3, 4, 7, 10]),
            ({"warm_up": 1}, [0, 3, 6, 9, 12]),
            ({"warm_up": 2, "reuse": 4}, [0, 1, 5, 9]),
            ({"warm_up": 3, "reuse": None}, [0, 1, 2]),
            ({"warm_up": 1, "reuse": 1}, list(range(13))),
            ({"beta": 0, "reuse": None}, list(range(13))),
        ],
    )
    def test_the_warm_up_and_every_so_many_epochs_visit_everything_once(self, options, full):
        sampler, known = IIS(50, 3, **options), knowledge(percentiles(50))
        assert [epoch for epoch in range(13) if sampler.part(epoch) == 1] == full
        for epoch in range(13):
            whole = sorted(sampler.draw(epoch, known).tolist()) == list(range(50))
            assert whole == (epoch in full)
            assert (sampler.weights(epoch, known) is None) == (epoch in full)

    @pytest.mark.parametrize("make", BOTH)
    def test_they_are_divided_among_ranks(self, make):
        parts = [make(50, 3, rank, 4).draw(0, Knowledge.none(50)) for rank in range(4)]
        assert {len(part) for part in parts} == {13}
        assert set(np.concatenate(parts).tolist()) == set(range(50))

    def test_they_need_no_knowledge_and_ignore_it(self):
        orders = [IIS(50, 3).draw(2, known).tolist() for known in (Knowledge.none(0), knowledge(percentiles(50)))]
        assert orders[0] == orders[1]


class TestWhom:
    @pytest.mark.parametrize("beta", [0.33, 1, 2])
    def test_the_hardest_hundredth_always_comes(self, beta):
        known = knowledge(percentiles(300))
        hardest = np.flatnonzero(known.scores > 0.99)
        assert len(hardest) == 3
        for seed in range(40):
            for epoch in (5, 6, 8):
                assert np.isin(hardest, IIS(300, seed, beta=beta).draw(epoch, known)).all()

    def test_each_rank_keeps_the_hardest_of_its_own(self):
        """So the hardest of all comes, whoever has it, unless it is one of those who do not fit equal parts."""
        known = knowledge(percentiles(120))
        for seed in range(100):
            together = np.concatenate([IIS(120, seed, rank, 3, beta=2).draw(PARTIAL, known) for rank in range(3)])
            assert known.scores.argmax() in together

    @pytest.mark.parametrize("beta", [0.33, 1, 2])
    def test_others_come_with_the_chance_of_the_power_of_their_percentile(self, beta):
        scores = percentiles(200)
        runs = kept(lambda seed: IIS(200, seed, beta=beta), knowledge(scores), 700)
        expected = slow_chances(scores.tolist(), beta, portion(200, 1, 1 / (1 + beta)))
        often = runs.sum(0)
        assert (abs(often - 700 * expected) < 5 * np.sqrt(700 * expected * (1 - expected)) + 2).all()
        # which is the paper's chance, but for what it takes to keep exactly so many:
        np.testing.assert_allclose(expected, np.where(scores > HARDEST, 1, scores**beta), atol=0.02)

    def test_chance_goes_by_rank_and_not_by_score(self):
        scores = percentiles(200)
        one, other = (IIS(200, 1).draw(PARTIAL, knowledge(s)).tolist() for s in (scores, 1e-3 * scores**5))
        assert one == other

    def test_the_more_important_the_more_often(self):
        scores = percentiles(200)
        often = kept(lambda seed: IIS(200, seed, beta=1), knowledge(scores), 400).mean(0)[scores.argsort()]
        assert (np.diff(often.reshape(10, 20).mean(1)) > 0).all()

    @pytest.mark.parametrize("scores", [UNTOLD, 0.0, 0.5])
    def test_of_equals_any_are_left_out(self, scores):
        runs = kept(lambda seed: IIS(40, seed), knowledge(np.full(40, scores)), 300)
        assert (runs.sum(1) == 30).all()
        assert in_errors(runs, 0.75).max() < 5

    @pytest.mark.parametrize("samples", [0, 40])
    def test_where_nothing_was_told_any_are_left_out_and_not_always_the_same(self, samples):
        known, out = Knowledge.none(samples), set()
        for epoch in (5, 6, 8, 9):
            drawn = IIS(40, 7).draw(epoch, known)
            assert len(set(drawn.tolist())) == 30
            out.add(tuple(np.setdiff1d(np.arange(40), drawn)))
        assert len(out) == 4

    def test_of_whom_nothing_was_told_counts_as_important(self):
        known = Knowledge.none(300)
        known.learn(np.arange(200), np.linspace(0.1, 0.9, 200, dtype=np.float32))
        runs = kept(lambda seed: IIS(300, seed, beta=2), known, 100)
        assert runs[:, 200:].mean() > 0.6 > 0.2 > runs[:, :200].mean()

    def test_the_order_is_random(self):
        """Neither by id nor by importance, nor as the full epoch would be."""
        scores = percentiles(400)
        drawn = IIS(400, 1).draw(PARTIAL, knowledge(scores))
        places = np.arange(len(drawn))
        every = np.empty(400)
        every[IIS(400, 1, warm_up=PARTIAL + 1).draw(PARTIAL, Knowledge.none(0))] = np.arange(400)
        for values in (drawn, scores[drawn], every[drawn]):
            assert abs(np.corrcoef(places, values)[0, 1]) < 0.2


class TestPurity:
    @pytest.mark.parametrize("make", BOTH)
    def test_a_draw_depends_on_seed_epoch_and_knowledge_alone(self, make):
        known = knowledge(percentiles(60))
        before = copy.deepcopy(known)
        for array in (known.scores, known.seen):
            array.flags.writeable = False
        sampler = make(60, 5, 1, 2)
        sampler.draw(6, known)
        sampler.weights(8, known)
        for epoch in (0, 5):
            assert np.array_equal(sampler.draw(epoch, known), make(60, 5, 1, 2).draw(epoch, before))
        assert np.array_equal(sampler.weights(5, known), make(60, 5, 1, 2).weights(5, before))
        assert np.array_equal(known.scores, before.scores)

    def test_seeds_epochs_and_ranks_draw_differently(self):
        known = knowledge(percentiles(60))
        drawn = {
            tuple(sorted(IIS(60, seed, rank, 2).draw(at, known))) for seed in (0, 1) for rank in (0, 1) for at in (5, 6)
        }
        assert len(drawn) == 8

    def test_an_order_is_followed_as_drawn(self):
        drawn = np.array([3, 1, 2])
        assert IIS(4).arrange(5, drawn, Knowledge.none(4), None).tolist() == [3, 1, 2]


class TestWeights:
    @pytest.mark.parametrize(("make", "beta"), [(IIS, 1), (CIS, 0.33)])
    def test_weighted_all_count_alike(self, make, beta):
        """The mean over runs of what each sample's loss is multiplied by, 0 where it is not visited."""
        known = knowledge(percentiles(40))
        runs = np.zeros((800, 40))
        for seed, run in enumerate(runs):
            sampler = make(40, seed, beta=beta)
            drawn = sampler.draw(PARTIAL, known)
            run[drawn] = sampler.weights(PARTIAL, known)[drawn]
        assert in_errors(runs, portion(40, 1, 1 / (1 + beta)) / 40).max() < 5

    def test_over_ranks_too(self):
        known = knowledge(percentiles(40))
        runs = np.zeros((800, 40))
        for seed, run in enumerate(runs):
            for rank in range(3):
                sampler = IIS(40, seed, rank, 3, beta=1)
                drawn = sampler.draw(PARTIAL, known)
                run[drawn] += sampler.weights(PARTIAL, known)[drawn]
        assert in_errors(runs, 3 * portion(40, 3, 0.5) / 40).max() < 5

    def test_the_hardest_weigh_least_and_their_mean_is_about_one(self):
        known = knowledge(percentiles(2000))
        sampler = IIS(2000, 1)
        weights = sampler.weights(PARTIAL, known)
        assert weights.dtype == np.float32
        assert known.scores[weights.argmin()] > 0.99
        assert known.scores[weights.argmax()] == known.scores.min()
        assert weights[sampler.draw(PARTIAL, known)].mean() == pytest.approx(1, abs=0.02)

    @pytest.mark.parametrize("make", BOTH)
    def test_they_are_finite_numbers_however_few_find_room(self, make):
        for samples, beta in itertools.product((1, 2, 5, 20, 20_000), (0.33, 2, 10)):
            known = knowledge(percentiles(samples))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                weights = make(samples, beta=beta).weights(PARTIAL, known)
            assert np.isfinite(weights).all()
            assert (weights >= 0).all()
            assert (weights[IIS(samples, beta=beta).draw(PARTIAL, known)] > 0).all()


class TestCIS:
    @pytest.mark.parametrize("world", [1, 3])
    def test_everything_is_visited_and_of_weight_zero_is_whom_iis_leaves_out(self, world):
        known = knowledge(percentiles(50))
        for epoch, rank in ((at, rank) for at in (5, 6) for rank in range(world)):
            cis, iis = CIS(50, 3, rank, world), IIS(50, 3, rank, world)
            drawn, weights, chosen = cis.draw(epoch, known), cis.weights(epoch, known), iis.draw(epoch, known)
            assert len(drawn) == len(set(drawn.tolist())) == cis.count
            assert set(chosen.tolist()) <= set(drawn.tolist())
            assert sorted(np.flatnonzero(weights).tolist()) == sorted(chosen.tolist())
            np.testing.assert_array_equal(weights[chosen], iis.weights(epoch, known)[chosen])

    def test_every_epoch_is_whole(self):
        known = knowledge(percentiles(50))
        for epoch in range(9):
            assert CIS(50).part(epoch) == 1
            assert sorted(CIS(50).draw(epoch, known).tolist()) == list(range(50))

    def test_full_epochs_skip_nobody(self):
        full = [epoch for epoch in range(9) if CIS(50).weights(epoch, Knowledge.none(50)) is None]
        assert full == [0, 1, 2, 3, 4, 7]

    def test_only_it_fetches_what_training_does_not_get(self):
        assert CIS.skips
        assert not IIS.skips
        assert not CIS.foreseeable
        assert not IIS.foreseeable


@pytest.mark.parametrize(
    "wrong",
    [{"beta": -0.1}, {"beta": 10.1}, {"beta": float("nan")}, {"warm_up": 0}, {"reuse": 0}, {"reuse": -1}],
    ids=str,
)
def test_what_cannot_work_is_said(wrong):
    (name, value), *_ = wrong.items()
    for make in BOTH:
        with pytest.raises(ConfigError, match=f"{name}={value}"):
            make(10, **wrong)
        make(10, beta=0, warm_up=1, reuse=None)
        make(10, beta=10, warm_up=1, reuse=1)
