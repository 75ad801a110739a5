"""Orders by importance: what still teaches is visited more often, and what is cached is repeated (SHADE's PADS).

Khan et al., "SHADE: Enable Fundamental Cacheability for Distributed Deep Learning Training", FAST 2023, section 4.2.1.
Each rank draws for itself, from its own stream of chance. Drawing knows nothing of losses or caches: scores and what
is resident are handed in. docs/recipes/shade.md lists where this differs from the paper and why.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.ids import Ids, Mask, Scores
from augury.knowledge import Knowledge
from augury.samplers import View
from augury.samplers.shuffle import Shuffle, epoch_rng

REPETITION = 3.0
"""How often a drawn sample that is cached is visited; the paper's code has 3."""
EXPLORE = 5
"""A sample that was not visited for so many epochs is visited in the next."""
FRESH = 0.47
"""Of the visits drawn for samples that are not cached, the least share that repeats of cached ones may not displace."""
STEEP = 1 / 3
"""A mean loss that falls by more than this share from one epoch to the next is a steep decline."""
STAGNANT, GAIN = 3, 0.01
"""An accuracy that has not grown by this share of itself in so many reports stagnates."""

_PIECE = 4096
"""Of the sizes from 256 to 16,384 the fastest."""
ARRANGING = 1 << 32
"""Streams of chance from here on are for arranging, those below for drawing."""


def weighted(rng: np.random.Generator, weights: NDArray[np.floating], count: int, even: bool = False) -> Ids:
    """`count` positions with repetition, each in proportion to its weight, in random order. Any number of weights.

    `even` draws one from each of `count` equal parts of the total weight: the same expectation for each position, but
    what comes differs from it by less than two, where independent draws leave a third of them out.

    The points are made in ascending order, so that looking them up walks through memory once: ten million draws from
    ten million weights take twice as long as a permutation (docs/decisions/0005-learning.md).
    """
    edges = weights.astype(np.float64)
    heaviest = edges.max()
    if heaviest <= 0:  # nothing is worth more than anything else
        return weighted(rng, np.ones(len(weights)), count, even)
    edges /= heaviest  # sums of any weights stay finite
    np.cumsum(edges, out=edges)
    total = edges[-1]
    if even:
        points = rng.random(count)
        points += np.arange(count)
        points *= total / max(1, count)
    else:
        gaps = rng.standard_exponential(count + 1)
        np.cumsum(gaps, out=gaps)
        gaps *= total / gaps[-1]
        points = gaps[:-1]
    drawn = _look_up(edges, points)
    if count and drawn[-1] >= (end := int(edges.searchsorted(total))):  # rounding must not reach past the last weight
        drawn[drawn > end] = end
    rng.shuffle(drawn)
    return drawn


def _look_up(edges: NDArray[np.float64], points: NDArray[np.float64]) -> Ids:
    """Between which edges ascending points lie. A piece at a time: a short stretch of edges stays in the CPU's cache,
    and each search is half as deep."""
    found = np.empty(len(points), np.int64)
    for start in range(0, len(points), _PIECE):
        piece = points[start : start + _PIECE]
        low, high = edges.searchsorted(piece[[0, -1]], side="right")
        found[start : start + _PIECE] = edges[low:high].searchsorted(piece, side="right") + low
    return found


def weighted_once(rng: np.random.Generator, weights: NDArray[np.floating], count: int) -> Ids:
    """`count` different positions, drawn one after the other in proportion to the weights that are left.

    Whose exponential clock, running at the speed of its weight, rings first is drawn first.
    """
    heaviest = float(weights.max()) if len(weights) else 0.0
    speeds = weights.astype(np.float64) / heaviest if heaviest > 0 else np.ones(len(weights))
    with np.errstate(divide="ignore", over="ignore"):
        rings = rng.standard_exponential(len(weights)) / speeds
    first: Ids
    first = rings.argpartition(count - 1)[:count] if count < len(weights) else np.arange(len(weights))
    drawn: Ids = first[rings[first].argsort()]
    return drawn


