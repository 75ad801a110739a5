"""The node's process: a socket that its users may connect to, a thread for each client, and an end without remains.

Who may connect is checked by the credentials that the system gives, and logged. What clients ask is answered by
session.py; how jobs divide the shelves is decided here, with shares.py, when jobs come, go or want another share.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from augury import __version__, recipes
from augury.errors import ConfigError
from augury.node import protocol
from augury.node.config import Config
from augury.node.files import FileShelf
from augury.node.holding import Dataset, Stock
from augury.node.job import Job
from augury.node.place import Place, group_id
from augury.node.protocol import Refused
from augury.node.session import Session, crowded, timeval
from augury.node.shares import divide
from augury.node.shelves import Entry, MemoryShelf

log = logging.getLogger(__name__)

LINGER = 10.0
"""Seconds that a job without clients is kept: the workers of the next epoch may be on their way."""
MOST = 1024
"""Connections of all users together."""
COUNTED = ("refused", "bad_messages", "poisoned", "errors", "damaged", "unwritten")
"""What a report always counts."""
_PEERGROUPS = 59
_CREDENTIALS = struct.Struct("=iII")


@dataclass
class _Running:
    """A job and who takes part in it."""

    job: Job
    token: tuple[int, bytes]
    wishes: list[int]
    lingers: bool
    clients: int = 0
    left: float = 0.0
    """When the last client went."""
    since: float = field(default_factory=time.time)


class Node:
    """One machine's cache. `serve` returns when it was told to stop."""

    def __init__(self, config: Config) -> None:
        self.config, self.area_bytes = config, config.client_bytes
        self._gid = group_id(config.group)
        self._place = Place(config.socket, self._gid)
        self._listener: socket.socket | None = None
        try:
            disk = None if config.disk is None else FileShelf(config.disk, config.disk_bytes)
            self.stock = Stock(MemoryShelf(config.ram), disk)
            self._listener = self._place.listen()
        except BaseException:
            self._release()
            raise
        self._jobs: dict[tuple[int, bytes], _Running] = {}
        self._registry = threading.RLock()
        self._broken: list[_Running] = []
        """Jobs that nobody can join any more, and whose last client has not gone yet."""
        self._entrance = threading.Lock()
        """Taken before `_registry`, by those who begin a job."""
        self._sessions: dict[int, tuple[Session, socket.socket, threading.Thread]] = {}
        self._numbers = 0
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._stopping = threading.Event()
        self._began = time.time()

    def serve(self, ending: Callable[[], None] = lambda: None) -> None:
        """Accept clients until `halt` is called, from a signal or a client; then give everything back.

        `ending` is called as soon as it is clear that the node will end.
        """
        keeper = threading.Thread(target=self._keep_house, name="augury-node-keeper", daemon=True)
        keeper.start()
        listener = self._listener
        assert listener is not None
        listener.settimeout(0.2)
        log.info("ready at %s: %d bytes of memory, %d of disk", self.config.socket, *self._capacities())
        if (obstacle := self._place.obstacle()) is not None:
            log.warning("users of group %s cannot reach the socket: %s is closed to them", self._gid, obstacle)
        try:
            while not self._stopping.is_set():
                self._accept(listener)
        finally:
            self._stopping.set()
            ending()
            keeper.join()
            self._close()

    def halt(self) -> None:
        """Let `serve` end. Any thread, and a signal's handler, may call it."""
        self._stopping.set()

    def join(self, request: protocol.Join, data: Dataset, uid: int) -> Job:
        """The job of this name and user, or a new one with a fair share."""
        token = uid, request.job
        job = self._take_part(token, request, data)
        if job is not None:
            return job
        with self._entrance:  # one at a time: a large dataset takes a while, and only newcomers wait for it
            job = self._take_part(token, request, data)
            return self._begin(token, request, data, uid) if job is None else job

    def _take_part(self, token: tuple[int, bytes], request: protocol.Join, data: Dataset) -> Job | None:
        with self._registry:
            running = self._jobs.get(token)
            if running is None:
                return None
            if not _alike(running.job, request, data):
                raise Refused("a job of this name is there with other data, or another recipe or seed")
            running.clients += 1
            return running.job

    def leave(self, job: Job) -> None:
        """A client of a job has gone."""
        with self._registry:
            running = self._find(job)
            if running is None:
                return
            running.clients -= 1
            running.left = time.monotonic()
            if running.clients == 0 and (not running.lingers or running in self._broken):
                self._end(running)

    def broken(self, job: Job) -> None:
        """Something went wrong inside a job: whoever takes part must begin anew. It ends when all have gone, who may be
        in the middle of a request."""
        with self._registry:
            running = self._find(job)
            if running is None or running in self._broken:
                return
            self._broken.append(self._jobs.pop(running.token))
            for session, connection, _ in list(self._sessions.values()):
                if session.job is job:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def wish(self, job: Job, level: int, capacity: int) -> None:
        """A job would have another share."""
        with self._registry:
            if (running := self._find(job)) is not None:
                running.wishes[level] = capacity
                self._share()

    def stop(self, uid: int) -> None:
        """A client wants the node to end."""
        if uid not in (os.geteuid(), 0):
            raise Refused("only the node's own user may stop it")
        log.info("stopped by a client of user %d", uid)
        self.halt()

    def count(self, what: str, amount: int = 1) -> None:
        if amount:
            with self._counting:
                self._counts[what] += amount

    def finish(self, landing: Sequence[Entry]) -> None:
        self.stock.finish(landing)

    def report(self, uid: int) -> dict[str, Any]:
        """What the node is doing, as one of its users may see it: others' jobs are others'."""
        stock, everything = self.stock, uid in (os.geteuid(), 0)
        with self._registry:
            jobs = [_describe(running) for token, running in self._jobs.items() if everything or token[0] == uid]
            clients = len(self._sessions)
        with stock.lock:
            shelves = [
                {"name": shelf.name, "capacity": shelf.capacity, "used": shelf.used, "samples": len(shelf.entries)}
                | {"idle": shelf.idle}
                for shelf in stock.shelves
            ]
        disk = stock.disk
        counts = dict.fromkeys(COUNTED, 0) | self._counts
        if disk is not None:
            counts |= {"damaged": disk.damaged, "unwritten": disk.failures}
        return {
            "version": __version__,
            "pid": os.getpid(),
            "seconds": time.time() - self._began,
            "socket": str(self.config.socket),
            "clients": clients,
            "shelves": shelves,
            "jobs": jobs,
            "counts": counts,
        }

    def _begin(self, token: tuple[int, bytes], request: protocol.Join, data: Dataset, uid: int) -> Job:
        try:
            recipe = recipes.find(request.recipe)
        except ConfigError as error:
            raise Refused(str(error)) from None
        wishes = [request.ram, request.disk][: len(self.stock.shelves)]
        with self._registry:
            self._make_way(uid)
            shares = self._share(wishes)
        job = None
        try:
            job = Job(self.stock, data, recipe, request.seed, request.name, uid, shares)
        finally:
            with self._registry:
                if job is not None:
                    self._jobs[token] = _Running(job, token, wishes, lingers=not request.mirrors, clients=1)
                self._share()  # others may have gone meanwhile; or have made room for nobody
        log.info(
            "job %r of user %d: %d samples, recipe %s, shares %s", job.name, uid, request.samples, recipe.name, shares
        )
        return job

    def _share(self, newcomer: Sequence[int] | None = None) -> list[int]:
        """Divide the shelves anew; returns the shares of a job that is not there yet."""
        fresh = []
        for level, shelf in enumerate(self.stock.shelves):
            wishes = {id(running): running.wishes[level] for running in self._jobs.values()}
            if newcomer is not None:
                wishes[0] = newcomer[level]
            parts = divide(shelf.capacity, wishes)
            fresh.append(parts.get(0, 0))
            # Those that lose first: at no time is more granted than there is.
            changes = [(parts[id(running)], running.job) for running in self._jobs.values()]
            for part, job in sorted(changes, key=lambda each: each[0] - each[1].stack[level].capacity):
                job.resize(level, part)
        return fresh

    def _make_way(self, uid: int) -> None:
        """A user has as many jobs as connections at most: those that wait for somebody to come back go first."""
        theirs = [running for token, running in self._jobs.items() if token[0] == uid]
        waiting = sorted((running for running in theirs if running.clients == 0), key=lambda each: each.left)
        for running in waiting[: max(0, len(theirs) + 1 - self.config.clients)]:
            self._end(running)

    def _end(self, running: _Running) -> None:
        if running in self._broken:
            self._broken.remove(running)
        else:
            del self._jobs[running.token]
        running.job.end()
        self._share()
        with self.stock.lock:
            self.stock.ram.trim()
        log.info("job %r of user %d has ended", running.job.name, running.token[0])

    def _find(self, job: Job) -> _Running | None:
        return next((running for running in (*self._jobs.values(), *self._broken) if running.job is job), None)

    def _keep_house(self) -> None:
        """Now and then: jobs that nobody came back to end."""
        while not self._stopping.wait(1.0):
            with self._registry:
                now = time.monotonic()
                for running in list(self._jobs.values()):
                    if running.clients == 0 and now - running.left > LINGER:
                        self._end(running)
            self.stock.finish([])

    def _accept(self, listener: socket.socket) -> None:
        """The next client, if one comes soon. Whatever goes wrong with one is no reason to fail the others."""
        try:
            connection = listener.accept()[0]
        except TimeoutError:
            return
        except OSError as error:
            log.warning("a client could not be accepted: %s", error.strerror)
            self._stopping.wait(0.1)  # no descriptors or no memory: perhaps soon again
            return
        try:
            self._welcome(connection)
        except (OSError, RuntimeError, MemoryError) as error:  # no more threads, for instance
            log.warning("a client could not be served: %s", error)
            connection.close()

    def _welcome(self, connection: socket.socket) -> None:
        pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        reason = self._why_not(uid, gid, connection)
        self._numbers += 1
        number = self._numbers
        if reason is not None:
            log.warning("client %d (process %d, user %d) is refused: %s", number, pid, uid, reason)
            self.count("refused")
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(0.1))
                protocol.send(connection, protocol.Failed(reason))
            connection.close()
            return
        log.info("client %d: process %d, user %d", number, pid, uid)
        connection.settimeout(None)
        session = Session(connection, number, uid, self)
        thread = threading.Thread(target=self._attend, args=(session, pid), name=f"augury-node-{number}", daemon=True)
        with self._registry:
            self._sessions[number] = session, connection, thread
        try:
            thread.start()
        except BaseException:
            with self._registry:
                del self._sessions[number]
            raise

    def _why_not(self, uid: int, gid: int, connection: socket.socket) -> str | None:
        if uid not in (os.geteuid(), 0) and (self._gid is None or self._gid not in {gid, *_groups(connection)}):
            return "this node is not for this user"
        if crowded(connection.fileno()):
            return "the node has as many files open as it may: raise its limit (ulimit -n)"
        with self._registry:
            theirs = sum(session.uid == uid for session, *_ in self._sessions.values())
            if theirs >= self.config.clients or len(self._sessions) >= MOST:
                return f"this user has {theirs} connections already"
        return None

    def _attend(self, session: Session, pid: int) -> None:
        reason = "error"
        try:
            reason = session.run()
        finally:
            with self._registry:
                self._sessions.pop(session.number, None)
        who = session.number, session.name, pid, session.uid
        level = logging.WARNING if session.blamed else logging.INFO
        log.log(level, "client %d (%r, process %d, user %d) has gone: %s", *who, protocol.printable(reason))

    def _capacities(self) -> tuple[int, int]:
        disk = self.stock.disk
        return self.stock.ram.capacity, 0 if disk is None else disk.capacity

    def _close(self) -> None:
        with self._registry:
            sessions = list(self._sessions.values())
        for _, connection, _ in sessions:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        until = time.monotonic() + 10.0
        for _, _, thread in sessions:
            thread.join(max(0.0, until - time.monotonic()))
        self.stock.finish([])
        self._release()
        log.info("stopped")

    def _release(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if (stock := getattr(self, "stock", None)) is not None and stock.disk is not None:
            stock.disk.close()
        with contextlib.suppress(OSError):
            self._place.leave()


def _alike(job: Job, request: protocol.Join, data: Dataset) -> bool:
    same = (job.recipe.name, job.seed) == (request.recipe, request.seed)
    return same and np.array_equal(job.data.digests, data.digests) and np.array_equal(job.data.sizes, data.sizes)


def _describe(running: _Running) -> dict[str, Any]:
    job = running.job
    return {
        "name": job.name,
        "user": job.owner,
        "recipe": job.recipe.name,
        "clients": running.clients,
        "began": running.since,
        "seconds": time.time() - running.since,
        "samples": len(job.data.sizes),
        "shares": [policy.capacity for policy in job.stack],
        "used": [policy.used for policy in job.stack],
        "charged": {name: round(amount) for name, amount in job.charged.items()},
        "requests": job.counts.requests,
        **job.counts.shares(),
        "bytes_from": dict(job.bytes_from),
        "refused": job.refused,
        "stall_seconds": job.stalled,
    }


def _groups(connection: socket.socket) -> Sequence[int]:
    """All groups of the process at the other end."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _PEERGROUPS, 1024)  # Python takes no more: 256 groups
    except OSError:
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)
