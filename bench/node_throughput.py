"""Batches of samples that are all held: the node, a Redis server doing the same, and a bare copy in memory.

    python bench/node_throughput.py [--quick] [--json FILE]

Two client processes at once read batches of random samples, more of them than a processor's caches hold. From the node
(`augury serve`) they take each batch by one request, whose bytes the node copies into the client's own memory
(RemoteCache.take into shared_memory; recipe minio, and everything fits). From a real redis-server on its Unix socket,
which saves nothing, they get it by one MGET through redis-py with its C parser: a list of bytes; the keys are the
digests, and are made outside the timing. The bare copy is np.take of the same rows into one buffer that is used again,
by one process. All take turns in short rounds, and the median of the rounds' ratios counts: what else the machine does
disturbs neighbours alike.

Expected at 100 KB with 2 clients: at least 3 x Redis' bytes per second, and 0.4 x of the bare copy; at 3 KB in batches
of 256 at least 2 x Redis'. For information: the same with 1 client, with the whole of what a loader does around it
(RemoteGatherer.now), and the bare copy by all clients at once. Needs redis-server, redis and hiredis.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from _common import arguments, limit, report, say
from _serve import serving
from augury.buffers import BufferPool
from augury.digests import digests_of
from augury.fetch import Fetcher
from augury.node.client import shared_memory
from augury.node.gather import RemoteGatherer
from augury.node.remote import Membership, RemoteCache
from augury.recipes import RECIPES
from augury.sources.array import ArraySource

NODE, REDIS, COPY, WHOLE = "node", "redis", "bare copy", "node, as a loader"
SYSTEMS = (NODE, REDIS, COPY, WHOLE)
INSTALL = {
    "redis-server": "install it with: apt install redis-server",
    "redis": "install it with: pip install redis hiredis",
}


class Case(NamedTuple):
    """What is read."""

    samples: int
    size: int
    batch: int
    ratio: float
    """Of the node's bytes per second to Redis': what is asked for with two clients."""
    of_copy: float | None
    """The same of those of a bare copy."""


class Round(NamedTuple):
    """What one client did in a round."""

    rate: float
    """Bytes per second."""
    latencies: NDArray[np.float64]


Read = Callable[[int], Any]


# -- a client's process -------------------------------------------------------------------------------------


def client(case: Case, number: int, node: Path, redis_socket: Path, line: Connection, start: Any) -> None:
    """Read from whom it is told, for so long, and say how fast that was."""
    reading = Reading(case, number, node, redis_socket)
    line.send("ready")
    while (told := line.recv()) is not None:
        what, argument = told
        if what == "fill":
            reading.fill()
            line.send("filled")
        elif what == "check":
            reading.check()
            line.send("checked")
        else:
            start[argument[1]].wait()
            line.send(timed(reading.systems[what], argument[0], case.size * case.batch))
    reading.close()


def timed(read: Read, duration: float, nbytes: int) -> Round:
    latencies = []
    began = now = time.perf_counter()
    at = 0
    while now < began + duration:
        read(at)
        before, now = now, time.perf_counter()
        latencies.append(now - before)
        at += 1
    return Round(at * nbytes / (now - began), np.array(latencies))


class Reading:
    """One client of all systems. The batches are drawn, and Redis' keys listed, before anything is timed."""

    def __init__(self, case: Case, number: int, node: Path, redis_socket: Path) -> None:
        import redis

        self.case, self.first = case, number == 0
        self.rows = np.random.default_rng(0).integers(0, 256, (case.samples, case.size), np.uint8)
        source = ArraySource(self.rows)
        digests = digests_of(source)
        assert digests is not None
        self.keys = [digest.tobytes() for digest in digests]
        # Of each client its own: drawn again and again in the same order, as long as a round lasts.
        draws = np.random.default_rng(1 + number)
        count = max(8, 4 * case.samples // case.batch)
        self.batches = [draws.integers(0, case.samples, case.batch) for _ in range(count)]
        self.named = [[self.keys[id] for id in ids.tolist()] for ids in self.batches]
        member = Membership(b"node throughput!", "bench", RECIPES["minio"], 0, self.rows.nbytes, 0, mirrors=False)
        self.cache = RemoteCache(node, digests, source.catalog.sizes, "", member)
        self.fetcher = Fetcher(source, 4, 0)
        self.gatherer = RemoteGatherer(source, self.cache, self.fetcher, BufferPool())
        self.area = shared_memory(case.batch * case.size)[: case.batch * case.size]
        self.buffer = np.empty((case.batch, case.size), np.uint8)
        self.redis = redis.Redis(unix_socket_path=str(redis_socket))
        self.systems: dict[str, Read] = {
            NODE: self.from_node,
            REDIS: lambda at: self.redis.mget(self.named[at % count]),
            COPY: lambda at: self.rows.take(self.batches[at % count], axis=0, out=self.buffer, mode="clip"),
            WHOLE: lambda at: self.gatherer.now(self.batches[at % count]),
        }

    def from_node(self, at: int) -> NDArray[np.uint8]:
        taken = self.cache.take(self.batches[at % len(self.batches)], 0, True, False, self.area)
        assert taken is not None, "the node has gone"
        assert not taken.found.any(), "not everything is held in memory"
        return self.area

    def fill(self) -> None:
        """Bring everything into the node and into Redis."""
        for start in range(0, self.case.samples, self.case.batch):
            self.gatherer.now(np.arange(start, min(start + self.case.batch, self.case.samples)))
        for key, row in zip(self.keys, self.rows, strict=True):
            self.redis.set(key, row.tobytes())

    def check(self) -> None:
        """Whether all systems give the bytes that belong there."""
        for at in range(8):
            expected = self.rows[self.batches[at]]
            assert np.array_equal(self.from_node(at), expected.reshape(-1)), "the node gave other bytes"
            assert self.systems[REDIS](at) == [row.tobytes() for row in expected], "Redis gave other bytes"
            assert np.array_equal(self.systems[COPY](at), expected)
            assert np.array_equal(self.systems[WHOLE](at).rows, expected), "the node gave a loader other bytes"

    def close(self) -> None:
        self.redis.close()
        self.fetcher.close()
        self.cache.close()


# -- the comparison -----------------------------------------------------------------------------------------


class Crowd:
    """Client processes, as the one that leads them sees them."""

    def __init__(self, case: Case, size: int, node: Path, redis_socket: Path) -> None:
        context = multiprocessing.get_context("spawn")
        gates = {count: context.Barrier(count) for count in range(1, size + 1)}
        self._lines, self._processes = [], []
        for number in range(size):
            mine, theirs = context.Pipe()
            process = context.Process(target=client, args=(case, number, node, redis_socket, theirs, gates))
            process.start()
            theirs.close()
            self._lines.append(mine)
            self._processes.append(process)
        self._answers(size)
        self._ask(1, "fill", None)
        self._ask(size, "check", None)

    def run(self, clients: int, system: str, duration: float) -> Round:
        """So many clients at once: their bytes per second together."""
        rounds = self._ask(clients, system, (duration, clients))
        return Round(sum(each.rate for each in rounds), np.concatenate([each.latencies for each in rounds]))

    def check(self) -> None:
        self._ask(len(self._lines), "check", None)

    def close(self) -> None:
        for line, process in zip(self._lines, self._processes, strict=True):
            line.send(None)
            process.join()

    def _ask(self, clients: int, what: str, argument: Any) -> list[Any]:
        for line in self._lines[:clients]:
            line.send((what, argument))
        return self._answers(clients)

    def _answers(self, clients: int) -> list[Any]:
        return [line.recv() for line in self._lines[:clients]]  # of one that has died: EOFError


@contextmanager
def redis_server(directory: Path) -> Iterator[Path]:
    socket = directory / "redis.sock"
    command = ["redis-server", "--save", "", "--appendonly", "no", "--port", "0", "--unixsocket", str(socket)]
    process = subprocess.Popen([*command, "--dir", str(directory)], stdout=subprocess.DEVNULL)
    try:
        while not socket.exists():
            if process.poll() is not None:
                raise RuntimeError("redis-server has ended")
            time.sleep(0.01)
        yield socket
    finally:
        process.terminate()
        process.wait()


def measure(case: Case, rounds: int, duration: float) -> dict[str, Any]:
    """All systems in turn, with one client and with two."""
    contests = [(clients, system) for clients in (1, 2) for system in SYSTEMS]
    done: dict[tuple[int, str], list[Round]] = {contest: [] for contest in contests}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="augury-bench-")))
        node = stack.enter_context(serving(directory, case.samples * case.size + (1 << 20)))
        crowd = Crowd(case, 2, node.socket, stack.enter_context(redis_server(directory)))
        stack.callback(crowd.close)
        for contest in contests:
            crowd.run(*contest, duration / 2)
        for _ in range(rounds):
            for contest in contests:
                done[contest].append(crowd.run(*contest, duration))
        crowd.check()
    return {
        "samples": case.samples,
        "bytes": case.size,
        "batch": case.batch,
        **{f"{clients} clients": summary(case, clients, done) for clients in (1, 2)},
    }