class Weighted:
    """Draws with repetition in proportion to the scores: importance sampling as it was before SHADE.

    Until something is told, and so in the first epoch, every sample is visited once (`full_start`).
    """

    foreseeable = False
    skips = False
    even = False
    full_start = True

    def __init__(
        self, samples: int, seed: int = 0, rank: int = 0, world_size: int = 1, count: int | None = None
    ) -> None:
        self.samples, self.seed, self.rank, self.world_size = samples, seed, rank, world_size
        self.count = -(-samples // world_size) if count is None else count

    def part(self, epoch: int) -> float:
        return 1.0

    def draw(self, epoch: int, known: Knowledge) -> Ids:
        if self._starts(known):
            every = Shuffle(self.samples, self.seed).draw(epoch, known)
            return np.resize(every, self.count * self.world_size)[self.rank :: self.world_size]
        return weighted(epoch_rng(self.seed, epoch, 1 + self.rank), known.scores, self.count, self.even)

    def visits(self, epoch: int, known: Knowledge) -> NDArray[np.floating]:
        """How many visits of each sample this rank expects, once there is something to draw by; `count` in all."""
        return _shares(known.scores, self.count)

    def weights(self, epoch: int, known: Knowledge) -> Scores | None:
        if self._starts(known):
            return None
        visits = self.visits(epoch, known)
        with np.errstate(divide="ignore"):
            weights = (self.count / len(visits) / visits).astype(np.float32)
        weights[visits == 0] = 0  # they do not come
        return weights

    def arrange(self, epoch: int, drawn: Ids, known: Knowledge, cache: View) -> Ids:
        return drawn

    def _starts(self, known: Knowledge) -> bool:
        """Whether there is nothing to draw by yet, or nobody who could tell."""
        return len(known.scores) == 0 or (self.full_start and not known.told)


class PADS(Weighted):
    """Priority-based adaptive data sampling: drawn by score, and what is cached visited several times.

    The epoch keeps its length: repeats of cached samples take the place of visits to samples that are not cached. Of
    those, the ones unseen for `explore` epochs stay, and at least the share `fresh`, different samples first. Hits and
    misses are spread evenly, and repeats of a sample lie far apart as a rule. In an epoch after a steep decline of the
    loss, or while accuracy stagnates, nothing is repeated.
    """

    even = True
    hits_first = False

    def __init__(
        self,
        samples: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        count: int | None = None,
        *,
        repetition: float = REPETITION,
        explore: int | None = EXPLORE,
        fresh: float = FRESH,
    ) -> None:
        super().__init__(samples, seed, rank, world_size, count)
        if not 1 <= repetition <= 10:
            raise ConfigError(f"repetition={repetition}: give a number from 1 (none) to 10")
        if explore is not None and explore < 1:
            raise ConfigError(f"explore={explore}: give a number of epochs, or None to leave samples unseen for ever")
        if not 0 <= fresh <= 1:
            raise ConfigError(f"fresh={fresh}: give a share of the misses, from 0 to 1")
        self.repetition, self.explore, self.fresh = repetition, explore, fresh

    def draw(self, epoch: int, known: Knowledge) -> Ids:
        if self._starts(known):
            return super().draw(epoch, known)
        rng = epoch_rng(self.seed, epoch, 1 + self.rank)
        stale = self._stale(epoch, known)[: self.count]
        drawn = weighted(rng, known.scores, self.count - len(stale), self.even)
        if len(stale):
            drawn = np.concatenate([stale, drawn])
            rng.shuffle(drawn)
        return drawn

    def visits(self, epoch: int, known: Knowledge) -> NDArray[np.floating]:
        stale = self._stale(epoch, known)[: self.count]
        visits = _shares(known.scores, self.count - len(stale))
        visits[stale] += 1
        return visits

    def weights(self, epoch: int, known: Knowledge) -> Scores | None:
        if self.repetition > 1:
            raise ConfigError(
                "weights=True: how often a sample comes is not known where those that are cached are repeated; take "
                "recipe 'augury', or 'shade-1'"
            )
        return super().weights(epoch, known)

    def arrange(self, epoch: int, drawn: Ids, known: Knowledge, cache: View) -> Ids:
        times = 1.0 if calm(known) else self.repetition
        if times == 1 or not known.told:
            return drawn
        rng = epoch_rng(self.seed, epoch, ARRANGING + self.rank)
        held = cache.resident[drawn]
        hits, misses = drawn[held], drawn[~held]
        stale = self._unseen(epoch, known.seen[misses])
        room = len(drawn) - max(math.ceil(self.fresh * len(misses)), int(np.count_nonzero(stale)))
        hits = _repeat(rng, hits, min(round(times * len(hits)), room))
        misses = rng.permutation(self._first(misses, stale)[: len(drawn) - len(hits)])
        return np.concatenate([hits, misses]) if self.hits_first else _interleave(rng, hits, misses)

    def _unseen(self, epoch: int, seen: NDArray[np.int32]) -> Mask:
        """For how long is too long?"""
        return seen < epoch - self.explore if self.explore is not None else np.zeros(len(seen), np.bool_)

    def _stale(self, epoch: int, known: Knowledge) -> Ids:
        """Whom this rank must visit, the longest unseen first. Each rank looks after its own part of the ids."""
        mine = known.seen[self.rank :: self.world_size]
        stale = np.flatnonzero(self._unseen(epoch, mine))
        return stale[mine[stale].argsort(kind="stable")] * self.world_size + self.rank

    def _first(self, misses: Ids, stale: Mask) -> Ids:
        """In the order in which they stay if not all can: the stale, then one visit of each sample, of those drawn
        most often first, then their other visits; else as drawn."""
        _, first, often = np.unique(misses, return_index=True, return_counts=True)
        rank = np.ones(len(misses), np.int64)
        rank[first] = -often
        rank[stale] = -len(misses) - 1
        return misses[rank.argsort(kind="stable")]


class PaperPADS(PADS):
    """As the paper's public code: independent draws from the first epoch on, all hits before all misses, nothing
    explored, no share kept for what is not cached, and what does not fit cut off as it was drawn."""

    even = False
    full_start = False
    hits_first = True

    def __init__(
        self, samples: int, seed: int = 0, rank: int = 0, world_size: int = 1, count: int | None = None
    ) -> None:
        super().__init__(samples, seed, rank, world_size, count, explore=None, fresh=0.0)

    def _first(self, misses: Ids, stale: Mask) -> Ids:
        return misses


def _shares(weights: NDArray[np.floating], count: float) -> NDArray[np.float64]:
    """So many visits in proportion to weights; where none has any, to all alike."""
    shares = weights.astype(np.float64)
    if not shares.any():
        shares[:] = 1
    shares *= count / shares.sum()
    return shares


def calm(known: Knowledge) -> bool:
    """Whether repetition would bias training now: the loss has just fallen steeply, or accuracy does not rise."""
    losses, accuracies = known.loss_curve(), known.accuracies
    steep = len(losses) > 1 and losses[-1] < (1 - STEEP) * losses[-2]
    stagnant = len(accuracies) > STAGNANT and accuracies[-1] <= (1 + GAIN) * accuracies[-1 - STAGNANT]
    return steep or stagnant


def _repeat(rng: np.random.Generator, hits: Ids, count: int) -> Ids:
    """So many visits of the hits, pass after pass, each in an order of its own: repeats lie far apart."""
    passes = -(-count // max(1, len(hits)))
    return np.concatenate([hits[:0], *(rng.permutation(hits) for _ in range(passes))])[:count]


def _interleave(rng: np.random.Generator, *parts: Ids) -> Ids:
    """The parts spread evenly over the whole, each in its own order: every minibatch costs about the same reads."""
    places = [(np.arange(len(part)) + rng.random(len(part))) / max(1, len(part)) for part in parts]
    merged: Ids = np.concatenate(parts)[np.concatenate(places).argsort(kind="stable")]
    return merged
