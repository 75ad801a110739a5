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
from augury.scorers import Embeddings, Labels, Losses, Needs


@dataclass(frozen=True)
class _Copy:
    """An array on its way to the host."""

    shape: tuple[int, ...]
    get: Callable[[], NDArray[Any]]
    """Waits for it."""
    there: bool = True
    """Whether it is there already."""


class Report:
    """One minibatch's evidence: losses, or logits with labels; embeddings with labels, and perhaps losses beside."""

    def __init__(
        self, ids: Ids, values: _Copy | None, labels: _Copy | None = None, embeddings: _Copy | None = None
    ) -> None:
        self.ids, self._values, self._labels, self._embeddings = ids, values, labels, embeddings

    def losses(self) -> Losses:
        """One loss per id, none if none was told; BadFeedback where one is not finite. May wait for a device."""
        if self._values is None:
            return np.empty(0, np.float32)
        losses = self._values.get()
        if losses.ndim == 2:
            assert self._labels is not None
            losses = cross_entropy(losses, _checked_labels(self._labels.get(), losses.shape[1]))
        bad = np.flatnonzero(~np.isfinite(losses))
        if len(bad):
            raise BadFeedback(
                f"the loss of sample {self.ids[bad[0]]} is {losses[bad[0]]} ({len(bad)} of {len(losses)} are no finite "
                "numbers): the report is not used. Leave out batches that overflow, or see whether training diverges"
            )
        return losses

    def embeddings(self) -> tuple[Embeddings, Labels]:
        """One row and one class per id; BadFeedback where a number is not finite. May wait for a device."""
        assert self._embeddings is not None
        assert self._labels is not None
        embeddings = self._embeddings.get()
        bad = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
        if len(bad):
            raise BadFeedback(
                f"the embedding of sample {self.ids[bad[0]]} has numbers that are not finite (so have {len(bad)} of "
                f"{len(embeddings)}): the report is not used. See whether training diverges"
            )
        return embeddings, self._labels.get()

    def check(self) -> None:
        """Find now what can be found without waiting or computing much."""
        values, labels = self._values, self._labels
        if values is not None:
            logits = len(values.shape) == 2
            if logits and labels is not None and labels.there:
                _checked_labels(labels.get(), values.shape[1])
            if values.there and (not logits or np.isnan(values.get()).any()):
                self.losses()
        if self._embeddings is not None and self._embeddings.there:
            self.embeddings()


def read_report(ids: Any, losses: Any, logits: Any, labels: Any, embeddings: Any, samples: int, needs: Needs) -> Report:
    """Check what can be checked without waiting for a device, and start the copies of what is needed."""
    if losses is not None and logits is not None:
        raise BadFeedback("give losses, or logits= and labels=; not both")
    if logits is not None and labels is None:
        raise BadFeedback("logits= and labels= go together: give both, or losses=")
    if needs == "embeddings":
        if embeddings is None or labels is None:
            raise BadFeedback(
                "this recipe learns from embeddings: feedback(ids, embeddings=..., labels=...); "
                "augury.torch.capture_embeddings(model) gets them"
            )
    elif losses is None and logits is None:
        raise BadFeedback("give ids and losses, feedback(ids, losses), or ids, logits= and labels=")
    elif losses is not None and labels is not None and embeddings is None:
        raise BadFeedback("labels= go with logits= or embeddings=, not with losses")
    known = _checked_ids(ids, samples)
    values = classes = rows = None
    if losses is not None:
        values = _copy("losses", losses, np.float32)
        _check_losses(values.shape, len(known))
    if logits is not None:
        values = _copy("logits", logits, np.float32)
        _check_rows("logits", values.shape, len(known), "classes")
    if needs == "embeddings":
        rows = _copy("embeddings", embeddings, np.float32)
        _check_rows("embeddings", rows.shape, len(known), "numbers")
    if logits is not None or rows is not None:
        classes = _copy("labels", labels, np.int64)
        if classes.shape != (len(known),):
            raise BadFeedback(f"labels has shape {classes.shape} for {len(known)} ids: give one class per id")
    report = Report(known, values, classes, rows)
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


def _check_rows(name: str, shape: tuple[int, ...], count: int, columns: str) -> None:
    if len(shape) != 2 or shape[0] != count or shape[1] == 0:
        raise BadFeedback(f"{name} has shape {shape}; for {count} ids it is ({count}, {columns})")


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
