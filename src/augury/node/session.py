"""One client's requests: each checked against what may come now and what the client may have, then answered.

Nothing that a client sends is trusted: ids must be the job's, offsets within an area, numbers finite. Whatever does not
fit ends the connection with a reason. The work is job.py's; who may connect is daemon.py's business.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import mmap
import os
import resource
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.ids import Ids
from augury.node import protocol
from augury.node.holding import Dataset
from augury.node.job import Job
from augury.node.protocol import DIGEST, BadMessage, Message, Refused
from augury.node.shelves import Entry

AREAS = 64
"""Areas of one client, at most."""
JOBS = 64
"""Numbers of jobs within one (loaders that share its cache), at most."""
NAME = 200
"""Characters of a name, at most."""
REPEATS = 1 << 22
"""Ids of a batch times how often one of them may come: policies go through repeats one by one, while others wait."""
PLAN = 1 << 22
"""Ids of one plan or lesson, at most, or sixteen epochs of them: a policy goes through them while others wait."""
SPARE_FILES = 256
"""Descriptors that areas and connections leave free, for files of the disk shelf."""
GREETING = 10.0
"""Seconds until a client must have said Hello."""
ANSWER = 5.0
"""Seconds that a client may take to receive an answer."""

Answered = tuple[Message, Sequence[NDArray[Any]], Sequence[Entry]]
"""An answer, its arrays, and what must be written to disk once it is sent."""
log = logging.getLogger(__name__)


class Host(Protocol):
    """What a session needs of the node."""

    area_bytes: int

    def join(self, request: protocol.Join, data: Dataset, uid: int) -> Job: ...
    def leave(self, job: Job) -> None: ...
    def broken(self, job: Job) -> None: ...
    def wish(self, job: Job, level: int, capacity: int) -> None: ...
    def report(self, uid: int) -> dict[str, Any]: ...
    def stop(self, uid: int) -> None: ...
    def count(self, what: str, amount: int = 1) -> None: ...
    def finish(self, landing: Sequence[Entry]) -> None: ...


def crowded(file: int) -> bool:
    """Whether the process is running out of descriptors: a new one always has the lowest free number."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most != resource.RLIM_INFINITY and file >= most - min(SPARE_FILES, most // 4)


def timeval(seconds: float) -> bytes:
    """As sockets take it; 0: for ever."""
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


