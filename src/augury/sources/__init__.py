"""Where samples come from: bytes readable by id.

Each module is one kind of store; all pass `augury.testing.SourceContract`. A source knows nothing of
caches, orders or batches. `open_source` turns what a user writes (a path, an array, a dataset) into one.
"""

from __future__ import annotations

import errno
import math
import os
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import ArrayLike

from augury.catalog import Catalog, default_place, is_saved
from augury.errors import AuguryWarning, Closed, ConfigError, Unreadable
from augury.ids import Ids, as_ids

Buffer: TypeAlias = bytes | bytearray | memoryview
"""One sample's bytes. Whoever receives a buffer must not write to it."""


class Form(NamedTuple):
    """Every sample is one array of this dtype and shape, stored as its plain bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Of one sample."""
        return self.dtype.itemsize * math.prod(self.shape)


class Source(Protocol):
    """Bytes readable by id. Thread-safe, blocking: any number of threads may read at once."""

    catalog: Catalog
    form: Form | None
    """Set where samples are arrays of one shape: a batch is then one gather, without work per sample."""
    self_labelled: bool
    """Whether `decode` returns (x, y) rather than x, because only the stored item knows its label."""

    def read(self, ids: Ids) -> list[Buffer | Unreadable]:
        """One buffer per id, or in its place the error that names it; one bad sample spoils no other."""

    def requests(self, ids: Ids) -> list[Ids]:
        """The ids grouped as the store will be asked for them: one request, and so one latency, per group."""

    def decode(self, data: Buffer) -> Any:
        """What a transform receives: the bytes themselves, an array, or the item that was wrapped."""

    def close(self) -> None:
        """Give back files and connections. Reading afterwards is an error; closing twice is not."""


class Base:
    """What most sources share: the bytes are the item, every sample is a request, nothing needs closing."""

    catalog: Catalog
    form: Form | None = None
    self_labelled: bool = False
    _closed: bool = False

    def __len__(self) -> int:
        return len(self.catalog)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.catalog.root!r}, {len(self)} samples)"

    def requests(self, ids: Ids) -> list[Ids]:
        """One request per id."""
        return list(self._checked(ids).reshape(-1, 1))

    def decode(self, data: Buffer) -> Any:
        """The bytes themselves, as `bytes` wherever they came from: users pickle them and compare them."""
        return data if isinstance(data, bytes) else bytes(data)

    def close(self) -> None:
        """Reading afterwards is an error; closing twice is not."""
        self._closed = True

    def _checked(self, ids: ArrayLike) -> Ids:
        """The ids, all of them in range: NumPy would take -1 for the last sample."""
        if self._closed:
            raise Closed(f"{self!r} is closed")
        ids = as_ids(ids)
        wrong = (ids < 0) | (ids >= len(self.catalog))
        if wrong.any():
            raise IndexError(f"id {ids[wrong][0]} is not in [0, {len(self.catalog)})")
        return ids


_TRANSIENT = {
    *(
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINTR,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ESTALE,
    ),
    *(errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENOTCONN),
    *(errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH, errno.ETIMEDOUT),
}
"""What a busy or briefly absent file server answers. Missing rights or a bad name stay as they are."""


def unreadable(id: int, location: str, error: OSError) -> Unreadable:
    """A failed system call as the error of one sample; says whether trying again may help."""
    reason = error.strerror or str(error) or type(error).__name__
    failed = Unreadable(id, location, reason, transient=error.errno in _TRANSIENT)
    failed.__cause__ = error
    return failed


def open_source(data: Any, labels: Any = None, **options: Any) -> Source:
    """The source of what a user names: a path, an array, (features, labels), a dataset, or a source.

    A path to a `.tar` file, or to a directory that holds nothing else, is a PackedSource; any other directory
    a FolderSource. `labels` are an array for arrays, and "auto", "folders" or "none" for paths. `options` go
    to the source's constructor.
    """
    if isinstance(data, str | os.PathLike):
        return _open_path(data, labels, options)
    if _is_source(data):
        if labels is not None or options:
            raise ConfigError(f"{type(data).__name__} is a source already: give labels and options to it")
        opened: Source = data
        return opened
    if _are_tars(data):
        return _open_path(data, labels, options)
    from augury.sources.array import ArraySource

    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], np.ndarray):
        if labels is not None:
            raise ConfigError("labels are given twice: in the (features, labels) pair and as labels=")
        data, labels = data
    elif isinstance(data, tuple):
        raise ConfigError(
            "a tuple must be (features, labels), features a NumPy array; for tensors use "
            "torch.utils.data.TensorDataset(features, labels)"
        )
    if isinstance(data, np.ndarray):
        return ArraySource(data, labels, **options)
    if _is_dataset(data):
        from augury.sources.dataset import DatasetSource

        if labels is not None:
            raise ConfigError("labels= is for arrays and paths; a dataset returns (item, label) itself")
        return DatasetSource(data, **options)
    raise ConfigError(
        f"cannot read samples from {type(data).__name__}: give a path to a folder or to .tar shards, a NumPy "
        "array, a pair (features, labels), a dataset with __getitem__ and __len__, or an augury source"
    )


