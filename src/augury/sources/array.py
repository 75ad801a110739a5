"""Samples that are rows of a NumPy array, in memory or memory-mapped. Nothing is copied."""

from __future__ import annotations

import mmap
import os
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from augury.catalog import Catalog, digest_of
from augury.errors import ConfigError, Unreadable
from augury.ids import Ids
from augury.sources import Base, Buffer, Form


class ArraySource(Base):
    """Row i of `features` is sample i, and `labels[i]`, of any shape, is its label.

    A memory-mapped array reaches other processes by the name of its file; an array in memory is copied there.
    The array must not change while it is in use.
    """

    def __init__(self, features: NDArray[Any], labels: ArrayLike | None = None) -> None:
        features = _checked_features(features)
        self.features = features
        self.form = Form(features.dtype, features.shape[1:])
        self._mapped = _mapped(features)
        self.catalog = Catalog(
            np.broadcast_to(np.int64(_row_bytes(features)), len(features)),
            kind="array",
            root=self._mapped.file if self._mapped else "array",
            labels=_checked_labels(labels, len(features)),
            fingerprint=partial(_identity, features, self._mapped),
        )

    def read(self, ids: Ids) -> list[Buffer | Unreadable]:
        """Views of the rows."""
        ids = self._checked(ids)
        size = _row_bytes(self.features)
        if not size:
            return [b""] * len(ids)
        if not self.features.flags.c_contiguous:
            # Row by row: a view of a gathered batch would keep the whole batch alive.
            return [self.features[id].tobytes() for id in ids.tolist()]
        flat = self.features.view(np.ndarray).reshape(-1).view(np.uint8).data
        return [flat[id * size : (id + 1) * size] for id in ids.tolist()]

    @property
    def in_memory(self) -> bool:
        """Whether the rows are here, rather than in a file that is mapped."""
        array: Any = self.features
        while isinstance(array, np.ndarray) and getattr(array, "_mmap", None) is None:
            array = array.base
        return not isinstance(array, np.memmap)

    def requests(self, ids: Ids) -> list[Ids]:
        """The whole batch is one request."""
        ids = self._checked(ids)
        return [ids] if len(ids) else []

    def decode(self, data: Buffer) -> NDArray[Any]:
        """The row as a read-only array."""
        assert self.form is not None
        if not _row_bytes(self.features):
            return np.zeros(self.form.shape, self.form.dtype)
        row: NDArray[Any] = np.frombuffer(data, self.form.dtype).reshape(self.form.shape)
        row.flags.writeable = False
        return row

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self._mapped is not None and self.features.flags.c_contiguous:
            # NumPy pickles a memory map as its content: gigabytes where a name would do.
            state["features"] = (self.features.dtype, self.features.shape)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._mapped is not None and isinstance(state["features"], tuple):
            dtype, shape = state["features"]
            self.features = np.memmap(self._mapped.file, dtype, "r", self._mapped.offset, shape)


class _Mapped(NamedTuple):
    """Where in which file the first element of an array lies."""

    file: str
    offset: int


def _mapped(array: NDArray[Any]) -> _Mapped | None:
    """The place of a memory-mapped array, also of a slice of one (whose own `offset` is its parent's)."""
    if not isinstance(array, np.memmap) or not array.filename or array.mode == "c":
        return None
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if not isinstance(base, mmap.mmap):
        return None  # a copy that kept the type
    map_start = np.frombuffer(base, np.uint8).__array_interface__["data"][0]
    file_start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    offset = file_start + array.__array_interface__["data"][0] - map_start
    return _Mapped(os.path.abspath(os.fsdecode(array.filename)), offset)


def _identity(array: NDArray[Any], mapped: _Mapped | None) -> str:
    """Of an array in memory its content; of a file its name, size and time of change, which is quick."""
    if mapped is None:
        return digest_of(_kind_of(array), array)
    status = os.stat(mapped.file)
    place = f"{mapped.file}\0{status.st_size}\0{status.st_mtime_ns}\0{mapped.offset}"
    return digest_of(_kind_of(array), os.fsencode(place))


def _kind_of(array: NDArray[Any]) -> bytes:
    dtype = repr(array.dtype) if array.dtype.names else array.dtype.str
    return f"{dtype}{array.shape}{array.strides}".encode()


def _row_bytes(array: NDArray[Any]) -> int:
    return array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))


def _checked_features(features: Any) -> NDArray[Any]:
    if not isinstance(features, np.ndarray):
        raise ConfigError(f"features must be a NumPy array, not {type(features).__name__}: use np.asarray")
    if features.ndim == 0 or len(features) == 0:
        raise ConfigError(f"features of shape {features.shape} hold no samples")
    if features.dtype.hasobject:
        raise ConfigError("features of dtype object have no bytes: convert them to a dtype of numbers")
    return features


def _checked_labels(labels: ArrayLike | None, samples: int) -> NDArray[Any] | None:
    if labels is None:
        return None
    array = np.asarray(labels)
    if array.ndim == 0 or len(array) != samples:
        raise ConfigError(f"{samples} samples but labels of shape {array.shape}")
    if array.dtype.hasobject or array.dtype.names:
        raise ConfigError(f"labels must be plain numbers or strings, not {array.dtype}")
    return array
