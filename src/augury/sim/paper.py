"""Bulk-synchronous nodes, simulated the way the thesis's figures were made (section 4.1): `--model paper`.

Differs from the default (nodes.py) as follows. Within a batch the nodes are worked through one after the other, and a
node reads ahead as far as there is room, at times that lie in the future of the others. As readers of the source
count the nodes that begin a read later than the moment in question. Threads take turns whether they are free or
not. Room in the staging buffer is given back when the next batch begins. A sample that training waits for is
read once more where that is faster than the read under way; only for this are other nodes asked, unless the strategy
stages from them.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from augury.sim.model import SOURCE, STAGING
from augury.sim.outcome import Outcome, Progress, Reads, outcome
from augury.sim.scenario import Scenario
from augury.sim.strategies import NEVER, Plan
from augury.sim.tables import Tables

NEAR = 0.1
"""Seconds within which another node's read counts while its storage classes still fill."""


class _Node:
    """What one node has staged so far, and when it last read from the source."""

    def __init__(self, samples: int, room: float, threads: int, filled: float) -> None:
        self.ready = [NEVER] * samples
        self.from_source = bytearray(samples)
        self.next = self.freed = 0
        self.room = room
        self.threads = [0.0] * threads
        self.last_read = -NEVER
        self.filled = filled
        """When its storage classes have begun their last read."""
        self.last_staged = filled

    def reads_until(self) -> float:
        """Up to when others take it for a reader of the source."""
        last = max(self.last_read, self.last_staged)
        return max(last, min(last + NEAR, self.filled))


def simulate(scenario: Scenario, plan: Plan, progress: Progress | None = None) -> Outcome:
    """Run one plan."""
    return _Run(scenario, plan).run(progress)


class _Run:
    def __init__(self, scenario: Scenario, plan: Plan) -> None:
        environment = self.environment = scenario.environment
        self.scenario, self.plan = scenario, plan
        self.tables = Tables(scenario, plan)
        nodes = environment.nodes
        self.from_source = [0.0] + [environment.read_seconds(SOURCE, readers) for readers in range(1, nodes + 1)]
        staging = environment.classes[STAGING]
        self.nodes = [
            _Node(len(access.ids), staging.capacity, staging.threads, self.tables.filled[at])
            for at, access in enumerate(plan.accesses)
        ]
        self.turn = 0
        self.reads = Reads(source=plan.setup_reads)

    def run(self, progress: Progress | None) -> Outcome:
        plan, now = self.plan, self.plan.setup
        if plan.stages:
            for at in range(len(self.nodes)):
                self._fill(at, 0.0, self._others(at))
        batches = len(plan.accesses[0].ends)
        ends = np.empty(batches)
        for batch in range(batches):
            now = ends[batch] = max(self._visit(at, batch, now) for at in range(len(self.nodes)))
            if progress is not None:
                progress(batch + 1, batches)
        return outcome(self.scenario, plan.accesses, ends, self.reads)

    def _count(self, where: str) -> None:
        setattr(self.reads, where, getattr(self.reads, where) + 1)

    def _others(self, at: int) -> list[float]:
        return sorted(node.reads_until() for other, node in enumerate(self.nodes) if other != at)

    def _visit(self, at: int, batch: int, now: float) -> float:
        """One node's batch: when it ends."""
        ends, node, sizes = self.plan.accesses[at].ends, self.nodes[at], self.tables.sizes[at]
        start, end = int(ends[batch - 1]) if batch else 0, int(ends[batch])
        others = self._others(at)
        ready, seconds = node.ready, 1 / self.environment.compute
        for position in range(start, end):
            if ready[position] <= now:
                if node.from_source[position]:
                    node.last_read = now
            else:
                now = self._demand(at, position, now, others)
            if position == start and self.plan.stages:
                node.room += sum(sizes[spot] for spot in range(node.freed, start) if ready[spot] < NEVER)
                node.freed = start
                node.next = max(node.next, start + 1)  # one too large for the buffer does not hold up the others
                self._fill(at, now, others)
            now += sizes[position] * seconds
        return now

    def _demand(self, at: int, position: int, now: float, others: list[float]) -> float:
        """When a sample is there that is not staged yet: wait for it, or read it at once."""
        node, size = self.nodes[at], float(self.tables.sizes[at][position])
        best, where = self.from_source[len(self.nodes) - bisect_left(others, now)], "source"
        near, since = self.tables.near(at, position)
        if since <= now and near < best:
            best, where = near, "local"
        for seconds, holding in self.tables.peers(at, position):
            if holding <= now and seconds < best:
                best, where = seconds, "remote"
        staged: float = node.ready[position]
        if now + size * best < staged:
            if where == "source":
                node.last_read = now
            self._count(where)
            return now + size * best
        if node.from_source[position]:
            node.last_read = staged
        return staged

    def _fill(self, at: int, now: float, others: list[float]) -> None:
        """Read ahead until the staging buffer is full; the threads take turns."""
        node, plan, sizes = self.nodes[at], self.plan, self.tables.sizes[at]
        threads = node.threads = [max(now, time) for time in node.threads]
        count, nodes, from_source = len(threads), len(self.nodes), self.from_source
        near_seconds, near_since = self.tables.near_seconds[at], self.tables.near_since[at]
        position, room, turn = node.next, node.room, self.turn
        while position < len(sizes) and sizes[position] <= room:
            size, start = sizes[position], threads[turn]
            seconds, since, where = near_seconds[position], near_since[position], "local"
            if plan.from_peers:
                for quicker, holding in self.tables.peers(at, position):
                    if holding < NEVER and quicker < seconds:
                        seconds, since, where = quicker, holding, "remote"
            if plan.from_source:
                quicker = from_source[nodes - bisect_left(others, start)]
                if since > start or quicker < seconds:
                    seconds, since, where = quicker, start, "source"
            if since < NEVER:
                done = max(since, start) + size * seconds
                threads[turn] = node.ready[position] = done
                room -= size
                self._count(where)
                if where == "source":
                    node.last_staged = start
                    node.from_source[position] = 1
            position += 1
            turn = (turn + 1) % count
        node.next, node.room, self.turn = position, room, turn
