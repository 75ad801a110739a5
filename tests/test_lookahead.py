"""Epochs drawn early: when, by what knowledge, and what the cache is told; and the loaders that live by it."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

import augury
from augury.batch import WeightedBatch
from augury.distributed import Place
from augury.errors import ConfigError
from augury.ids import NONE
from augury.knowledge import Knowledge
from augury.samplers.bounded import Bounded
from augury.samplers.ranks import share_size
from augury.samplers.shuffle import Shuffle
from augury.schedule import Begun, Schedule
from augury.sim.fields import Synthetic
from augury.sim.replay import replay

SAMPLES, BATCH = 40, 4


@dataclass
class Cache:
    """What a schedule sees of a cache, and all that it says to it, with the number of batches until then."""

    room: float = 10.0
    prefetches: bool = True
    refills: bool = False
    walked: int = 0
    plans: list = field(default_factory=list)

    resident = np.zeros(90, np.bool_)

    def plan(self, order, job=0, times=None, later=NONE):
        self.plans.append((self.walked, order.tolist(), later.tolist()))

    def wanted(self):
        return NONE

    def progress(self, done, spreads, accuracies):
        pass


class Drawing:
    """Draws a few by epoch and arranges them the other way round; notes when and by what it was asked to."""

    foreseeable = False
    skips = False

    def __init__(self, cache, samples=SAMPLES):
        self.samples, self._cache = samples, cache
        self.draws = []
        """Epochs, the number of batches until then, who was seen when, the first score."""

    def drawn(self, epoch):
        return (np.arange(self.samples) * 3 + epoch) % (self.samples - 5)

    def part(self, epoch):
        return 1.0

    def draw(self, epoch, known):
        self.draws.append((epoch, self._cache.walked, known.seen.copy(), float(known.scores[0])))
        return self.drawn(epoch)

    def weights(self, epoch, known):
        return np.full(self.samples, 10 * epoch + known.scores[0], np.float32)

    def arrange(self, epoch, drawn, known, cache):
        return drawn[::-1]

    def order(self, epoch):
        return self.drawn(epoch)[::-1].tolist()


def walked(lookahead, plan=True, epochs=3, known=None, after=None, **options):
    """The sampler and the cache of a walk that has ended. `after` is called after each batch."""
    cache, known = Cache(), Knowledge.none(SAMPLES) if known is None else known
    sampler = Drawing(cache)
    begin = options.pop("begin", None)
    schedule = Schedule(sampler, BATCH, Place(0, 1), SAMPLES, epochs=epochs, lookahead=lookahead, **options)
    for work in schedule.walk(0, 0, cache, known, plan, begin):
        cache.walked += 1
        if after is not None:
            after(cache.walked, work)
    return sampler, cache


class TestWhen:
    @pytest.mark.parametrize(("lookahead", "at"), [(1.0, 0), (0.75, 3), (0.5, 5), (0.1, 9), (0.0, 10)])
    def test_an_epoch_is_drawn_so_long_before_it_starts_and_none_beyond_the_last(self, lookahead, at):
        sampler, _ = walked(lookahead)
        assert [draw[:2] for draw in sampler.draws] == [(0, 0), (1, at), (2, 10 + at)]

    @pytest.mark.parametrize("lookahead", [1.0, 0.5])
    def test_where_nobody_wants_to_know_it_is_drawn_when_it_starts(self, lookahead):
        sampler, cache = walked(lookahead, plan=False)
        assert [draw[:2] for draw in sampler.draws] == [(0, 0), (1, 10), (2, 20)]
        assert cache.plans == []

    def test_the_cache_is_told_who_comes_in_the_next_epoch_as_soon_as_that_is_drawn(self):
        sampler, cache = walked(1.0)
        told = [(10 * epoch, sampler.order(epoch), sampler.drawn(epoch + 1).tolist()) for epoch in (0, 1)]
        assert [plan for plan in cache.plans if plan[2]] == told
        assert cache.plans[-1] == (20, sampler.order(2), []), "of the last one nothing follows"
        before = [(10 * epoch, sampler.drawn(epoch).tolist(), []) for epoch in range(3)]
        assert cache.plans[::2] == before, "and before each is arranged, who is in it"
        assert len(cache.plans) == 6

    def test_in_the_middle_it_is_told_the_rest_of_this_epoch_and_the_next(self):
        sampler, cache = walked(0.5, epochs=2)
        whole, rest = sampler.order(0), sampler.order(0)[20:]
        assert cache.plans[1:3] == [(0, whole, []), (5, rest, sampler.drawn(1).tolist())]
        assert cache.plans[4:] == [(10, sampler.order(1), [])]

    def test_without_lookahead_it_is_told_this_epoch_only(self):
        sampler, cache = walked(0.0)
        assert all(later == [] for _, _, later in cache.plans)
        assert [order for _, order, _ in cache.plans[1::2]] == [sampler.order(epoch) for epoch in range(3)]

    def test_a_single_epoch_is_drawn_once(self):
        sampler, cache = walked(1.0, epochs=1)
        assert len(sampler.draws) == 1
        assert cache.plans[-1] == (0, sampler.order(0), [])

    def test_there_is_always_a_next_one_unless_told_otherwise(self):
        cache = Cache()
        sampler = Drawing(cache)
        walk = Schedule(sampler, BATCH, Place(0, 1), SAMPLES, lookahead=1.0).walk(0, 0, cache, Knowledge.none(40), True)
        assert len(list(itertools.islice(walk, 31))) == 31
        assert [draw[0] for draw in sampler.draws] == [0, 1, 2, 3, 4]

    def test_of_a_subset_the_cache_is_told_ids(self):
        cache, subset = Cache(), np.arange(40) * 2
        sampler = Drawing(cache)
        list(
            Schedule(sampler, BATCH, Place(0, 1), 40, subset, epochs=2, lookahead=1.0).walk(
                0, 0, cache, Knowledge.none(80), True
            )
        )
        assert cache.plans[1] == (0, [2 * at for at in sampler.order(0)], (2 * sampler.drawn(1)).tolist())

    @pytest.mark.parametrize(("lookahead", "at"), [(1.0, 0), (0.5, 0), (0.25, 2), (0.0, 4)])
    def test_in_an_epoch_that_was_interrupted_the_next_one_is_drawn_when_it_would_have_been(self, lookahead, at):
        """Or at once, where that time is over."""
        cache = Cache()
        sampler = Drawing(cache)
        schedule = Schedule(sampler, BATCH, Place(0, 1), SAMPLES, epochs=2, lookahead=lookahead)
        order = sampler.order(0)
        for _ in schedule.walk(0, 24, cache, Knowledge.none(SAMPLES), True, begun=Begun(np.array(order), 24)):
            cache.walked += 1
        assert [draw[:2] for draw in sampler.draws] == [(1, at)]
        assert cache.walked == 4 + 10
        assert cache.plans[0][1] == order[24:]
        if lookahead:
            assert (at, order[24 + at * BATCH :], sampler.drawn(1).tolist()) in cache.plans


class TestByWhat:
    @pytest.mark.parametrize("lookahead", [1.0, 0.5, 0.0])
    def test_visits_of_the_running_epoch_count_as_seen_when_the_next_one_is_drawn(self, lookahead):
        known = Knowledge.none(SAMPLES)
        sampler, _ = walked(lookahead, known=known)
        seen = np.full(SAMPLES, -1)
        for epoch in range(3):
            assert np.array_equal(sampler.draws[epoch][2], seen)
            seen[sampler.drawn(epoch)] = epoch
        assert np.array_equal(known.seen, seen)

    def test_but_are_not_noted_before_they_happen(self):
        known = Knowledge.none(SAMPLES)
        expected = known.seen.copy()

        def after(_, work):
            expected[work.ids] = work.epoch
            assert np.array_equal(known.seen, expected)

        walked(1.0, known=known, after=after)

    @pytest.mark.parametrize(("lookahead", "scores"), [(1.0, [1, 1, 10]), (0.5, [1, 5, 15]), (0.0, [1, 10, 20])])
    def test_scores_are_those_told_until_then(self, lookahead, scores):
        """After each batch the first sample's score is the number of the batch."""
        known = Knowledge.none(SAMPLES)

        def after(batch, _):
            known.scores[0] = batch

        sampler, _ = walked(lookahead, known=known, after=after)
        assert [draw[3] for draw in sampler.draws] == scores

    @pytest.mark.parametrize(("lookahead", "scores"), [(1.0, [1, 1, 10]), (0.0, [1, 10, 20])])
    def test_weights_are_those_of_the_draw(self, lookahead, scores):
        known, begun = Knowledge.none(SAMPLES), []

        def after(batch, _):
            known.scores[0] = batch

        walked(lookahead, known=known, after=after, weigh=True, begin=lambda *of_epoch: begun.append(of_epoch))
        assert [epoch for epoch, _, _ in begun] == [0, 1, 2]
        assert [weights[0] for _, _, weights in begun] == [10 * epoch + score for epoch, score in enumerate(scores)]

    def test_nobody_is_asked_for_weights_that_are_not_wanted(self):
        begun = []
        walked(1.0, begin=lambda *of_epoch: begun.append(of_epoch))
        assert [weights for _, _, weights in begun] == [None] * 3


