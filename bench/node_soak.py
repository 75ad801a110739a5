"""A node under faults: four clients of two users check every byte while everything is killed, stopped, filled, damaged.

    python bench/node_soak.py [--quick] [--json FILE] [--seed N] [--faults N]

`augury serve` runs as one user, its clients as two (where the soak is started by root; else all are one's own), with
little memory and a disk tier on a file system of its own. Violations: a wrong byte or label, a client without a batch
for more than 10 s, an end or exception that nobody caused, anything left behind (counted before and after), a job that
the node keeps after its client was killed, a client that does not come back. Exits with 1 if there was one.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process that forks has no threads
os.environ.pop("AUGURY_NODE", None)

import bisect
import contextlib
import dataclasses
import gc
import io
import json
import random
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import augury.cli
import augury.commands.digest
from _common import arguments, say
from _soak_client import CLIENTS, Beats, become, into, make_world, rehearse, resident_memory, run
from augury.node import protocol
from augury.node.client import Connection, NodeGone
from augury.node.config import Config
from augury.node.daemon import Node
from augury.node.files import footprint

FAULTS, QUICK = 220, 16
LAST = 0.25
"""In this last part of the run the node is not killed: it must come through all that happens to its clients."""
CALM = 25
"""After so many faults there are none until every client has its job and its hits back."""
LONGEST_GAP = 10.0
"""Seconds that a client may be without a batch."""
RETURN = 40.0
"""Seconds until all clients must be back at a node that was restarted. (They look for it ever more seldom.)"""
RELEASE = 5.0
"""Seconds until a node must have given back what a killed client had."""
LINGER = 20.0
"""The same for the job of worker processes, which waits a while for the workers of the next epoch."""
THEIRS = ("pymp-", "torch_", "sem.")
"""What multiprocessing, torch and the C library's semaphores leave behind where their processes are killed."""
ENOUGH = 20
"""Violations after which the run ends."""
GROWTH = 24 << 20
"""Bytes of memory that a process may have gained over the run: the C library's heap breathes."""
RAM, DISK, SYSTEM = 3 << 20, 8 << 20, 16 << 20
FIRST_USER, SECOND_USER, GROUP = 61_001, 61_002, 61_003
_FILE = re.compile(r"[0-9a-f]{64}-\d+")


class TooMany(Exception):
    """There is no use in going on."""


