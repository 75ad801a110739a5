"""How jobs divide what there is: nobody gets more than asked for, and what one leaves others have. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def divide(whole: int, wishes: Mapping[Name, int]) -> dict[Name, int]:
    """Equal parts of `whole`; who wishes for less than a part gets its wish, and its rest is divided among the others.

    >>> divide(100, {"a": 10, "b": 60, "c": 80})
    {'a': 10, 'b': 45, 'c': 45}
    """
    parts: dict[Name, int] = dict.fromkeys(wishes, 0)
    left = whole
    waiting = sorted(wishes, key=lambda name: wishes[name])
    for done, name in enumerate(waiting):
        parts[name] = min(wishes[name], left // (len(waiting) - done))
        left -= parts[name]
    return parts
