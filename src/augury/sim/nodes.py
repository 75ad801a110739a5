"""Bulk-synchronous nodes that share a source: how long a training run takes under each loading strategy.

A discrete-event simulation of the HDMLP thesis's cluster (chapters 3 and 4.1), in the order of time. Each node has
threads that stage samples ahead of their use and threads that fill its storage classes; training on a node consumes
samples in order, and all nodes wait for each other after every batch. A thread that begins to read chooses the fastest
holder at that moment, and its rate is that of the moment. What differs in the published figures is in paper.py.
"""

from __future__ import annotations

from array import array
from collections import deque
from heapq import heapify, heappop, heappush

import numpy as np

from augury.sim import model, paper
from augury.sim.model import STAGING, local, remote
from augury.sim.outcome import Outcome, Progress, Reads, computing, outcome
from augury.sim.scenario import Scenario
from augury.sim.strategies import NEVER, STRATEGIES, Access, DoesNotFit, Held, Plan, access_strings

SOURCE, LOCAL, REMOTE = "source", "local", "remote"

LEAVING = -1
"""Stands among the events for a sample that leaves its storage class, where others have the class of a thread."""


def run(
    policy: str,
    scenario: Scenario,
    seed: int = 0,
    progress: Progress | None = None,
    accesses: list[Access] | None = None,
) -> Outcome | None:
    """Simulate one policy; None where it does not support the scenario."""
    strategy, options = STRATEGIES[policy]
    try:
        plan = strategy(scenario, accesses or access_strings(scenario, seed), seed, **options)
    except DoesNotFit:
        return None
    if plan.instant:
        return outcome(scenario, plan.accesses, np.cumsum(computing(scenario, plan.accesses)), Reads())
    return (paper.simulate if scenario.environment.paper else simulate)(scenario, plan, progress)


def simulate(scenario: Scenario, plan: Plan, progress: Progress | None = None) -> Outcome:
    """Run one plan."""
    return _Cluster(scenario, plan, progress).run()


class _Node:
    """One node's place in its access string, and what it holds."""

    def __init__(self, scenario: Scenario, plan: Plan, access: Access, held: Held) -> None:
        # Arrays of Python numbers: a tenth of the memory of lists, and as fast to index.
        self.sizes = array("d", scenario.sizes[access.ids].tobytes())
        self.ends = array("q", access.ends.astype(np.int64).tobytes())
        distinct, numbers, times = np.unique(access.ids, return_inverse=True, return_counts=True)
        self.distinct = array("q", distinct.astype(np.int64).tobytes())
        """The different samples that it visits, by id; from here on they are called by their number in this list."""
        self.numbers = array("q", numbers.astype(np.int64).tobytes())
        self.clock = plan.setup
        """When training here is ready for the next sample."""
        self.staged = self.consumed = 0
        self.batch_end = self.ends[0]
        self.finished = False
        self.ready: deque[float] = deque()
        """When the samples that are staged and not consumed yet are there."""
        self.released: deque[tuple[float, float]] = deque()
        """Room in the staging buffer that training gives back: when, and how much."""
        self.leaving: deque[int] = deque()
        """Who leaves its storage class next, after the last use."""
        self.times: list[int] = times.tolist()
        self.guests: list[list[tuple[int, int]]] = [[] for _ in held.ids]
        """Who uses the room of those that are still to come, per storage class: how often it is visited, its number."""
        self.parked = [0] * len(held.ids)
        """Threads of each storage class that wait for room."""
        self.free = [storage.capacity for storage in scenario.environment.classes]
        self._note_holdings(access, held)

    def _note_holdings(self, access: Access, held: Held) -> None:
        distinct = np.frombuffer(self.distinct, np.int64)
        storage, since = np.zeros(len(distinct), np.int8), np.full(len(distinct), NEVER)
        self.queues: list[deque[int]] = []
        """Per storage class: whom it is to hold and does not yet, in the order of filling."""
        for at, (ids, times) in enumerate(zip(held.ids, held.since, strict=True)):
            found = np.searchsorted(distinct, ids)
            used = np.append(distinct, -1)[found] == ids
            storage[found[used]], since[found[used]] = at, times[used]
            self.queues.append(deque(found[used & (times == NEVER)].tolist()))
        self.storage: list[int] = storage.tolist()
        self.since: list[float] = since.tolist()
        last = np.empty(len(distinct), np.int64)
        last[np.frombuffer(self.numbers, np.int64)] = np.arange(len(self.numbers))
        self.last_use = array("q", last.tobytes())
        self.refill = deque(np.searchsorted(distinct, held.refill).tolist())
        """Who comes next, into any class, once room is given back."""


