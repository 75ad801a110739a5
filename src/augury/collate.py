"""Making one batch of many samples: arrays are stacked into a reused buffer, containers are followed.

Knows nothing of ids: a sample that does not fit is named by its position, and the loader knows which id that is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from augury.buffers import BufferPool


class DoesNotFit(ValueError):
    """The sample at `position` cannot be put into one batch with the others."""

    def __init__(self, position: int, reason: str) -> None:
        self.position, self.reason = position, reason
        super().__init__(reason)


def collate(samples: Sequence[Any], buffers: BufferPool) -> Any:
    """Arrays, tensors and numbers become one array; tuples and dicts are collated field by field; bytes, texts and
    anything else stay a list."""
    first = samples[0]
    if isinstance(first, np.ndarray):
        return _stack(samples, buffers)
    if isinstance(first, bool | int | float | np.generic):
        return np.asarray(samples)
    if _is_tensor(first):
        return _stack([_as_array(at, sample) for at, sample in enumerate(samples)], buffers)
    if isinstance(first, Mapping):
        return {key: collate(_field(samples, key), buffers) for key in first}
    if isinstance(first, tuple | list):
        columns = (collate(_field(samples, at), buffers) for at in range(len(first)))
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    return list(samples)


def _stack(samples: Sequence[Any], buffers: BufferPool) -> Any:
    first = samples[0]
    for at, sample in enumerate(samples):
        if not isinstance(sample, np.ndarray) or sample.shape != first.shape or sample.dtype != first.dtype:
            raise DoesNotFit(
                at,
                f"{_describe(sample)} cannot be stacked with {_describe(first)}: "
                "let transform= give every sample one shape and type, or pass collate= to make batches your way",
            )
    out = buffers.take((len(samples), *first.shape), first.dtype)
    return np.stack(list(samples), out=out)


def _field(samples: Sequence[Any], key: Any) -> list[Any]:
    column = []
    for at, sample in enumerate(samples):
        try:
            column.append(sample[key])
        except (KeyError, IndexError, TypeError):
            raise DoesNotFit(at, f"has no field {key!r}, which the first sample of the batch has") from None
    return column


def _describe(sample: Any) -> str:
    if isinstance(sample, np.ndarray):
        return f"an array of shape {sample.shape} and type {sample.dtype}"
    return f"a {type(sample).__name__}"


def _is_tensor(sample: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(sample, torch.Tensor)


def _as_array(at: int, sample: Any) -> Any:
    if not _is_tensor(sample):
        raise DoesNotFit(at, f"{_describe(sample)} cannot be stacked with a tensor")
    return sample.detach().cpu().numpy()
