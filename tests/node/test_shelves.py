"""The memory shelf against a slow obvious model: bytes, room, charges, the order of leaving; and memory given back."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from augury.node.shelves import MATRICES, SMALL, MemoryShelf, keys_of

SIZES = (0, 1, 8, 24, 24, 24, 100, 1000)


class Someone:
    """A job, as a shelf knows it."""

    def __init__(self):
        self.charged = {"ram": 0.0, "disk": 0.0}


def content(number, size):
    return np.random.default_rng([number, size]).bytes(size)


def key(data):
    return blake3(data).digest()


POOL = {key(data): data for number in range(10) for data in (content(number, size) for size in SIZES)}


class Books(RuleBasedStateMachine):
    """Each digest with its bytes and its holders, and the idle in the order in which they were left."""

    @initialize(capacity=st.integers(0, 1500), jobs=st.integers(1, 4))
    def begin(self, capacity, jobs):
        self.shelf, self.jobs = MemoryShelf(capacity), [Someone() for _ in range(jobs)]
        self.holders, self.idle = {}, []

    def size(self):
        return sum(len(POOL[key]) for key in self.holders)

    def draw_present(self, data):
        return data.draw(st.sampled_from(sorted(self.holders)))

    @rule(data=st.data(), small=st.booleans())
    def put(self, data, small):
        key = data.draw(st.sampled_from(sorted(POOL)))
        job = data.draw(st.sampled_from(self.jobs))
        if key in self.holders:
            return
        size = len(POOL[key])
        room = self.shelf.capacity - sum(len(POOL[each]) for each in self.holders if self.holders[each])
        entry = self.shelf.put(key, POOL[key], job, small)
        assert (entry is not None) == (size <= room), "what is idle makes room, what is held does not"
        while self.idle and self.size() + size > self.shelf.capacity:
            del self.holders[self.idle.pop(0)]
        if entry is not None:
            self.holders[key] = [job]

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def hold(self, data):
        key, job = self.draw_present(data), data.draw(st.sampled_from(self.jobs))
        self.shelf.hold(self.shelf.entries[key], job)
        self.holders[key].append(job)
        if key in self.idle:
            self.idle.remove(key)

    @precondition(lambda self: any(self.holders.values()))
    @rule(data=st.data(), keep=st.booleans())
    def release(self, data, keep):
        key = data.draw(st.sampled_from(sorted(key for key, jobs in self.holders.items() if jobs)))
        job = data.draw(st.sampled_from(self.holders[key]))
        self.holders[key].remove(job)
        last = not self.holders[key]
        assert self.shelf.release(self.shelf.entries[key], job, keep) == last
        if last and keep:
            self.idle.append(key)
        elif last:
            del self.holders[key]

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def discard(self, data):
        key = self.draw_present(data)
        self.shelf.discard(self.shelf.entries[key])
        del self.holders[key]
        if key in self.idle:
            self.idle.remove(key)

    @rule()
    def trim(self):
        self.shelf.trim()
        assert self.shelf.used == self.size()

    @invariant()
    def bytes_are_right(self):
        if not hasattr(self, "shelf"):
            return
        assert self.shelf.entries.keys() == self.holders.keys()
        for key, entry in self.shelf.entries.items():
            assert self.shelf.bytes_of(entry) == POOL[key]
        for size in set(SIZES) - {0}:
            rows = [(entry.row, key) for key, entry in self.shelf.entries.items() if entry.row and entry.cost == size]
            out = np.full((len(rows) + 1, size), 255, np.uint8)
            self.shelf.gather(size, np.array([0, *(row for row, _ in rows)]), out)
            assert not out[0].any(), "row 0 is nobody's"
            for line, (_, key) in zip(out[1:], rows, strict=True):
                assert line.tobytes() == POOL[key]

    @invariant()
    def books_are_right(self):
        if not hasattr(self, "shelf"):
            return
        assert self.size() <= self.shelf.used <= self.shelf.capacity
        assert self.shelf.idle == len(self.idle)
        for job in self.jobs:
            parts = [len(POOL[key]) * jobs.count(job) / len(jobs) for key, jobs in self.holders.items() if jobs]
            assert job.charged["ram"] == pytest.approx(sum(parts), abs=1e-6)


Books.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestBooks = Books.TestCase


def test_idle_content_of_one_size_makes_room_for_another_one_by_one():
    shelf, ended, job = MemoryShelf(100 * 24), Someone(), Someone()
    old = [content(number, 24) for number in range(100)]
    for data in old:
        shelf.release(shelf.put(key(data), data, ended, small=True), ended, keep=True)
    new = [content(number, 48) for number in range(10)]
    for data in new:
        assert shelf.put(key(data), data, job, small=True) is not None
    assert [key(each) in shelf.entries for each in old] == [False] * 20 + [True] * 80
    assert all(key(each) in shelf.entries for each in new)


def test_a_new_row_takes_the_place_of_the_oldest_idle_one():
    shelf, ended, job = MemoryShelf(10 * 24 + 5), Someone(), Someone()
    old = [content(number, 24) for number in range(10)]
    for data in old:
        shelf.release(shelf.put(key(data), data, ended, small=True), ended, keep=True)
    data = content(99, 24)
    entry = shelf.put(key(data), data, job, small=True)
    assert entry is not None
    assert [key(each) in shelf.entries for each in old] == [False] + [True] * 9
    assert shelf.used == 240


def test_rows_that_come_go_and_are_moved_keep_their_bytes():
    shelf, jobs, rng, held = MemoryShelf(6000), [Someone(), Someone()], np.random.default_rng(0), {}
    for turn in range(1500):
        data = rng.bytes(int(rng.choice([20, 20, 20, 50, 51])))
        job = jobs[turn % 2]
        if (entry := shelf.put(key(data), data, job, small=turn % 50 > 0)) is not None:
            held[data] = entry, job
        while held and rng.random() < 0.5:
            chosen = list(held)[int(rng.integers(0, len(held)))]
            shelf.release(*held.pop(chosen), keep=rng.random() < 0.2)
        if turn % 7 == 0:
            shelf.trim()
        assert all(shelf.bytes_of(entry) == data for data, (entry, _) in held.items())
        assert sum(map(len, held)) <= shelf.used <= 6000
    for entry, job in held.values():
        shelf.release(entry, job)
    for entry in list(shelf.entries.values()):
        shelf.discard(entry)
    shelf.trim()
    assert shelf.used == 0


@pytest.mark.parametrize("size", [SMALL, SMALL + 1])
def test_sizes_around_the_limit_of_a_matrix(size):
    shelf, job = MemoryShelf(3 * size), Someone()
    for number in range(3):
        data = content(number, size)
        entry = shelf.put(key(data), data, job, small=True)
        assert shelf.bytes_of(entry) == data
        assert (entry.row > 0) == (size <= SMALL), "a large one is copied outside the lock"
    assert shelf.used == 3 * size
    assert shelf.put(key(b"x"), b"x", job, small=True) is None


def test_a_batch_of_one_size_that_nobody_has_is_zeros():
    out = np.full((3, 7), 9, np.uint8)
    MemoryShelf(100).gather(7, np.zeros(3, np.int64), out)
    assert not out.any()


def status(name):
    """Bytes, of this process."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