class Soak:
    """The node, its clients, what is done to them, and what was seen."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.rng, self.seed = place, random.Random(seed), seed
        self.root = os.geteuid() == 0
        self.violations: list[str] = []
        self.faults: list[tuple[float, str]] = []
        self.gaps: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        self.reports: dict[int, dict[str, Any]] = {}
        """The last one of each node, by its process."""
        self.longest_release = self.longest_return = 0.0
        self.hits: dict[str, float] = {}
        self._run = place / "run"
        self.tier = place / "tier"
        self._make_places()
        self.own_system = os.path.ismount(self.tier)
        self.world = make_world(place, self._run / "s" / "node.sock")
        self._digest()
        self._rehearse()
        self.beats = Beats()
        self.pids = [0] * len(CLIENTS)
        self._groups: set[int] = set()
        """Of all processes that were ever started."""
        self._turns = [0] * len(CLIENTS)
        self._since = [0.0] * len(CLIENTS)
        """When each was started or let go on: the time before is not its own."""
        self._stopped = [False] * len(CLIENTS)
        self._hung = [False] * len(CLIENTS)
        self.node = 0
        self._ready = False
        self._node_first: dict[str, int] = {}
        self._before = self._litter()

    # -- processes

    def start_node(self) -> None:
        """Start it, and see that it is ready and has found what the one before had left."""
        kept, began, self._ready = self._files(), time.monotonic(), False
        moment = time.time()
        arguments = ["serve", "--ram", str(RAM), "--disk", f"{self.tier}/cache:{DISK}"]
        arguments += ["--socket", str(self.world.socket), "--client-bytes", "64MB"]
        arguments += ["--group", str(GROUP)] if self.root else []
        self.node = self._fork("node", FIRST_USER, lambda: _serve(arguments), groups=[GROUP])
        report = self._wait_for(lambda: self.report() or not self.node, LONGEST_GAP)
        if not isinstance(report, dict):
            self.violate("the node has not started")
            raise TooMany
        self._ready = True
        self.counts["node starts"] += 1
        self.counts["slowest node start, ms"] = max(
            self.counts["slowest node start, ms"], int(1000 * (time.monotonic() - began))
        )
        if not self._node_first:  # while nobody is connected
            self.pump(0.5)
            self._node_first = self._what_it_has(self.node)
        found = report["shelves"][1]["samples"]
        if found < 0.9 * len(kept) - 8:
            self.violate(f"a restarted node has found {found} of {len(kept)} files that the one before had left")
        stale = [file for file in self._files("new-") if _mtime(file) < moment - 1]
        if stale:
            self.violate(f"files half written by an earlier node are left: {stale[:3]}")

    def start_client(self, at: int) -> None:
        client, turn = CLIENTS[at], self._turns[at]
        self._turns[at] += 1
        self.beats.set(at, "lives", 0)
        uid = SECOND_USER if client.second_user else FIRST_USER
        self.pids[at] = self._fork(
            client.name, uid, lambda: run(at, self.world, self.beats, turn, self.seed), groups=[GROUP]
        )
        self._since[at], self._hung[at] = time.monotonic(), False
        self.counts["client starts"] += 1

    def _fork(self, name: str, uid: int, act: Callable[[], None], groups: list[int] | None = None) -> int:
        if pid := os.fork():
            self._groups.add(pid)
            return pid
        code = 1
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            into(self.world.logs / f"{name}.log")
            os.environ["TMPDIR"] = tempfile.tempdir = str(self.world.temporary)
            sys.addaudithook(_tell_of_files)
            become(uid if self.root else None, groups or [])
            act()
            code = 0
        except BaseException:
            said = traceback.format_exc()
            with contextlib.suppress(RuntimeError):  # a worker's death may be told at any time
                time.sleep(0.1)
            print(said, file=sys.stderr)
        finally:
            sys.stdout.flush()
            os._exit(code)

    def report(self) -> dict[str, Any] | None:
        """What the node says of itself; None while it is not there. Nothing stays open: children would inherit it."""
        if not self.node:
            return None
        with contextlib.suppress(NodeGone):
            connection = Connection(self.world.socket, "soak")
            try:
                report = connection.ask(protocol.Report(), protocol.Told)[0].report
                self.reports[self.node] = report
                return report
            except NodeGone:
                return None
            finally:
                connection.close()
        return None

    # -- watching

    def pump(self, seconds: float) -> None:
        """Let time pass, and see that all is well meanwhile."""
        end = time.monotonic() + seconds
        while True:
            self._look()
            if time.monotonic() >= end:
                return
            time.sleep(0.01)

    def _wait_for(self, there: Callable[[], Any], seconds: float) -> Any:
        end = time.monotonic() + seconds
        while not (value := there()) and time.monotonic() < end:
            self.pump(0.03)
        return value

    def _look(self) -> None:
        now = time.monotonic()
        for at, pid in enumerate(self.pids):
            if not pid:
                continue
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                name = CLIENTS[at].name
                self.violate(f"client {name} has ended by itself, with status {status}: {self._tail(name)}")
                self.start_client(at)
            elif not self._stopped[at]:
                self._watch(at, max(self.beats.get(at, "beat") / 1e9, self._since[at]), now)
        if self.node and os.waitpid(self.node, os.WNOHANG)[0]:
            self.node = 0
            self.violate(f"the node has ended by itself: {self._tail('node')}")
            if self._ready:
                self.start_node()

    def _watch(self, at: int, since: float, now: float) -> None:
        gap = now - since
        if gap > 0.1 and self.faults:
            first = bisect.bisect_left(self.faults, (since, ""))
            kind = self.faults[min(first, len(self.faults) - 1)][1]
            self.gaps[kind] = max(self.gaps.get(kind, 0.0), gap)
        if gap > LONGEST_GAP and not self._hung[at]:
            self._hung[at] = True
            os.kill(self.pids[at], signal.SIGUSR1)
            time.sleep(0.5)
            recent = [f"{kind} {now - moment:.1f} s ago" for moment, kind in self.faults[-4:]]
            self.violate(f"client {CLIENTS[at].name} hangs; faults: {recent}: {self._tail(CLIENTS[at].name, 6000)}")
        elif gap < 1:
            self._hung[at] = False

    def violate(self, what: str) -> None:
        say(f"VIOLATION after {len(self.faults)} faults: {what}")
        self.violations.append(what)
        if len(self.violations) >= ENOUGH:
            raise TooMany

    def _tail(self, name: str, length: int = 2500) -> str:
        log = self.world.logs / f"{name}.log"
        return log.read_text(errors="replace")[-length:] if log.exists() else "(it has said nothing)"

    # -- faults

    def kinds(self) -> dict[str, tuple[int, Callable[[], None]]]:
        """What may happen, and how often beside the others."""
        node = {
            "node killed": (14, self.kill_node),
            "node terminated": (6, self.terminate_node),
        }
        disk = {"disk full": (6, self.fill_disk), "node killed, disk full": (2, self.kill_node_with_full_disk)}
        others = {
            "node stopped": (8, self.stop_node),
            "client killed": (24, self.kill_client),
            "worker killed": (6, self.kill_worker),
            "client stopped": (6, self.stop_client),
            "bits flipped": (12, lambda: self.damage(_flip)),
            "files cut": (6, lambda: self.damage(_cut)),
            "files deleted": (6, lambda: self.damage(lambda path, rng: path.unlink())),
            "garbage sent": (10, self.send_garbage),
        }
        return node | (disk if self.own_system else {}) | others

    def inject(self, kinds: dict[str, tuple[int, Callable[[], None]]]) -> None:
        names = list(kinds)
        name = self.rng.choices(names, [kinds[each][0] for each in names])[0]
        self.faults.append((time.monotonic(), name))
        kinds[name][1]()

    def kill_node(self) -> None:
        self._end_node(signal.SIGKILL)
        self._go_without()
        self.start_node()

    def terminate_node(self) -> None:
        self._see_node_end()
        self._go_without()
        self.start_node()

    def _see_node_end(self) -> None:
        self.report()
        code = self._end_node(signal.SIGTERM)
        if code != 0:
            self.violate(f"the node, told to end, has ended with {code}: {self._tail('node')}")
        if left := os.listdir(self.world.socket.parent):
            self.violate(f"the node has left {left} beside its socket")

    def _end_node(self, number: int) -> int | None:
        if not self.node:
            return 0
        pid, self.node = self.node, 0
        os.kill(pid, number)
        deadline = time.monotonic() + LONGEST_GAP
        while time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            self.pump(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return None

    def _go_without(self) -> None:
        """A while without a node, in which other things may happen."""
        kinds = self.kinds()
        self.pump(self.rng.uniform(0, 1.5))
        if self.rng.random() < 0.3:
            cheap = ("client killed", "worker killed", "bits flipped", "files cut", "files deleted")
            self.inject({name: kinds[name] for name in cheap})
        self.pump(self.rng.uniform(0, 1.5))

    def stop_node(self) -> None:
        self._pause(self.node, self.rng.uniform(0.05, 3))

    def _pause(self, pid: int, seconds: float) -> None:
        if not pid:  # it has ended by itself; 0 would be all of us
            return
        os.kill(pid, signal.SIGSTOP)
        self.pump(seconds)
        os.kill(pid, signal.SIGCONT)

    def stop_client(self) -> None:
        at = self.rng.randrange(len(CLIENTS))
        self._stopped[at] = True
        self._pause(self.pids[at], self.rng.uniform(0.05, 4))
        self._stopped[at], self._since[at] = False, time.monotonic()

    def kill_client(self) -> None:
        at = self.rng.choice([at for at, client in enumerate(CLIENTS) if not client.lasts])
        pid = self.pids[at]
        self._end_client(at)
        self.start_client(at)
        if self.node and not CLIENTS[at].workers:
            self._see_released(pid)

    def _end_client(self, at: int) -> None:
        pid, self.pids[at] = self.pids[at], 0
        if not pid:
            return
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def _see_released(self, pid: int) -> None:
        """The node must notice that a client has gone, and end its job."""
        began = time.monotonic()

        def released() -> bool:
            report = self.report()
            return report is not None and not [job for job in report["jobs"] if job["name"].endswith(f"-{pid}")]

        if not self._wait_for(released, RELEASE):
            self.violate(f"the node still has the job of a client that was killed {RELEASE} s ago")
        self.longest_release = max(self.longest_release, time.monotonic() - began)

    def kill_worker(self) -> None:
        at = next(at for at, client in enumerate(CLIENTS) if client.workers)
        workers = _children(self.pids[at])
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(workers), signal.SIGKILL)

    def fill_disk(self) -> None:
        with self._full_disk():
            self.pump(self.rng.uniform(0.2, 2))

    def kill_node_with_full_disk(self) -> None:
        with self._full_disk():
            self._end_node(signal.SIGKILL)
            self.start_node()
            self.pump(0.5)

    @contextlib.contextmanager
    def _full_disk(self) -> Iterator[None]:
        ballast = self.tier / "ballast"
        with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        try:
            yield
        finally:
            ballast.unlink()

    def damage(self, act: Callable[[Path, random.Random], None]) -> None:
        files = self._files()
        for path in self.rng.sample(files, min(len(files), self.rng.randint(1, 40))):
            with contextlib.suppress(OSError):  # it has left meanwhile
                act(path, self.rng)
                self.counts["files damaged"] += 1
        self.pump(self.rng.uniform(0, 0.3))

    def send_garbage(self) -> None:
        for _ in range(self.rng.randint(1, 12)):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as wire:
                wire.settimeout(2.0)
                wire.connect(str(self.world.socket))
                self._babble(wire)
        self.pump(self.rng.uniform(0, 0.2))

    def _babble(self, wire: socket.socket) -> None:
        """Nothing, noise, noise behind a true greeting, or a file that is no memory."""
        way = self.rng.randrange(4)
        if way == 0:
            return
        if way > 1:
            protocol.send(wire, protocol.Hello(protocol.VERSION, "garbage"))
            protocol.receive(wire, protocol.answers, 1 << 20)
        if way == 3:
            with tempfile.TemporaryFile(dir=self.place) as file:
                protocol.send(wire, protocol.Area(0, 1 << 20), file=file.fileno())
        else:
            wire.send(self.rng.randbytes(self.rng.randint(1, 3000)))
        wire.recv(4096)

    # -- calm, and the end

    def calm(self) -> None:
        """No faults until every client has its job, nobody else has one, and all have hits again."""
        began, wanted = time.monotonic(), len(CLIENTS)
        self.hits.clear()
        if not self._wait_for(lambda: len(self._jobs()) == wanted and self._alone(), RETURN):
            self.violate(f"not every client is back, or a job is left: {self._describe()}")
        self.longest_return = max(self.longest_return, time.monotonic() - began)
        before = self._jobs()
        if not self._wait_for(lambda: self._hitting(before), 15.0):
            self.violate(f"a client has no hits any more: {self._describe()}")

    def _jobs(self) -> dict[str, dict[str, Any]]:
        """By client: its job, where the node has one that is in use or waits for the next workers."""
        report = self.report()
        jobs = [] if report is None else report["jobs"]
        found: dict[str, dict[str, Any]] = {}
        for at, client in enumerate(CLIENTS):
            for job in jobs:
                theirs = job["recipe"] in client.recipes
                if theirs and job["clients"] and (client.workers or job["name"].endswith(f"-{self.pids[at]}")):
                    found[client.name] = job
        return found

    def _alone(self) -> bool:
        """Whether no job but theirs is in use. (One of workers that has ended waits a while for the next ones.)"""
        report = self.report()
        return report is not None and sum(job["clients"] > 0 for job in report["jobs"]) <= len(CLIENTS)

    def _hitting(self, before: dict[str, dict[str, Any]]) -> bool:
        for name, job in self._jobs().items():
            old = before.get(name)
            if old is None or old["name"] != job["name"] or old["requests"] > job["requests"]:
                before[name] = job
                continue
            asked = job["requests"] - old["requests"]
            missed = job["misses"] * job["requests"] - old["misses"] * old["requests"]
            if asked >= 200:
                self.hits[name] = 1 - missed / asked
        good = [name for name, hits in self.hits.items() if hits > 0]  # few, for some recipes, of a small share
        if len(good) == len(CLIENTS):
            return True
        self.pump(0.2)
        return False

    def _describe(self) -> str:
        report = self.report()
        if report is None:
            return "the node does not answer"
        jobs = [(job["name"], job["recipe"], job["clients"], job["requests"], job["misses"]) for job in report["jobs"]]
        return f"processes {self.pids}, jobs {jobs}, hits {self.hits}"

    def finish(self) -> None:
        """End the clients, then the node, and look for what is left of them."""
        self._check_memory_of_node()
        for at in range(len(CLIENTS)):
            self.beats.set(at, "quit", 1)
        for at, client in enumerate(CLIENTS):
            self._see_ended(at, client.name)
        self._check_steady()
        self._end_orphans()
        self._check_given_back()
        self._see_node_end()
        self.start_node()
        self._check_tier()
        self._see_node_end()
        for name in ("node", *(client.name for client in CLIENTS)):
            self._check_log(name)
        if left := self._litter() - self._before:
            self.violate(f"left behind: {sorted(left)[:10]}")

    def _end_orphans(self) -> None:
        """Workers end when their trainer was killed. But torch notes who that is when a worker begins: one whose
        trainer was killed before waits for work for ever, and is ended here and counted."""
        if self._wait_for(lambda: not self._orphans(), LONGEST_GAP):
            return
        orphans = self._orphans()
        for pid in orphans:
            os.kill(pid, signal.SIGUSR1)  # show where they are
        time.sleep(0.5)
        told = self._tail("workers", 8000)
        if told.count("in _worker_loop") < len(orphans):
            self.violate(f"workers of clients that were killed still run: {orphans}: {told}")
        self.counts["workers that torch left waiting"] += len(orphans)
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)

    def remember_memory(self) -> None:
        """What the node that stays to the end uses, while all clients are there."""
        self._node_memory = resident_memory(self.node)
        self._node_kept = self.node

    def _check_memory_of_node(self) -> None:
        if self.node == self._node_kept:
            grown = resident_memory(self.node) - self._node_memory
            self.counts["node growth, KiB"] = grown >> 10
            if grown > GROWTH:
                self.violate(f"the node has grown by {grown >> 20} MiB while its clients were killed")
        else:
            self.violate("the last node did not stay to the end")

    def _see_ended(self, at: int, name: str) -> None:
        pid, deadline = self.pids[at], time.monotonic() + 2 * LONGEST_GAP
        while time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.pids[at] = 0
                if status:
                    self.violate(f"client {name} has ended with {status}: {self._tail(name)}")
                return
            time.sleep(0.02)
        os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)
        self.violate(f"client {name} does not end: {self._tail(name, 6000)}")
        self._end_client(at)

    def _check_steady(self) -> None:
        """The client that was never killed has opened and closed many loaders, and must have what it had at first."""
        at = next(at for at, client in enumerate(CLIENTS) if client.lasts)
        get = lambda name: self.beats.get(at, name)  # noqa: E731
        self.counts["loaders of the steady client"] = get("lives")
        self.counts["steady client's remains checked"] = get("lives") >= 4
        if get("lives") < 4:
            return
        for name in ("files", "threads"):
            if get(name) > get(f"{name}_first"):
                self.violate(f"the steady client has {get(name)} {name}, at first {get(f'{name}_first')}")
        grown = get("memory") - get("memory_first")
        self.counts["steady client's growth, KiB"] = grown >> 10
        if grown > GROWTH:
            self.violate(f"the steady client has grown by {grown >> 20} MiB")

    def _check_given_back(self) -> None:
        """With all clients gone the node must have what it had when it was ready: no more, but for idle content."""

        def idle() -> bool:
            report = self.report()
            if report is None or report["jobs"] or report["clients"] > 1:
                return False
            return all(shelf["idle"] == shelf["samples"] for shelf in report["shelves"])

        if not self._wait_for(idle, LINGER):
            self.violate(f"the node still has jobs of clients that have gone: {self._describe()}")
        self._wait_for(lambda: self._what_it_has(self.node) == self._node_first, LONGEST_GAP)
        if (now := self._what_it_has(self.node)) != self._node_first:
            self.violate(f"the node has {now}, when it was ready {self._node_first}")

    def _what_it_has(self, pid: int) -> dict[str, int]:
        """Open files, threads, and maps of clients' memory."""
        self.pump(0.05)
        maps = Path(f"/proc/{pid}/maps").read_text()
        threads = len(os.listdir(f"/proc/{pid}/task"))
        return {"files": len(os.listdir(f"/proc/{pid}/fd")), "threads": threads, "maps": maps.count("memfd:augury")}

    def _check_tier(self) -> None:
        """After a restart every file of the disk tier is known, and they are within the limit."""
        report, files = self.report(), self._files()
        every = [path for path in (self.tier / "cache" / "share-node").rglob("*") if path.is_file()]
        strange = [path.name for path in every if path.name != "lock" and not _FILE.fullmatch(path.name)]
        used = sum(footprint(path.stat().st_size) for path in files)
        if report is None or report["shelves"][1]["samples"] != len(files) or strange or used > DISK:
            self.violate(f"the disk tier has {len(files)} files of {used} bytes, unknown {strange}: {report}")
        self.counts["files in the disk tier"] = len(files)

    def _check_log(self, name: str) -> None:
        text = self._tail(name, 1 << 24)
        for match in re.finditer(r"(Traceback|.* ERROR |Exception ignored).*\n(?:\s.*\n)*.*", text):
            # What only concerns multiprocessing, whose other end was killed, is none of ours.
            if name == "node" or f"{os.sep}augury{os.sep}" in match[0] or f"{os.sep}bench{os.sep}" in match[0]:
                self.violate(f"the log of {name} has an exception: {match[0][:3000]}")
                return

    def _files(self, prefix: str = "") -> list[Path]:
        """Files of the disk tier: samples, or those whose name begins so."""
        found = []
        for folder, _, names in os.walk(self.tier / "cache" / "share-node"):
            match = (name for name in names if (name.startswith(prefix) if prefix else _FILE.fullmatch(name)))
            found += [Path(folder) / name for name in match]
        return sorted(found)

    def _orphans(self, threads: int = 2) -> list[int]:
        """Processes that were started by clients, and still run with threads of ours. (A worker does not notice that
        its trainer was killed before it had begun; it has nothing of ours then.)"""
        mine, found = Path("/proc/self/cmdline").read_bytes(), []
        for each in Path("/proc").iterdir():
            if each.name.isdigit() and int(each.name) not in (*self.pids, self.node, os.getpid()):
                with contextlib.suppress(OSError):
                    ours = os.getpgid(int(each.name)) in self._groups and (each / "cmdline").read_bytes() == mine
                    if ours and len(os.listdir(each / "task")) >= threads:
                        found.append(int(each.name))
        return found

    def _litter(self) -> set[str]:
        """Whatever of ours lies where it does not belong."""
        found = {str(path) for path in self.world.temporary.iterdir() if not path.name.startswith(THEIRS)}
        found |= {str(path) for path in self._run.rglob("*") if not path.is_dir()}
        for place in (Path("/dev/shm"), Path("/tmp")):
            with contextlib.suppress(OSError):
                found |= {str(path) for path in place.iterdir() if self._ours(path)}
        with contextlib.suppress(OSError):
            lines = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
            users = {str(FIRST_USER), str(SECOND_USER)} if self.root else set()
            found |= {f"shared memory {line[1]}" for line in lines if line[7] in users}
        return found

    def _ours(self, path: Path) -> bool:
        if not self.root:
            return "augury" in path.name and path != self.place and path.parent == Path("/dev/shm")
        with contextlib.suppress(OSError):
            return not path.name.startswith(THEIRS) and path.lstat().st_uid in (FIRST_USER, SECOND_USER)
        return False

    # -- places

    def _make_places(self) -> None:
        self.place.chmod(0o755)
        self._run.mkdir()
        self.tier.mkdir()
        if self.root:
            os.chown(self._run, FIRST_USER, GROUP)
            options = f"size={SYSTEM},mode=0700,uid={FIRST_USER}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.tier)], check=False)
            os.chown(self.tier, FIRST_USER, GROUP)
        self._run.chmod(0o711)

    def _digest(self) -> None:
        """As `augury digest` does."""
        with contextlib.redirect_stderr(None):
            augury.commands.digest.digest(str(self.world.folder), quiet=True)
        for path in (self.world.folder, *self.world.folder.rglob("*")):
            path.chmod(path.stat().st_mode | (0o055 if stat.S_ISDIR(path.stat().st_mode) else 0o044))

    def _rehearse(self) -> None:
        """Run everything once in this process: another user may not be able to read the modules that it takes."""
        place = self.place / "rehearsal"
        node = Node(Config(place / "node.sock", RAM, place / "disk", DISK))
        thread = threading.Thread(target=node.serve)
        thread.start()
        try:
            rehearse(dataclasses.replace(self.world, socket=place / "node.sock"))
            with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                _serve(["serve", "--ram", "0"])  # refused, once its arguments are understood
        finally:
            node.halt()
            thread.join()
        shutil.rmtree(place)

    def close(self) -> None:
        """End whatever still runs."""
        for pid in [*self._orphans(1), *self.pids, self.node]:
            if pid:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        for pid in [*self.pids, self.node]:
            if pid:
                with contextlib.suppress(OSError):
                    os.waitpid(pid, 0)
        if os.path.ismount(self.tier):
            subprocess.run(["umount", "-l", str(self.tier)], check=False)


