"""Orders by importance: chance in proportion, nothing starved, repeats where the cache makes them cheap."""

from __future__ import annotations

import copy
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.errors import ConfigError
from augury.ids import as_ids
from augury.knowledge import Knowledge
from augury.samplers import View
from augury.samplers.importance import PADS, STAGNANT, STEEP, PaperPADS, Weighted, calm, weighted, weighted_once

FLOAT32 = np.finfo(np.float32)
ways = pytest.mark.parametrize("even", [False, True], ids=["independent", "even"])
samplers = pytest.mark.parametrize("make", [Weighted, PADS, PaperPADS])


def rng(seed=0):
    return np.random.default_rng(seed)


def chi_square(counts, expected):
    """Normalised: about 0, and above 5 less than once in a million."""
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    degrees = len(counts) - 1
    return (((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees)


def knowledge(samples, scores=None, told=True, **rest):
    known = Knowledge.none(samples)
    if scores is not None:
        known.scores[:] = scores
    known.told = told
    for epoch, loss in enumerate(rest.pop("losses", ())):
        known.add_losses(epoch, 10 * loss, 10)
    for name, value in rest.items():
        setattr(known, name, value)
    return known


def view(mask):
    """A cache that is full of these."""
    return View(mask, float(np.count_nonzero(mask)), 4)


def holding(samples, held):
    return view(np.isin(np.arange(samples), list(held)))


class TestWeighted:
    @ways
    def test_frequencies_are_in_proportion(self, even):
        weights = np.random.default_rng(1).random(50).astype(np.float32) + 0.05
        counts = sum(np.bincount(weighted(rng(seed), weights, 200, even), minlength=50) for seed in range(200))
        expected = 40_000 * weights / weights.sum(dtype=np.float64)
        assert abs(counts - expected).max() < 6 * np.sqrt(expected.max())
        if not even:
            assert abs(chi_square(counts, expected)) < 5

    def test_independent_draws_are_distributed_as_multinomial_ones(self):
        """Not only the mean of each count: also its spread, and how two of them go together."""
        weights = np.array([5, 1, 0, 3, 1], np.float32)
        draws, runs = 20, 4000
        ours = np.array([np.bincount(weighted(rng(seed), weights, draws), minlength=5) for seed in range(runs)])
        theirs = rng(1).multinomial(draws, weights.astype(float) / 10, size=runs)
        np.testing.assert_allclose(ours.mean(0), theirs.mean(0), atol=0.2)
        np.testing.assert_allclose(np.cov(ours.T), np.cov(theirs.T), atol=0.4)

    @ways
    def test_the_order_is_random(self, even):
        """Whoever is drawn, each place is as likely to have it. (Chi-square, wide.)"""
        first = [weighted(rng(seed), np.array([1.0, 2, 1]), 40, even)[0] for seed in range(4000)]
        assert abs(chi_square(np.bincount(first, minlength=3), [1000, 2000, 1000])) < 6
        after = Counter()
        for seed in range(300):
            order = weighted(rng(seed), np.ones(4), 40, even)
            after.update(zip(order[:-1].tolist(), order[1:].tolist(), strict=True))
        assert len(after) == 16
        assert min(after.values()) > 400  # of 11,700 in 16 pairs: 731 each; even ones avoid their own kind a little

    @ways
    @given(
        weights=st.lists(st.sampled_from([0.0, 0.0, 1e-30, 0.5, 1.0, 7.0, 1e30]), min_size=1, max_size=12),
        count=st.integers(0, 60),
        seed=st.integers(0, 99),
    )
    def test_zero_weights_are_never_drawn(self, even, weights, count, seed):
        drawn = weighted(rng(seed), np.array(weights, np.float32), count, even)
        assert drawn.shape == (count,)
        assert drawn.dtype == np.int64
        assert ((drawn >= 0) & (drawn < len(weights))).all()
        if any(weights):
            assert (np.array(weights)[drawn] > 0).all()

    @ways
    @pytest.mark.parametrize("at", ["start", "end", "both"])
    def test_zero_weights_at_the_ends_are_never_drawn(self, even, at):
        weights = np.ones(1000, np.float32) * 0.1
        weights[:300] = 0 if at != "end" else 0.1
        weights[-300:] = 0 if at != "start" else 0.1
        for seed in range(20):
            assert (weights[weighted(rng(seed), weights, 5000, even)] > 0).all()

    @ways
    def test_chance_that_comes_out_highest_stays_within_the_weights(self, even):
        """Rounding may put a point at the very end of the total weight, where zero weights lie."""

        class Highest:
            def random(self, count=()):
                return np.full(count, np.nextafter(1, 0))

            def standard_exponential(self, count):
                gaps = np.ones(count)
                gaps[-1] = 0  # the last point falls on the total
                return gaps

            def shuffle(self, drawn):
                pass

        weights = np.array([0, 0.1, 0.7, 0.1, 0, 0])
        for count in (1, 2, 3, 10, 1001, 1 << 16):
            drawn = weighted(Highest(), weights, count, even)
            assert (weights[drawn] > 0).all()
            assert drawn[-1] == 3

    @ways
    def test_the_lowest_chance_is_not_a_zero_weight(self, even):
        class Lowest:
            def random(self, count=()):
                return np.zeros(count)

            def standard_exponential(self, count):
                return np.concatenate([np.zeros(count - 1), [1.0]])

            def shuffle(self, drawn):
                pass

        weights = np.array([0, 0, 0.5, 0.5, 0])
        assert set(weighted(Lowest(), weights, 4, even).tolist()) <= {2, 3}

    @ways
    def test_where_nothing_weighs_anything_all_are_alike(self, even):
        counts = np.bincount(weighted(rng(), np.zeros(10, np.float32), 10_000, even), minlength=10)
        assert abs(counts - 1000).max() < 200

    @ways
    def test_one_weight(self, even):
        for weight in (0.0, 1e-40, 3.0):
            assert weighted(rng(), np.array([weight], np.float32), 5, even).tolist() == [0] * 5

    @ways
    def test_none_are_drawn(self, even):
        for weights in ([1.0, 2.0], [0.0, 0.0], [0.0, 1.0, 0.0]):
            assert weighted(rng(), np.array(weights), 0, even).shape == (0,)

    @settings(deadline=None, max_examples=300)
    @given(
        st.lists(st.floats(0, 10, width=32), min_size=1, max_size=30).filter(any),
        st.integers(1, 80),
        st.integers(0, 1000),
    )
    def test_even_draws_differ_by_less_than_two_from_what_is_expected(self, weights, count, seed):
        weights = np.array(weights, np.float32)
        expected = count * weights.astype(float) / weights.sum(dtype=float)
        counts = np.bincount(weighted(rng(seed), weights, count, even=True), minlength=len(weights))
        assert abs(counts - expected).max() < 2 + 1e-6

    def test_even_draws_differ_by_less_than_two_however_the_weights_lie(self):
        weights = np.array([0.9, 0.2, 1.9, 1.0])
        for seed in range(3000):
            counts = np.bincount(weighted(rng(seed), weights, 4, even=True), minlength=4)
            assert abs(counts - weights).max() < 2 + 1e-6, counts

    def test_even_draws_of_equal_weights_are_a_permutation(self):
        for samples in (1, 2, 3, 7, 10, 100, 1000):
            drawn = weighted(rng(samples), np.full(samples, 2.3, np.float32), samples, even=True)
            missing = samples - len(np.unique(drawn))
            assert missing <= samples // 100  # a few may change places where sums are rounded

    def test_more_weights_than_torch_allows(self):
        samples = (1 << 24) + 10
        weights = np.zeros(samples, np.float32)
        weights[[0, 5, samples - 2]] = [1, 2, 1]
        drawn = weighted(rng(), weights, 4000)
        assert set(drawn.tolist()) == {0, 5, samples - 2}
        assert abs(np.count_nonzero(drawn == 5) - 2000) < 250
        weights[:] = 1
        few = weighted(rng(), weights, 1000)
        assert few.max() > samples * 0.98
        assert abs(few.mean() / samples - 0.5) < 0.05

    @ways
    @pytest.mark.parametrize("scale", [FLOAT32.tiny, FLOAT32.smallest_subnormal, 1e-20, 1.0, 1e20, FLOAT32.max / 8])
    def test_only_proportions_count_in_single_precision(self, even, scale):
        weights = (np.array([0, 1, 2, 0, 5, 0], np.float64) * float(scale)).astype(np.float32)
        counts = np.bincount(weighted(rng(), weights, 8000, even), minlength=6)
        assert (counts[[0, 3, 5]] == 0).all()
        np.testing.assert_allclose(counts[[1, 2, 4]], [1000, 2000, 5000], atol=300)

    @ways
    @pytest.mark.parametrize("scale", [1e-300, 1e300, 3e307])
    def test_only_proportions_count_in_double_precision(self, even, scale):
        weights = np.array([0, 1, 2, 0, 5, 0] * 4) * scale
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            counts = np.bincount(weighted(rng(), weights, 32_000, even), minlength=24).reshape(4, 6)
        assert (counts[:, [0, 3, 5]] == 0).all()
        np.testing.assert_allclose(counts[:, [1, 2, 4]], [[1000, 2000, 5000]] * 4, atol=400)

    def test_large_and_small_together(self):
        weights = np.array([1e-30, 1.0, 1e-30], np.float32)
        assert weighted(rng(), weights, 1000).tolist() == [1] * 1000

    @ways
    def test_the_same_chance_gives_the_same_and_weights_stay_as_they_are(self, even):
        weights = rng(3).random(100).astype(np.float32)
        kept = weights.copy()
        weights.flags.writeable = False
        one, other = (weighted(rng(4), weights, 77, even) for _ in range(2))
        assert np.array_equal(one, other)
        assert np.array_equal(weights, kept)
        assert not np.array_equal(one, weighted(rng(5), weights, 77, even))
        double = kept.astype(np.float64)
        assert np.array_equal(weighted(rng(4), double, 77, even), one)
        assert np.array_equal(double, kept)


class TestWeightedOnce:
    @given(st.lists(st.sampled_from([0.0, 1e-30, 0.5, 7.0, 1e30]), max_size=12), st.data())
    def test_each_at_most_once_and_zero_weights_last(self, weights, data):
        count = data.draw(st.integers(0, len(weights)))
        array = np.array(weights, np.float32)
        drawn = weighted_once(rng(data.draw(st.integers(0, 99))), array, count)
        assert drawn.shape == (count,)
        assert drawn.dtype == np.int64
        assert len(set(drawn.tolist())) == count
        weighty = np.count_nonzero(array)
        assert (array[drawn[:weighty]] > 0).all()
        assert (array[drawn[weighty:]] == 0).all()

    def test_draws_are_distributed_as_one_after_the_other(self):
        """Against the probabilities of all ordered pairs."""
        weights = np.array([4.0, 3, 2, 1])
        pairs = Counter(tuple(weighted_once(rng(seed), weights, 2).tolist()) for seed in range(8000))
        share = weights / weights.sum()
        expected = {(a, b): share[a] * share[b] / (1 - share[a]) for a in range(4) for b in range(4) if a != b}
        assert set(pairs) == set(expected)
        order = sorted(expected)
        assert abs(chi_square([pairs[pair] for pair in order], [8000 * expected[pair] for pair in order])) < 6

    def test_all_of_them_is_a_permutation_with_the_heavy_first(self):
        weights = np.ones(200)
        weights[:20] = 1e6
        drawn = weighted_once(rng(), weights, 200)
        assert sorted(drawn.tolist()) == list(range(200))
        assert set(drawn[:20].tolist()) == set(range(20))

    @pytest.mark.parametrize("scale", [1e-300, 5e-324, 1e300])
    def test_small_and_large_weights_come_before_none(self, scale):
        weights = np.array([0, 1, 0, 1, 1, 0]) * scale
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for seed in range(50):
                assert set(weighted_once(rng(seed), weights, 3).tolist()) == {1, 3, 4}

    def test_the_same_chance_gives_the_same_and_weights_stay_as_they_are(self):
        weights = rng(3).random(100)
        kept = weights.copy()
        weights.flags.writeable = False
        assert np.array_equal(weighted_once(rng(1), weights, 50), weighted_once(rng(1), weights, 50))
        assert np.array_equal(weights, kept)


worlds = st.tuples(st.integers(1, 30), st.integers(1, 4))


class TestEverySampler:
    @samplers
    @given(world=worlds, epoch=st.integers(0, 50), told=st.booleans(), data=st.data())
    def test_all_ranks_draw_equally_many_and_arranging_keeps_the_length(self, make, world, epoch, told, data):
        samples, ranks = world
        scores = data.draw(st.lists(st.sampled_from([0.0, 1.0, 2.3, 5.5]), min_size=samples, max_size=samples))
        seen = data.draw(st.lists(st.integers(-1, epoch), min_size=samples, max_size=samples))
        known = knowledge(samples, scores, told, seen=np.array(seen, np.int32))
        held = holding(samples, data.draw(st.lists(st.integers(0, samples - 1))))
        for rank in range(ranks):
            sampler = make(samples, 3, rank, ranks)
            assert not sampler.foreseeable
            drawn = sampler.draw(epoch, known)
            order = sampler.arrange(epoch, drawn, known, held)
            assert len(drawn) == len(order) == -(-samples // ranks)
            assert drawn.dtype == order.dtype == np.int64
            assert ((drawn >= 0) & (drawn < samples)).all()
            assert set(order.tolist()) <= set(drawn.tolist())

    @samplers
    def test_drawing_is_pure_and_changes_no_argument(self, make):
        known = knowledge(60, rng(1).random(60), seen=rng(2).integers(-1, 9, 60).astype(np.int32), losses=[3.0, 2.9])
        held = holding(60, range(0, 60, 2))
        for array in (known.scores, known.seen, held.resident):
            array.flags.writeable = False
        before = copy.deepcopy(known)
        one, other = make(60, 5, 1, 2), make(60, 5, 1, 2)
        other.draw(3, known)  # what was drawn before is of no matter
        other.arrange(3, as_ids(range(30)), known, held)
        drawn = one.draw(9, known)
        drawn.flags.writeable = False
        assert np.array_equal(drawn, other.draw(9, before))
        twin = copy.deepcopy(held)
        assert np.array_equal(one.arrange(9, drawn, known, held), other.arrange(9, drawn.copy(), before, twin))
        assert np.array_equal(known.scores, before.scores)
        assert np.array_equal(known.seen, before.seen)
        for name in ("losses", "accuracies", "told"):
            assert getattr(known, name) == getattr(before, name)

    @samplers
    def test_seeds_epochs_and_ranks_draw_differently(self, make):
        known = knowledge(60, rng(1).random(60))
        drawn = {
            tuple(make(60, seed, rank, 3).draw(epoch, known))
            for seed in (0, 1)
            for rank in range(3)
            for epoch in (4, 5)
        }
        assert len(drawn) == 12

    @pytest.mark.parametrize("make", [Weighted, PADS])
    @given(world=worlds, epoch=st.integers(0, 4))
    def test_until_something_is_told_all_ranks_together_visit_everything_once(self, make, world, epoch):
        samples, ranks = world
        known = knowledge(samples, rng(1).random(samples), told=False)
        parts = [make(samples, 7, rank, ranks).draw(epoch, known) for rank in range(ranks)]
        assert len({len(part) for part in parts}) == 1
        counts = np.bincount(np.concatenate(parts), minlength=samples)
        assert (counts >= 1).all()
        assert counts.sum() - samples < ranks  # some are visited twice, so that all ranks have equally many
        held = holding(samples, range(samples))
        for rank, part in enumerate(parts):
            assert np.array_equal(make(samples, 7, rank, ranks).arrange(epoch, part, known, held), part)

    def test_the_papers_code_draws_from_the_start_and_leaves_a_third_out(self):
        drawn = PaperPADS(20_000).draw(0, Knowledge.none(20_000))
        assert 1 - len(np.unique(drawn)) / 20_000 == pytest.approx(np.exp(-1), abs=0.02)

    @pytest.mark.parametrize("make", [Weighted, PADS])
    def test_draws_follow_the_scores(self, make):
        scores = np.repeat(np.array([1.0, 2.0, 5.0]), 100)
        known = knowledge(300, scores, seen=np.full(300, 10, np.int32))
        counts = sum(np.bincount(make(300, seed).draw(10, known), minlength=300) for seed in range(60))
        thirds = counts.reshape(3, 100).sum(1) / counts.sum()
        np.testing.assert_allclose(thirds, [1 / 8, 2 / 8, 5 / 8], atol=0.03)

    def test_weighted_arranges_nothing(self):
        drawn = as_ids([3, 1, 1])
        assert Weighted(5).arrange(4, drawn, knowledge(5), holding(5, range(5))) is drawn


def arranged(drawn, held, samples=None, epoch=10, known=None, seed=0, **options):
    """An order of PADS; nothing is stale unless `known` says so."""
    samples = samples or int(max(drawn)) + 1
    known = known or knowledge(samples, seen=np.full(samples, epoch, np.int32))
    return PADS(samples, seed, **options).arrange(epoch, as_ids(drawn), known, holding(samples, held))


class TestArranging:
    @pytest.mark.parametrize("fifth", [4, 7, 1, 10])
    def test_the_papers_ten_samples(self, fifth):
        """Of <4, 7, 3, 5, 3, 5, 2, 2, 1, 10> one of two processes trains on <3, 3, 5, 5, 2>: 80 % are hits.

        It has drawn five of them, 2 twice, and repeats what is cached, {3, 5}, once.
        """
        for seed in range(5):
            order = arranged([fifth, 3, 5, 2, 2], {3, 5}, samples=11, seed=seed, repetition=2, fresh=0)
            assert sorted(order.tolist()) == [2, 3, 3, 5, 5]
            assert np.isin(order, [3, 5]).mean() == 0.8

    def test_the_papers_ten_samples_for_a_process_that_trains_on_all_of_them(self):
        """Four hits, twice each; of the six misses the two that are left are those of 2, drawn twice."""
        drawn = [4, 7, 3, 5, 3, 5, 2, 2, 1, 10]
        for seed in range(5):
            order = arranged(drawn, {3, 5}, seed=seed, repetition=2, fresh=0)
            assert Counter(order.tolist()) == {3: 4, 5: 4, 2: 1, 4: 1}
            assert np.isin(order, [3, 5]).mean() == 0.8

    @settings(deadline=None, max_examples=300)
    @given(st.data())
    def test_equals_an_obvious_model(self, data):
        samples, epoch = data.draw(st.integers(1, 12)), 10
        drawn = data.draw(st.lists(st.integers(0, samples - 1), max_size=30))
        held = set(data.draw(st.lists(st.integers(0, samples - 1))))
        repetition = data.draw(st.sampled_from([1.0, 1.25, 1.5, 2.0, 3.0, 10.0]))
        fresh = data.draw(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]))
        explore = data.draw(st.sampled_from([None, 1, 3]))
        seen = data.draw(st.lists(st.integers(-1, epoch), min_size=samples, max_size=samples))
        known = knowledge(samples, seen=np.array(seen, np.int32))
        options = {"repetition": repetition, "fresh": fresh, "explore": explore}
        order = arranged(drawn, held, samples, epoch, known, data.draw(st.integers(0, 9)), **options).tolist()

        assert len(order) == len(drawn)
        stale = {id for id in drawn if explore is not None and seen[id] < epoch - explore}
        hits, misses = [id for id in drawn if id in held], [id for id in drawn if id not in held]
        visits, reads = [id for id in order if id in held], [id for id in order if id not in held]
        assert set(visits) == set(hits)
        assert not Counter(reads) - Counter(misses), "nothing that is not cached is repeated beyond what was drawn"
        assert stale <= set(order), "the stale are visited"
        if repetition > 1:
            must = [id for id in misses if id in stale]
            least = max(int(np.ceil(fresh * len(misses))), len(must))
            assert len(reads) >= least
            assert len(visits) == min(round(repetition * len(hits)), len(drawn) - least)
            # Nobody is left out while another comes twice. Of two, the one drawn more often stays.
            twice = {id for id, count in Counter(reads).items() if count > 1} - stale
            assert not twice or set(reads) == set(misses)
            gone = Counter(misses) - Counter(reads)
            often = Counter(misses)
            stayed = [often[id] for id in set(reads) - stale]
            left_out = [often[id] for id in gone if id not in stale and gone[id] == often[id]]
            assert not stayed or not left_out or min(stayed) >= max(left_out)
            # Hits are repeated alike, up to one pass.
            passes = [visits.count(id) / hits.count(id) for id in set(hits)]
            assert not passes or max(passes) < min(passes) + 1 + 1e-9

    @pytest.mark.parametrize(("repetition", "expected"), [(1, 40), (1.25, 50), (1.5, 60), (2, 71), (3, 71)])
    def test_fractional_repetition_up_to_the_share_that_is_kept_for_misses(self, repetition, expected):
        order = arranged(range(100), range(40), repetition=repetition)
        assert np.count_nonzero(order < 40) == expected
        counts = np.bincount(order, minlength=100)
        assert counts[:40].min() >= 1
        assert counts[:40].max() - counts[:40].min() <= 1
        assert counts[40:].max() == 1

    @pytest.mark.parametrize("fresh", [0, 0.05, 0.1, 0.3, 0.9])
    def test_the_share_kept_for_misses(self, fresh):
        order = arranged(range(200), range(100), repetition=10, fresh=fresh)
        assert np.count_nonzero(order >= 100) == round(100 * fresh)

    def test_all_hits_or_all_misses_are_visited_as_drawn(self):
        drawn = [4, 1, 1, 3, 0]
        assert sorted(arranged(drawn, range(5)).tolist()) == sorted(drawn)
        assert sorted(arranged(drawn, [], samples=5).tolist()) == sorted(drawn)
        assert arranged([0], [0]).tolist() == [0]
        assert len(PADS(4).arrange(3, as_ids([]), knowledge(4), holding(4, [1]))) == 0

    def test_misses_are_spread_evenly_over_minibatches(self):
        for seed in range(10):
            order = arranged(rng(seed).permutation(2000), range(300), seed=seed)
            missing = (order.reshape(-1, 50) >= 300).sum(1)
            expected = 50 * (order >= 300).mean()
            assert abs(missing - expected).max() <= 2

    def test_repeats_lie_far_apart(self):
        """On average by one pass over all hits; two in one minibatch are rarer than if hits were shuffled."""
        gaps, close, shuffled = [], 0, 0
        for seed in range(10):
            order = arranged(rng(seed).permutation(1500), range(300), seed=seed)
            other = rng(seed).permutation(order)
            for id in range(300):
                gaps.extend(np.diff(np.flatnonzero(order == id)))
                close += (np.diff(np.flatnonzero(order == id)) < 100).sum()
                shuffled += (np.diff(np.flatnonzero(other == id)) < 100).sum()
        assert np.mean(gaps) == pytest.approx(1500 / 3, rel=0.05)
        assert close < shuffled / 4

    def test_orders_differ_between_epochs_and_passes(self):
        drawn = rng().permutation(100)
        orders = [arranged(drawn, range(30), epoch=epoch) for epoch in (10, 11)]
        assert not np.array_equal(*orders)
        visits = orders[0][orders[0] < 30]
        assert not np.array_equal(visits[:30], visits[30:60])

    def test_ranks_arrange_by_chance_of_their_own(self):
        known, held = knowledge(100, seen=np.full(100, 10, np.int32)), holding(100, range(30))
        orders = {tuple(PADS(100, 0, rank, 2).arrange(10, np.arange(100), known, held)) for rank in range(2)}
        assert len(orders) == 2

    def test_the_papers_code_puts_hits_first(self):
        known, held = knowledge(100), holding(100, range(20))
        order = PaperPADS(100).arrange(10, rng().permutation(100), known, held)
        assert (order[:60] < 20).all()
        assert (order[60:] >= 20).all()
        full = PaperPADS(100).arrange(10, rng().permutation(100), known, holding(100, range(40)))
        assert (full < 40).all(), "no share is kept for misses"

    def test_calm_repeats_nothing(self):
        drawn = rng().permutation(100)
        for name, curve in {"losses": [2.0, 1.0], "accuracies": [0.5, 0.4, 0.4, 0.5]}.items():
            known = knowledge(100, seen=np.full(100, 10, np.int32), **{name: curve})
            assert sorted(arranged(drawn, range(30), known=known).tolist()) == list(range(100))
        assert np.bincount(arranged(drawn, range(30))).max() == 3

    @pytest.mark.parametrize(
        "wrong", [{"repetition": 0.5}, {"repetition": 11}, {"explore": 0}, {"fresh": -0.1}, {"fresh": 1.1}]
    )
    def test_wrong_options_are_named(self, wrong):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            PADS(10, **wrong)


class TestCalm:
    def test_at_first(self):
        assert not calm(knowledge(3))
        assert not calm(knowledge(3, losses=[1.0], accuracies=[0.1]))

    @pytest.mark.parametrize(
        ("losses", "expected"),
        [
            ([3, 2.9], False),
            ([3, 2.01], False),
            ([3, 1.99], True),
            ([3, 1, 0.9], False),
            ([3, 3.5], False),
            ([1, 0], True),
        ],
    )
    def test_a_steep_decline_of_the_loss(self, losses, expected):
        assert pytest.approx(1 / 3) == STEEP
        assert calm(knowledge(3, losses=[float(loss) for loss in losses])) is expected

    @pytest.mark.parametrize(
        ("accuracies", "expected"),
        [
            ([0.1, 0.2, 0.3, 0.4], False),
            ([0.4, 0.3, 0.2, 0.4], True),
            ([0.4, 0.5, 0.6, 0.3], True),
            ([0.4, 0.4, 0.4], False),  # too few to tell
            ([0.9, 0.1, 0.2, 0.3, 0.4], False),  # long past
            ([0.1, 0.4, 0.4, 0.4, 0.4], True),
            ([0.7, 0.7, 0.7, 0.706], True),  # less than a hundredth of itself
            ([0.7, 0.7, 0.7, 0.708], False),
        ],
    )
    def test_stagnant_accuracy(self, accuracies, expected):
        assert STAGNANT == 3
        assert calm(knowledge(3, accuracies=accuracies)) is expected


class TestNothingIsStarved:
    @settings(deadline=None, max_examples=60)
    @given(st.data())
    def test_everyone_is_visited_within_explore_epochs_and_one(self, data):
        """Whatever the scores and the cache do, with one to three ranks that share what was visited, or do not."""
        samples, ranks = data.draw(st.integers(1, 25)), data.draw(st.integers(1, 3))
        explore, shared = data.draw(st.integers(1, 5)), data.draw(st.booleans())
        options = {
            "repetition": data.draw(st.sampled_from([1, 2.5, 10])),
            "fresh": data.draw(st.sampled_from([0, 0.1])),
        }
        chance = rng(data.draw(st.integers(0, 999)))
        adversary = data.draw(st.sampled_from(["one", "fixed", "random", "late"]))
        sampler = [PADS(samples, 1, rank, ranks, explore=explore, **options) for rank in range(ranks)]
        known = [Knowledge.none(samples) for _ in range(ranks)]
        last = np.full(samples, -1)
        for epoch in range(4 * explore + 6):
            visited = []
            for rank in range(ranks):
                drawn = sampler[rank].draw(epoch, known[rank])
                held = last >= epoch - 1 if adversary == "fixed" else chance.random(samples) < 0.5
                visited.append(sampler[rank].arrange(epoch, drawn, known[rank], view(held)))
            for rank in range(ranks):
                for other in range(ranks):
                    if shared or other == rank:
                        known[rank].visit(visited[other], epoch)
                scores = {
                    "one": np.eye(1, samples, 0)[0],
                    "fixed": np.linspace(0, 5, samples) ** 4,
                    "random": chance.random(samples) ** 8,
                    "late": (last == epoch - 1) * 5.0,  # whoever was just visited
                }[adversary]
                if not (adversary == "late" and epoch < 3):  # nothing is told for a while
                    known[rank].learn(np.arange(samples), scores.astype(np.float32))
            last[np.concatenate(visited)] = epoch
            assert (epoch - last <= explore).all(), (epoch, last)

    def test_without_exploring_the_worthless_are_not_visited(self):
        known = knowledge(50, np.arange(50) < 5, seen=np.full(50, -1, np.int32))
        assert set(PADS(50, explore=None).draw(90, known).tolist()) == set(range(5))
        assert set(PADS(50).draw(90, known).tolist()) == set(range(50))

    def test_the_unseen_come_when_they_are_due(self):
        """By the rank whose part they are in, and only from the epoch on in which they are due."""
        seen = np.full(40, 8, np.int32)
        seen[[3, 10, 21, 22]] = [3, 2, 2, 4]
        known = knowledge(40, np.arange(40) == 0, seen=seen)
        counts = [np.bincount(PADS(40, 0, rank, 2).draw(8, known), minlength=40) for rank in range(2)]
        assert np.flatnonzero(counts[0]).tolist() == [0, 10]
        assert np.flatnonzero(counts[1]).tolist() == [0, 21]
        later = [np.bincount(PADS(40, 0, rank, 2).draw(9, known), minlength=40) for rank in range(2)]
        assert np.flatnonzero(later[0]).tolist() == [0, 10]
        assert np.flatnonzero(later[1]).tolist() == [0, 3, 21]
