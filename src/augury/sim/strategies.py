"""What each node reads and what it holds: the ten loading strategies of the HDMLP thesis (section 4.1.4).

A strategy turns access strings into a `Plan`: the order in which each node visits samples (some strategies change it),
which storage class holds a sample from when on, how long training waits before it starts, and which holders the
staging buffer may be filled from. The simulator (nodes.py) then says how long that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.ids import NONE, Ids, Times, counted
from augury.knowledge import Knowledge
from augury.policies.placement import place
from augury.samplers.shuffle import Shuffle, epoch_rng
from augury.sim.model import SOURCE, STAGING, Environment, StorageClass, local, remote
from augury.sim.scenario import Scenario, divide

Moments = NDArray[np.float64]
NEVER = np.inf

RAM, SSD = 1, 2
"""Storage classes by which strategies other than HDMLP name what they use."""

BYTES = 1_000_000
"""Per MB: what is placed is counted in whole bytes, as in a live run."""

_CHANCE = 2
"""The stream of strategies that draw at random."""


class DoesNotFit(Exception):
    """The strategy does not support the scenario: the dataset is too large for it, or storage that it needs lacks."""


@dataclass
class Access:
    """What one node visits, over all epochs."""

    ids: Ids
    ends: NDArray[np.int64]
    """Where in `ids` each batch ends."""


@dataclass
class Held:
    """What one node holds: per storage class the ids in the order in which they arrive, and when each is there.

    NEVER stands for a time that the simulation has yet to find.
    """

    ids: list[Ids]
    since: list[Moments]
    refill: Ids = field(default_factory=lambda: NONE)
    """Who comes next, once room is given back."""


@dataclass
class Plan:
    """A strategy, worked out for one scenario."""

    accesses: list[Access]
    held: list[Held]
    setup: float = 0.0
    """Seconds before training starts."""
    setup_reads: int = 0
    """Samples read from the source during that time, and later to fill storage classes."""
    stages: bool = True
    """Whether samples are staged ahead of their use."""
    from_source: bool = True
    """Whether they are staged from the source, too."""
    from_peers: bool = False
    """Whether they are staged from other nodes, too."""
    fills: bool = False
    """Whether storage classes fill beside training, with threads of their own."""
    guests: bool = False
    """Whether samples that have no place in a class use the room of those that are still to come."""
    cleans: bool = False
    """Whether a sample leaves its storage class after its last use."""
    instant: bool = False
    """The lower bound: nothing takes time but training."""


def access_strings(scenario: Scenario, seed: int) -> list[Access]:
    """R of every node (Eq. 3.1): all epochs, each shuffled as a whole and cut into batches, those among the nodes."""
    samples, batch, nodes = len(scenario.sizes), scenario.batch, scenario.environment.nodes
    sampler, nothing = Shuffle(samples, seed), Knowledge.none(0)
    whole, rest = divmod(samples, batch)
    parts = divide(batch, nodes, scenario.distribution)
    last = divide(rest, nodes, scenario.distribution) if rest and not scenario.drop_last else []
    strings: list[list[Ids]] = [[] for _ in range(nodes)]
    for epoch in range(scenario.epochs):
        order = sampler.draw(epoch, nothing)
        full = order[: whole * batch].reshape(whole, batch)
        for node, string in enumerate(strings):
            string.append(full[:, parts[node]].reshape(-1))
            if last:
                string.append(order[whole * batch :][last[node]])
    accesses = []
    for node, string in enumerate(strings):
        lengths = [parts[node].stop - parts[node].start] * whole
        if last:
            lengths.append(last[node].stop - last[node].start)
        accesses.append(Access(np.concatenate(string), np.cumsum(lengths * scenario.epochs)))
    return accesses


def _nothing_held(environment: Environment) -> list[Held]:
    none = len(environment.classes)
    return [Held([NONE] * none, [np.empty(0)] * none) for _ in range(environment.nodes)]


def _arrivals(sizes: NDArray[np.float64], seconds: float, threads: int) -> Moments:
    """When samples that `threads` threads read in turn are there, at so many seconds per MB."""
    times = np.empty(len(sizes))
    for thread in range(threads):
        times[thread::threads] = np.cumsum(sizes[thread::threads]) * seconds
    return times


def _fitting(sizes: NDArray[np.float64], capacity: float) -> int:
    """How many samples, from the first on, fit."""
    return int(np.searchsorted(np.cumsum(sizes), capacity, side="right"))


def _last(times: Moments) -> float:
    return float(times.max()) if len(times) else 0.0


def lower_bound(scenario: Scenario, accesses: list[Access], seed: int) -> Plan:
    """Every sample is there when it is asked for."""
    return Plan(accesses, _nothing_held(scenario.environment), stages=False, instant=True)


def naive(scenario: Scenario, accesses: list[Access], seed: int) -> Plan:
    """Read from the source when asked for: nothing is held, nothing is read ahead."""
    return Plan(accesses, _nothing_held(scenario.environment), stages=False)


def staging(scenario: Scenario, accesses: list[Access], seed: int) -> Plan:
    """Read ahead from the source into the staging buffer (tf.data, double buffering, torch's DataLoader)."""
    return Plan(accesses, _nothing_held(scenario.environment))


def hdmlp(
    scenario: Scenario,
    accesses: list[Access],
    seed: int,
    in_order: bool = True,
    cleanup_read: bool = False,
    peers: bool = True,
) -> Plan:
    """HDMLP (section 3.2): what a node will use most often goes into its fastest storage class.

    Classes fill from the source from the start on, in the order of first access; with `in_order` off, the most often
    used first. With `cleanup_read` a sample leaves after its last use, and the next one takes its room. Without `peers`
    nodes exchange nothing.
    """
    environment, sizes = scenario.environment, scenario.sizes
    if cleanup_read and environment.paper:
        raise ConfigError("hdmlp-cleanup has no published figures: simulate it with the default model")
    held = []
    for access in accesses:
        placed, rest = _placement(access.ids, sizes, environment, in_order)
        since = [_filling(environment, at, sizes[ids]) for at, ids in enumerate(placed)]
        held.append(Held(placed, since, rest if cleanup_read else rest[:0]))
    reads = sum(len(ids) for each in held for ids in each.ids) if environment.paper else 0
    return Plan(
        accesses,
        held,
        setup_reads=reads,
        from_peers=peers and not environment.paper,
        fills=True,
        guests=not environment.paper and not cleanup_read,
        cleans=cleanup_read,
    )


def _filling(environment: Environment, storage: int, sizes: NDArray[np.float64]) -> Moments:
    """When samples that fill a storage class beside training are there: for the paper as if nothing else were read."""
    if not environment.paper:
        return np.full(len(sizes), NEVER)
    seconds = environment.fill_seconds(storage, SOURCE, environment.readers)
    return _arrivals(sizes, seconds, environment.classes[storage].threads)


def _placement(
    string: Ids, sizes: NDArray[np.float64], environment: Environment, in_order: bool
) -> tuple[list[Ids], Ids]:
    """Per storage class who is to be held, in the order of filling; and the others, the most often used first."""
    order, times = counted(string)
    if environment.paper:
        return _published_placement(order, times, sizes, environment, in_order)
    classes = [
        # A class that is slower than the source is not used, as in a live run.
        replace(storage, capacity=0.0) if _slower(environment, at) else storage
        for at, storage in enumerate(environment.classes[STAGING + 1 :], STAGING + 1)
    ]
    costs = np.zeros(len(sizes), np.int64)
    costs[order] = np.rint(sizes[order] * BYTES)
    placed = place(order, times, [costs] * len(classes), [round(storage.capacity * BYTES) for storage in classes])
    best = order[np.argsort(-times, kind="stable")]
    if not in_order:
        placed = [best[np.isin(best, ids)] for ids in placed]
    rest = best[~np.isin(best, np.concatenate([NONE, *placed]))]
    return [NONE, *placed], rest


def _slower(environment: Environment, storage: int) -> bool:
    return environment.fastest([local(storage), SOURCE], environment.readers) is SOURCE


def _published_placement(
    order: Ids, times: Times, sizes: NDArray[np.float64], environment: Environment, in_order: bool
) -> tuple[list[Ids], Ids]:
    """What the published figures rest on: of equals those with lower ids, and then the order is sorted in pieces."""
    best = order[np.lexsort((order, -times))]
    if in_order:
        first = np.empty(len(sizes), np.int64)
        first[order] = np.arange(len(order))
        best = _sorted_in_pieces(best, first, sizes, environment)
    placed = [NONE]
    for storage in environment.classes[STAGING + 1 :]:
        count = _fitting(sizes[best], storage.capacity)
        placed.append(best[:count])
        best = best[count:]
    return placed, best


def _sorted_in_pieces(best: Ids, first: NDArray[np.int64], sizes: NDArray[np.float64], environment: Environment) -> Ids:
    """By first access within pieces of the classes' sizes, counted from the staging buffer on.

    So the pieces are one class behind the classes that they fill.
    """
    pieces = []
    for storage in environment.classes:
        count = _fitting(sizes[best], storage.capacity) + 1
        piece, best = best[:count], best[count:]
        pieces.append(piece[np.argsort(first[piece])])
    return np.concatenate([*pieces, best])


def deepio(scenario: Scenario, accesses: list[Access], seed: int, opportunistic: bool = False) -> Plan:
    """DeepIO: each node loads a part of the dataset into memory before training; nodes exchange what they hold.

    Ordered, what no node holds is read from the source (for the paper only when asked for). Opportunistic, only what
    is held is visited.
    """
    parts = _parts(scenario, RAM)
    held, setup = _loaded(scenario, parts, RAM)
    if opportunistic:
        pool, rng = np.concatenate(parts), epoch_rng(seed, 0, _CHANCE)
        accesses = [Access(_drawn_from(pool, len(each.ids), rng), each.ends) for each in accesses]
    return Plan(
        accesses,
        held,
        setup,
        sum(map(len, parts)),
        from_source=not scenario.environment.paper and not opportunistic,
        from_peers=True,
    )


def parallel_staging(scenario: Scenario, accesses: list[Access], seed: int) -> Plan:
    """Parallel data staging: before training each node copies its own part onto its SSD, then visits that alone.

    What room is left takes copies of other nodes' parts.
    """
    environment, sizes = scenario.environment, scenario.sizes
    parts = _parts(scenario, SSD)
    held, setup = _loaded(scenario, parts, SSD)
    others = float(sizes.sum()) - min(float(sizes[part].sum()) for part in parts)
    room = min(others, environment.classes[SSD].capacity - min(float(sizes[part].sum()) for part in parts))
    if environment.nodes > 1 and environment.network > 0:
        seconds = environment.fill_seconds(SSD, remote(SSD), environment.readers)
        setup += room / environment.classes[SSD].threads * seconds
    rng = epoch_rng(seed, 0, _CHANCE)
    visits = [
        Access(_drawn_from(part, len(each.ids), rng), each.ends) for part, each in zip(parts, accesses, strict=True)
    ]
    return Plan(visits, held, setup, sum(map(len, parts)), from_source=False)


def lbann(scenario: Scenario, accesses: list[Access], seed: int, preload: bool = False) -> Plan:
    """LBANN's data store: all of the dataset in the memory of all nodes, loaded before or during the first epoch."""
    environment, sizes = scenario.environment, scenario.sizes
    capacity = _storage(environment, RAM).capacity
    if sizes.sum() > environment.nodes * capacity:
        raise DoesNotFit
    if preload:
        parts = _parts(scenario, RAM)
        held, setup = _loaded(scenario, parts, RAM)
        return Plan(accesses, held, setup, sum(map(len, parts)), from_source=False, from_peers=True)
    epochs = [access.ids[: access.ends[scenario.batches - 1]] for access in accesses]
    parts = [first[: _fitting(sizes[first], capacity)] for first in epochs]
    held, _ = _loaded(scenario, parts, RAM)
    for node, part in enumerate(parts):
        held[node].since[RAM] = _filling(environment, RAM, sizes[part])
    reads = sum(map(len, parts)) if environment.paper else 0
    return Plan(accesses, held, 0.0, reads, from_source=not environment.paper, from_peers=True)


def locality_aware(scenario: Scenario, accesses: list[Access], seed: int) -> Plan:
    """Locality-aware loading: each node loads its part before training, and of every batch visits what it holds."""
    parts = _parts(scenario, SSD)
    held, setup = _loaded(scenario, parts, SSD)
    if scenario.distribution != "whole":  # there every node has to visit all of a batch
        accesses = _exchanged(accesses, parts, len(scenario.sizes))
    return Plan(accesses, held, setup, sum(map(len, parts)), from_peers=True)


def _exchanged(accesses: list[Access], parts: Sequence[Ids], samples: int) -> list[Access]:
    """Of every batch each node gets what it holds, up to as much as it had; the others make up what lacks."""
    nodes = len(parts)
    owner = np.full(samples, nodes, np.int32)
    for node, part in enumerate(parts):
        owner[part] = node
    strings = [access.ids.copy() for access in accesses]
    begins = [np.concatenate([[0], access.ends[:-1]]) for access in accesses]
    for batch in range(len(accesses[0].ends)):
        spans = [slice(begin[batch], access.ends[batch]) for begin, access in zip(begins, accesses, strict=True)]
        ids = np.concatenate([access.ids[span] for access, span in zip(accesses, spans, strict=True)])
        ids = ids[np.argsort(owner[ids], kind="stable")]
        owners = np.searchsorted(owner[ids], np.arange(nodes + 1))
        lengths = [span.stop - span.start for span in spans]
        own = [min(length, owners[node + 1] - owners[node]) for node, length in enumerate(lengths)]
        kept = [ids[owners[node] : owners[node] + own[node]] for node in range(nodes)]
        spare = np.concatenate(
            [ids[owners[node] + own[node] : owners[node + 1]] for node in range(nodes)] + [ids[owners[-1] :]]
        )
        for node, span in enumerate(spans):
            lacks = lengths[node] - own[node]
            strings[node][span] = np.concatenate([kept[node], spare[:lacks]])
            spare = spare[lacks:]
    return [Access(string, access.ends) for string, access in zip(strings, accesses, strict=True)]


def _fill(environment: Environment, storage: int) -> float:
    readers = environment.nodes if environment.paper else environment.nodes * environment.classes[storage].threads
    return environment.fill_seconds(storage, SOURCE, readers)


def _storage(environment: Environment, storage: int) -> StorageClass:
    if storage >= len(environment.classes):
        raise DoesNotFit
    return environment.classes[storage]


def _parts(scenario: Scenario, storage: int) -> list[Ids]:
    """The dataset in equal pieces, one per node, each as far as it fits."""
    nodes, sizes = scenario.environment.nodes, scenario.sizes
    capacity = _storage(scenario.environment, storage).capacity
    pieces = pairwise(len(sizes) * node // nodes for node in range(nodes + 1))
    return [np.arange(start, start + _fitting(sizes[start:end], capacity)) for start, end in pieces]


def _loaded(scenario: Scenario, parts: Sequence[Ids], storage: int) -> tuple[list[Held], float]:
    """These parts in one storage class of each node from the start on, and the seconds that loading them takes."""
    environment = scenario.environment
    held = _nothing_held(environment)
    threads, seconds = environment.classes[storage].threads, _fill(environment, storage)
    ready = [_last(_arrivals(scenario.sizes[part], seconds, threads)) for part in parts]
    for node, part in enumerate(parts):
        held[node].ids[storage], held[node].since[storage] = part, np.zeros(len(part))
    return held, max(ready)


def _drawn_from(pool: Ids, count: int, rng: np.random.Generator) -> Ids:
    """So many samples of a pool, each as often as any other: one shuffle of it after another."""
    if count and not len(pool):
        raise DoesNotFit
    rounds = -(-count // max(1, len(pool)))
    return np.concatenate([NONE, *(rng.permutation(pool) for _ in range(rounds))])[:count]


Strategy = Callable[..., Plan]

STRATEGIES: dict[str, tuple[Strategy, dict[str, Any]]] = {
    "lower-bound": (lower_bound, {}),
    "naive": (naive, {}),
    "hdmlp": (hdmlp, {}),
    "staging": (staging, {}),
    "deepio-ordered": (deepio, {}),
    "deepio-opportunistic": (deepio, {"opportunistic": True}),
    "parallel-staging": (parallel_staging, {}),
    "lbann-dynamic": (lbann, {}),
    "lbann-preload": (lbann, {"preload": True}),
    "locality-aware": (locality_aware, {}),
    # Variants of HDMLP that the thesis looked at as well.
    "hdmlp-by-frequency": (hdmlp, {"in_order": False}),
    "hdmlp-cleanup": (hdmlp, {"cleanup_read": True}),
    # As the live recipe does it: ranks exchange nothing.
    "hdmlp-alone": (hdmlp, {"peers": False}),
}
PUBLISHED = tuple(STRATEGIES)[:10]
"""Those of Tables 5.1 to 5.4."""
