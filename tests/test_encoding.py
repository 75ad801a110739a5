"""Items come back exactly as they were, or are refused; nothing is ever unpickled."""

from __future__ import annotations

import enum
import math
import struct
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from augury.encoding import Unencodable, decode, encode

torch = pytest.importorskip("torch")

DTYPES = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="?"),
    npst.floating_dtypes(endianness="?"),
    npst.complex_number_dtypes(),
    npst.unicode_string_dtypes(),
    npst.byte_string_dtypes(),
    npst.datetime64_dtypes(),
)
ARRAYS = DTYPES.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_side=4)))
KEYS = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.binary(max_size=8))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(alphabet=st.characters()),
    st.binary(max_size=300),
    st.binary(max_size=300).map(bytearray),
    ARRAYS,
    DTYPES.flatmap(lambda dtype: npst.arrays(dtype, 1).map(lambda array: array[0])),
)
ITEMS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
    ),
    max_leaves=8,
)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, tuple | list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key, value in one.items():
            assert_same(value, other[key])
    elif isinstance(one, np.ndarray | np.generic):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, float) and math.isnan(one):
        assert math.isnan(other)
    else:
        assert one == other


@settings(max_examples=60)
@given(ITEMS)
def test_items_come_back_as_they_were(item: Any) -> None:
    data = encode(item)
    assert_same(item, decode(data))
    assert_same(item, decode(memoryview(bytearray(data))))


@given(st.lists(npst.arrays(np.uint8, st.integers(0, 200)), min_size=1, max_size=4))
def test_buffers_are_aligned_to_64_bytes(arrays: list[Any]) -> None:
    data = np.frombuffer(encode(arrays), np.uint8)
    start = data.__array_interface__["data"][0]
    for array in decode(data.data):
        if array.size:
            assert (array.__array_interface__["data"][0] - start) % 64 == 0


def test_arrays_are_read_only_views() -> None:
    data = bytearray(encode(np.arange(100)))
    array = decode(data)
    data[-8] = 42
    assert array[99] == 42
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_the_layout_in_memory_does_not_matter() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    for view in (array.T, array[:, ::-1], array[..., 1], np.asfortranarray(array)):
        np.testing.assert_array_equal(decode(encode(view)), view)


TENSORS = [
    torch.arange(6).reshape(2, 3),
    torch.tensor(3.5),
    torch.zeros(0, 4, dtype=torch.uint8),
    torch.tensor([True, False]),
    torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
    torch.tensor([1.5, 2.5], dtype=torch.float16),
    torch.tensor([1 + 2j]).conj(),
    torch.arange(6).reshape(2, 3).T,
    torch.ones(2, requires_grad=True),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype}{tuple(tensor.shape)}")
def test_tensors_come_back_as_tensors(tensor: Any) -> None:
    twin, label = decode(encode((tensor, 7)))
    assert label == 7
    assert type(twin) is torch.Tensor
    assert (twin.dtype, twin.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(twin, tensor.detach())


def test_writing_to_a_tensor_leaves_the_bytes_alone() -> None:
    data = bytearray(encode(torch.arange(4)))
    before = bytes(data)
    decode(data).fill_(9)
    assert data == before


class Colour(enum.IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")

REFUSED = [
    (object(), "object"),
    ({1, 2}, "set"),
    (Point(1, 2), "Point"),
    (OrderedDict(a=1), "OrderedDict"),
    (Colour.RED, "Colour"),
    (np.array([None]), "object"),
    (np.zeros(2, [("a", int)]), "dtype"),
    (np.ma.masked_array([1, 2], [0, 1]), "MaskedArray"),
    (torch.nn.Parameter(torch.ones(2)), "Parameter"),
    (torch.eye(2).to_sparse(), "sparse"),
    (lambda: 0, "function"),
]


@pytest.mark.parametrize(("item", "name"), REFUSED, ids=[name for _, name in REFUSED])
def test_what_cannot_come_back_is_refused_by_name(item: Any, name: str) -> None:
    with pytest.raises(Unencodable, match=name):
        encode(("fine", [item]))


@pytest.mark.parametrize("data", [b"", b"AUG", b"nonsense that is long enough", b"AUGI" + struct.pack("<I", 999)])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="item"):
        decode(data)


def test_torn_items_are_refused() -> None:
    data = encode((np.arange(100), b"tail" * 10))
    for length in (6, 20, len(data) - 1):
        with pytest.raises(ValueError, match=r"item|cut"):
            decode(data[:length])
