"""The bytes of one package file. Pure: no I/O.

    56 bytes    magic, version, count of samples, length of the body, dataset, checksum of the body, and of the head
    table       the ids, then the sizes of the samples, int64 each
    body        the samples, one after the other

Preamble and table are the head: it is enough to know what a package holds, and its checksum covers that of the body.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from augury.ids import Ids, has_duplicates
from augury.sources import Buffer
from augury.tiers.checks import byte_lengths

VERSION = 1
_MAGIC = b"AUGURY-P"
_PREAMBLE = struct.Struct("<8sIIQ16sQQ")
_SUM = 8
PREAMBLE = _PREAMBLE.size
_PLACE = np.dtype("<i8")


class Head(NamedTuple):
    """What a package holds."""

    ids: Ids
    sizes: NDArray[np.int64]
    checksum: int
    """Of the body."""

    @property
    def nbytes(self) -> int:
        """Of the head itself."""
        return head_bytes(len(self.ids))

    @property
    def content(self) -> int:
        """The bytes of the samples."""
        return int(self.sizes.sum())


def head_bytes(count: int) -> int:
    """The length of the head of so many samples."""
    return PREAMBLE + 2 * _PLACE.itemsize * count


def name_of(ids: Ids) -> str:
    """What a package of these ids is called, in whichever order they stand."""
    name: str = xxhash.xxh3_128_hexdigest(np.sort(ids).astype(_PLACE).tobytes())
    return name


def dataset_of(fingerprint: str) -> bytes:
    """The mark of a dataset in its packages."""
    mark: bytes = xxhash.xxh3_128_digest(fingerprint.encode())
    return mark


def packed(ids: Ids, data: Sequence[Buffer], dataset: bytes) -> tuple[bytes, bytes]:
    """Head and body of a package."""
    sizes, body = byte_lengths(data), b"".join(data)
    table = ids.astype(_PLACE).tobytes() + sizes.astype(_PLACE).tobytes()
    fields = (_MAGIC, VERSION, len(ids), len(body), dataset, xxhash.xxh3_64_intdigest(body))
    preamble = _PREAMBLE.pack(*fields, 0)[:-_SUM]
    return preamble + _head_sum(preamble, table) + table, body


def table_bytes(preamble: Buffer, length: int, dataset: bytes) -> int | None:
    """How long the table is; None where this is no package of the dataset, or a file of `length` bytes is not whole."""
    if len(preamble) < PREAMBLE:
        return None
    magic, version, count, body, found, _, _ = _PREAMBLE.unpack(preamble[:PREAMBLE])
    ours = (magic, version, found) == (_MAGIC, VERSION, dataset)
    return head_bytes(count) - PREAMBLE if ours and head_bytes(count) + body == length else None


def head_of(head: Buffer, length: int, dataset: bytes, name: str) -> Head | None:
    """The head, if it is intact and what a file of this name and length should begin with."""
    if (table := table_bytes(head, length, dataset)) is None or len(head) < PREAMBLE + table:
        return None
    columns = head[PREAMBLE : PREAMBLE + table]
    if _head_sum(head[: PREAMBLE - _SUM], columns) != head[PREAMBLE - _SUM : PREAMBLE]:
        return None
    ids, sizes = np.frombuffer(columns, _PLACE).astype(np.int64, copy=False).reshape(2, -1)
    checksum = _PREAMBLE.unpack(head[:PREAMBLE])[5]
    whole = Head(ids, sizes, checksum)
    sound = not (sizes < 0).any() and whole.nbytes + whole.content == length and not has_duplicates(ids)
    return whole if sound and name_of(ids) == name else None


def unpacked(file: Buffer, dataset: bytes, name: str) -> dict[int, memoryview] | None:
    """The samples of a whole file, or None where anything of it does not match its checksums."""
    whole = memoryview(file).toreadonly()
    if (head := head_of(whole, len(whole), dataset, name)) is None:
        return None
    if xxhash.xxh3_64_intdigest(whole[head.nbytes :]) != head.checksum:
        return None
    ends = (head.nbytes + np.cumsum(head.sizes)).tolist()
    samples = zip(head.ids.tolist(), [head.nbytes, *ends], ends, strict=False)
    return {id: whole[start:end] for id, start, end in samples}


def _head_sum(preamble: Buffer, table: Buffer) -> bytes:
    digest = xxhash.xxh3_64(preamble)
    digest.update(table)
    total: int = digest.intdigest()
    return total.to_bytes(_SUM, "little")
