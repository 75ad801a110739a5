"""The slow line, on a clock of its own."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

from augury.errors import ConfigError, Unreadable
from augury.ids import NONE, Ids
from augury.sources import Base, Source
from augury.sources.array import ArraySource
from augury.sources.slow import SlowSource
from augury.testing.sources import Made, SourceContract


class Clock:
    """Time passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Pairs(Base):
    """Asks its store for two samples at a time."""

    def __init__(self, source: Source) -> None:
        self.catalog = source.catalog
        self.read = source.read  # type: ignore[method-assign]

    def requests(self, ids: Ids) -> list[Ids]:
        return [ids[start : start + 2] for start in range(0, len(ids), 2)]


def rows(count: int = 10) -> ArraySource:
    return ArraySource(np.arange(count * 50, dtype=np.uint8).reshape(count, 50))


class TestContract(SourceContract):
    def make(self, tmp_path: Path) -> Made:
        inner = rows()
        return SlowSource(inner, latency=1e-4, bandwidth=1e9), [row.tobytes() for row in inner.features]


def test_a_request_costs_its_latency_and_its_bytes() -> None:
    clock = Clock()
    source = SlowSource(rows(), 0.5, bandwidth=100, clock=clock, sleep=clock.sleep)
    source.read(np.array([1, 2]))
    assert clock.now == 100 + 0.5 + 100 / 100
    assert (source.requests_made, source.bytes_read) == (1, 100)
    assert source.read(NONE) == []
    assert source.requests_made == 1


def test_requests_of_one_read_come_one_after_another() -> None:
    clock = Clock()
    source = SlowSource(Pairs(rows()), 0.5, bandwidth=100, clock=clock, sleep=clock.sleep)
    source.read(np.array([1, 2, 3]))
    assert clock.slept == [0.5 + 1.0, 0.5 + 0.5]
    assert source.requests_made == 2


def test_readers_share_the_line_but_wait_for_latency_together() -> None:
    source = SlowSource(rows(), 10.0, bandwidth=50, clock=lambda: 0.0, sleep=lambda seconds: slept.append(seconds))
    slept: list[float] = []
    for id in range(3):  # three readers at the same moment
        source.read(np.array([id]))
    assert slept == [11.0, 12.0, 13.0]


def test_others_may_share_the_line() -> None:
    clock = Clock()
    source = SlowSource(rows(), 0.5, bandwidth=100, clock=clock, sleep=clock.sleep)
    source.transfer(200)
    assert clock.slept == [0.5 + 2.0]
    assert (source.requests_made, source.bytes_read) == (1, 200)


def test_nobody_sleeps_with_the_lock() -> None:
    source = SlowSource(rows(), 1.0, sleep=lambda seconds: locked.append(source._lock.locked()))
    locked: list[bool] = []
    source.read(np.array([0]))
    assert locked == [False]


def test_without_limits_nobody_sleeps() -> None:
    clock = Clock()
    SlowSource(rows(), clock=clock, sleep=clock.sleep).read(np.arange(5))
    assert clock.slept == []


def failures(source: SlowSource, rounds: int) -> list[list[bool]]:
    ids = np.arange(len(source))
    return [[isinstance(answer, Unreadable) for answer in source.read(ids)] for _ in range(rounds)]


def test_failures_repeat_with_the_seed() -> None:
    first = failures(SlowSource(rows(100), failure_rate=0.3, seed=7), 20)
    assert first == failures(SlowSource(rows(100), failure_rate=0.3, seed=7), 20)
    assert first != failures(SlowSource(rows(100), failure_rate=0.3, seed=8), 20)
    assert 0.25 < np.mean(first) < 0.35
    assert np.mean(np.all(first, axis=0)) == 0  # trying again helps


def test_failures_depend_on_the_id_and_not_on_its_neighbours() -> None:
    together = failures(SlowSource(rows(50), failure_rate=0.3), 1)[0]
    alone = SlowSource(rows(50), failure_rate=0.3)
    assert together == [isinstance(alone.read(np.array([id]))[0], Unreadable) for id in range(50)]


def test_a_failure_is_transient_and_named() -> None:
    (failed,) = SlowSource(rows(), failure_rate=1.0).read(np.array([3]))
    assert isinstance(failed, Unreadable)
    assert failed.transient
    assert (failed.id, failed.location) == (3, "array[3]")


def test_a_copy_has_a_line_of_its_own() -> None:
    source = SlowSource(rows(), 0.0, failure_rate=0.5, seed=3)
    twin = pickle.loads(pickle.dumps(source))
    assert failures(twin, 3) == failures(source, 3)


def test_many_threads_are_all_counted() -> None:
    source = SlowSource(rows(), failure_rate=0.1)
    threads = [threading.Thread(target=lambda: [source.read(np.arange(10)) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (source.requests_made, source.bytes_read) == (200, 200 * 500)
    assert (source._attempts == 200).all()


@pytest.mark.parametrize("wrong", [{"latency": -1}, {"bandwidth": 0}, {"failure_rate": 1.5}])
def test_what_cannot_work_is_said(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        SlowSource(rows(), **wrong)
