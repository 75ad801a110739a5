"""Where this machine's node is and what it may use: from arguments, the environment or a TOML file, in this order.

    socket = "/run/augury/node.sock"
    ram = "32GB"
    disk = "/nvme/augury:500GB"
    group = "ml"                    # who else may use it; without, only the node's own user
    client_bytes = "2GB"            # memory that one client may have mapped
    clients = 256                   # connections of one user

The environment has the same names in capitals behind AUGURY_NODE_ (AUGURY_NODE itself is the socket, for clients too;
what else it may say to them, "auto" or "off", is nothing to a node).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from augury.errors import ConfigError, UnknownName
from augury.units import format_size, parse_size

VARIABLE = "AUGURY_NODE"


@dataclass(frozen=True)
class Config:
    """What a node is started with."""

    socket: Path
    ram: int
    disk: Path | None = None
    disk_bytes: int = 0
    group: str | None = None
    client_bytes: int = 2 << 30
    clients: int = 256


NAMES = ("socket", "ram", "disk", "group", "client_bytes", "clients")
_NO_PATHS = ("auto", "off")
"""What AUGURY_NODE may say to clients instead of a path."""
_FRACTION = re.compile(r"\s*\d*\.\d*\s*")


class Said(NamedTuple):
    """A setting, and where it was made."""

    value: Any
    place: str

    def __str__(self) -> str:
        return f"{self.place}={self.value!r}"


def load(arguments: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] = os.environ) -> Config:
    """What was said in the most binding place: argument, environment, file, default."""
    said = {} if file is None else _read(file)
    said |= {name: Said(value, _variable(name)) for name in NAMES if (value := _from_environment(name, environment))}
    said |= {name: Said(value, f"--{name.replace('_', '-')}") for name, value in arguments.items() if value is not None}
    disk, disk_bytes = _disk(said.get("disk"))
    ram = _size(said.get("ram"), _quarter())
    if ram == 0 and disk is None:
        raise ConfigError("ram=0 and no disk: a node without either holds nothing; give --ram 8GB")
    place = _text(said.get("socket"), "the path of a socket, like /run/augury/node.sock")
    return Config(
        (Path(place) if place else default_socket(environment)).expanduser().absolute(),
        ram,
        disk,
        disk_bytes,
        _group(said.get("group")),
        _size(said.get("client_bytes"), 2 << 30, least=1_000_000),
        _count(said.get("clients"), 256),
    )


def default_socket(environment: Mapping[str, str] = os.environ) -> Path:
    """Where a user's node is unless told otherwise: a directory that is the user's own."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    return Path(runtime or "/tmp") / ("augury" if runtime else f"augury-{os.geteuid()}") / "node.sock"


def socket_of(node: str | os.PathLike[str] | None) -> tuple[Path, bool] | None:
    """The socket that `node=` means, and whether it must be there: None for no node, "auto" for one if there is one.

    What the environment says is for all jobs: one whose data is not fit for a node goes on without.
    """
    if not (node is None or isinstance(node, str | os.PathLike)):
        raise ConfigError(f'node={node!r}: write "auto", "off", or the path of a node\'s socket')
    said = node if node is not None else os.environ.get(VARIABLE) or None
    if said is None or said in ("off", ""):
        return None
    if said != "auto":
        return Path(said).expanduser().absolute(), node is not None
    place = place_of(None)
    return None if place == default_socket().absolute() and _is_foreign(place.parent) else (place, False)


def place_of(socket: Path | None) -> Path:
    """Where to look for a node: where it was said to be, by argument or environment, or at the usual place."""
    said = socket or _from_environment("socket", os.environ)
    return (Path(said) if said else default_socket()).expanduser().absolute()


def _is_foreign(directory: Path) -> bool:
    """Whether somebody else has made it: anyone may, below /tmp, and would then hand out what they like."""
    try:
        return directory.stat().st_uid not in (os.geteuid(), 0)
    except OSError:
        return False


def _variable(name: str) -> str:
    return VARIABLE if name == "socket" else f"{VARIABLE}_{name.upper()}"


def _from_environment(name: str, environment: Mapping[str, str]) -> str | None:
    value = environment.get(_variable(name)) or None
    return None if name == "socket" and value in _NO_PATHS else value


def _read(file: Path) -> dict[str, Said]:
    try:
        with open(file, "rb") as opened:
            found = tomllib.load(opened)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from None
    for name in found:
        if name not in NAMES:
            raise UnknownName(f"key in {file}", name, NAMES)
    return {name: Said(value, f"{file}: {name}") for name, value in found.items()}


def _disk(said: Said | None) -> tuple[Path | None, int]:
    if said is None:
        return None, 0
    directory, colon, size = str(said.value).rpartition(":")
    if not colon or not directory:
        raise ConfigError(f'{said}: write a directory and a limit, like "/nvme/augury:200GB"')
    return Path(directory).expanduser().absolute(), _size(Said(size, said.place), 0, least=4096)


def _size(said: Said | None, default: int, least: int = 0) -> int:
    if said is None:
        return default
    if isinstance(said.value, float) or (isinstance(said.value, str) and _FRACTION.fullmatch(said.value)):
        raise ConfigError(f'{said}: write a size with its unit, like "10GB"; a node has no dataset to take a part of')
    size = parse_size(said.value, said.place)
    if size < least:
        raise ConfigError(f"{said}: too small to be of use; give at least {format_size(least)}")
    return size


def _text(said: Said | None, what: str) -> str | None:
    if said is None:
        return None
    if not isinstance(said.value, str | Path) or not str(said.value).strip():
        raise ConfigError(f"{said}: write {what}, in quotes")
    return str(said.value)


def _group(said: Said | None) -> str | None:
    if said is not None and type(said.value) is int:
        return str(said.value)
    return _text(said, "the name or the number of a group, like ml")


def _count(said: Said | None, default: int) -> int:
    if said is None:
        return default
    digits = str(said.value).strip() if type(said.value) in (int, str) else ""
    if not digits.isdecimal() or int(digits) < 1:
        raise ConfigError(f"{said}: give a whole number from 1 on, like {default}")
    return int(digits)


def _quarter() -> int:
    """A quarter of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
