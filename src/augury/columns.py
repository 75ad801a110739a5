"""The file of a catalog: a header and named columns, opened by memory map. What they mean is the catalog's business.

    20 bytes    magic, version, length of the header, its CRC
    header      JSON: where the columns lie, and everything that is not a column
    columns     raw, each aligned to 64 bytes

The length of the file is in the header: a torn file is refused, never misread.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from augury.errors import CatalogError

VERSION = 1
_MAGIC = b"AUGURY-C"
_PREAMBLE = struct.Struct("<8sIII")
_ALIGN = 64


def write_columns(file: BinaryIO, header: dict[str, Any], columns: dict[str, NDArray[Any]]) -> None:
    """Header and columns, into a file that is empty."""
    places: dict[str, tuple[str, tuple[int, ...], int]] = {}
    end = 0
    for name, column in columns.items():
        start = _aligned(end)
        places[name] = (column.dtype.str, column.shape, start)
        end = start + column.nbytes
    text = json.dumps(header | {"columns": places, "bytes": end}).encode()
    file.write(_PREAMBLE.pack(_MAGIC, VERSION, len(text), zlib.crc32(text)) + text)
    base = _aligned(file.tell())
    for name, column in columns.items():
        file.write(bytes(base + places[name][2] - file.tell()))
        file.write(raw_bytes(column))


def read_columns(file: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header, and the columns as read-only arrays of which nothing has been read yet."""
    try:
        with file.open("rb") as opened:
            header, base = _read_header(opened, file)
            # Of the open file, as another may take its name at any time; as plain arrays, which keep the map alive:
            # every access to an np.memmap costs a microsecond of Python.
            whole = np.memmap(opened, np.uint8, "r").view(np.ndarray)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CatalogError(f"no catalog at {file.parent} ({reason}): make one with `augury index`") from error
    columns = {}
    for name, (dtype, shape, start) in header["columns"].items():
        kind = np.dtype(dtype)
        stop = base + start + kind.itemsize * int(np.prod(shape, dtype=np.int64))
        columns[name] = whole[base + start : stop].view(kind).reshape(shape)
    return header, columns


def _read_header(opened: BinaryIO, file: Path) -> tuple[dict[str, Any], int]:
    """The header, and where the columns begin."""
    preamble = opened.read(_PREAMBLE.size).ljust(_PREAMBLE.size, b"\0")
    magic, version, length, crc = _PREAMBLE.unpack(preamble)
    if magic != _MAGIC:
        raise CatalogError(f"{file} is not a catalog: remove it and run `augury index` again")
    if version != VERSION:
        raise CatalogError(
            f"the catalog at {file.parent} has format {version}, this Augury reads format {VERSION}: "
            "run `augury index` again"
        )
    text = opened.read(length)
    if not text or len(text) != length or zlib.crc32(text) != crc:
        raise CatalogError(f"the catalog at {file.parent} is damaged: run `augury index` again")
    header: dict[str, Any] = json.loads(text)
    base = _aligned(_PREAMBLE.size + length)
    if os.fstat(opened.fileno()).st_size < base + header["bytes"] and header["bytes"]:
        raise CatalogError(f"the catalog at {file.parent} is cut short: run `augury index` again")
    return header, base


def raw_bytes(array: NDArray[Any]) -> memoryview:
    """What the array holds, in C order; a copy only where it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _aligned(position: int) -> int:
    return -(-position // _ALIGN) * _ALIGN
