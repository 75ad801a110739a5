"""SpiderCache's two sections: the paper's Figure 9, and what it does not draw."""

from __future__ import annotations

from augury.policies.foresight import NextUse
from augury.policies.spider import Important, Spider
from augury.testing import PolicyContract


class TestSpiderContract(PolicyContract):
    def make(self, sizes, capacity, rng):
        return Spider(sizes, capacity, rng)


class TestHalfForStandIns(PolicyContract):
    def make(self, sizes, capacity, rng):
        return Spider(sizes, capacity, rng, start=0.5, end=0.1)


class TestWithForesight(PolicyContract):
    def make(self, sizes, capacity, rng):
        return Spider(sizes, capacity, rng, section=NextUse, start=0.6, end=0.3)


class TestImportantContract(PolicyContract):
    def make(self, sizes, capacity, rng):
        return Important(sizes, capacity, rng)
