"""Embeddings in few numbers: distances are kept, on average and the same way at any time."""

from __future__ import annotations

import numpy as np
import pytest

from augury.scorers.products import distances
from augury.scorers.projection import DIMENSIONS, Projection


def embeddings(count, width, seed=0):
    return np.random.default_rng(seed).standard_normal((count, width), np.float32)


@pytest.mark.parametrize("width", [1, 2, 63, 64])
def test_few_numbers_stay_as_they_are(width):
    x = embeddings(20, width)
    assert np.array_equal(Projection(width).project(x), x)


@pytest.mark.parametrize("width", [65, 512, 5000])
def test_many_become_few_and_distances_stay_within_a_tenth_as_a_rule(width):
    x = embeddings(200, width)
    vectors = Projection(width).project(x)
    assert vectors.shape == (200, DIMENSIONS)
    ratio = distances(vectors, vectors)[np.triu_indices(200, 1)] / distances(x, x)[np.triu_indices(200, 1)]
    assert abs(ratio.mean() - 1) < 0.05
    assert ratio.std() < 0.12


def test_who_is_the_same_stays_the_same_at_any_time():
    x = embeddings(50, 300)
    early, late = Projection(300), Projection(300)
    late.project(1000 * embeddings(80, 300, seed=1))
    assert np.array_equal(early.project(x), late.project(x))
    assert np.allclose(early.project(x[:1] + 5), early.project(x[:1]) + early.project(np.full((1, 300), 5, np.float32)))


def test_near_duplicates_are_near_however_far_away_all_of_them_lie():
    x = embeddings(1, 512) + 100
    near = x + 0.001 * embeddings(50, 512, seed=2)
    vectors = Projection(512).project(np.concatenate([x, near]))
    assert distances(vectors[:1] - vectors[0], vectors[1:] - vectors[0]).max() < 0.05
