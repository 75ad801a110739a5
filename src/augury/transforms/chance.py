"""Random numbers that belong to (seed, epoch, id, visit) and to nothing else: no thread, batch or place in it.

A counter-based hash makes them for a whole batch at once; a NumPy generator per sample would cost some 20 µs each.
What they decide is the transforms' business.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from augury.ids import Ids, Times

_STEP = 0x9E3779B97F4A7C15
_VISIT = np.uint64(0xD1B54A32D192ED03)
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_MASK = (1 << 64) - 1


class Chance(NamedTuple):
    """What all samples of a batch have in common."""

    seed: int
    epoch: int
    before: Times | None = None
    """How often each sample has come before in the epoch; None: no sample has."""


def uniform(chance: Chance, ids: Ids, stream: int, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) per id, as rows. Other streams of the same sample are independent.

    splitmix64 (Steele, Lea and Flood, OOPSLA 2014), with the hash of seed, epoch, stream, id and visit as its state.
    """
    key = 0
    for part in (chance.seed, chance.epoch, stream):
        key = _mixed(key + int(part) + _STEP)
    state = ids.astype(np.uint64) * np.uint64(_STEP) + np.uint64(key)
    if chance.before is not None:
        state += chance.before.astype(np.uint64) * _VISIT
    state = _mix(state)
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP)
    # 53 bits: what a float64 holds. More would round up to 1 now and then.
    drawn: NDArray[np.float64] = (_mix(state[:, None] + steps) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return drawn


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, multiplier in _MIX:
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(multiplier)
    mixed: NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed


def _mixed(state: int) -> int:
    """The same of one Python number, for which NumPy would warn of every overflow."""
    state &= _MASK
    for shift, multiplier in _MIX:
        state = (state ^ (state >> shift)) * multiplier & _MASK
    return state ^ (state >> 31)
