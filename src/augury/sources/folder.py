"""Samples that are files in a directory tree, one file each.

`FolderSource` reads them; `index_folder` finds them, with several threads, because on a network file system
every question takes a while. What is saved of the finding, and where, is the catalog's business.
"""

from __future__ import annotations

import os
import queue
import stat
import warnings
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from augury.catalog import Catalog, Progress, Strings, digest_of
from augury.errors import AuguryWarning, CatalogError, ConfigError, Stale, Unreadable
from augury.ids import Ids
from augury.sources import Base, Buffer, normal_extensions, opened_catalog, unreadable

_READ_AT_MOST = 1 << 30  # Linux ends a single read near 2 GiB


class FolderSource(Base):
    """Every file below `root` is a sample; in the ImageFolder layout the top directory is its class.

    A catalog saved by `augury index` is used where there is one (at `root/.augury`, or the one given);
    otherwise the tree is scanned now, which for millions of files takes minutes. `labels`: "folders" (the top
    directory names the class), "none", or "auto" (folders, unless a file lies directly in the root).
    `extensions` limits which files count, for example [".jpg", ".png"].
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        catalog: Catalog | str | os.PathLike[str] | None = None,
        labels: str = "auto",
        extensions: Iterable[str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        path = Path(root)
        wanted = {"labels": labels, "extensions": normal_extensions(extensions)}
        self.catalog = opened_catalog(catalog, path, wanted, "folder") or index_folder(
            path, labels=labels, extensions=extensions, progress=progress
        )
        self._prefix = os.fsencode(os.path.join(self.catalog.root, ""))

    def read(self, ids: Ids) -> list[Buffer | Unreadable]:
        """Each file whole: open, look at its size, read, close."""
        return [self._read_file(id) for id in self._checked(ids).tolist()]

    def _read_file(self, id: int) -> Buffer | Unreadable:
        assert self.catalog.names is not None
        expected = int(self.catalog.sizes[id])
        try:
            descriptor = os.open(self._prefix + self.catalog.names.raw(id), os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor).st_size
                data = _read_all(descriptor, expected) if found == expected else b""
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            return self._stale(id, f"the file is missing (expected {expected} bytes)")
        except OSError as error:
            return unreadable(id, self.catalog.location(id), error)
        if found != expected or len(data) != expected:
            found = found if found != expected else len(data)
            return self._stale(id, f"expected {expected} bytes, found {found}")
        return data

    def _stale(self, id: int, reason: str) -> Stale:
        return Stale(id, self.catalog.location(id), f"{reason}; {self.catalog.refresh_hint}")


def _read_all(descriptor: int, size: int) -> bytes:
    """`size` bytes, or fewer at the end of the file; almost always one call."""
    data = os.read(descriptor, min(size, _READ_AT_MOST)) if size else b""
    if len(data) == size:
        return data
    parts = [data]
    while parts[-1] and (missing := size - sum(map(len, parts))):
        parts.append(os.read(descriptor, min(missing, _READ_AT_MOST)))
    return b"".join(parts)


# -- finding the samples -----------------------------------------------------------------------------------

_CHUNK = 1024
"""Files whose sizes one thread asks for at a time, so that one huge directory keeps all threads busy."""


class _Chunk(NamedTuple):
    """Files of one directory: its path below the root (ending in a slash), names, sizes, times of change."""

    prefix: bytes
    names: list[bytes]
    sizes: NDArray[np.int64]
    changed: NDArray[np.int64]


class _Directory(NamedTuple):
    prefix: bytes
    ancestors: frozenset[tuple[int, int]]
    """Device and inode of every directory above, so that a link to one of them is no endless tree."""


@dataclass
class _Found:
    """What one task found: more directories, files still to be looked at, or finished chunks."""

    directories: list[_Directory] = field(default_factory=list)
    files: list[os.DirEntry[bytes]] = field(default_factory=list)
    chunk: _Chunk | None = None
    prefix: bytes = b""


def index_folder(
    root: str | os.PathLike[str],
    labels: str = "auto",
    extensions: Iterable[str] | None = None,
    progress: Progress | None = None,
    threads: int = 16,
) -> Catalog:
    """Scan a tree and describe it. Hidden files and directories are passed over; links are followed.

    Ids are sorted by (label, path) bytewise, so they agree on every machine.
    """
    path = os.path.abspath(root)
    endings = normal_extensions(extensions)
    if labels not in ("auto", "folders", "none"):
        raise ConfigError(f'labels must be "auto", "folders" or "none", not {labels!r}')
    if not os.path.exists(path):
        raise ConfigError(f"{path} does not exist")
    if not os.path.isdir(path):
        raise ConfigError(f"{path} is a file: give the directory that holds the samples, or a .tar of them")
    chunks, top = _scan(os.fsencode(path), tuple(map(os.fsencode, endings)), progress, threads)
    if not chunks:
        which = f" ending in {', '.join(endings)}" if endings else ""
        raise CatalogError(f"{path} holds no files{which} (hidden ones do not count)")
    return _describe(path, chunks, top, {"labels": labels, "extensions": endings})


def _scan(
    root: bytes, endings: tuple[bytes, ...], progress: Progress | None, threads: int
) -> tuple[list[_Chunk], list[bytes]]:
    """All files below the root, and the names of the directories at its top."""
    chunks: list[_Chunk] = []
    top: list[bytes] = []
    done = outstanding = 0
    finished: queue.SimpleQueue[Future[_Found]] = queue.SimpleQueue()
    pool = ThreadPoolExecutor(threads, "augury-scan")
    try:
        tasks = [partial(_list, root, _Directory(b"", frozenset()), endings)]
        while tasks or outstanding:
            for task in tasks:
                pool.submit(task).add_done_callback(finished.put)
            outstanding += len(tasks) - 1
            found = finished.get().result()
            tasks = [partial(_list, root, directory, endings) for directory in found.directories]
            pieces = (found.files[start : start + _CHUNK] for start in range(0, len(found.files), _CHUNK))
            tasks += [partial(_look, found.prefix, piece) for piece in pieces]
            top += [each.prefix[:-1] for each in found.directories if each.prefix.count(b"/") == 1]
            if found.chunk is not None and found.chunk.names:
                chunks.append(found.chunk)
                done += len(found.chunk.names)
            if progress is not None:
                progress(done, None)
    finally:
        pool.shutdown(cancel_futures=True)
    return chunks, sorted(top)


def _list(root: bytes, directory: _Directory, endings: tuple[bytes, ...]) -> _Found:
    """One directory. A few files are looked at on the spot; many are left to be shared among the threads."""
    found = _Found(prefix=directory.prefix)
    path = os.path.join(root, directory.prefix)
    try:
        status = os.stat(path)
        ancestors = directory.ancestors | {(status.st_dev, status.st_ino)}
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith(b"."):
                    continue
                if entry.is_dir():
                    if not (entry.is_symlink() and _identity(entry) in ancestors):
                        found.directories.append(_Directory(directory.prefix + entry.name + b"/", ancestors))
                elif not endings or entry.name.lower().endswith(endings):
                    found.files.append(entry)
    except OSError as error:
        raise CatalogError(f"cannot list {os.fsdecode(path)}: {error.strerror or error}") from error
    if len(found.files) <= _CHUNK:
        found.chunk, found.files = _look(directory.prefix, found.files).chunk, []
    return found


def _identity(entry: os.DirEntry[bytes]) -> tuple[int, int]:
    status = entry.stat()
    return status.st_dev, status.st_ino


def _look(prefix: bytes, files: list[os.DirEntry[bytes]]) -> _Found:
    """Sizes and times of change. What vanished meanwhile, or is no plain file (a socket), does not count."""
    names, sizes, changed = [], [], []
    for entry in files:
        try:
            status = entry.stat()
        except FileNotFoundError:
            if entry.is_symlink():
                where = os.fsdecode(entry.path)
                warnings.warn(f"{where} is a link to nothing and is left out", AuguryWarning, stacklevel=2)
            continue
        except OSError as error:
            reason = error.strerror or error
            raise CatalogError(f"cannot look at {os.fsdecode(entry.path)}: {reason}") from error
        if stat.S_ISREG(status.st_mode):
            names.append(entry.name)
            sizes.append(status.st_size)
            changed.append(status.st_mtime_ns)
    return _Found(chunk=_Chunk(prefix, names, np.array(sizes, np.int64), np.array(changed, np.int64)))


def _describe(root: str, chunks: list[_Chunk], top: list[bytes], options: dict[str, object]) -> Catalog:
    loose = min((chunk.prefix + min(chunk.names) for chunk in chunks if not chunk.prefix), default=None)
    if loose is not None and options["labels"] == "folders":
        raise CatalogError(
            f"{os.path.join(root, os.fsdecode(loose))} lies directly in the root and so has no class: move "
            "it into a class directory, exclude it by extensions, or use labels='none'"
        )
    labelled = options["labels"] != "none" and loose is None
    groups: dict[bytes, list[_Chunk]] = {name: [] for name in (top if labelled else [b""])}
    for chunk in chunks:
        groups[chunk.prefix.split(b"/", 1)[0] if labelled else b""].append(chunk)
    ordered = [_in_order(group) for group in groups.values() if group]
    paths = Strings.of(path for group in ordered for path in group[0])
    sizes = np.concatenate([group[1] for group in ordered])
    changed = np.concatenate([group[2] for group in ordered])
    counts = [sum(len(chunk.names) for chunk in group) for group in groups.values()]
    return Catalog(
        sizes,
        kind="folder",
        root=root,
        labels=np.repeat(np.arange(len(counts)), counts) if labelled else None,
        classes=map(os.fsdecode, top) if labelled else (),
        names=paths,
        changed=changed,
        options=options,
        fingerprint=digest_of(b"folder", sizes, paths.blob, paths.ends, changed),
    )


def _in_order(group: list[_Chunk]) -> tuple[list[bytes], NDArray[np.int64], NDArray[np.int64]]:
    """The files of one class, sorted by path: paths, sizes, times of change."""
    paths = [chunk.prefix + name for chunk in group for name in chunk.names]
    order = sorted(range(len(paths)), key=paths.__getitem__)
    sizes = np.concatenate([chunk.sizes for chunk in group])[order]
    changed = np.concatenate([chunk.changed for chunk in group])[order]
    return [paths[position] for position in order], sizes, changed
