"""Samples that are the items of a map-style dataset, such as a torch `Dataset`: anything with [] and len().

The items are encoded to bytes (see `augury.encoding`), so that every tier can hold them. torch is not loaded.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np

from augury import encoding
from augury.catalog import Catalog, digest_of
from augury.errors import ConfigError, Unreadable
from augury.ids import Ids
from augury.sources import Base, Buffer

_PROBES = 16
"""Items read at construction to learn their size; enough to meet the common sizes, few enough to be quick."""


class DatasetSource(Base):
    """Item i of `dataset` is sample i. Items of the form (x, y) bring their own label.

    How large an item is shows only when it is read: every sample is reckoned at `item_bytes`, by default the
    largest of up to 16 items spread over the dataset. `dataset[i]` must return
    the same for the same i (augmentation belongs after the cache). It is called by one thread at a time, because most
    datasets (an open file, HDF5, a database) stand no more; say `thread_safe=True` of one that does, and many items are
    read at once.

    A cache on disk recognises a dataset by its type, its length and the probed items; give another `version`
    when items change that these cannot show.
    """

    def __init__(
        self, dataset: Any, item_bytes: int | None = None, version: str = "", thread_safe: bool = False
    ) -> None:
        samples = _length(dataset)
        if item_bytes is not None and item_bytes <= 0:
            raise ConfigError(f"item_bytes must be positive, not {item_bytes}")
        self.dataset, self._turn = dataset, None if thread_safe else threading.Lock()
        self._name = type(dataset).__qualname__
        count = min(samples, _PROBES)
        probes = self._probe(np.unique(np.linspace(0, samples - 1, count).astype(np.int64)).tolist())
        self.self_labelled = all(type(item) is tuple and len(item) == 2 for item, _ in probes)
        size = item_bytes or max(len(data) for _, data in probes)
        who = f"{type(dataset).__module__}.{self._name}\0{samples}\0{version}".encode()
        self.catalog = Catalog(
            np.broadcast_to(np.int64(size), samples),
            kind="dataset",
            root=self._name,
            classes=map(str, getattr(dataset, "classes", None) or ()),
            fingerprint=digest_of(who, *(data for _, data in probes)),
        )

    def read(self, ids: Ids) -> list[Buffer | Unreadable]:
        """Each item, encoded."""
        return [self._read_item(id) for id in self._checked(ids).tolist()]

    def decode(self, data: Buffer) -> Any:
        """The item as the dataset gave it."""
        return encoding.decode(data)

    def _read_item(self, id: int) -> Buffer | Unreadable:
        try:
            with self._turn or contextlib.nullcontext():
                item = self.dataset[id]
            return self._encoded(id, item)
        except Exception as error:
            reason = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
            failed = Unreadable(id, f"{self._name}[{id}]", reason)
            failed.__cause__ = error
            return failed

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_turn": self._turn is not None}  # a lock stays in its process

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._turn = threading.Lock() if state["_turn"] else None

    def _encoded(self, id: int, item: Any) -> bytes:
        try:
            return encoding.encode(item)
        except encoding.Unencodable as error:
            raise ConfigError(
                f"{self._name}[{id}] holds {error}, which cannot be cached: convert it in the dataset "
                "to bytes, arrays, tensors, numbers or strings (or plain tuples, lists and dicts of them)"
            ) from error

    def _probe(self, ids: list[int]) -> list[tuple[Any, bytes]]:
        """The items that can be read, and their encoding. One bad item is for `read` to report."""
        probes, failure = [], None
        for id in ids:
            try:
                item = self.dataset[id]
            except Exception as error:
                failure = failure or error
                continue
            probes.append((item, self._encoded(id, item)))
        if not probes:
            raise ConfigError(f"no item of {self._name} can be read (tried {ids}): {failure!r}") from failure
        return probes


def _length(dataset: Any) -> int:
    try:
        samples = len(dataset)
    except TypeError as error:
        raise ConfigError(
            f"{type(dataset).__name__} has no length: an iterable dataset cannot be read by id, "
            "wrap a map-style dataset (with __getitem__ and __len__)"
        ) from error
    if not samples:
        raise ConfigError(f"{type(dataset).__name__} is empty")
    return samples
