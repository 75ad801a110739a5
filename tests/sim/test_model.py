"""The performance model: Eq. 4.1 against NumPy, Eqs. 3.4 to 3.7 by hand, and the reading of the published figures."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.errors import ConfigError
from augury.sim.model import SOURCE, Environment, StorageClass, Throughput, local, remote

MEMORY = {1: 16550, 2: 21164, 3: 21186, 4: 21415}
SSD = {1: 66, 2: 86, 3: 129, 4: 146}
THESIS = Environment(
    nodes=4,
    compute=100,
    preprocess=200,
    network=10000,
    source_network=2000,
    source=Throughput(SSD),
    classes=(
        StorageClass(1024, 2, Throughput(MEMORY)),
        StorageClass(51200, 2, Throughput(MEMORY)),
        StorageClass(102400, 2, Throughput(SSD)),
    ),
)
PAPER = dataclasses.replace(THESIS, paper=True)
"""Section 5.2.1."""

measured = st.dictionaries(st.integers(1, 200), st.floats(0.001, 1e6), min_size=1, max_size=8)


@given(measured, st.floats(0, 300) | st.integers(0, 300))
def test_throughput_is_interpolated_between_what_was_measured_and_flat_beyond(points, count):
    counts = sorted(points)
    expected = np.interp(count, counts, [points[each] for each in counts])
    assert Throughput(points)(count) == pytest.approx(expected)


@given(measured)
def test_what_was_measured_is_given_back_exactly(points):
    throughput = Throughput(points)
    assert throughput.measured == points
    assert list(throughput.measured) == sorted(points)
    assert [throughput(count) for count in points] == list(points.values())
    assert throughput == Throughput(dict(reversed(points.items())))
    assert hash(throughput) == hash(Throughput(dict(reversed(points.items()))))
    assert str(min(points)) in repr(throughput)


def test_throughputs_differ_by_what_was_measured():
    assert Throughput({1: 2}) != Throughput({1: 3})
    assert Throughput({1: 2}) != {1: 2}


@pytest.mark.parametrize("points", [{}, {0: 5}, {-1: 5}, {1: 0}, {1: -3}, {1: float("nan")}])
def test_what_is_no_throughput(points):
    with pytest.raises(ConfigError, match="throughput"):
        Throughput(points)


def test_the_source_is_shared_by_its_readers_up_to_the_network():
    assert [THESIS.rate(SOURCE, readers) for readers in (1, 2, 3, 4)] == [66, 43, 43, 36.5]
    assert THESIS.rate(SOURCE, 8) == 146 / 8
    narrow = dataclasses.replace(THESIS, source_network=40)
    assert [narrow.rate(SOURCE, readers) for readers in (1, 4)] == [40, 36.5]


def test_a_thread_gets_its_part_of_a_class():
    assert THESIS.rate(local(1), 1) == 21164 / 2
    assert THESIS.rate(local(2), 1) == 43
    assert THESIS.rate(remote(2), 4) == 43
    assert THESIS.rate(remote(1), 4) == 10000
    assert dataclasses.replace(THESIS, network=7).rate(remote(1), 1) == 7


def test_the_published_figures_rest_on_the_aggregate():
    assert PAPER.rate(local(1), 1) == 21164
    assert PAPER.rate(local(2), 1) == PAPER.rate(remote(2), 1) == 86
    assert PAPER.rate(remote(1), 1) == 10000
    assert PAPER.rate(SOURCE, 4) == 36.5


def test_writing_is_as_slow_as_the_slower_of_transforming_and_storing():
    assert THESIS.write_seconds == 1 / 200
    fast = dataclasses.replace(THESIS, preprocess=1e9)
    assert fast.write_seconds == pytest.approx(2 / 21164)
    staging = StorageClass(1024, 2, Throughput(MEMORY), write=Throughput({1: 50}))
    slow = dataclasses.replace(THESIS, classes=(staging, *THESIS.classes[1:]))
    assert slow.write_seconds == 2 / 50


def test_reading_is_fetching_and_writing():
    assert THESIS.read_seconds(SOURCE, 4) == pytest.approx(4 / 146 + 1 / 200)
    assert THESIS.read_seconds(local(2), 4) == pytest.approx(1 / 43 + 1 / 200)
    assert PAPER.read_seconds(local(2), 4) == pytest.approx(1 / 86 + 1 / 200)


def test_filling_a_class_is_fetching_and_writing_there_and_for_the_paper_into_the_staging_buffer():
    assert THESIS.fill_seconds(2, SOURCE, 8) == pytest.approx(8 / 146 + 1 / 43)
    assert THESIS.fill_seconds(1, remote(2), 8) == pytest.approx(1 / 43 + 2 / 21164)
    assert PAPER.fill_seconds(2, SOURCE, 4) == pytest.approx(4 / 146 + 1 / 200)
    own = StorageClass(5, 3, Throughput({1: 1000}), write=Throughput({1: 60}))
    assert dataclasses.replace(THESIS, classes=(own, own)).fill_seconds(1, SOURCE, 1) == pytest.approx(1 / 66 + 3 / 60)


def test_readers_are_all_threads_and_for_the_paper_nodes():
    assert THESIS.readers == 24
    assert PAPER.readers == 4


def test_the_fastest_holder_depends_on_the_readers():
    assert THESIS.fastest([local(2), SOURCE], 1) == SOURCE
    assert THESIS.fastest([local(2), SOURCE], 4) == local(2)
    assert THESIS.fastest([SOURCE, remote(1), local(2)], 1) == remote(1)
    assert THESIS.fastest([remote(2), local(2)], 1) == remote(2)  # of equals the first
    assert THESIS.fastest([local(2), remote(2)], 1) == local(2)
    assert THESIS.fastest([remote(1), local(1)], 1) == local(1)


@given(st.lists(st.sampled_from([SOURCE, local(1), local(2), remote(1), remote(2)]), min_size=1), st.integers(1, 9))
def test_nobody_is_faster_than_the_fastest(holders, readers):
    best = THESIS.fastest(holders, readers)
    assert best in holders
    assert all(THESIS.rate(holder, readers) <= THESIS.rate(best, readers) for holder in holders)
