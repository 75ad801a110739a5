"""A small convolutional net and how it learns: what `augury demo` and `augury record` train.

Pictures are (N, 32, 32, 3) bytes. Where they come from and what is done with the losses is the caller's business.
torch is imported inside functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_RATE = 0.01


class Learner:
    """The net, its optimizer and its learning rate, which rises first and then falls to nothing after `steps`."""

    def __init__(self, seed: int, steps: int, classes: int, width: int = 8) -> None:
        import torch

        torch.manual_seed(seed)
        self.model = _net(classes, width)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), _RATE, weight_decay=0.01)
        self._rate = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, _RATE, total_steps=max(steps, 10), pct_start=0.2
        )

    def learn(self, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """One step, by losses that are weighted if so wished; the loss of every sample."""
        from torch.nn.functional import cross_entropy

        self.model.train()
        losses = cross_entropy(self.model(_planes(x)), y, reduction="none")
        self._optimizer.zero_grad()
        (losses if weights is None else losses * weights).mean().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._rate.step()
        return losses.detach()

    def losses(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of every sample as the net is now; nothing is learned."""
        import torch
        from torch.nn.functional import cross_entropy

        self.model.eval()
        with torch.no_grad():
            return cross_entropy(self.model(_planes(x)), y, reduction="none")

    def accuracy(self, batches: Iterable[Any]) -> float:
        """The share of the samples of all (x, y, ids) that the net names rightly."""
        import torch

        self.model.eval()
        right = seen = 0
        with torch.no_grad():
            for x, y, ids in batches:
                right += int((self.model(_planes(x)).argmax(1) == y).sum())
                seen += len(ids)
        return right / seen


def _net(classes: int, width: int) -> torch.nn.Module:
    """At width 8 some 7,000 weights: about a second per epoch of 4,000 pictures on one core."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, width, 5, stride=2, padding=2, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 4 * width, 3, padding=1, bias=False),
        nn.BatchNorm2d(4 * width),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * width * 4, classes),
    )


def _planes(x: torch.Tensor) -> torch.Tensor:
    """A batch of pictures as the net wants it: channels first, around zero."""
    return x.permute(0, 3, 1, 2).float().div_(255).sub_(0.5)


@contextmanager
def one_thread() -> Iterator[None]:
    """A net this small gains nothing from a second thread (measured: 0.9 s per epoch either way) and loses tenfold
    where another program keeps a core busy; besides, sums over one thread are the same in every run."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
