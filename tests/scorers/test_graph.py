"""SpiderCache's graph: Eq. 4 and the states of Figure 8, whom a sample is like, how near is near, and saved states."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from augury.errors import BadFeedback, ConfigError
from augury.ids import as_ids
from augury.knowledge import pack, unpack
from augury.scorers.graph import ALPHA, DECAY, JOINED, MOST, PATIENCE, Graph, importance
from augury.scorers.neighbours import Neighbours

SAMPLES = 12
RADIUS = -math.log(0.98) / 0.01


def tell(graph, places, labels, ids=None):
    """One minibatch; the scores by id."""
    ids = list(range(len(places))) if ids is None else ids
    scores = graph.score(as_ids(ids), np.array(places, np.float32), np.array(labels))
    return dict(zip(ids, scores.tolist(), strict=True))


def equation_4(like, other, most=500):
    return math.log(1 / max(like, 1) + other / most + 1)


def spread(samples, width=8, scale=1.0, seed=0, apart=3.0):
    """Three classes as clouds, some of which touch: embeddings and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, samples)
    places = rng.normal(size=(3, width))[labels] * apart + rng.normal(size=(samples, width))
    return (places * scale).astype(np.float32), labels


class TestEquation4:
    def test_the_states_of_figure_8(self):
        """A class at 0, another at 10; at 5 both meet, and at 100 there is one alone."""
        line = {
            "well": (0.0, 0),
            "boundary": (5.0, 0),
            "isolated": (100.0, 0),
            "misclassified": (10.0, 0),
        }
        others = [(0.5, 0)] * 20 + [(5.5, 0)] * 20 + [(5.5, 1)] * 40 + [(10.5, 1)] * 40
        places = [[at, 0.0] for at, _ in (*line.values(), *others)]
        labels = [label for _, label in (*line.values(), *others)]
        scores = dict(zip(line, tell(Graph(200, decay=DECAY), places, labels).values(), strict=False))
        assert scores["well"] == pytest.approx(equation_4(20, 0))
        assert scores["boundary"] == pytest.approx(equation_4(20, 40))
        assert scores["isolated"] == pytest.approx(equation_4(0, 0))
        assert scores["misclassified"] == pytest.approx(equation_4(0, 40))
        assert scores["well"] < scores["boundary"] < scores["misclassified"]
        assert scores["well"] < scores["isolated"] < scores["misclassified"]

    def test_as_it_is_written(self):
        like, other = np.array([0, 1, 2, 500, 0, 250]), np.array([0, 0, 3, 0, 500, 250])
        expected = [math.log(2), math.log(2), math.log(1.506), math.log(1.002), math.log(3), math.log(1.504)]
        scores = importance(like, other)
        np.testing.assert_allclose(scores, expected, rtol=1e-6)
        assert scores.dtype == np.float32
        np.testing.assert_allclose(importance(like, other, 10), np.log(1 / np.maximum(like, 1) + other / 10 + 1), 1e-6)

    def test_the_papers_constants(self):
        assert (DECAY, ALPHA, MOST) == (0.01, 0.98, 500)
        assert Graph(5).radius == pytest.approx(2.0203, abs=5e-5)
        assert Graph(5, decay=0.01).radius == pytest.approx(RADIUS)
        assert Graph(5, decay=0.1, alpha=0.5).radius == pytest.approx(math.log(2) / 0.1)

    @pytest.mark.parametrize(("distance", "neighbours"), [(2.0, 1), (2.02, 1), (2.021, 0), (2.1, 0)])
    def test_an_edge_is_where_the_distance_itself_is_below_the_radius(self, distance, neighbours):
        """Along a diagonal, and far from the origin; squared it would reach to 1.42 alone."""
        step = distance / math.sqrt(2)
        graph = Graph(5, decay=DECAY)
        scores = tell(graph, [[50, 50], [50 + step, 50 + step], [50, 90]], [7, 7, 7])
        assert (graph.kin is not None) == bool(neighbours)
        assert scores[0] == pytest.approx(equation_4(neighbours, 0))
        other = tell(Graph(5, decay=DECAY), [[50, 50], [50 + step, 50 + step], [50, 90]], [7, 8, 7])
        assert other[0] == pytest.approx(equation_4(0, neighbours))

    def test_no_more_than_500_neighbours_count_and_these_are_the_nearest(self):
        places = [[0.0]] + [[0.5 + 0.0005 * at] for at in range(500)] + [[1.5]] * 300
        labels = [0] + [0, 1] * 250 + [0] * 300
        graph = Graph(900, decay=DECAY)
        tell(graph, places, labels)
        scores = tell(graph, [[0.0]], [0], [0])
        assert scores[0] == pytest.approx(equation_4(250, 250))
        assert sorted(graph.kin.tolist()) == [0, *range(1, 501, 2)]

    @pytest.mark.parametrize("most", [1, 3])
    def test_another_number_of_neighbours(self, most):
        places = [[0.0], [0.1], [0.2], [0.3], [0.4], [0.5]]
        graph = Graph(6, decay=DECAY, most=most)
        tell(graph, places, [0, 0, 1, 1, 1, 1])
        scores = tell(graph, places[:1], [0], [0])
        assert scores[0] == pytest.approx(equation_4(1, most - 1, most))
        assert graph.kin.tolist() == [0, 1]

    def test_neighbours_of_earlier_minibatches_count(self):
        graph = Graph(9, decay=DECAY)
        tell(graph, [[0.0], [1.0], [9.0]], [1, 2, 1], [0, 1, 2])
        assert tell(graph, [[0.5]], [1], [3])[3] == pytest.approx(equation_4(1, 1))
        assert graph.kin.tolist() == [3, 0]
        tell(graph, [[0.5]], [1], [2])  # who was far away has come near
        assert tell(graph, [[0.5]], [1], [3])[3] == pytest.approx(equation_4(2, 1))

    def test_an_empty_minibatch_has_no_scores_and_no_kin(self):
        graph = Graph(5, decay=DECAY)
        tell(graph, [[0.0], [0.0]], [1, 1])
        assert graph.kin is not None
        got = graph.score(as_ids([]), np.empty((0, 1), np.float32), np.empty(0, np.int64))
        assert (got.shape, got.dtype) == ((0,), np.float32)
        assert graph.kin is None

    def test_arguments_are_not_changed(self):
        graph, ids, labels = Graph(9, decay=DECAY), np.array([3, 1, 3]), np.array([0, 0, 1])
        places = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
        kept = ids.copy(), places.copy(), labels.copy()
        graph.score(ids, places, labels)
        for now, before in zip((ids, places, labels), kept, strict=True):
            assert np.array_equal(now, before)
        before = graph.state_dict()
        places[:] = ids[:] = 0
        assert graph.state_dict() == before


