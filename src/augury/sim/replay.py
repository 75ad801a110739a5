"""Recipes over orders: what a cache of a given size would hit, with exactly the objects of a live run.

`replay` runs one recipe at one cache size and counts. Where the order comes from (the recipe's own sampler or
a recorded run) is the caller's choice. No bytes, no threads; the clock is used for the cost of deciding only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.ids import Ids, as_ids
from augury.metrics import Counts
from augury.policies import Policy
from augury.recipes import Recipe, find, policy_rng
from augury.step import step

Order: TypeAlias = Ids | Sequence[Ids]
"""One epoch: an order to be cut into batches, or the batches themselves."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called after each epoch with how many are done, and of how many."""


@dataclass
class Result:
    """What one recipe did at one cache size. Shares are of all requests."""

    recipe: str
    cache: float
    """The cached fraction of the dataset's bytes."""
    hit_ratio: float = 0.0
    """The requested id was held."""
    substitutes: float = 0.0
    joined: float = 0.0
    misses: float = 0.0
    reads: float = 0.0
    """Samples fetched from the store, asked for or not, per request."""
    per_epoch: list[float] = field(default_factory=list)
    """hit_ratio of each epoch."""
    reads_per_epoch: list[float] = field(default_factory=list)
    coverage: float = 0.0
    """Distinct ids served in an epoch, as a share of all; the mean over epochs."""
    us_per_access: float = 0.0
    """What deciding cost per request, planning included."""

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return asdict(self)


def replay(
    recipe: str | Recipe,
    samples: int,
    epochs: int,
    cache: float,
    batch: int = 128,
    seed: int = 0,
    sizes: NDArray[np.int64] | None = None,
    orders: Sequence[Order] | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress | None = None,
) -> Result:
    """Run `recipe` over `epochs` epochs with a cache that holds the fraction `cache` of all bytes.

    `orders` replaces what the recipe's sampler would draw, one per epoch. A policy that plans is given
    what can be known: all remaining epochs if the sampler is foreseeable or the orders are given, else one.
    """
    recipe = find(recipe)
    sizes = np.ones(max(0, samples), np.int64) if sizes is None else np.asarray(sizes, np.int64)
    _check(samples, epochs, cache, batch, seed, sizes)
    epochs = epochs if orders is None else len(orders)
    policy = recipe.policy(sizes, capacity_of(cache, sizes), policy_rng(seed, 0))
    source = _Drawn(recipe, samples, epochs, seed, batch) if orders is None else _Given(recipe, orders, batch)
    tally = _Tally(samples)
    for epoch in range(epochs):
        start = clock()
        batches = source.batches(epoch, policy)
        tally.start(clock() - start)
        for ids in batches:
            start = clock()
            done = step([policy], ids)
            tally.add(done.counts(), done.served, clock() - start)
        if progress:
            progress(epoch + 1, epochs)
    return tally.result(recipe.name, cache)


def capacity_of(cache: float, sizes: NDArray[np.int64]) -> int:
    """The bytes of a cache that holds the fraction `cache` of all."""
    capacity = round(cache * int(sizes.sum()))
    if capacity < int(sizes.min()):
        raise ConfigError(f"a cache of {cache:g} of {len(sizes):,} samples holds not even one; give it more")
    return capacity


class _Drawn:
    """Orders as the recipe's sampler draws them, epoch by epoch, as a live run would."""

    def __init__(self, recipe: Recipe, samples: int, epochs: int, seed: int, batch: int) -> None:
        self.sampler = recipe.sampler(samples, seed)
        self.foresight, self.epochs, self.batch = recipe.foresight, epochs, batch
        self.scores = np.ones(samples, np.float32)
        self.ahead: dict[int, Ids] = {}
        """Epochs drawn before their time, because the policy wants to know them."""

    def batches(self, epoch: int, policy: Policy) -> Iterator[Ids]:
        planned = epoch in self.ahead
        drawn = self.ahead.pop(epoch) if planned else self.sampler.draw(epoch, self.scores)
        order = self.sampler.arrange(drawn, policy.resident)
        if self.foresight and not (planned and order is drawn):
            policy.plan(np.concatenate([order, *self._draw_ahead(epoch)]))
        return _cut(order, self.batch)

    def _draw_ahead(self, epoch: int) -> list[Ids]:
        if self.sampler.foreseeable:
            for later in range(epoch + 1, self.epochs):
                if later not in self.ahead:
                    self.ahead[later] = self.sampler.draw(later, self.scores)
        return [self.ahead[later] for later in sorted(self.ahead)]


class _Given:
    """Orders that were recorded, or made up by the caller."""

    def __init__(self, recipe: Recipe, orders: Sequence[Order], batch: int) -> None:
        self.foresight, self.orders, self.batch = recipe.foresight, orders, batch

    def batches(self, epoch: int, policy: Policy) -> Iterator[Ids]:
        if self.foresight and epoch == 0:
            policy.plan(np.concatenate([ids for order in self.orders for ids in self._of(order)]))
        return self._of(self.orders[epoch])

    def _of(self, order: Order) -> Iterator[Ids]:
        return _cut(as_ids(order), self.batch) if isinstance(order, np.ndarray) else iter(order)


class _Tally:
    """Counts, epoch by epoch."""

    def __init__(self, samples: int) -> None:
        self.total, self.seconds = Counts(), 0.0
        self.epochs: list[Counts] = []
        self.covered: list[int] = []
        self.seen = np.zeros(samples, np.bool_)

    def start(self, seconds: float) -> None:
        """A new epoch, which took so long to draw and plan."""
        self._finish_epoch()
        self.epochs.append(Counts())
        self.seconds += seconds

    def _finish_epoch(self) -> None:
        if self.epochs:
            self.covered.append(int(np.count_nonzero(self.seen)))
            self.seen[:] = False

    def add(self, counts: Counts, served: Ids, seconds: float) -> None:
        self.epochs[-1].add(counts)
        self.seen[served] = True
        self.seconds += seconds

    def result(self, recipe: str, cache: float) -> Result:
        self._finish_epoch()
        for counts in self.epochs:
            self.total.add(counts)
        shares = [counts.shares() for counts in self.epochs]
        total = self.total.shares()
        return Result(
            recipe,
            cache,
            **total,
            reads=total["misses"],
            per_epoch=[share["hit_ratio"] for share in shares],
            reads_per_epoch=[share["misses"] for share in shares],
            coverage=float(np.mean(self.covered)) / len(self.seen),
            us_per_access=1e6 * self.seconds / max(1, self.total.requests),
        )


def _cut(order: Ids, batch: int) -> Iterator[Ids]:
    return (order[start : start + batch] for start in range(0, len(order), batch))


def _check(samples: int, epochs: int, cache: float, batch: int, seed: int, sizes: NDArray[np.int64]) -> None:
    for name, value in (("samples", samples), ("epochs", epochs), ("batch", batch)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}")
    if seed < 0:
        raise ConfigError(f"seed must not be negative: {seed}")
    if not 0 < cache <= 1:
        raise ConfigError(f"cache is a fraction of the dataset, above 0 and at most 1, not {cache:g}")
    if len(sizes) != samples:
        raise ConfigError(f"there are {samples:,} samples and {len(sizes):,} sizes")
