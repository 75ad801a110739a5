"""Recipes over orders: what a cache of a given size would hit, with exactly the objects of a live run.

`replay` runs one recipe at one cache size and counts. Where the order comes from (the recipe's own sampler or
a recorded run) and where losses come from (fields.py) is the caller's choice. No bytes, no threads; the clock is used
for the cost of deciding only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from augury.distributed import Place
from augury.errors import ConfigError
from augury.feedback import Scored
from augury.ids import NONE, Ids, Mask, Times, as_ids
from augury.knowledge import LAG, Knowledge
from augury.metrics import Counts
from augury.policies import Foresight, Policy
from augury.recipes import Recipe, policy_rng
from augury.schedule import Schedule, Work
from augury.sim.fields import LossField
from augury.sim.oracles import Oracle, find
from augury.step import Step, plan, prefetch, step

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
    coverage: float = 0.0
    """Distinct ids served in an epoch, as a share of all; the mean over epochs."""
    ever_seen: float = 0.0
    """Distinct ids served in the whole run, as a share of all."""
    steady: dict[str, float] = field(default_factory=dict)
    """hit_ratio, substitutes, reads (shares of their requests) and coverage (their mean) of the epochs after the
    second, or after the sampler's warm-up (of the last one if there are no more)."""
    per_epoch: list[float] = field(default_factory=list)
    """hit_ratio of each epoch."""
    substitutes_per_epoch: list[float] = field(default_factory=list)
    reads_per_epoch: list[float] = field(default_factory=list)
    coverage_per_epoch: list[float] = field(default_factory=list)
    gauges_per_epoch: list[dict[str, float]] = field(default_factory=list)
    """What the policy said of itself at the end of each epoch."""
    us_per_access: float = 0.0
    """What deciding cost per request, drawing, planning and learning included."""

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
    losses: LossField | None = None,
    lag: int = LAG,
    *,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress | None = None,
) -> Result:
    """Run `recipe` over `epochs` epochs with a cache that holds the fraction `cache` of all bytes.

    `orders` replaces what the recipe's sampler would draw, one per epoch; a policy that plans is then given all of
    them. A recipe that learns is told `losses`; what is told of a batch takes effect before the decision `lag` batches
    later, as in a live run.
    """
    recipe = find(recipe)
    sizes = np.ones(max(0, samples), np.int64) if sizes is None else np.asarray(sizes, np.int64)
    _check(samples, epochs, cache, batch, seed, lag, sizes)
    _check_losses(recipe, losses, samples, orders is not None)
    if isinstance(recipe, Oracle):
        run = partial(replay, samples=samples, epochs=epochs, cache=cache, batch=batch, seed=seed, lag=lag)
        orders = recipe.draws(partial(run, sizes=sizes, losses=losses))
    epochs = epochs if orders is None else len(orders)
    policy = recipe.policy(sizes, capacity_of(cache, sizes), policy_rng(seed, 0))
    training = _Training(recipe, samples, losses, lag, policy)
    if orders is None:
        sampler, held = recipe.sampler(samples, seed), _Cache(policy, sizes)
        schedule = Schedule(sampler, batch, Place(0, 1), samples, epochs=epochs, lookahead=recipe.lookahead)
        if recipe.foresight == Foresight.RUN:
            schedule.tell_run(0, 0, held, training.known)
        work = schedule.walk(0, 0, held, training.known, recipe.foresight == Foresight.EPOCHS)
    else:
        work = _given(orders, batch, policy if recipe.foresight else None)
    tally = _Tally(samples, epochs)
    while True:
        start = clock()
        training.settle()
        if (ahead := next(work, None)) is None:
            break
        done = step([policy], ahead.ids) if ahead.asked else prefetch([policy], ahead.ids)
        tally.add(ahead, done, clock() - start, policy.gauges)
        if ahead.asked:
            training.report(ahead, done.served if ahead.computed is None else done.served[ahead.computed])
        if progress and ahead.ends_epoch:
            progress(ahead.epoch + 1, epochs)
    return tally.result(recipe.name, cache, _warm_up(recipe, samples, epochs))


def _warm_up(recipe: Recipe, samples: int, epochs: int) -> int:
    """How many epochs to pass over before a cache is judged: two, or until the sampler begins to leave samples out."""
    warm_up: int = getattr(recipe.sampler(samples, 0), "warm_up", 2)
    return min(max(2, warm_up), epochs - 1)


def capacity_of(cache: float, sizes: NDArray[np.int64]) -> int:
    """The bytes of a cache that holds the fraction `cache` of all."""
    capacity = round(cache * int(sizes.sum()))
    if capacity < int(sizes.min()):
        raise ConfigError(f"a cache of {cache:g} of {len(sizes):,} samples holds not even one; give it more")
    return capacity


class _Cache:
    """One policy as the schedule sees a cache."""

    def __init__(self, policy: Policy, sizes: NDArray[np.int64]) -> None:
        self._policy, self._mean = policy, max(1.0, float(sizes.mean()))

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> None:
        plan([self._policy], order, job, times, later)

    @property
    def prefetches(self) -> bool:
        return self._policy.prefetches

    @property
    def refills(self) -> bool:
        return self._policy.refills

    @property
    def room(self) -> float:
        return self._policy.capacity / self._mean

    @property
    def resident(self) -> Mask:
        return self._policy.resident

    def wanted(self) -> Ids:
        return self._policy.wanted(self._policy.capacity)

    def progress(self, done: float, spreads: Sequence[float], accuracies: Sequence[float]) -> None:
        self._policy.progress(done, spreads, accuracies)


