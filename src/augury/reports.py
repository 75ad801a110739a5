"""What a training loop hands to `feedback`, as arrays: tensors of any device, NumPy arrays, lists; checked.

A tensor on another device is copied to the host without waiting for it; `Report.losses()` waits, in the scorer's
thread. What becomes of a report is feedback.py's business.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from augury.errors import BadFeedback
from augury.ids import Ids, as_ids
from augury.scorers import Losses

Copied: TypeAlias = Callable[[], NDArray[Any]]
"""Waits for a copy to the host and gives it."""


class Report:
    """One minibatch's evidence."""

    def __init__(self, ids: Ids, copied: Copied, labels: NDArray[np.int64] | None = None) -> None:
        self.ids, self._copied, self._labels = ids, copied, labels

    def losses(self) -> Losses:
        """One loss per id; BadFeedback where one is not a finite number. May wait for a device."""
        values = self._copied()
        losses = values if self._labels is None else cross_entropy(values, self._labels)
        bad = np.flatnonzero(~np.isfinite(losses))
        if len(bad):
            raise BadFeedback(
                f"the loss of sample {self.ids[bad[0]]} is {losses[bad[0]]} ({len(bad)} of {len(losses)} are no finite "
                "numbers): the report is not used. Leave out batches that overflow, or see whether training diverges"
            )
        return losses


def read_report(ids: Any, losses: Any, logits: Any, labels: Any, samples: int) -> Report:
    """Check what can be checked without waiting for a device, and start the copy."""
    if (losses is None) == (logits is None):
        raise BadFeedback("give losses= (one per id), or logits= with labels=, and not both")
    if (logits is None) != (labels is None):
        raise BadFeedback("logits= and labels= go together: give both, or losses=")
    known = _checked_ids(ids, samples)
    copied, shape, on_host = _copy(losses if logits is None else logits)
    if losses is not None:
        _check_losses(shape, len(known))
        report = Report(known, copied)
        if on_host:
            report.losses()  # what can be seen to be wrong now is an error now
        return report
    if len(shape) != 2 or shape[0] != len(known):
        raise BadFeedback(f"logits has shape {shape}; for {len(known)} ids it is ({len(known)}, classes)")
    return Report(known, copied, _checked_labels(labels, shape))


def cross_entropy(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> Losses:
    """Eqs. 3 and 4 of SHADE: minus the logarithm of the softmax probability of each sample's class."""
    top = logits.max(axis=1)
    spread = np.log(np.exp(logits - top[:, None]).sum(axis=1))
    losses: Losses = spread + top - logits[np.arange(len(logits)), labels]
    return losses


def _checked_ids(ids: Any, samples: int) -> Ids:
    if ids is None:
        raise BadFeedback(
            "say of which samples these are: feedback(ids, losses), with the ids that came with the batch"
        )
    try:
        known = as_ids(_to_host(ids)).copy()
    except (TypeError, ValueError) as error:
        raise BadFeedback(f"ids: {error}") from None
    if len(known) and (known.min() < 0 or known.max() >= samples):
        wrong = known.min() if known.min() < 0 else known.max()
        raise BadFeedback(f"there is no sample {wrong}: ids go from 0 to {samples - 1}. Pass the batch's own ids")
    return known


def _check_losses(shape: tuple[int, ...], count: int) -> None:
    if shape == (count,):
        return
    hint = ": let the loss function return one per sample, with reduction='none'" if shape in ((), (1,)) else ""
    raise BadFeedback(f"losses has shape {shape} for {count} ids; it must have one loss per id{hint}")


def _checked_labels(labels: Any, shape: tuple[int, ...]) -> NDArray[np.int64]:
    try:
        classes = as_ids(_to_host(labels)).copy()
    except (TypeError, ValueError) as error:
        raise BadFeedback(f"labels: {error}") from None
    if len(classes) != shape[0]:
        raise BadFeedback(f"there are {len(classes)} labels and {shape[0]} rows of logits")
    if len(classes) and (classes.min() < 0 or classes.max() >= shape[1]):
        raise BadFeedback(f"labels go from {classes.min()} to {classes.max()}, and there are {shape[1]} classes")
    return classes


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _to_host(value: Any) -> Any:
    return value.detach().cpu().numpy() if _is_tensor(value) else value


def _copy(values: Any) -> tuple[Copied, tuple[int, ...], bool]:
    """A copy as float32 on its way to the host, its shape, and whether it is there already.

    A copy, because the loop may go on to change its tensor in place.
    """
    if not _is_tensor(values):
        try:
            array = np.array(values, np.float32)
        except (TypeError, ValueError) as error:
            raise BadFeedback(f"losses or logits are not an array of numbers: {error}") from None
        return (lambda: array), array.shape, True
    tensor = values.detach()
    if tensor.device.type == "cuda":
        return _copy_from_cuda(tensor), tuple(tensor.shape), False
    host = tensor.float().cpu().numpy()
    if tensor.device.type == "cpu":
        host = host.copy()
    return (lambda: host), tuple(host.shape), True


def _copy_from_cuda(tensor: Any) -> Copied:
    """Into page-locked memory, behind what the device has queued; only the scorer's thread waits for it."""
    import torch

    host = torch.empty(tensor.shape, dtype=torch.float32, pin_memory=True)
    host.copy_(tensor.float(), non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def wait() -> NDArray[Any]:
        arrived.synchronize()
        return host.numpy()

    return wait
