"""Frugal orders: what was drawn, still random, with few reads and evenly spread, whatever the cache holds."""

from __future__ import annotations

import copy
import itertools
import warnings
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.distributed import Place
from augury.ids import as_ids
from augury.knowledge import Knowledge
from augury.policies.foresight import NextUse
from augury.samplers import View
from augury.samplers.bounded import Bounded
from augury.samplers.foresight import SOON, Frugal
from augury.samplers.importance import PADS, Weighted
from augury.samplers.shuffle import Shuffle
from augury.schedule import Schedule
from augury.scorers.loss import LossRank
from augury.sim.fields import Synthetic
from augury.sim.replay import _Cache
from augury.step import step

BASES = [Shuffle, Weighted, PADS, Bounded]
bases = pytest.mark.parametrize("base", BASES)


def told(samples, epoch=9):
    """All were seen in the last epoch, and have scores of minibatches of 64."""
    known = Knowledge.none(samples)
    ranks = np.random.default_rng(3).integers(10, 74, samples)
    known.learn(np.arange(samples), np.log(ranks).astype(np.float32))
    known.seen[:] = epoch
    return known


def view(samples, held, batch=8, room=None):
    mask = np.zeros(samples, np.bool_)
    mask[held] = True
    return View(mask, float(np.count_nonzero(mask)) if room is None else room, batch)


def arranged(drawn, samples, cache, seed=0, epoch=10):
    sampler = Frugal(samples, seed, base=Shuffle)
    return sampler.arrange(epoch, as_ids(drawn), Knowledge.none(0), cache)


def multiset(ids):
    return np.sort(ids).tolist()


