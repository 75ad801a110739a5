"""Sizes as people write them."""

from __future__ import annotations

import pytest

from augury.errors import ConfigError
from augury.units import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10GB", 10**10), ("1.5 MiB", 3 * 2**19), ("7", 7), ("2k", 2000), (123, 123), (0.25, 250), (1.0, 1000), ("0B", 0)],
)
def test_sizes(text, expected):
    assert parse_size(text, "ram", 1000) == expected


@pytest.mark.parametrize("text", ["10GBB", "GB", "-1GB", "1e3", "", -5, -0.1, 1.5, True, None, [1], float("nan")])
def test_what_is_no_size_is_refused_by_name(text):
    with pytest.raises(ConfigError, match="ram="):
        parse_size(text, "ram", 1000)


def test_fractions_need_a_whole():
    with pytest.raises(ConfigError, match="fraction"):
        parse_size(0.5, "ram")


def test_formatting():
    assert [format_size(size) for size in (0, 999, 1500, 2_500_000, 7e12)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 MB",
        "7 TB",
    ]
