"""The disk shelf: a file per content, named by its digest, in a directory of the node's own; kept across restarts.

    DIRECTORY/share-node/          mode 0700, locked by the node that uses it (tiers/directory.py)
        3f/3fa9...c1-17            a sample's bytes; the digest is its checksum
        3f/new-18                  being written; renamed when whole

A file is written aside and renamed, and what is read is compared with its digest: a torn, flipped or foreign file is a
miss, never a wrong byte. Nothing is synced. The books are kept under the node's lock, files are touched outside of it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.node.shelves import Entry, Holder, Shelf
from augury.tiers.directory import Share

log = logging.getLogger(__name__)

BLOCK = 4096
LANDING = 256 << 20
"""Bytes that may wait in memory to be written, at most; what comes beyond is not kept."""
PAUSE = 5.0
"""After a failure, such as a full disk, nothing is written for so many seconds."""
FREE = 1 << 30
"""Space that is left on the file system: so much, or a twentieth of it if that is less."""
_FILE = re.compile(r"([0-9a-f]{64})-(\d+)")


class FileShelf(Shelf):
    """Bytes in files."""

    name = "disk"

    def __init__(self, directory: Path, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(capacity)
        check_own(directory)
        self._share = Share(directory, "node")
        self._root, self._clock = self._share.path, clock
        self._serial = itertools.count()
        self._landing = 0
        self._paused_until = 0.0
        self.failures = 0
        """Files that could not be written."""
        self.damaged = 0
        """Files whose content was not that of their digest."""
        self.reason = ""
        """Of the last failure."""
        self._removed: list[Entry] = []
        try:
            self._find()
        except BaseException:
            self.close()
            raise

    def put(self, key: bytes, data: bytes, job: Holder) -> Entry | None:
        """Keep bytes that are not here yet, held by a job: in memory until `land`. None where there is no room."""
        cost = footprint(len(data))
        waits = self._landing > 0 and self._landing + len(data) > LANDING  # one is always taken, however large
        if self._clock() < self._paused_until or waits or not self._room(cost):
            return None
        entry = Entry(key, cost)
        entry.data, entry.name = data, self._name(key)
        self.used += cost
        self._landing += len(data)
        self._enter(entry, job)
        return entry

    def write(self, entry: Entry) -> bool:
        """Write the file of an entry that was put; outside the lock. Whether that worked."""
        data, path = entry.data, self._root / entry.name
        if data is None:
            return True
        aside = path.with_name(f"new-{path.name[65:]}")
        try:
            self._check_space(len(data))
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with open(aside, "xb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
            os.rename(aside, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink()
            self.reason = f"{error.strerror or error}"
            return False
        return True

    def land(self, entry: Entry, written: bool) -> None:
        """After `write`, under the lock: from now on the file is what there is. One that was not written leaves."""
        data, entry.data = entry.data, None
        self._landing -= 0 if data is None else len(data)
        if not written:
            if not self.failures or self._clock() > self._paused_until:
                log.warning("a sample could not be written to the disk: %s. For %d s none is.", self.reason, PAUSE)
            self.failures += 1
            self._paused_until = self._clock() + PAUSE
        still = self.entries.get(entry.key) is entry
        if still and not written:
            self.discard(entry)
        elif not still and written:
            self._removed.append(entry)  # given up while it was being written

    def read(self, entry: Entry) -> bytes | None:
        """Its bytes; outside the lock. None where they are not there or not what they were."""
        if (data := entry.data) is not None:
            return data
        try:
            data = (self._root / entry.name).read_bytes()
        except OSError:
            return None
        return data if blake3(data).digest() == entry.key else None

    def spoil(self, entry: Entry) -> bool:
        """Its bytes could not be read: it leaves, unless it was given up meanwhile. Whether it did."""
        if self.entries.get(entry.key) is not entry:
            return False
        self.damaged += 1
        self.discard(entry)
        return True

    def sweep(self) -> list[str]:
        """Names of files that are not needed any more, each once; to be removed outside the lock."""
        removed, self._removed = self._removed, [entry for entry in self._removed if entry.readers]
        return [entry.name for entry in removed if not entry.readers]

    def remove(self, names: list[str]) -> None:
        """Remove files that nobody knows any more."""
        for name in names:
            with contextlib.suppress(OSError):
                (self._root / name).unlink()

    def close(self) -> None:
        """Let another node use the directory; the files stay."""
        self._share.release()

    def _room(self, cost: int) -> bool:
        """Let idle content go until so much fits; whether it does."""
        while self.used + cost > self.capacity and self._idle:
            self.discard_oldest()
        return self.used + cost <= self.capacity

    def _give_back(self, entry: Entry) -> None:
        self.used -= entry.cost
        if entry.data is None:
            self._removed.append(entry)

    def _name(self, key: bytes) -> str:
        text = key.hex()
        return f"{text[:2]}/{text}-{next(self._serial)}"

    def _check_space(self, size: int) -> None:
        system = os.statvfs(self._root)
        floor = min(FREE, system.f_blocks * system.f_frsize // 20)
        if system.f_bavail * system.f_frsize - size < floor:
            raise OSError(28, f"the disk is nearly full: {floor} bytes are left free")

    def _find(self) -> None:
        """Take over what an earlier node has left; it is idle until a job comes that knows its digests."""
        highest = 0
        for folder in sorted(os.scandir(self._root), key=lambda each: each.name):
            if not folder.is_dir(follow_symlinks=False):
                continue
            for file in os.scandir(folder.path):
                match = _FILE.fullmatch(file.name) if file.is_file(follow_symlinks=False) else None
                with contextlib.suppress(OSError):  # somebody has removed it meanwhile
                    if match is not None and self._adopt(match, f"{folder.name}/{file.name}", file.stat().st_size):
                        highest = max(highest, int(match[2]) + 1)
                    else:
                        os.unlink(file.path)
        self._serial = itertools.count(highest)

    def _adopt(self, match: re.Match[str], name: str, size: int) -> bool:
        entry = Entry(bytes.fromhex(match[1]), footprint(size))
        entry.name = name
        if entry.key in self.entries or self.used + entry.cost > self.capacity:
            return False
        self.used += entry.cost
        self.entries[entry.key] = entry
        self._idle[entry.key] = None
        return True


def blocks(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """What samples cost: whole blocks."""
    return np.maximum(BLOCK, -(-sizes // BLOCK) * BLOCK)


def footprint(size: int) -> int:
    """What a sample costs: whole blocks."""
    return max(BLOCK, -(-size // BLOCK) * BLOCK)


def check_own(directory: Path) -> None:
    """ConfigError for a directory that is somebody else's or a link, or that others may write to."""
    try:
        status = directory.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        raise ConfigError(f"{directory} is a link, which may point elsewhere tomorrow: name the directory itself")
    if status.st_uid != os.geteuid():
        raise ConfigError(f"{directory} belongs to another user: name a directory of your own for the disk cache")
    if status.st_mode & 0o022:
        raise ConfigError(f"{directory} can be written to by others: run chmod 700 {directory}, or name another one")
