"""Any source with its samples made into arrays of one shape as they are read: what is cached is the result.

Decoding happens once per read from the store, in the thread that reads. The function that decodes is given, and must
depend on the sample alone: nothing here knows of pictures or of chance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augury.catalog import Catalog, digest_of
from augury.errors import Unreadable
from augury.ids import Ids
from augury.sources import Base, Buffer, Form, Source


class DecodedSource(Base):
    """Samples of `source` as `decode` makes them, all of them of one `form`.

    `identity` names what `decode` does: a cache on disk is used again only for the same data under the same identity.
    The source within stays open when this one is closed.
    """

    def __init__(self, source: Source, decode: Callable[[Any], NDArray[Any]], form: Form, identity: str) -> None:
        self.source, self.form = source, form
        self._decode = decode
        inner = source.catalog
        self.catalog = Catalog(
            np.broadcast_to(np.int64(form.nbytes), len(inner)),
            kind="decoded",
            root=inner.root,
            fingerprint=lambda: digest_of(*(part.encode() for part in (inner.fingerprint, repr(form), identity))),
            labels=inner.labels,
            classes=inner.classes,
            names=inner.names,
            shards=inner.shards,
            shard=inner.shard,
        )

    def read(self, ids: Ids) -> list[Buffer | Unreadable]:
        """Each sample, decoded; in place of one that cannot be, the error that names it."""
        ids = self._checked(ids)
        return [self._decoded(id, data) for id, data in zip(ids.tolist(), self.source.read(ids), strict=True)]

    def requests(self, ids: Ids) -> list[Ids]:
        """As the source within groups them."""
        return self.source.requests(self._checked(ids))

    def decode(self, data: Buffer) -> NDArray[Any]:
        """The sample as a read-only array."""
        assert self.form is not None
        array: NDArray[Any] = np.frombuffer(data, self.form.dtype).reshape(self.form.shape)
        array.flags.writeable = False
        return array

    def _decoded(self, id: int, data: Buffer | Unreadable) -> Buffer | Unreadable:
        if isinstance(data, Unreadable):
            return data
        try:
            array = self._decode(self.source.decode(data))
            if Form(array.dtype, array.shape) != self.form:
                raise ValueError(f"gave {array.dtype}{array.shape} instead of {self.form}")
            return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        except Exception as error:
            failed = Unreadable(id, self.catalog.location(id), f"decoding failed: {type(error).__name__}: {error}")
            failed.__cause__ = error
            return failed
