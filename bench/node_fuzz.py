"""A million hostile frames against a real node: it neither ends nor grows, and a good client beside gets right bytes.

    python bench/node_fuzz.py [--quick] [--json FILE] [--frames N] [--seed N]

Frames are requests of every kind with plausible, extreme and absurd values, the same with bits flipped, cut, lengthened
or said again, and noise; with no file, a good one, a bad one or several beside them. Attackers are processes with a
connection each, made anew when the node closes it. Beside them a client takes and offers samples and compares every
byte. Memory, descriptors and threads of the node are counted after a first part and at the end, and what its own checks
did not foresee ("errors") throughout.

Then the time of a request for digests that the node does not have, in the same run: wholly random ones, ones that
differ from held ones in one bit, and ones that begin like held ones. If one kind took longer, digests could be guessed.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from _common import arguments, limit, report, say
from augury.node import protocol
from augury.node.client import Connection, shared_memory
from augury.recipes import RECIPES

RAM = 64 << 20
AREA = 1 << 20
IDLE = 1.0
"""Seconds until a node that is left alone has cleaned up after its last client."""
ATTACKERS = 2
JOBS = 64
"""That attackers come back to: all recipes are among them."""
LONGEST = protocol.PACKET + 1000
"""Bytes of a frame: longer than the node takes, not longer than the system does."""
HEAD = struct.Struct("<BBBBI")
REQUESTS = [kind for kind in protocol.Message.__subclasses__() if kind.__name__ not in ("Stop", "Join", "Hello")]
"""Of both sides: an answer is no request, either. Stop is not tried: it would be obeyed."""
INTEGERS = [-(1 << 63), -(1 << 31), -2, -1, 0, 1, 2, 63, 64, 255, 4096, 1 << 31, 1 << 32, (1 << 63) - 1, (1 << 64) - 1]
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", "lru", "x" * 300, "\x1b[31m\nforged line", "\0", "é" * 100, "☃", "a" * 70_000]
_encode = msgspec.msgpack.encode


class Frames:
    """Makes frames. What it says about itself is `samples`: those of the job that an attacker has joined."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.samples = 100
        self._sent: list[bytes] = []
        self.memory = _memory(AREA, fcntl.F_SEAL_SHRINK)
        self._files = [
            *[self.memory] * 4,
            _memory(AREA, 0),
            _memory(10, fcntl.F_SEAL_SHRINK),
            _memory(0, fcntl.F_SEAL_SHRINK),
            _memory(AREA, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE),
            *os.pipe(),
            os.open("/", os.O_RDONLY),
            os.open(os.devnull, os.O_RDWR),
        ]

    def next(self) -> tuple[bytes, list[int]]:
        """One frame and the files beside it."""
        kind = self.rng.random()
        if kind < 0.05:
            frame = self.rng.bytes(int(self.rng.integers(1, 300)))
        elif kind < 0.15 and self._sent:
            frame = self._sent[int(self.rng.integers(len(self._sent)))]
        else:
            frame = self.request()
            if kind > 0.6:
                frame = self._damaged(frame)
        if len(frame) < 4096:
            self._sent[64:] = []
            self._sent.insert(0, frame)
        return frame[:LONGEST], self._beside()

    def request(self) -> bytes:
        """A whole frame of a random request."""
        kind = REQUESTS[int(self.rng.integers(len(REQUESTS)))]
        fields = {"type": kind.__name__} | {
            field.name: self._value(field.type) for field in msgspec.structs.fields(kind) if self.rng.random() < 0.97
        }
        if self.rng.random() < 0.03:
            fields[str(self._pick(TEXTS))] = self._nested()
        return frame_of(fields, self._arrays(kind, fields))

    def join(self) -> tuple[bytes, int]:
        """A join of one of some jobs with odd datasets, now and then of a new one; and its samples."""
        number = int(self.rng.integers(JOBS)) if self.rng.random() < 0.95 else int(self.rng.integers(1 << 32))
        odd = np.random.default_rng(number)
        samples = int(odd.integers(1, 200))
        sizes = [
            np.array([odd.choice([0, 1, 100, 4096, 1 << 20, 1 << 40])]),
            odd.integers(0, 5000, samples),
            np.full(samples, 1 << 40),
            np.zeros(samples, np.int64),
        ][odd.integers(4)]
        fields = {
            "type": "Join",
            "job": odd.bytes(16),
            "name": TEXTS[odd.integers(3)][:200],
            "recipe": list(RECIPES)[number % len(RECIPES)],
            "seed": abs(INTEGERS[odd.integers(len(INTEGERS))]),
            "samples": samples,
            "ram": abs(INTEGERS[odd.integers(len(INTEGERS))]),
            "disk": abs(INTEGERS[odd.integers(len(INTEGERS))]),
            "mirrors": bool(odd.random() < 0.1),
        }
        digests = np.random.default_rng(number % 4).integers(0, 256, samples * 32, np.uint8)
        return frame_of(fields, [digests, sizes.astype("<i8")]), samples

    def close(self) -> None:
        for each in set(self._files):
            os.close(each)

    def _beside(self) -> list[int]:
        chance = self.rng.random()
        if chance < 0.75:
            return []
        count = 1 if chance < 0.98 else int(self.rng.integers(2, 30))
        return [self._pick(self._files) for _ in range(count)]

    def _damaged(self, frame: bytes) -> bytes:
        data = bytearray(frame)
        for _ in range(int(self.rng.integers(1, 4))):
            at = int(self.rng.integers(len(data))) if data else 0
            match int(self.rng.integers(6)):
                case 0 | 1 if data:
                    data[at] ^= 1 << int(self.rng.integers(8))
                case 2:
                    del data[at:]
                case 3:
                    data[at:at] = self.rng.bytes(int(self.rng.integers(1, 20)))
                case 4 if len(data) > 8:
                    data[int(self.rng.integers(8))] = int(self.rng.integers(256))
                case _:
                    data[at : at + 8] = struct.pack("<q", int(self._pick(INTEGERS[:-1])))
        return bytes(data)

    def _value(self, kind: Any) -> Any:
        if self.rng.random() < 0.02:
            return self._nested()
        if kind is int:
            return int(self._pick(INTEGERS)) if self.rng.random() < 0.3 else int(self.rng.integers(0, 3))
        if kind is float:
            return self._pick(FLOATS) if self.rng.random() < 0.3 else float(self.rng.random())
        if kind is bool:
            return bool(self.rng.random() < 0.5)
        if kind is str:
            return self._pick(TEXTS)
        if kind is bytes:
            return self.rng.bytes(int(self._pick([0, 15, 16, 17])))
        inner = getattr(kind, "__args__", (int,))[-1]
        return [self._value(inner) for _ in range(int(self.rng.integers(0, 5)))]

    def _arrays(self, kind: type[protocol.Message], fields: dict[str, Any]) -> list[NDArray[Any]]:
        """As long as each other, mostly: others are found out at once."""
        lengths = (
            [self._length()] * len(kind.ARRAYS) if self.rng.random() < 0.8 else [self._length() for _ in kind.ARRAYS]
        )
        if kind is protocol.Plan and fields.get("timed") is False and self.rng.random() < 0.9:
            lengths[1] = 0
        return [self._array(each, length) for each, length in zip(kind.ARRAYS, lengths, strict=True)]

    def _length(self) -> int:
        length = int(self._pick([0, 1, 2, 8, 8, 8, 64, 64, 16_384, 20_000]))
        return min(length, 64) if self.rng.random() < 0.7 else length

    def _array(self, kind: str, length: int) -> NDArray[Any]:
        if kind == "<f4" and self.rng.random() < 0.8:
            return self.rng.random(length).astype(kind)
        if kind in ("<f4", "?", "u1", "i1"):
            return np.frombuffer(self.rng.bytes(length * np.dtype(kind).itemsize), kind)
        ids = self.rng.integers(0, self.samples, length)
        if length and self.rng.random() < 0.15:
            ids[int(self.rng.integers(length))] = int(self._pick(INTEGERS[:-1]))
        return ids.astype(kind)

    def _nested(self) -> Any:
        value: Any = self._pick([None, -1, 1.5, "x", b"x", True])
        for _ in range(int(self._pick([0, 1, 5, 500]))):
            value = [value] if self.rng.random() < 0.5 else {"a": value}
        return value

    def _pick(self, values: Sequence[Any]) -> Any:
        return values[int(self.rng.integers(len(values)))]