class _Cluster:
    """One run."""

    def __init__(self, scenario: Scenario, plan: Plan, progress: Progress | None) -> None:
        self.scenario, self.plan, self.progress = scenario, plan, progress
        environment, classes = scenario.environment, range(len(scenario.environment.classes))
        self.environment = environment
        self.nodes = [
            _Node(scenario, plan, access, held) for access, held in zip(plan.accesses, plan.held, strict=True)
        ]
        self.unfinished, self.batch = len(self.nodes), 0
        self.ends = np.zeros(len(self.nodes[0].ends))
        self.reads = Reads(source=plan.setup_reads)
        self.write = environment.write_seconds
        self.compute = 1 / environment.compute
        self.local = [1 / environment.rate(local(at), 1) for at in classes]
        self.into = [environment.write_into_seconds(at) for at in classes]
        self.from_source: list[tuple[float, float]] = [(NEVER, NEVER)]
        """Seconds per MB from the source for one reader, and for all of them together, by their number."""
        self.source_free = 0.0
        """When the source would have delivered all that was asked of it, were it asked for one sample at a time."""
        self.reading: list[float] = []
        """When the reads from the source that are under way will end; a heap."""
        self.peers: list[tuple[float, list[float]]] = []
        """Seconds per MB from other nodes, and since when any of them holds each sample, per storage class."""
        self.copies: dict[tuple[int, int], list[float]] = {}
        """Where samples leave: since when each node holds one, by storage class and id."""
        if plan.from_peers and len(self.nodes) > 1 and environment.network > 0:
            self._note_peers(len(scenario.sizes))
        self.events = self._threads()

    def _note_peers(self, samples: int) -> None:
        for at in range(len(self.environment.classes)):
            since = np.full(samples, NEVER)
            for held in self.plan.held:
                since[held.ids[at]] = np.minimum(since[held.ids[at]], held.since[at])
            self.peers.append((1 / self.environment.rate(remote(at), 1), since.tolist()))

    def _threads(self) -> list[tuple[float, int, int]]:
        """All threads, by when they are free next: the time, their node, and the storage class they work for."""
        events = []
        for at, storage in enumerate(self.environment.classes):
            count = storage.threads if at != STAGING or self.plan.stages else 1
            start = self.plan.setup if at == STAGING else 0.0
            if at == STAGING or self.plan.fills:
                events += [(start, node, at) for node in range(len(self.nodes)) for _ in range(count)]
        heapify(events)
        return events

    def run(self) -> Outcome:
        for at in range(len(self.nodes)):
            self._consume(at)  # who has no part in the first batch has finished it
        while self.batch < len(self.ends):
            now, at, storage = heappop(self.events)
            if storage == STAGING:
                self._stage(now, at)
            elif storage == LEAVING:
                self._let_go(now, at)
            else:
                self._fill(now, at, storage)
        return outcome(self.scenario, self.plan.accesses, self.ends, self.reads)

    def _stage(self, now: float, at: int) -> None:
        """A thread of the staging buffer is free: it begins to read the next sample of the string, if there is room."""
        node = self.nodes[at]
        position = node.staged
        if position == len(node.sizes):
            return
        size = node.sizes[position]
        begin = self._room_from(now, node, size)
        if begin > now:
            if begin == NEVER:
                node.parked[STAGING] += 1
            else:
                heappush(self.events, (begin, at, STAGING))
            return
        node.staged += 1
        node.free[STAGING] -= size
        number = node.numbers[position]
        there = self._read(now, node, number, size)
        if node.since[number] == NEVER:
            if node.storage[number]:
                self._hold(node, number, there)  # it is not read again to be held
            elif self.plan.guests:
                self._invite(node, number, there)
        done = there + size * self.write
        node.ready.append(done)
        heappush(self.events, (done, at, STAGING))
        if self.plan.cleans and node.last_use[number] == position:
            self._offer_next(at, now)
        self._consume(at)

    def _room_from(self, now: float, node: _Node, size: float) -> float:
        """From when on there may be room for a node's next sample; NEVER: as soon as training has gone on."""
        if not self.plan.stages:
            return node.clock if node.staged < node.batch_end else NEVER
        while node.released and node.released[0][0] <= now:
            node.free[STAGING] += node.released.popleft()[1]
        # A sample larger than the whole buffer has it for itself.
        if size <= node.free[STAGING] or (node.staged == node.consumed and not node.released):
            return now
        return node.released[0][0] if node.released else NEVER

    def _read(self, now: float, node: _Node, number: int, size: float) -> float:
        """Read a sample from the fastest holder: when it is there."""
        if now < node.since[number] < NEVER:
            return node.since[number]  # it is being read already
        best, where = NEVER, SOURCE
        if node.since[number] <= now:
            best, where = self.local[node.storage[number]], LOCAL
        for seconds, since in self.peers[STAGING + 1 :]:
            if seconds < best and since[node.distinct[number]] <= now:
                best, where = seconds, REMOTE
        whole = NEVER
        if self.plan.from_source or where is SOURCE:
            seconds, whole = self._source_seconds(now)
            if seconds < best:
                best, where = seconds, SOURCE
        done = now + size * best
        if where is SOURCE:
            # One reader gets its share, but all together never get more than there is.
            self.source_free = max(self.source_free, now) + size * whole
            done = max(done, self.source_free)
            self.reads.source += 1
            heappush(self.reading, done)
        elif where is LOCAL:
            self.reads.local += 1
        else:
            self.reads.remote += 1
        return done

    def _fill(self, now: float, at: int, storage: int) -> None:
        """A thread of a storage class is free: it begins to read the next sample that the class is to hold."""
        node = self.nodes[at]
        waiting = _still_useful(node, node.queues[storage]) or _still_useful(node, node.refill)
        if not waiting:
            return
        number = waiting[0]
        size = node.sizes[node.last_use[number]]
        # Those that have their place here fit; of the others nobody has asked.
        if waiting is node.refill and size > node.free[storage]:
            node.parked[storage] += 1
            return
        waiting.popleft()
        if waiting is node.refill:
            self._offer_next(at, now)
        node.storage[number] = storage
        there = self._read(now, node, number, size)
        self._hold(node, number, there)  # whoever asks for it while it is written gets it from memory
        heappush(self.events, (there + size * self.into[storage], at, storage))

    def _hold(self, node: _Node, number: int, since: float) -> None:
        storage = node.storage[number]
        node.since[number] = since
        node.free[storage] -= node.sizes[node.last_use[number]]
        if self.peers:
            held, id = self.peers[storage][1], node.distinct[number]
            held[id] = min(held[id], since)
            if self.plan.cleans:
                self.copies.setdefault((storage, id), []).append(since)

        if node.free[storage] < 0:
            self._make_room(node, storage)

    def _invite(self, node: _Node, number: int, since: float, below: int = STAGING) -> None:
        """Let a sample without a place use room that nobody with one needs yet, in the fastest class that has it."""
        size = node.sizes[node.last_use[number]]
        for storage in range(below + 1, len(node.free)):
            if size <= node.free[storage]:
                node.storage[number], node.since[number] = storage, since
                node.free[storage] -= size
                heappush(node.guests[storage], (node.times[number], number))
                return

    def _make_room(self, node: _Node, storage: int) -> None:
        """Guests leave, the least often visited first; perhaps there is room for them further below."""
        guests = node.guests[storage]
        while guests and node.free[storage] < 0:
            _, number = heappop(guests)
            since, node.storage[number], node.since[number] = node.since[number], 0, NEVER
            node.free[storage] += node.sizes[node.last_use[number]]
            self._invite(node, number, since, below=storage)

    def _source_seconds(self, now: float) -> tuple[float, float]:
        """Seconds per MB for one more reader, and for all of them together."""
        reading, known = self.reading, self.from_source
        while reading and reading[0] <= now:
            heappop(reading)
        while len(known) <= len(reading) + 1:
            count = len(known)
            known.append((1 / self.environment.rate(model.SOURCE, count), 1 / self.environment.source(count)))
        return known[len(reading) + 1]

    def _consume(self, at: int) -> None:
        """Let training on a node go on as far as samples are known to come, and open batches that all have finished."""
        self._train(at)
        while self.unfinished == 0 and self.batch < len(self.ends):
            self._open_next()
            if self.batch < len(self.ends):
                for each in range(len(self.nodes)):
                    self._train(each)

    def _train(self, at: int) -> None:
        node = self.nodes[at]
        position, clock, ready = node.consumed, node.clock, node.ready
        while position < node.batch_end and ready:
            clock = max(clock, ready.popleft())
            size = node.sizes[position]
            if self.plan.stages:
                node.released.append((clock, size))
                self._wake(at, STAGING, clock)
            if self.plan.cleans and node.last_use[node.numbers[position]] == position:
                node.leaving.append(node.numbers[position])
                heappush(self.events, (clock, at, LEAVING))
            clock += size * self.compute
            position += 1
        node.consumed, node.clock = position, clock
        if position == node.batch_end and not node.finished:
            node.finished = True
            self.unfinished -= 1

    def _let_go(self, now: float, at: int) -> None:
        """A sample has had its last use: it leaves its storage class, if it is in one."""
        node = self.nodes[at]
        number = node.leaving.popleft()
        storage, since = node.storage[number], node.since[number]
        if since == NEVER:
            return
        node.since[number] = NEVER
        node.free[storage] += node.sizes[node.last_use[number]]
        if self.peers:
            id = node.distinct[number]
            copies = self.copies[storage, id]
            copies.remove(since)
            self.peers[storage][1][id] = min(copies, default=NEVER)
        self._wake(at, storage, now)

    def _offer_next(self, at: int, now: float) -> None:
        """Another may be the first to be filled next: perhaps it fits where the one before did not."""
        for storage in range(STAGING + 1, len(self.into)):
            self._wake(at, storage, now)

    def _wake(self, at: int, storage: int, now: float) -> None:
        parked = self.nodes[at].parked
        for _ in range(parked[storage]):
            heappush(self.events, (now, at, storage))
        parked[storage] = 0

    def _open_next(self) -> None:
        """All nodes have finished the batch: the slowest says when the next one begins."""
        now = max(node.clock for node in self.nodes)
        self.ends[self.batch] = now
        self.batch += 1
        if self.progress is not None:
            self.progress(self.batch, len(self.ends))
        self.unfinished = 0 if self.batch == len(self.ends) else len(self.nodes)
        for at, node in enumerate(self.nodes):
            node.clock = now
            if self.unfinished:
                node.batch_end, node.finished = node.ends[self.batch], False
                if not self.plan.stages:
                    self._wake(at, STAGING, now)


def _still_useful(node: _Node, waiting: deque[int]) -> deque[int]:
    """Whom to fill, without those at the front that are held by now or will not be staged again."""
    while waiting and (node.since[waiting[0]] < NEVER or node.last_use[waiting[0]] < node.staged):
        waiting.popleft()
    return waiting
