"""Samples become batches, and one that does not fit is named by its position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from augury.buffers import BufferPool
from augury.collate import DoesNotFit, collate


class Pair(NamedTuple):
    left: object
    right: object


def test_containers_are_followed():
    samples = [{"a": (np.full(3, at), at), "b": Pair(f"n{at}", torch.full((2,), float(at)))} for at in range(4)]
    batch = collate(samples, BufferPool())
    assert batch["a"][0].tolist() == [[at] * 3 for at in range(4)]
    assert batch["a"][1].tolist() == [0, 1, 2, 3]
    assert batch["b"].left == ["n0", "n1", "n2", "n3"]
    assert batch["b"].right.tolist() == [[float(at)] * 2 for at in range(4)]


@pytest.mark.parametrize(
    "samples",
    [
        [np.zeros(3), np.zeros(3), np.zeros(4)],
        [np.zeros(3), np.zeros(3), np.zeros(3, np.float32)],
        [np.zeros(3), np.zeros(3), "text"],
        [torch.zeros(3), torch.zeros(3), 4],
        [{"a": 1}, {"a": 1}, {"b": 1}],
        [(1, 2), (1, 2), (1,)],
    ],
)
def test_what_does_not_fit_is_named(samples):
    with pytest.raises(DoesNotFit) as caught:
        collate(samples, BufferPool())
    assert caught.value.position == 2
