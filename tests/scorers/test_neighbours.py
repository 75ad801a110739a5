"""The search for neighbours: beside brute force where it is exact, and good enough in little memory where it is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.ids import as_ids
from augury.scorers import neighbours as module
from augury.scorers.neighbours import EXACT, FEW, LOOKS, Neighbours
from augury.scorers.products import PIECE, distances, product, squares

SAMPLES = 30


def held(index):
    """How many vectors there are, as the cells count them."""
    return sum(cell.count for cell in index._cells)


def pairs(edges):
    """Each pair once, as a set; none may come twice."""
    found = set(zip(edges.rows.tolist(), edges.ids.tolist(), strict=True))
    assert len(found) == len(edges.rows)
    return found


def brute_force(places, ids, radius):
    """Of a dict of vectors, or of an array: who is nearer than the radius."""
    items = list(places.items() if isinstance(places, dict) else enumerate(places))
    others, vectors = np.array([id for id, _ in items]), np.array([vector for _, vector in items], np.float64)
    at = {int(id): place for place, id in enumerate(others)}
    rows = [at[int(id)] for id in ids]
    gaps = ((vectors[rows, None] - vectors) ** 2).sum(axis=2)
    near = (gaps < radius**2) & (others[rows, None] != others)
    return {(int(row), int(others[column])) for row, column in zip(*np.nonzero(near), strict=True)}


def clusters(samples, dimensions=16, seed=0, scale=1.0):
    """As a network's embeddings lie: around a centre for each class."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(20, dimensions)) * 4
    places = centres[rng.integers(0, 20, samples)] + rng.normal(size=(samples, dimensions)) * 0.7
    return (scale * places).astype(np.float32)


grid = st.tuples(*[st.integers(-6, 6)] * 3)
steps = st.lists(
    st.dictionaries(st.integers(0, SAMPLES - 1), grid, min_size=1, max_size=SAMPLES) | st.just("arrange"),
    max_size=10,
)


class TestExact:
    @settings(max_examples=100)
    @given(steps, st.sampled_from([0.7, 1.9, 3.8, 100.0]), st.sampled_from([1, 3, 512]))
    def test_neighbours_are_those_of_brute_force(self, steps, radius, cell):
        """Cells of one, of three and of all; radii that no two points of the grid are apart."""
        index, places = Neighbours(SAMPLES, 3), {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "CELL", cell)
            patch.setattr(module, "FEW", 4)
            for step in steps:
                if step == "arrange":
                    index.arrange()
                else:
                    places |= {id: np.array(place, np.float32) for id, place in step.items()}
                    index.update(as_ids(list(step)), np.array(list(step.values()), np.float32))
                known = as_ids(sorted(places))
                assert held(index) == len(known)
                assert np.flatnonzero(index.known(np.arange(SAMPLES))).tolist() == known.tolist()
                if places:
                    assert pairs(index.within(known, radius, SAMPLES)) == brute_force(places, known, radius)
                    np.testing.assert_allclose(index.get(known), [places[id] for id in known.tolist()], atol=1e-4)

    def test_with_many_cells(self):
        """Seven thousand vectors that move twice: cells are chosen anew, and those out of reach are left out."""
        index, rng = Neighbours(7000, 6), np.random.default_rng(0)
        places = clusters(7000, 6)
        for _ in range(2):
            for ids in np.split(rng.permutation(7000), 7):
                places[ids] += rng.normal(size=(1000, 6)) * 0.2
                index.update(ids, places[ids])
        asked = rng.choice(7000, 100, replace=False)
        expected = brute_force(places, asked, 1.0)
        assert len(expected) > 200
        assert len(pairs(index.within(asked, 1.0, 7000)) ^ expected) <= 0.002 * len(expected)

    @pytest.mark.parametrize("most", [1, 5, 40, 99, 100])
    def test_of_too_many_the_nearest_are_kept(self, most):
        rng = np.random.default_rng(0)
        places = rng.normal(size=(100, 4)).astype(np.float32)
        index = Neighbours(100, 4)
        index.update(np.arange(100), places)
        asked = as_ids([7, 99, 0, 7])
        found = pairs(index.within(asked, 100.0, most))
        for row, id in enumerate(asked.tolist()):
            order = np.linalg.norm(places - places[id], axis=1).argsort()[1 : most + 1]
            assert {other for at, other in found if at == row} == set(order.tolist())

    def test_the_limit_is_for_each_and_not_for_all(self):
        """Nine at one place, two at another."""
        places = np.array([[0.0]] * 9 + [[50.0]] * 2, np.float32)
        index = Neighbours(11, 1)
        index.update(np.arange(11), places)
        edges = index.within(as_ids([0, 9, 10]), 1.0, 3)
        assert np.bincount(edges.rows).tolist() == [3, 1, 1]

    def test_nobody_is_his_own_neighbour_and_his_like_at_the_same_place_are(self):
        index = Neighbours(5, 2)
        index.update(as_ids([1, 3]), np.ones((2, 2), np.float32))
        edges = index.within(as_ids([1, 3, 1]), 0.5, 10)
        assert pairs(edges) == {(0, 3), (1, 1), (2, 3)}
        assert edges.ids.dtype == np.int64

    def test_nothing_is_found_among_nothing(self):
        index = Neighbours(5, 2)
        index.arrange()
        edges = index.within(as_ids([]), 1.0, 5)
        assert len(edges.rows) == len(edges.ids) == held(index) == 0
        index.update(as_ids([4]), np.ones((1, 2), np.float32))
        edges = index.within(as_ids([4]), 1.0, 5)
        assert len(edges.rows) == len(edges.ids) == 0
        assert held(index) == 1

    def test_what_was_put_in_comes_out(self):
        index, rng = Neighbours(3000, 5), np.random.default_rng(0)
        places = rng.normal(size=(3000, 5)).astype(np.float32)
        assert not index.known(np.arange(3000)).any()
        for ids in np.split(rng.permutation(3000), 10):
            index.update(ids, places[ids])
            assert index.known(ids).all()
        ids = rng.integers(0, 3000, 500)
        np.testing.assert_allclose(index.get(ids), places[ids], atol=1e-6)
        assert held(index) == 3000

    def test_up_to_so_many_samples_it_is_exact(self):
        assert Neighbours(EXACT, 1).exact
        assert not Neighbours(EXACT + 1, 1).exact
        assert not Neighbours(10, 1, exact=False).exact
        assert Neighbours(EXACT + 1, 1, exact=True).exact


