"""The step over stacks of policies, against a slow obvious model; counts; serving without admission."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.ids import Ids, as_ids
from augury.metrics import Counts
from augury.policies.classic import FIFO, LFU, LRU, MIN, MinIO, Random
from augury.policies.ranking import Holding
from augury.step import step

IDS = 14
batch = st.lists(st.integers(0, IDS - 1), max_size=8).map(as_ids)
KINDS = [LRU, FIFO, LFU, Random, MinIO, MIN]


def stack_of(kinds, capacities, sizes=None):
    sizes = np.ones(IDS, np.int64) if sizes is None else np.array(sizes)
    return [
        kind(sizes, room, np.random.default_rng(n))
        for n, (kind, room) in enumerate(zip(kinds, capacities, strict=True))
    ]


class TwoLRU:
    """Two LRU levels as lists, one request after the other. An id is in one of them at most."""

    def __init__(self, upper: int, lower: int) -> None:
        self.room, self.level, self.used, self.now = (upper, lower), ([], []), {}, 0

    def request(self, id: int) -> int:
        """Who held it: 0, 1, or 2 for the source."""
        self.now += 1
        self.used[id] = self.now
        holder = next((n for n in (0, 1) if id in self.level[n]), 2)
        if holder:
            if holder == 1 and self.room[0]:
                self.level[1].remove(id)
            if self.room[0] or holder == 2:
                self.put(0, id)
        return holder

    def put(self, n: int, id: int) -> None:
        if n == 2:
            return
        if self.room[n] == 0:
            return self.put(n + 1, id)
        if len(self.level[n]) == self.room[n]:
            oldest = min(self.level[n], key=self.used.__getitem__)
            self.level[n].remove(oldest)
            self.level[n].append(id)
            return self.put(n + 1, oldest)
        self.level[n].append(id)


@settings(deadline=None)
@given(st.integers(0, 4), st.integers(0, 6), st.lists(st.integers(0, IDS - 1), max_size=80))
def test_two_levels_equal_an_obvious_model(upper, lower, requests):
    model, stack = TwoLRU(upper, lower), stack_of([LRU, LRU], [upper, lower])
    for id in requests:
        done = step(stack, as_ids([id]))
        assert done.level[0] == model.request(id)
        for policy, held in zip(stack, model.level, strict=True):
            assert set(np.flatnonzero(policy.resident).tolist()) == set(held)


kinds = st.lists(st.sampled_from(KINDS), min_size=1, max_size=3)


@settings(deadline=None, max_examples=200)
@given(kinds, st.data())
def test_levels_are_exclusive_and_the_answer_says_what_changed(kinds, data):
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=IDS, max_size=IDS))
    rooms = data.draw(st.lists(st.integers(0, 20), min_size=len(kinds), max_size=len(kinds)))
    stack = stack_of(kinds, rooms, sizes)
    for asked in data.draw(st.lists(batch, max_size=12)):
        before = [policy.resident.copy() for policy in stack]
        done = step(stack, asked)
        assert sum(policy.resident.astype(int) for policy in stack).max() <= 1
        for n, id in enumerate(done.served):
            holders = [depth for depth, held in enumerate(before) if held[id]]
            assert done.level[n] == (holders[0] if holders else len(stack))
        assert done.missed.tolist() == list(dict.fromkeys(done.served[done.level == len(stack)].tolist()))
        for depth, policy in enumerate(stack):
            held = before[depth].copy()
            held[done.drops[depth]] = False
            assert before[depth][done.drops[depth]].all()
            assert not held[done.writes[depth]].any()
            held[done.writes[depth]] = True
            assert np.array_equal(held, policy.resident)
        available = set(done.missed.tolist()).union(*(np.flatnonzero(held).tolist() for held in before))
        assert set(np.concatenate(done.writes).tolist()) <= available


@settings(deadline=None)
@given(kinds, st.lists(batch, max_size=10))
def test_counts_add_up(kinds, requests):
    stack = stack_of(kinds, [3] * len(kinds))
    total = Counts()
    for asked in requests:
        counts = step(stack, asked).counts()
        assert counts.requests == len(asked)
        assert counts.hits + counts.substitutes + counts.joined + counts.misses == len(asked)
        total.add(counts)
    if total.requests:
        shares = total.shares()
        assert shares.pop("reads") == shares["misses"]
        assert sum(shares.values()) == pytest.approx(1)


@settings(deadline=None)
@given(kinds, st.lists(batch, min_size=1, max_size=6), batch)
def test_without_admission_nothing_changes(kinds, requests, last):
    stack, twin = (stack_of(kinds, [3] * len(kinds)) for _ in range(2))
    for asked in requests:
        step(stack, asked)
        step(twin, asked)
        looked = step(stack, asked, admit=False)
        assert all(len(part) == 0 for part in looked.writes + looked.drops)
    for mine, other in zip(stack, twin, strict=True):
        assert np.array_equal(mine.resident, other.resident)
    done, expected = step(stack, last), step(twin, last)
    assert np.array_equal(done.level, expected.level)
    assert all(
        np.array_equal(a, b) for a, b in zip(done.writes + done.drops, expected.writes + expected.drops, strict=True)
    )


def test_without_any_level_all_is_read_from_the_source():
    done = step([], as_ids([3, 1, 3]))
    assert done.missed.tolist() == [3, 1]
    assert done.counts() == Counts(requests=3, joined=1, misses=2)
    assert (done.writes, done.drops) == ([], [])


def test_repeats_of_a_miss_are_joined_not_hits():
    done = step(stack_of([LRU], [4]), as_ids([5, 5, 6, 5]))
    assert done.counts() == Counts(requests=4, joined=2, misses=2)
    assert done.missed.tolist() == [5, 6]


class StandIn(Holding):
    """Serves 0 instead of anything absent, if it holds 0."""

    def serve(self, ids: Ids, job: int = 0) -> Ids:
        return np.where(self.resident[ids] | ~self.resident[0], ids, 0)

    def admit(self, ids):
        kept = self._fill(ids)
        self._hold(ids[kept])
        return kept, ids[:0]


def test_stand_ins_are_counted_apart_from_hits():
    upper, lower = StandIn(np.ones(IDS, np.int64), 1), MinIO(np.ones(IDS, np.int64), 4)
    step([upper, lower], as_ids([0]))
    done = step([upper, lower], as_ids([0, 5, 6]))
    assert done.served.tolist() == [0, 0, 0]
    assert done.counts() == Counts(requests=3, hits=1, substitutes=2)


def test_a_stand_in_of_a_lower_level_is_used_only_where_nothing_is_held_above():
    upper, lower = MinIO(np.ones(IDS, np.int64), 1), StandIn(np.ones(IDS, np.int64), 1)
    upper.adopt(as_ids([7]))
    lower.adopt(as_ids([0]))
    done = step([upper, lower], as_ids([7, 5]))
    assert done.served.tolist() == [7, 0]
    assert done.level.tolist() == [0, 1]
