"""A job decides as its policies do without a node, and what they keep has its bytes on the shelves: bare stacks of
policies, obvious books and threads that compare every byte."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.ids import NONE, as_ids
from augury.node.files import FileShelf, footprint
from augury.node.holding import Dataset, Stock
from augury.node.job import Job
from augury.node.shelves import SMALL, MemoryShelf
from augury.policies import Foresight
from augury.recipes import RECIPES, find, policy_rng
from augury.step import plan, prefetch, step, uncached

CLIENT, OTHER = 1, 2


class Data(NamedTuple):
    """Samples, and what a client says of them."""

    contents: list[bytes]
    told: Dataset

    @property
    def samples(self):
        return len(self.contents)


def dataset(contents):
    digests = np.array([np.frombuffer(blake3(each).digest(), np.uint8) for each in contents]).reshape(-1, 32)
    sizes = np.array([len(each) for each in contents], np.int64)
    return Data(contents, Dataset(digests, sizes, int(sizes[0]) if (sizes == sizes[0]).all() else None))


def rows(samples=24, size=24, seed=0):
    """Of one size: in memory they are rows of a matrix, unless they are large."""
    rng = np.random.default_rng([seed, size])
    return dataset([rng.bytes(size) for _ in range(samples)])


def mixed(samples=24, seed=0, largest=9000):
    """Of mixed sizes, some empty, some the same as others."""
    rng = np.random.default_rng(seed)
    contents = [rng.bytes(int(size)) for size in rng.integers(1, largest, samples)]
    contents[3] = contents[7] = b""
    contents[11] = contents[5]
    return dataset(contents)


def twins(samples=24, size=24):
    """Rows of which every third is the same as the one before."""
    data = rows(samples, size).contents
    return dataset([data[at - 1] if at % 3 == 2 else data[at] for at in range(samples)])


KINDS = {
    "rows": rows,
    "twins": twins,
    "mixed": mixed,
    "large": lambda: rows(12, SMALL + 1),
    "empty": lambda: dataset([b""] * 8),
}


@pytest.fixture
def disk(tmp_path):
    """Makes shelves in directories of their own."""
    made = []

    def make(capacity=1 << 24):
        made.append(FileShelf(tmp_path / f"disk{len(made)}", capacity))
        return made[-1]

    yield make
    for shelf in made:
        shelf.close()


def begin(stock, data, recipe="lru", shares=None, seed=0):
    shares = [shelf.capacity for shelf in stock.shelves] if shares is None else shares
    return Job(stock, data.told, find(recipe), seed, "job", 0, shares)


def check_area(data, batch, area):
    """What was found is right, and where nothing was found there is nothing of anybody's."""
    ends = np.cumsum(data.told.sizes[batch.step.served])
    for id, end, found in zip(batch.step.served.tolist(), ends.tolist(), batch.found.tolist(), strict=True):
        size = len(data.contents[id])
        held = area[max(0, end - size) : end]
        if found >= 0:
            assert end <= len(area)
            assert held.tobytes() == data.contents[id]
        else:
            assert not held.any() or (held == 0xEE).all() or (end > len(area))


def take(job, data, ids, client=CLIENT, admit=True, bypass=False, room=None, loader=0):
    """A batch as a client asks for it, its bytes checked."""
    ids = as_ids(ids)
    area = np.full(1 << 20, 0xEE, np.uint8) if room is None else np.full(room, 0xEE, np.uint8)
    batch = job.take(ids, client, loader, admit, bypass, area)
    check_area(data, batch, area)
    job._stock.finish(batch.landing)
    return batch


def wanted_of(batch):
    return np.unique(batch.step.served[batch.offer])


def offer(job, data, ids):
    kept, refused, landing = job.offer(ids, [data.contents[id] for id in ids.tolist()])
    job._stock.finish(landing)
    return kept, refused


def fetch(job, data, ids, client=CLIENT, **more):
    """Take, and offer what is asked for at once."""
    batch = take(job, data, ids, client, **more)
    offer(job, data, wanted_of(batch))
    return batch


def holdings(job, data, shelf):
    """How often a job holds each digest of a shelf."""
    digests = (data.told.digests[id].tobytes() for id in range(data.samples))
    return {each: shelf.entries[each].holders.count(job) for each in digests if each in shelf.entries}


def read_back(stock, shelf, entry):
    return shelf.bytes_of(entry) if shelf is stock.ram else shelf.read(entry)


def check_shelves(stock):
    """Every byte on every shelf is what its digest says, nothing is above its limit, no charge is wrong."""
    owed = {}
    for shelf in stock.shelves:
        assert shelf.used <= shelf.capacity
        assert shelf.idle == sum(not entry.holders for entry in shelf.entries.values())
        for digest, entry in shelf.entries.items():
            assert blake3(read_back(stock, shelf, entry)).digest() == digest
            for job in entry.holders:
                owed[job, shelf.name] = owed.get((job, shelf.name), 0.0) + entry.cost / len(entry.holders)
    for (job, name), amount in owed.items():
        assert job.charged[name] == pytest.approx(amount, abs=1e-3)
    return owed


class Embedded:
    """The same policies without a node, told the same."""

    def __init__(self, data, recipe, shares, seed, stock):
        costs = [data.told.sizes, np.array([footprint(size) for size in data.told.sizes.tolist()])]
        self.stack = [recipe.policy_at(at)(costs[at], share, policy_rng(seed, at)) for at, share in enumerate(shares)]
        keys = [digest.tobytes() for digest in data.told.digests]
        for depth, (policy, shelf) in enumerate(zip(self.stack, stock.shelves, strict=False)):
            there = [id for id, key in enumerate(keys) if key in shelf.entries]
            policy.adopt(as_ids([id for id in there if not any(above.resident[id] for above in self.stack[:depth])]))

    def forget(self, ids):
        for policy in self.stack:
            policy.forget(ids[policy.resident[ids]])