class SlowGraph:
    """The last embedding of each sample in a dict, and loops over all pairs."""

    def __init__(self, radius):
        self.radius, self.places, self.labels = radius, {}, {}

    def tell(self, batch):
        """Neighbours of each of the same class, and of others."""
        for id, place, label in batch:
            self.places[id], self.labels[id] = place, label
        return [self.neighbours(id) for id, _, _ in batch]

    def neighbours(self, id):
        same, different = set(), set()
        for other, place in self.places.items():
            if other != id and math.dist(place, self.places[id]) < self.radius:
                (same if self.labels[other] == self.labels[id] else different).add(other)
        return same, different


grid = st.tuples(*[st.integers(-4, 4)] * 2)
some_labels = st.integers(-2, 2) | st.sampled_from([-(2**31), 2**31 - 1])


@st.composite
def minibatches(draw):
    """(id, place, label); a sample may come several times, and its label may change between minibatches."""
    batches = []
    for _ in range(draw(st.integers(1, 6))):
        labels = draw(st.lists(some_labels, min_size=SAMPLES, max_size=SAMPLES))
        told = draw(st.lists(st.tuples(st.integers(0, SAMPLES - 1), grid), max_size=10))
        batches.append([(id, place, labels[id]) for id, place in told])
    return batches


class TestAgainstASlowModel:
    @settings(max_examples=100)
    @given(minibatches(), st.sampled_from([0.5, 1.2, 2.3, 5.05, 50.0]))
    @example([[(0, (0, 0), -1), (1, (0, 0), 0), (0, (4, 4), -1)], [(2, (4, 4), -1)]], 1.2)
    def test_scores_and_kin_are_the_same(self, batches, radius):
        graph, slow = Graph(SAMPLES, decay=-math.log(ALPHA) / radius, patience=None), SlowGraph(radius)
        for batch in batches:
            scores = graph.score(
                as_ids([id for id, _, _ in batch]),
                np.array([place for _, place, _ in batch], np.float32).reshape(-1, 2),
                np.array([label for _, _, label in batch], np.int64),
            )
            expected = slow.tell(batch)
            np.testing.assert_allclose(scores, [equation_4(len(a), len(b)) for a, b in expected], rtol=1e-6)
            assert scores.dtype == np.float32
            like = [len(same) for same, _ in expected]
            if not any(like):
                assert graph.kin is None
                continue
            hub = like.index(max(like))
            assert graph.kin[0] == batch[hub][0]
            assert len(graph.kin) == 1 + max(like)
            assert set(graph.kin[1:].tolist()) == expected[hub][0]

    @pytest.mark.parametrize("width", [7, 64])
    def test_any_width(self, width):
        """Up to that many numbers nothing is lost."""
        rng, graph, places = (
            np.random.default_rng(0),
            Graph(300, decay=DECAY),
            np.full((300, width), np.inf, np.float32),
        )
        directions = np.linalg.qr(rng.normal(size=(width, 6)))[0]
        right = self.right(graph, places, directions, minibatches=28)  # often enough for them to be found anew
        assert np.mean(right) > 0.99, "all but pairs at the radius itself"

    def right(self, graph, places, directions, minibatches):
        """Minibatches that differ in these directions: whose scores are right."""
        rng, labels, right = np.random.default_rng(1), np.arange(300) % 3, []
        for at in range(minibatches):
            ids = np.arange(at % 6, 300, 6)
            half = rng.normal(size=(25, 6))
            places[ids] = np.concatenate([half, -half]) @ directions.T + 2
            got = graph.score(ids, places[ids], labels[ids])
            near = (np.linalg.norm(places[ids, None] - places, axis=2) < RADIUS) & (ids[:, None] != range(300))
            same = labels[ids, None] == labels
            expected = [equation_4(*counts) for counts in zip((near & same).sum(1), (near & ~same).sum(1), strict=True)]
            right.extend(np.isclose(got, expected, atol=1e-6))
        return right


