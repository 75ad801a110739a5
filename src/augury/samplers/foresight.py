"""An order that costs the store least: what any sampler has drawn, arranged with the cache in view.

SGD needs a random order, not one particular random order. `Frugal` visits exactly what its base has drawn, as often as
drawn, but hits and misses alternate evenly, and a sample that is read and comes again comes while there is room to hold
it. docs/recipes/augury.md says which randomness is kept, and derives the share of free repeats. Nothing of a paper.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from augury.ids import Ids, Mask, Scores, by_value, frequency, several_times
from augury.knowledge import Knowledge
from augury.samplers import MakeSampler, View
from augury.samplers.importance import ARRANGING
from augury.samplers.shuffle import epoch_rng

Places = NDArray[np.int64]

SOON = 4
"""Where there is no room to wait longer, a repeat comes within so many minibatches."""
CAUTION = 0.9
"""The part of the room that is reckoned with: what comes when is only known on average."""
ATTEMPTS = 8
"""How often visits of one sample in one minibatch are parted: where they go may again be beside another."""


class Frugal:
    """What `base` draws, in an order of few reads, evenly spread. Each rank arranges for itself, by its own cache.

    An arranged order cannot be told from the seed. Loaders of recipes that learn save it; with a base that needs no
    feedback, an epoch that is resumed midway would be arranged anew.
    """

    foreseeable = False
    skips = False

    def __init__(
        self,
        samples: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        count: int | None = None,
        *,
        base: MakeSampler,
    ) -> None:
        self.samples, self.seed, self.rank, self.world_size = samples, seed, rank, world_size
        self.count = -(-samples // world_size) if count is None else count
        self.base = base(samples, seed, rank, world_size, count)

    def part(self, epoch: int) -> float:
        return self.base.part(epoch)

    def draw(self, epoch: int, known: Knowledge) -> Ids:
        drawn = self.base.draw(epoch, known)
        if not self.base.foreseeable:
            return drawn
        return np.resize(drawn, self.count * self.world_size)[self.rank :: self.world_size]

    def weights(self, epoch: int, known: Knowledge) -> Scores | None:
        return self.base.weights(epoch, known)

    def arrange(self, epoch: int, drawn: Ids, known: Knowledge, cache: View) -> Ids:
        rng = epoch_rng(self.seed, epoch, ARRANGING + self.rank)
        return arrange(rng, drawn, self.samples, cache)


class _Visits(NamedTuple):
    """An epoch's visits by what they cost, in the order of the draw."""

    held: Ids
    """Of samples that are cached when the epoch begins: hits at any time."""
    single: Ids
    """Of samples that are not cached and come once: one read each, at any time."""
    several: Ids
    """Samples that are not cached and come several times: the first visit is a read ..."""
    more: NDArray[np.int32]
    """... and so many others are hits, while the sample is held."""


class _Pace(NamedTuple):
    """How long samples that are read may wait for their repeats."""

    free: float
    """The share of them whose visits may stand anywhere in the epoch; those of the others follow each other soon."""
    start: float
    """Before this part of the epoch nothing is read that must be held: the cache is full of those to come."""


def arrange(rng: np.random.Generator, drawn: Ids, samples: int, cache: View) -> Ids:
    """The visits of an epoch in another order; see the module."""
    times = frequency(drawn, samples).astype(np.int32)
    visits = _sort_out(drawn, times, cache.resident)
    reads = _evenly(rng, len(visits.single) + len(visits.several), len(drawn))
    first, again = _place_several(rng, visits, _pace(visits, cache, len(drawn)), cache.batch_size, reads)
    order = np.empty_like(drawn)
    order[first] = visits.several
    order[again] = np.repeat(visits.several, visits.more)
    others = np.ones(len(drawn), np.bool_)
    others[first] = others[again] = False
    order[reads & others] = visits.single
    movable = np.flatnonzero(~reads & others)
    order[movable] = visits.held
    del visits, first, again, reads, others  # of a million samples each is some megabytes
    _part(rng, order, times, movable, cache.batch_size)
    return order


def _sort_out(drawn: Ids, times: NDArray[np.int32], resident: Mask) -> _Visits:
    held = resident[drawn]
    missed = drawn[~held]
    once = times[missed] == 1
    mark = np.zeros(len(times), np.bool_)  # far cheaper than np.unique
    mark[missed[~once]] = True
    several = np.flatnonzero(mark)
    return _Visits(drawn[held], missed[once], several, times[several] - 1)


def _evenly(rng: np.random.Generator, count: int, total: int) -> Mask:
    """`count` of `total` places, as even as whole numbers can be, from a random phase on."""
    steps = np.arange(total + 1)
    steps *= count
    steps += rng.integers(max(1, total))
    steps //= max(1, total)
    evenly: Mask = steps[1:] > steps[:-1]
    return evenly


