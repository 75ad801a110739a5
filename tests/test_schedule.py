"""The walk over epochs: who visits what, in what batches, what the cache is told, and what is read unasked."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.distributed import Place
from augury.errors import ConfigError
from augury.ids import NONE, as_ids
from augury.knowledge import Knowledge
from augury.policies.shade import APP
from augury.recipes import find
from augury.samplers.importance import PADS, PaperPADS, Weighted
from augury.samplers.ranks import portion, share, share_size
from augury.samplers.selective import CIS, IIS
from augury.samplers.shuffle import InOrder, Shuffle
from augury.schedule import Begun, Schedule
from augury.sim.replay import _Cache
from augury.step import prefetch, step

IMPORTANCE = [Weighted, PADS, PaperPADS]


@dataclass
class Cache:
    """What a schedule sees, and all that it says."""

    samples: int
    wants: list = field(default_factory=list)
    """What `wanted` answers, call by call; then nothing."""
    held: tuple = ()
    room: float = 0
    prefetches: bool = True
    refills: bool = False
    plans: list = field(default_factory=list)
    """What comes in this order, and what later."""

    @property
    def resident(self):
        mask = np.zeros(self.samples, np.bool_)
        mask[list(self.held)] = True
        return mask

    def plan(self, order, job=0, times=None, later=NONE):
        self.plans.append((order.tolist(), later.tolist()))

    def wanted(self):
        return as_ids(self.wants.pop(0)) if self.wants else NONE

    def progress(self, done, spreads, accuracies):
        self.done = done


def schedule(make, samples, batch=4, rank=0, world=1, subset=None, seed=1, **options):
    total = samples if subset is None else len(subset)
    count = share_size(total, batch, rank, world, options.get("drop_last", False))
    return Schedule(make(total, seed, rank, world, count), batch, Place(rank, world), total, subset, **options)


def told(samples, **rest):
    known = Knowledge.none(samples)
    known.learn(np.arange(samples), np.linspace(0.5, 5, samples, dtype=np.float32))
    for name, value in rest.items():
        setattr(known, name, value)
    return known


def walk(schedule, known=None, cache=None, epoch=0, offset=0, samples=None, **options):
    """All work from there on; `schedule` must end."""
    known = Knowledge.none(schedule.samples) if known is None else known
    cache = Cache(samples or len(known.scores) or schedule.samples) if cache is None else cache
    return list(schedule.walk(epoch, offset, cache, known, **options))


def order_of(work, epoch=None):
    parts = [w.ids for w in work if w.asked and (epoch is None or w.epoch == epoch)]
    return np.concatenate([NONE, *parts])


sizes = st.integers(1, 40)
batch_sizes = st.integers(1, 7)
world_sizes = st.integers(1, 4)


class TestForeseeable:
    @given(sizes, batch_sizes, world_sizes, st.booleans())
    def test_every_rank_walks_its_share(self, samples, batch, world, drop_last):
        whole = [Shuffle(samples, 1).draw(epoch, Knowledge.none(0)) for epoch in range(2)]
        for rank in range(world):
            plan = schedule(Shuffle, samples, batch, rank, world, drop_last=drop_last, epochs=2)
            work = walk(plan, Knowledge.none(0), Cache(samples))
            for epoch in range(2):
                expected = share(whole[epoch], batch, rank, world, drop_last)
                assert order_of(work, epoch).tolist() == expected.tolist()
                mine = [w for w in work if w.epoch == epoch]
                assert len(mine) == plan.batches_from(epoch)
                assert all(len(w.ids) == batch for w in mine[:-1])
                assert [w.ends_epoch for w in mine] == [False] * (len(mine) - 1) + [True] * bool(mine)

    @given(sizes, batch_sizes, world_sizes, st.data())
    def test_an_offset_leaves_the_rest_of_the_epoch(self, samples, batch, world, data):
        offset = data.draw(st.integers(0, samples))
        rest = Shuffle(samples, 1).draw(3, Knowledge.none(0))[offset:]
        plans = [schedule(Shuffle, samples, batch, rank, world, epochs=5) for rank in range(world)]
        works = [walk(plan, epoch=3, offset=offset) for plan in plans]
        assert set(np.concatenate([order_of(work, 3) for work in works]).tolist()) == set(rest.tolist())
        for plan, work in zip(plans, works, strict=True):
            assert sum(w.epoch == 3 for w in work) == plan.batches_from(3, offset)
            assert sum(w.epoch == 4 for w in work) == plan.batches_from(4)

    def test_after_a_batch_the_offset_is_where_the_next_one_begins(self):
        plan = schedule(Shuffle, 50, 4, 1, 3, epochs=1)
        whole, offset = walk(plan), 0
        for done in range(plan.batches_from(0) + 1):
            resumed = walk(plan, offset=offset)
            assert [w.ids.tolist() for w in resumed] == [w.ids.tolist() for w in whole[done:]]
            offset = plan.offset_after(0, offset)
        assert offset == 50

    @given(sizes, batch_sizes, world_sizes, st.booleans(), st.data())
    def test_the_future_is_what_the_walk_will_visit(self, samples, batch, world, drop_last, data):
        rank, offset = data.draw(st.integers(0, world - 1)), data.draw(st.integers(0, samples))
        some = data.draw(st.none() | st.lists(st.integers(0, 50), min_size=samples, max_size=samples))
        subset = None if some is None else as_ids(some)
        plan = schedule(Shuffle, samples, batch, rank, world, subset, drop_last=drop_last, epochs=5)
        order, times = plan.future(2, offset, Knowledge.none(0))
        work = walk(plan, Knowledge.none(0), Cache(51), epoch=2, offset=offset)
        visited = [id for one in work for id in one.ids.tolist()]
        assert order.tolist() == list(dict.fromkeys(visited))
        assert times.tolist() == [visited.count(id) for id in order.tolist()]
        assert times.dtype == np.int32

    def test_there_is_no_future_beyond_the_last_epoch_and_none_without_one(self):
        for epoch in (3, 4):
            order, times = schedule(Shuffle, 10, epochs=3).future(epoch, 0, Knowledge.none(0))
            assert len(order) == len(times) == 0
        with pytest.raises(ConfigError, match="how many epochs="):
            schedule(Shuffle, 10).future(0, 0, Knowledge.none(0))
        with pytest.raises(ConfigError, match="without feedback"):
            schedule(PADS, 10, epochs=3).future(0, 0, Knowledge.none(10))

    def test_there_is_always_a_next_epoch_unless_told_otherwise(self):
        plan = schedule(InOrder, 8, 4)
        work = itertools.islice(plan.walk(0, 0, Cache(8), Knowledge.none(0)), 2000)
        assert [w.epoch for w in work] == [at // 2 for at in range(2000)]

    def test_a_subset_is_visited_by_its_own_ids(self):
        subset = as_ids([70, 3, 50, 9, 11])
        work = walk(schedule(Shuffle, 100, 2, subset=subset, epochs=2), Knowledge.none(0), Cache(100))
        for epoch in range(2):
            assert sorted(order_of(work, epoch).tolist()) == sorted(subset.tolist())
        first = Shuffle(5, 1).draw(0, Knowledge.none(0))
        assert order_of(work, 0).tolist() == subset[first].tolist()

    def test_the_cache_is_told_this_epoch_and_the_next(self):
        cache = Cache(10)
        orders = [Shuffle(10, 1).draw(epoch, Knowledge.none(0)).tolist() for epoch in range(3)]
        work = schedule(Shuffle, 10, epochs=3).walk(0, 0, cache, Knowledge.none(0), plan=True)
        for epoch in range(3):
            for at in range(3):
                assert next(work).epoch == epoch
                if at == 0:
                    assert cache.plans[-1] == (orders[epoch], orders[epoch + 1] if epoch < 2 else [])
        assert len(cache.plans) == 3

    def test_a_rank_plans_its_own_share_of_ids_from_the_offset_on(self):
        subset = np.arange(30) * 3
        cache = Cache(90)
        plan = schedule(Shuffle, 90, 4, 1, 2, subset=subset, epochs=2)
        work = walk(plan, Knowledge.none(0), cache, offset=8, plan=True)
        first, second = (order_of(work, epoch).tolist() for epoch in range(2))
        assert cache.plans == [(first, second), (second, [])]

    def test_nothing_is_planned_where_nobody_asked_for_it(self):
        cache = Cache(10)
        walk(schedule(Shuffle, 10, epochs=2), Knowledge.none(0), cache)
        assert cache.plans == []

    @pytest.mark.parametrize("plan", [False, True])
    def test_a_recipe_that_learns_has_its_visits_noted_in_their_epoch(self, plan):
        """Although the next epoch may be drawn before this one is walked."""
        known = told(10)
        expected = known.seen.copy()
        for work in schedule(Shuffle, 10, epochs=5).walk(2, 0, Cache(10), known, plan):
            expected[work.ids] = work.epoch
            assert known.seen.tolist() == expected.tolist()

    def test_each_epoch_is_announced_before_its_first_batch(self):
        begun = []
        work = schedule(Shuffle, 10, epochs=6).walk(
            4, 0, Cache(10), Knowledge.none(0), begin=lambda epoch, order, _: begun.append((epoch, order.tolist()))
        )
        orders = {epoch: Shuffle(10, 1).draw(epoch, Knowledge.none(0)).tolist() for epoch in (4, 5)}
        for one in work:
            assert begun[-1] == (one.epoch, orders[one.epoch])
        assert [epoch for epoch, _ in begun] == [4, 5]


class TestUnasked:
    @pytest.mark.parametrize("make", [PADS, Shuffle])
    def test_what_is_wanted_comes_before_the_epochs_first_batch(self, make):
        cache = Cache(12, wants=[[5, 3, 9, 1, 2], [], [7]])
        begun = []
        plan = schedule(make, 12, 4, epochs=3)
        work = walk(plan, told(12), cache, plan=True, begin=lambda epoch, *_: begun.append(epoch))
        assert [(w.epoch, w.asked) for w in work] == [
            *[(0, False)] * 2,
            *[(0, True)] * 3,
            *[(1, True)] * 3,
            (2, False),
            *[(2, True)] * 3,
        ]
        assert [w.ids.tolist() for w in work if not w.asked] == [[5, 3, 9, 1], [2], [7]]
        assert not any(w.ends_epoch for w in work if not w.asked)
        assert begun == [0, 1, 2]

    def test_what_is_read_unasked_is_not_visited(self):
        known = told(12)
        work = schedule(PADS, 12, 4, epochs=1).walk(0, 0, Cache(12, wants=[[5, 3]]), known, True)
        assert not next(work).asked
        assert (known.seen == -1).all()

    @pytest.mark.parametrize("make", [PADS, Shuffle])
    def test_a_recipe_that_does_not_plan_reads_nothing_unasked(self, make):
        cache = Cache(12, wants=[[5], [3]])
        assert all(w.asked for w in walk(schedule(make, 12, epochs=2), told(12), cache))

    def test_the_order_is_arranged_with_what_was_read_unasked_in_view(self):
        known = told(40, seen=np.full(40, 0, np.int32))
        cache = Cache(40, wants=[[30, 31]])
        work = schedule(PADS, 40, 4, epochs=2).walk(1, 0, cache, known, plan=True)
        next(work)
        assert len(cache.plans) == 1, "the cache was told what was drawn before it was asked what it wants"
        drawn, _ = cache.plans[0]
        cache.held = (30, 31)  # as a cache that read them
        order = order_of(list(work), 1).tolist()
        assert cache.plans[1:] == [(order, [])], "and then the order as arranged"
        for id in (30, 31):
            assert order.count(id) == 3 * drawn.count(id)

    def test_a_recipe_that_plans_reads_unasked_only_what_the_epoch_visits_and_all_of_it_is_kept(self):
        recipe = replace(find("shade"), policy=APP)
        ones = np.ones(200, np.int64)
        policy = recipe.policy(ones, 50, np.random.default_rng(0))
        assert isinstance(policy, APP)
        assert recipe.foresight
        known = Knowledge.none(200)
        plan = Schedule(recipe.sampler(200, 3), 16, Place(0, 1), 200, epochs=6)
        scorer, rng = recipe.scorer(200), np.random.default_rng(1)
        unasked, visited = {}, {}
        for work in plan.walk(0, 0, _Cache(policy, ones), known, recipe.foresight):
            if work.asked:
                step([policy], work.ids)
                scores = scorer.score(work.ids, rng.random(len(work.ids)).astype(np.float32))
                known.learn(work.ids, scores)
                policy.learn(work.ids, scores)
                visited.setdefault(work.epoch, set()).update(work.ids.tolist())
            else:
                assert prefetch([policy], work.ids).missed.tolist() == work.ids.tolist()
                unasked.setdefault(work.epoch, set()).update(work.ids.tolist())
        assert unasked
        for epoch, ids in unasked.items():
            assert ids <= visited[epoch]


@pytest.mark.parametrize("make", IMPORTANCE)
class TestImportance:
    @settings(deadline=None, max_examples=60)
    @given(samples=sizes, batch=batch_sizes, world=world_sizes, drop_last=st.booleans(), tells=st.booleans())
    def test_all_ranks_have_equally_many_batches(self, make, samples, batch, world, drop_last, tells):
        lengths = []
        for rank in range(world):
            plan = schedule(make, samples, batch, rank, world, drop_last=drop_last, epochs=3)
            known = told(samples) if tells else Knowledge.none(samples)
            work = walk(plan, known, Cache(samples, held=tuple(range(0, samples, 3))))
            assert all(0 < len(w.ids) <= batch for w in work)
            assert all(len(w.ids) == batch for w in work if not w.ends_epoch or drop_last)
            assert [sum(w.epoch == epoch for w in work) for epoch in range(3)] == [plan.batches_from(0)] * 3
            assert sum(w.ends_epoch for w in work) == (3 if plan.batches_from(0) else 0)
            lengths.append([len(w.ids) for w in work])
        assert len({len(each) for each in lengths}) == 1
        assert all(max(sizes) - min(sizes) <= 1 for sizes in zip(*lengths, strict=True))
        if not drop_last:
            per_epoch = sum(map(sum, lengths)) / 3
            assert samples <= per_epoch < samples + world

    @settings(deadline=None, max_examples=60)
    @given(samples=sizes, batch=batch_sizes, world=world_sizes, drop_last=st.booleans(), data=st.data())
    def test_any_offset_leaves_equally_many_batches(self, make, samples, batch, world, drop_last, data):
        offset = data.draw(st.integers(0, samples))
        for rank in range(world):
            plan = schedule(make, samples, batch, rank, world, drop_last=drop_last, epochs=5)
            work = walk(plan, told(samples), epoch=3, offset=offset)
            assert sum(w.epoch == 3 for w in work) == plan.batches_from(3, offset)
            assert sum(w.epoch == 4 for w in work) == plan.batches_from(4)

    @settings(deadline=None, max_examples=100)
    @given(samples=sizes, batch=batch_sizes, world=world_sizes, drop_last=st.booleans())
    def test_the_same_ranks_go_on_where_they_were(self, make, samples, batch, world, drop_last):
        """What is known being the same, an epoch is the same: an offset leaves out what was visited, no more."""
        for rank in range(world):
            plan = schedule(make, samples, batch, rank, world, drop_last=drop_last, epochs=1)
            whole, offset = walk(plan, told(samples)), 0
            for done in range(plan.batches_from(0) + 1):
                resumed = walk(plan, told(samples), offset=offset)
                assert [w.ids.tolist() for w in resumed] == [w.ids.tolist() for w in whole[done:]]
                offset = plan.offset_after(0, offset)

    def test_visits_are_noted_batch_by_batch_in_their_epoch(self, make):
        known = told(30)
        expected = known.seen.copy()
        for work in schedule(make, 30, 4, epochs=4).walk(2, 0, Cache(30), known):
            expected[work.ids] = work.epoch
            assert np.array_equal(known.seen, expected)
        assert (known.seen >= 2).any()

    def test_a_subset_is_drawn_by_its_own_scores_and_visited_by_its_own_ids(self, make):
        subset = np.arange(1, 60, 2)
        known = told(60)
        known.scores[:] = 0
        known.scores[[31, 33]] = 1
        known.scores[0] = 1e6  # not in the subset
        known.seen[:] = 7
        known.seen[0] = -1
        cache = Cache(60, held=(31, 0))
        work = walk(schedule(make, 60, 4, subset=subset, epochs=8), known, cache, epoch=7)
        assert len(order_of(work)) == 30
        counts = np.bincount(order_of(work), minlength=60)
        assert counts[31] + counts[33] == 30
        assert known.seen[0] == -1
        if make is not Weighted:
            assert counts[31] >= 20, "31 is held"

    def test_the_cache_is_told_this_epoch_only(self, make):
        known, cache = told(30), Cache(30, held=tuple(range(10)))
        work = schedule(make, 30, 4, 0, 2, epochs=3).walk(0, 0, cache, known, plan=True)
        orders = {0: [], 1: [], 2: []}
        for one in work:
            if not orders[one.epoch]:
                final, later = cache.plans[-1]
                assert later == []
            orders[one.epoch].extend(one.ids.tolist())
            assert final[: len(orders[one.epoch])] == orders[one.epoch]
        assert final == orders[2]

    def test_an_epoch_is_drawn_when_the_last_one_is_over(self, make):
        """Then it knows all that was told by then."""
        known = told(20)
        for work in schedule(make, 20, 5, epochs=4).walk(0, 0, Cache(20), known):
            if work.ends_epoch:
                known.scores[:] = 0
                known.scores[work.epoch + 1] = 1
                known.seen[:] = work.epoch
            elif work.epoch:
                assert set(work.ids.tolist()) == {work.epoch}


class TestPartial:
    """Epochs that leave samples out: 1, 2, 4 and 5."""

    SHORT = partial(IIS, warm_up=1)
    SKIPS = partial(CIS, warm_up=1)

    @settings(max_examples=60)
    @given(sizes, batch_sizes, world_sizes, st.booleans(), st.data())
    def test_any_offset_leaves_equally_many_batches_of_different_samples(self, samples, batch, world, drop_last, data):
        works = []
        for rank in range(world):
            plan = schedule(self.SHORT, samples, batch, rank, world, drop_last=drop_last, epochs=5)
            if rank == 0:
                offset = data.draw(st.integers(0, samples))
            work = walk(plan, told(samples), epoch=2, offset=offset)
            assert [sum(w.epoch == epoch for w in work) for epoch in (2, 3, 4)] == [
                plan.batches_from(2, offset),
                plan.batches_from(3),
                plan.batches_from(4),
            ]
            assert plan.batches_from(2, offset) >= 0
            assert plan.left(2, offset) == len(order_of(work, 2))
            assert [plan.size(epoch) for epoch in (0, 3)] == [samples] * 2
            assert plan.size(2) == plan.size(4) == world * portion(samples, world, 1 / 1.33)
            assert all(0 < len(w.ids) <= batch and w.computed is None for w in work)
            works.append(work)
        assert len({len(work) for work in works}) == 1
        partial_epoch = np.concatenate([order_of(work, 4) for work in works])
        assert len(np.unique(partial_epoch)) == min(samples, len(partial_epoch))

    @settings(max_examples=60)
    @given(sizes, batch_sizes, world_sizes, st.booleans())
    def test_the_same_ranks_go_on_where_they_were(self, samples, batch, world, drop_last):
        for rank in range(world):
            plan = schedule(self.SHORT, samples, batch, rank, world, drop_last=drop_last, epochs=2)
            whole, offset = walk(plan, told(samples), epoch=1), 0
            for done in range(plan.batches_from(1) + 1):
                resumed = walk(plan, told(samples), epoch=1, offset=offset)
                assert [w.ids.tolist() for w in resumed] == [w.ids.tolist() for w in whole[done:]]
                offset = plan.offset_after(1, offset)
            assert offset <= plan.size(1)
            assert drop_last or offset == plan.size(1)

    def test_an_epoch_of_other_ranks_may_have_been_longer_than_this_one(self):
        plan = schedule(self.SHORT, 25, 1, 0, 13, drop_last=True)
        assert plan.size(1) == 13
        assert plan.batches_from(1, 18) == plan.left(1, 18) == 0

    @settings(max_examples=60)
    @given(sizes, batch_sizes, world_sizes)
    def test_what_is_skipped_is_visited_all_the_same_and_no_batch_is_empty(self, samples, batch, world):
        for rank in range(world):
            plan = schedule(self.SKIPS, samples, batch, rank, world, epochs=3)
            chosen = IIS(samples, 1, rank, world, warm_up=1).draw(1, told(samples)).tolist()
            work = walk(plan, told(samples))
            assert sum(w.epoch == 1 for w in work) == plan.batches_from(0) == plan.batches_from(1)
            for w in work:
                if w.epoch == 0:
                    assert w.computed is None
                else:
                    assert len(w.computed) == len(w.ids)
                    assert w.computed.any()
                if w.epoch == 1:
                    expected = [id in chosen for id in w.ids.tolist()]
                    assert w.computed.tolist() == (expected if any(expected) else [True, *expected[1:]])

    @pytest.mark.parametrize("knows", [True, False])
    def test_weights_of_a_subset_are_by_id(self, knows):
        subset = np.arange(10, 50, 2)
        known, weights = told(60) if knows else Knowledge.none(0), []
        plan = schedule(self.SHORT, 60, 4, subset=subset, epochs=2, weigh=True)
        work = walk(plan, known, Cache(60), begin=lambda _, order, given: weights.append((order, given)))
        order, given_ = weights[1]
        assert order.tolist() == order_of(work, 1).tolist()
        assert len(order) == 15
        assert weights[0][1] is None
        assert np.isin(np.flatnonzero(given_), subset).all()
        assert (given_[order] > 0).all()


class TestInterrupted:
    """An epoch that was interrupted: its order is known, and is not drawn again."""

    REST = (5, 5, 1, 0, 2, 9, 9)

    def run(self, **options):
        cache, known = Cache(20, wants=[[19]]), told(20)
        begun = []
        options["begun"] = Begun(as_ids([*range(3, 16), *self.REST]), 13)
        plan = schedule(PADS, 20, 4, epochs=5)
        work = walk(plan, known, cache, 3, 13, begin=lambda *said: begun.append(said[:2]), **options)
        return work, cache, known, begun

    def test_it_is_followed_as_it_is(self):
        work, _, _, begun = self.run()
        assert [w.ids.tolist() for w in work if w.epoch == 3] == [[5, 5, 1, 0], [2, 9, 9]]
        assert [w.ends_epoch for w in work if w.epoch == 3] == [False, True]
        assert begun[0][0] == 3
        assert begun[0][1].tolist() == [*range(3, 16), *self.REST]
        assert np.array_equal(begun[1][1], order_of(work, 4))

    def test_nothing_is_read_unasked_for_it_but_for_the_next(self):
        work, _, _, _ = self.run(plan=True)
        assert [(w.epoch, w.ids.tolist()) for w in work if not w.asked] == [(4, [19])]

    def test_it_is_planned_and_visited(self):
        _, cache, known, _ = self.run(plan=True)
        assert cache.plans[0] == ([*self.REST], [])
        assert (known.seen[[*self.REST]] >= 3).all()

    def test_ids_of_a_subset_are_not_mapped_again(self):
        subset = np.arange(10, 30)
        interrupted = Begun(as_ids([*range(14, 30), 12, 29, 11, 10]), 16)
        work = walk(schedule(PADS, 40, 4, subset=subset, epochs=1), told(40), offset=16, begun=interrupted)
        assert order_of(work).tolist() == [12, 29, 11, 10]


def test_what_is_due_in_a_subset_is_not_pushed_out_by_repeats():
    subset = np.arange(30, 60)
    known = told(60, seen=np.full(60, 7, np.int32))
    known.seen[30:42] = -1
    work = walk(schedule(PADS, 60, 4, subset=subset, epochs=9), known, Cache(60, held=tuple(range(42, 60))), epoch=8)
    assert set(range(30, 42)) <= set(order_of(work).tolist())


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 25), batch_sizes, st.integers(1, 4), st.integers(1, 4), st.integers(0, 999))
def test_nobody_is_left_out_for_long_by_any_number_of_ranks(samples, batch, world, explore, seed):
    """Also where ranks have unequal shares: what is due is not cut off."""
    rng, epochs = np.random.default_rng(seed), 4 * explore + 4
    known = [Knowledge.none(samples) for _ in range(world)]
    only = (np.arange(samples) == samples // 2).astype(np.float32)  # all other draws are for exploring
    walks = []
    for rank in range(world):
        count = share_size(samples, batch, rank, world)
        plan = Schedule(PADS(samples, seed, rank, world, count, explore=explore), batch, Place(rank, world), samples)
        cache = Cache(samples, held=tuple(rng.integers(0, samples, samples // 2).tolist()))
        walks.append(plan.walk(0, 0, cache, known[rank]))
    last = np.full(samples, -1)
    for works in zip(*walks, strict=True):
        for rank, work in enumerate(works):
            last[work.ids] = work.epoch
            known[rank].learn(np.arange(samples), only)
        if works[0].ends_epoch:
            assert (works[0].epoch - last <= explore).all(), (works[0].epoch, last)
            if works[0].epoch == epochs:
                break