def filled(places, minibatch=500, exact=False):
    index = Neighbours(len(places), places.shape[1], exact=exact)
    for start in range(0, len(places), minibatch):
        ids = np.arange(start, min(start + minibatch, len(places)))
        index.update(ids, places[ids])
    return index


NEAR = 4.0
"""About the usual distance within a cluster."""


def quality(index, places, asked, radius=NEAR):
    """How many pairs are found that should be, without those that should not."""
    expected, found = brute_force(places, asked, radius), pairs(index.within(asked, radius, len(places)))
    assert len(expected) > 20 * len(asked)
    return (len(found & expected) - len(found - expected)) / len(expected)


def test_where_all_lie_together_only_the_nearest_are_paired(monkeypatch):
    """A network that tells nothing apart: as many pairs as asked for, however many there could be."""
    monkeypatch.setattr(module, "BLOCK", 5000)
    index = filled(np.ones((3000, 4), np.float32), exact=True)
    edges = index.within(np.arange(40), 1.0, 7)
    assert np.bincount(edges.rows).tolist() == [7] * 40


@pytest.mark.parametrize("exact", [True, False])
def test_vectors_may_wander_far_from_where_they_began(exact):
    """Single precision has seven digits: what all have in common is not held with each."""
    places = clusters(3000)
    index = filled(places, exact=exact)
    for far in (100, 3000, 30000) if exact else (10, 20, 40):
        for _ in range(2):
            for ids in np.split(np.arange(3000), 6):
                index.update(ids, places[ids] + np.float32(far))
    index.arrange()
    assert quality(index, places, np.arange(0, 3000, 60)) > 0.8


