"""What a training loop hands to `feedback`, as arrays: tensors of any device, NumPy arrays, lists; checked.

Tensors on a CUDA device are copied to the host without waiting for them; `Report.losses()` waits, in the scorer's
thread. What becomes of a report is feedback.py's business.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augury.errors import BadFeedback
from augury.ids import Ids, as_ids
from augury.scorers import Losses


@dataclass(frozen=True)
class _Copy:
    """An array on its way to the host."""

    shape: tuple[int, ...]
    get: Callable[[], NDArray[Any]]
    """Waits for it."""
    there: bool = True
    """Whether it is there already."""


class Report:
    """One minibatch's evidence."""

    def __init__(self, ids: Ids, values: _Copy, labels: _Copy | None = None) -> None:
        self.ids, self._values, self._labels = ids, values, labels

    def losses(self) -> Losses:
        """One loss per id; BadFeedback where one is not a finite number. May wait for a device."""
        losses = self._values.get()
        if self._labels is not None:
            losses = cross_entropy(losses, _checked_labels(self._labels.get(), losses.shape[1]))
        bad = np.flatnonzero(~np.isfinite(losses))
        if len(bad):
            raise BadFeedback(
                f"the loss of sample {self.ids[bad[0]]} is {losses[bad[0]]} ({len(bad)} of {len(losses)} are no finite "
                "numbers): the report is not used. Leave out batches that overflow, or see whether training diverges"
            )
        return losses

    def check(self) -> None:
        """Find now what can be found without waiting or computing much."""
        if self._labels is None:
            if self._values.there:
                self.losses()
            return
        if self._labels.there:
            _checked_labels(self._labels.get(), self._values.shape[1])
        if self._values.there and np.isnan(self._values.get()).any():
            self.losses()


def read_report(ids: Any, losses: Any, logits: Any, labels: Any, samples: int) -> Report:
    """Check what can be checked without waiting for a device, and start the copies."""
    if (losses is None) == (logits is None):
        raise BadFeedback("give ids and losses, feedback(ids, losses), or ids, logits= and labels=; not both")
    if (logits is None) != (labels is None):
        raise BadFeedback("logits= and labels= go together: give both, or losses=")
    known = _checked_ids(ids, samples)
    if losses is not None:
        report = Report(known, _copy("losses", losses, np.float32))
        _check_losses(report._values.shape, len(known))
    else:
        report = Report(known, _copy("logits", logits, np.float32), _copy("labels", labels, np.int64))
        _check_logits(report._values.shape, len(known))
        assert report._labels is not None
        if report._labels.shape != (len(known),):
            raise BadFeedback(f"labels has shape {report._labels.shape} for {len(known)} ids: give one class per id")
    report.check()
    return report


def check_accuracy(accuracy: Any) -> float:
    """A share or a percentage: any finite number, as long as more is better."""
    try:
        value = float(accuracy)
    except (TypeError, ValueError):
        raise BadFeedback(f"accuracy={accuracy!r}: give a number") from None
    if not np.isfinite(value):
        raise BadFeedback(f"accuracy={accuracy!r}: give a finite number")
    return value


def cross_entropy(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> Losses:
    """Eqs. 3 and 4 of SHADE: minus the logarithm of the softmax probability of each sample's class."""
    with np.errstate(all="ignore"):  # what is not finite is found in the result
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
        known = as_ids(ids.detach().cpu().numpy() if _is_tensor(ids) else ids).copy()
    except Exception as error:
        raise BadFeedback(f"ids cannot be read: {error}") from None
    if len(known) and (known.min() < 0 or known.max() >= samples):
        wrong = known.min() if known.min() < 0 else known.max()
        raise BadFeedback(f"there is no sample {wrong}: ids go from 0 to {samples - 1}. Pass the batch's own ids")
    return known


def _check_losses(shape: tuple[int, ...], count: int) -> None:
    if shape == (count,):
        return
    hint = ""
    if shape in ((), (1,)):
        hint = ": let the loss function return one per sample, with reduction='none'"
    elif len(shape) == 2 and shape[0] == count:
        hint = ": losses.squeeze(1) has" if shape[1] == 1 else "; if these are logits, pass logits= and labels="
    raise BadFeedback(f"losses has shape {shape} for {count} ids; it must have one loss per id{hint}")


def _check_logits(shape: tuple[int, ...], count: int) -> None:
    if len(shape) != 2 or shape[0] != count or shape[1] == 0:
        raise BadFeedback(f"logits has shape {shape}; for {count} ids it is ({count}, classes)")


def _checked_labels(labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        raise BadFeedback(f"labels go from {labels.min()} to {labels.max()}, and there are {classes} classes")
    return labels


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _copy(name: str, values: Any, kind: type[np.float32] | type[np.int64]) -> _Copy:
    """A copy, because the loop may go on to change its tensor in place."""
    try:
        if not _is_tensor(values):
            return _on_host(values, kind)
        tensor = values.detach()
        if tensor.device.type == "cuda":
            return _from_cuda(tensor, kind)
        return _on_host((tensor.float() if kind is np.float32 else tensor).cpu().numpy(), kind)
    except Exception as error:
        raise BadFeedback(f"{name} cannot be read as an array of numbers: {error}") from None


def _on_host(values: Any, kind: type[np.float32] | type[np.int64]) -> _Copy:
    given = np.asarray(values)
    if kind is np.int64 and given.size and not np.issubdtype(given.dtype, np.integer):
        raise TypeError(f"classes are whole numbers, not {given.dtype}")
    if np.issubdtype(given.dtype, np.complexfloating):
        raise TypeError("they are complex")
    with np.errstate(all="ignore"):  # what overflows is found as not finite
        array = given.astype(kind)
    return _Copy(array.shape, lambda: array)


def _from_cuda(tensor: Any, kind: type[np.float32] | type[np.int64]) -> _Copy:
    """Into page-locked memory, behind what the device has queued; only the scorer's thread waits for it."""
    import torch

    dtype = torch.float32 if kind is np.float32 else torch.int64
    host = torch.empty(tensor.shape, dtype=dtype, pin_memory=True)
    host.copy_(tensor.to(dtype), non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(tensor.device))

    def wait() -> NDArray[Any]:
        arrived.synchronize()
        return host.numpy()

    return _Copy(tuple(tensor.shape), wait, there=False)
