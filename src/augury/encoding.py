"""Items of a dataset as bytes and back, without pickle: plain values, arrays, tensors, and nests of them.

    4 bytes   magic
    4 bytes   length of the header
    header    JSON: the nest, with arrays and bytes as references
    buffers   raw, each aligned to 64 bytes

An item that cannot be given back exactly as it was is refused. Bytes that were not made here decode to an
error or to plain values; they never run code. torch is loaded only where a tensor is decoded.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = bytes | bytearray | memoryview

_MAGIC = b"AUGI"
_PREAMBLE = struct.Struct("<4sI")
_ALIGN = 64
_JSON_INT = 1 << 53


class Unencodable(TypeError):
    """An item of a type that has no encoding."""


def encode(item: Any) -> bytes:
    """The item as bytes. Raises Unencodable, naming the type, for anything but the types listed above."""
    buffers: list[Bytes] = []
    tree = _Writer(buffers).node(item)
    header = json.dumps(tree, separators=(",", ":")).encode()
    header += b" " * (-(_PREAMBLE.size + len(header)) % _ALIGN if buffers else 0)
    parts: list[Bytes] = [_PREAMBLE.pack(_MAGIC, len(header)), header]
    for buffer in buffers[:-1]:
        parts += [buffer, bytes(-len(buffer) % _ALIGN)]
    return b"".join(parts + buffers[-1:])


def decode(data: Bytes) -> Any:
    """The item again. Arrays are read-only views of `data`; tensors are copies, because torch cannot forbid
    writing to them and `data` may be a cache's."""
    view = memoryview(data).cast("B").toreadonly()
    if len(view) < _PREAMBLE.size or view[:4] != _MAGIC:
        raise ValueError("these bytes are not an encoded item")
    length = _PREAMBLE.unpack_from(view)[1]
    end = _PREAMBLE.size + length
    if len(view) < end:
        raise ValueError("the encoded item is cut short")
    return _Reader(view[end:]).value(json.loads(bytes(view[_PREAMBLE.size : end])))


class _Writer:
    """Builds the header's tree. Plain values stand for themselves; everything else is a list with a tag."""

    def __init__(self, buffers: list[Bytes]) -> None:
        self.buffers = buffers
        self.end = 0

    def node(self, item: Any) -> Any:
        kind = type(item)
        if item is None or kind in (bool, float, str):
            return item
        if kind is int:
            return item if abs(item) < _JSON_INT else ["i", hex(item)]
        if kind in (tuple, list):
            return ["t" if kind is tuple else "l", *map(self.node, item)]
        if kind is dict:
            return ["d", *([self.node(key), self.node(value)] for key, value in item.items())]
        if kind in (bytes, bytearray):
            return ["b" if kind is bytes else "m", len(item), self.place(item)]
        if kind is np.ndarray or kind is np.memmap:
            return ["a", *self.array(item)]
        if isinstance(item, np.generic):
            return ["s", *self.array(np.asarray(item))]
        return ["T", *self.tensor(item)]

    def place(self, buffer: Bytes) -> int:
        """Queue a buffer; returns where it will start, counted from the end of the header."""
        start = -(-self.end // _ALIGN) * _ALIGN
        self.buffers.append(buffer)
        self.end = start + len(buffer)
        return start

    def array(self, array: NDArray[Any]) -> tuple[str, list[int], int]:
        if array.dtype.hasobject or array.dtype.kind == "V":
            raise Unencodable(f"a NumPy array of dtype {array.dtype}")
        flat = np.asarray(array, order="C").reshape(-1)
        raw = flat.view(np.uint8).data if flat.size and flat.itemsize else b""
        return array.dtype.str, list(array.shape), self.place(raw)

    def tensor(self, item: Any) -> tuple[str, list[int], int]:
        torch = sys.modules.get("torch")  # whoever holds a tensor has loaded it
        if torch is None or type(item) is not torch.Tensor:
            raise Unencodable(f"an item of type {type(item).__module__}.{type(item).__qualname__}")
        if item.layout != torch.strided or item.is_quantized:
            raise Unencodable(f"a tensor of layout {item.layout}, dtype {item.dtype}")
        plain = item.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        raw = plain.view(torch.uint8).numpy().data if plain.numel() else b""
        return str(item.dtype).removeprefix("torch."), list(item.shape), self.place(raw)


class _Reader:
    def __init__(self, buffers: memoryview) -> None:
        self.buffers = buffers

    def value(self, node: Any) -> Any:
        if type(node) is not list:
            return node
        tag, *rest = node
        if tag in ("t", "l"):
            items = map(self.value, rest)
            return tuple(items) if tag == "t" else list(items)
        if tag == "d":
            return {self.value(key): self.value(value) for key, value in rest}
        if tag == "i":
            return int(rest[0], 16)
        if tag in ("b", "m"):
            raw = self.slice(rest[1], rest[0])
            return bytes(raw) if tag == "b" else bytearray(raw)
        if tag in ("a", "s"):
            array = self.array(*rest)
            return array if tag == "a" else array[()]
        if tag == "T":
            return self.tensor(*rest)
        raise ValueError(f"unknown tag {tag!r} in an encoded item")

    def slice(self, start: int, length: int) -> memoryview:
        raw = self.buffers[start : start + length]
        if len(raw) != length:
            raise ValueError("the encoded item is cut short")
        return raw

    def array(self, dtype: str, shape: list[int], start: int) -> NDArray[Any]:
        kind = np.dtype(dtype)
        count = math.prod(shape)
        if not count * kind.itemsize:
            return np.zeros(shape, kind)
        return np.frombuffer(self.slice(start, count * kind.itemsize), kind).reshape(shape)

    def tensor(self, dtype: str, shape: list[int], start: int) -> Any:
        import torch

        kind = getattr(torch, dtype)
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=kind)
        raw = bytearray(self.slice(start, count * kind.itemsize))
        return torch.frombuffer(raw, dtype=kind).reshape(shape)
