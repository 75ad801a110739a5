"""The call log of a live run: what its policies were asked, and what they decided.

`Recorder` writes it while a cache runs, `Trace` reads it; sim/verify.py replays it on twins. The file:

    magic, version, header length, CRC of the header     20 bytes
    header                                               JSON: samples, recipe, seed, batch, ...
    sizes                                                int64, unless all are equal
    records                                              one per level (capacity, costs), then one per call

Each record carries its length and a CRC: a log whose writer was killed is good up to its last whole record.
Nothing here decides anything, and nothing here touches the samples' bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from augury.errors import AuguryWarning, ConfigError
from augury.ids import NONE, Ids, Mask, Scores, Times
from augury.policies import Policy

VERSION = 1
_MAGIC = b"AUGURY-T"
_PREAMBLE = struct.Struct("<8sIII")
_HEAD = struct.Struct("<IBBBxIqII")
"""Payload length, op, what is there, level, job, number, count of ids, count of the answer."""
_CRC = struct.Struct("<I")
"""Before the head: of head and payload, so that a tail of zeros is no record."""

OPS = ("level", "epoch", "plan", "serve", "admit", "wanted", "learn", "resize", "forget", "adopt", "leave", "progress")
_ANSWER, _KEPT, _SCORES, _KIN, _TIMES, _LATER = 1, 2, 4, 8, 16, 32
_FLUSH = 64
_BUFFER = 1 << 20
_SIZES = "sizes"
_COST = np.dtype("<i8")


@dataclass
class Record:
    """One call of a policy and what it decided; or a level, or the mark of an epoch."""

    op: str
    level: int = 0
    job: int = 0
    number: int = 0
    """The epoch, how many ids a plan has for later or a lesson as kin, how many deviations `progress` has, the budget
    of `wanted`, the capacity of `resize` or of a level."""
    ids: Ids = field(default_factory=lambda: NONE)
    """What was asked; of a level, the samples' costs (one if all are equal, none if they are the sizes)."""
    answer: Ids | None = None
    """The ids returned: who was served (None: those asked for), leaves, is wanted, does not fit, has a place."""
    kept: Mask | None = None
    scores: Scores | None = None
    """What was learned; of `progress`, how far training is, the deviations and the accuracies."""
    kin: Ids | None = None
    times: Times | None = None
    """How often each of a plan's ids is requested."""
    later: Ids | None = None
    """What a plan has for later; `number` of them."""


class Recorder:
    """Writes the log. One owner thread, that of the policies. What cannot be written never stops the run.

    `header` says what was run: `recipe`, `seed`, `batch`; more may be added. `sizes` are the samples' bytes.
    """

    def __init__(self, path: str | os.PathLike[str], header: Mapping[str, Any], sizes: NDArray[Any]) -> None:
        self.path, self._sizes = Path(path), sizes
        self._dtype = _id_type(len(sizes))
        self._added, self._pid = 0, os.getpid()
        self._held = bytearray()
        try:
            # Unbuffered: a forked child would write the buffer of a file object once more when it ends.
            self._file: FileIO | None = open(self.path, "wb", buffering=0)  # noqa: SIM115 - see close()
        except OSError as error:
            raise ConfigError(f"the call log {path} cannot be written: {error.strerror}") from None
        equal = _all_equal(sizes)
        text = json.dumps({**header, "samples": len(sizes), _SIZES: int(sizes[0]) if equal else None}).encode()
        self._write([_PREAMBLE.pack(_MAGIC, VERSION, len(text), zlib.crc32(text)), text])
        if not equal:
            self._write([np.asarray(sizes, _COST).tobytes()])
        self.flush()

    def wrap(self, policy: Policy, level: int = 0, costs: NDArray[Any] | None = None) -> Recorded:
        """A new, empty policy with its calls recorded from now on. Wrap all levels before any is used.

        `costs` is what the policy was made with; if not given, the policy's own `sizes` or the samples'.
        """
        if costs is None:
            costs = getattr(policy, "sizes", self._sizes)
        if np.array_equal(costs, self._sizes):
            costs = costs[:0]
        elif _all_equal(costs):
            costs = costs[:1]
        self.add(Record("level", level, number=policy.capacity, ids=np.asarray(costs, np.int64)))
        return Recorded(policy, level, self)

    def mark_epoch(self, epoch: int, job: int = 0) -> None:
        """An epoch starts: for those who read the log, of no meaning to policies."""
        self.add(Record("epoch", job=job, number=epoch))

    def add(self, record: Record) -> None:
        """Append one record."""
        if self._file is None:
            return
        parts = [record.ids.astype(_COST if record.op == "level" else self._dtype).tobytes()]
        there, answered = 0, 0
        if record.kept is not None:
            there |= _KEPT
            parts.append(np.packbits(record.kept).tobytes())
        if record.answer is not None:
            there |= _ANSWER
            answered = len(record.answer)
            parts.append(record.answer.astype(self._dtype).tobytes())
        if record.scores is not None:
            there |= _SCORES
            parts.append(np.asarray(record.scores, "<f4").tobytes())
        if record.kin is not None:
            there |= _KIN
            parts.append(record.kin.astype(self._dtype).tobytes())
        if record.times is not None:
            there |= _TIMES
            parts.append(np.asarray(record.times, "<i4").tobytes())
        if record.later is not None:
            there |= _LATER
            parts.append(record.later.astype(self._dtype).tobytes())
        payload = b"".join(parts)
        op = OPS.index(record.op)
        counts = len(record.ids), answered
        head = _HEAD.pack(len(payload), op, there, record.level, record.job, record.number, *counts)
        self._added += 1
        # Now and then, so that a run that is killed leaves a log.
        self._write([_CRC.pack(zlib.crc32(payload, zlib.crc32(head))), head, payload], flush=self._added % _FLUSH == 0)

    def flush(self) -> None:
        """Hand what is buffered to the system."""
        self._write([], flush=True)

    def close(self) -> None:
        """Finish the file; further calls are not recorded."""
        self._write([], flush=True)
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _write(self, parts: Iterable[bytes], flush: bool = False) -> None:
        if self._file is None or os.getpid() != self._pid:  # a forked child must not write our buffer once more
            return
        self._held += b"".join(parts)
        if not flush and len(self._held) < _BUFFER:
            return
        try:
            while self._held:
                del self._held[: self._file.write(self._held)]
        except OSError as error:
            file, self._file = self._file, None
            warnings.warn(f"the call log {self.path} ends here: {error}", AuguryWarning, stacklevel=4)
            with contextlib.suppress(OSError):  # it has been reported
                file.close()


