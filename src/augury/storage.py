"""What is known of a machine's storage levels and of the source behind them: read from and written to TOML.

`augury probe` measures and writes such a file; the performance model (`sim.model`) reckons with it. Nothing is
measured, opened or decided here.

    [source]
    throughput = { 1 = 66.0, 2 = 86.0, 4 = 146.0 }    # MB/s by number of readers, all nodes together

    [[level]]                                         # the fastest first
    name = "ram"
    capacity = "8GB"
    threads = 2                                       # that fill it
    read = { 1 = 16550.0, 2 = 21164.0 }               # MB/s by number of threads

    [[level]]
    name = "disk"
    path = "/nvme/augury"
    capacity = "200GB"
    threads = 4
    read = { 1 = 192.0, 2 = 399.0 }
    write = { 1 = 150.0, 2 = 260.0 }
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augury.errors import ConfigError, UnknownName
from augury.sim.model import Throughput
from augury.units import Size, parse_size

NAMES = ("ram", "disk")
"""The levels there are, the fastest first."""

_HEAD = "# Storage as Augury knows it. Throughputs are MB/s (10^6 bytes) by how many threads read or write at once.\n"
_COUNT = re.compile(r"[1-9][0-9]*")


@dataclass(frozen=True)
class StorageLevel:
    """One level of this machine's storage. A throughput that nobody has measured is None."""

    name: str
    """"ram" or "disk"."""
    capacity: Size
    """"8GB", bytes, or a fraction of the dataset."""
    threads: int
    """p_j: how many fill it."""
    read: Throughput | None = None
    """r_j(p): MB/s that this many threads read together."""
    write: Throughput | None = None
    """w_j(p), likewise."""
    path: str | None = None
    """Of a disk: the directory."""

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise UnknownName("level", str(self.name), NAMES)
        parse_size(self.capacity, "capacity", whole=0)
        if isinstance(self.threads, bool) or not isinstance(self.threads, int) or self.threads < 1:
            raise ConfigError(f"threads={self.threads!r}: give a whole number from 1 on")
        _check_finite(read=self.read, write=self.write)
        if self.path is not None and self.name != "disk":
            raise ConfigError(f"path={self.path!r} is for a disk; leave it out of {self.name!r}")
        if self.path is not None and not (isinstance(self.path, str) and self.path):
            raise ConfigError(f'path={self.path!r}: write the directory of the disk level, like "/nvme/augury"')


@dataclass(frozen=True)
class Storage:
    """The levels of one machine, the fastest first, and the source that they save from being read."""

    levels: tuple[StorageLevel, ...]
    """At most one of each name: ram, then disk."""
    source: Throughput | None = None
    """t(g): MB/s by the number of concurrent readers, of all nodes together."""

    def __post_init__(self) -> None:
        ranks = [NAMES.index(level.name) for level in self.levels]
        if ranks != sorted(set(ranks)):
            given = ", ".join(level.name for level in self.levels)
            raise ConfigError(f"the levels are {given}: give each once, the fastest first ({', '.join(NAMES)})")
        _check_finite(source=self.source)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Storage:
        """Read a file of the form above; an error names the file, the key, and what to write instead."""
        with _within(os.fspath(path)):
            return _storage(_parsed(Path(path)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file that `load` reads, over one that is there."""
        with _within(os.fspath(path)):
            try:
                Path(path).write_text(_HEAD + "".join(_lines(self)), encoding="utf-8")
            except UnicodeEncodeError:
                raise ConfigError("cannot hold a path that is no valid Unicode: name another directory") from None
            except OSError as error:
                raise ConfigError(f"cannot be written: {error.strerror}") from None


def _check_finite(**throughputs: Throughput | None) -> None:
    for name, throughput in throughputs.items():
        for count, value in (throughput.measured if throughput is not None else {}).items():
            if not math.isfinite(value):
                raise ConfigError(f"{name}: {value} MB/s for {count} threads cannot be reckoned with")


@contextmanager
def _within(where: str) -> Iterator[None]:
    """Say where an argument that cannot work stands."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _parsed(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}; `augury probe --out FILE` makes such a file") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is not TOML: {error}") from None


def _storage(table: dict[str, Any]) -> Storage:
    _check_keys(table, {"source", "level"})
    levels = table.get("level", [])
    if not isinstance(levels, list):
        raise ConfigError("level is no list: begin each level with [[level]], in double brackets")
    source = None
    if "source" in table:
        with _within("[source]"):
            source = _source(table["source"])
    return Storage(tuple(_level(level, number) for number, level in enumerate(levels, start=1)), source)


def _source(table: Any) -> Throughput:
    _check_keys(table, {"throughput"}, {"throughput"})
    return _throughput(table["throughput"], "throughput")


def _level(table: Any, number: int) -> StorageLevel:
    name = table.get("name") if isinstance(table, dict) else None
    with _within(f"[[level]] number {number}" + (f" ({name})" if isinstance(name, str) else "")):
        _check_keys(table, {"name", "capacity", "threads", "read", "write", "path"}, {"name", "capacity", "threads"})
        measured = {key: _throughput(table[key], key) for key in ("read", "write") if key in table}
        return StorageLevel(**table | measured)


def _check_keys(table: Any, known: Set[str], needed: Set[str] = frozenset()) -> None:
    if not isinstance(table, dict):
        raise ConfigError(f"{table!r} is no table: write {', '.join(f'{key} = ...' for key in sorted(known))}")
    for key in table.keys() - known:
        raise UnknownName("key", key, known)
    for key in sorted(needed - table.keys()):
        raise ConfigError(f"{key} is missing: add {key} = {_EXAMPLES[key]}")


_EXAMPLES = {"name": '"ram"', "capacity": '"8GB"', "threads": "2", "throughput": "{ 1 = 66.0, 2 = 86.0 }"}


def _throughput(value: Any, key: str) -> Throughput:
    hint = f"write MB/s by number of threads, like {key} = {{ 1 = 66.0, 2 = 86.0 }}"
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"{key} = {value!r}: {hint}")
    for count, rate in value.items():
        if not _COUNT.fullmatch(count):
            raise ConfigError(f"{key}: {count!r} is not a number of threads; {hint}")
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise ConfigError(f"{key}: {rate!r} for {count} threads is not a rate; {hint}")
    return Throughput({int(count): float(rate) for count, rate in value.items()})


def _lines(storage: Storage) -> Iterator[str]:
    if storage.source is not None:
        yield f"\n[source]\nthroughput = {_toml(storage.source)}\n"
    for level in storage.levels:
        yield "\n[[level]]\n"
        for key in ("name", "path", "capacity", "threads", "read", "write"):
            value = getattr(level, key)
            if value is not None:
                yield f"{key} = {_toml(value)}\n"


def _toml(value: Any) -> str:
    if isinstance(value, Throughput):
        return _inline(value.measured)
    if isinstance(value, str):
        # A basic string of TOML is one of JSON, but for the one control character that JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    # Not repr(value): that of a NumPy number is no number.
    return float.__repr__(value) if isinstance(value, float) else int.__repr__(value)


def _inline(measured: Mapping[int, float]) -> str:
    return "{ " + ", ".join(f"{count} = {rate!r}" for count, rate in measured.items()) + " }"
