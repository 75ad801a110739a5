"""The disk tier's speed, in the directory that a cache would use, which is left as it was.

The page cache would make any disk look like memory: writes are waited for until they are on the disk, and pages are
forgotten before they are read.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from augury.errors import InUse
from augury.fetch import TIER_CHUNK
from augury.ids import Ids
from augury.probe.rounds import ROUNDS, Reader, Run, timed
from augury.probe.samples import Contents, cut, fill, fitting
from augury.storage import StorageLevel
from augury.tiers.directory import MARKER, mending
from augury.tiers.disk import DiskTier
from augury.tiers.layout import BLOCK
from augury.units import Size, format_size

_BYTES = 1_000_000_000
"""To write and read at most."""
_EXTRA = 2 * BLOCK
"""That a sample may cost beyond its bytes: rounding, header and the file system's map."""
_SHARE = "probe"


class Disk(NamedTuple):
    """A directory for the disk level, and how much of it may be used."""

    directory: Path
    capacity: Size


def probe_disk(run: Run, threads: Sequence[int], sizes: NDArray[np.int64], disk: Disk, capacity: int) -> StorageLevel:
    """Samples of these sizes, as many as fit into the limit, leave half of the free space, and tell enough."""
    directory = disk.directory.expanduser().absolute()
    wanted = min(capacity, max(_BYTES, 4 * (int(sizes.max()) + _EXTRA)))
    sizes = fitting(sizes, min(wanted, spare(directory)), f"disk {directory}", _EXTRA)
    contents = Contents(sizes, run.rng)
    with temporary_tier(directory, sizes) as (tier, file):
        portions = iter(np.array_split(run.rng.permutation(len(sizes)), ROUNDS))

        def write(_: int) -> float | None:
            pieces = cut(next(portions), TIER_CHUNK)
            return fill(tier, pieces, contents, run.seconds, file.sync) if pieces else None

        def read(count: int) -> float:
            file.forget()
            length = min(TIER_CHUNK, max(1, len(held) // (4 * count)))
            return timed(cut(run.rng.permutation(held), length), lambda: _reader(tier), count, run.seconds)

        writes = run.curve("disk", "write", [1], write)
        held = tier.found()
        file.forget()
        kept = file.resident()
        reads = run.curve("disk", "read", threads, read)
    run.notes.append(_note(len(held), int(sizes[held].sum()), kept))
    return StorageLevel("disk", disk.capacity, reads.enough, reads.throughput, writes.throughput, str(directory))


def _note(samples: int, size: int, kept: float | None) -> str:
    note = (
        f"disk: {samples:,} samples ({format_size(size)}), written by one thread, as the cache does, until they are on "
        "the disk, and read back in random order with their checksums"
    )
    if kept is None:
        return note + "; whether the page cache was emptied before each round cannot be told here"
    if kept > 0.1:
        return note + f"; the page cache kept {kept:.0%} of them (a disk in memory?): this is the speed of memory"
    return note + ", the page cache emptied before each round"


def _reader(tier: DiskTier) -> Reader:
    def read(ids: Ids) -> int:
        return sum(len(data) for data in tier.read(ids) if data is not None)

    return read


def spare(directory: Path) -> int:
    """Half of the bytes that the disk tier would use before it says that the disk is nearly full."""
    with mending(directory):
        nearest = directory
        while not nearest.exists():
            nearest = nearest.parent
        system = os.statvfs(nearest)
    floor = min(1 << 30, system.f_blocks * system.f_frsize // 20)
    return max(0, system.f_bavail * system.f_frsize - floor) // 2


@contextlib.contextmanager
def temporary_tier(directory: Path, sizes: NDArray[np.int64]) -> Iterator[tuple[DiskTier, File]]:
    """A disk tier with a share of its own beside those of a cache that may be there; afterwards all is as it was.

    The share has a fixed name: what a probe that was killed has left is taken over, and two at once are refused.
    """
    share = directory / f"share-{_SHARE}"
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    marked, others = (directory / MARKER).exists(), share.exists()
    limit = 2 * int((sizes + _EXTRA).sum())
    try:
        tier = DiskTier(directory, limit, sizes, f"augury probe {os.urandom(8).hex()}", share=_SHARE)
        others = False
        try:
            with File(share / "data.0") as file:
                yield tier, file
        finally:
            # While the lock is held: afterwards the share may be another probe's.
            _empty(share)
            tier.close()
    except InUse:
        others = True
        raise
    finally:
        if not others:
            _remove(share)
        if not marked:
            _unmark(directory)
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()


def _empty(share: Path) -> None:
    with contextlib.suppress(OSError):
        for path in share.iterdir():
            if path.name != "lock":
                path.unlink(missing_ok=True)


def _remove(share: Path) -> None:
    """What is left of a share that was checked to be ours, or that was not there before."""
    _empty(share)
    with contextlib.suppress(OSError):
        (share / "lock").unlink(missing_ok=True)
        share.rmdir()


def _unmark(directory: Path) -> None:
    """Unless a cache has been opened there meanwhile."""
    with contextlib.suppress(OSError):
        if os.listdir(directory) == [MARKER]:
            (directory / MARKER).unlink()


class File:
    """A second descriptor of the tier's file, for what the tier itself never does: sync, and forget cached pages."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def sync(self) -> None:
        """Wait until all that was written is on the disk."""
        os.fdatasync(self._fd)

    def forget(self) -> None:
        """Let the operating system read from the disk again."""
        self.sync()
        with contextlib.suppress(AttributeError, OSError):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def resident(self) -> float | None:
        """The share of the file that is in the page cache; None where the system does not tell."""
        length = os.fstat(self._fd).st_size
        mincore = getattr(ctypes.CDLL(None), "mincore", None)
        if mincore is None or length == 0:
            return None
        pages = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
        with mmap.mmap(self._fd, length, access=mmap.ACCESS_READ) as mapped:
            start = np.frombuffer(mapped, np.uint8).ctypes.data
            arguments = (ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_void_p(pages.ctypes.data))
            failed = mincore(*arguments)
        return None if failed else float((pages & 1).mean())