class Recorded:
    """A policy whose calls are recorded; itself a policy."""

    def __init__(self, policy: Policy, level: int, recorder: Recorder) -> None:
        self._policy, self._level, self._recorder = policy, level, recorder

    @property
    def resident(self) -> Mask:
        return self._policy.resident

    @property
    def capacity(self) -> int:
        return self._policy.capacity

    @property
    def used(self) -> int:
        return self._policy.used

    @property
    def prefetches(self) -> bool:
        return self._policy.prefetches

    @property
    def refills(self) -> bool:
        return self._policy.refills

    @property
    def packages(self) -> Sequence[Ids]:
        return self._policy.packages

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> Ids:
        taken = self._policy.plan(order, job, times, later)
        answer = taken if len(taken) else None
        self._add("plan", job=job, number=len(later), ids=order, times=times, later=later, answer=answer)
        return taken

    def serve(self, ids: Ids, job: int = 0) -> Ids:
        served = self._policy.serve(ids, job)
        same = served is ids or np.array_equal(served, ids)
        self._add("serve", job=job, ids=ids, answer=None if same else served)
        return served

    def admit(self, ids: Ids) -> tuple[Mask, Ids]:
        kept, evicted = self._policy.admit(ids)
        self._add("admit", ids=ids, kept=kept, answer=evicted)
        return kept, evicted

    def wanted(self, budget: int) -> Ids:
        wanted = self._policy.wanted(budget)
        self._add("wanted", number=budget, answer=wanted)
        return wanted

    def learn(self, ids: Ids, scores: Scores, kin: Ids | None = None) -> None:
        self._policy.learn(ids, scores, kin)
        self._add("learn", ids=ids, scores=scores, kin=kin, number=0 if kin is None else len(kin))

    def progress(self, done: float, spreads: Sequence[float], accuracies: Sequence[float]) -> None:
        self._policy.progress(done, spreads, accuracies)
        told = np.array([done, *spreads, *accuracies], np.float32)
        self._add("progress", ids=np.arange(len(told)), scores=told, number=len(spreads))

    @property
    def gauges(self) -> Mapping[str, float]:
        return self._policy.gauges

    def resize(self, capacity: int) -> Ids:
        evicted = self._policy.resize(capacity)
        self._add("resize", number=capacity, answer=evicted)
        return evicted

    def forget(self, ids: Ids) -> None:
        self._policy.forget(ids)
        self._add("forget", ids=ids)

    def adopt(self, ids: Ids) -> Ids:
        rejected = self._policy.adopt(ids)
        self._add("adopt", ids=ids, answer=rejected)
        return rejected

    def leave(self, job: int) -> None:
        self._policy.leave(job)
        self._add("leave", job=job)

    def _add(self, op: str, **what: Any) -> None:
        self._recorder.add(Record(op, self._level, **what))


class Level(NamedTuple):
    """How a level's policy was made."""

    capacity: int
    costs: NDArray[np.int64]


