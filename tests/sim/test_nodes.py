"""The simulated cluster: closed forms, bounds that hold always, and a slow, obvious model that steps through time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.sim import nodes
from augury.sim.model import SOURCE, STAGING, Throughput, local, remote
from augury.sim.nodes import run, simulate
from augury.sim.outcome import Reads, computing
from augury.sim.strategies import NEVER, PUBLISHED, STRATEGIES, DoesNotFit, Held, access_strings
from clusters import scenario

CLEAN = tuple(STRATEGIES)


def planned(policy, world, seed=0):
    """A plan, or None where there is none."""
    strategy, options = STRATEGIES[policy]
    try:
        return strategy(world, access_strings(world, seed), seed, **options)
    except DoesNotFit:
        return None


# -- closed forms: samples of 2 MB; per sample 0.2 s from the source, 0.1 s to transform, 0.5 s to compute


def constant(samples=12, batch=4, **changed):
    return scenario([2.0] * samples, batch, **changed)


def test_the_lower_bound_is_computing():
    found = run("lower-bound", constant(epochs=2))
    assert found.runtime == pytest.approx(24 * 0.5)
    assert found.ends.tolist() == pytest.approx([2, 4, 6, 8, 10, 12])
    assert found.stall == pytest.approx(0, abs=1e-9)
    assert found.reads == Reads()


def test_the_lower_bound_waits_for_the_slowest_node():
    world = scenario([1.0, 2, 3, 4], 2, nodes=2)
    (order,) = [np.concatenate([access.ids for access in access_strings(world, 0)]).reshape(2, 2).T]
    expected = sum(max(world.sizes[batch]) for batch in order) / 4
    assert run("lower-bound", world).runtime == pytest.approx(expected)


def test_naive_reads_transforms_and_computes_one_after_the_other():
    found = run("naive", constant())
    assert found.runtime == pytest.approx(12 * (0.2 + 0.1 + 0.5))
    assert found.stall == pytest.approx(12 * (0.2 + 0.1))
    assert found.stalls.tolist() == pytest.approx([1.2] * 3)
    assert found.reads == Reads(source=12)


def test_naive_uses_one_thread_whatever_there_is():
    assert run("naive", constant(threads=3)).runtime == run("naive", constant()).runtime


def test_naive_on_two_nodes_waits_for_the_slower():
    # Both read at once, the first at 10 and the second at 5 MB/s; then both compute.
    found = run("naive", constant(samples=2, batch=2, nodes=2))
    assert found.runtime == pytest.approx(0.4 + 0.1 + 0.5)
    # The first is ready to read again 0.2 s earlier, but there is a barrier.
    twice = run("naive", constant(samples=4, batch=2, nodes=2))
    assert twice.runtime == pytest.approx(2 * found.runtime)
    assert twice.ends.tolist() == pytest.approx([1.0, 2.0])


def test_staging_is_bound_by_computing():
    found = run("staging", constant())
    assert found.runtime == pytest.approx(0.3 + 12 * 0.5)
    assert found.stall == pytest.approx(0.3)


def test_staging_is_bound_by_one_thread():
    found = run("staging", constant(compute=1000.0))
    assert found.runtime == pytest.approx(12 * 0.3 + 0.002)


def test_staging_is_bound_by_the_source():
    # Three threads read at a third of the rate each, and transform in parallel: 0.6 + 0.1 s for three.
    found = run("staging", constant(compute=1e6, threads=3, samples=300, batch=300))
    assert found.runtime == pytest.approx(100 * 0.7, rel=0.01)


def test_a_staging_buffer_for_one_sample():
    # Read while the one before is computed on: 0.3 s, then 0.5 s each.
    found = run("staging", constant(capacities=(2.0,)))
    assert found.runtime == pytest.approx(0.3 + 12 * 0.5)
    # Computing takes 0.1 s: the room is free when training takes the sample.
    assert run("staging", constant(capacities=(2.0,), compute=20.0)).runtime == pytest.approx(12 * 0.3 + 0.1)


@pytest.mark.parametrize("capacity", [0.0, 1.0, 2.0, 3.9])
def test_more_threads_do_not_help_a_buffer_for_one_sample(capacity):
    one = run("staging", constant(capacities=(capacity,), compute=1000.0))
    many = run("staging", constant(capacities=(capacity,), compute=1000.0, threads=4))
    # What a thread reads, however large, has the buffer to itself until it is consumed.
    assert one.runtime == many.runtime == pytest.approx(12 * 0.3 + 0.002)


def test_two_threads_and_room_for_two():
    # Both begin at once: 0.3 s and 0.5 s (the second shares the source); training takes each when it is there.
    found = run("staging", constant(samples=2, batch=2, capacities=(4.0,), compute=1000.0, threads=2))
    assert found.runtime == pytest.approx(0.5 + 0.002)


def test_memory_of_this_node():
    # Filled beside training: each sample is read from the source once, and from memory ever after.
    found = run("lbann-dynamic", constant(epochs=3, capacities=(100.0, 24.0)))
    assert found.runtime == pytest.approx(0.3 + 36 * 0.5)
    assert found.reads == Reads(source=12, local=24)
    fast = run("lbann-dynamic", constant(epochs=3, capacities=(100.0, 24.0), compute=1e9))
    assert fast.runtime == pytest.approx(12 * 0.3 + 24 * (0.02 + 0.1))


def test_memory_that_is_loaded_first():
    found = run("lbann-preload", constant(capacities=(100.0, 24.0), compute=1e9))
    assert found.runtime == pytest.approx(12 * (0.2 + 0.02) + 12 * (0.02 + 0.1))
    assert found.stalls[0] == pytest.approx(12 * 0.22 + 4 * 0.12)
    assert found.reads == Reads(source=12, local=12)


def test_memory_of_a_peer():
    # Node 1 holds both samples that node 0 reads: 2 MB over a network of 50 MB/s.
    world = constant(samples=4, batch=4, nodes=2, capacities=(100.0, 100.0), compute=1e9, source=Throughput({1: 0.1}))
    plan = planned("staging", world)
    ids = [access.ids for access in plan.accesses]
    none, far = np.empty(0, np.int64), np.concatenate(ids)
    plan.held = [Held([none, none], [np.empty(0)] * 2), Held([none, far], [np.empty(0), np.zeros(4)])]
    plan.from_peers = True
    found = simulate(world, plan)
    assert found.reads == Reads(remote=2, local=2)
    assert found.runtime == pytest.approx(2 * (2 / 50 + 0.1))
    plan.from_peers = False
    assert simulate(world, plan).reads == Reads(source=2, local=2)


def test_hdmlp_reads_everything_once_where_all_fits():
    found = run("hdmlp", constant(epochs=4, nodes=2, samples=40, batch=4, capacities=(8.0, 1000.0)))
    assert found.reads.source <= 40 + 2  # two nodes may begin to read one sample at the same time
    assert run("hdmlp", constant(epochs=4, nodes=2, samples=40, batch=4, capacities=(8.0,))).reads.source == 160


def test_progress_is_told_after_every_batch():
    told = []
    run("staging", constant(epochs=2), progress=lambda done, of: told.append((done, of)))
    assert told == [(batch, 6) for batch in range(1, 7)]


def test_who_has_no_part_in_a_batch_does_not_hold_up_the_others():
    alone = run("staging", constant(nodes=1))
    assert run("staging", constant(nodes=7)).runtime == alone.runtime  # the last node gets all four
    assert run("naive", constant(nodes=7)).runtime == run("naive", constant(nodes=1)).runtime


def test_strategies_without_the_storage_that_they_need():
    none = {name for name in CLEAN if run(name, constant(capacities=(8.0,))) is None}
    assert none == set(PUBLISHED[4:])
    memory = {name for name in CLEAN if run(name, constant(capacities=(8.0, 100.0))) is None}
    assert memory == {"parallel-staging", "locality-aware"}
    nothing = {name for name in CLEAN if run(name, constant(capacities=(8.0, 0.0, 0.0))) is None}
    assert nothing == {"deepio-opportunistic", "parallel-staging", "lbann-dynamic", "lbann-preload"}


# -- always


def worlds(whole=False, rooms=(0.0, 1.0, 2.0, 5.0, 9.0, 30.0)):
    """Clusters of all shapes. `whole`: in numbers that give whole seconds."""
    size = st.integers(1, 3).map(float) if whole else st.floats(0.1, 3)
    capacity = st.sampled_from(rooms)
    rate = st.sampled_from([1.0, 0.5, 0.25] if whole else [1.0, 0.3, 7.0])
    return st.builds(
        lambda sizes, **given: scenario(sizes, **given),
        st.lists(size, min_size=5, max_size=14),
        batch=st.integers(1, 5),
        epochs=st.integers(1, 3),
        distribution=st.sampled_from(["uniform", "uniform", "whole", "imbalanced"]),
        drop_last=st.booleans(),
        nodes=st.integers(1, 3) if whole else st.integers(1, 5),
        threads=st.integers(1, 2) if whole else st.integers(1, 4),
        capacities=st.tuples(capacity, capacity, capacity),
        rates=st.tuples(st.just(8.0), rate, rate),
        compute=st.sampled_from([2.0, 1.0, 0.5] if whole else [1.0, 0.7, 100.0]),
        preprocess=st.sampled_from([1.0, 0.5]),
        network=st.sampled_from([0.0, 1.0, 0.5]),
        source=st.just(Throughput({1: 1.0}))
        if whole
        else st.sampled_from([Throughput({1: 1, 3: 2}), Throughput({1: 9})]),
    )


@settings(max_examples=60)
@given(worlds(), st.sampled_from(CLEAN), st.integers(0, 5))
def test_every_run_ends_and_none_beats_the_lower_bound(world, policy, seed):
    plan = planned(policy, world, seed)
    found = run(policy, world, seed)
    if plan is None:
        assert found is None
        return
    bound = computing(world, plan.accesses)
    assert len(found.ends) == world.batches * world.epochs
    assert (np.diff(found.ends, prepend=0.0) >= bound * (1 - 1e-9)).all()
    assert found.runtime == pytest.approx(found.stall + bound.sum())
    assert found.runtime >= plan.setup + bound.sum() * (1 - 1e-9)
    assert (found.stalls >= 0).all()
    visits = sum(len(access.ids) for access in plan.accesses)
    reads = found.reads
    if policy == "lower-bound":
        assert reads == Reads()
    elif not plan.fills:
        joined = visits - (reads.source - plan.setup_reads + reads.local + reads.remote)
        assert joined >= 0
        assert joined == 0 or policy == "lbann-dynamic"  # visited again while it is still being read
    if policy in ("naive", "staging"):
        assert reads == Reads(source=visits)
    if world.environment.nodes == 1 or world.environment.network == 0:
        assert reads.remote == 0


@settings(max_examples=40)
@given(worlds(), st.sampled_from([name for name in CLEAN if "hdmlp" in name]))
def test_a_class_never_holds_more_than_its_capacity_nor_reads_a_sample_twice(world, policy):
    plan = planned(policy, world)
    watched = _Watched(world, plan)
    found = watched.run()
    assert (np.diff(found.ends, prepend=0.0) >= computing(world, plan.accesses) * (1 - 1e-9)).all()


class _Watched(nodes._Cluster):
    """Looks at every node after every event."""

    def __init__(self, world, plan):
        super().__init__(world, plan, None)
        self.filled: set[tuple[int, int]] = set()
        self.staged = 0.0

    def _stage(self, now, at):
        super()._stage(now, at)
        node, storage = self.nodes[at], self.scenario.environment.classes[STAGING]
        self._check(node)
        # What is staged and has not been taken by training at this moment.
        inside = node.sizes[node.consumed : node.staged].tolist() + [size for when, size in node.released if when > now]
        assert sum(inside) <= storage.capacity + 1e-9 or len(inside) == 1

    def _hold(self, node, number, since):
        at = self.nodes.index(node)
        assert (at, number) not in self.filled, "read twice"
        assert node.last_use[number] >= node.staged - 1, "filled for nothing"
        self.filled.add((at, number))
        super()._hold(node, number, since)
        self._check(node)

    def _check(self, node):
        for at, storage in enumerate(self.scenario.environment.classes):
            if at != STAGING:
                held = [
                    node.sizes[node.last_use[number]]
                    for number in range(len(node.distinct))
                    if node.storage[number] == at and node.since[number] < NEVER
                ]
                assert sum(held) <= storage.capacity + 1e-5  # placed in whole bytes
                assert node.free[at] == pytest.approx(storage.capacity - sum(held), abs=1e-9)


def test_what_one_node_lets_go_of_its_peers_no_longer_read():
    """Two nodes, one after the other: what node 0 needs once only, node 1 must not get from it afterwards."""
    world = scenario(
        [1.0] * 8,
        2,
        epochs=4,
        nodes=2,
        capacities=(1.0, 8.0),
        rates=(8.0, 1.0),
        network=1.0,
        source=Throughput({1: 0.5}),
    )
    plan = planned("hdmlp-cleanup", world)
    cluster = nodes._Cluster(world, plan, None)
    cluster.run()
    held = {
        int(node.distinct[number])
        for node in cluster.nodes
        for number in range(len(node.distinct))
        if node.storage[number] == 1 and node.since[number] < NEVER
    }
    assert {id for id, since in enumerate(cluster.peers[1][1]) if since < NEVER} == held


def test_cleaning_up_makes_room_for_others():
    # Room for two of six samples, on one node: without it the same two stay.
    world = scenario([1.0] * 60, 6, epochs=3, nodes=2, capacities=(2.0, 6.0), rates=(8.0, 4.0), network=0.0)
    kept, cleaned = run("hdmlp", world), run("hdmlp-cleanup", world)
    assert cleaned.reads.local >= kept.reads.local


def test_the_order_of_filling_matters():
    # Few are used twice; by frequency they come first, although others are used before.
    world = scenario([1.0] * 40, 4, epochs=3, nodes=2, threads=1, capacities=(2.0, 40.0), compute=100.0)
    assert run("hdmlp", world).ends.tolist() != run("hdmlp-by-frequency", world).ends.tolist()


# -- a slow, obvious model


class Stepped:
    """The same cluster, in steps of half a second: at every step everyone is asked what it can do.

    For clusters in which everything takes whole seconds, but for a set-up that may take half a one.
    """

    STEP = 0.5

    def __init__(self, world, plan):
        self.world, self.plan, self.environment = world, plan, world.environment
        self.sizes = world.sizes.tolist()
        self.nodes = [_Slow(self, at) for at in range(world.environment.nodes)]
        self.source_reads: list[float] = []
        self.delivered = 0.0  # when the source, at its full rate, would be done with all that it was asked for
        self.reads = Reads(source=plan.setup_reads)

    def run(self):
        ends, now = [], 0.0
        batches = self.world.batches * self.world.epochs
        while True:
            for node in self.nodes:
                node.train(now)
            while len(ends) < batches and all(node.has_finished(len(ends), now) for node in self.nodes):
                ends.append(now)
                for node in self.nodes:
                    node.batch = len(ends)
                    node.train(now)
            if len(ends) == batches:
                return ends
            for node in self.nodes:
                node.let_go()
                while any(node.works(storage, now) for storage in range(len(self.environment.classes))):
                    pass
            now += self.STEP
            assert now < 100_000, "deadlock"

    def readers(self, now):
        return 1 + sum(end > now for end in self.source_reads)

    def rate(self, holder, now):
        return self.environment.rate(holder, self.readers(now))


class _Slow:
    def __init__(self, cluster, at):
        self.cluster, self.at = cluster, at
        access, held = cluster.plan.accesses[at], cluster.plan.held[at]
        self.ids, self.ends = access.ids.tolist(), access.ends.tolist()
        self.held = [
            dict(zip(ids.tolist(), since.tolist(), strict=True))
            for ids, since in zip(held.ids, held.since, strict=True)
        ]
        self.queues = [[id for id, since in each.items() if since == NEVER and id in self.ids] for each in self.held]
        self.place = {id: at for at, each in enumerate(self.held) for id in each}
        self.held = [{id: since for id, since in each.items() if since < NEVER} for each in self.held]
        self.refill = held.refill.tolist()
        self.batch, self.next, self.taken = 0, 0, 0
        self.busy = cluster.plan.setup
        self.buffer: dict[int, float] = {}  # position -> when it is there
        self.leaving: list[int] = []
        plan, classes = cluster.plan, cluster.environment.classes
        self.free = [
            [plan.setup if storage == STAGING else 0.0] * (each.threads if storage != STAGING or plan.stages else 1)
            for storage, each in enumerate(classes)
        ]

    def size(self, id):
        return self.cluster.sizes[id]

    def train(self, now):
        while self.busy <= now and self.taken < self.ends[min(self.batch, len(self.ends) - 1)]:
            if self.buffer.get(self.taken, NEVER) > now:
                return
            id = self.ids[self.taken]
            del self.buffer[self.taken]
            self.taken += 1
            self.busy = now + self.size(id) / self.cluster.environment.compute
            if id not in self.ids[self.taken :]:
                self.leaving.append(id)

    def has_finished(self, batch, now):
        return self.taken == self.ends[batch] and self.busy <= now

    def let_go(self):
        if self.cluster.plan.cleans:
            for id in self.leaving:
                for held in self.held:
                    held.pop(id, None)
        self.leaving = []

    def works(self, storage, now):
        """Whether a thread of a class has found something to do."""
        thread = self.free[storage].index(min(self.free[storage]))
        if self.free[storage][thread] > now or (storage != STAGING and not self.cluster.plan.fills):
            return False
        until = self.stage(now) if storage == STAGING else self.fill(storage, now)
        if until is not None:
            self.free[storage][thread] = until
        return until is not None

    def stage(self, now):
        environment, position = self.cluster.environment, self.next
        if position == len(self.ids):
            return None
        id = self.ids[position]
        if self.cluster.plan.stages:
            used = sum(self.size(self.ids[spot]) for spot in self.buffer)
            if self.buffer and used + self.size(id) > environment.classes[STAGING].capacity:
                return None
        elif self.busy > now or self.buffer or position == self.ends[self.batch]:
            return None
        there = self.get(id, now)
        place = self.place.get(id, STAGING)
        if all(id not in held for held in self.held):
            if place != STAGING:
                self.held[place][id] = there
                self.see_off(place)
            elif self.cluster.plan.guests:
                self.invite(id, there, range(STAGING + 1, len(self.held)))
        self.next += 1
        self.buffer[position] = there + self.size(id) * environment.write_seconds
        return self.buffer[position]

    def fill(self, storage, now):
        def wanted(id):
            return all(id not in held for held in self.held) and id in self.ids[self.next :]

        id = next(filter(wanted, self.queues[storage]), None)
        if id is None:
            id = next(filter(wanted, self.refill), None)
            if id is None:
                return None
            used = sum(map(self.size, self.held[storage]))
            if used + self.size(id) > self.cluster.environment.classes[storage].capacity:
                return None
        self.place[id] = storage
        self.held[storage][id] = there = self.get(id, now)
        self.see_off(storage)
        return there + self.size(id) * self.cluster.environment.write_into_seconds(storage)

    def get(self, id, now):
        """When the sample is here, from the fastest that has it at this moment."""
        cluster, network = self.cluster, self.cluster.environment.network
        choices = []
        for storage, held in enumerate(self.held):
            if id in held and held[id] > now:
                return held[id]
            if id in held:
                choices.append(local(storage))
        if cluster.plan.from_peers and network:
            for storage in range(len(self.held)):
                if any(other.lends(id, storage, now) for other in cluster.nodes if other is not self):
                    choices.append(remote(storage))  # noqa: PERF401
        if cluster.plan.from_source or not choices:
            choices.append(SOURCE)
        best = max(choices, key=lambda holder: cluster.rate(holder, now))
        done = now + self.size(id) / cluster.rate(best, now)
        setattr(cluster.reads, best.where, getattr(cluster.reads, best.where) + 1)
        if best == SOURCE:
            whole = self.size(id) / cluster.environment.source(cluster.readers(now))
            cluster.delivered = max(cluster.delivered, now) + whole
            done = max(done, cluster.delivered)
            cluster.source_reads.append(done)
        return done

    def lends(self, id, storage, now):
        """Guests may be gone any moment: other nodes do not know of them."""
        return self.place.get(id) == storage and self.held[storage].get(id, NEVER) <= now

    def room(self, storage):
        return self.cluster.environment.classes[storage].capacity - sum(map(self.size, self.held[storage]))

    def invite(self, id, since, storages):
        """A guest uses room that nobody with a place needs yet."""
        for storage in storages:
            if self.size(id) <= self.room(storage):
                self.held[storage][id] = since
                return

    def see_off(self, storage):
        """Guests leave until those with a place fit, the least often visited first."""
        guests = sorted((self.ids.count(id), id) for id in self.held[storage] if self.place.get(id) != storage)
        for _, id in guests:
            if self.room(storage) >= 0:
                return
            self.invite(id, self.held[storage].pop(id), range(storage + 1, len(self.held)))


def agrees(world, policy, seed):
    plan = planned(policy, world, seed)
    if plan is None:
        return
    slow = Stepped(world, plan)
    ends = slow.run()
    found = simulate(world, planned(policy, world, seed))
    assert found.ends.tolist() == pytest.approx(ends, rel=1e-9)
    assert found.reads == slow.reads


@settings(max_examples=100)
@given(worlds(whole=True), st.sampled_from(PUBLISHED[2:]), st.integers(0, 5))
def test_a_slow_obvious_model_agrees(world, policy, seed):
    agrees(world, policy, seed)


@settings(max_examples=100)
@given(worlds(whole=True), st.sampled_from(["naive", "staging"]), st.integers(0, 5))
def test_it_agrees_on_barriers_and_buffers(world, policy, seed):
    agrees(world, policy, seed)


@settings(max_examples=120)
@given(worlds(whole=True, rooms=(1.0, 2.0, 3.0, 5.0)), st.sampled_from(["hdmlp", *CLEAN[-2:]]), st.integers(0, 5))
def test_it_agrees_on_filling_and_leaving(world, policy, seed):
    agrees(world, policy, seed)