class Attacker:
    """One connection at a time, on which frames are sent whatever is answered."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.frames, self.sent, self.closed = path, Frames(seed), 0, 0
        self._socket: socket.socket | None = None

    def run(self, count: int) -> None:
        """Send so many frames."""
        while self.sent < count:
            if self._socket is None:
                self._connect()
            else:
                self._send(*self.frames.next())

    def close(self) -> None:
        self._hang_up()
        self.frames.close()

    def _connect(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(20.0)
        self._socket.connect(os.fspath(self.path))
        if self.frames.rng.random() < 0.02:
            return  # without a greeting
        self._send(frame_of({"type": "Hello", "version": protocol.VERSION, "name": "fuzz"}, []), [])
        if self._socket is not None:
            self._send(frame_of({"type": "Area", "number": 0, "size": AREA}, []), [self.frames.memory])
        if self._socket is not None and self.frames.rng.random() < 0.9:
            frame, self.frames.samples = self.frames.join()
            self._send(frame, [])

    def _send(self, frame: bytes, files: list[int]) -> None:
        """Send, and wait for whatever is answered: a frame that the node does not survive is then known."""
        assert self._socket is not None
        self.sent += 1
        try:
            socket.send_fds(self._socket, [frame], files)
            answer, beside, _, _ = self._socket.recvmsg(protocol.PACKET, socket.CMSG_SPACE(4))
        except (BrokenPipeError, ConnectionResetError):
            answer, beside = b"", []
        for _, _, data in beside:
            for each in struct.unpack(f"{len(data) // 4}i", data):
                os.close(each)
        if not answer or answer[8:].startswith(_FAILED):
            self._hang_up()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self.closed += 1
            self._socket.close()
            self._socket = None


_FAILED = _encode({"type": "Failed", "reason": ""})[:-8]


def frame_of(fields: dict[str, Any], arrays: Sequence[NDArray[Any]]) -> bytes:
    """A frame with its arrays inline, as protocol.send makes it."""
    body = _encode(fields)
    lengths = struct.pack(f"<{len(arrays)}Q", *(each.nbytes for each in arrays))
    return b"".join([HEAD.pack(0xA6, protocol.VERSION, len(arrays), 0, len(body)), body, lengths, *map(bytes, arrays)])


class Bystander:
    """A client that behaves: takes batches, offers what is missing, compares what it gets."""

    def __init__(self, path: Path, samples: int = 2000, size: int = 1000, seed: int = 7) -> None:
        self.data = np.random.default_rng(seed).integers(0, 256, (samples, size), np.uint8)
        digests = np.frombuffer(b"".join(blake3(row.tobytes()).digest() for row in self.data), np.uint8)
        self.batches = self.hits = self.wrong = 0
        self._rng, self._connection = np.random.default_rng(seed), Connection(path, "bystander")
        self._area = shared_memory(64 * size)
        join = protocol.Join(os.urandom(16), "bystander", "lru", 0, samples, samples * size, 0, False)
        self._connection.ask(join, protocol.Joined, (digests, np.array([size])), patience=60.0)

    def batch(self) -> None:
        """One batch; raises if the node does not answer in time."""
        ids, size = self._rng.choice(len(self.data), 64, replace=False), self.data.shape[1]
        number, at = self._connection.area_of(self._area)
        self._area[:] = 0
        request = protocol.Take(0, number, at, 64 * size)
        _, (_, _, found, offer, *_) = self._connection.ask(request, protocol.Taken, (ids,))
        rows = self._area[: 64 * size].reshape(64, size)
        self.wrong += int((rows[found >= 0] != self.data[ids[found >= 0]]).any(axis=1).sum())
        self.hits += int((found >= 0).sum())
        rows[found < 0] = self.data[ids[found < 0]]
        self._connection.ask(protocol.Offer(number), protocol.Offered, (ids[offer], np.flatnonzero(offer) * size + at))
        self.batches += 1

    def report(self) -> dict[str, Any]:
        return self._connection.ask(protocol.Report(), protocol.Told)[0].report

    def close(self) -> None:
        self._connection.close()


def usage(pid: int) -> dict[str, int]:
    """Memory (KiB), descriptors and threads of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    told = dict(line.split(":", 1) for line in lines)
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return {"rss KiB": int(told["VmRSS"].split()[0]), "files": files, "threads": int(told["Threads"])}