class Session:
    """One connection, from the first message to the last. Its own thread calls `run`."""

    def __init__(self, connection: socket.socket, number: int, uid: int, host: Host) -> None:
        self.number, self.uid, self.name = number, uid, ""
        self._socket, self._host = connection, host
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(GREETING))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(ANSWER))
        self._areas: dict[int, tuple[mmap.mmap, NDArray[np.uint8]]] = {}
        self.job: Job | None = None
        self._greeted = False
        self._mirrors = False
        self._poisoned = False
        self.blamed = False
        """Whether it has ended because of what the client asked."""
        self._handlers: dict[type[Message], Callable[..., Answered]] = {
            protocol.Area: self._area,
            protocol.Drop: self._drop,
            protocol.Join: self._join,
            protocol.Take: self._take,
            protocol.Unasked: self._unasked,
            protocol.Offer: self._offer,
            protocol.Lost: self._lost,
            protocol.Plan: self._plan,
            protocol.Leave: self._leave,
            protocol.Learn: self._learn,
            protocol.Progress: self._progress,
            protocol.Wanted: self._wanted,
            protocol.Look: self._look,
            protocol.Resize: self._resize,
            protocol.Report: self._report,
            protocol.Stop: self._stop,
        }

    def run(self) -> str:
        """Answer requests until the client goes; why it ended."""
        try:
            while True:
                most = self._host.area_bytes if self._greeted else 0
                received = protocol.receive(self._socket, protocol.requests, most)
                if received is None:
                    return "closed"
                self._answer(received)
                del received  # its arrays would stay for as long as the client is silent
        except (BadMessage, Refused) as error:
            self._host.count("refused" if isinstance(error, Refused) else "bad_messages")
            self.blamed = True
            reason = str(error)[:NAME]  # it may quote what was received
            self._say_no(reason)
            return reason
        except OSError as error:
            return error.strerror or str(error)
        except Exception:  # a mistake of ours must not end the node; the job may be in any state
            log.exception("client %d: a request could not be handled", self.number)
            self._host.count("errors")
            self._say_no("the node could not handle this request: see its log")
            if self.job is not None:
                self._host.broken(self.job)
            return "error"
        finally:
            self._close()

    def _answer(self, received: protocol.Received) -> None:
        try:
            answer, arrays, landing = self._handle(received)
        except OSError as error:  # not the client's going, but something of ours, such as memory that is not there
            raise RuntimeError("a request could not be handled") from error
        finally:
            if received.file is not None:
                os.close(received.file)
        try:
            protocol.send(self._socket, answer, arrays)
        finally:
            self._host.finish(landing)

    def _handle(self, received: protocol.Received) -> Answered:
        message = received.message
        if isinstance(message, protocol.Hello):
            return self._hello(message)
        if not self._greeted:
            raise BadMessage("say Hello first")
        if received.file is not None and not isinstance(message, protocol.Area):
            raise BadMessage(f"{type(message).__name__} comes without a file")
        arguments = (message, received.file) if isinstance(message, protocol.Area) else (message, *received.arrays)
        return self._handlers[type(message)](*arguments)

    def _hello(self, message: protocol.Hello) -> Answered:
        if self._greeted:
            raise BadMessage("Hello was said already")
        if message.version != protocol.VERSION:
            raise Refused(f"this node speaks version {protocol.VERSION}, the client version {message.version}")
        self._greeted, self.name = True, protocol.printable(message.name[:NAME])
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(0))  # from now on it may be silent
        return protocol.Welcome(protocol.VERSION, os.getpid(), self._host.area_bytes), (), ()

    def _area(self, message: protocol.Area, file: int | None) -> Answered:
        if file is None or not 0 <= message.number < AREAS or message.size < 1:
            raise BadMessage("an area comes with a file, a number and a size")
        self._areas.pop(message.number, None)
        if sum(len(memory) for memory, _ in self._areas.values()) + message.size > self._host.area_bytes:
            raise Refused(f"a client may have {self._host.area_bytes} bytes of areas (client_bytes)")
        if crowded(file):
            raise Refused(
                "the node has as many files open as it may: raise its limit (ulimit -n), or use fewer clients"
            )
        protocol.check_memory_file(file, message.size, fcntl.F_SEAL_SHRINK)
        try:
            memory = mmap.mmap(file, message.size)
        except (OSError, ValueError) as error:
            raise BadMessage(f"an area cannot be mapped: {error}") from None
        self._areas[message.number] = memory, np.frombuffer(memory, np.uint8)
        return protocol.Done(), (), ()

    def _drop(self, message: protocol.Drop) -> Answered:
        for number in message.numbers:
            self._areas.pop(number, None)
        return protocol.Done(), (), ()

    def _join(self, message: protocol.Join, digests: NDArray[np.uint8], sizes: NDArray[np.int64]) -> Answered:
        if self.job is not None:
            raise BadMessage("a client takes part in one job")
        if message.samples < 1 or len(digests) != DIGEST * message.samples or len(message.job) != 16:
            raise BadMessage("a job has a name of 16 bytes, and as many digests as samples")
        if len(sizes) not in (1, message.samples) or sizes.min() < 0 or sizes.max() > 1 << 40:
            raise BadMessage("sizes are one for all samples or one for each, and not negative")
        if min(message.ram, message.disk, message.seed) < 0 or max(len(message.name), len(message.recipe)) > NAME:
            raise BadMessage("sizes and seeds are not negative, and names are short")
        message.name = protocol.printable(message.name[:NAME])
        uniform = int(sizes[0]) if (sizes == sizes[0]).all() else None
        each = np.broadcast_to(sizes, message.samples)
        data = Dataset(digests.reshape(message.samples, DIGEST), each, uniform)
        self.job = self._host.join(message, data, self.uid)
        levels = np.empty(0, np.int8)
        if message.mirrors:
            self._mirrors = True
            self.job.changed = []
            levels = self.job.held()
        top = self.job.stack[0]
        return protocol.Joined(list(self.job.charged), top.prefetches, top.refills), (levels,), ()

    def _take(self, message: protocol.Take, ids: Ids) -> Answered:
        job = self._joined()
        self._check(ids, protocol.IDS)
        if len(ids) ** 2 > REPEATS and len(ids) * int(np.unique(ids, return_counts=True)[1].max()) > REPEATS:
            raise BadMessage("a request names a sample too often")
        if not 0 <= message.job < JOBS or not math.isfinite(message.stalled):
            raise BadMessage("a request has a job number out of range")
        area = self._part(message.area, message.at, message.room)
        job.stalled = max(job.stalled, message.stalled)
        batch = job.take(ids, self.number, message.job, message.admit, message.bypass, area)
        decided = batch.step
        served = ids[:0] if decided.served is ids else decided.served
        arrays = (served, decided.level, batch.found, batch.offer, *self._changes(job))
        return protocol.Taken(job.wish_count), arrays, batch.landing

    def _unasked(self, message: protocol.Unasked, ids: Ids) -> Answered:
        job = self._joined()
        self._check(ids, len(job.data.sizes))
        if len(np.unique(ids)) != len(ids):
            raise BadMessage("ids that nobody has asked for are named once")
        batch = job.unasked(ids, self.number)
        arrays = (batch.step.served, batch.step.level, batch.offer, *self._changes(job))
        return protocol.Decided(), arrays, batch.landing

    def _offer(self, message: protocol.Offer, ids: Ids, offsets: NDArray[np.int64]) -> Answered:
        job = self._joined()
        self._check(ids, protocol.IDS)
        if message.area not in self._areas or len(offsets) != len(ids):
            raise BadMessage("an offer names an area and an offset for each sample")
        area = self._areas[message.area][1]
        sizes = job.data.sizes[ids]
        if len(ids) and (offsets.min() < 0 or (offsets > len(area) - sizes).any()):
            raise BadMessage("an offer lies outside its area")
        if sizes.sum() > len(area):
            raise BadMessage("an offer names the same bytes more than once")  # they are copied
        # Copied before they are checked: the client may still write there.
        places = zip(offsets.tolist(), sizes.tolist(), strict=True)
        data = [area[start : start + size].tobytes() for start, size in places]
        kept, refused, landing = job.offer(ids, data)
        if refused and not self._poisoned:  # said once: the data may just have changed, and all of it is offered
            log.warning("client %d (user %d) offers bytes that do not match their digests", self.number, self.uid)
            self._poisoned = True
        self._host.count("poisoned", refused)
        return protocol.Offered(kept, refused), (), landing

    def _lost(self, message: protocol.Lost, ids: Ids) -> Answered:
        job = self._joined()
        self._check(ids, len(job.data.sizes))
        job.lost(np.unique(ids), self.number)
        return protocol.Done(), (), ()

    def _plan(self, message: protocol.Plan, order: Ids, times: NDArray[np.int32], later: Ids) -> Answered:
        job = self._joined()
        for ids in (order, later):
            self._check(ids, self._long(job))
        if not 0 <= message.job < JOBS or len(times) != (len(order) if message.timed else 0):
            raise BadMessage("a plan has a job number, and times for all or none")
        if message.timed and len(times) and times.min() < 0:
            raise BadMessage("a plan has negative times")
        try:
            job.plan(order, message.job, times if message.timed else None, later)
        except ConfigError as error:
            raise Refused(str(error)) from None  # not every policy plans for several jobs
        return protocol.Done(), (), ()

    def _leave(self, message: protocol.Leave) -> Answered:
        job = self._joined()
        if not 0 <= message.job < JOBS:
            raise BadMessage("a job number is out of range")
        job.end_loader(message.job)
        return protocol.Done(), (), ()

    def _learn(self, message: protocol.Learn, ids: Ids, scores: NDArray[np.float32], kin: Ids) -> Answered:
        job = self._joined()
        for each in (ids, kin):
            self._check(each, self._long(job))
        if len(scores) != len(ids) or not np.isfinite(scores).all():
            raise BadMessage("a lesson has one finite score for each sample")
        job.learn(ids, scores, kin if message.kin else None)
        return protocol.Done(), (), ()

    def _progress(self, message: protocol.Progress) -> Answered:
        told = [message.done, *message.spreads, *message.accuracies]
        if not all(map(math.isfinite, told)):
            raise BadMessage("progress is told in finite numbers")
        self._joined().progress(message.done, message.spreads, message.accuracies)
        return protocol.Done(), (), ()

    def _wanted(self, message: protocol.Wanted) -> Answered:
        return protocol.Listed(), (self._joined().wanted(self._level(message.level)),), ()

    def _look(self, message: protocol.Look) -> Answered:
        job = self._joined()
        gauges = {name: float(value) for name, value in job.stack[0].gauges.items()}
        return protocol.Seen([policy.capacity for policy in job.stack], gauges), (job.held(),), ()

    def _resize(self, message: protocol.Resize) -> Answered:
        if message.capacity < 0:
            raise BadMessage("a share is not negative")
        self._host.wish(self._joined(), self._level(message.level), message.capacity)
        return protocol.Done(), (), ()

    def _report(self, message: protocol.Report) -> Answered:
        report = self._host.report(self.uid)
        while len(protocol.encoded(protocol.Told(report))) > protocol.INLINE:  # many jobs: the first ones
            jobs: list[Any] = report["jobs"]
            kept = len(jobs) // 2
            report["jobs"], report["left_out"] = jobs[:kept], report.get("left_out", 0) + len(jobs) - kept
        return protocol.Told(report), (), ()

    def _stop(self, message: protocol.Stop) -> Answered:
        self._host.stop(self.uid)
        return protocol.Done(), (), ()

    def _joined(self) -> Job:
        if self.job is None:
            raise BadMessage("say Join first")
        return self.job

    def _level(self, level: int) -> int:
        if not 0 <= level < len(self._joined().stack):
            raise BadMessage(f"there is no level {level}")
        return level

    def _long(self, job: Job) -> int:
        return max(PLAN, 16 * len(job.data.sizes))

    def _check(self, ids: Ids, most: int) -> None:
        """Ids that the job has."""
        samples = len(self._joined().data.sizes)
        if len(ids) > most:
            raise BadMessage(f"a request names at most {most} samples")
        if len(ids) and (ids.min() < 0 or ids.max() >= samples):
            raise BadMessage(f"ids go from 0 to {samples - 1}")

    def _part(self, number: int, at: int, room: int) -> NDArray[np.uint8] | None:
        """The part of an area that a request names; area -1: none."""
        if number == -1:
            return None
        if number not in self._areas:
            raise BadMessage(f"there is no area {number}")
        area = self._areas[number][1]
        if at < 0 or room < 0 or at + room > len(area):
            raise BadMessage("a request lies outside its area")
        return area[at : at + room]

    def _changes(self, job: Job) -> tuple[Ids, NDArray[np.int8]]:
        if not self._mirrors:
            return np.empty(0, np.int64), np.empty(0, np.int8)
        return job.changes()

    def _say_no(self, reason: str) -> None:
        with contextlib.suppress(OSError):
            protocol.send(self._socket, protocol.Failed(reason))

    def _close(self) -> None:
        self._areas.clear()  # the maps go with the last array that shows them
        self._socket.close()
        if self.job is not None:
            self.job.leave(self.number)
            self._host.leave(self.job)
