"""Real training through the loader: a small convolutional net, the same for every recipe.

Every recipe begins with the same weights and the same seed, so whoever draws the same order computes the same
numbers. How progress is shown is the watcher's business. torch is imported inside functions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from augury.catalog import Catalog
from augury.demo.dataset import CLASSES, parse_ppm
from augury.demo.place import Place
from augury.demo.result import Epoch, Run, Settings
from augury.loader import Loader
from augury.sources.folder import FolderSource, index_folder
from augury.sources.slow import SlowSource

if TYPE_CHECKING:
    import torch

_RATE = 0.01
_TEST_BATCH = 250


class Watcher(Protocol):
    """Is told how training goes, in the thread that trains."""

    def begin(self, recipe: str, batches: int) -> None:
        """A recipe starts; it has that many batches in all."""

    def batch(self, epoch: int, hit_ratio: float, loss: float) -> None:
        """One more batch is done."""

    def epoch(self, number: int, epoch: Epoch) -> None:
        """One more epoch is done."""


class Trainer:
    """Trains with one recipe after the other on the pictures of a place. Close it."""

    def __init__(self, place: Place, settings: Settings, watcher: Watcher) -> None:
        self._settings, self._watcher = settings, watcher
        self._folder, self._catalog = place.train, pictures(place.train)
        self._test = Loader(
            FolderSource(place.test, pictures(place.test)),
            _TEST_BATCH,
            shuffle=False,
            transform=parse_ppm,
            output="torch",
            rank=0,
            world_size=1,
        )

    def close(self) -> None:
        self._test.close()

    def run(self, recipe: str) -> Run:
        """Train from scratch with a recipe."""
        settings, store = self._settings, self._settings.store
        source = SlowSource(FolderSource(self._folder, self._catalog), store.latency, store.bandwidth)
        with (
            _one_thread(),
            Loader(
                source,
                settings.batch_size,
                recipe=recipe,
                ram=settings.ram_bytes,
                readahead=settings.readahead_bytes,
                transform=parse_ppm,
                seed=settings.seed,
                epochs=settings.epochs,
                output="torch",
                rank=0,
                world_size=1,
            ) as loader,
        ):
            run = self._train(loader, Run(recipe))
        run.store_requests, run.store_bytes = source.requests_made, source.bytes_read
        return run

    def _train(self, loader: Loader, run: Run) -> Run:
        learner = _Learner(self._settings.seed, self._settings.epochs * len(loader))
        self._watcher.begin(run.recipe, self._settings.epochs * len(loader))
        order = hashlib.blake2b(digest_size=8)
        # Recipes that learn from losses get them; a loader without feedback has no use for them.
        feedback = getattr(loader, "feedback", None)
        for number in range(self._settings.epochs):
            early = done = seen = 0
            total = 0.0
            for x, y, ids in loader:
                losses = learner.learn(x, y)
                if feedback is not None:
                    feedback(ids, losses)
                order.update(ids.tobytes())
                total, seen, done = total + float(losses.sum()), seen + len(ids), done + 1
                counts = loader.stats().epochs[-1].counts
                if done <= len(loader) // 4:
                    early = counts.hits
                self._watcher.batch(number, counts.shares()["hit_ratio"], total / seen)
            epoch = Epoch(loader.stats().epochs[-1], total / seen, learner.accuracy(self._test), early)
            run.epochs.append(epoch)
            self._watcher.epoch(number, epoch)
        run.order = order.hexdigest()
        return run


def pictures(folder: Any) -> Catalog:
    """The pictures below a folder, as they are now: a catalog that somebody saved there may be of older ones."""
    return index_folder(folder, labels="folders", extensions=[".ppm"])


def warm_up(batch_size: int) -> None:
    """Load torch and compute one batch, so that the first recipe does not pay for it."""
    import torch

    with _one_thread():
        _Learner(0, 10).learn(torch.zeros(batch_size, 32, 32, 3, dtype=torch.uint8), torch.zeros(batch_size).long())


class _Learner:
    """The net, its optimizer and its learning rate, which rises first and then falls to nothing."""

    def __init__(self, seed: int, steps: int) -> None:
        import torch

        torch.manual_seed(seed)
        self.model = _net()
        self._optimizer = torch.optim.AdamW(self.model.parameters(), _RATE, weight_decay=0.01)
        self._rate = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, _RATE, total_steps=max(steps, 10), pct_start=0.2
        )

    def learn(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """One step; the loss of every sample."""
        from torch.nn.functional import cross_entropy

        self.model.train()
        losses = cross_entropy(self.model(_planes(x)), y, reduction="none")
        self._optimizer.zero_grad()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._rate.step()
        return losses.detach()

    def accuracy(self, loader: Loader) -> float:
        """The share of a loader's samples that the net names rightly."""
        import torch

        self.model.eval()
        right = seen = 0
        with torch.no_grad():
            for x, y, ids in loader:
                right += int((self.model(_planes(x)).argmax(1) == y).sum())
                seen += len(ids)
        return right / seen


def _net() -> torch.nn.Module:
    """Some 15,000 weights: about a second per epoch of 4,000 pictures on one core."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, padding=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4, len(CLASSES)),
    )


def _planes(x: torch.Tensor) -> torch.Tensor:
    """A batch of pictures as the net wants it: channels first, around zero."""
    return x.permute(0, 3, 1, 2).float().div_(255).sub_(0.5)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A net this small gains nothing from a second thread (measured: 0.9 s per epoch either way) and loses tenfold
    where another program keeps a core busy; besides, sums over one thread are the same in every run."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