def _pace(visits: _Visits, cache: View, total: int) -> _Pace:
    """A sample that waits for its repeat takes the room of a cached one that was visited for the last time, and its
    repeat the place of a hit. So the fewer are cached, the sooner must repeats follow (docs/recipes/augury.md)."""
    again = int(visits.more.sum())
    if again == 0:
        return _Pace(1, 0)
    hits = len(visits.held)
    cached = int(np.count_nonzero(np.bincount(visits.held))) if hits else 0
    twice = min(1.0, (hits - cached) / max(1, cached))
    vacant = max(0.0, cache.room - cached)
    by_room = cached * (1 - twice) * (1 + twice) / (1 + 3 * twice) + 2 * vacant
    by_reads = len(visits.single) + len(visits.several) - again
    free = CAUTION * max(0, min(by_room, hits, by_reads)) / again
    waiting = again * (1 - min(1, free)) * SOON * cache.batch_size / total
    start = max(0.0, waiting - vacant) / max(1.0, cached * (1 - twice))
    return _Pace(min(1.0, free), min(start, 0.5 * hits / (hits + again)))  # until then, there are hits without repeats


def _place_several(
    rng: np.random.Generator, visits: _Visits, pace: _Pace, batch_size: int, reads: Mask
) -> tuple[Places, Places]:
    """Where samples that are read and come again stand: their first visits, among the reads; all others, among hits."""
    total, count = len(reads), len(visits.several)
    if count == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    owner = np.repeat(np.arange(count), visits.more)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(visits.more) - visits.more, visits.more)
    length = (1 - pace.start) * total
    first = pace.start * total + rng.random(count) * np.maximum(0, length - batch_size * (1 + visits.more))
    later = pace.start * total + rng.random(len(owner)) * length
    freely = (rng.random(count) < pace.free)[owner]
    soon = first[owner] + batch_size * (nth + 1 + (SOON - 1) * rng.random(len(owner)))
    earliest = first.copy()
    np.minimum.at(earliest, owner[freely], later[freely])
    wish = np.where(freely, np.maximum(later, first[owner]), soon)
    first_places = _places(np.flatnonzero(reads), earliest)
    next_batch = (first_places[owner] // batch_size + 1) * batch_size
    return first_places, _places(np.flatnonzero(~reads), np.maximum(wish, next_batch))


def _places(places: Places, wishes: NDArray[np.float64]) -> Places:
    """For each wish a place of its own, the next one that is free; from behind where none is left."""
    wished = wishes.astype(np.int64)
    order = by_value(wished)
    at = np.arange(len(wishes))
    index = np.maximum.accumulate(places.searchsorted(wished[order]) - at) + at
    np.minimum(index, len(places) - len(wishes) + at, out=index)
    chosen = np.empty(len(wishes), np.int64)
    chosen[order] = places[index]
    return chosen


def _part(rng: np.random.Generator, order: Ids, times: NDArray[np.int32], movable: Places, batch_size: int) -> None:
    """Exchange visits of a sample that stand in one minibatch with others, as far as a few attempts can."""
    places, first_of_id = several_times(order, len(times))
    for attempt in range(ATTEMPTS):
        minibatch = places // batch_size
        doubled = places[1:][(minibatch[1:] == minibatch[:-1]) & ~first_of_id[1:]]
        if len(doubled) == 0:
            return
        # With one of the next minibatches: who waits for its repeat must not wait for long. Best with another hit.
        next_batch = (doubled // batch_size + 1) * batch_size
        single = np.flatnonzero(times[order] == 1)
        partners = _after(rng, movable, next_batch)
        far = partners - next_batch >= SOON * batch_size
        partners[far] = _after(rng, single, next_batch[far])
        if attempt >= ATTEMPTS // 2 and len(single):  # anywhere, rather than not at all
            partners = rng.choice(single, len(doubled))
        others, first = np.unique(partners, return_index=True)
        clear = (others < len(order)) & ~np.isin(others, doubled)
        one, other = doubled[first[clear]], others[clear]
        order[one], order[other] = order[other], order[one]
        # Only those that have moved can stand beside themselves now.
        moved = np.zeros(len(times), np.bool_)
        moved[order[one]] = moved[order[other]] = moved[order[doubled]] = True
        places = np.flatnonzero(moved[order])
        places = places[by_value(order[places])]
        first_of_id = np.append(True, order[places[1:]] != order[places[:-1]])


def _after(rng: np.random.Generator, places: Places, begins: Places) -> Places:
    """One of the first places from each beginning on, or of the last where that is the end; none: far beyond all."""
    if len(places) == 0:
        return np.full(len(begins), np.iinfo(np.int64).max // 2)
    at = places.searchsorted(begins) + rng.integers(0, 2 * SOON, len(begins))
    return places[np.where(at < len(places), at, len(places) - 1 - rng.integers(0, min(len(places), 64), len(begins)))]
