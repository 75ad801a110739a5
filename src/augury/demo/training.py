"""Real training through the loader: the small net of learner.py, the same for every recipe.

Every recipe begins with the same weights and the same seed, so whoever draws the same order computes the same
numbers. How progress is shown is the watcher's business. torch is imported inside functions.
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

from augury.catalog import Catalog
from augury.demo.dataset import CLASSES, parse_ppm
from augury.demo.place import Place
from augury.demo.result import Epoch, Run, Settings
from augury.learner import Learner, one_thread
from augury.loader import Loader
from augury.sources.folder import FolderSource, index_folder
from augury.sources.slow import SlowSource

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
            one_thread(),
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
        batches = sum(loader.batches(epoch) for epoch in range(self._settings.epochs))
        learner = Learner(self._settings.seed, batches, len(CLASSES))
        self._watcher.begin(run.recipe, batches)
        order = hashlib.blake2b(digest_size=8)
        for number in range(self._settings.epochs):
            early = done = seen = 0
            total = 0.0
            for x, y, ids in loader:
                losses = learner.learn(x, y)
                loader.feedback(ids, losses)
                order.update(ids.tobytes())
                total, seen, done = total + float(losses.sum()), seen + len(ids), done + 1
                counts = loader.stats().epochs[-1].counts
                if done <= len(loader) // 4:
                    early = counts.hits
                self._watcher.batch(number, counts.shares()["hit_ratio"], total / seen)
            epoch = Epoch(loader.stats().epochs[-1], total / seen, learner.accuracy(self._test), early)
            loader.feedback(accuracy=epoch.accuracy)
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

    with one_thread():
        learner = Learner(0, 10, len(CLASSES))
        learner.learn(torch.zeros(batch_size, 32, 32, 3, dtype=torch.uint8), torch.zeros(batch_size).long())
