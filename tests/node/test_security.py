"""What the node gives to whom, and what hostile clients can do to it: nothing.

Other users are really other users: processes that have given up root's rights (those tests are skipped without them).
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import logging
import os
import resource
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from augury.node import protocol, session
from augury.node.client import Connection, NodeGone, NodeRefuses, shared_memory
from augury.node.config import default_socket
from helpers import settled
from nodes import process, served

NOBODY, TEAM = 65534, 65500
SOON = 20.0
"""Seconds within which anything must have happened, on the busiest machine."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


def _load_fuzz():
    bench = Path(__file__).parents[2] / "bench"
    spec = importlib.util.spec_from_file_location("node_fuzz", bench / "node_fuzz.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(bench))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(bench))
    return module


fuzz = _load_fuzz()


def digests_of(items):
    return np.frombuffer(b"".join(blake3(each).digest() for each in items), np.uint8)


def contents(samples=40, size=100, seed=0, mixed=False):
    rng = np.random.default_rng(seed)
    return [rng.bytes(int(rng.integers(1, 2 * size)) if mixed else size) for _ in range(samples)]


class Raw:
    """A client that says whatever it is told to."""

    def __init__(self, path, hello=True):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(SOON)
        self.socket.connect(os.fspath(path))
        if hello:
            assert isinstance(self.ask(protocol.Hello(protocol.VERSION, "raw")), protocol.Welcome)

    def ask(self, message, *arrays, file=None):
        """The answer; None where there is none."""
        try:
            protocol.send(self.socket, message, arrays, file)
        except (BrokenPipeError, ConnectionResetError):
            return None
        return self.answer()

    def say(self, frame, files=()):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.socket, [frame], list(files))

    def answer(self):
        try:
            received = protocol.receive(self.socket, protocol.answers, 1 << 30)
        except ConnectionResetError:
            return None
        return None if received is None else received.message

    def area(self, number=0, size=1 << 16):
        with memory(size, fcntl.F_SEAL_SHRINK) as file:
            return self.ask(protocol.Area(number, size), file=file)

    def join(self, items, **more):
        return self.ask(*join_of(items, **more))

    def closed(self):
        """Whether the node has ended the connection, or does it soon."""
        return self.answer() is None

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def join_of(items, digests=None, sizes=None, token=None, mirrors=False, **more):
    fields = {"name": "job", "recipe": "lru", "seed": 0, "ram": 1 << 40, "disk": 1 << 40} | more
    digests = digests_of(items) if digests is None else digests.reshape(-1)
    sizes = np.array([len(each) for each in items]) if sizes is None else sizes
    job = protocol.Join(token or os.urandom(16), samples=len(digests) // 32, mirrors=mirrors, **fields)
    return job, digests, sizes


class Reader:
    """A client that behaves, as far as its digests are its own."""

    def __init__(self, path, items=None, room=1 << 20, **more):
        self.items, self.connection, self.memory = items, Connection(path, "reader"), shared_memory(room)
        request, digests, sizes = join_of(items, **more)
        self.sizes = np.broadcast_to(sizes, request.samples)
        self.joined = self.connection.ask(request, protocol.Joined, (digests, sizes))

    def take(self, ids):
        """Who has each sample (-1: nobody), what came, and whose bytes the node would have."""
        ids = np.asarray(ids, np.int64)
        self.memory[:] = 0
        number, at = self.connection.area_of(self.memory)
        request = protocol.Take(0, number, at, self.memory.nbytes)
        _, (_, _, found, offer, *_) = self.connection.ask(request, protocol.Taken, (ids,))
        ends = np.cumsum(self.sizes[ids]).tolist()
        came = [self.memory[end - size : end].tobytes() for end, size in zip(ends, self.sizes[ids], strict=True)]
        return found, came, offer

    def offer(self, ids, items):
        ids, starts = np.asarray(ids, np.int64), np.cumsum([0, *map(len, items)])[:-1]
        data = np.frombuffer(b"".join(items), np.uint8)
        self.memory[: len(data)] = data
        number, at = self.connection.area_of(self.memory)
        return self.connection.ask(protocol.Offer(number), protocol.Offered, (ids, starts + at))[0]

    def fill(self):
        everyone = np.arange(len(self.items))
        _, _, offer = self.take(everyone)
        assert self.offer(everyone[offer], [self.items[id] for id in everyone[offer]]).refused == 0
        return self

    def report(self):
        return self.connection.ask(protocol.Report(), protocol.Told)[0].report

    def close(self):
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@contextlib.contextmanager
def memory(size, seals=0):
    with protocol.memory_file("test") as file:
        os.ftruncate(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        yield file


@pytest.fixture
def open_place():
    """A directory that other users can reach."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o711)
        yield Path(place)


def as_user(act, uid=NOBODY, gid=NOBODY, groups=()):
    """What `act` returns in a process of another user; a refusal as text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(list(groups))
            os.setgid(gid)
            os.setuid(uid)
            try:
                result = act()
            except NodeGone as error:
                result = f"{type(error).__name__}: {error}"
            os.write(writer, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        result = json.loads(told.read() or '"the process has failed"')
    os.waitpid(pid, 0)
    return result, pid


def check_serves(path):
    """The node is well."""
    items = contents(seed=99)
    with Reader(path, items) as reader:
        found, came, _ = reader.fill().take(range(40))
        assert (found >= 0).all()
        assert came == items


def until(true):
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def quiet(pid, path):
    """What the node uses once only the one who asks is connected."""
    with contextlib.closing(Connection(path, "observer")) as observer:
        until(lambda: observer.ask(protocol.Report(), protocol.Told)[0].report["clients"] == 1)
        return fuzz.usage(pid)


# -- Without the digest ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("disk", [False, True])
def test_without_the_digest_the_answer_is_that_for_an_absent_key(tmp_path, mixed, disk):
    """Byte for byte: for digests that are one bit off, or begin like held ones, as for any others."""
    items = contents(mixed=mixed)
    ram = 2000 if disk else 1 << 20
    more = {"disk": tmp_path / "disk", "disk_bytes": 1 << 20} if disk else {}
    with served(tmp_path, ram=ram, **more) as node, Reader(node.config.socket, items) as owner:
        assert (owner.fill().take(range(40))[0] >= 0).sum() > 10
        told = {}
        for name, digests in fuzz.guesses(digests_of(items).reshape(40, 32), np.random.default_rng(0)).items():
            told[name] = everything_told(node.config.socket, digests, np.array([len(each) for each in items]))
            until(lambda: len(node.report(0)["jobs"]) == 1)  # shares depend on who else is there
        assert told["random"] == told["one bit"] == told["prefix"]
        assert (owner.take(range(40))[0] >= 0).sum() > 10


def everything_told(path, digests, sizes):
    """All packets that a client with these digests gets, and what is in its memory afterwards."""
    packets = []
    with Raw(path) as raw, memory(1 << 16, fcntl.F_SEAL_SHRINK) as file:
        raw.ask(protocol.Area(0, 1 << 16), file=file)
        for message, *arrays in (
            join_of([], digests=digests, sizes=sizes, mirrors=True),
            (protocol.Look(),),
            (protocol.Take(0, 0, 0, 1 << 16, admit=False), np.arange(40)),
            (protocol.Take(0, 0, 0, 1 << 16), np.arange(40)),
            (protocol.Unasked(), np.arange(40)),
            (protocol.Wanted(0),),
            (protocol.Offer(0), np.arange(40), np.zeros(40)),
            (protocol.Take(0, 0, 0, 1 << 16, bypass=True), np.arange(40)),
            (protocol.Look(),),
        ):
            protocol.send(raw.socket, message, arrays)
            packets.append(raw.socket.recv(protocol.PACKET))
        return packets, os.pread(file, 1 << 16, 0)


def test_without_the_digest_the_answer_takes_as_long_as_for_an_absent_key(tmp_path):
    """A class, not a time: it would be seen here if a lookup went through all that is held. bench/node_fuzz.py measures
    what the difference really is."""
    with process(tmp_path, "--ram", "64MB") as node:
        times = fuzz.absent_times(node.socket, rounds=150)
    assert max(times.values()) < 3 * min(times.values())


@pytest.mark.parametrize("disk", [False, True])
def test_a_wrong_size_is_no_way_to_the_bytes_of_others(tmp_path, disk):
    """Whoever has some digests and lies about the sizes gets neither others' bytes nor more room than it is charged."""
    secret, own = contents(size=10), contents(size=20, seed=1)
    ram = 100 if disk else 1 << 20
    more = {"disk": tmp_path / "disk", "disk_bytes": 1 << 20} if disk else {}
    with (
        served(tmp_path, ram=ram, **more) as node,
        Reader(node.config.socket, secret) as victim,
        Reader(node.config.socket, own) as honest,
    ):
        victim.fill()
        honest.fill()
        for sizes in (np.array([10]), np.full(40, 10), np.array([0]), np.arange(40), np.array([4000])):
            with Reader(node.config.socket, digests=digests_of(own), sizes=sizes) as liar:
                ids = np.flatnonzero(liar.sizes != 20)
                for _ in range(2):
                    found, came, _ = liar.take(ids)
                    assert (found == -1).all()
                    assert not any(came[at].strip(b"\0") for at in range(len(ids)))
                assert all(job["charged"].get("ram", 0) >= 0 for job in liar.report()["jobs"])
        assert node.report(0)["counts"]["errors"] == 0


def test_samples_of_no_bytes_are_served(tmp_path):
    with served(tmp_path) as node, Reader(node.config.socket, [b""] * 5) as reader:
        found, _, _ = reader.fill().take(range(5))
        assert (found >= 0).all()


# -- Poison ------------------------------------------------------------------------------------------------------------


def test_bytes_that_do_not_match_their_digest_are_refused_and_counted(tmp_path):
    items = contents()
    with (
        served(tmp_path) as node,
        Reader(node.config.socket, items) as liar,
        Reader(node.config.socket, items) as other,
    ):
        liar.take(range(40))
        wrong = [bytes([each[0] ^ 1]) + each[1:] if at % 2 else each for at, each in enumerate(items)]
        told = liar.offer(range(40), wrong)
        assert (told.kept, told.refused) == (20, 20)
        assert node.report(0)["counts"]["poisoned"] == 20
        found, came, _ = other.take(range(40))
        assert (found[::2] >= 0).all()
        assert (found[1::2] == -1).all()
        assert came[::2] == items[::2]


def test_bytes_that_change_while_the_node_looks_at_them_are_never_kept(tmp_path):
    items = contents(samples=60, size=20_000)
    with process(tmp_path, "--ram", "64MB") as node, Reader(node.socket, items, room=1 << 21) as liar:
        over = threading.Event()
        flipping = threading.Thread(target=flip, args=(liar.memory[: 60 * 20_000], over))
        flipping.start()
        offered = refused = 0
        try:
            while offered < 3000:
                _, _, offer = liar.take(range(60))
                wanted = np.flatnonzero(offer)
                if len(wanted) == 0:  # everything was kept: begin anew
                    liar.connection.ask(protocol.Resize(0, 0), protocol.Done)
                    liar.connection.ask(protocol.Resize(0, 1 << 40), protocol.Done)
                    continue
                refused += liar.offer(wanted, [items[id] for id in wanted]).refused
                offered += len(wanted)
        finally:
            over.set()
            flipping.join()
        assert refused > 0
        with Reader(node.socket, items, room=1 << 21) as other:
            found, came, _ = other.take(range(60))
            assert all(came[at] == items[at] for at in np.flatnonzero(found >= 0))
            assert other.report()["counts"]["poisoned"] == refused


def flip(area, over):
    rng = np.random.default_rng(0)
    while not over.is_set():
        places = rng.integers(0, len(area), 3)
        area[places] ^= 1
        time.sleep(0)


# -- Frames that are not right -----------------------------------------------------------------------------------------

IDS = np.arange(4)
NOT_NOW = {
    "take before join": [(protocol.Take(0, -1, 0, 0), IDS)],
    "offer before join": [(protocol.Offer(0), IDS, IDS)],
    "look before join": [(protocol.Look(),)],
    "plan before join": [(protocol.Plan(0, False), IDS, IDS[:0], IDS)],
    "join twice": ["join", join_of(contents())],
    "hello twice": [(protocol.Hello(protocol.VERSION, "again"),)],
    "another version": [(protocol.Hello(99, "again"),)],
    "an answer": [(protocol.Done(),)],
    "offer without area": ["join", (protocol.Offer(0), IDS, IDS)],
    "take to no area": ["join", (protocol.Take(0, 7, 0, 0), IDS)],
    "area without file": [(protocol.Area(0, 100),)],
    "unknown recipe": [join_of(contents(), recipe="no such")],
    "endless recipe": [join_of(contents(), recipe="x" * 100_000)],
    "endless name": [join_of(contents(), name="x" * 100_000)],
    "negative seed": [join_of(contents(), seed=-1)],
    "negative share": [join_of(contents(), ram=-1)],
    "short token": [join_of(contents(), token=b"short")],
    "too few digests": [join_of(contents(), digests=np.zeros(33, np.uint8), sizes=np.array([1]))],
    "no samples": [join_of([], sizes=np.array([1]))],
    "too many sizes": [join_of(contents(), sizes=np.ones(41))],
    "negative sizes": [join_of(contents(), sizes=np.array([-1]))],
    "sizes beyond 64 bits together": [join_of(contents(), sizes=np.full(40, (1 << 63) - 1))],
    "negative ids": ["join", (protocol.Take(0, -1, 0, 0), -IDS)],
    "ids beyond": ["join", (protocol.Take(0, -1, 0, 0), IDS + 37)],
    "ids at the end of numbers": ["join", (protocol.Take(0, -1, 0, 0), np.array([(1 << 63) - 1]))],
    "too many ids": ["join", (protocol.Take(0, -1, 0, 0), np.zeros(protocol.IDS + 1))],
    "one id all over": ["join", (protocol.Take(0, -1, 0, 0), np.zeros(protocol.IDS))],
    "negative place": ["join", "area", (protocol.Take(0, 0, -1, 10), IDS)],
    "negative room": ["join", "area", (protocol.Take(0, 0, 0, -10), IDS)],
    "room beyond": ["join", "area", (protocol.Take(0, 0, 1, 1 << 16), IDS)],
    "place and room beyond 64 bits": ["join", "area", (protocol.Take(0, 0, (1 << 63) - 1, (1 << 63) - 1), IDS)],
    "job number": ["join", (protocol.Take(64, -1, 0, 0), IDS)],
    "stalled for ever": ["join", (protocol.Take(0, -1, 0, 0, stalled=float("inf")), IDS)],
    "stalled for nan": ["join", (protocol.Take(0, -1, 0, 0, stalled=float("nan")), IDS)],
    "offsets beyond": ["join", "area", (protocol.Offer(0), IDS, IDS + (1 << 16) - 50)],
    "offsets at the end of numbers": ["join", "area", (protocol.Offer(0), IDS, IDS + ((1 << 63) - 4))],
    "negative offsets": ["join", "area", (protocol.Offer(0), IDS, IDS - 1)],
    "fewer offsets": ["join", "area", (protocol.Offer(0), IDS, IDS[:2])],
    "the same bytes again and again": ["join", "area", (protocol.Offer(0), np.zeros(16_000), np.zeros(16_000))],
    "unasked twice": ["join", (protocol.Unasked(), IDS * 0)],
    "times missing": ["join", (protocol.Plan(0, True), IDS, IDS[:2], IDS)],
    "times unasked for": ["join", (protocol.Plan(0, False), IDS, IDS, IDS)],
    "negative times": ["join", (protocol.Plan(0, True), IDS, -IDS, IDS)],
    "huge plan": ["join", (protocol.Plan(0, False), np.zeros(5 << 20), IDS[:0], IDS)],
    "scores missing": ["join", (protocol.Learn(False), IDS, IDS[:1], IDS)],
    "scores nan": ["join", (protocol.Learn(False), IDS, IDS * np.nan, IDS)],
    "kin beyond": ["join", (protocol.Learn(True), IDS, IDS, IDS + 99)],
    "progress nan": ["join", (protocol.Progress(float("nan"), [], []),)],
    "progress inf": ["join", (protocol.Progress(0.5, [float("inf")], []),)],
    "level": ["join", (protocol.Wanted(1),)],
    "negative level": ["join", (protocol.Wanted(-1),)],
    "resize level": ["join", (protocol.Resize(9, 1),)],
    "resize below nothing": ["join", (protocol.Resize(0, -1),)],
    "plan for two": [
        join_of(contents(), recipe="min"),
        (protocol.Plan(0, False), IDS, IDS[:0], IDS),
        (protocol.Plan(1, False), IDS, IDS[:0], IDS),
    ],
    "leave nobody": ["join", (protocol.Leave(1 << 40),)],
}  # fmt: skip


def test_what_may_not_come_ends_the_connection_with_a_reason(tmp_path):
    with process(tmp_path, "--ram", "64MB") as node:
        check_serves(node.socket)
        before = quiet(node.process.pid, node.socket)
        for name, steps in NOT_NOW.items():
            with Raw(node.socket) as raw:
                for step in steps[:-1]:
                    ask = {"join": lambda raw=raw: raw.join(contents()), "area": raw.area}
                    said = ask[step]() if isinstance(step, str) else raw.ask(*step)
                    assert not isinstance(said, protocol.Failed), name
                answer = raw.ask(*steps[-1])
                assert isinstance(answer, protocol.Failed), (name, answer)
                assert 0 < len(answer.reason) <= 200, name
                assert raw.closed(), name
        after = quiet(node.process.pid, node.socket)
        assert (after["files"], after["threads"]) == (before["files"], before["threads"])
        assert after["rss KiB"] < before["rss KiB"] + (100 << 10)
        check_serves(node.socket)
        with contextlib.closing(Connection(node.socket, "observer")) as observer:
            assert observer.ask(protocol.Report(), protocol.Told)[0].report["counts"]["errors"] == 0


ODD = {
    "nothing much": {},
    "all shares": {"ram": (1 << 64) - 1, "disk": (1 << 64) - 1},
    "no shares": {"ram": 0, "disk": 0},
    "huge seed": {"seed": (1 << 64) - 1},
    "huge samples": {"sizes": np.array([1 << 40])},
    "huge and small samples": {"sizes": np.where(np.arange(40) % 2, 1 << 40, 1)},
    "names to confuse": {"name": "\n\x1b[2J\u202eadmin\0"},
}


@pytest.mark.parametrize("recipe", ["lru", "min", "hdmlp", "shade", "icache", "spider", "augury", "random", "sh-pqlfu"])
def test_odd_requests_that_are_allowed_are_answered(tmp_path, recipe):
    """Empty batches, the same id many times, scores and progress at the end of numbers, shares of everything."""
    big, none = np.full(4, 3e38), IDS[:0]
    with served(tmp_path, disk=tmp_path / "disk", disk_bytes=1 << 20) as node:
        for name, odd in ODD.items():
            with Raw(node.config.socket) as raw:
                assert isinstance(raw.join(contents(), recipe=recipe, **odd), protocol.Joined), name
                raw.area()
                for message, *arrays in (
                    (protocol.Take(0, 0, 0, 1 << 16), none),
                    (protocol.Plan(0, True), IDS, np.full(4, (1 << 31) - 1), IDS),
                    (protocol.Plan(0, False), none, none, none),
                    (protocol.Plan(0, False), np.zeros(10_000), none, np.zeros(10_000)),
                    (protocol.Learn(True), IDS, big, none),
                    (protocol.Learn(True), IDS * 0, -big, IDS),
                    (protocol.Progress(-1e308, [1e308, -1e308], [1e308] * 5000),),
                    (protocol.Take(0, 0, 0, 1 << 16), np.zeros(1000)),
                    (protocol.Take(0, 0, 0, 1 << 16), np.resize(np.arange(40), 10_000)),
                    (protocol.Take(63, 0, 1 << 16, 0, stalled=-1e308), np.arange(40)),
                    (protocol.Take(1, -1, 0, 0), np.repeat(np.arange(40), 3)),
                    (protocol.Wanted(1),),
                    (protocol.Unasked(), np.arange(40)),
                    (protocol.Offer(0), none, none),
                    (protocol.Lost(), np.zeros(40)),
                    (protocol.Resize(0, (1 << 64) - 1),),
                    (protocol.Resize(1, 0),),
                    (protocol.Leave(0),),
                    (protocol.Leave(0),),
                    (protocol.Drop([-1, 0, 0, 1 << 40]),),
                    (protocol.Look(),),
                    (protocol.Report(),),
                ):
                    answer = raw.ask(message, *arrays)
                    assert answer is not None, (name, message)
                    assert not isinstance(answer, protocol.Failed), (name, message, answer)
        assert node.report(0)["counts"]["errors"] == 0


def test_replayed_frames_are_only_requests(tmp_path):
    """The same offer again and again changes nothing, and neither does it on another connection."""
    items = contents()
    with served(tmp_path) as node, Reader(node.config.socket, items) as reader:
        reader.fill()
        for _ in range(100):
            assert reader.offer(range(40), items).refused == 0
        shelf = node.report(0)["shelves"][0]
        assert (shelf["samples"], shelf["used"]) == (40, 4000)
        with Raw(node.config.socket) as other:
            assert isinstance(other.ask(protocol.Offer(0), np.arange(40), np.arange(40)), protocol.Failed)


def test_thousands_of_hostile_frames_neither_end_nor_grow_a_node_in_this_process(tmp_path):
    with served(tmp_path, disk=tmp_path / "disk", disk_bytes=1 << 20) as node:
        attack(node.config.socket, seed=1, frames=1500)
        assert node.report(0)["counts"]["errors"] == 0
        check_serves(node.config.socket)
        until(lambda: node.report(0)["clients"] == 0)


def test_thousands_of_hostile_frames_neither_end_nor_grow_the_command(tmp_path):
    with process(tmp_path, "--ram", "64MB") as node:
        bystander = fuzz.Bystander(node.socket, samples=500)
        bystander.batch()
        attack(node.socket, seed=2, frames=1500)
        before = quiet_beside(node.process.pid, bystander)
        attack(node.socket, seed=3, frames=3000, beside=bystander.batch)
        after = quiet_beside(node.process.pid, bystander)
        assert bystander.wrong == 0
        assert bystander.hits > 0
        assert (after["files"], after["threads"]) == (before["files"], before["threads"])
        assert after["rss KiB"] < before["rss KiB"] + (16 << 10)
        assert bystander.report()["counts"]["errors"] == 0
        bystander.close()


def attack(path, seed, frames, beside=lambda: None):
    attackers = [fuzz.Attacker(path, seed * 10 + each) for each in range(2)]
    for done in range(0, frames, 100):
        for each in attackers:
            each.run(done // 2 + 50)
        beside()
    for each in attackers:
        each.close()


def quiet_beside(pid, bystander):
    until(lambda: bystander.report()["clients"] == 1)
    return fuzz.usage(pid)


def test_a_job_that_nobody_came_back_to_makes_way_for_the_next(tmp_path):
    with served(tmp_path, clients=4) as node:
        for _ in range(40):
            with Raw(node.config.socket) as raw:
                assert isinstance(raw.join(contents()), protocol.Joined)
            until(lambda: node.report(0)["clients"] == 0)
        assert len(node.report(0)["jobs"]) <= 4


def test_a_long_report_is_cut_and_says_so(tmp_path):
    with served(tmp_path) as node, contextlib.ExitStack() as stack:
        for _ in range(200):
            raw = stack.enter_context(Raw(node.config.socket))
            assert isinstance(raw.join(contents(samples=1), name="☃" * 200), protocol.Joined)
        report = raw.ask(protocol.Report()).report
        assert len(report["jobs"]) + report["left_out"] == 200


def test_a_large_dataset_does_not_hold_up_others(tmp_path):
    digests = np.random.default_rng(0).integers(0, 256, 32_000_000, np.uint8)
    with process(tmp_path, "--ram", "64MB") as node, Raw(node.socket) as large:
        protocol.send(large.socket, *_split(join_of([], digests=digests, sizes=np.array([100]))))
        waits = 0
        large.socket.setblocking(False)
        while True:
            try:
                assert isinstance(large.answer(), protocol.Joined)
                break
            except BlockingIOError:
                Connection(node.socket, "other").close()
                waits += 1
        assert waits > 0


def _split(request):
    return request[0], request[1:]


# -- Areas -------------------------------------------------------------------------------------------------------------


BAD_FILES = ["unsealed", "short", "empty", "read-only", "write-sealed", "pipe", "directory", "file"]


@pytest.mark.parametrize("kind", BAD_FILES)
def test_an_area_that_could_harm_the_node_is_refused(tmp_path, kind):
    with served(tmp_path) as node, Raw(node.config.socket) as raw, bad_file(tmp_path, kind) as file:
        assert isinstance(raw.ask(protocol.Area(0, 4096), file=file), protocol.Failed)
        check_serves(node.config.socket)


@contextlib.contextmanager
def bad_file(place, kind):
    reader, writer = os.pipe()
    (place / "file").write_bytes(bytes(8192))
    with (
        memory(8192) as unsealed,
        memory(4095, fcntl.F_SEAL_SHRINK) as short,
        memory(0, fcntl.F_SEAL_SHRINK) as empty,
        memory(8192, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE) as write_sealed,
        memory(8192, fcntl.F_SEAL_SHRINK) as good,
    ):
        opened = [reader, writer]
        opened += [os.open(path, os.O_RDONLY) for path in (place, place / "file", f"/proc/self/fd/{good}")]
        files = {"unsealed": unsealed, "short": short, "empty": empty, "write-sealed": write_sealed, "pipe": writer}
        try:
            yield (files | {"directory": opened[2], "file": opened[3], "read-only": opened[4]})[kind]
        finally:
            for each in opened:
                os.close(each)


@pytest.mark.parametrize("size", [0, -1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
@pytest.mark.parametrize("number", [0, -1, 64, 1 << 40])
def test_absurd_sizes_and_numbers_of_areas_are_refused(tmp_path, size, number):
    with served(tmp_path) as node, memory(1 << 41, fcntl.F_SEAL_SHRINK) as file, Raw(node.config.socket) as raw:
        assert isinstance(raw.ask(protocol.Area(number, size), file=file), protocol.Failed)


def test_memory_that_the_node_has_mapped_cannot_be_taken_away(tmp_path):
    """A node that copies into memory which is no longer there would be killed."""
    items = contents()
    with served(tmp_path) as node, Reader(node.config.socket, items) as owner, Raw(node.config.socket) as raw:
        owner.fill()
        raw.join(items)
        with memory(1 << 16, fcntl.F_SEAL_SHRINK) as file:
            raw.ask(protocol.Area(0, 1 << 16), file=file)
            with pytest.raises(PermissionError):
                os.ftruncate(file, 0)
            with pytest.raises(PermissionError):
                os.truncate(f"/proc/self/fd/{file}", 10)
            os.ftruncate(file, 1 << 17)
            assert isinstance(raw.ask(protocol.Take(0, 0, 0, 1 << 16), np.arange(40)), protocol.Taken)
            assert os.pread(file, 4000, 0) == b"".join(items)


def test_a_client_has_a_quota_of_areas(tmp_path):
    with served(tmp_path, client_bytes=1 << 20) as node:
        with Raw(node.config.socket) as raw:
            for _ in range(50):  # the same again replaces the one before
                assert isinstance(raw.area(3, 1 << 20), protocol.Done)
            assert isinstance(raw.ask(protocol.Drop([3])), protocol.Done)
            assert isinstance(raw.area(4, 1 << 20), protocol.Done)
            assert isinstance(raw.area(5, 4096), protocol.Failed)
        with Raw(node.config.socket) as other:  # each its own
            for number in range(64):
                assert isinstance(other.area(number, 1 << 14), protocol.Done)
            assert isinstance(other.area(0, (1 << 14) + 1), protocol.Failed)


def test_files_beside_a_packet_are_closed(tmp_path):
    with process(tmp_path, "--ram", "1MB") as node, memory(8192, fcntl.F_SEAL_SHRINK) as file:
        before = quiet(node.process.pid, node.socket)
        hello = fuzz.frame_of({"type": "Hello", "version": protocol.VERSION, "name": "x"}, [])
        area = fuzz.frame_of({"type": "Area", "number": 0, "size": 4096}, [])
        for frame, count in [(hello, 1), (hello, 2), (hello, 200), (area, 1), (b"noise", 3), (area, 5)] * 10:
            with Raw(node.socket, hello=False) as raw:
                raw.say(frame, [file] * count)
                raw.say(frame, [file] * count)
                while raw.answer() is not None:
                    pass
        assert quiet(node.process.pid, node.socket)["files"] == before["files"]


def test_a_node_that_runs_out_of_descriptors_keeps_its_clients(tmp_path):
    items = contents()
    with process(tmp_path, "--ram", "1MB") as node, Reader(node.socket, items) as reader:
        reader.fill()
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        with contextlib.ExitStack() as stack:
            refused = 0
            while not refused:
                raw = stack.enter_context(Raw(node.socket, hello=False))
                if not isinstance(raw.ask(protocol.Hello(protocol.VERSION, "x")), protocol.Welcome):
                    break
                refused = sum(isinstance(raw.area(number, 4096), protocol.Failed) for number in range(20))
            for _ in range(5):
                stack.enter_context(Raw(node.socket, hello=False))
                assert reader.take(range(40))[1] == items
        quiet_beside(node.process.pid, reader)
        check_serves(node.socket)


def test_memory_of_one_client_is_never_seen_by_another(tmp_path):
    """The node alone has both; areas of the same number are each client's own, and gone when it is."""
    items = contents()
    with process(tmp_path, "--ram", "1MB") as node, Reader(node.socket, items) as one:
        one.fill()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                two = Reader(node.socket, items[::-1])
                two.fill()
                os.write(writer, json.dumps(sorted(inodes(os.getpid()))).encode())
                signal.pause()
            finally:
                os._exit(0)
        try:
            theirs = set(json.loads(os.read(reader, 1 << 16)))
            assert one.take(range(40))[1] == items
            assert len(theirs) >= 2  # the child was forked with ours, too
            ours = inodes(os.getpid())
            new = theirs - ours
            assert len(new) == 1
            assert new <= inodes(node.process.pid)
            assert ours & inodes(node.process.pid)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reader)
            os.close(writer)
        quiet_beside(node.process.pid, one)
        assert not new & inodes(node.process.pid)


def inodes(pid):
    """Of all memory files that a process has open or mapped."""
    found = set()
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "/memfd:augury" in line:
            found.add(int(line.split()[4]))
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:augury" in os.readlink(file):
                found.add(file.stat().st_ino)
    return found


# -- Clients that are slow or silent -----------------------------------------------------------------------------------


def test_who_does_not_say_hello_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "GREETING", 0.2)
    with served(tmp_path) as node, Raw(node.config.socket, hello=False) as silent:
        assert silent.closed()
        with Raw(node.config.socket) as polite:
            time.sleep(0.5)
            assert isinstance(polite.ask(protocol.Report()), protocol.Told)


def test_who_does_not_read_its_answers_is_dropped_and_holds_up_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "ANSWER", 0.5)
    items = contents()
    with served(tmp_path) as node, Reader(node.config.socket, items) as other, Raw(node.config.socket) as deaf:
        other.fill()
        deaf.join(items)
        deaf.socket.setblocking(False)
        began, dropped = time.monotonic(), False
        while not dropped and time.monotonic() - began < SOON:
            try:
                protocol.send(deaf.socket, protocol.Look())
            except BlockingIOError:
                pass
            except (BrokenPipeError, ConnectionResetError):
                dropped = True
            assert other.take(range(40))[1] == items
        assert dropped


def test_a_client_that_is_stopped_holds_up_nobody(tmp_path):
    items = contents()
    with process(tmp_path, "--ram", "1MB") as node, Reader(node.socket, items) as other:
        other.fill()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                stopped = Reader(node.socket, items)
                os.write(writer, b"x")
                while True:
                    stopped.take(range(40))
            finally:
                os._exit(0)
        try:
            os.read(reader, 1)
            for _ in range(20):
                os.kill(pid, signal.SIGSTOP)
                for _ in range(10):
                    assert other.take(range(40))[1] == items
                os.kill(pid, signal.SIGCONT)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reader)
            os.close(writer)


def test_connections_of_a_user_are_limited(tmp_path):
    with served(tmp_path, clients=3) as node:
        clients = [Raw(node.config.socket) for _ in range(3)]
        with pytest.raises(NodeRefuses, match="3 connections"):
            Connection(node.config.socket, "one too many")
        for each in clients:
            each.close()
        until(lambda: node.report(0)["clients"] == 0)
        check_serves(node.config.socket)


# -- Users -------------------------------------------------------------------------------------------------------------


def who_am_i(path):
    return Connection(path, "visitor").welcome.pid


@as_root
def test_another_user_is_refused_by_the_system_and_by_the_node(open_place):
    log = open_place / "log"
    with process(open_place, "--ram", "1MB", "--log", str(log)) as node:
        assert os.stat(node.socket).st_mode & 0o777 == 0o600
        assert as_user(lambda: who_am_i(node.socket))[0].startswith("NodeGone")
        node.socket.parent.chmod(0o755)
        assert as_user(lambda: who_am_i(node.socket))[0].startswith("NodeGone")
        node.socket.chmod(0o777)
        told, pid = as_user(lambda: who_am_i(node.socket))
        assert told.startswith("NodeRefuses")
        assert "not for this user" in told
        written = settled(log.read_text)
        assert f"process {pid}" in written
        assert f"user {NOBODY}" in written
        with contextlib.closing(Connection(node.socket, "observer")) as observer:
            assert observer.ask(protocol.Report(), protocol.Told)[0].report["counts"]["refused"] == 1


@as_root
def test_a_group_is_let_in_by_its_first_or_any_other_membership(open_place):
    with process(open_place, "--ram", "1MB", "--group", str(TEAM)) as node:
        pid = node.process.pid
        assert as_user(lambda: who_am_i(node.socket), gid=TEAM)[0] == pid
        assert as_user(lambda: who_am_i(node.socket), groups=[7, TEAM, 9])[0] == pid
        assert as_user(lambda: who_am_i(node.socket), groups=[7, 9])[0].startswith("NodeGone")
        node.socket.parent.chmod(0o755)
        node.socket.chmod(0o777)
        assert as_user(lambda: who_am_i(node.socket), groups=[7, 9])[0].startswith("NodeRefuses")


@as_root
def test_users_see_their_own_jobs_and_nobody_elses(open_place):
    items, token = contents(), os.urandom(16)

    def visit():
        """With the name of the other's job, and with digests that are not the other's."""
        with Reader(node.socket, contents(seed=5), name="mine", token=token, mirrors=True) as visitor:
            levels = visitor.joined[1][0].tolist()
            report = visitor.report()
            seen = visitor.connection.ask(protocol.Look(), protocol.Seen)[1][0].tolist()
            found = visitor.take(range(40))[0].tolist()
            try:
                visitor.connection.ask(protocol.Stop(), protocol.Done)
            except NodeRefuses as error:
                return levels, seen, found, report, str(error)

    def share():
        """With the digests of the other's data."""
        with Reader(node.socket, items, name="mine") as visitor:
            found, came, _ = visitor.take(range(40))
            return found.tolist(), came == items

    with process(open_place, "--ram", "1MB", "--group", str(TEAM)) as node:
        with Reader(node.socket, items, name="a-secret-name", token=token) as owner:
            owner.fill()
            (levels, seen, found, report, refusal), _ = as_user(visit, gid=TEAM)
            assert set(levels) == set(seen) == set(found) == {-1}
            assert [job["name"] for job in report["jobs"]] == ["mine"]
            assert "a-secret-name" not in json.dumps(report)
            assert not any(blake3(each).hexdigest() in json.dumps(report) for each in items)
            assert "own user" in refusal
            (found, same), _ = as_user(share, gid=TEAM)
            assert set(found) == {0}
            assert same
            assert "a-secret-name" in json.dumps(owner.report())
        with contextlib.closing(Connection(node.socket, "root")) as root:
            root.ask(protocol.Stop(), protocol.Done)
        assert node.end() == 0


@as_root
def test_the_node_of_another_user_in_the_usual_place_is_not_asked(open_place, monkeypatch):
    """It would be told digests and bytes."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(open_place))
    path = default_socket()
    path.parent.mkdir()
    path.parent.chmod(0o777)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(NOBODY)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(os.fspath(path))
            listener.listen(5)
            os.write(writer, b"x")
            signal.pause()
        finally:
            os._exit(0)
    try:
        os.read(reader, 1)
        with pytest.raises(NodeRefuses, match=f"user {NOBODY}"):
            Connection(path, "victim")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


def test_names_cannot_forge_lines_of_the_log(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with served(tmp_path) as node:
        for name in ("x\nclient 1 (root) is welcome", "\x1b[2Jx", "x\r\u2028y"):
            with Raw(node.config.socket, hello=False) as raw:
                raw.ask(protocol.Hello(protocol.VERSION, name))
                raw.ask(protocol.Message.__subclasses__()[0](protocol.VERSION, name))
            with Raw(node.config.socket) as raw:
                raw.join(contents(), name=name)
            with Raw(node.config.socket) as raw:
                raw.say(struct.pack("<BBBBI", 0xA6, protocol.VERSION, 0, 0, 0) + msgspec.msgpack.encode({"type": name}))
                raw.answer()
        until(lambda: node.report(0)["clients"] == 0)
    assert all(line.isprintable() for line in caplog.messages)