def summary(case: Case, clients: int, done: dict[tuple[int, str], list[Round]]) -> dict[str, Any]:
    rates = {system: np.array([each.rate for each in done[clients, system]]) for system in SYSTEMS}
    alone = np.array([each.rate for each in done[1, COPY]])
    asked = clients == 2
    return {
        **{system: figures(done[clients, system]) for system in rates},
        "node / redis": compared(rates[NODE] / rates[REDIS], case.ratio if asked else None),
        "node / bare copy by one": compared(rates[NODE] / alone, case.of_copy if asked else None),
        "node, as a loader / redis": compared(rates[WHOLE] / rates[REDIS], None),
        "node, as a loader / bare copy by one": compared(rates[WHOLE] / alone, None),
    }


def figures(rounds: list[Round]) -> dict[str, float]:
    times = np.concatenate([each.latencies for each in rounds]) * 1e3
    return {
        "MB/s": round(float(np.median([each.rate for each in rounds])) / 1e6, 1),
        "p50 ms": round(float(np.percentile(times, 50)), 3),
        "p99 ms": round(float(np.percentile(times, 99)), 3),
    }


def compared(ratios: NDArray[np.float64], at_least: float | None) -> dict[str, Any]:
    """The median round, beside what is asked for, and the middle half of the rounds."""
    middle = [round(float(each), 3) for each in np.percentile(ratios, (25, 75))]
    value = float(np.median(ratios))
    return (limit(value, at_least) if at_least is not None else {"value": round(value, 3)}) | {"middle half": middle}


