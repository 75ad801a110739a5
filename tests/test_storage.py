"""Storage levels in TOML: what is saved is what is loaded, and what cannot work is told by file, key and remedy."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from augury.errors import ConfigError
from augury.sim.model import Throughput
from augury.storage import Storage, StorageLevel

EXAMPLE = """
[source]
throughput = { 1 = 66.0, 2 = 86.0, 4 = 146 }
[[level]]
name = "ram"
capacity = "8GB"
threads = 2
read = { 1 = 16550.0, 2 = 21164.0 }
[[level]]
name = "disk"
path = "/nvme/augury"
capacity = "200GB"
threads = 4
read = { 1 = 192.0, 2 = 399.0 }
write = { 1 = 100.5 }
"""


def loaded(tmp_path, text):
    path = tmp_path / "levels.toml"
    path.write_text(text)
    return Storage.load(path)


def test_the_example(tmp_path):
    storage = loaded(tmp_path, EXAMPLE)
    ram, disk = storage.levels
    assert ram == StorageLevel("ram", "8GB", 2, Throughput({1: 16550, 2: 21164}))
    assert disk == StorageLevel(
        "disk", "200GB", 4, Throughput({1: 192, 2: 399}), Throughput({1: 100.5}), "/nvme/augury"
    )
    assert storage.source == Throughput({1: 66, 2: 86, 4: 146})
    assert storage.source(3) == 116


def test_what_is_not_known_may_be_left_out(tmp_path):
    assert loaded(tmp_path, "") == Storage(())
    bare = loaded(tmp_path, '[[level]]\nname = "disk"\ncapacity = 0.5\nthreads = 1\n')
    assert bare == Storage((StorageLevel("disk", 0.5, 1),))


def throughputs():
    rates = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
    return st.dictionaries(st.integers(1, 2**40), rates, min_size=1, max_size=5).map(Throughput)


CAPACITIES = st.one_of(
    st.integers(min_value=0),
    st.floats(0, 1),
    st.builds("{}{}".format, st.integers(0, 10**6), st.sampled_from(["", "kB", "GB", " TiB"])),
)
PATHS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
MAYBE = st.none() | throughputs()
RAM = st.builds(StorageLevel, st.just("ram"), CAPACITIES, st.integers(1, 1000), MAYBE, MAYBE)
DISK = st.builds(StorageLevel, st.just("disk"), CAPACITIES, st.integers(1, 1000), MAYBE, MAYBE, st.none() | PATHS)
LEVELS = st.tuples(st.none() | RAM, st.none() | DISK).map(
    lambda two: tuple(level for level in two if level is not None)
)


@given(st.builds(Storage, LEVELS, MAYBE))
@example(Storage((StorageLevel("disk", "1GB", 1, path='/a "b"\\\x7f\n\t\u0001é🙂'),)))
def test_what_is_saved_is_loaded(tmp_path_factory, storage):
    path = tmp_path_factory.getbasetemp() / "round.toml"
    storage.save(path)
    again = Storage.load(path)
    assert again == storage
    assert [type(level.capacity) for level in again.levels] == [type(level.capacity) for level in storage.levels]


def test_numbers_of_numpy_are_saved_as_numbers(tmp_path):
    level = StorageLevel("ram", np.float64(0.25), 2, Throughput({1: np.float64(3.5)}))
    Storage((level,)).save(tmp_path / "x")
    assert Storage.load(tmp_path / "x").levels == (level,)


def test_the_file_is_for_people_too(tmp_path):
    loaded(tmp_path, EXAMPLE).save(tmp_path / "again.toml")
    text = (tmp_path / "again.toml").read_text()
    assert text.startswith("# ")
    assert "throughput = { 1 = 66.0, 2 = 86.0, 4 = 146.0 }\n" in text
    assert 'name = "disk"\npath = "/nvme/augury"\ncapacity = "200GB"\nthreads = 4\n' in text
    assert tomllib.loads(text)["level"][0]["name"] == "ram"


RAM_TEXT = '[[level]]\nname = "ram"\ncapacity = "8GB"\nthreads = 2\n'


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("nonsense\n", ["is not TOML", "line 1"]),
        ("[sauce]\n", ["unknown key 'sauce'", "did you mean 'source'"]),
        ("[source]\n", ["[source]: throughput is missing", "throughput = { 1 = 66.0"]),
        ("source = 3\n", ["[source]: 3 is no table", "throughput = ..."]),
        ("[source]\nthroughput = 66.0\n", ["throughput = 66.0", "{ 1 = 66.0"]),
        ("[source]\nthroughput = {}\n", ["throughput = {}", "{ 1 = 66.0"]),
        ("[source]\nthroughput = { 0 = 1.0 }\n", ["'0' is not a number of threads"]),
        ("[source]\nthroughput = { 01 = 1.0, 1 = 2.0 }\n", ["'01' is not a number of threads"]),
        ("[source]\nthroughput = { two = 1.0 }\n", ["'two' is not a number of threads"]),
        ("[source]\nthroughput = { 1.5 = 1.0 }\n", ["{'5': 1.0} for 1 threads is not a rate"]),
        ("[source]\nthroughput = { 1 = -1.0 }\n", ["-1.0 for 1 threads is not a rate"]),
        ("[source]\nthroughput = { 1 = nan }\n", ["nan for 1 threads"]),
        ("[source]\nthroughput = { 1 = inf }\n", ["inf for 1 threads"]),
        ("[source]\nthroughput = { 1 = true }\n", ["True for 1 threads"]),
        ('[source]\nthroughput = { 1 = "66" }\n', ["'66' for 1 threads"]),
        ("[source]\nthroughput = { 1 = 1.0 }\nspeed = 3\n", ["[source]: unknown key 'speed'"]),
        ('[level]\nname = "ram"\n', ["[[level]]", "double brackets"]),
        ("level = [3]\n", ["[[level]] number 1: 3 is no table"]),
        ("[[level]]\n", ["[[level]] number 1: capacity is missing", 'capacity = "8GB"']),
        ('[[level]]\nname = "ram"\ncapacity = 1\n', ["number 1 (ram): threads is missing"]),
        (RAM_TEXT.replace('"ram"', '"rom"'), ["unknown level 'rom'", "did you mean 'ram'"]),
        (RAM_TEXT.replace('"ram"', "7"), ["number 1: unknown level '7'"]),
        (RAM_TEXT.replace('"ram"', "[]"), ["unknown level '[]'"]),
        (RAM_TEXT.replace("8GB", "8XB"), ["number 1 (ram): capacity='8XB'", '"10GB"']),
        (RAM_TEXT.replace('"8GB"', "1.5"), ["capacity=1.5", "fraction"]),
        (RAM_TEXT.replace('"8GB"', "-1"), ["capacity=-1"]),
        (RAM_TEXT.replace('"8GB"', "true"), ["capacity=True"]),
        (RAM_TEXT.replace("= 2", "= 0"), ["threads=0", "from 1 on"]),
        (RAM_TEXT.replace("= 2", "= 2.0"), ["threads=2.0"]),
        (RAM_TEXT.replace("= 2", "= true"), ["threads=True"]),
        (RAM_TEXT + "reads = { 1 = 3.0 }\n", ["unknown key 'reads'", "did you mean 'read'"]),
        (RAM_TEXT + "write = 3\n", ["number 1 (ram): write = 3", "write = { 1 = 66.0"]),
        (RAM_TEXT + 'path = "/x"\n', ["path='/x' is for a disk"]),
        (RAM_TEXT.replace("ram", "disk") + "path = 3\n", ["(disk): path=3", '"/nvme/augury"']),
        (RAM_TEXT.replace("ram", "disk") + 'path = ""\n', ["path=''"]),
        (RAM_TEXT + RAM_TEXT, ["the levels are ram, ram", "each once"]),
        (RAM_TEXT.replace("ram", "disk") + RAM_TEXT, ["the levels are disk, ram", "fastest first"]),
    ],
)
def test_what_cannot_work_names_file_key_and_remedy(tmp_path, text, messages):
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text)
    said = str(refused.value)
    assert said.startswith(f"{tmp_path / 'levels.toml'}: ")
    for message in messages:
        assert message in said


def test_the_second_level_is_named_as_such(tmp_path):
    with pytest.raises(ConfigError, match=r"\[\[level\]\] number 2 \(disk\): threads=0"):
        loaded(tmp_path, EXAMPLE.replace("threads = 4", "threads = 0"))


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere: cannot be read: No such file.*augury probe"):
        Storage.load(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        Storage.load(tmp_path)
    with pytest.raises(ConfigError, match=r"x\.toml: cannot be written: No such file"):
        Storage(()).save(tmp_path / "nowhere" / "x.toml")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x = " + b"[" * 100_000])
def test_files_that_are_no_text(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ConfigError, match="is not TOML"):
        Storage.load(tmp_path / "x")


def test_what_cannot_be_saved_is_refused_when_it_is_made(tmp_path):
    with pytest.raises(ConfigError, match="read: inf MB/s for 1 threads"):
        StorageLevel("ram", 1, 1, read=Throughput({1: float("inf")}))
    with pytest.raises(ConfigError, match="source: inf"):
        Storage((), Throughput({1: 5, 2: float("inf")}))
    with pytest.raises(ConfigError, match="no valid Unicode"):
        Storage((StorageLevel("disk", 1, 1, path="/\udcff"),)).save(tmp_path / "x")
