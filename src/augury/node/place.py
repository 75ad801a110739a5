"""The place of a node's socket: a directory that nobody else can tamper with, a lock, and who may come in.

    DIRECTORY/node.sock         mode 0600, or 0660 with a group
    DIRECTORY/node.sock.lock    held while a node runs; contains its pid

Modes are set, whatever the umask. What is said over the socket is not known here.
"""

from __future__ import annotations

import grp
import os
import socket
import stat
from pathlib import Path

from augury.errors import ConfigError
from augury.tiers.directory import Descriptor, locked

LONGEST = 100
"""Bytes of a path: systems take 103 or more."""
_ELSEWHERE = "give another --socket"


class Place:
    """Taken from the start until `leave`."""

    def __init__(self, path: Path, gid: int | None) -> None:
        self.path, self._gid = path, gid
        self._listens = False
        if len(os.fsencode(path)) > LONGEST:
            raise ConfigError(f"{path} is too long for a socket: give a shorter --socket")
        try:
            _make_directory(path.parent, gid)
            _check_directory(path.parent)
            self._lock: Descriptor | None = _lock(path)
        except OSError as error:
            raise ConfigError(f"{path.parent} cannot be used for the socket ({error.strerror}): {_ELSEWHERE}") from None

    def listen(self) -> socket.socket:
        """The socket, where clients may connect from now on."""
        if self.path.exists() and not self.path.is_socket():
            raise ConfigError(f"{self.path} is a file that is no socket, and is left alone: {_ELSEWHERE}")
        self.path.unlink(missing_ok=True)  # of a node that was killed: the lock is ours
        self._listens = True
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            before = os.umask(0o177)
            try:
                listener.bind(os.fspath(self.path))
            finally:
                os.umask(before)
            if self._gid is not None:
                os.chown(self.path, -1, self._gid)
                self.path.chmod(0o660)
            listener.listen(128)
        except OSError as error:
            listener.close()
            raise ConfigError(f"the socket {self.path} cannot be made: {error.strerror}") from None
        return listener

    def obstacle(self) -> Path | None:
        """The directory that keeps the group's users from the socket, as far as modes tell."""
        for directory in self.path.parents if self._gid is not None else ():
            status = directory.stat()
            if not status.st_mode & (stat.S_IXOTH | (stat.S_IXGRP if status.st_gid == self._gid else 0)):
                return directory
        return None

    def leave(self) -> None:
        """Remove socket and lock, and let another node come."""
        lock, self._lock = self._lock, None
        if lock is not None:
            if self._listens:
                self.path.unlink(missing_ok=True)
            lock_of(self.path).unlink(missing_ok=True)


def lock_of(path: Path) -> Path:
    """The lock of a socket."""
    return path.with_name(f"{path.name}.lock")


def group_id(name: str | None) -> int | None:
    """The number of a group that this user may let in."""
    if name is None:
        return None
    try:
        gid = int(name) if name.isdecimal() and int(name) < 1 << 31 else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(
            f"there is no group {name!r}: give the name or the number of one (see `getent group`)"
        ) from None
    if os.geteuid() != 0 and gid not in {os.getegid(), *os.getgroups()}:
        raise ConfigError(f"this user is not in the group {name!r}: only root and its members can let it in")
    return gid


def _make_directory(directory: Path, gid: int | None) -> None:
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700)
        if gid is not None:
            os.chown(each, -1, gid)
        each.chmod(0o700 if gid is None else 0o710)


def _check_directory(directory: Path) -> None:
    """Whoever can rename files there can put a socket of their own in the place of this one."""
    status = directory.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{directory} belongs to another user, who could stand in for this node: {_ELSEWHERE}")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise ConfigError(f"anyone can write to {directory}, and stand in for this node: {_ELSEWHERE}")


def _lock(path: Path) -> Descriptor:
    while True:
        lock = locked(path.parent, f"{path} is", _ELSEWHERE, lock_of(path).name)
        try:
            if os.path.samestat(os.fstat(lock.fd), lock_of(path).stat()):
                return lock
        except FileNotFoundError:
            pass  # another node has just left, and removed the lock that we had opened