MB = 1 << 20


def test_memory_of_rows_is_given_back():
    """Private memory: of shared memory the system keeps what a process seems to have given back."""
    shelf, job = MemoryShelf(96 * MB), Someone()
    before, shared = status("RssAnon"), status("RssShmem")
    size = 3000
    rng = np.random.default_rng(0)
    entries = []
    for _ in range(32 * MB // size):
        data = rng.bytes(size)
        entries.append((shelf.put(key(data), data, job, small=True), key(data)))
    assert status("RssAnon") - before > 30 * MB
    assert status("RssShmem") - shared < MB
    stay = rng.permutation(len(entries)) < len(entries) // 8
    for (entry, _), stays in zip(entries, stay, strict=True):
        if not stays:
            shelf.release(entry, job)
    assert shelf.used == len(entries) * size, "a row is ours until it is given back"
    shelf.trim()
    assert shelf.used == sum(stay) * size
    assert status("RssAnon") - before < 14 * MB
    for (entry, digest), stays in zip(entries, stay, strict=True):
        if stays:
            assert key(shelf.bytes_of(entry)) == digest
    assert len({entry.row for (entry, _), stays in zip(entries, stay, strict=True) if stays}) == sum(stay)


def test_memory_of_large_samples_is_given_back():
    shelf, job = MemoryShelf(96 * MB), Someone()
    before = status("RssAnon")
    entries = []
    for number in range(640):
        data = bytes([number % 255 + 1]) * 100_000
        entries.append(shelf.put(number.to_bytes(32, "big"), data, job))
    del data
    assert status("RssAnon") - before > 56 * MB
    while len(entries) > 1:  # the last one lies behind all others
        shelf.release(entries.pop(0), job)
    shelf.trim()
    assert status("RssAnon") - before < 16 * MB


def test_any_number_of_sizes_takes_few_addresses():
    """Each matrix is as long as the shelf might become: of as many as there are sizes a process would run out."""
    capacity = 1 << 34
    shelf, job = MemoryShelf(capacity), Someone()
    before = status("VmSize")
    entries = {}
    for size in range(1, 2 * MATRICES):
        data = content(0, size)
        entries[data] = shelf.put(key(data), data, job, small=True)
    assert all(shelf.bytes_of(entry) == data for data, entry in entries.items())
    assert status("VmSize") - before < (MATRICES + 1) * capacity
    for entry in entries.values():
        shelf.release(entry, job)
    shelf.trim()
    assert shelf.used == 0
    assert status("VmSize") - before < capacity
    data = content(0, 3000)
    assert shelf.put(key(data), data, job, small=True).row, "the sizes of others are no longer in the way"


def test_keys_are_the_rows_of_digests():
    digests = np.arange(96, dtype=np.uint8).reshape(3, 32)
    assert keys_of(digests) == [digests[at].tobytes() for at in range(3)]
    assert keys_of(digests[:0]) == []
