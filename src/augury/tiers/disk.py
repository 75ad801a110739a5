"""Samples on a local disk, kept across runs: checksummed, within a byte limit, safe to kill at any moment.

The layout (`tiers.layout`) says where in the file a sample lies, the share (`tiers.directory`) owns the
files; here bytes are written, read and checked. Nothing here decides what to hold, and nothing is ever
synced: a process that is killed loses nothing, and what a power cut tears does not match its checksum.

A crash leaves no blocks that nobody knows of: a place is tagged before it is written and untagged after its
blocks are given back. A tag without its bytes reads as a miss.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from augury.errors import Closed, TierFailed
from augury.ids import Ids, Mask
from augury.sources import Buffer
from augury.tiers.checks import byte_lengths, check_batch, check_sizes
from augury.tiers.directory import Descriptor, Share, check_punching, punch
from augury.tiers.layout import BLOCK, HEADER, Layout, choose_layout

SEGMENT = 1 << 40
"""A file holds the places that begin within so many bytes: ext4 ends at 4 to 16 TiB."""
_MOST_FREE = 1 << 30
_SLACK = 1 << 16
"""Disk usage beyond that of the places which is taken for the file system's map, not for lost blocks."""


class _Files(NamedTuple):
    tags: Descriptor
    data: list[Descriptor]