def _is_dataset(data: Any) -> bool:
    indexable = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return indexable and not isinstance(data, bytes | bytearray | memoryview | dict | type)


def _are_tars(data: Any) -> bool:
    return (
        isinstance(data, list | tuple)
        and len(data) > 0
        and all(isinstance(each, str | os.PathLike) and str(each).lower().endswith(TAR) for each in data)
    )


def _is_source(data: Any) -> bool:
    return isinstance(getattr(data, "catalog", None), Catalog) and callable(getattr(data, "read", None))


def _open_path(data: Any, labels: Any, options: dict[str, Any]) -> Source:
    if labels is not None and not isinstance(labels, str):
        raise ConfigError(f'labels of a path are "auto", "folders" or "none", not {type(labels).__name__}')
    if labels is not None:
        options = options | {"labels": labels}
    path = [local_path(each) for each in data] if isinstance(data, list | tuple) else local_path(data)
    if isinstance(path, list) or is_packed(path):
        from augury.sources.packed import PackedSource

        return PackedSource(path, **options)
    from augury.sources.folder import FolderSource

    return FolderSource(path, **options)


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path as users write it: plain, with ~, or as file://."""
    text = os.fspath(path)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text)
    if scheme is None:
        return Path(text).expanduser()
    if scheme[1].lower() != "file":
        raise ConfigError(
            f"{text!r}: {scheme[1]}:// is not supported yet; mount the store or copy the data to a local path"
        )
    return Path(unquote(urlsplit(text).path))


def opened_catalog(
    catalog: Catalog | str | os.PathLike[str] | None, data: Path, wanted: dict[str, Any], kind: str
) -> Catalog | None:
    """The catalog given, or the one saved beside the data if it was made as `wanted`; None: scan."""
    if catalog is None:
        place = default_place(data)
        if not is_saved(place):
            return None
        saved = Catalog.open(place)
        plain = wanted["labels"] == "auto" and not wanted["extensions"]
        fits = plain or all(saved.options.get(name) == value for name, value in wanted.items())
        return saved if fits and saved.kind == kind else None
    given = catalog if isinstance(catalog, Catalog) else Catalog.open(catalog)
    if given.kind != kind:
        raise ConfigError(f"the catalog is of kind {given.kind!r}, not {kind!r}")
    if not data.exists():
        raise ConfigError(f"{data} does not exist")
    return given.rooted(data if data.is_dir() else data.parent)


def normal_extensions(extensions: Iterable[str] | None) -> list[str]:
    """Lower case, with the dot, sorted: how extensions are compared and saved."""
    if isinstance(extensions, str):
        extensions = extensions.split(",")
    plain = (extension.strip().lower() for extension in extensions or ())
    return sorted({"." + extension.lstrip(".") for extension in plain if extension})


TAR = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
"""Names of tar files; the compressed ones are recognised only to be refused with a reason."""


def is_packed(path: Path) -> bool:
    """Whether this is a tar file, or a directory of them without subfolders. Other files beside shards are passed over
    with a warning (a README, an index); hidden files and catalogs without."""
    if not path.is_dir():
        return path.name.lower().endswith(TAR)
    shards, others = 0, []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name.endswith(".augury"):
                continue
            if entry.is_dir():
                return False
            if entry.name.lower().endswith(TAR):
                shards += 1
            else:
                others.append(entry.name)
    if shards and others:
        some = ", ".join(sorted(others)[:3])
        warnings.warn(
            f"{path} is read as {shards} tar shards; {len(others)} other files are passed over ({some})",
            AuguryWarning,
            stacklevel=4,
        )
    return shards > 0
