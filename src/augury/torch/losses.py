"""The loss of each sample, which importance is made of, from what models give."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy


def per_sample_cross_entropy(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
    """The cross entropy of each sample (Eqs. 3 and 4 of SHADE); its mean is the minibatch's loss (Eq. 5).

    For logits of (samples, classes), or with further dimensions, over which each sample's mean is taken. Options are
    those of `torch.nn.functional.cross_entropy`.

    >>> losses = per_sample_cross_entropy(model(x), y)
    >>> losses.mean().backward()
    >>> loader.feedback(ids, losses)
    """
    losses = cross_entropy(logits, labels, reduction="none", **options)
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses
