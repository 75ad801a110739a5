"""What clients and the node say to each other: messages by schema, arrays beside them, files of memory over the socket.

A packet of the (SOCK_SEQPACKET) socket is one message, whole or not at all:

    8 bytes     mark, version, number of arrays, whether they are in a file, length of the message
    message     msgpack of one of the classes below
    lengths     8 bytes for each array
    arrays      raw; where they would make the packet too long, in a memory file that comes along instead

Every array has its type by schema, every length is checked against what was received, and nothing is ever unpickled.
A file that comes along is only read, never mapped, unless it is an area, whose seals are checked first. No decisions
here.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import mmap
import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from augury.errors import AuguryError

VERSION = 1
PACKET = 192 << 10
"""Bytes of a packet at most: what a Unix socket takes by default."""
INLINE = 128 << 10
"""Arrays of more bytes together travel in a file."""
IDS = 16_384
"""Ids of one request for samples, at most."""
DIGEST = 32
_HEAD = struct.Struct("<BBBBI")
_MARK = 0xA6
_FILES = socket.CMSG_SPACE(4 * 4)
"""Room for four files; the system closes what else a packet brings. All but the first are closed unseen."""

Arrays: TypeAlias = list[NDArray[Any]]


class BadMessage(AuguryError):
    """What was received is no message, or not one that may come now."""


class Refused(AuguryError):
    """The other side does not want to: says why."""


class Message(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Base of all messages. `ARRAYS` are the types of the arrays that come with it, `MOST` their bytes at most, where
    that is less than the receiver takes anyway."""

    ARRAYS: ClassVar[tuple[str, ...]] = ()
    MOST: ClassVar[int] = 1 << 62


class Hello(Message):
    """The first message of a client."""

    version: int
    name: str


class Area(Message):
    """Memory that the node may copy into: comes with a memory file, sealed against shrinking."""

    number: int
    size: int


class Drop(Message):
    """Areas that are not needed any more."""

    numbers: list[int]


class Join(Message):
    """Take part in a job: that of the same name that is there, or a new one. The digests are what entitles to bytes."""

    ARRAYS: ClassVar = ("u1", "<i8")  # digests, sizes (one if all are equal)
    job: bytes
    name: str
    recipe: str
    seed: int
    samples: int
    ram: int
    disk: int
    mirrors: bool
    """Whether each answer tells who is held since the last one."""


class Take(Message):
    """Decide a batch, and copy what is there to an area, each sample behind the one before."""

    ARRAYS: ClassVar = ("<i8",)
    MOST: ClassVar = 8 * IDS
    job: int
    area: int
    at: int
    room: int
    admit: bool = True
    bypass: bool = False
    stalled: float = 0.0
    """Seconds that training has waited so far, for those who watch."""


class Unasked(Message):
    """Decide about ids that a policy wants and nobody has asked for."""

    ARRAYS: ClassVar = ("<i8",)


class Offer(Message):
    """Bytes that the node asked for: in an area, each at its offset."""

    ARRAYS: ClassVar = ("<i8", "<i8")  # ids, offsets
    MOST: ClassVar = 16 * IDS
    area: int


class Lost(Message):
    """Samples that were to be offered and could not be read."""

    ARRAYS: ClassVar = ("<i8",)


class Plan(Message):
    """What a job will request from now on."""

    ARRAYS: ClassVar = ("<i8", "<i4", "<i8")  # order, times (empty: once), later
    job: int
    timed: bool


class Leave(Message):
    """One of the job's loaders has ended: nothing more is kept for it."""

    job: int


class Learn(Message):
    """New importance of ids."""

    ARRAYS: ClassVar = ("<i8", "<f4", "<i8")  # ids, scores, kin
    kin: bool


class Progress(Message):
    """How far training is."""

    done: float
    spreads: list[float]
    accuracies: list[float]


class Wanted(Message):
    """Whom would a level hold if it had them?"""

    level: int


class Look(Message):
    """Who is held, and what do the policies say of themselves?"""