class Trace:
    """A log that was written earlier. May be iterated any number of times."""

    def __init__(self, path: Path, header: dict[str, Any], sizes: NDArray[np.int64], start: int) -> None:
        self.path, self.header, self.sizes, self._start = path, header, sizes, start

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Trace:
        """Read the header and the sizes; the records are read when iterated."""
        path = Path(path)
        try:
            with open(path, "rb") as file:
                header = _read_header(file, path)
                sizes = _read_sizes(file, path, header)
                return cls(path, header, sizes, file.tell())
        except OSError as error:
            raise ConfigError(f"the call log {path} cannot be read: {error.strerror}") from None

    @property
    def samples(self) -> int:
        """How many ids there are."""
        return int(self.header["samples"])

    def levels(self) -> list[Level]:
        """The levels of the cache, topmost first."""
        found = {}
        for record in self:
            if record.op != "level":
                break
            costs = record.ids if len(record.ids) else self.sizes
            found[record.level] = Level(record.number, np.broadcast_to(costs, self.sizes.shape).copy())
        return [found[level] for level in sorted(found)]

    def __iter__(self) -> Iterator[Record]:
        dtype = _id_type(self.samples)
        with open(self.path, "rb") as file:
            left = os.fstat(file.fileno()).st_size - file.seek(self._start) - _CRC.size - _HEAD.size
            while left >= 0:
                (crc,) = _CRC.unpack(file.read(_CRC.size))
                head = file.read(_HEAD.size)
                length, *rest = _HEAD.unpack(head)
                payload = file.read(length) if length <= left else b""
                if length > left or zlib.crc32(payload, zlib.crc32(head)) != crc:
                    return  # torn: the writer was killed here
                left -= length + _CRC.size + _HEAD.size
                yield _decode(payload, dtype, *rest)

    def requests(self) -> Iterator[tuple[int, Ids]]:
        """The order of the run: each batch that was requested, with its job."""
        for record in self:
            if record.op == "serve" and record.level == 0:
                yield record.job, record.ids

    def epochs(self) -> list[list[Ids]]:
        """The batches of each epoch, all jobs together: as marked, or else every `samples` requests.

        A last epoch with fewer requests than the one before is left out: it was read ahead, and perhaps never visited.
        """
        marked: list[list[Ids]] = [[]]
        any_mark = False
        for record in self:
            if record.op == "epoch" and record.job == 0:
                any_mark = True
                marked.append([])
            elif record.op == "serve" and record.level == 0 and len(record.ids):
                marked[-1].append(record.ids)
        epochs = marked if any_mark else _cut(marked[0], self.samples)
        epochs = [epoch for epoch in epochs if epoch]
        requests = [sum(map(len, epoch)) for epoch in epochs[-2:]]
        return epochs[:-1] if len(requests) == 2 and requests[1] < requests[0] else epochs


def _all_equal(sizes: NDArray[Any]) -> bool:
    return len(sizes) > 0 and bool((sizes == sizes[0]).all())


def _id_type(samples: int) -> np.dtype[Any]:
    return np.dtype("<i4" if samples < 2**31 else "<i8")


def _read_header(file: BinaryIO, path: Path) -> dict[str, Any]:
    start = file.read(_PREAMBLE.size)
    if len(start) < _PREAMBLE.size or not start.startswith(_MAGIC):
        raise ConfigError(f"{path} is not a call log of Augury")
    _, version, length, crc = _PREAMBLE.unpack(start)
    if version != VERSION:
        raise ConfigError(f"{path} is a call log of version {version}; this Augury reads version {VERSION}")
    text = file.read(length)
    if len(text) < length or zlib.crc32(text) != crc:
        raise ConfigError(f"the call log {path} is damaged: its header cannot be read")
    header: dict[str, Any] = json.loads(text)
    return header


def _read_sizes(file: BinaryIO, path: Path, header: dict[str, Any]) -> NDArray[np.int64]:
    samples, same = int(header["samples"]), header.pop(_SIZES)
    if same is not None:
        return np.full(samples, same, np.int64)
    data = file.read(_COST.itemsize * samples)
    if len(data) < _COST.itemsize * samples:
        raise ConfigError(f"the call log {path} is damaged: its sizes cannot be read")
    return np.frombuffer(data, _COST).astype(np.int64)


def _decode(
    payload: bytes,
    dtype: np.dtype[Any],
    op: int,
    there: int,
    level: int,
    job: int,
    number: int,
    ids: int,
    answer: int,
) -> Record:
    at = 0

    def take(count: int, kind: np.dtype[Any]) -> NDArray[Any]:
        nonlocal at
        part = np.frombuffer(payload, kind, count, at)
        at += part.nbytes
        return part

    asked = take(ids, _COST if OPS[op] == "level" else dtype).astype(np.int64)
    record = Record(OPS[op], level, job, number, asked)
    if there & _KEPT:
        bits = take(-(-ids // 8), np.dtype(np.uint8))
        record.kept = np.unpackbits(bits, count=ids).astype(np.bool_)
    if there & _ANSWER:
        record.answer = take(answer, dtype).astype(np.int64)
    if there & _SCORES:
        record.scores = take(ids, np.dtype("<f4")).astype(np.float32)
    if there & _KIN:
        record.kin = take(number, dtype).astype(np.int64)
    if there & _TIMES:
        record.times = take(ids, np.dtype("<i4")).astype(np.int32)
    if there & _LATER:
        record.later = take(number, dtype).astype(np.int64)
    return record


def _cut(batches: list[Ids], samples: int) -> list[list[Ids]]:
    """Epochs of at least `samples` requests, batches whole."""
    epochs: list[list[Ids]] = [[]]
    count = 0
    for batch in batches:
        if count >= samples:
            epochs.append([])
            count = 0
        epochs[-1].append(batch)
        count += len(batch)
    return epochs