def absent_times(path: Path, rounds: int, batch: int = 64) -> dict[str, float]:
    """The median seconds of a request for digests that the node does not have, by how they were made; interleaved."""
    rng = np.random.default_rng(3)
    held = rng.integers(0, 256, (4096, 100), np.uint8)
    digests = np.array([list(blake3(row.tobytes()).digest()) for row in held], np.uint8)
    with contextlib.closing(Guesser(path, digests, 100)) as owner:
        for start in range(0, len(held), 256):
            owner.fill(held, np.arange(start, start + 256))
        kinds = guesses(digests, rng)
        clients = {name: Guesser(path, guess, 100) for name, guess in kinds.items()}
        spent: dict[str, list[float]] = {name: [] for name in clients}
        for turn in range(rounds):
            ids = rng.choice(len(held), batch, replace=False)
            names = list(clients)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                began = time.perf_counter()
                clients[name].take(ids)
                spent[name].append(time.perf_counter() - began)
        for each in clients.values():
            each.close()
    return {name: float(np.median(times)) for name, times in spent.items()}


def guesses(held: NDArray[np.uint8], rng: np.random.Generator) -> dict[str, NDArray[np.uint8]]:
    """Digests that nobody has, as far from and as close to held ones as they can be."""
    random = rng.integers(0, 256, held.shape, np.uint8)
    one_bit = held.copy()
    one_bit[np.arange(len(held)), rng.integers(0, 32, len(held))] ^= (1 << rng.integers(0, 8, len(held))).astype(
        np.uint8
    )
    prefix = held.copy()
    prefix[:, 16:] = random[:, 16:]
    return {"random": random, "one bit": one_bit, "prefix": prefix}