def test_ranks_that_draw_early_forget_nobody():
    """Each knows its own visits only: what is due to a rank is due whatever others do."""
    samples, explore = 90, 3
    last, walks = np.full(samples, -1), []
    for rank in range(2):
        sampler = Bounded(samples, 1, rank, 2, share_size(samples, BATCH, rank, 2), explore=explore)
        known = Knowledge.none(samples)
        known.learn(np.arange(samples), np.linspace(2.3, 5.5, samples, dtype=np.float32))
        schedule = Schedule(sampler, BATCH, Place(rank, 2), samples, epochs=20, lookahead=1.0)
        walks.append(schedule.walk(0, 0, Cache(), known, True))
    for works in zip(*walks, strict=True):
        for work in works:
            last[work.ids] = work.epoch
        if works[0].ends_epoch:
            assert (works[0].epoch - last).max() <= explore


# -- loaders -----------------------------------------------------------------------------------------------------

ROWS, BATCH_SIZE, WIDTH = 900, 16, 24
FIELD = Synthetic(ROWS)


def rows():
    x = np.random.default_rng(1).integers(0, 256, (ROWS, WIDTH), np.uint8)
    return x, np.arange(ROWS)


def loader_of(recipe=None, cache=0.2, **options):
    window = 4 * BATCH_SIZE * WIDTH
    defaults = {"ram": int(cache * ROWS * WIDTH) + window, "readahead": window, "readers": 4, "output": "numpy"}
    return augury.Loader(rows(), BATCH_SIZE, recipe=recipe, **(defaults | options))


