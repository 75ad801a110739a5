"""How often a node reads a sample: the published figures, the exact distribution, and the lemmas over real orders."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from augury.errors import ConfigError
from augury.sim.frequency import (
    access_counts,
    access_distribution,
    expected_frequent,
    frequent_from,
    some_other_at_least,
    some_other_at_most,
)

PAPER = {"nodes": 4, "epochs": 1000, "samples": 10_000}


def exactly(nodes, epochs):
    return [Fraction(math.comb(epochs, k) * (nodes - 1) ** (epochs - k), nodes**epochs) for k in range(epochs + 1)]


def test_the_published_323_counts_strictly_more_than_275():
    assert expected_frequent(**PAPER, delta=0.1) == pytest.approx(322.937, abs=1e-3)
    at_least = 10_000 * float(sum(exactly(4, 1000)[275:]))
    assert at_least == pytest.approx(378.184, abs=1e-3)
    assert expected_frequent(**PAPER, delta=Fraction(1, 10) - Fraction(1, 1000)) == pytest.approx(at_least)


def test_the_published_monte_carlo_of_329_is_as_likely_as_ours():
    frequent = (access_counts(**PAPER, seed=0) > 275).sum(axis=1)
    spread = math.sqrt(323 * (1 - 0.0323))
    for count in (329, *frequent):
        assert abs(count - 322.9) < 4 * spread


@pytest.mark.parametrize(("nodes", "epochs"), [(1, 5), (2, 1), (2, 10), (4, 1000), (7, 90), (1024, 300)])
def test_the_distribution_is_the_exact_one(nodes, epochs):
    expected = np.array([float(probability) for probability in exactly(nodes, epochs)])
    got = access_distribution(nodes, epochs)
    assert len(got) == epochs + 1
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-300)
    assert got.sum() == pytest.approx(1)


def test_draws_follow_the_distribution():
    counts = access_counts(nodes=3, epochs=30, samples=6000, seed=5)
    drawn = np.bincount(counts[0], minlength=31) / 6000
    np.testing.assert_allclose(drawn, access_distribution(3, 30), atol=0.03)
    assert np.abs(drawn - access_distribution(3, 30)).sum() < 0.1


def test_decimals_are_meant_as_written():
    assert (1 + 0.15) * 100 / 5 < 23
    assert frequent_from(nodes=5, epochs=100, delta=0.15) == 24
    assert frequent_from(nodes=4, epochs=1000, delta=0.1) == 276
    assert frequent_from(nodes=4, epochs=1000, delta=0.101) == 276
    assert frequent_from(nodes=4, epochs=10, delta=0) == 3


def test_extremes():
    assert expected_frequent(4, 10, 100, delta=3) == 0
    assert expected_frequent(1, 10, 100, delta=0) == 0
    assert expected_frequent(4, 10, 100, delta=-1.5) == pytest.approx(100)
    assert expected_frequent(1, 10, 100, delta=-0.1) == 100


SETTINGS = {
    "nodes": st.integers(2, 6),
    "epochs": st.integers(1, 40),
    "extra": st.integers(0, 30),
    "seed": st.integers(0, 2**32),
}


@settings(max_examples=60)
@given(**SETTINGS)
def test_every_sample_is_read_once_per_epoch_and_shares_are_equal(nodes, epochs, extra, seed):
    counts = access_counts(nodes, epochs, nodes + extra, seed)
    assert (counts.sum(axis=0) == epochs).all()
    shares = counts.sum(axis=1)
    assert shares.max() - shares.min() <= epochs * ((nodes + extra) % nodes > 0)


@settings(max_examples=60)
@given(**SETTINGS)
@example(nodes=2, epochs=1, extra=0, seed=0)
def test_lemmas_hold_over_real_orders(nodes, epochs, extra, seed):
    counts = access_counts(nodes, epochs, nodes + extra, seed)
    for node in range(nodes):
        others = np.delete(counts, node, axis=0)
        for count, least, most in zip(counts[node].tolist(), others.min(axis=0), others.max(axis=0), strict=True):
            for delta in deltas_of(count, nodes, epochs):
                if 0 <= delta <= nodes - 1 and math.ceil((1 + delta) * Fraction(epochs, nodes)) == count:
                    assert least <= some_other_at_most(nodes, epochs, delta)
                if 0 <= -delta <= 1 and math.floor((1 + delta) * Fraction(epochs, nodes)) == count:
                    assert most >= some_other_at_least(nodes, epochs, -delta)


def deltas_of(count, nodes, epochs):
    """The delta that makes a count exact, and others that are rounded to it."""
    exact = Fraction(count * nodes, epochs) - 1
    step = Fraction(nodes, epochs)
    return [exact, exact - step / 2, exact + step / 2, exact - step * 99 / 100, exact + step * 99 / 100]


@given(st.integers(2, 9), st.integers(1, 60), st.data())
def test_the_bounds_are_those_of_pigeons_or_one_off(nodes, epochs, data):
    """Of E - c accesses elsewhere some node has at most the mean rounded down; the lemmas round the other way."""
    count = data.draw(st.integers(0, epochs))
    delta = Fraction(count * nodes, epochs) - 1
    rest = Fraction(epochs - count, nodes - 1)
    if delta >= 0:
        assert some_other_at_most(nodes, epochs, delta) == math.ceil(rest)
    else:
        assert some_other_at_least(nodes, epochs, -delta) == math.floor(rest)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: access_distribution(0, 5), "nodes=0"),
        (lambda: access_distribution(2, 0), "epochs=0"),
        (lambda: expected_frequent(2, 0, 5, 0.1), "epochs=0"),
        (lambda: access_counts(4, 2, 3), "3 samples cannot be dealt to 4 nodes"),
        (lambda: some_other_at_most(1, 5, 0), "nodes from 2 on"),
        (lambda: some_other_at_most(4, 5, 3.1), r"lies in \[0, 3\]"),
        (lambda: some_other_at_least(4, 5, 1.1), r"lies in \[0, 1\]"),
        (lambda: some_other_at_least(4, 5, -0.1), r"lies in \[0, 1\]"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_the_benchmark_runs(tmp_path):
    script = Path(__file__).parents[2] / "bench" / "hdmlp_frequency.py"
    done = subprocess.run(
        [sys.executable, script, "--quick", "--json", tmp_path / "x.json", "--plot", tmp_path / "x.png"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "x.json").read_text())
    assert result["published"]["expected"] == 323
    assert result["expected"]["more than 275"] == pytest.approx(322.9, abs=0.1)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