class Guesser:
    """A client that asks, takes nothing in and offers nothing."""

    def __init__(self, path: Path, digests: NDArray[np.uint8], size: int) -> None:
        self._connection, self._size = Connection(path, "guesser"), size
        self._area = shared_memory(256 * size)
        join = protocol.Join(os.urandom(16), "guesser", "lru", 0, len(digests), 1 << 30, 0, False)
        self._connection.ask(join, protocol.Joined, (digests.reshape(-1), np.array([size])), patience=60.0)

    def take(self, ids: NDArray[np.int64], admit: bool = False) -> protocol.Arrays:
        number, at = self._connection.area_of(self._area)
        request = protocol.Take(0, number, at, len(ids) * self._size, admit)
        return self._connection.ask(request, protocol.Taken, (ids,))[1]

    def fill(self, data: NDArray[np.uint8], ids: NDArray[np.int64]) -> None:
        self.take(ids, admit=True)
        self._area[: len(ids) * self._size] = data[ids].reshape(-1)
        number, at = self._connection.area_of(self._area)
        places = np.arange(len(ids)) * self._size + at
        kept = self._connection.ask(protocol.Offer(number), protocol.Offered, (ids, places))[0].kept
        assert kept == len(ids)

    def close(self) -> None:
        self._connection.close()


def _memory(size: int, seals: int) -> int:
    file = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def _attack(path: str, seed: int, count: int, done: Any) -> None:
    """A process: so many frames."""
    attacker = Attacker(Path(path), seed)
    try:
        attacker.run(count)
    finally:
        done.put((attacker.sent, attacker.closed))
        attacker.close()