class TestHowNearIsNear:
    @pytest.mark.parametrize("scale", [1000, 0.001])
    @pytest.mark.parametrize("width", [8, 100])
    def test_a_radius_is_found_for_embeddings_of_any_size(self, scale, width):
        share, radius = self.found(Graph(300), scale, width)
        paper, _ = self.found(Graph(300, decay=DECAY), scale, width)
        assert JOINED[0] - 0.2 < share < JOINED[1] + 0.1  # by distances that a projection blurs
        assert paper in (0, 1), "the paper's joins nobody, or everybody"
        assert 0.1 * scale < radius < 100 * scale

    @pytest.mark.parametrize("wanted", [(0.2, 0.3), (0.95, 0.99)])
    def test_the_wanted_share_can_be_chosen(self, wanted):
        share, _ = self.found(Graph(300, joined=wanted), 1, 8, minibatches=400)
        assert wanted[0] - 0.12 < share < wanted[1] + 0.12

    def test_the_papers_radius_stays_where_it_fits(self):
        """Pairs and single ones: three quarters of the samples have a neighbour of their class."""
        graph, rng = Graph(320), np.random.default_rng(0)
        places, at = np.empty((320, 2), np.float32), 0
        for group in range(200):
            size = 1 if group < 80 else 2
            places[at : at + size] = (100 * (group % 20), 100 * (group // 20))
            at += size
        graph.score(np.arange(320), places, np.zeros(320, np.int64))
        for _ in range(100):
            ids = rng.choice(320, 32, replace=False)
            graph.score(ids, places[ids], np.zeros(32, np.int64))
        assert graph.radius == pytest.approx(RADIUS, rel=0.02)

    def test_neighbours_of_other_classes_do_not_make_it_fit(self):
        """Three quarters have somebody at distance 1 who is of another class; their own class begins at 4."""
        at = np.arange(20) * 4.0
        places = np.concatenate([[[x, 0], [x, 1], [x, 40], [x, 41]] for x in at]).astype(np.float32)
        places[3::4, 1] += at * 4  # every fourth is alone, and so is his partner
        labels = np.tile([0, 1, 2, 3], 20)
        graph, rng = Graph(80), np.random.default_rng(0)
        graph.score(np.arange(80), places, labels)
        assert graph.radius == pytest.approx(RADIUS, rel=0.05)
        for _ in range(150):
            ids = rng.choice(80, 8, replace=False)
            graph.score(ids, places[ids], labels[ids])
        assert graph.radius > 4
        assert joined(places, labels, graph.radius) > JOINED[0]

    def test_a_given_decay_is_never_moved(self):
        graph = Graph(300, decay=0.5)
        share, radius = self.found(graph, 1000, 8)
        assert share == 0
        assert radius == -math.log(ALPHA) / 0.5

    def test_it_follows_embeddings_that_grow(self):
        graph, rng = Graph(300), np.random.default_rng(0)
        places, labels = spread(300)
        radii = []
        for scale in (1.0, 2.0):
            for _ in range(600):
                ids = rng.choice(300, 16, replace=False)
                graph.score(ids, scale * places[ids], labels[ids])
            radii.append(graph.radius)
        assert joined(2 * places, labels, graph.radius) > JOINED[0] - 0.1
        assert radii[1] > 1.2 * radii[0]

    def test_a_first_minibatch_of_one_sample_or_of_one_twice_is_no_obstacle(self):
        places, labels = spread(20)
        for ids in ([0], [0, 0]):
            graph = Graph(20)
            scores = graph.score(as_ids(ids), places[ids], labels[ids])
            np.testing.assert_allclose(scores, math.log(2), rtol=1e-6)
            assert graph.kin is None
            assert graph.radius == pytest.approx(RADIUS, rel=0.05)
            assert np.isfinite(graph.score(np.arange(20), places, labels)).all()

    def found(self, graph, scale, width, minibatches=80):
        places, labels = spread(300, width, scale)
        rng = np.random.default_rng(1)
        for _ in range(minibatches):
            ids = rng.choice(300, 32, replace=False)
            graph.score(ids, places[ids], labels[ids])
        graph.score(np.arange(300), places, labels)
        return joined(places, labels, graph.radius), graph.radius


def joined(places, labels, radius):
    """The share of the samples that has a neighbour of its class."""
    gaps = np.linalg.norm(places[:, None].astype(np.float64) - places, axis=2)
    np.fill_diagonal(gaps, np.inf)
    return float(((gaps < radius) & (labels == labels[:, None])).any(axis=1).mean())


class TestRefusals:
    def test_labels_are_asked_for(self):
        with pytest.raises(BadFeedback, match="labels"):
            Graph(5).score(as_ids([0]), np.zeros((1, 3), np.float32))

    def test_another_width_is_refused_and_changes_nothing(self):
        graph = Graph(5, decay=DECAY)
        tell(graph, [[0.0, 0.0], [1.0, 1.0]], [0, 0])
        before = graph.state_dict()
        with pytest.raises(BadFeedback, match=r"have 3 numbers, and earlier ones had 2"):
            tell(graph, [[0.0, 0.0, 1.0]], [0])
        assert graph.state_dict() == before
        assert tell(graph, [[0.0, 0.0]], [0])[0] == pytest.approx(math.log(2))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"decay": 0}, "decay=0"),
            ({"decay": -1}, "decay=-1"),
            ({"decay": math.nan}, "decay=nan"),
            ({"alpha": 0}, "alpha=0"),
            ({"alpha": 1}, "alpha=1"),
            ({"joined": (0, 0.5)}, "joined"),
            ({"joined": (0.5, 1)}, "joined"),
            ({"joined": (0.6, 0.5)}, "joined"),
            ({"most": 0}, "most=0"),
            ({"patience": 0}, "patience=0"),
        ],
    )
    def test_what_cannot_work_is_said(self, arguments, message):
        with pytest.raises(ConfigError, match=message):
            Graph(5, **arguments)

    def test_what_it_needs_and_how_long_it_may_take(self):
        assert Graph(5).needs == "embeddings"
        assert Graph(5).patience == PATIENCE
        assert Graph(5, patience=None).patience is None
        assert Graph(5, patience=1, most=1, joined=(0.5, 0.5)).patience == 1