class Pair:
    """A job and its embedded twin, and what the job's client has promised and not brought yet."""

    def __init__(self, stock, data, recipe, shares, seed=0):
        self.embedded = Embedded(data, recipe, shares, seed, stock)
        self.job = Job(stock, data.told, recipe, seed, "job", 0, shares)
        self.stock, self.data, self.recipe, self.pending, self.hurt = stock, data, recipe, set(), False

    def same(self, mine, theirs):
        for name in ("asked", "served", "level", "missed"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), name)
        for name in ("writes", "drops"):
            for one, other in zip(getattr(mine, name), getattr(theirs, name), strict=True):
                np.testing.assert_array_equal(one, other, name)

    def act(self, what, seed):
        rng = np.random.default_rng(seed)
        samples, embedded, job = self.data.samples, self.embedded, self.job
        some = rng.integers(0, samples, rng.integers(0, 7))
        distinct = rng.permutation(samples)[: rng.integers(0, samples)]
        loader = int(rng.integers(0, 2)) if self.recipe.shared else 0
        if what in ("take", "look", "bypass"):
            room = None if rng.random() < 0.7 else int(rng.integers(0, 1 + self.data.told.sizes[some].sum()))
            admit, bypass = what != "look", what == "bypass"
            batch = take(job, self.data, some, CLIENT, admit, bypass, room, loader)
            levels = len(embedded.stack)
            self.same(batch.step, uncached(levels, some) if bypass else step(embedded.stack, some, loader, admit))
            self.settle(batch, rng)
        elif what == "unasked":
            batch = job.unasked(distinct, CLIENT)
            job._stock.finish(batch.landing)
            self.same(batch.step, prefetch(embedded.stack, distinct))
            self.settle(batch, rng)
        elif what == "wanted":
            for level, policy in enumerate(embedded.stack):
                np.testing.assert_array_equal(job.wanted(level), policy.wanted(policy.capacity))
            ids = job.wanted(0)
            embedded.stack[0].wanted(embedded.stack[0].capacity)
            batch = job.unasked(ids, CLIENT)
            job._stock.finish(batch.landing)
            self.same(batch.step, prefetch(embedded.stack, ids))
            self.settle(batch, rng)
        elif what == "plan":
            order = rng.permutation(np.repeat(np.arange(samples), rng.integers(1, 3)))
            times, later = None, some
            if self.recipe.foresight is Foresight.RUN:
                order, later = rng.permutation(samples), NONE
                times = rng.integers(1, 5, samples).astype(np.int32)
            before = job.wish_count
            job.plan(order, loader, times, later)
            plan(embedded.stack, order, loader, times, later)
            assert job.wish_count > before
        elif what == "learn":
            scores = rng.random(len(distinct)).astype(np.float32)
            kin = distinct[: len(distinct) // 2] if rng.random() < 0.3 and len(distinct) > 1 else None
            job.learn(distinct, scores, kin)
            for policy in embedded.stack:
                policy.learn(distinct, scores, kin)
        elif what == "progress":
            told = float(rng.random()), list(rng.random(3)), list(rng.random(3))
            job.progress(*told)
            for policy in embedded.stack:
                policy.progress(*told)
        elif what == "resize":
            level = int(rng.integers(0, len(embedded.stack)))
            capacity = int(rng.integers(0, self.stock.shelves[level].capacity // 2 + 1))
            job.resize(level, capacity)
            if capacity != embedded.stack[level].capacity:
                embedded.stack[level].resize(capacity)
        elif what == "leave loader":
            job.end_loader(loader)
            for policy in embedded.stack:
                policy.leave(loader)
        elif what == "offer":
            self.bring(rng.permutation(as_ids(sorted(self.pending)))[:5])
        elif what == "poison":
            ids = as_ids(sorted(self.pending))[:1]
            assert job.offer(ids, [b"something else" for _ in ids])[:2] == (0, len(ids))
            self.pending -= set(ids.tolist())
            embedded.forget(ids)
        elif what == "lost":
            ids = as_ids(sorted(self.pending))[:2]
            job.lost(ids, OTHER)  # it was not to bring them
            job.lost(ids, CLIENT)
            self.drop(ids)
        elif what == "gone":
            job.leave(CLIENT)
            self.drop(as_ids(sorted(self.pending)))
        elif what == "trim":
            with self.stock.lock:
                self.stock.ram.trim()
        elif what == "damage" and self.stock.disk is not None:
            for entry in list(self.stock.disk.entries.values())[:2]:
                if entry.data is None:
                    (self.stock.disk._root / entry.name).write_bytes(b"damaged")
                    self.hurt = True
        self.check()

    def settle(self, batch, rng):
        """Bring what is asked for at once, or later."""
        ids = wanted_of(batch)
        self.pending |= set(ids.tolist())
        if rng.random() < 0.6:
            self.bring(ids)

    def bring(self, ids):
        kept, refused = offer(self.job, self.data, ids)
        assert refused == 0
        assert kept == sum(any(policy.resident[id] for policy in self.embedded.stack) for id in ids.tolist())
        self.pending -= set(ids.tolist())

    def drop(self, ids):
        """Forgotten, unless their bytes have come from another job meanwhile."""
        for id in ids.tolist():
            if (self.job.held()[id] < 0) and any(policy.resident[id] for policy in self.embedded.stack):
                self.embedded.forget(as_ids([id]))
        self.pending -= set(ids.tolist())

    def check(self):
        job, data, stock = self.job, self.data, self.stock
        levels = np.full(data.samples, -1)
        for depth in reversed(range(len(self.embedded.stack))):
            mine, theirs = job.stack[depth], self.embedded.stack[depth]
            np.testing.assert_array_equal(mine.resident, theirs.resident)
            assert (mine.used, mine.capacity) == (theirs.used, theirs.capacity)
            levels[theirs.resident] = depth
        np.testing.assert_array_equal(job.held(), levels)
        for depth, shelf in enumerate(stock.shelves):
            resident = np.flatnonzero(job.stack[depth].resident).tolist()
            brought = [data.told.digests[id].tobytes() for id in resident if id not in self.pending]
            promised = [data.told.digests[id].tobytes() for id in resident if id in self.pending]
            counts = holdings(job, data, shelf)
            for digest, count in counts.items():  # once, however many ids have this content
                assert count <= 1
                assert count == 0 or digest in brought or digest in promised
            if shelf is stock.ram or not self.hurt:
                assert all(counts.get(digest) == 1 for digest in brought)
            assert shelf.used <= shelf.capacity


ACTIONS = st.sampled_from(
    ["take"] * 8
    + ["look", "bypass", "unasked", "wanted", "plan", "learn", "progress", "resize", "leave loader"]
    + ["offer", "offer", "poison", "lost", "gone", "trim", "damage"]
)
percent = st.integers(0, 100)
actions = st.lists(st.tuples(ACTIONS, st.integers(0, 1 << 30)), min_size=10, max_size=30)


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_decides_as_without_a_node(recipe, disk):
    shelf = disk(40 * 4096)

    @settings(max_examples=5, deadline=None)
    @given(actions, st.sampled_from(["rows", "twins", "mixed"]), st.booleans(), percent, percent)
    def run(actions, kind, on_disk, ram, below):
        data = KINDS[kind]()
        whole = int(data.told.sizes.sum())
        stock = Stock(MemoryShelf(whole), shelf if on_disk else None)
        shares = [whole * ram // 100, shelf.capacity * below // 100][: len(stock.shelves)]
        pair = Pair(stock, data, find(recipe), shares)
        for what, seed in actions:
            pair.act(what, seed)
        if not pair.hurt:
            check_shelves(stock)
        pair.job.end()
        for each in stock.shelves:
            assert each.idle == len(each.entries)
        for entry in list(shelf.entries.values()):
            shelf.discard(entry)
        stock.finish([])

    run()


@settings(max_examples=40, deadline=None)
@given(actions, actions, st.sampled_from(sorted(KINDS)), st.sampled_from(["lru", "minio", "random", "augury-exact"]))
def test_two_jobs_on_the_same_data_decide_as_without_a_node(first, second, kind, recipe):
    data = KINDS[kind]()
    stock = Stock(MemoryShelf(int(data.told.sizes.sum()) or 1))
    pairs = [Pair(stock, data, find(recipe), [stock.ram.capacity // 2], seed) for seed in (0, 1)]
    for at in range(max(len(first), len(second))):
        for pair, todo in zip(pairs, (first, second), strict=True):
            if at < len(todo):
                pair.act(*todo[at])
    check_shelves(stock)
    for pair in pairs:
        pair.job.end()
    assert stock.ram.idle == len(stock.ram.entries)
    assert all(abs(pair.job.charged["ram"]) < 1e-6 for pair in pairs)


class TestSharing:
    @pytest.mark.parametrize("kind", ["rows", "large", "mixed"])
    def test_what_two_hold_is_there_once_and_each_is_charged_half(self, kind):
        data = KINDS[kind]()
        whole = sum(len(each) for each in set(data.contents))
        stock = Stock(MemoryShelf(2 * int(data.told.sizes.sum())))
        jobs = [begin(stock, data, shares=[stock.ram.capacity // 2]) for _ in range(2)]
        everything = np.arange(data.samples)
        fetch(jobs[0], data, everything)
        assert (jobs[0].charged["ram"], jobs[1].charged["ram"], stock.ram.used) == (pytest.approx(whole), 0, whole)
        batch = take(jobs[1], data, everything)
        assert (batch.step.level == 1).all(), "its own policy had none of it"
        assert (batch.found == 0).all(), "the other job has it"
        assert not batch.offer.any()
        for job in jobs:
            assert job.charged["ram"] == pytest.approx(whole / 2)
        assert stock.ram.used == whole
        assert jobs[1].bytes_from == ({"shared": int(data.told.sizes.sum())})
        jobs[0].resize(0, 0)
        assert jobs[1].charged["ram"] == pytest.approx(whole)
        assert (take(jobs[1], data, everything).found == 0).all()
        jobs[1].resize(0, 0)
        stock.ram.trim()
        assert (stock.ram.used, len(stock.ram.entries)) == (0, 0)

    def test_two_ids_of_one_content_are_one_copy(self):
        data = twins()
        stock = Stock(MemoryShelf(1000))
        job = begin(stock, data)
        fetch(job, data, [1, 2])
        assert (len(stock.ram.entries), stock.ram.used, job.charged["ram"]) == (1, 24, 24)
        assert job.stack[0].used == 48
        job.resize(0, 24)
        assert (len(stock.ram.entries), job.charged["ram"]) == (1, 24)
        assert (take(job, data, [1, 2], admit=False).found == 0).all()
        job.resize(0, 0)
        assert (len(stock.ram.entries), job.charged["ram"]) == (0, 0)

    def test_only_who_has_the_digest_is_served(self):
        mine, theirs = rows(10), rows(10, seed=1)
        stock = Stock(MemoryShelf(10_000))
        job, other = begin(stock, mine), begin(stock, theirs, shares=[0])
        fetch(job, mine, range(10))
        batch = take(other, theirs, range(10))
        assert (batch.found == -1).all()
        assert not batch.offer.any()
        half = dataset(theirs.contents[:5] + mine.contents[5:])
        assert take(begin(stock, half, shares=[0]), half, range(10)).found.tolist() == [-1] * 5 + [0] * 5

    @pytest.mark.parametrize("size", [23, 25, 48, SMALL + 1, 0])
    @pytest.mark.parametrize("on_disk", [False, True])
    def test_a_digest_with_another_size_is_worth_nothing(self, disk, size, on_disk):
        """Rows of another size are another sample's bytes; and nobody holds more than it says."""
        mine, theirs = rows(10), rows(10, max(1, size), seed=1)
        stock = Stock(MemoryShelf(0 if on_disk else 1 << 20), disk())
        fetch(begin(stock, theirs, "minio"), theirs, range(10))
        fetch(begin(stock, mine, "minio"), mine, range(10))
        sizes = np.full(10, size, np.int64)
        for uniform in (size, None):
            thief = Job(stock, Dataset(mine.told.digests, sizes, uniform), find("lru"), 0, "job", 0, [1 << 19, 1 << 23])
            assert thief.charged == {"ram": 0, "disk": 0} or on_disk
            area = np.full(10 * size, 0xEE, np.uint8)
            batch = thief.take(np.arange(10), CLIENT, 0, True, False, area)
            assert (batch.found == -1).all()
            assert not area.any() or (area == 0xEE).all()
            assert thief.charged["ram"] == 0
            assert thief.offer(np.arange(10), [bytes(size)] * 10)[1] == 10
            thief.end()
        again = begin(stock, mine, "minio")
        assert (take(again, mine, range(10)).found >= 0).all(), "it is still there for others"

    def test_bypass_and_a_look_change_nothing(self):
        data = rows()
        stock = Stock(MemoryShelf(10_000))
        job = begin(stock, data)
        for more in ({"admit": False}, {"bypass": True}):
            batch = fetch(job, data, range(5), **more)
            assert not batch.offer.any()
            assert (job.held() == -1).all()
            assert stock.ram.entries == {}
        fetch(job, data, range(5))
        batch = take(job, data, range(5), bypass=True)
        assert (batch.step.level == 1).all()


class TestEnd:
    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_what_an_ended_job_leaves_the_next_one_adopts(self, kind, disk):
        data = KINDS[kind]()
        stock = Stock(MemoryShelf(int(data.told.sizes.sum())), disk())
        first = begin(stock, data, "minio", [stock.ram.capacity // 2, 1 << 20])
        for id in range(data.samples):
            fetch(first, data, [id])
        held = first.held()
        first.end()
        assert [shelf.idle for shelf in stock.shelves] == [len(shelf.entries) for shelf in stock.shelves]
        assert all(abs(amount) < 1e-6 for amount in first.charged.values())
        second = begin(stock, data, "minio", [stock.ram.capacity // 2, 1 << 20])
        np.testing.assert_array_equal(second.held(), held)
        batch = take(second, data, np.arange(data.samples))
        np.testing.assert_array_equal(batch.found, np.where(held == 0, batch.found, held))
        assert not batch.offer[held >= 0].any()
        assert sum(shelf.idle for shelf in stock.shelves) == 0
        check_shelves(stock)

    def test_what_it_leaves_makes_room_for_others(self):
        stock = Stock(MemoryShelf(24 * 24))
        old, new = rows(24), rows(24, seed=1)
        job = begin(stock, old)
        fetch(job, old, range(24))
        job.end()
        job = begin(stock, new)
        fetch(job, new, range(10))
        assert (len(stock.ram.entries), stock.ram.idle) == (24, 14)
        assert (take(job, new, range(10)).found == 0).all()
        assert np.count_nonzero(take(begin(stock, old, shares=[0]), old, range(24)).found == 0) == 14

    def test_of_a_job_that_has_ended_nothing_more_is_held(self, disk):
        """A request may be under way while a job is ended: what it holds afterwards nobody would let go of."""
        data = rows()
        stock = Stock(MemoryShelf(1000), disk())
        job, other = begin(stock, data), begin(stock, data, shares=[500, 0])
        fetch(other, data, range(5))
        batch = take(job, data, range(5, 10))
        job.end()
        offer(job, data, wanted_of(batch))
        take(job, data, range(20))
        assert not any(job in entry.holders for shelf in stock.shelves for entry in shelf.entries.values())
        assert job.charged == {"ram": 0, "disk": 0}

    def test_a_smaller_share_adopts_what_fits(self):
        data = rows()
        stock = Stock(MemoryShelf(24 * 24))
        first = begin(stock, data)
        fetch(first, data, range(24))
        first.end()
        second = begin(stock, data, shares=[5 * 24])
        assert np.count_nonzero(second.held() == 0) == 5
        assert second.charged["ram"] == pytest.approx(5 * 24)
        assert stock.ram.idle == 19
        assert (take(second, data, range(24), admit=False).found == 0).all(), "idle content serves as well"


class TestPromises:
    @pytest.fixture
    def data(self):
        return rows()

    @pytest.fixture
    def job(self, data):
        return begin(Stock(MemoryShelf(10_000)), data)

    def test_bytes_are_asked_for_once(self, job, data):
        assert wanted_of(take(job, data, [3, 4, 3])).tolist() == [3, 4]
        batch = take(job, data, [3, 4], OTHER)
        assert (batch.step.level == 0).all(), "they are decided to be held"
        assert (batch.found == -1).all(), "but nobody has brought them yet"
        assert not batch.offer.any(), "and somebody else will"
        assert offer(job, data, as_ids([3, 4])) == (2, 0)
        assert (take(job, data, [3, 4], OTHER).found == 0).all()

    def test_every_place_of_a_duplicate_is_to_be_offered(self, job, data):
        assert take(job, data, [3, 4, 3]).offer.tolist() == [True] * 3

    def test_of_a_client_that_has_gone_they_are_forgotten(self, job, data):
        take(job, data, [3, 4])
        batch = take(job, data, [5, 6], OTHER)
        job.leave(CLIENT)
        assert job.held()[[3, 4, 5, 6]].tolist() == [-1, -1, 0, 0]
        offer(job, data, wanted_of(batch))
        job.leave(OTHER)
        assert job.held()[[5, 6]].tolist() == [0, 0], "what has come stays"
        assert wanted_of(take(job, data, [3, 4], OTHER)).tolist() == [3, 4]

    def test_only_who_promised_can_lose_them(self, job, data):
        take(job, data, [3, 4])
        job.lost(as_ids([3]), OTHER)
        assert job.held()[3] == 0
        job.lost(as_ids([3, 9]), CLIENT)
        assert job.held()[[3, 4]].tolist() == [-1, 0]

    def test_what_came_is_not_lost(self, job, data):
        fetch(job, data, [3])
        job.lost(as_ids([3]), CLIENT)
        assert take(job, data, [3]).found.tolist() == [0]

    def test_poison_is_refused_and_counted(self, job, data):
        batch = take(job, data, [1, 2, 3])
        bytes_of = [data.contents[1], data.contents[3], data.contents[3][:-1] + b"?"]
        assert job.offer(wanted_of(batch), bytes_of)[:2] == (1, 2)
        assert job.refused == 2
        assert job.held()[[1, 2, 3]].tolist() == [0, -1, -1]
        batch = take(job, data, [1, 2, 3])
        assert batch.found.tolist() == [0, -1, -1]
        assert wanted_of(batch).tolist() == [2, 3]

    def test_what_nobody_asked_for_is_not_kept(self, job, data):
        assert offer(job, data, as_ids([1, 2])) == (0, 0)
        assert job._stock.ram.entries == {}

    def test_what_came_back_is_not_looked_for_where_it_once_was(self, data):
        stock = Stock(MemoryShelf(3 * 24))
        job = begin(stock, data, shares=[48])
        fetch(begin(stock, data, shares=[24]), data, [9])
        fetch(job, data, [1, 2])
        job.resize(0, 24)
        with stock.lock:
            stock.ram.trim()  # rows move
        job.resize(0, 48)
        fetch(job, data, [1])
        for ids in ([1, 2], [3], [1], [3, 1], [4, 1], [2]):
            fetch(job, data, ids)
            assert (take(job, data, ids).found == 0).all()
        for id in (5, 6):
            fetch(job, data, [id])
        take(job, data, [1])
        batch = take(job, data, [1], OTHER)
        assert (batch.step.level.tolist(), batch.found.tolist()) == ([0], [-1])

    def test_what_is_offered_twice_is_kept_once(self, job, data):
        take(job, data, [1])
        take(job, data, [1], OTHER)
        assert offer(job, data, as_ids([1, 1])) == (2, 0)
        assert offer(job, data, as_ids([1])) == (1, 0)
        assert job.charged["ram"] == 24
        job.resize(0, 0)
        assert job._stock.ram.entries == {}

    def test_what_falls_to_the_disk_before_it_came_is_still_expected_from_who_promised(self, data, disk):
        stock = Stock(MemoryShelf(2 * 24), disk())
        job = begin(stock, data)
        take(job, data, [1, 2])
        fetch(job, data, [3, 4], OTHER)  # 1 and 2 are to be on disk now, and their bytes have not come
        assert job.held()[[1, 2]].tolist() == [1, 1]
        assert offer(job, data, as_ids([1])) == (1, 0)
        job.leave(OTHER)
        assert job.held()[[1, 2]].tolist() == [1, 1]
        job.leave(CLIENT)
        assert job.held()[[1, 2]].tolist() == [1, -1]
        assert take(job, data, [1], admit=False).found.tolist() == [1]

    def test_what_another_job_brings_is_no_longer_expected(self, job, data):
        take(job, data, [1])
        other = begin(job._stock, data, shares=[48])
        fetch(other, data, [1], OTHER)
        batch = take(job, data, [1], OTHER)
        assert (batch.step.level.tolist(), batch.found.tolist()) == ([0], [0])
        assert job.charged == other.charged == {"ram": 12}
        job.leave(CLIENT)
        assert job.held()[1] == 0

    def test_what_was_resized_away_is_not_kept(self, job, data):
        batch = take(job, data, [1, 2])
        job.resize(0, 0)
        assert offer(job, data, wanted_of(batch)) == (0, 0)
        assert job._stock.ram.entries == {}


class TestDisk:
    @pytest.fixture
    def data(self):
        return rows(20, 5000)

    @pytest.fixture
    def stock(self, disk):
        return Stock(MemoryShelf(3 * 5000), disk())

    @pytest.fixture
    def job(self, stock, data):
        return begin(stock, data)

    def file(self, stock, data, id):
        return stock.disk._root / stock.disk.entries[data.told.digests[id].tobytes()].name

    def test_what_falls_out_of_memory_is_found_on_disk_and_rises_again(self, job, stock, data):
        fetch(job, data, [0, 1, 2])
        fetch(job, data, [3, 4])
        assert job.held()[:5].tolist() == [1, 1, 0, 0, 0]
        batch = take(job, data, [0, 4, 0])
        assert (batch.step.level.tolist(), batch.found.tolist()) == ([1, 0, 1], [1, 0, 1])
        assert not batch.offer.any()
        assert job.held()[:5].tolist() == [0, 1, 1, 0, 0]
        assert (len(stock.ram.entries), len(stock.disk.entries)) == (3, 2)
        assert len([path for path in stock.disk._root.rglob("*-*") if path.is_file()]) == 2
        assert take(job, data, [0]).found.tolist() == [0]
        assert job.bytes_from == {"source": 5000 * 5, "ram": 5000 * 2, "disk": 5000 * 2}
        check_shelves(stock)

    @pytest.mark.parametrize("rises", [True, False])
    @pytest.mark.parametrize("damage", [b"", b"?" * 5000, None])
    def test_a_damaged_file_is_asked_from_the_client_again(self, stock, data, rises, damage):
        job = begin(stock, data, "lru" if rises else "minio")
        fetch(job, data, [0, 1, 2])
        fetch(job, data, [3, 4])
        id = 0 if rises else 3
        if damage is None:
            self.file(stock, data, id).unlink()
        else:
            self.file(stock, data, id).write_bytes(damage)
        batch = take(job, data, [id])
        assert (batch.step.level.tolist(), batch.found.tolist()) == ([1], [-1])
        assert stock.disk.damaged == (0 if rises else 1), "what rises has left the disk already"
        if not rises:
            assert job.charged["disk"] == footprint(5000)
            batch = take(job, data, [id])  # until now nobody knew
            assert (batch.step.level.tolist(), batch.found.tolist()) == ([1], [-1])
        assert wanted_of(batch).tolist() == [id]
        assert offer(job, data, as_ids([id])) == (1, 0)
        batch = take(job, data, [id])
        assert batch.found.tolist() == [0 if rises else 1]
        assert (sum(job.charged.values())) == 15_000 + 2 * footprint(5000)
        check_shelves(stock)

    def test_damage_that_another_job_found_is_mended_too(self, stock, data):
        one, other, idle = (begin(stock, data, "minio", [0, 1 << 20]) for _ in range(3))
        for job in (one, other, idle):
            fetch(job, data, [0])
        self.file(stock, data, 0).write_bytes(b"")
        take(one, data, [0])
        batch = take(other, data, [0])
        assert (batch.step.level.tolist(), batch.found.tolist(), wanted_of(batch).tolist()) == ([1], [-1], [0])
        assert offer(other, data, as_ids([0])) == (1, 0)
        assert take(other, data, [0]).found.tolist() == [1]
        assert take(one, data, [0]).found.tolist() == [1]
        assert one.charged["disk"] == other.charged["disk"] == footprint(5000) / 2
        assert idle.charged["disk"] == 0
        for job in (one, other, idle):
            job.end()
        assert stock.disk.idle == len(stock.disk.entries) == 1

    @pytest.mark.parametrize("room", [None, 0])
    def test_a_file_that_is_too_short_since_the_node_was_away(self, data, tmp_path, room):
        shelf = FileShelf(tmp_path / "disk", 1 << 24)
        job = begin(Stock(MemoryShelf(0), shelf), data)
        fetch(job, data, [0])
        path = self.file(job._stock, data, 0)
        shelf.close()
        path.write_bytes(data.contents[0][:100])
        stock = Stock(MemoryShelf(0), FileShelf(tmp_path / "disk", 1 << 24))
        job = begin(stock, data)
        assert (job.held() == -1).all()
        batch = fetch(job, data, [0], room=room)
        assert (batch.found.tolist(), wanted_of(batch).tolist()) == ([-1], [0])
        assert take(job, data, [0]).found.tolist() == [1]
        assert stock.disk.used == footprint(5000) == job.charged["disk"]
        assert stock.disk.damaged == 1
        stock.disk.close()

    def test_what_comes_is_read_before_it_is_written(self, stock, data):
        job = begin(stock, data, shares=[0, 1 << 20])
        batch = take(job, data, [0])
        _, _, landing = job.offer(wanted_of(batch), [data.contents[0]])
        assert take(job, data, [0]).found.tolist() == [1]
        assert [entry.data is not None for entry in landing] == [True]
        stock.finish(landing)
        assert take(job, data, [0]).found.tolist() == [1]
        assert landing[0].data is None

    def test_a_disk_that_cannot_be_written_to(self, stock, data):
        job = begin(stock, data, shares=[0, 1 << 20])
        for name in range(256):
            (stock.disk._root / f"{name:02x}").touch()
        fetch(job, data, [0])
        assert (stock.disk.failures, stock.disk.entries, job.charged["disk"]) == (1, {}, 0)
        batch = fetch(job, data, [0, 1])
        assert (batch.found == -1).all()
        assert (job.held() == -1).all(), "while nothing is written nothing is held there"
        check_shelves(stock)

    def test_what_falls_while_nothing_can_be_written_is_not_held(self, job, stock, data):
        fetch(job, data, [0, 1, 2])
        for name in range(256):
            (stock.disk._root / f"{name:02x}").touch()
        for id in (3, 4):
            fetch(job, data, [id])
        assert stock.disk.failures == 1
        fetch(job, data, [5])
        assert job.held()[[2, 3]].tolist() == [-1, 0]
        assert (take(job, data, [3, 4, 5]).found == 0).all()
        assert wanted_of(take(job, data, [2])).tolist() == [2]

    def test_what_is_in_memory_is_not_adopted_on_disk_too(self, stock, data):
        for shares in ([15_000, 0], [0, 1 << 20]):
            fetch(begin(stock, data, "minio", shares), data, [0, 1])
        assert len(stock.ram.entries) == len(stock.disk.entries) == 2
        job = begin(stock, data, "minio", [5000, 1 << 20])
        assert [np.flatnonzero(policy.resident).tolist() for policy in job.stack] == [[0], [1]]
        assert job.charged == {"ram": 2500, "disk": footprint(5000) / 2}

    def test_unasked_for_samples_rise_from_the_disk(self, stock, data):
        job = begin(stock, data, "lru")
        fetch(job, data, [0, 1, 2])
        fetch(job, data, [3])
        assert job.held()[0] == 1
        for id, wanted in ((0, []), (9, [9])):
            batch = job.unasked(as_ids([id]), CLIENT)
            stock.finish(batch.landing)
            assert wanted_of(batch).tolist() == wanted
            offer(job, data, wanted_of(batch))
            assert job.held()[id] == 0
            assert take(job, data, [id]).found.tolist() == [0]
        check_shelves(stock)

    def test_what_another_job_has_in_memory_is_written_to_disk_without_asking(self, stock, data):
        upper, lower = begin(stock, data), begin(stock, data, shares=[0, 1 << 20])
        fetch(upper, data, [0])
        batch = take(lower, data, [0])
        assert (batch.found.tolist(), batch.offer.any()) == ([0], False)
        upper.resize(0, 0)
        assert take(lower, data, [0]).found.tolist() == [1]
        assert lower.charged == {"ram": 0, "disk": footprint(5000)}

    def test_what_another_job_has_on_disk_is_read_into_memory_without_asking(self, stock, data):
        lower, upper = begin(stock, data, shares=[0, 1 << 20]), begin(stock, data, shares=[15_000, 0])
        fetch(lower, data, [0])
        batch = take(upper, data, [0])
        assert (batch.step.level.tolist(), batch.found.tolist(), batch.offer.any()) == ([2], [1], False)
        assert upper.bytes_from == {"shared": 5000}
        assert take(upper, data, [0]).found.tolist() == [0]
        assert upper.charged["ram"] == 5000

    def test_resize_of_the_disk_removes_files(self, job, stock, data):
        fetch(job, data, range(10))
        assert len(stock.disk.entries) == 7
        job.resize(1, 2 * footprint(5000))
        assert len(stock.disk.entries) == 2
        stock.finish([])
        assert len([path for path in stock.disk._root.rglob("*-*") if path.is_file()]) == 2


class Slow(FileShelf):
    """A disk that reads when it is told to."""

    def __init__(self, directory):
        super().__init__(directory, 1 << 24)
        self.reading, self.may_read, self.reads = threading.Event(), threading.Event(), 0

    def read(self, entry):
        self.reads += 1
        self.reading.set()
        assert self.may_read.wait(60)
        return super().read(entry)


class TestWhileAFileIsRead:
    @pytest.fixture
    def data(self):
        return rows(20, 5000)

    @pytest.fixture
    def stock(self, tmp_path):
        stock = Stock(MemoryShelf(3 * 5000), Slow(tmp_path / "disk"))
        yield stock
        stock.disk.close()

    def meanwhile(self, stock, job, data, id, act):
        """Do something while a thread reads a sample from the disk for its batch; that batch."""
        batches = []
        thread = threading.Thread(target=lambda: batches.append(take(job, data, [id], OTHER)), name="augury-test-take")
        thread.start()
        assert stock.disk.reading.wait(60)
        act()
        stock.disk.may_read.set()
        thread.join(60)
        return batches[0]

    def test_it_may_fall_again(self, stock, data):
        job = begin(stock, data)
        fetch(job, data, [0, 1, 2])
        fetch(job, data, [3])

        def push_out():
            batch = job.take(as_ids([5, 6, 7]), CLIENT, 0, True, False, None)
            job.offer(wanted_of(batch), [data.contents[id] for id in (5, 6, 7)])
            stock.finish(batch.landing)
            assert job.held()[0] == 1

        batch = self.meanwhile(stock, job, data, 0, push_out)
        assert (batch.step.level.tolist(), batch.offer.any()) == ([1], False)
        for client in (OTHER, CLIENT):
            job.leave(client)
        assert job.held()[0] == 1
        assert all(entry.data is None for entry in stock.disk.entries.values()), "what fell was written"
        assert take(job, data, [0]).found.tolist() == [1]
        check_shelves(stock)

    def test_nobody_else_is_asked_for_it(self, stock, data):
        job = begin(stock, data)
        fetch(job, data, [0, 1, 2])
        fetch(job, data, [3])

        def look():
            batch = job.take(as_ids([0]), CLIENT, 0, True, False, None)
            assert (batch.step.level.tolist(), batch.offer.any()) == ([0], False)

        assert self.meanwhile(stock, job, data, 0, look).found.tolist() == [1]
        assert take(job, data, [0]).found.tolist() == [0]

    @pytest.mark.parametrize("damaged", [False, True])
    def test_it_may_be_given_up_and_come_back(self, stock, data, damaged):
        job = begin(stock, data, "minio", [0, 1 << 20])
        fetch(job, data, [0])
        old = next(stock.disk._root.glob("*/*-0"))

        def renew():
            job.resize(1, 0)
            assert old.exists(), "it is still to be read"
            if damaged:
                old.write_bytes(b"damaged")
            job.resize(1, 1 << 20)
            batch = job.take(as_ids([0]), CLIENT, 0, True, False, None)
            _, _, landing = job.offer(wanted_of(batch), [data.contents[0]])
            stock.finish(landing)

        assert self.meanwhile(stock, job, data, 0, renew).found.tolist() == [-1 if damaged else 1]
        assert not old.exists()
        assert take(job, data, [0]).found.tolist() == [1]
        assert (stock.disk.damaged, job.charged["disk"]) == (0, footprint(5000))
        job.end()
        assert stock.disk.idle == len(stock.disk.entries) == 1


class TestAreas:
    @pytest.mark.parametrize("kind", ["rows", "twins", "mixed", "large"])
    def test_as_far_as_it_reaches(self, kind, disk):
        data = KINDS[kind]()
        stock = Stock(MemoryShelf(int(data.told.sizes.sum())), disk())
        job = begin(stock, data, "minio", [stock.ram.capacity // 2, 1 << 20])
        ids = np.arange(data.samples)
        for id in ids:
            fetch(job, data, [id])
        ends = np.cumsum(data.told.sizes)
        for room in (0, 1, int(ends[0]) - 1, int(ends[0]), int(ends[4]), int(ends[4]) + 1, int(ends[-1])):
            batch = take(job, data, ids, room=room)
            np.testing.assert_array_equal(batch.found, np.where(ends <= room, job.held(), -1))
            assert not batch.offer.any(), "there, if not in the area"

    def test_files_beyond_its_end_are_not_read(self, tmp_path):
        data = rows(10, 5000)
        stock = Stock(MemoryShelf(0), Slow(tmp_path / "disk"))
        job = begin(stock, data)
        for id in range(10):
            fetch(job, data, [id])
        stock.disk.may_read.set()
        assert take(job, data, range(10), room=5000 * 3 + 10).found.tolist() == [1] * 3 + [-1] * 7
        assert stock.disk.reads == 3
        job.take(np.arange(10), CLIENT, 0, True, False, None)
        job.unasked(np.arange(10), CLIENT)
        assert stock.disk.reads == 3
        stock.disk.close()

    def test_without_one_a_batch_is_only_decided(self, disk):
        data = rows()
        stock = Stock(MemoryShelf(10 * 24), disk())
        job = begin(stock, data)
        for id in range(20):
            fetch(job, data, [id])
        before = job.counts.requests
        batch = job.take(np.arange(20), CLIENT, 0, False, False, None)
        assert batch.step.level.tolist() == [1] * 10 + [0] * 10
        assert not batch.offer.any()
        assert job.counts.requests == before + 20

    def test_empty_samples_are_found_in_an_area_without_room(self):
        data = dataset([b"", b"", b"x"])
        job = begin(Stock(MemoryShelf(10)), data)
        fetch(job, data, [0, 1, 2])
        assert take(job, data, [0, 1, 2], room=0).found.tolist() == [0, 0, -1]

    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_an_empty_batch(self, kind, disk):
        data = KINDS[kind]()
        for batch in (
            take(begin(Stock(MemoryShelf(100), disk()), data), data, NONE),
            begin(Stock(MemoryShelf(100)), data).unasked(NONE, CLIENT),
        ):
            assert len(batch.step.served) == len(batch.found) == len(batch.offer) == 0

    def test_rows_and_samples_that_are_none_in_one_batch(self):
        """Content that another job, of mixed sizes, has brought does not lie in a matrix."""
        data = rows(10)
        other = dataset([*data.contents[:5], b"longer than the others by far"])
        stock = Stock(MemoryShelf(10_000))
        fetch(begin(stock, other), other, range(6))
        job = begin(stock, data)
        fetch(job, data, range(10))
        assert (take(job, data, [9, 0, 8, 1, 0, 5]).found == 0).all()
        assert (take(begin(stock, other, shares=[0]), other, range(6)).found == 0).all()


class TestShares:
    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_without_room_nothing_is_held_or_asked_for(self, kind):
        data = KINDS[kind]()
        job = begin(Stock(MemoryShelf(0)), data)
        batch = take(job, data, range(data.samples))
        filled = data.told.sizes > 0
        assert (batch.found == -1)[filled].all()
        assert not batch.offer[filled].any()

    def test_less_evicts_and_gives_room(self):
        data, others = rows(), rows(24, 30, seed=2)
        stock = Stock(MemoryShelf(24 * 24))
        job = begin(stock, data)
        fetch(job, data, range(24))
        job.resize(0, 4 * 24)
        assert np.flatnonzero(job.held() == 0).tolist() == [20, 21, 22, 23]
        assert job.charged["ram"] == 4 * 24
        other = begin(stock, others, shares=[16 * 30])
        fetch(other, others, range(16))
        assert (take(other, others, range(16)).found == 0).all()
        assert (take(job, data, range(20, 24)).found == 0).all()
        assert stock.ram.used == 4 * 24 + 16 * 30
        check_shelves(stock)

    def test_wishes_are_counted(self):
        job = begin(Stock(MemoryShelf(100)), rows())
        job.resize(0, 100)
        assert job.wish_count == 0
        job.resize(0, 50)
        job.plan(np.arange(24), 0, None, NONE)
        assert job.wish_count == 2

    def test_who_watches_is_told_what_changed(self, disk):
        data = rows()
        job = begin(Stock(MemoryShelf(4 * 24), disk(4096)), data)
        ids, levels = job.changes()
        assert len(ids) == len(levels) == 0
        mirror = job.held()
        for act in (
            lambda: fetch(job, data, [1, 2, 3, 4]),
            lambda: fetch(job, data, [1, 5, 6]),
            lambda: fetch(job, data, [2, 9]),
            lambda: take(job, data, [7]),
            lambda: job.lost(as_ids([7]), CLIENT),
            lambda: job.offer(wanted_of(take(job, data, [8])), [b"poison"]),
            lambda: job.resize(0, 48),
            lambda: job.unasked(as_ids([20]), CLIENT),
            lambda: job.leave(CLIENT),
        ):
            act()
            ids, levels = job.changes()
            mirror[ids] = levels
            np.testing.assert_array_equal(mirror, job.held())
            assert len(job.changes()[0]) == 0

    def test_requests_are_counted(self):
        data = rows()
        job = begin(Stock(MemoryShelf(4 * 24)), data)
        fetch(job, data, [1, 2, 2])
        fetch(job, data, [1, 3])
        assert (job.counts.requests, job.counts.hits, job.counts.misses) == (5, 1, 3)
        assert job.bytes_from == {"source": 4 * 24, "ram": 24}
        take(job, data, [1, 3, 1])
        assert (job.counts.requests, job.counts.hits, job.counts.misses) == (8, 4, 3)
        assert job.bytes_from == {"source": 4 * 24, "ram": 4 * 24}


class Worker(threading.Thread):
    """A client that takes part in one job after the other, and compares every byte."""

    def __init__(self, number, stock, datasets, jobs):
        super().__init__(name=f"augury-test-worker-{number}")
        self.number, self.stock, self.datasets, self.jobs = number, stock, datasets, jobs
        self.failure, self.found = None, 0

    def run(self):
        try:
            rng = np.random.default_rng(self.number)
            for _ in range(120):
                self.turn(int(rng.integers(0, len(self.jobs))), rng)
        except BaseException as error:
            self.failure = error

    def turn(self, at, rng):
        data, job = self.datasets[at], self.jobs[at]
        ids = rng.integers(0, data.samples, 12)
        batch = take(job, data, ids, self.number)
        self.found += np.count_nonzero(batch.found >= 0)
        ids = wanted_of(batch)
        chance = rng.random()
        if chance < 0.7:
            offer(job, data, ids)
        elif chance < 0.8:
            job.lost(ids, self.number)
        elif chance < 0.85:
            assert job.offer(ids, [b"poison"] * len(ids))[:2] == (0, len(ids))
        elif chance < 0.9:
            job.leave(self.number)
        elif chance < 0.95:
            level = int(rng.integers(0, len(self.stock.shelves)))
            share = self.stock.shelves[level].capacity // len(self.jobs)
            job.resize(level, int(rng.integers(share // 2, share + 1)))
        elif self.number == 0 and self.stock.disk is not None:
            with self.stock.lock:
                names = [entry.name for entry in self.stock.disk.entries.values() if entry.data is None][:3]
            for name in names:
                if (path := self.stock.disk._root / name).exists():
                    path.write_bytes(b"damaged")
        else:
            with self.stock.lock:
                self.stock.ram.trim()


@pytest.mark.parametrize("with_disk", [False, True])
def test_threads_of_several_jobs_never_see_a_wrong_byte(with_disk, disk):
    small = rows(60, 600)
    alike = dataset(small.contents[30:] + rows(30, 600, seed=5).contents)
    other = mixed(60, largest=3000)
    datasets = [small, alike, other, small]
    stock = Stock(MemoryShelf(100_000), disk(60 * 4096) if with_disk else None)
    shares = [shelf.capacity // len(datasets) for shelf in stock.shelves]
    recipes = ["lru", "random", "lru", "minio"]
    jobs = [begin(stock, data, recipe, shares) for data, recipe in zip(datasets, recipes, strict=True)]
    workers = [Worker(number, stock, datasets, jobs) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    for worker in workers:
        if worker.failure is not None:
            raise worker.failure
        for job in jobs:
            job.leave(worker.number)
    assert sum(worker.found for worker in workers) > 100
    for job, data in zip(jobs, datasets, strict=True):
        fetch(job, data, np.arange(data.samples))  # what damage has made of the files is noticed and mended
        fetch(job, data, np.arange(data.samples))
    for job, data in zip(jobs, datasets, strict=True):
        batch = take(job, data, np.arange(data.samples), admit=False)
        there = batch.step.level < len(stock.shelves)
        assert (batch.found[there] >= 0).all(), "what the policies hold is there"
    for job in jobs:
        job.end()
    for shelf in stock.shelves:
        assert shelf.used <= shelf.capacity
        assert shelf.idle == len(shelf.entries)
    assert all(abs(amount) < 1e-3 for job in jobs for amount in job.charged.values())
    with stock.lock:
        stock.ram.trim()
    assert stock.ram.used == sum(entry.cost for entry in stock.ram.entries.values())
    if stock.disk is not None:
        names = {f"{path.parent.name}/{path.name}" for path in stock.disk._root.rglob("*-*") if path.is_file()}
        assert names == {entry.name for entry in stock.disk.entries.values()}