@contextlib.contextmanager
def _node(place: Path) -> Iterator[tuple[Path, int]]:
    path = place / "node" / "node.sock"
    command = [sys.executable, "-m", "augury.cli", "serve", "--socket", str(path), "--ram", str(RAM)]
    command += ["--disk", f"{place / 'disk'}:{RAM}", "--log", str(place / "log")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith(b"ready")
        yield path, process.pid
        assert process.poll() is None, "the node has ended"
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def _wave(path: Path, seed: int, count: int, beside: Callable[[], None]) -> tuple[int, int, float]:
    """Attackers at once, with somebody beside them; frames, connections, seconds."""
    context = multiprocessing.get_context("spawn")
    done, part = context.Queue(), count // ATTACKERS
    attackers = [
        context.Process(target=_attack, args=(str(path), seed + each, part, done), daemon=True)
        for each in range(ATTACKERS)
    ]
    over = threading.Event()

    def accompany() -> None:
        while not over.is_set():
            beside()
            over.wait(0.02)

    companion = threading.Thread(target=accompany)
    began = time.perf_counter()
    companion.start()
    try:
        for each in attackers:
            each.start()
        told = [done.get() for _ in attackers]
        for each in attackers:
            each.join()
    finally:
        over.set()
        companion.join()
    assert all(each.exitcode == 0 for each in attackers), "an attacker was not answered"
    return sum(sent for sent, _ in told), sum(closed for _, closed in told), time.perf_counter() - began


def _leftover(pid: int, path: Path) -> dict[str, int]:
    """What the node uses when its attackers have gone and their jobs have been given up."""
    with contextlib.closing(Connection(path, "observer")) as observer:
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            told = observer.ask(protocol.Report(), protocol.Told)[0].report
            if told["clients"] <= 2 and len(told["jobs"]) <= 1:
                break
            time.sleep(0.2)
    time.sleep(IDLE)
    return usage(pid)


def main() -> None:
    options = arguments(
        __doc__.splitlines()[0],
        frames={"type": int, "default": None, "help": "how many (a million)"},
        seed={"type": int, "default": 0},
    )
    count = options.frames or (20_000 if options.quick else 1_000_000)
    with tempfile.TemporaryDirectory() as directory, _node(Path(directory)) as (path, pid):
        bystander = Bystander(path)
        say("a first part, after which the node should not grow any more")
        _wave(path, options.seed, max(count // 10, 5000), bystander.batch)
        before = _leftover(pid, path)
        say(f"{count} frames")
        sent, connections, spent = _wave(path, options.seed + 1000, count, bystander.batch)
        after = _leftover(pid, path)
        told = bystander.report()
        batches = {"batches": bystander.batches, "hits": bystander.hits}
        bystander.close()
        times = absent_times(path, 300 if options.quick else 3000)
        log = (Path(directory) / "log").read_text()
    for trace in log.split(" ERROR ")[1:6]:
        say(f"unforeseen: {trace[:3000]}")
    slowest, fastest = max(times.values()), min(times.values())
    report(
        {
            "frames": sent,
            "frames per second": round(sent / spent),
            "connections": connections,
            "node": {"before": before, "after": after, "log KiB": len(log) >> 10, "counts": told["counts"]},
            "growth of memory, KiB": limit(after["rss KiB"] - before["rss KiB"], at_most=8 << 10),
            "growth of descriptors": limit(after["files"] - before["files"], at_most=0),
            "growth of threads": limit(after["threads"] - before["threads"], at_most=0),
            "unforeseen errors": limit(told["counts"].get("errors", 0), at_most=0),
            "client beside": batches | {"wrong samples": limit(bystander.wrong, at_most=0)},
            "absent digests, microseconds": {name: round(value * 1e6, 1) for name, value in times.items()},
            "slowest over fastest kind": limit(slowest / fastest, at_most=1.1),
        },
        options.json,
    )


if __name__ == "__main__":
    main()