def damaged():
    """Of a state of six samples of three numbers each."""
    return {
        "no width": {"width": None},
        "another width": {"width": 4},
        "no radius": {"radius": "?"},
        "no text": {"known": 3},
        "text that is none of ours": {"vectors": "?"},
        "too few labels": {"labels": pack(np.zeros(5, np.int64))},
        "too few vectors": {"vectors": pack(np.zeros(17, np.float16))},
        "vectors of half a number": {"vectors": pack(np.zeros(37, np.int8))},
        "a sample too many": {"known": pack(np.array([0, 1, 2, 3, 4, 10]))},
        "a sample twice": {"known": pack(np.array([0, 1, 2, 3, 4, 4]))},
        "vectors that are no numbers": {"vectors": pack(np.full(18, np.nan, np.float16))},
        "a scale that is none": {"scale": float("inf")},
        "a radius that is none": {"radius": float("nan")},
        "a width that is none": {"width": -3},
        "a negative sample": {"known": pack(np.array([0, 1, 2, 3, 4, -1]))},
    }


@pytest.mark.parametrize("labels", [(1, 1 + 2**32), (2**40, 2**40 + 1), (-5, 5)])
def test_labels_are_any_whole_numbers(labels):
    graph = Graph(4, decay=DECAY)
    tell(graph, [[0.0], [0.1], [0.2], [0.3]], [labels[0], labels[1], labels[0], labels[1]])
    assert sorted(graph.kin.tolist()) in ([0, 2], [1, 3])


