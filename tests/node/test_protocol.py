"""Messages between clients and the node: what is sent arrives as it was, and what is not a message is refused whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import socket
import struct
import typing

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.node import protocol
from augury.node.protocol import BadMessage

MESSAGES = [*typing.get_args(protocol.Request), *typing.get_args(protocol.Answer)]
MOST = 1 << 30
both = msgspec.msgpack.Decoder(protocol.Request | protocol.Answer)


@contextlib.contextmanager
def pair():
    """Two ends; at the end nothing is open that was not before."""
    before = os.listdir("/proc/self/fd")
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in ends:
        each.settimeout(20.0)
    try:
        yield ends
    finally:
        for each in ends:
            each.close()
    assert os.listdir("/proc/self/fd") == before


def plain(depth=3):
    leaves = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text()
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=depth)


VALUES = {
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(),
    bytes: st.binary(max_size=100),
    list[int]: st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20),
    list[float]: st.lists(st.floats(allow_nan=False), max_size=20),
    list[str]: st.lists(st.text(), max_size=5),
    dict[str, float]: st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=5),
    dict[str, typing.Any]: st.dictionaries(st.text(), plain(), max_size=5),
}


def message_of(kind):
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: VALUES[hints[field.name]] for field in msgspec.structs.fields(kind)})


def array(kind, length, seed):
    raw = np.random.default_rng(seed).bytes(length * np.dtype(kind).itemsize)
    return np.frombuffer(raw, np.uint8) > 127 if kind == "?" else np.frombuffer(raw, kind)


def raw_frame(message, arrays=()):
    """What goes over the socket for a message."""
    with pair() as (here, there):
        protocol.send(here, message, arrays)
        return there.recv(1 << 20)


def receive_raw(frame, files=(), most=MOST):
    with pair() as (here, there):
        socket.send_fds(here, [frame], list(files))
        received = protocol.receive(there, protocol.requests, most)
        if received is not None and received.file is not None:
            os.close(received.file)
        return received


@contextlib.contextmanager
def memory(content=b"", size=None, seals=0):
    with protocol.memory_file("test") as file:
        os.write(file, content)
        if size is not None:
            os.ftruncate(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        yield file


def apart(message, lengths):
    """A frame that says that its arrays are in a file."""
    body = msgspec.msgpack.encode(message)
    head = struct.pack("<BBBBI", 0xA6, protocol.VERSION, len(lengths), 1, len(body))
    return head + body + struct.pack(f"<{len(lengths)}Q", *lengths)


@given(data=st.data(), kind=st.sampled_from(MESSAGES), seed=st.integers(0, 1000))
def test_every_message_arrives_as_it_was_sent(data, kind, seed):
    message = data.draw(message_of(kind))
    lengths = [data.draw(st.integers(0, 60)) for _ in kind.ARRAYS]
    check_arrives(message, [array(each, length, seed) for each, length in zip(kind.ARRAYS, lengths, strict=True)])


@pytest.mark.parametrize("kind", [kind for kind in MESSAGES if kind.ARRAYS], ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_arrays_that_are_too_long_for_a_packet_arrive_in_a_file(kind, data):
    message = data.draw(message_of(kind))
    longest = (protocol.INLINE // np.dtype(kind.ARRAYS[0]).itemsize) + 1
    if kind.MOST < protocol.INLINE * 2:  # a message that has never so many
        longest = kind.MOST // 8 // len(kind.ARRAYS)
    lengths = [longest, *(data.draw(st.integers(0, 60)) for _ in kind.ARRAYS[1:])]
    check_arrives(message, [array(each, length, 0) for each, length in zip(kind.ARRAYS, lengths, strict=True)])


def check_arrives(message, arrays):
    with pair() as (here, there):
        protocol.send(here, message, arrays)
        received = protocol.receive(there, both, MOST)
        assert received is not None
        assert received.message == message
        assert type(received.message) is type(message)
        assert received.file is None
        for sent, came, kind in zip(arrays, received.arrays, message.ARRAYS, strict=True):
            assert came.dtype == np.dtype(kind)
            assert came.tobytes() == sent.tobytes()


def test_the_end_of_the_other_side_is_no_message():
    with pair() as (here, there):
        here.close()
        assert protocol.receive(there, protocol.requests, MOST) is None


def test_a_file_comes_along_open_for_this_process_only():
    with pair() as (here, there), memory(b"abc") as file:
        protocol.send(here, protocol.Area(0, 3), file=file)
        received = protocol.receive(there, protocol.requests, MOST)
        assert os.pread(received.file, 10, 0) == b"abc"
        assert not os.get_inheritable(received.file)
        os.close(received.file)


TAKE = protocol.Take(0, 0, 0, 100)
FRAME = raw_frame(TAKE, [np.arange(5)])


@given(cut=st.integers(1, len(FRAME) - 1))
def test_a_frame_that_is_cut_short_is_refused(cut):
    with pytest.raises(BadMessage):
        receive_raw(FRAME[:cut])


@given(more=st.binary(min_size=1, max_size=50))
def test_a_frame_that_is_longer_than_it_says_is_refused(more):
    with pytest.raises(BadMessage):
        receive_raw(FRAME + more)


@given(noise=st.binary(min_size=1, max_size=500))
def test_noise_is_refused(noise):
    with pytest.raises(BadMessage):
        receive_raw(noise)


@given(bit=st.integers(0, len(FRAME) * 8 - 1))
def test_a_flipped_bit_gives_a_message_of_the_schema_or_none(bit):
    frame = bytearray(FRAME)
    frame[bit // 8] ^= 1 << bit % 8
    try:
        received = receive_raw(bytes(frame))
    except BadMessage:
        return
    assert isinstance(received.message, protocol.Take)
    assert received.arrays[0].dtype == np.int64


def test_an_answer_is_no_request():
    with pytest.raises(BadMessage):
        receive_raw(raw_frame(protocol.Done()))


@pytest.mark.parametrize(
    "field", [b"\xd6\x01abcd", pickle.dumps(os.getpid), b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\xc1"]
)
def test_a_message_that_is_no_msgpack_of_the_schema_is_refused(field):
    """Extension types, pickles, deep nesting, lists of four thousand million entries, bytes that mean nothing."""
    body = b"\x82\xa4type\xa4Drop\xa7numbers" + field
    with pytest.raises(BadMessage):
        receive_raw(struct.pack("<BBBBI", 0xA6, protocol.VERSION, 0, 0, len(body)) + body)


def test_text_that_is_no_unicode_is_refused():
    frame = raw_frame(protocol.Hello(1, "abc")).replace(b"abc", b"\xed\xa0\x80")
    with pytest.raises(BadMessage):
        receive_raw(frame)


def test_a_pickle_is_never_loaded(tmp_path):
    made = tmp_path / "made"

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(made),)

    bomb = pickle.dumps(Bomb())
    for frame in (bomb, FRAME[:8] + bomb, struct.pack("<BBBBI", 0xA6, protocol.VERSION, 0, 0, len(bomb)) + bomb):
        with pytest.raises(BadMessage):
            receive_raw(frame)
    with memory(bomb) as file:
        receive_raw(apart(protocol.Lost(), [len(bomb) // 8 * 8]), [file])
    assert not made.exists()


def test_another_version_is_named():
    frame = bytearray(FRAME)
    frame[1] = 9
    with pytest.raises(BadMessage, match="version 9"):
        receive_raw(bytes(frame))


def test_a_packet_has_a_longest_length():
    frame = raw_frame(protocol.Hello(1, "x" * (protocol.PACKET - 100)))
    receive_raw(frame)
    frame = raw_frame(protocol.Hello(1, "x" * (protocol.PACKET - 10)))
    with pytest.raises(BadMessage, match="too long"):
        receive_raw(frame)


def test_arrays_in_a_file_are_not_read_beyond_what_the_receiver_takes():
    with memory(size=1 << 40) as file:  # nothing of it is in memory
        for most, lengths in ((100, [104]), (MOST, [MOST + 8]), (1 << 50, [1 << 41])):
            with pytest.raises(BadMessage):
                receive_raw(apart(protocol.Lost(), lengths), [file], most)
        assert len(receive_raw(apart(protocol.Lost(), [104]), [file], 104).arrays[0]) == 13


def test_a_request_for_samples_has_no_more_arrays_than_it_may_name():
    with memory(size=1 << 30) as file:
        for message, arrays in ((TAKE, 1), (protocol.Offer(0), 2)):
            lengths = [8 * protocol.IDS] * arrays
            receive_raw(apart(message, lengths), [file])
            with pytest.raises(BadMessage):
                receive_raw(apart(message, [lengths[0] + 8, *lengths[1:]]), [file])


@pytest.mark.parametrize("lengths", [[(1 << 64) - 8], [(1 << 63)], [7], [1, 7], []])
@pytest.mark.parametrize("inside", [True, False])
def test_absurd_lengths_of_arrays_are_refused(lengths, inside):
    frame = apart(protocol.Lost(), lengths)
    with memory(size=4096) as file, pytest.raises(BadMessage):
        receive_raw(frame[:3] + b"\0" + frame[4:] + bytes(8) if inside else frame, [] if inside else [file])


def test_lengths_whose_sum_is_beyond_64_bits_are_refused():
    with memory(size=4096) as file, pytest.raises(BadMessage):
        receive_raw(apart(protocol.Offer(0), [(1 << 64) - 8, 16]), [file])


def test_a_boolean_is_one_of_two():
    frame = raw_frame(protocol.Decided(), [np.arange(3), np.zeros(3), np.ones(3, np.bool_), np.arange(0), np.arange(0)])
    frame = frame.replace(b"\1\1\1", b"\2\xff\0")
    with pair() as (here, there):
        here.send(frame)
        flags = protocol.receive(there, protocol.answers, MOST).arrays[2]
    assert flags.view(np.uint8).tolist() == [1, 1, 0]


def test_more_files_than_one_are_refused_and_closed():
    for count in (2, 4, 5, 100):
        with memory(b"abc") as file, pytest.raises(BadMessage):
            receive_raw(raw_frame(protocol.Area(0, 3)), [file] * count)  # `pair` counts what is open


def test_arrays_come_only_in_a_file_of_memory(tmp_path):
    (tmp_path / "file").write_bytes(bytes(10))
    reader, writer = os.pipe()
    opened = [reader, os.open(tmp_path, os.O_RDONLY), os.open(tmp_path / "file", os.O_RDONLY), os.open("/dev/zero", 0)]
    try:
        for file in opened:
            with pytest.raises(BadMessage, match=r"not one of memory|short"):
                receive_raw(apart(protocol.Lost(), [80]), [file])
        with pytest.raises(BadMessage):
            receive_raw(apart(protocol.Lost(), [80]))
        with memory(bytes(79)) as file, pytest.raises(BadMessage, match="short"):
            receive_raw(apart(protocol.Lost(), [80]), [file])
    finally:
        for each in (writer, *opened):
            os.close(each)