def soak(place: Path, faults: int, seed: int) -> dict[str, Any]:
    """Run it; what happened."""
    began = time.monotonic()
    made = Soak(place, seed)
    gc.collect()
    gc.freeze()  # so that children need not copy what they never change
    try:
        made.start_node()
        for at in range(len(CLIENTS)):
            made.start_client(at)
        made.calm()
        _torment(made, faults)
        made.finish()
    except TooMany:
        say("that is enough")
    finally:
        made.close()
    return _result(made, time.monotonic() - began)


def _torment(made: Soak, faults: int) -> None:
    last, calm = int(faults * (1 - LAST)), 1
    while len(made.faults) < last:
        made.inject(made.kinds())
        made.pump(min(2.0, made.rng.expovariate(2.5)))
        if len(made.faults) >= calm * CALM:
            made.calm()
            calm += 1
            say(f"{len(made.faults)} faults, {len(made.violations)} violations")
    made.calm()
    made.remember_memory()
    while len(made.faults) < faults:
        made.inject({name: kind for name, kind in made.kinds().items() if "node" not in name or "stopped" in name})
        made.pump(min(2.0, made.rng.expovariate(2.5)))
    made.calm()


def _result(made: Soak, seconds: float) -> dict[str, Any]:
    kinds = Counter(kind for _, kind in made.faults)
    total = lambda name: sum(made.beats.get(at, name) for at in range(len(CLIENTS)))  # noqa: E731
    node = Counter[str]()
    for report in made.reports.values():
        node.update(report["counts"])
    return {
        "seconds": round(seconds),
        "users": 2 if made.root else 1,
        "own file system": made.own_system,
        "faults": {kind: {"count": kinds[kind], "longest gap, s": round(made.gaps.get(kind, 0), 2)} for kind in kinds},
        "faults in all": len(made.faults),
        "batches checked": total("batches"),
        "bytes checked": total("bytes"),
        "started without a node": total("waiting"),
        "deaths of workers": total("deaths"),
        "longest gap, s": round(max(made.gaps.values(), default=0.0), 2),
        "longest release, s": round(made.longest_release, 2),
        "longest return, s": round(made.longest_return, 2),
        "last hit ratios": {name: round(hits, 3) for name, hits in sorted(made.hits.items())},
        "of the nodes' last reports": dict(node),
        **made.counts,
        "violations": made.violations,
    }


