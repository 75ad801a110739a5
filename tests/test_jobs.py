"""Several jobs on one cache: adjusted importance by hand, benefits by a clock that is told, and real loaders."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import augury
from augury.errors import ConfigError
from augury.ids import as_ids
from augury.jobs import ELIGIBLE, PROBE, SETTLE, Benefit, Jobs, relative
from augury.sim.fields import Synthetic
from helpers import arrays

SAMPLES, BATCH, WIDTH = 600, 5, 24


def told(*importances):
    """Jobs that have told the importance of three samples or more."""
    jobs = Jobs(len(importances[0]))
    for job, importance in enumerate(importances):
        jobs.learn(job, np.arange(len(importance)), np.array(importance, np.float32))
    return jobs


class TestAdjusted:
    """AIV = sum over eligible jobs of benefit x percentile."""

    def test_by_hand(self):
        jobs = told([0.1, 0.2, 0.3], [0.9, 0.5, 0.1])
        jobs.rate(0, 2.0)
        jobs.rate(1, 3.0)
        np.testing.assert_allclose(jobs.adjusted(), [2 / 3 + 3, 4 / 3 + 2, 2 + 1], rtol=1e-6)

    def test_who_gains_too_little_does_not_count(self):
        jobs = told([0.1, 0.2, 0.3], [0.9, 0.5, 0.1])
        jobs.rate(0, 2.0)
        jobs.rate(1, ELIGIBLE)
        np.testing.assert_allclose(jobs.adjusted(), [2 / 3, 4 / 3, 2], rtol=1e-6)

    def test_who_has_counted_is_not_dropped_in_doubt(self):
        """Each change of mind exchanges the cache."""
        jobs = told([0.1, 0.2, 0.3], [0.9, 0.5, 0.1])
        jobs.rate(0, 2.0)
        for benefit, counts in ((1.4, False), (1.6, True), (1.4, True), (1.1, False), (1.4, False)):
            jobs.rate(1, benefit)
            expected = np.array([2 / 3, 4 / 3, 2]) + counts * benefit * np.array([1, 2 / 3, 1 / 3])
            np.testing.assert_allclose(jobs.adjusted(), expected, rtol=1e-6)

    def test_where_nobody_gains_all_count_alike(self):
        jobs = told([0.1, 0.2, 0.3], [0.9, 0.5, 0.1])
        jobs.rate(0, 1.2)
        jobs.rate(1, 0.9)
        np.testing.assert_allclose(jobs.adjusted(), [4 / 3, 4 / 3, 4 / 3], rtol=1e-6)

    def test_before_anything_is_measured_all_count_once(self):
        np.testing.assert_allclose(told([5.0, 1.0], [7.0, 8.0]).adjusted(), [1.5, 1.5], rtol=1e-6)

    def test_who_has_left_does_not_count(self):
        jobs = told([0.1, 0.2], [0.9, 0.5])
        jobs.leave(1)
        assert not jobs.several
        np.testing.assert_allclose(jobs.adjusted(), [0.5, 1.0])

    def test_scales_of_losses_do_not_matter(self):
        """A job whose losses are a thousand times higher has no thousandfold voice."""
        jobs = told([1000.0, 2000.0, 3000.0], [0.3, 0.2, 0.1])
        assert np.ptp(jobs.adjusted()) < 1e-6

    def test_relative_is_the_share_at_most_as_important(self):
        assert relative(np.array([3, 1, 1, 2], np.float32)).tolist() == [1.0, 0.5, 0.5, 0.75]


class TestBenefit:
    @staticmethod
    def epoch(benefit, without, with_, batches=60):
        """An epoch whose minibatches take so long without and with the cache."""
        now, bypassed = 0.0, []
        for at in range(batches):
            bypassed.append(benefit.bypasses(0, at))
            benefit.note(at, bypassed[-1], now)
            now += without if at < PROBE else with_
        return bypassed

    def test_time_without_by_time_with(self):
        jobs = told([1.0], [1.0])
        bypassed = self.epoch(Benefit(jobs, 0), 3.0, 1.5)
        assert bypassed == [True] * PROBE + [False] * 40
        assert jobs.benefits() == {0: 2.0, 1: None}

    def test_what_was_read_ahead_is_not_timed(self):
        """The first minibatches after a change are those that were read before it."""
        jobs = told([1.0], [1.0])
        benefit, now = Benefit(jobs, 1), 0.0
        for at in range(2 * PROBE + 1):
            benefit.note(at, benefit.bypasses(0, at), now)
            early = at < SETTLE or PROBE <= at < PROBE + SETTLE
            now += 0 if early else 4.0 if at < PROBE else 1.0
        assert jobs.benefits()[1] == 4.0

    def test_later_epochs_count_more(self):
        jobs = told([1.0], [1.0])
        benefit = Benefit(jobs, 0)
        self.epoch(benefit, 1.0, 1.0)
        self.epoch(benefit, 4.0, 1.0)
        assert 2.5 < jobs.benefits()[0] < 4

    def test_a_job_that_is_alone_is_not_slowed(self):
        jobs = told([1.0])
        assert not any(self.epoch(Benefit(jobs, 0), 1.0, 1.0))
        assert jobs.benefits() == {0: None}

    def test_short_epochs_are_not_slowed(self):
        jobs = told([1.0], [1.0])
        benefit = Benefit(jobs, 0)
        benefit.batches = lambda epoch: 50
        assert not any(self.epoch(benefit, 3.0, 1.0))

    def test_an_epoch_that_is_left_early_says_nothing(self):
        jobs = told([1.0], [1.0])
        self.epoch(Benefit(jobs, 0), 3.0, 1.0, batches=2 * PROBE)
        assert jobs.benefits()[0] is None


def shared(**options):
    """Two loaders on one cache of a third of the data."""
    window = 4 * BATCH * WIDTH
    room = {"ram": SAMPLES * WIDTH // 3 + window, "readahead": window}
    common = {"recipe": "icache", "output": "numpy", "readers": 4} | options
    first = augury.Loader(arrays(SAMPLES, WIDTH), BATCH, seed=0, **room, **common)
    return first, augury.Loader(arrays(SAMPLES, WIDTH), BATCH, seed=1, cache=first.cache, **common)


def train(loader, field, epochs, seen):
    x, y = arrays(SAMPLES, WIDTH)
    for epoch in range(epochs):
        for data, labels, ids in loader:
            assert np.array_equal(data, x[ids])
            assert np.array_equal(labels, y[ids])
            loader.feedback(ids, field.losses(epoch, ids))
            seen.append(ids)


def test_two_jobs_train_at_once_on_one_cache():
    first, second = shared(epochs=8)
    seen = [], []
    with first, second:
        threads = [
            threading.Thread(target=train, args=(loader, Synthetic(SAMPLES, seed), 8, seen[seed]), daemon=True)
            for seed, loader in enumerate((first, second))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert set(first.cache.jobs.benefits()) == {0, 1}
        assert all(benefit is not None and benefit > 0 for benefit in first.cache.jobs.benefits().values())
        held = first.cache.resident
        assert first.cache.levels[0].policy.used <= first.cache.levels[0].policy.capacity
        assert held.sum() * WIDTH <= first.cache.levels[0].policy.capacity
    for ids in seen:
        assert sum(map(len, ids)) == 6 * SAMPLES + 2 * round(SAMPLES / 1.33)  # five to warm up, and every third


def test_both_jobs_decide_what_is_held():
    """Each finds its own important samples in the cache more often than chance would have it."""
    first, second = shared()
    cache = first.cache
    with first, second:
        hard = as_ids(range(0, 90)), as_ids(range(300, 390))
        for job in range(2):
            scores = np.full(SAMPLES, 0.2, np.float32)
            scores[hard[job]] = 0.9
            cache.learn(np.arange(SAMPLES), scores, job=job)
        rng = np.random.default_rng(0)
        for job in (0, 1, 0, 1):
            order = rng.permutation(SAMPLES)
            cache.plan(order, job)
            for start in range(0, SAMPLES, BATCH):
                cache.abandon(cache.decide(order[start : start + BATCH], job))
                cache._lost.clear()  # the bytes were never there; only decisions are looked at
        held = cache.levels[0].policy.resident
        assert held[hard[0]].mean() > 0.8
        assert held[hard[1]].mean() > 0.8


def test_a_job_that_is_closed_leaves():
    first, second = shared()
    with first:
        with second:
            for loader in (first, second):
                train_one = iter(loader)
                _, _, ids = next(train_one)
                loader.feedback(ids, np.ones(len(ids), np.float32))
        assert 1 not in first.cache.jobs.benefits()
        train(first, Synthetic(SAMPLES), 1, [])


def test_when_one_is_left_its_own_importance_counts():
    first, second = shared()
    everybody = np.arange(SAMPLES)
    with first:
        with second:
            for job, scores in enumerate((np.linspace(0, 1, SAMPLES), np.linspace(1, 0, SAMPLES))):
                first.cache.learn(everybody, scores.astype(np.float32), job=job)
                first.cache.jobs.rate(job, 4.0)
            first.cache.plan(everybody, 0)
            assert first.cache.levels[0].policy._h.importance.max() > 4
        assert first.cache.levels[0].policy._h.importance.max() == 1
        assert first.cache.levels[0].policy._h.importance.argmax() == SAMPLES - 1


class TestMistakes:
    def test_a_recipe_that_is_not_for_several(self):
        data = arrays(SAMPLES, WIDTH)
        with (
            augury.Loader(data, BATCH, recipe="shade", ram="1MB") as first,
            pytest.raises(ConfigError, match="share a cache only where both have one recipe of icache"),
        ):
            augury.Loader(data, BATCH, recipe="shade", cache=first.cache)

    def test_another_recipe_than_the_caches(self):
        data = arrays(SAMPLES, WIDTH)
        with (
            augury.Loader(data, BATCH, recipe="lru", ram="1MB") as first,
            pytest.raises(ConfigError, match="'icache' beside cache="),
        ):
            augury.Loader(data, BATCH, recipe="icache", cache=first.cache)

    def test_a_recipe_for_validation(self):
        data = arrays(SAMPLES, WIDTH)
        with (
            augury.Loader(data, BATCH, recipe="icache", ram="1MB") as first,
            pytest.raises(ConfigError, match="admit=False"),
        ):
            augury.Loader(data, BATCH, recipe="icache", cache=first.cache, admit=False)