def epoch_of(loader, epoch, stop=None):
    """Train an epoch, or as many batches of it; what came, field by field."""
    x, _ = rows()
    came = []
    for batch in itertools.islice(loader, stop):
        assert np.array_equal(batch[0], x[batch.ids])
        loader.feedback(batch.ids, FIELD.losses(epoch, batch.ids))
        came.append(batch)
    return came


def ids_of(batches):
    return np.concatenate([batch.ids for batch in batches])


def weights_of(batches):
    return np.concatenate([batch.weights for batch in batches])


class TestAugury:
    @pytest.mark.parametrize("lag", [1, 6])
    def test_a_live_run_is_what_replay_says(self, lag):
        with loader_of("augury", lag=lag, epochs=4) as loader:
            live = [ids_of(epoch_of(loader, epoch)) for epoch in range(4)]
            epochs = loader.stats().epochs
        said = replay("augury", ROWS, 4, 0.2, BATCH_SIZE, 0, losses=FIELD, lag=lag)
        assert [epoch.counts.shares()["hit_ratio"] for epoch in epochs] == said.per_epoch
        assert [epoch.counts.shares()["reads"] for epoch in epochs] == said.reads_per_epoch
        assert [len(np.unique(ids)) / ROWS for ids in live] == said.coverage_per_epoch
        assert max(said.reads_per_epoch[1:]) < 0.5, "of 2/3 that come a fifth of all is there"

    @pytest.mark.parametrize("stop", [1, 20, 56])
    def test_an_epoch_that_was_interrupted_goes_on_as_it_was_drawn(self, stop):
        with loader_of("augury", epochs=5) as loader:
            whole = [ids_of(epoch_of(loader, epoch)) for epoch in range(3)]
        with loader_of("augury", epochs=5) as loader:
            for epoch in range(2):
                epoch_of(loader, epoch)
            before = ids_of(epoch_of(loader, 2, stop))
            state = json.loads(json.dumps(loader.state_dict()))
        assert np.array_equal(before, whole[2][: len(before)])
        with loader_of("augury", epochs=5) as loader:
            loader.load_state_dict(state)
            assert np.array_equal(ids_of(epoch_of(loader, 2)), whole[2][len(before) :])
            after = ids_of(epoch_of(loader, 3))
            assert len(after) == ROWS
            assert len(np.unique(after)) == ROWS * 2 // 3

    def test_ranks_have_equally_many_batches_and_share_the_first_epoch(self):
        visited = []
        for rank in range(3):
            with loader_of("augury", rank=rank, world_size=3, epochs=3) as loader:
                visited.append([ids_of(epoch_of(loader, epoch)) for epoch in range(3)])
        assert set(np.concatenate([epochs[0] for epochs in visited]).tolist()) == set(range(ROWS))
        assert len({-(-len(epoch) // BATCH_SIZE) for epochs in visited for epoch in epochs}) == 1

    def test_a_subset_is_kept_to(self):
        subset = np.arange(100, 700, 3)
        with loader_of("augury", subset=subset, epochs=3, weights=True) as loader:
            for epoch in range(3):
                batches = epoch_of(loader, epoch)
                assert np.isin(ids_of(batches), subset).all()
                assert len(ids_of(batches)) == len(subset)
                assert weights_of(batches).mean() == pytest.approx(1, abs=0.1)


class TestExact:
    def test_it_is_the_default_and_its_order_is_the_plain_one(self):
        with loader_of(seed=7, epochs=3) as loader:
            assert loader.recipe.name == "augury-exact"
            for epoch in range(3):
                order = Shuffle(ROWS, 7).draw(epoch, Knowledge.none(0))
                assert np.array_equal(ids_of(list(loader)), order)

    @pytest.mark.parametrize("cache", [0.1, 0.5])
    def test_hits_are_the_cached_fraction(self, cache):
        with loader_of(cache=cache, epochs=4) as loader:
            for _ in range(4):
                assert len(list(loader)) == len(loader)
            shares = [epoch.counts.shares() for epoch in loader.stats().epochs]
        assert shares[0]["hit_ratio"] == 0
        assert [share["hit_ratio"] for share in shares[1:]] == [pytest.approx(cache, abs=0.01)] * 3
        assert [share["reads"] for share in shares[1:]] == [pytest.approx(1 - cache, abs=0.01)] * 3

    def test_another_number_of_ranks_goes_on_and_visits_everything_once(self):
        with loader_of(epochs=3) as loader:
            list(loader)
            iterator = iter(loader)
            visited = [next(iterator).ids for _ in range(11)]
            state = loader.state_dict()
        for rank in range(3):
            with loader_of(rank=rank, world_size=3, epochs=3) as loader:
                loader.load_state_dict(state)
                visited.extend(batch.ids for batch in loader)
        assert sorted(np.concatenate(visited).tolist()) == list(range(ROWS))

    def test_a_disk_below_the_memory_counts_too(self, tmp_path):
        with loader_of(cache=0.1, epochs=3, disk=(tmp_path / "disk", 20 * ROWS * WIDTH)) as loader:
            for _ in range(3):
                list(loader)
            last = loader.stats().epochs[-1]
        assert last.bytes_from["disk"] > 0
        assert last.counts.shares()["hit_ratio"] > 0.1


class TestWeights:
    def test_a_recipe_that_draws_by_importance_weighs_what_comes(self):
        with loader_of("augury", epochs=3, weights=True) as loader:
            first, second, third = ([*epoch_of(loader, epoch)] for epoch in range(3))
        assert (weights_of(first) == 1).all()
        assert (weights_of(second) == 1).all(), "drawn before anything was told"
        for batch in third:
            assert isinstance(batch, WeightedBatch)
            assert len(batch) == 4
            assert batch.weights.dtype == np.float32
            assert batch.weights.shape == batch.ids.shape
        ids, weights = ids_of(third), weights_of(third)
        assert weights.std() > 0.05
        assert weights.mean() == pytest.approx(1, abs=0.05)
        for id in np.unique(ids):
            assert len(set(weights[ids == id].tolist())) == 1, "one weight per sample and epoch"

    def test_as_tensors(self):
        with loader_of("augury", output="torch", weights=True) as loader:
            x, y, ids, weights = next(iter(loader))
        assert isinstance(weights, torch.Tensor)
        assert weights.dtype == torch.float32
        assert torch.equal(weights, torch.ones(len(ids)))
        assert torch.equal(y, torch.as_tensor(ids))
        assert len(x) == len(ids)

    def test_ones_where_every_sample_comes_once(self):
        for recipe in ("augury-exact", "minio", "none"):
            with loader_of(recipe, weights=True, epochs=2) as loader:
                for _ in range(2):
                    assert (weights_of(list(loader)) == 1).all()

    def test_refused_at_once_where_they_are_not_known(self):
        for recipe in ("shade", "shade-paper"):
            with pytest.raises(ConfigError, match="take recipe 'augury', or 'shade-1'"):
                loader_of(recipe, weights=True)

    @pytest.mark.parametrize("recipe", ["shade-1", "sh-lru"])
    def test_other_recipes_that_draw_by_importance_have_them_too(self, recipe):
        with loader_of(recipe, weights=True, epochs=2) as loader:
            first, second = ([*epoch_of(loader, epoch)] for epoch in range(2))
        assert (weights_of(first) == 1).all()
        assert weights_of(second).std() > 0.05
        assert weights_of(second).mean() == pytest.approx(1, abs=0.1)

    def test_without_them_batches_are_as_ever(self):
        with loader_of("augury") as loader:
            x, y, ids = next(iter(loader))
        assert len(x) == len(y) == len(ids)

    @pytest.mark.parametrize(("recipe", "epoch"), [("shade-1", 0), ("augury", 2)])
    def test_an_epoch_that_was_interrupted_goes_on_with_the_weights_of_its_draw(self, recipe, epoch):
        weights = {}
        with loader_of(recipe, weights=True) as loader:
            for earlier in range(epoch):
                epoch_of(loader, earlier)
            weights["whole"] = weights_of(epoch_of(loader, epoch))[20 * BATCH_SIZE :]
        with loader_of(recipe, weights=True) as loader:
            for earlier in range(epoch):
                epoch_of(loader, earlier)
            epoch_of(loader, epoch, 20)
            state = loader.state_dict()
        with loader_of(recipe, weights=True) as loader:
            loader.load_state_dict(state)
            weights["resumed"] = weights_of(epoch_of(loader, epoch))
        np.testing.assert_allclose(weights["resumed"], weights["whole"], rtol=1e-5)

    def test_epochs_that_are_over_leave_nothing_behind(self):
        with loader_of("augury", weights=True) as loader:
            for epoch in range(5):
                epoch_of(loader, epoch)
            assert len(loader._learning._orders) <= 2

    def test_epochs_that_are_left_midway_leave_nothing_behind(self):
        with loader_of("augury", weights=True) as loader:
            for epoch in range(6):
                epoch_of(loader, epoch, 2)
            assert len(loader._learning._orders) <= 2