def test_a_radius_that_finds_nobody_stays_below_a_usual_distance():
    """Every sample a class of its own: nobody ever has a neighbour of his class."""
    graph, rng = Graph(100), np.random.default_rng(0)
    for _ in range(600):
        graph.score(np.arange(100), rng.standard_normal((100, 8), np.float32), np.arange(100))
    assert 1 < graph.radius < 8


class TestState:
    @pytest.mark.parametrize("decay", [None, DECAY, 0.02])
    @pytest.mark.parametrize("width", [3, 64])
    def test_restored_it_scores_as_the_original_would(self, decay, width):
        """Numbers that half precision holds exactly: sixteenths around an origin that is one of them."""
        rng, labels = np.random.default_rng(0), np.arange(40) % 3
        places = (rng.integers(-20, 20, (40, width)) / 16).astype(np.float32)
        places[32:40] = places[:8] = 0  # so that the first minibatch has its mean where it is
        places[:8, 0] = np.arange(-4, 4) / 2 + 0.25
        scorer = Graph(60, decay=decay)
        scorer.score(np.arange(8), places[:8], labels[:8])
        scorer.score(np.arange(40), places, labels)
        restored = Graph(60, decay=decay)
        restored.load_state_dict(json.loads(json.dumps(scorer.state_dict())))
        assert restored.radius == scorer.radius
        again = rng.permutation(60)[:30]
        more = (rng.integers(-20, 20, (30, width)) / 16).astype(np.float32)
        np.testing.assert_array_equal(scorer.score(again, more, again % 3), restored.score(again, more, again % 3))
        kin = [set() if graph.kin is None else set(graph.kin.tolist()) for graph in (scorer, restored)]
        assert kin[0] == kin[1]

    @pytest.mark.parametrize("width", [5, 100])
    def test_of_any_numbers_it_scores_nearly_as_the_original_would(self, width):
        places, labels = spread(400, width)
        scorer, restored = Graph(400), Graph(400)
        for ids in np.random.default_rng(0).integers(0, 400, (30, 32)):
            scorer.score(ids, places[ids], labels[ids])
        restored.score(np.arange(9), 2 * places[:9, :3], labels[:9])  # whatever it knew before
        restored.load_state_dict(json.loads(json.dumps(scorer.state_dict())))
        assert restored.radius == scorer.radius
        for ids in np.random.default_rng(1).integers(0, 400, (5, 32)):
            one, other = (graph.score(ids, places[ids], labels[ids]) for graph in (scorer, restored))
            # but for pairs that lie just at the radius
            assert np.isclose(one, other, atol=1e-6).mean() > 0.7
            assert abs(one - other).mean() < 0.02
        assert restored.radius == pytest.approx(scorer.radius, rel=0.05)

    def test_who_was_told_of_is_saved_and_nobody_else(self):
        graph = Graph(1000, decay=DECAY)
        tell(graph, [[0.0], [1.0], [2.0]], [5, -6, 7], [900, 30, 2])
        state = graph.state_dict()
        assert unpack(state["known"], np.int64).tolist() == [2, 30, 900]
        assert unpack(state["labels"], np.int64).tolist() == [7, -6, 5]
        restored = Graph(1000, decay=DECAY)
        tell(restored, [[0.0]], [5], [1])
        restored.load_state_dict(state)
        assert restored.state_dict() == state
        assert tell(restored, [[9.0]], [5], [1])[1] == pytest.approx(math.log(2)), "of a state, not of what was before"

    def test_restored_it_goes_on_to_find_the_radius(self):
        places, labels = spread(300, scale=1000)
        scorer, restored = Graph(300), Graph(300)
        scorer.score(np.arange(300), places, labels)
        restored.load_state_dict(scorer.state_dict())
        for _ in range(100):
            restored.score(np.arange(300), 2 * places, labels)
        assert restored.radius > 1.2 * scorer.radius
        fixed = Graph(300, decay=DECAY)
        fixed.load_state_dict(scorer.state_dict())
        for _ in range(3):
            fixed.score(np.arange(300), 2 * places, labels)
        assert fixed.radius == scorer.radius

    def test_samples_that_come_after_are_remembered_too(self):
        scorer = Graph(10, decay=DECAY)
        tell(scorer, [[0.0], [9.0]], [0, 0], [3, 4])
        restored = Graph(10, decay=DECAY)
        restored.load_state_dict(scorer.state_dict())
        tell(restored, [[5.0], [0.5]], [0, 0], [7, 3])
        assert sorted(unpack(restored.state_dict()["known"], np.int64).tolist()) == [3, 4, 7]

    def test_of_nothing_there_is_nothing_to_save(self):
        assert Graph(5).state_dict() == {}
        graph = Graph(5, decay=DECAY)
        graph.load_state_dict({})
        assert tell(graph, [[0.0], [1.0]], [1, 1])[0] == pytest.approx(math.log(2))
        assert graph.kin is not None

    @pytest.mark.parametrize("what", damaged())
    def test_a_damaged_state_is_refused_and_changes_nothing(self, what):
        graph, (places, labels) = Graph(10), spread(6, width=3)
        graph.score(np.arange(6), places, labels)
        state = graph.state_dict()
        with pytest.raises(ConfigError, match="damaged"):
            graph.load_state_dict(state | damaged()[what])
        assert graph.state_dict() == state
        graph.load_state_dict(state)

    def test_what_is_missing_is_named(self):
        graph = Graph(10)
        tell(graph, [[0.0]], [0])
        state = graph.state_dict()
        for name in state:
            with pytest.raises(ConfigError, match=f"damaged.*{name}"):
                graph.load_state_dict({key: value for key, value in state.items() if key != name})

    def test_that_of_a_larger_dataset_is_refused(self):
        graph, (places, labels) = Graph(20), spread(20, 3)
        graph.score(np.arange(20), places, labels)
        smaller = Graph(19)
        with pytest.raises(ConfigError, match="another dataset"):
            smaller.load_state_dict(graph.state_dict())
        assert smaller.state_dict() == {}
        larger = Graph(21)
        larger.load_state_dict(graph.state_dict())
        assert larger.state_dict()["known"] == graph.state_dict()["known"]

    @pytest.mark.parametrize("scale", [1e5, 1e-8])
    def test_large_and_small_numbers_are_saved_too(self, scale):
        graph, (places, labels) = Graph(50), spread(50, 8, scale)
        graph.score(np.arange(50), places, labels)
        restored = Graph(50)
        restored.load_state_dict(json.loads(json.dumps(graph.state_dict())))
        np.testing.assert_allclose(restored._index.get(np.arange(50)), places, atol=2e-3 * float(np.abs(places).max()))

    def test_an_empty_one_forgets_what_was_known(self):
        graph = Graph(5, decay=DECAY)
        tell(graph, [[0.0], [0.5]], [1, 1])
        graph.load_state_dict({})
        assert graph.state_dict() == {}

    def test_memory_is_that_of_the_index(self):
        graph, (places, labels) = Graph(2000, decay=DECAY), spread(2000, 200)
        assert graph.nbytes == 0
        graph.score(np.arange(2000), places, labels)
        alone = Neighbours(2000, 64)
        alone.update(np.arange(2000), places[:, :64])
        assert 2000 * 64 * 4 < graph.nbytes < 1.3 * alone.nbytes
