"""The other end of the socket: one connection to a node, and the memory that the node copies into.

A connection is used by one process (never across a fork) and by one thread at a time. It fails whole: after any error
it is of no use, and neither is the memory that a request under way has named, for the node may still write to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from augury.errors import AuguryError
from augury.node import protocol
from augury.node.config import default_socket
from augury.node.protocol import Arrays, BadMessage, Message

PATIENCE = 5.0
"""Seconds until a node that does not answer is taken for gone."""
AREAS = 64
"""What a node takes of one client, at most."""

Expected = TypeVar("Expected", bound=Message)


class NodeGone(AuguryError):
    """There is no node at this socket, or not any more."""


class NodeRefuses(NodeGone):
    """The node is there and does not want this client, or this request."""


_OPEN: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_copies() -> None:
    """In a forked child: else the node would take a client that was killed for one that lives as long as the child."""
    for each in list(_OPEN):
        each._socket.close()


os.register_at_fork(after_in_child=_close_copies)


class Connection:
    """Requests and answers, one at a time."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.pid = path, os.getpid()
        self.lock = threading.RLock()
        self._areas: dict[int, _Known] = {}
        """Memory that the node was shown, by the identity of its array."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _OPEN.add(self)
        try:
            self._socket.settimeout(PATIENCE)
            self._socket.connect(os.fspath(path))
            self._check_owner()
            self.welcome = self.ask(protocol.Hello(protocol.VERSION, name), protocol.Welcome)[0]
        except OSError as error:
            self._socket.close()
            raise NodeGone(f"there is no node at {path}: {error.strerror or error}") from None
        except NodeGone:
            self._socket.close()
            raise

    def _check_owner(self) -> None:
        """Where nodes are by default others may have been first, and would be told this user's digests and bytes. Who
        names a socket knows whose it is."""
        _, uid, _ = struct.unpack("=iII", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if self.path == default_socket() and uid not in (os.geteuid(), 0):
            raise NodeRefuses(f"the node at {self.path} is that of user {uid}: it is not asked")

    def ask(
        self,
        request: Message,
        answer: type[Expected],
        arrays: Sequence[NDArray[Any]] = (),
        file: int | None = None,
        patience: float = PATIENCE,
    ) -> tuple[Expected, Arrays]:
        """Send a request and wait for its answer."""
        with self.lock:  # also while it is closed: its number may be another file's the next moment
            return self._ask(request, answer, arrays, file, patience)

    def _ask(
        self,
        request: Message,
        answer: type[Expected],
        arrays: Sequence[NDArray[Any]],
        file: int | None,
        patience: float,
    ) -> tuple[Expected, Arrays]:
        try:
            self._socket.settimeout(patience)
            protocol.send(self._socket, request, arrays, file)
            received = protocol.receive(self._socket, protocol.answers, 1 << 40)
        except (OSError, BadMessage) as error:
            refusal = self._last_word() if isinstance(error, BrokenPipeError | ConnectionResetError) else None
            self.close()
            if refusal is not None:
                raise NodeRefuses(f"the node at {self.path} refuses: {refusal}") from None
            raise NodeGone(f"the node at {self.path} does not answer: {_reason(error)}") from None
        except BaseException:
            self.close()  # Ctrl-C between a question and its answer
            raise
        if received is None:
            self.close()
            raise NodeGone(f"the node at {self.path} has gone")
        if isinstance(received.message, protocol.Failed):
            self.close()
            raise NodeRefuses(f"the node at {self.path} refuses: {received.message.reason}")
        if received.file is not None:
            os.close(received.file)
        if not isinstance(received.message, answer):
            self.close()
            raise NodeGone(f"the node at {self.path} answers with {type(received.message).__name__}")
        return received.message, received.arrays

    def _last_word(self) -> str | None:
        """Why the node has closed the connection, if it said so before it read what it was asked."""
        try:
            self._socket.settimeout(0)
            received = protocol.receive(self._socket, protocol.answers, 0)
        except (OSError, BadMessage):
            return None
        if received is not None and received.file is not None:
            os.close(received.file)
        return received.message.reason if received and isinstance(received.message, protocol.Failed) else None

    def area_of(self, memory: NDArray[np.uint8]) -> tuple[int, int]:
        """The number that the node knows this memory by, made known now if need be; and where in it the array begins.

        Holds until the lock is given up: another thread may need the number.
        """
        whole = memory
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        known = self._areas.get(id(whole))
        if known is None or known.memory() is not whole:
            known = self._introduce(whole)
        return known.number, memory.__array_interface__["data"][0] - whole.__array_interface__["data"][0]

    def close(self) -> None:
        """End the connection; whoever waits for an answer does so no longer."""
        if self.pid != os.getpid():  # a forked child's copy: the connection goes on
            self._socket.close()
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self.lock:
            self._socket.close()

    def _introduce(self, whole: NDArray[np.uint8]) -> _Known:
        """Show memory to the node. What nobody uses any more goes first, then what was shown longest ago."""
        going = [key for key, known in self._areas.items() if known.memory() is None]
        staying = [key for key in self._areas if key not in going]
        room = self.welcome.area_bytes - whole.nbytes
        while staying and (len(staying) >= AREAS or sum(self._areas[key].size for key in staying) > room):
            going.append(staying.pop(0))
        if going:
            self.ask(protocol.Drop([self._areas.pop(key).number for key in going]), protocol.Done)
        used = {known.number for known in self._areas.values()}
        number = next(each for each in range(AREAS) if each not in used)
        self.ask(protocol.Area(number, whole.nbytes), protocol.Done, file=_FILES[id(whole)])
        known = self._areas[id(whole)] = _Known(number, whole.nbytes, weakref.ref(whole))
        return known


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


class _Known(NamedTuple):
    """Memory that the node was shown."""

    number: int
    size: int
    memory: weakref.ref[NDArray[np.uint8]]


_forks = 0


def forks() -> int:
    """How often this process has forked: memory from before is shared with a child."""
    return _forks


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_parent=_count_fork, after_in_child=_count_fork)

_FILES: dict[int, int] = {}
"""The memory file of each array that `shared_memory` has made and that is still in use."""


def shared_memory(nbytes: int) -> NDArray[np.uint8]:
    """Memory that can be shown to a node: sealed against shrinking. Given back when nobody refers to the array."""
    size = max(mmap.PAGESIZE, nbytes)
    file = os.memfd_create("augury-batch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        memory = np.frombuffer(mmap.mmap(file, size), np.uint8)
    except BaseException:
        os.close(file)
        raise
    _FILES[id(memory)] = file
    weakref.finalize(memory, _forget, id(memory)).atexit = False
    return memory


def _forget(key: int) -> None:
    os.close(_FILES.pop(key))