def chi_square(counts, expected):
    """Normalised: about 0, and above 5 less than once in a million."""
    degrees = counts.size - len(counts)
    return (((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees)


class TestEveryBase:
    @pytest.mark.parametrize("base", [Shuffle, Weighted, Bounded])
    def test_it_draws_and_weighs_as_its_base_does(self, base):
        known = told(60)
        one, other = Frugal(60, 5, base=base), base(60, 5)
        assert np.array_equal(one.draw(10, known), other.draw(10, known))
        assert np.array_equal(one.weights(10, known), other.weights(10, known))
        assert not one.foreseeable

    @bases
    @given(samples=st.integers(4, 40), world=st.integers(1, 4))
    def test_ranks_share_the_first_epoch(self, base, samples, world):
        parts = [Frugal(samples, 5, rank, world, base=base).draw(0, Knowledge.none(samples)) for rank in range(world)]
        assert {len(part) for part in parts} == {-(-samples // world)}
        assert set(np.concatenate(parts).tolist()) == set(range(samples))

    @bases
    @settings(max_examples=40)
    @given(samples=st.integers(1, 60), seed=st.integers(0, 9), batch=st.integers(1, 20), data=st.data())
    def test_it_visits_what_was_drawn_as_often_as_drawn(self, base, samples, seed, batch, data):
        held = data.draw(st.lists(st.integers(0, samples - 1)))
        room = data.draw(st.integers(0, 2 * samples))
        sampler, known = Frugal(samples, seed, base=base), told(samples)
        drawn = sampler.draw(10, known)
        order = sampler.arrange(10, drawn, known, view(samples, held, batch, room))
        assert multiset(order) == multiset(drawn)

    @bases
    def test_it_is_pure(self, base):
        known, cache = told(300), view(300, range(0, 300, 7))
        for array in (known.scores, known.seen, cache.resident):
            array.flags.writeable = False
        before = copy.deepcopy((known, cache))
        one, other = (Frugal(300, 2, base=base) for _ in range(2))
        drawn = one.draw(10, known)
        drawn.flags.writeable = False
        kept = drawn.copy()
        other.arrange(9, drawn, known, cache)  # what was arranged before is of no matter
        assert np.array_equal(one.arrange(10, drawn, known, cache), other.arrange(10, drawn, *before))
        assert np.array_equal(drawn, kept)
        assert np.array_equal(known.scores, before[0].scores)
        assert np.array_equal(known.seen, before[0].seen)

    @bases
    def test_epochs_seeds_and_ranks_differ(self, base):
        known, cache, orders = told(300), view(300, range(60)), set()
        for seed, rank, epoch in itertools.product((0, 1), (0, 1), (10, 11)):
            sampler = Frugal(300, seed, rank, 2, base=base)
            orders.add(tuple(sampler.arrange(epoch, sampler.draw(epoch, known), known, cache)))
        assert len(orders) == 8

    @pytest.mark.parametrize("base", [Weighted, Bounded])
    def test_what_was_drawn_is_arranged_by_chance_of_its_own(self, base):
        known, cache, orders = told(300), view(300, range(60)), set()
        drawn = base(300).draw(10, known)
        for seed, rank, epoch in itertools.product((0, 1), (0, 1), (10, 11)):
            orders.add(tuple(Frugal(300, seed, rank, 2, base=base).arrange(epoch, drawn, known, cache)))
        assert len(orders) == 8


@settings(max_examples=300)
@given(st.data())
def test_anything_that_may_be_drawn_is_arranged(data):
    """Nothing, one sample many times, more than fits, less than a minibatch: no error, and the same visits."""
    samples = data.draw(st.integers(1, 12))
    drawn = as_ids(data.draw(st.lists(st.integers(0, samples - 1), max_size=60)))
    held = data.draw(st.sampled_from(["nothing", "everything", "some"]))
    ids = {"nothing": [], "everything": range(samples)}.get(held)
    ids = data.draw(st.lists(st.integers(0, samples - 1))) if ids is None else list(ids)
    room = data.draw(st.sampled_from([0.0, 0.5, 1.0, 3.3, 12.0, 1e6]))
    cache = view(samples, ids, data.draw(st.sampled_from([1, 2, 5, 100])), room)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        order = arranged(drawn, samples, cache, data.draw(st.integers(0, 5)))
    assert multiset(order) == multiset(drawn)
    assert order.dtype == np.int64


class TestSpread:
    def test_reads_alternate_with_hits_as_evenly_as_whole_numbers_can(self):
        """From anywhere to anywhere: never two more or fewer than their share."""
        for seed, held in enumerate([0, 1, 37, 100, 101, 150, 199, 200]):
            drawn = np.random.default_rng(seed).permutation(200)
            reads = arranged(drawn, 200, view(200, range(held)), seed) >= held
            ahead = np.concatenate([[0], np.cumsum(reads)]) - np.arange(201) * (200 - held) / 200
            assert ahead.max() - ahead.min() < 1 + 1e-9

    @staticmethod
    def gaps(held, room, again=200, visits=1):
        """1000 samples of which the first so many come again; those cached come so often. How many minibatches of 10
        lie between visits?"""
        drawn = np.concatenate([np.arange(1000), np.arange(again), *[np.arange(1000 - held, 1000)] * (visits - 1)])
        found = []
        for seed in range(4):
            cache = view(1000, range(1000 - held, 1000), 10, room)
            order = arranged(np.random.default_rng(seed).permutation(drawn), 1000, cache, seed)
            places = np.stack([np.flatnonzero(order == id) for id in range(again)])
            found.append(np.diff(places // 10)[:, 0])
        return np.concatenate(found)

    def test_a_repeat_comes_soon_where_there_is_no_room_to_wait(self):
        """Those who are cached come twice, and so are needed for long."""
        gaps = self.gaps(held=100, room=100, visits=2)
        assert gaps.min() == 1, "and not in the same minibatch"
        assert (gaps <= SOON + 1).mean() > 0.98
        assert np.bincount(gaps)[1 : SOON + 1].min() > 40, "nor always in the next"

    def test_a_repeat_comes_at_any_time_where_those_who_are_cached_make_room(self):
        assert self.gaps(held=400, room=400).mean() == pytest.approx(120 / 3, rel=0.1), "as of two places by chance"

    def test_a_repeat_comes_at_any_time_where_there_is_free_room(self):
        assert self.gaps(held=100, room=300, visits=2).mean() == pytest.approx(130 / 3, rel=0.15)

    @pytest.mark.parametrize(("held", "again"), [(0, 200), (400, 600)], ids=["no hits", "no single reads"])
    def test_a_repeat_comes_soon_where_there_is_nothing_to_change_places_with(self, held, again):
        """Every minibatch is to cost the same: so all repeats but those of whom was just read would come too late."""
        gaps = self.gaps(held, 500, again)
        assert np.quantile(gaps, 0.75) <= 2 * SOON
        assert gaps.min() >= 1

    def test_visits_of_one_sample_stand_in_different_minibatches(self):
        """Of cached ones too, and of one that comes eleven times."""
        for seed, held, batch in itertools.product(range(20), (20, 400), (5, 16)):
            drawn = np.concatenate([np.arange(500), np.arange(250), np.full(10, 480)])
            drawn = np.random.default_rng(seed).permutation(drawn)
            order = arranged(drawn, 500, view(500, range(held), batch), seed)
            parts = [order[at : at + batch] for at in range(0, len(order), batch)]
            assert all(len(np.unique(part)) == len(part) for part in parts)


class Epoch(NamedTuple):
    """One epoch of a run."""

    held: np.ndarray
    """Who was cached when it began."""
    batches: list
    reads: list
    """Of each batch."""

    @property
    def order(self):
        return np.concatenate(self.batches)

    @property
    def fewest(self):
        """How many reads it takes at least: of each once who is not there."""
        return int(np.count_nonzero(~self.held[np.unique(self.order)]))


@cache
def run(base, samples, batch, share, epochs=7, seed=0):
    """A run of this base, with scores, under the policy that it is made for; an epoch ahead, as `augury` does."""
    ones, known = np.ones(samples, np.int64), Knowledge.none(samples)
    policy, field, scorer = NextUse(ones, int(share * samples)), Synthetic(samples, seed), LossRank(samples)
    sampler = Frugal(samples, seed, base=base)
    plan = Schedule(sampler, batch, Place(0, 1), samples, epochs=epochs, lookahead=1.0)
    found = []
    for work in plan.walk(0, 0, _Cache(policy, ones), known, True):
        if len(found) == work.epoch:
            found.append(Epoch(policy.resident.copy(), [], []))
        found[-1].batches.append(work.ids)
        found[-1].reads.append(step([policy], work.ids).missed)
        scores = scorer.score(work.ids, field.losses(work.epoch, work.ids))
        known.learn(work.ids, scores)
        policy.learn(work.ids, scores)
    return found


WORLDS = [(2000, 16, 0.05), (2000, 16, 0.1), (5000, 32, 0.1), (5000, 32, 0.2)]
"""Samples, batch size, and the part of them that is cached."""


@bases
class TestRuns:
    """Whole runs. Where draws repeat a sample many times and few can wait, a little is lost."""

    def test_nothing_is_read_twice_and_nobody_who_was_cached_is_read(self, base):
        for world in WORLDS:
            lost = {Weighted: 0.02, PADS: 0.01, Bounded: 0.01 if world[2] <= 0.05 else 0}.get(base, 0)
            for epoch in run(base, *world):
                reads = np.concatenate(epoch.reads)
                assert len(reads) - epoch.fewest <= lost * len(reads)
                assert len(reads) - len(np.unique(reads)) <= lost * len(reads)

    def test_every_minibatch_costs_the_same_and_the_first_ones_no_more(self, base):
        for world in WORLDS:
            few, many = (1, 1) if base is Shuffle else (2, 4) if base is Bounded and world[2] > 0.05 else (4, 8)
            for epoch in run(base, *world)[1:]:
                reads = np.array([len(each) for each in epoch.reads[:-1]])
                beyond = abs(reads - reads.mean())
                assert beyond.max() <= many
                assert np.quantile(beyond, 0.95) <= few
                assert reads[:10].mean() <= reads.mean() + 0.3

    def test_no_minibatch_has_a_sample_twice(self, base):
        for world in WORLDS:
            for epoch in run(base, *world):
                assert all(len(np.unique(ids)) == len(ids) for ids in epoch.batches)


class TestAugurysRuns:
    def test_hardly_anything_is_read_twice_from_a_small_cache(self):
        for epoch in run(Bounded, 2000, 16, 0.05, 8, 1):
            assert sum(map(len, epoch.reads)) <= 1.01 * epoch.fewest

    @pytest.mark.xfail(strict=True, reason="where every sample comes twice there is none to change places with")
    def test_no_minibatch_has_a_sample_twice_where_all_come_twice(self):
        for epoch in run(partial(Bounded, repetition=2.0), 2000, 16, 0.1, 3):
            doubled = sum(len(ids) - len(np.unique(ids)) for ids in epoch.batches)
            assert doubled <= 0.01 * len(epoch.order)

    def test_the_first_epoch_reads_everything_once(self):
        first, *_ = run(Bounded, 2000, 16, 0.1)
        assert multiset(np.concatenate(first.reads)) == list(range(2000))


class TestRandomness:
    def test_every_sample_is_as_likely_at_any_place(self):
        """Cached or not. (Chi-square over all samples and places.)"""
        samples, epochs = 60, 2400
        sampler, cache = Frugal(samples, 1, base=Shuffle), view(samples, range(15), 7)
        counts, known = np.zeros((samples, samples)), Knowledge.none(0)
        for epoch in range(epochs):
            order = sampler.arrange(epoch, sampler.draw(epoch, known), known, cache)
            counts[order, np.arange(samples)] += 1
        assert abs(chi_square(counts, epochs / samples)) < 5
        assert abs(chi_square(counts[:15], epochs / samples)) < 5

    @pytest.mark.parametrize("base", [Shuffle, Weighted, Bounded])
    def test_minibatches_have_the_mix_of_classes_of_a_random_order(self, base):
        """Chi-square of classes by minibatch, against the same visits shuffled: neither more alike nor less."""
        rng, classes, batch = np.random.default_rng(5), 8, 40
        labels = rng.integers(0, classes, 2000)
        unlikely = {True: [], False: []}
        for epoch in range(12):
            sampler, known = Frugal(2000, epoch, base=base), told(2000)
            cache = view(2000, rng.permutation(2000)[:300], batch)
            order = sampler.arrange(10, sampler.draw(10, known), known, cache)
            for ours in (True, False):
                mix = labels[order if ours else rng.permutation(order)].reshape(-1, batch)
                counts = np.stack([(mix == label).sum(1) for label in range(classes)], axis=1)
                expected = counts.mean(0)
                unlikely[ours].append(chi_square(counts, expected))
        assert abs(np.mean(unlikely[True]) - np.mean(unlikely[False])) < 5 * np.sqrt(2 / 12)

    def test_over_many_epochs_the_visits_of_every_sample_lie_around_the_middle(self):
        """Within an epoch cached ones come early; but who is cached changes. Each sample's mean place of its epochs,
        in standard errors of its own: 6 is what 800 samples exceed once in half a million runs."""
        samples, epochs = 800, 60
        means = np.full((epochs, samples), np.nan)
        for number, epoch in enumerate(run(Bounded, samples, 16, 0.1, epochs)):
            order, places = epoch.order, (np.arange(samples) + 0.5) / samples
            times = np.bincount(order, minlength=samples)
            with np.errstate(invalid="ignore"):
                means[number] = np.bincount(order, places, samples) / times
        count = np.isfinite(means).sum(0)
        assert count.min() > 20
        error = np.nanstd(means, axis=0, ddof=1) / np.sqrt(count)
        assert (abs(np.nanmean(means, axis=0) - 0.5) / error).max() < 6

    def test_who_follows_whom_is_chance(self):
        """Neighbours of one epoch are strangers in the next."""
        pairs = []
        for epoch in run(Bounded, 2000, 16, 0.1)[1:]:
            order = epoch.order
            pairs.append(set(zip(order[:-1].tolist(), order[1:].tolist(), strict=True)))
        for one, other in itertools.pairwise(pairs):
            assert len(one & other) <= 10


def test_frugal_works_as_the_recipes_make_it():
    make = partial(Frugal, base=partial(Bounded, repetition=2.0))
    sampler = make(100, 3, 1, 2)
    order = sampler.arrange(10, sampler.draw(10, told(100)), told(100), view(100, range(20)))
    assert np.bincount(order).max() == 2
    assert len(order) == 50