class Resize(Message):
    """The job wants another share of a level."""

    level: int
    capacity: int


class Report(Message):
    """What is the node doing? Users see their own jobs."""


class Stop(Message):
    """End the node. For its own user."""


class Welcome(Message):
    """The node's first answer."""

    version: int
    pid: int
    area_bytes: int


class Done(Message):
    """Yes."""


class Joined(Message):
    """The job, as it is."""

    ARRAYS: ClassVar = ("i1",)  # level of each id that is held, else -1; only for those who mirror
    levels: list[str]
    prefetches: bool
    refills: bool


class Taken(Message):
    """What was decided about a batch."""

    ARRAYS: ClassVar = ("<i8", "i1", "i1", "?", "<i8", "i1")
    # served (empty: as asked), level, who gave the bytes (-1: nobody), to be offered; changed ids, their levels now
    wishes: int


class Decided(Message):
    """What was decided about ids that nobody has asked for."""

    ARRAYS: ClassVar = ("<i8", "i1", "?", "<i8", "i1")  # taken, level, to be offered; changed ids, their levels now


class Offered(Message):
    """What became of an offer."""

    kept: int
    refused: int
    """Whose bytes do not match their digest."""


class Listed(Message):
    """Ids."""

    ARRAYS: ClassVar = ("<i8",)


class Seen(Message):
    """Who is held: the level of each id, else -1."""

    ARRAYS: ClassVar = ("i1",)
    capacities: list[int]
    gauges: dict[str, float]


class Told(Message):
    """What the node is doing: plain numbers and names."""

    report: dict[str, Any]


class Failed(Message):
    """No, and why. The connection ends."""

    reason: str


Request: TypeAlias = (
    Hello
    | Area
    | Drop
    | Join
    | Take
    | Unasked
    | Offer
    | Lost
    | Plan
    | Leave
    | Learn
    | Progress
    | Wanted
    | Look
    | Resize
) | (Report | Stop)
Answer: TypeAlias = Welcome | Done | Joined | Taken | Decided | Offered | Listed | Seen | Told | Failed

requests = msgspec.msgpack.Decoder(Request)
answers = msgspec.msgpack.Decoder(Answer)
encoded = msgspec.msgpack.Encoder().encode


class Received(NamedTuple):
    """One message with its arrays and, where one came along and was not read as arrays, an open file."""

    message: Any
    arrays: Arrays
    file: int | None


def send(to: socket.socket, message: Message, arrays: Sequence[NDArray[Any]] = (), file: int | None = None) -> None:
    """Send one message. Arrays that are too long for a packet go in a memory file."""
    assert len(arrays) == len(message.ARRAYS), message
    raw = [np.ascontiguousarray(each, kind) for each, kind in zip(arrays, message.ARRAYS, strict=True)]
    lengths = [each.nbytes for each in raw]
    body = encoded(message)
    apart = sum(lengths) > INLINE
    head = _HEAD.pack(_MARK, VERSION, len(raw), apart, len(body))
    parts: list[Any] = [head, body, array.array("Q", lengths).tobytes()]
    if not apart:
        parts += [each.reshape(-1).view(np.uint8).data for each in raw if each.nbytes]
        socket.send_fds(to, parts, [] if file is None else [file])
        return
    assert file is None
    with memory_file("arrays") as made:
        for each in raw:
            _write_all(made, each.reshape(-1).view(np.uint8).data)
        socket.send_fds(to, parts, [made])


def receive(source: socket.socket, decoder: msgspec.msgpack.Decoder[Any], most: int) -> Received | None:
    """One message; None where the other side has closed. Arrays in a file may have `most` bytes together."""
    packet, beside, flags, _ = source.recvmsg(PACKET + 1, _FILES, socket.MSG_CMSG_CLOEXEC)
    files = _files(beside)
    try:
        if not packet:
            return None
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(files) > 1:
            raise BadMessage("a packet is too long, or brings too many files")
        message, arrays, used = _unpack(packet, files, decoder, most)
        return Received(message, arrays, files.pop() if files and not used else None)
    finally:
        for each in files:
            os.close(each)