class _Training:
    """What a training loop would report of its batches, taking effect `lag` batches later."""

    def __init__(self, recipe: Recipe, samples: int, losses: LossField | None, lag: int, policy: Policy) -> None:
        self._scorer = None if recipe.scorer is None or losses is None else recipe.scorer(samples)
        self._losses, self._lag, self._policy = losses, lag, policy
        self.known = Knowledge.none(0 if recipe.scorer is None else samples)
        self._told: deque[Scored] = deque()

    def report(self, work: Work, ids: Ids) -> None:
        """A batch was trained on, and after an epoch's last one the model was tested."""
        if self._scorer is None or self._losses is None:
            return
        losses = self._losses.losses(work.epoch, ids)
        accuracy = self._losses.accuracy_after(work.epoch) if work.ends_epoch else None
        if self._scorer.needs == "losses":
            scores = self._scorer.score(ids, losses)
        else:
            embeddings, labels = self._losses.embeddings, self._losses.labels
            assert embeddings is not None
            assert labels is not None
            scores = self._scorer.score(ids, embeddings[ids], labels[ids])
        sums = float(losses.sum()), len(losses)
        self._told.append(Scored(work.epoch, ids, scores, sums, self._scorer.kin, accuracy))

    def settle(self) -> None:
        """Before a decision: what was told early enough takes effect."""
        while len(self._told) >= self._lag:
            told = self._told.popleft()
            told.teach(self.known)
            self._policy.learn(told.ids, told.scores, told.kin)


def _given(orders: Sequence[Order], batch: int, planning: Policy | None) -> Iterator[Work]:
    """Orders that were recorded, or made up by the caller."""
    epochs = [_cut(as_ids(order), batch) if isinstance(order, np.ndarray) else list(order) for order in orders]
    if planning is not None:
        planning.plan(np.concatenate([ids for epoch in epochs for ids in epoch]))
    for number, epoch in enumerate(epochs):
        for at, ids in enumerate(epoch):
            yield Work(number, ids, ends_epoch=at + 1 == len(epoch))


class _Tally:
    """Counts, epoch by epoch."""

    def __init__(self, samples: int, epochs: int) -> None:
        self._seconds = 0.0
        self._epochs = [Counts() for _ in range(epochs)]
        self._covered = np.zeros(epochs, np.int64)
        self._seen = np.full(samples, -1, np.int32)
        """The last epoch in which each was served."""
        self._gauges: list[dict[str, float]] = []

    def add(self, work: Work, done: Step, seconds: float, gauges: Mapping[str, float]) -> None:
        self._seconds += seconds
        if work.ends_epoch:
            self._gauges.append(dict(gauges))
        if work.asked:
            self._epochs[work.epoch].add(done.counts())
            served = done.served if work.computed is None else done.served[work.computed]
            fresh = served[self._seen[served] < work.epoch]
            self._covered[work.epoch] += len(np.unique(fresh))
            self._seen[fresh] = work.epoch
        else:
            self._epochs[work.epoch].prefetched += len(done.missed)

    def result(self, recipe: str, cache: float, warm_up: int) -> Result:
        total, late = Counts(), Counts()
        for number, counts in enumerate(self._epochs):
            total.add(counts)
            if number >= warm_up:
                late.add(counts)
        shares = [counts.shares() for counts in self._epochs]
        coverage = (self._covered / len(self._seen)).tolist()
        steady = {name: late.shares()[name] for name in ("hit_ratio", "substitutes", "reads")}
        return Result(
            recipe,
            cache,
            **total.shares(),
            coverage=float(np.mean(coverage)),
            ever_seen=float(np.count_nonzero(self._seen >= 0)) / len(self._seen),
            steady=steady | {"coverage": float(np.mean(coverage[warm_up:]))},
            per_epoch=[share["hit_ratio"] for share in shares],
            substitutes_per_epoch=[share["substitutes"] for share in shares],
            reads_per_epoch=[share["reads"] for share in shares],
            coverage_per_epoch=coverage,
            gauges_per_epoch=self._gauges if any(self._gauges) else [],
            us_per_access=1e6 * self._seconds / max(1, total.requests),
        )


def _cut(order: Ids, batch: int) -> list[Ids]:
    return [order[start : start + batch] for start in range(0, len(order), batch)]


def _check_losses(recipe: Recipe, losses: LossField | None, samples: int, given: bool) -> None:
    if given and (recipe.learns or isinstance(recipe, Oracle)):
        raise ConfigError(
            f"recipe {recipe.name!r} chooses what to visit and cannot follow a recorded order: replay it with --losses "
            "and without --trace, or check the log with --verify"
        )
    if losses is None and recipe.learns:
        raise ConfigError(
            f"recipe {recipe.name!r} learns from losses: give --losses synthetic, or a file made by `augury record`"
        )
    needs = None if recipe.scorer is None else recipe.scorer(1).needs
    if losses is not None and needs == "embeddings" and losses.embeddings is None:
        raise ConfigError(
            f"recipe {recipe.name!r} learns from embeddings, and a recorded loss field has none: use --losses synthetic"
        )
    if losses is not None and losses.samples != samples:
        raise ConfigError(f"there are {samples:,} samples, and losses of {losses.samples:,}")


def _check(samples: int, epochs: int, cache: float, batch: int, seed: int, lag: int, sizes: NDArray[np.int64]) -> None:
    for name, value in (("samples", samples), ("epochs", epochs), ("batch", batch), ("lag", lag)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}")
    if seed < 0:
        raise ConfigError(f"seed must not be negative: {seed}")
    if not 0 < cache <= 1:
        raise ConfigError(f"cache is a fraction of the dataset, above 0 and at most 1, not {cache:g}")
    if len(sizes) != samples:
        raise ConfigError(f"there are {samples:,} samples and {len(sizes):,} sizes")
