"""The packages there are: written, read, checked and removed, within a byte limit. Nothing here decides what to pack.

A package is written aside, synced and renamed: a process that is killed leaves a whole package or none. What a disk
tears or flips later does not match its checksum and is removed when it is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from augury.errors import AuguryWarning, ConfigError
from augury.ids import Ids
from augury.packages.directory import Directory
from augury.packages.layout import (
    PREAMBLE,
    Head,
    dataset_of,
    head_bytes,
    head_of,
    name_of,
    packed,
    table_bytes,
    unpacked,
)
from augury.sources import Buffer
from augury.tiers.checks import byte_lengths, check_batch

_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR}
"""What is wrong with this process or machine at the moment, not with the file."""


class Package(NamedTuple):
    """One that is ready."""

    ids: Ids
    content: int
    """The bytes of its samples."""
    nbytes: int
    """Of the file."""


class Listener(Protocol):
    """Told of every change, in order and with the store's lock held: it must be quick and not call back."""

    def added(self, name: str, package: Package) -> None: ...
    def removed(self, name: str, package: Package) -> None: ...


class PackageStore:
    """A directory of package files, each read with one request.

    `limit` bounds the lengths of all its files, at every moment. `fingerprint` names the dataset: packages of another
    one are deleted. `line` is called with the number of bytes before each is read or written, to make the store as slow
    as another. Any thread may call it; one process at a time uses a directory. Once closed, it holds and takes nothing.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        limit: int,
        fingerprint: str,
        line: Callable[[int], None] | None = None,
    ) -> None:
        if limit <= 0:
            raise ConfigError(f"packages need room: a limit of {limit} bytes holds none")
        self.limit, self._line, self._pid = limit, line, os.getpid()
        self._dataset = dataset_of(fingerprint)
        self._changed = threading.Condition()
        self._ready: dict[str, Package] = {}
        self._busy: set[str] = set()
        """Names whose files are being written or removed: one thread at a time."""
        self._used, self._closed, self._claimed = 0, False, False
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._warned: set[str] = set()
        self._directory = Directory(Path(directory).expanduser())
        try:
            self._take_over()
        except BaseException:
            self._directory.release()
            raise

    def check(self, fingerprint: str) -> None:
        """ConfigError where it was opened for another dataset: ids would name other samples."""
        if dataset_of(fingerprint) != self._dataset:
            raise ConfigError("this package store was opened for another dataset: give each its own directory")

    def claim(self) -> None:
        """Somebody decides from now on what it holds; ConfigError where somebody does already."""
        with self._changed:
            if self._claimed:
                raise ConfigError("this package store is in use by another loader: give each its own directory")
            self._claimed = True

    def unclaim(self) -> None:
        """Nobody does any more."""
        self._claimed = False

    @staticmethod
    def name_of(ids: Ids) -> str:
        """What a package of these ids is called, in whichever order they stand."""
        return name_of(ids)

    @staticmethod
    def cost_of(count: int, content: int) -> int:
        """What a package of so many samples and bytes takes of the limit."""
        return head_bytes(count) + content

    @property
    def ready(self) -> dict[str, Ids]:
        """The packages that can be read now: name -> ids."""
        with self._changed:
            return {name: package.ids for name, package in self._ready.items()}

    @property
    def bytes_used(self) -> int:
        """Of all files, and of those that are being written."""
        return self._used

    def size_of(self, name: str) -> int:
        """What a package takes of the limit; 0 where it is not ready."""
        package = self._ready.get(name)
        return package.nbytes if package else 0

    def __contains__(self, name: str) -> bool:
        return name in self._ready

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of the packages there are, and of all changes for as long as somebody refers to it."""
        with self._changed:
            for name, package in self._ready.items():
                listener.added(name, package)
            self._listeners.add(listener)

    def write(self, ids: Ids, data: Sequence[Buffer]) -> bool:
        """Make a package of these distinct ids; whether it is there now. False: no room, or the disk failed."""
        check_batch(ids, data)
        name, content = name_of(ids), int(byte_lengths(data).sum())
        ids = ids.copy()
        ids.flags.writeable = False
        package = Package(ids, content, self.cost_of(len(ids), content))
        with self._using(name):
            if not self._reserve(name, package):
                return name in self
            if not self._written(name, package, data):
                return False
            self._add(name, package)
        return True

    def read(self, name: str) -> dict[int, memoryview] | None:
        """Its samples, with one request; None where it is absent or damaged (it is then removed, with a warning)."""
        package = self._ready.get(name)
        if package is None:
            return None
        try:
            samples = unpacked(self._whole(name, package), self._dataset, name)
            reason = "" if samples is not None else "does not match its checksum"
        except OSError as error:
            if error.errno in _PASSING:
                return None
            samples, reason = None, str(error)
        # Where it is no longer the one that was asked for, it was removed meanwhile: that is no damage.
        if samples is None and self._remove(name, package):
            self._warn("damaged", f"package {self._directory.file(name)} {reason}: it is removed and not used")
        return samples

    def remove(self, name: str) -> None:
        """Delete a package, if there is one of this name. Who is reading it reads on."""
        package = self._ready.get(name)
        if package is not None:
            self._remove(name, package)

    def close(self) -> None:
        """Let go of the directory, after what is being written; packages stay for the next run."""
        if os.getpid() != self._pid:  # a forked child has a copy of us, and the same lock
            return
        with self._changed:
            self._closed = True
            for name in list(self._ready):
                self._forget(name)
            self._changed.wait_for(lambda: not self._busy)
        self._directory.release()

    def _take_over(self) -> None:
        """Index what an earlier run has left, by its heads; what is not whole, not ours or does not fit is deleted."""
        for name in self._directory.found():
            head = self._head(name)
            cost = head.nbytes + head.content if head else 0
            if head is None or self._used + cost > self.limit:
                self._delete(name)
                continue
            self._ready[name] = Package(head.ids, head.content, cost)
            self._used += cost

    def _head(self, name: str) -> Head | None:
        try:
            with open(self._directory.file(name), "rb", opener=_opener) as file:
                length, preamble = os.fstat(file.fileno()).st_size, file.read(PREAMBLE)
                table = table_bytes(preamble, length, self._dataset)
                return None if table is None else head_of(preamble + file.read(table), length, self._dataset, name)
        except OSError:
            return None

    def _whole(self, name: str, package: Package) -> bytes:
        if self._line is not None:
            self._line(package.nbytes)
        with open(self._directory.file(name), "rb", buffering=0, opener=_opener) as file:
            data = file.read(package.nbytes) or b""
            while len(data) < package.nbytes and (more := file.read(package.nbytes - len(data))):
                data += more  # Linux ends a single read near 2 GiB
        return data

    @contextlib.contextmanager
    def _using(self, name: str) -> Iterator[None]:
        """Alone with the file of this name."""
        with self._changed:
            self._changed.wait_for(lambda: name not in self._busy)
            self._busy.add(name)
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(name)
                self._changed.notify_all()

    def _reserve(self, name: str, package: Package) -> bool:
        with self._changed:
            if self._closed or name in self._ready or self._used + package.nbytes > self.limit:
                return False
            self._used += package.nbytes
            return True

    def _give_back(self, nbytes: int) -> None:
        with self._changed:
            self._used -= nbytes

    def _written(self, name: str, package: Package, data: Sequence[Buffer]) -> bool:
        """Put the file in its place; if the disk refuses, leave nothing of it."""
        aside, file = self._directory.aside(name), self._directory.file(name)
        try:
            if self._line is not None:
                self._line(package.nbytes)
            _write(aside, packed(package.ids, data, self._dataset))
            os.replace(aside, file)
            self._directory.sync()
            return True
        except BaseException as error:
            if _deleted(aside) and _deleted(file):
                self._give_back(package.nbytes)
            if not isinstance(error, OSError):
                raise
            self._warn("full", f"packages cannot be written to {self._directory.path}: {error}; training goes on")
            return False

    def _remove(self, name: str, package: Package) -> bool:
        """Whether it was this very package that was there, and it is no more."""
        with self._using(name):
            with self._changed:
                if self._ready.get(name) is not package:
                    return False
                self._forget(name)
            if self._delete(name):
                self._give_back(package.nbytes)
        return True

    def _add(self, name: str, package: Package) -> None:
        with self._changed:
            if self._closed:  # it waits for the next run
                return
            self._ready[name] = package
            for listener in self._listeners:
                listener.added(name, package)

    def _forget(self, name: str) -> None:
        """The lock is held."""
        package = self._ready.pop(name)
        for listener in self._listeners:
            listener.removed(name, package)

    def _delete(self, name: str) -> bool:
        if _deleted(self._directory.file(name)):
            return True
        self._warn("stuck", f"package {self._directory.file(name)} cannot be deleted; its bytes count on")
        return False

    def _warn(self, kind: str, text: str) -> None:
        """Once of each kind."""
        with self._changed:
            known = kind in self._warned
            self._warned.add(kind)
        if not known:
            warnings.warn(text, AuguryWarning, stacklevel=3)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)


def _write(path: Path, parts: Sequence[bytes]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        for part in parts:
            left = memoryview(part)
            while left:  # a disk that fills up takes what it can; trying for the rest gives the reason
                left = left[os.write(file, left) :]
        os.fsync(file)
    finally:
        os.close(file)


def _deleted(path: Path) -> bool:
    """Whether there is no such file any more."""
    try:
        path.unlink(missing_ok=True)
        return True
    except OSError:
        return False