def _files(beside: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """What `socket.recv_fds` finds; that one forgets its flags, and the files would be open in child processes."""
    files = array.array("i")
    for level, kind, data in beside:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    return files.tolist()


def _unpack(packet: bytes, files: list[int], decoder: Any, most: int) -> tuple[Any, Arrays, bool]:
    if len(packet) < _HEAD.size:
        raise BadMessage("a packet is cut short")
    mark, version, count, apart, length = _HEAD.unpack_from(packet)
    if mark != _MARK or apart > 1:
        raise BadMessage("a packet is not ours")
    if version != VERSION:
        raise BadMessage(f"the other side speaks version {version} of the protocol, this one version {VERSION}")
    start = _HEAD.size + length
    data = start + 8 * count
    if data > len(packet):
        raise BadMessage("a packet is cut short")
    try:
        message = decoder.decode(memoryview(packet)[_HEAD.size : start])
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadMessage(f"a message is not understood: {error}") from None
    lengths = list(struct.unpack_from(f"<{count}Q", packet, start))
    if count != len(message.ARRAYS):
        raise BadMessage(f"{type(message).__name__} comes with {len(message.ARRAYS)} arrays, not {count}")
    total = sum(lengths)
    if apart:
        if total > min(most, message.MOST) or not files or data != len(packet):
            raise BadMessage("arrays in a file are missing or too long")
        content: Any = _read_file(files[0], total)
    elif total != len(packet) - data:
        raise BadMessage("a packet has another length than it says")
    else:
        content = memoryview(packet)[data:]
    return message, list(_cut(content, lengths, message.ARRAYS)), bool(apart)


def _cut(content: Any, lengths: list[int], kinds: tuple[str, ...]) -> Iterator[NDArray[Any]]:
    at = 0
    for length, kind in zip(lengths, kinds, strict=True):
        size = _SIZES[kind]
        if length % size:
            raise BadMessage("an array has a broken length")
        if kind == "?":  # any byte but 0 and 1 would be a boolean that is neither
            yield np.frombuffer(content, np.uint8, length, at) != 0
        else:
            yield np.frombuffer(content, kind, length // size, at)
        at += length


_SIZES = {kind: np.dtype(kind).itemsize for kind in ("u1", "i1", "?", "<i4", "<f4", "<i8")}


def _read_file(file: int, total: int) -> NDArray[np.uint8]:
    check_memory_file(file, total)
    content = np.empty(total, np.uint8)
    done = 0
    while done < total:
        read = os.preadv(file, [content[done : done + (1 << 28)].data], done)
        if read == 0:
            raise BadMessage("arrays in a file are cut short")
        done += read
    return content


def check_memory_file(file: int, size: int, seals: int = 0) -> None:
    """BadMessage, unless the file is of memory, at least so long, and has these seals.

    Files of huge pages are refused: a hole in one may find no page to fill it, which kills who writes there.
    """
    try:
        found = fcntl.fcntl(file, fcntl.F_GET_SEALS)  # first: only files of memory have any, others may even block
        status, system = os.fstat(file), os.fstatvfs(file)
    except OSError:
        raise BadMessage("a file is not one of memory") from None
    if system.f_bsize != mmap.PAGESIZE:
        raise BadMessage("a file of memory has huge pages")
    if not stat.S_ISREG(status.st_mode) or status.st_size < size:
        raise BadMessage("a file of memory is too short")
    if found & seals != seals:
        raise BadMessage("a file of memory is not sealed against shrinking")


def printable(text: str) -> str:
    """What the other side has named, as it may be shown: nothing in it forges a line of a log or moves a cursor."""
    return "".join(each if each.isprintable() else "?" for each in text)


@contextlib.contextmanager
def memory_file(name: str) -> Iterator[int]:
    """A file in memory that nobody else knows; closed at the end."""
    made = os.memfd_create(f"augury-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        yield made
    finally:
        os.close(made)


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]