class TestInexact:
    def test_most_neighbours_are_found_in_few_cells(self, monkeypatch):
        monkeypatch.setattr(module, "LARGE_CELL", 256)
        places = clusters(6000)
        index, asked = filled(places), np.arange(0, 6000, 30)
        looked = index._cells_to_look_at(index.get(asked), NEAR).sum(axis=1)
        assert len(index._cells) > 3 * LOOKS
        assert looked.max() == LOOKS
        assert quality(index, places, asked) > 0.86
        assert max(cell.count for cell in index._cells) < 4 * 256

    def test_of_too_many_the_nearest_are_kept(self):
        places = clusters(3000)
        found = pairs(filled(places).within(as_ids([5]), 1000.0, 50))
        order = np.linalg.norm(places - places[5], axis=1).argsort()[1:51]
        assert len(found) == 50
        assert len({other for _, other in found} & set(order.tolist())) >= 40

    @pytest.mark.parametrize("grown", [100, 1 / 100])
    def test_numbers_are_told_apart_when_vectors_have_grown_or_shrunk(self, grown):
        places = clusters(3000)
        index = filled(places)
        for _ in range(3):
            for ids in np.split(np.random.default_rng(0).permutation(3000), 30):
                index.update(ids, grown * places[ids])
        vectors = index.get(np.arange(3000))
        off = np.linalg.norm(vectors - grown * places, axis=1) / np.linalg.norm(grown * places, axis=1)
        assert np.median(off) < 0.03
        assert quality(index, grown * places, np.arange(100), grown * NEAR) > 0.8

    def test_a_number_that_is_too_large_for_its_byte_is_the_largest_there_is(self):
        places = clusters(3000)
        index = filled(places)
        far = 37.3 * places[:1]
        index.update(as_ids([0]), far)
        vectors = index.get(as_ids([0]))
        large = np.abs(far) > 3 * np.abs(places).max()
        assert large.any()
        assert (np.sign(vectors[large]) == np.sign(far[large])).all()
        assert (np.abs(vectors[large]) > np.quantile(np.abs(places), 0.999)).all()
        assert len(index.within(as_ids([0]), NEAR, 3000).rows) == 0

    def test_vectors_are_held_in_a_byte_each(self):
        places = clusters(8000, 64)
        index, exact = filled(places), filled(places, exact=True)
        assert index.nbytes < 8000 * (64 + 4 + 4 + 8) * 1.25 + index._buffer.nbytes
        assert index.nbytes > 8000 * 64
        assert exact.nbytes > 8000 * 64 * 4
        before = index.nbytes
        for _ in range(3):
            for ids in np.split(np.random.default_rng(0).permutation(8000), 16):
                index.update(ids, places[ids] + 0.1)
        assert index.nbytes < 1.25 * before
        assert held(index) == 8000

    def test_what_was_put_in_comes_out_nearly(self):
        places = clusters(3000)
        index = filled(places)
        vectors = index.get(np.arange(3000))
        unit = 2 * np.quantile(np.abs(places), 0.999) / 127
        assert np.abs(vectors - places).max() < 2 * unit
        assert np.abs(vectors - places).mean() < unit


class TestProducts:
    @pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 5), (1000, 64, 130), (5, 600, 700), (0, 4, 4), (4, 4, 0)])
    def test_pieces_make_the_whole(self, shape):
        rng = np.random.default_rng(0)
        left = rng.normal(size=shape[:2]).astype(np.float32)
        right = rng.normal(size=shape[1:]).astype(np.float32)
        np.testing.assert_allclose(product(left, right), left @ right, atol=1e-3)
        np.testing.assert_allclose(product(left.T.copy().T, right), left @ right, atol=1e-3)

    def test_one_row_too_many_for_a_piece(self):
        left = np.random.default_rng(0).normal(size=(PIECE // 256 + 1, 16)).astype(np.float32)
        np.testing.assert_allclose(product(left, left[:16].T), left @ left[:16].T, atol=1e-4)

    def test_distances_and_squares(self):
        rows, others = clusters(30, 7), clusters(20, 7, seed=1)
        np.testing.assert_allclose(
            distances(rows, others), np.linalg.norm(rows[:, None] - others, axis=2), rtol=1e-3, atol=1e-2
        )
        np.testing.assert_allclose(squares(rows), (rows**2).sum(axis=1), rtol=1e-5)
        assert np.isfinite(distances(rows, rows)).all(), "no root of less than nothing"


def test_nothing_is_arranged_anew_before_so_many_updates():
    """Arranging takes as long as thousands of updates; once per so many vectors it costs little."""
    index, arranged = Neighbours(5000, 2), []
    inner = index.arrange
    index.arrange = lambda *turn: (arranged.append(held(index)), inner(*turn))
    rng = np.random.default_rng(0)
    for start in range(0, 5000, 100):
        index.update(np.arange(start, start + 100), rng.normal(size=(100, 2)).astype(np.float32))
    assert arranged[0] == 100
    assert np.diff(arranged).min() >= FEW
    assert len(arranged) <= 4
