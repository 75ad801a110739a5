"""The catalog: where each sample lies, how large it is and what its label is, as columns.

No Python object per sample lives here: ten million samples are a handful of NumPy arrays, memory-mapped from
one file, so opening is instant and all processes of a machine share the pages. Finding samples (scanning a
folder, reading tar headers) is the business of each source; reading them as well.

It is the file `catalog` inside the catalog's directory (`columns` says how it is laid out), written aside and renamed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from augury.columns import raw_bytes, read_columns, write_columns
from augury.errors import CatalogError

FILE = "catalog"
DIGEST = 32
"""Bytes of a content digest."""

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called now and then, by the calling thread, with how many are done and, where known, of how many."""


class Strings:
    """A column of strings: one blob of bytes and where each string ends. File names need not be UTF-8."""

    def __init__(self, blob: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self.blob, self.ends = blob, ends

    @classmethod
    def of(cls, strings: Iterable[bytes]) -> Strings:
        """The column of these strings."""
        items = list(strings)
        lengths = np.fromiter(map(len, items), np.int64, len(items))
        return cls(np.frombuffer(b"".join(items), np.uint8), np.cumsum(lengths))

    def __len__(self) -> int:
        return len(self.ends)

    def raw(self, index: int) -> bytes:
        """The string as it is stored."""
        start = self.ends[index - 1] if index else 0
        return self.blob[start : self.ends[index]].tobytes()

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is not in [0, {len(self)})")
        return os.fsdecode(self.raw(index))

    def __iter__(self) -> Iterator[str]:
        return (os.fsdecode(self.raw(index)) for index in range(len(self)))


class Catalog:
    """Id -> location, offset, size, label, digest. Immutable; any thread may read it.

    `fingerprint` is the identity of the content, for caches that outlive a run; it may be given as a function
    where it is costly, and is then computed when first asked for. `options` is how the data was indexed, so
    that a refresh does the same.
    """

    def __init__(
        self,
        sizes: ArrayLike,
        *,
        kind: str,
        root: str,
        fingerprint: str | Callable[[], str],
        labels: NDArray[Any] | None = None,
        classes: Iterable[str] = (),
        names: Strings | None = None,
        shards: Strings | None = None,  # file names below the root
        shard: NDArray[np.int32] | None = None,
        shard_sizes: NDArray[np.int64] | None = None,
        offsets: NDArray[np.int64] | None = None,
        changed: NDArray[np.int64] | None = None,  # times of change of the files (samples or shards), in ns
        digests: NDArray[np.uint8] | None = None,
        options: dict[str, Any] | None = None,
        path: Path | None = None,
    ) -> None:
        self.sizes, self.uniform_size = _frugal(np.asarray(sizes, np.int64))
        self.kind, self.root, self.path = kind, root, path
        self.labels, self.classes = labels, tuple(classes)
        self.names, self.shards, self.shard, self.shard_sizes = names, shards, shard, shard_sizes
        self.offsets, self.changed, self.digests = offsets, changed, _checked_digests(digests, len(self.sizes))
        self.options = dict(options or {})
        self._fingerprint = fingerprint
        self._copy: Path | None = None
        for name, column in (("labels", labels), ("names", names), ("shard", shard), ("offsets", offsets)):
            if column is not None and len(column) != len(self):
                raise CatalogError(f"{len(self)} samples but {len(column)} {name}")
        if changed is not None and len(changed) != (files := len(self if shards is None else shards)):
            raise CatalogError(f"{files} files but {len(changed)} times of change")
        if labels is not None and (labels.dtype.hasobject or labels.dtype.names):
            raise CatalogError(f"labels must be plain numbers or strings, not {labels.dtype}")

    def __len__(self) -> int:
        return len(self.sizes)

    def __repr__(self) -> str:
        return f"Catalog({self.kind}, {self.root!r}, {len(self)} samples, {self.total_bytes} bytes)"

    @property
    def total_bytes(self) -> int:
        """The bytes of all samples."""
        return len(self) * self.uniform_size if self.uniform_size is not None else int(self.sizes.sum())

    @property
    def fingerprint(self) -> str:
        """Hex digest that stands for the content: equal fingerprints, equal samples under equal ids."""
        if not isinstance(self._fingerprint, str):
            self._fingerprint = self._fingerprint()
        return self._fingerprint

    def location(self, id: int) -> str:
        """Where the sample lies, for people: a path, "shard.tar:key" or "array[17]"."""
        if not 0 <= id < len(self):
            raise IndexError(f"id {id} is not in [0, {len(self)})")
        if self.names is None:
            return f"{self.root}[{id}]"
        if self.shards is not None and self.shard is not None:
            return f"{os.path.join(self.root, self.shards[int(self.shard[id])])}:{self.names[id]}"
        return os.path.join(self.root, self.names[id])

    def rooted(self, root: str | os.PathLike[str]) -> Catalog:
        """The same catalog for data that is mounted elsewhere."""
        return self._with(root=os.path.abspath(root))

    def with_digests(self, digests: NDArray[np.uint8] | None) -> Catalog:
        """The same catalog with these content digests, a row per sample; a row of zeros is a digest not known."""
        return self._with(digests=_checked_digests(digests, len(self)), _copy=None)

    def _with(self, **changes: Any) -> Catalog:
        other = Catalog.__new__(Catalog)
        other.__dict__.update(self.__dict__, **changes)
        return other

    @property
    def target(self) -> str:
        """What was indexed: the root, or the one file in it."""
        return os.path.join(self.root, self.options["target"]) if self.options.get("target") else self.root

    @property
    def refresh_command(self) -> str:
        """The command line that indexes the same data again, in the same way and to the same place."""
        words = self._command("index")
        if self.options.get("labels", "auto") != "auto":
            words += ["--labels", self.options["labels"]]
        if self.options.get("extensions"):
            words += ["--extensions", ",".join(self.options["extensions"])]
        return shlex.join(words)

    @property
    def digest_command(self) -> str:
        """The command line that makes the content digests, or renews them."""
        return shlex.join(self._command("digest"))

    def _command(self, name: str) -> list[str]:
        words = ["augury", name, self.target]
        if self.path is not None and self.path.absolute() != default_place(self.target).absolute():
            words += ["--out", str(self.path)]
        return words

    @property
    def refresh_hint(self) -> str:
        """What to do when the data is no longer what this catalog says."""
        if self.path is not None:
            return f"refresh the catalog with: {self.refresh_command}"
        return "it changed after it was scanned: open it again"

    def check(self, progress: Progress | None = None, *, limit: int = 10, threads: int = 8) -> list[str]:
        """Compare with the files as they are now; the first `limit` differences, each naming its file.

        Sees files that are missing or of another size; files that are new need a new index.
        """
        if self.names is None:
            return []
        count = len(self) if self.shards is None else len(self.shards)
        wrong: list[str] = []
        with ThreadPoolExecutor(threads, "augury-check") as pool:
            for start in range(0, count, 4096):
                stop = min(start + 4096, count)
                wrong += filter(None, pool.map(self._difference, range(start, stop)))
                if progress is not None:
                    progress(stop, count)
                if len(wrong) >= limit:
                    break
        return wrong[:limit]

    def _difference(self, index: int) -> str | None:
        if self.shards is None or self.shard_sizes is None:
            return _difference(self.location(index), int(self.sizes[index]))
        return _difference(os.path.join(self.root, self.shards[index]), int(self.shard_sizes[index]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a directory (made if need be), all or nothing; then this catalog is the saved one."""
        self._write(Path(path))
        self.path = Path(path)

    def _write(self, path: Path) -> None:
        new_directory = not path.exists()
        aside = path / f".{FILE}-{uuid.uuid4().hex}"
        try:
            path.mkdir(parents=True, exist_ok=True)
            with open(aside, "wb") as file:
                write_columns(file, self._header(path), self._columns())
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path / FILE)
        except BaseException as error:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
                if new_directory:
                    path.rmdir()
            if isinstance(error, OSError):
                reason = error.strerror or error
                raise CatalogError(f"cannot write the catalog to {path}: {reason}") from error
            raise

    def _columns(self) -> dict[str, NDArray[Any]]:
        columns = {
            "sizes": self.sizes if self.uniform_size is None else None,
            "labels": self.labels,
            "shard": self.shard,
            "shard_sizes": self.shard_sizes,
            "offsets": self.offsets,
            "changed": self.changed,
            "digests": self.digests,
        }
        for name, strings in (("names", self.names), ("shards", self.shards)):
            if strings is not None:
                columns |= {f"{name}.blob": strings.blob, f"{name}.ends": strings.ends}
        return {name: column for name, column in columns.items() if column is not None}

    def _header(self, path: Path) -> dict[str, Any]:
        # Beside its data a catalog travels with it: the root is where it is found, not where it was made.
        beside = os.path.dirname(os.path.abspath(path)) == self.root
        return {
            "samples": len(self),
            "uniform_size": self.uniform_size,
            "kind": self.kind,
            "root": None if beside else self.root,
            "classes": self.classes,
            "options": self.options,
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Catalog:
        """Open a saved catalog by memory map; nothing is read but its header."""
        path = Path(path)
        header, columns = read_columns(path / FILE)
        sizes = columns.pop("sizes", None)
        if sizes is None:
            sizes = np.broadcast_to(np.int64(header["uniform_size"] or 0), header["samples"])
        catalog = cls.__new__(cls)
        catalog.sizes, catalog.uniform_size = sizes, header["uniform_size"]
        catalog.kind, catalog.path = header["kind"], path
        catalog.root = header["root"] or os.path.dirname(os.path.abspath(path))
        catalog.classes, catalog.options = tuple(header["classes"]), header["options"]
        catalog.names, catalog.shards = _strings(columns, "names"), _strings(columns, "shards")
        for name in ("labels", "shard", "shard_sizes", "offsets", "changed"):
            setattr(catalog, name, columns.get(name))
        catalog.digests = _checked_digests(columns.get("digests"), len(sizes))
        catalog._fingerprint, catalog._copy = header["fingerprint"], None
        return catalog

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the same file: no column travels, and the pages are shared."""
        path = str(self.path or self._temporary_copy())
        return _reopen, (path, self.fingerprint, self.root, self.path is None)

    def _temporary_copy(self) -> Path:
        if self._copy is None:
            directory = Path(tempfile.mkdtemp(prefix="augury-catalog-"))
            # Not when this object dies: the other process may not have opened it by then.
            atexit.register(_remove, directory, os.getpid())
            self._write(directory)
            self._copy = directory
        return self._copy


def default_place(data: str | os.PathLike[str]) -> Path:
    """Where the catalog of this data is kept unless told otherwise: inside a directory, beside a file."""
    data = Path(data)
    return data / ".augury" if data.is_dir() else data.with_name(data.name + ".augury")


def is_saved(path: str | os.PathLike[str]) -> bool:
    """Whether there is a catalog in this directory."""
    return (Path(path) / FILE).is_file()


def digest_of(*parts: bytes | NDArray[Any]) -> str:
    """One hex digest over byte strings and arrays; where one part ends matters."""
    import xxhash  # here, because `import augury` shall load NumPy only

    state = xxhash.xxh3_128()
    for part in parts:
        data = part if isinstance(part, bytes) else raw_bytes(part)
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return str(state.hexdigest())


def _frugal(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], int | None]:
    """Equal sizes as one number shown N times; others as they are. Also that number, or None."""
    if not len(sizes) or (sizes.strides != (0,) and (sizes != sizes[0]).any()):
        return sizes, None
    return np.broadcast_to(sizes[0], sizes.shape), int(sizes[0])


def _checked_digests(digests: NDArray[np.uint8] | None, samples: int) -> NDArray[np.uint8] | None:
    if digests is not None and (digests.dtype != np.uint8 or digests.shape != (samples, DIGEST)):
        raise CatalogError(f"digests must be uint8 of shape {(samples, DIGEST)}, not {digests.dtype}{digests.shape}")
    return digests


def _difference(file: str, expected: int) -> str | None:
    try:
        found = os.stat(file).st_size
    except OSError as error:
        return f"{file}: {(error.strerror or str(error)).lower()}"
    return None if found == expected else f"{file}: expected {expected} bytes, found {found}"


def _strings(columns: dict[str, NDArray[Any]], name: str) -> Strings | None:
    return Strings(columns[f"{name}.blob"], columns[f"{name}.ends"]) if f"{name}.ends" in columns else None


def _reopen(path: str, fingerprint: str, root: str, unsaved: bool) -> Catalog:
    catalog = Catalog.open(path)
    if catalog.fingerprint != fingerprint:
        raise CatalogError(f"the catalog at {path} was replaced while in use: start the job again")
    catalog.root = root
    if unsaved:
        catalog.path, catalog._copy = None, Path(path)
    return catalog


def _remove(directory: Path, owner: int) -> None:
    # A forked child inherits the exit handler, but the directory is still its parent's.
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
