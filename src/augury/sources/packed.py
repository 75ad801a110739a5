"""Samples packed in .tar shards, as WebDataset does: neighbouring files with the same key are a sample.

They are read by offset, without unpacking. How the offsets are found is in `tarindex`.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augury.catalog import Catalog, Progress
from augury.errors import Closed, Stale, Unreadable
from augury.ids import Ids
from augury.sources import Base, Buffer, normal_extensions, opened_catalog, unreadable
from augury.sources.ranges import Range, merge
from augury.sources.tarindex import Paths, index_packed, members_of, shards_of, split_name

_BLOCK = tarfile.BLOCKSIZE


class PackedSource(Base):
    """A .tar file, a directory of them, or a list of them.

    The `.cls` file of a sample is its label: a number, or the name of a class. Where every sample has exactly
    one other file, its bytes are the sample; otherwise the sample is all of its files, and `decode` returns a
    dict of extension -> bytes. Samples at most `gap` bytes apart are read at once, up to `limit` bytes: by
    default what a disk reads in about a millisecond. Ids follow the shards' names and the order within.
    """

    def __init__(
        self,
        path: Paths,
        catalog: Catalog | str | os.PathLike[str] | None = None,
        labels: str = "auto",
        extensions: Iterable[str] | None = None,
        progress: Progress | None = None,
        *,
        gap: int = 64 << 10,
        limit: int = 8 << 20,
        open_files: int = 32,
    ) -> None:
        wanted = {"labels": labels, "extensions": normal_extensions(extensions)}
        found = None
        if catalog is not None or isinstance(path, str | os.PathLike):
            root = shards_of(path)[0]
            beside = Path(path) if isinstance(path, str | os.PathLike) else Path(root)
            found = opened_catalog(catalog, beside, wanted, "packed")
        self.catalog = found or index_packed(path, labels, extensions, progress)
        self._gap, self._limit = gap, limit
        self._spans = bool(self.catalog.options["spans"])
        self._files = _Files(open_files)

    def read(self, ids: Ids) -> list[Buffer | Unreadable]:
        """Neighbours in one go, each sample as bytes of its own."""
        ids = self._checked(ids)
        data: list[Buffer | Unreadable] = [b""] * len(ids)
        for shard, positions, ranges in self._plan(ids):
            first = int(ids[positions[0]])
            try:
                with self._files.opened(shard, partial(self._open, shard, first)) as file:
                    for part in ranges:
                        self._read_range(file, part, ids, positions, data)
            except OSError as error:
                for position in positions.tolist():
                    data[position] = self._failure(int(ids[position]), error)
        return data

    def requests(self, ids: Ids) -> list[Ids]:
        """One request per range that is read at once."""
        ids = self._checked(ids)
        return [ids[positions[part.members]] for _, positions, ranges in self._plan(ids) for part in ranges]

    def decode(self, data: Buffer) -> Any:
        """The bytes of the one file, or a dict of extension -> bytes."""
        if not self._spans:
            return super().decode(data)
        view = memoryview(data)
        padded = b"".join((view, bytes(-len(view) % _BLOCK)))
        wanted = self.catalog.options["extensions"]
        with tarfile.open(fileobj=io.BytesIO(padded), mode="r:") as tar:
            return {
                suffix: bytes(view[member.offset_data : member.offset_data + member.size])
                for member, _, suffix in members_of(tar, wanted)
            }

    def close(self) -> None:
        """Closes the shards."""
        super().close()
        self._files.close()

    def _plan(self, ids: Ids) -> Iterator[tuple[int, NDArray[np.int64], list[Range]]]:
        """For each shard: the positions of its ids in `ids`, and what to read (members index positions)."""
        catalog = self.catalog
        assert catalog.shard is not None
        assert catalog.offsets is not None
        shards = catalog.shard[ids]
        by_shard = np.argsort(shards, kind="stable")
        for positions in np.split(by_shard, np.flatnonzero(np.diff(shards[by_shard])) + 1):
            if len(positions):
                members = ids[positions]
                extents = catalog.offsets[members], catalog.sizes[members]
                yield int(shards[positions[0]]), positions, merge(*extents, self._gap, self._limit)

    def _read_range(
        self, file: int, part: Range, ids: Ids, positions: NDArray[np.int64], data: list[Buffer | Unreadable]
    ) -> None:
        assert self.catalog.offsets is not None
        members = positions[part.members]
        try:
            whole = memoryview(_pread(file, part.stop - part.start, part.start))
        except OSError as error:
            if len(members) == 1:
                data[members[0]] = self._failure(int(ids[members[0]]), error)
                return
            # One bad block shall spoil one sample, not its neighbours.
            for member, id in zip(part.members, ids[members].tolist(), strict=True):
                start = int(self.catalog.offsets[id])
                alone = Range(start, start + int(self.catalog.sizes[id]), np.array([member]))
                self._read_range(file, alone, ids, positions, data)
            return
        for position in members.tolist():
            id = int(ids[position])
            start, size = int(self.catalog.offsets[id]) - part.start, int(self.catalog.sizes[id])
            # A copy, because a view would keep the whole range alive for as long as one sample is cached.
            data[position] = bytes(whole[start : start + size])

    def _open(self, shard: int, id: int) -> int:
        """The shard, after a look at whether it is still the one that was indexed."""
        assert self.catalog.shards is not None
        assert self.catalog.shard_sizes is not None
        path = os.path.join(os.fsencode(self.catalog.root), self.catalog.shards.raw(shard))
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            expected, found = int(self.catalog.shard_sizes[shard]), os.fstat(file).st_size
            if found != expected:
                raise _Changed(f"the shard had {expected} bytes when it was indexed, now {found}")
            self._verify(file, id)
        except BaseException:
            os.close(file)
            raise
        return file

    def _verify(self, file: int, id: int) -> None:
        """Look at one header: another tar of the same size (they are padded) would yield other samples."""
        assert self.catalog.offsets is not None
        assert self.catalog.names is not None
        start = int(self.catalog.offsets[id]) - (0 if self._spans else _BLOCK)
        try:
            header = tarfile.TarInfo.frombuf(os.pread(file, _BLOCK, start), "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise _Changed("the shard was rewritten since it was indexed") from error
        key = self.catalog.names[id]
        if not header.isreg() or not key.isascii() or len(header.name) >= 100:
            return  # the full name is in an extended header
        same = (split_name(header.name) or ("",))[0] == key
        if not same or (not self._spans and header.size != self.catalog.sizes[id]):
            raise _Changed("the shard was rewritten since it was indexed")

    def _failure(self, id: int, error: OSError) -> Unreadable:
        location = self.catalog.location(id)
        if isinstance(error, _Changed | FileNotFoundError | NotADirectoryError):
            reason = str(error) if isinstance(error, _Changed) else "the shard is missing"
            return Stale(id, location, f"{reason}; {self.catalog.refresh_hint}")
        return unreadable(id, location, error)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": self._files.limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._files = _Files(state["_files"])


class _Changed(OSError):
    """The shard is not what the catalog says."""


def _pread(file: int, size: int, offset: int) -> bytes:
    data = os.pread(file, size, offset)
    parts = [data]
    while len(data) < size:  # Linux ends a single read near 2 GiB
        parts.append(os.pread(file, size - len(data), offset + len(data)))
        if not parts[-1]:
            raise _Changed(f"the shard ends at byte {offset + len(data)}, within the sample")
        data = b"".join(parts)
    return data


class _Files:
    """A bounded set of open files. Thread-safe; no lock is held while a file is opened, read or closed."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: OrderedDict[int, list[int]] = OrderedDict()  # key -> [descriptor, users]; least recent first
        self._lock = threading.Lock()
        self._closed = False
        _FORKED.add(self)

    @contextlib.contextmanager
    def opened(self, key: int, opener: Callable[[], int]) -> Iterator[int]:
        entry = self._enter(key, None) or self._enter(key, opener())
        assert entry is not None
        try:
            yield entry[0]
        finally:
            with self._lock:
                entry[1] -= 1
                surplus = self._take_surplus()
            _close_all(surplus)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            surplus = self._take_surplus()
        _close_all(surplus)

    def _enter(self, key: int, fresh: int | None) -> list[int] | None:
        """Count in one user of the file, if it is open or a fresh descriptor is given."""
        unused = []
        with self._lock:
            entry = None if self._closed else self._open.get(key)
            if fresh is not None and (entry is not None or self._closed):
                unused.append(fresh)  # another thread was first
            elif fresh is not None:
                entry = self._open[key] = [fresh, 0]
            if entry is not None:
                entry[1] += 1
                self._open.move_to_end(key)
            closed = self._closed
        _close_all(unused)
        if closed:
            raise Closed("the source is closed")
        return entry

    def _take_surplus(self) -> list[int]:
        allowed = 0 if self._closed else self.limit
        idle = [key for key, (_, users) in self._open.items() if not users]
        return [self._open.pop(key)[0] for key in idle[: max(0, len(self._open) - allowed)]]

    def forked(self) -> None:
        """In a child: a thread that does not exist here may hold the lock; the descriptors are copies."""
        self._lock = threading.Lock()
        files, self._open = self._open, OrderedDict()
        _close_all([descriptor for descriptor, _ in files.values()])

    def __del__(self) -> None:
        _close_all([descriptor for descriptor, _ in self._open.values()])


def _close_all(files: list[int]) -> None:
    for file in files:
        os.close(file)


_FORKED: weakref.WeakSet[_Files] = weakref.WeakSet()


def _forked() -> None:
    for files in _FORKED:
        files.forked()


os.register_at_fork(after_in_child=_forked)
