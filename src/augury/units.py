"""Sizes as people write them: "10GB", "512 MiB", 1000000, or a fraction of something."""

from __future__ import annotations

import re
from typing import TypeAlias

from augury.errors import ConfigError

Size: TypeAlias = str | int | float

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgtp", start=1)
    for suffix, base in (("", 1000), ("b", 1000), ("ib", 1024))
}


def parse_size(size: Size, what: str, whole: int | None = None) -> int:
    """Bytes. A float up to 1.0 is a fraction of `whole` bytes (the dataset), where that makes sense."""
    if isinstance(size, bool) or not isinstance(size, str | int | float):
        raise ConfigError(f'{what}={size!r}: write a size like "10GB" or a number of bytes')
    if isinstance(size, str):
        return _parse_text(size, what)
    if size < 0:
        raise ConfigError(f"{what}={size!r}: a size cannot be negative")
    if isinstance(size, int):
        return size
    if whole is None:
        raise ConfigError(f'{what}={size!r}: there is no dataset to take a fraction of; write bytes, like "10GB"')
    if not size <= 1.0:
        raise ConfigError(f'{what}={size!r}: a fraction lies between 0.0 and 1.0; for bytes write an int or "10GB"')
    return int(size * whole)


def format_size(size: float) -> str:
    """Bytes as a short text, in powers of 1000: 3.1 MB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 1000 or unit == "TB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def _parse_text(text: str, what: str) -> int:
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _UNITS:
        raise ConfigError(
            f'{what}={text!r} is not a size: write a number and B, kB, MB, GB, TB or KiB ... TiB, like "10GB"'
        )
    if not match[2] and "." in match[1]:
        raise ConfigError(f"{what}={text!r}: for a fraction of the dataset write {match[1]} without quotes")
    return int(float(match[1]) * _UNITS[match[2]])