def show(name: str, result: dict[str, Any]) -> None:
    say(f"{name}: {result['samples']} samples")
    for clients in (1, 2):
        say(f"  {clients} client{'s at once' if clients > 1 else ''}")
        for key, value in result[f"{clients} clients"].items():
            say(f"    {key:<38} {speed(value) if 'MB/s' in value else ratio(value)}")


def speed(value: dict[str, float]) -> str:
    return f"{value['MB/s']:>8.1f} MB/s   p50 {value['p50 ms']:.3f} ms, p99 {value['p99 ms']:.3f} ms"


def ratio(value: dict[str, Any]) -> str:
    low, high = value["middle half"]
    asked = f"asked for {value['at_least']}: {'yes' if value['reached'] else 'NO'}" if "at_least" in value else ""
    return f"{value['value']:>8.2f} ({low:.2f} to {high:.2f})   {asked}".rstrip()


def missing() -> str | None:
    if shutil.which("redis-server") is None:
        return "redis-server"
    try:
        import hiredis  # noqa: F401
        import redis  # noqa: F401
    except ImportError:
        return "redis"
    return None


def main() -> int:
    options = arguments(__doc__ or "")
    if (what := missing()) is not None:
        say(f"{what} is not there: {INSTALL[what]}")
        return 2
    os.environ.pop("AUGURY_NODE", None)
    part, rounds, duration = (10, 3, 0.1) if options.quick else (1, 15, 0.4)
    cases = {
        "100 KB by 64": Case(3_000 // part, 100_000, 64, 3, 0.4),
        "100 KB by 256": Case(3_000 // part, 100_000, 256, 3, 0.4),
        "3 KB by 256": Case(100_000 // part, 3_072, 256, 2, None),
    }
    results = {}
    for name, case in cases.items():
        say(f"{name} ...")
        results[name] = measure(case, rounds, duration)
        show(name, results[name])
    load = [round(each, 2) for each in os.getloadavg()]  # of everything that ran, this included
    report({"benchmark": "node_throughput", "load": load} | results, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
