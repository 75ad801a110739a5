"""Every policy passes the contract that ships with the package, also when its front is made to work hard."""

from __future__ import annotations

import numpy as np
import pytest

from augury.policies import Policy, front
from augury.policies.classic import FIFO, LFU, LRU, MIN, MinIO, Nothing, Random
from augury.policies.placement import Placement
from augury.testing.policies import PolicyContract


class TinyFront(PolicyContract):
    """Two dozen ids never fill a front of the usual size: shrink it, so that runs, merges, rescans happen."""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _tiny(cls):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(front, "_LEAST", 2)
            yield


class TestNothing(PolicyContract):
    def make(self, sizes, capacity, rng) -> Policy:
        return Nothing(sizes, capacity, rng)


class TestMinIO(PolicyContract):
    def make(self, sizes, capacity, rng) -> Policy:
        return MinIO(sizes, capacity, rng)


class TestLRU(TinyFront):
    def make(self, sizes, capacity, rng) -> Policy:
        return LRU(sizes, capacity, rng)


class TestLFU(TinyFront):
    def make(self, sizes, capacity, rng) -> Policy:
        return LFU(sizes, capacity, rng)


class TestFIFO(TinyFront):
    def make(self, sizes, capacity, rng) -> Policy:
        return FIFO(sizes, capacity, rng)


class TestRandom(TinyFront):
    def make(self, sizes, capacity, rng) -> Policy:
        return Random(sizes, capacity, rng)


class TestMIN(TinyFront):
    def make(self, sizes, capacity, rng) -> Policy:
        return MIN(sizes, capacity, rng)


class TestPlacement(TinyFront):
    def make(self, sizes, capacity, rng) -> Policy:
        return Placement(sizes, capacity, rng)


class TestLRUWithTheUsualFront(PolicyContract):
    def make(self, sizes, capacity, rng) -> Policy:
        return LRU(sizes, capacity, rng)


def test_the_contract_finds_a_policy_that_breaks_its_limit():
    class Greedy(MinIO):
        def admit(self, ids):
            self._hold(ids)
            return np.ones(len(ids), np.bool_), ids[:0]

    class TestGreedy(PolicyContract):
        def make(self, sizes, capacity, rng) -> Policy:
            return Greedy(sizes, capacity, rng)

    with pytest.raises(AssertionError, match="limit"):
        TestGreedy().test_long_shuffled_run()


def test_the_contract_finds_a_policy_that_is_not_deterministic():
    class Whim(Random):
        def __init__(self, sizes, capacity, rng):
            super().__init__(sizes, capacity, None)

    class TestWhim(PolicyContract):
        def make(self, sizes, capacity, rng) -> Policy:
            return Whim(sizes, capacity, rng)

    with pytest.raises(AssertionError):
        TestWhim().test_long_shuffled_run()