class DiskTier:
    """Bytes by id in one (sparse) file.

    `capacity` bounds the disk blocks of the samples, at every moment. Beside it stand a few blocks of
    housekeeping and, where sizes are mixed, an index of one byte per sample of the dataset. `floor` is the
    free space to leave on the file system, by default the lesser of 1 GiB and 5 %. `fingerprint` names the
    dataset: files of another one are deleted. Each process on a machine needs its own `share`.
    """

    name = "disk"
    instant = False

    def __init__(
        self,
        directory: str | os.PathLike[str],
        capacity: int,
        sizes: NDArray[Any],
        fingerprint: str,
        floor: int | None = None,
        share: str = "0",
    ) -> None:
        self.capacity, self._sizes, self._pid = capacity, sizes, os.getpid()
        # With the dataset in the seed, bytes of another one never pass for ours, whatever a crash mixed up.
        self._salt = xxhash.xxh3_64_intdigest(fingerprint.encode())
        self._layout: Layout = choose_layout(sizes, capacity)
        self._spoiled: deque[int] = deque()
        self._share = Share(Path(directory), share)
        try:
            self._files: _Files | None = self._open_files(fingerprint)
            with self._failing("opened"):
                self._floor = _default_floor(self._files) if floor is None else floor
                self._take_over(self._files)
        except BaseException:
            self._share.release()
            raise

    def footprint(self, sizes: NDArray[Any]) -> NDArray[Any]:
        """What samples of these sizes cost: a slot, or whole blocks."""
        return self._layout.footprint(sizes)

    def holds(self, ids: Ids) -> Mask:
        """Which of these are held, as far as known without reading them."""
        self._open()
        return self._layout.holds(ids)

    def read(self, ids: Ids) -> list[Buffer | None]:
        """One buffer per id; None where it is absent, or what lies there does not match its checksum."""
        files = self._open()
        found: list[Buffer | None] = [None] * len(ids)
        at = np.flatnonzero(self._layout.holds(ids))
        held = ids[at]
        offsets, sizes = self._layout.offset_of(held).tolist(), self._sizes[held].tolist()
        for position, id, offset, size in zip(at.tolist(), held.tolist(), offsets, sizes, strict=True):
            part, within = divmod(offset, SEGMENT)
            try:
                found[position] = self._unpack(id, os.pread(files.data[part].fd, HEADER + size, within))
            except OSError:  # a bad block spoils one sample, not its neighbours
                found[position] = None
            if found[position] is None:
                # Given back by the next write or drop: this may be any of several reading threads.
                self._spoiled.append(id)
        return found

    def write(self, ids: Ids, data: Sequence[Buffer]) -> None:
        """Hold these distinct ids; an item may be smaller than its catalog entry says, not larger."""
        files = self._open()
        check_batch(ids, data)
        check_sizes(ids, byte_lengths(data), self._sizes)
        with self._failing("written"):
            self._give_back_spoiled(files)
            fresh = ids[~self._layout.holds(ids)]
            self._reserve(files, fresh)
            self._layout.claim(fresh)
            self._tag(files, fresh, self._layout.tags(fresh))
            for id, offset, item in zip(ids.tolist(), self._layout.offset_of(ids).tolist(), data, strict=True):
                part, within = divmod(offset, SEGMENT)
                _write_all(files.data[part].fd, self._header(id, item), item, within)

    def drop(self, ids: Ids) -> None:
        """Hold these no longer."""
        files = self._open()
        with self._failing("written"):
            self._give_back_spoiled(files)
            self._give_back(files, np.unique(ids[self._layout.holds(ids)]))

    def found(self) -> Ids:
        """Ids that are held, in ascending order; right after opening, those of an earlier run."""
        self._open()
        return self._layout.held()

    def close(self) -> None:
        """Let go of the files and the lock; a read that is under way ends first."""
        files, self._files = self._files, None
        if files is None or os.getpid() != self._pid:
            return
        with contextlib.suppress(OSError):
            self._give_back_spoiled(files)
        self._share.release()

    def _open(self) -> _Files:
        files = self._files
        if files is None:
            raise Closed("the disk tier is closed")
        if os.getpid() != self._pid:
            raise TierFailed(f"the disk cache at {self._share.path} belongs to process {self._pid}, not to its forks")
        return files

    def _open_files(self, fingerprint: str) -> _Files:
        layout = self._layout
        if not self._share.prepare(fingerprint, layout.description) and layout.sparse:
            check_punching(self._share, BLOCK)
        tags = self._share.open("index", layout.places * layout.tag_type.itemsize)
        # The last place of a file may reach beyond its segment.
        reach = SEGMENT + HEADER + BLOCK + (int(self._sizes.max()) if len(self._sizes) else 0)
        starts = range(0, max(layout.extent, 1), SEGMENT)
        data = [
            self._share.open(f"data.{part}", min(layout.extent - start, reach)) for part, start in enumerate(starts)
        ]
        for each in data:
            with contextlib.suppress(AttributeError, OSError):
                # Without read-ahead: the neighbours of a sample are not what is read next.
                os.posix_fadvise(each.fd, 0, 0, os.POSIX_FADV_RANDOM)
        return _Files(tags, data)

    def _take_over(self, files: _Files) -> None:
        """Hold what an earlier run left, as far as it fits."""
        layout = self._layout
        tags = np.fromfile(self._share.path / "index", layout.tag_type, layout.places)
        layout.load(tags)
        held = layout.held()
        cost = np.cumsum(layout.footprint(self._sizes[held]))
        self._used = int(cost[-1]) if len(cost) else 0
        self._give_back(files, held[cost > self.capacity])
        if layout.sparse:
            self._give_back_lost_blocks(files)

    def _give_back_lost_blocks(self, files: _Files) -> None:
        """Punch out what no tag names, if disk usage says there is any: only a power cut can leave it."""
        held = self._layout.held()
        starts, spans = self._layout.offset_of(held), self._layout.span(self._sizes[held])
        expected = int(spans.sum())
        usage = sum(os.fstat(each.fd).st_blocks for each in files.data) * 512
        if usage <= expected + expected // 128 + _SLACK:
            return
        ends = (starts + spans).tolist()
        for start, end in zip([0, *ends], [*starts.tolist(), self._layout.extent], strict=True):
            _punch_gap(files, start, end)

    def _reserve(self, files: _Files, fresh: Ids) -> None:
        cost = int(self._layout.footprint(self._sizes[fresh]).sum())
        if self._used + cost > self.capacity:
            raise TierFailed(f"the disk cache has {self.capacity - self._used} bytes left, not {cost}")
        system = os.fstatvfs(files.tags.fd)
        if system.f_bavail * system.f_frsize - cost < self._floor:
            path = self._share.path
            raise TierFailed(f"the disk of {path} is nearly full: the cache leaves {self._floor} bytes free")
        self._used += cost

    def _give_back(self, files: _Files, held: Ids) -> None:
        layout = self._layout
        costs = layout.footprint(self._sizes[held])
        if layout.sparse:
            spans = layout.span(self._sizes[held]).tolist()
            for start, span in zip(layout.offset_of(held).tolist(), spans, strict=True):
                part, within = divmod(start, SEGMENT)
                punch(files.data[part].fd, within, span)
        self._tag(files, held, np.zeros(len(held), layout.tag_type))
        layout.release(held)
        self._used -= int(costs.sum())

    def _give_back_spoiled(self, files: _Files) -> None:
        spoiled = []
        while self._spoiled:
            spoiled.append(self._spoiled.popleft())
        if spoiled:
            ids = np.unique(np.array(spoiled, np.int64))
            self._give_back(files, ids[self._layout.holds(ids)])

    def _tag(self, files: _Files, ids: Ids, tags: NDArray[Any]) -> None:
        """Mark the places of these ids, with one write per run of neighbours."""
        places, encoded, width = self._layout.place_of(ids), tags.tobytes(), tags.itemsize
        breaks = (np.flatnonzero(np.diff(places) != 1) + 1).tolist()
        for start, end in zip([0, *breaks], [*breaks, len(ids)], strict=True):
            if end > start:
                run = encoded[start * width : end * width]
                _write_all(files.tags.fd, b"", run, int(places[start]) * width)

    def _header(self, id: int, item: Buffer) -> bytes:
        checksum: int = xxhash.xxh3_64_intdigest(item, self._salt ^ id)
        return checksum.to_bytes(8, "little") + memoryview(item).nbytes.to_bytes(8, "little")

    def _unpack(self, id: int, record: bytes) -> memoryview | None:
        length = int.from_bytes(record[8:HEADER], "little")
        sample = memoryview(record)[HEADER : HEADER + length]
        intact = len(sample) == length and record[:HEADER] == self._header(id, sample)
        return sample if intact else None

    @contextlib.contextmanager
    def _failing(self, action: str) -> Iterator[None]:
        """Turn what the disk reports (full, over quota, read-only, broken) into TierFailed."""
        try:
            yield
        except TierFailed:
            raise
        except OSError as error:
            raise TierFailed(f"the disk cache at {self._share.path} cannot be {action}: {error}") from error


def _default_floor(files: _Files) -> int:
    system = os.fstatvfs(files.tags.fd)
    return min(_MOST_FREE, system.f_blocks * system.f_frsize // 20)


def _write_all(fd: int, header: bytes, item: Buffer, offset: int) -> None:
    item = item if type(item) is bytes else memoryview(item).cast("B")
    written = os.pwritev(fd, (header, item), offset)
    if written < len(header) + len(item):
        # A disk that fills up takes what it can; trying for the rest gives the reason.
        rest = (header + bytes(item))[written:]
        while rest:
            offset += written
            written = os.pwrite(fd, rest, offset)
            rest = rest[written:]


def _punch_gap(files: _Files, start: int, end: int) -> None:
    """Give back the blocks between two places, which may lie in different files."""
    first, last = start // SEGMENT, end // SEGMENT
    for part, file in enumerate(files.data[first : last + 1], first):
        within = start % SEGMENT if part == first else 0
        # Nothing that is held follows in a file which the gap leaves.
        until = end % SEGMENT if part == last else os.fstat(file.fd).st_size
        punch(file.fd, within, max(until - within, 0))