def _serve(arguments: list[str]) -> None:
    sys.argv = ["augury", *arguments]
    if code := augury.cli._run():
        raise SystemExit(code)


def _tell_of_files(event: str, arguments: Any) -> None:
    """Whoever makes a temporary file is named in the log, should that be left behind."""
    if event == "tempfile.mkstemp":
        print("a temporary file:", *arguments, "".join(traceback.format_stack()))


def _flip(path: Path, rng: random.Random) -> None:
    with open(path, "r+b") as file:
        size = path.stat().st_size
        at = rng.randrange(size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << rng.randrange(8)]))


def _cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return float("inf")


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def table(result: dict[str, Any]) -> str:
    """For people."""
    lines = [f"{'fault':<26}{'count':>6}{'longest gap after it':>24}"]
    for kind, told in sorted(result["faults"].items()):
        lines.append(f"{kind:<26}{told['count']:>6}{told['longest gap, s']:>22.2f} s")
    for name, value in result.items():
        if name not in ("faults", "violations"):
            lines.append(f"{name:<32}{json.dumps(value) if isinstance(value, dict) else value:>20}")
    lines.append(f"violations: {len(result['violations'])}")
    return "\n".join([*lines, *(f"  - {each[:600]}" for each in result["violations"])])


def main() -> int:
    options = arguments(
        __doc__.splitlines()[0],
        seed={"type": int, "default": 0, "help": "of the faults"},
        faults={"type": int, "default": None, "help": f"how many; else {FAULTS}, with --quick {QUICK}"},
        keep={"action": "store_true", "help": "leave the logs where they are"},
    )
    faults = options.faults or (QUICK if options.quick else FAULTS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and whatever was started ends, too
    place = Path(tempfile.mkdtemp(prefix="augury-soak-"))
    try:
        result = soak(place, faults, options.seed)
    finally:
        if options.keep:
            say(f"logs: {place}")
        else:
            shutil.rmtree(place, ignore_errors=True)
    print(table(result))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
