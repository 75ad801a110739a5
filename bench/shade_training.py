"""Accuracy over time: does SHADE train as well as LRU with shuffling, from a slow store and a small cache, and faster?

    python bench/shade_training.py --data DIR [--quick] [--epochs 16] [--seed 0] [--json FILE] [--plot FILE]

CIFAR-10 (the packed files that _cifar.py describes), a small net in the shape of AlexNet on one core, and an emulated
store whose bandwidth is set, after the compute of an epoch was measured, so that an epoch without a cache takes four
times that. Caches of 10 % and 25 % of the dataset. Every run has the same weights, seed, optimizer and constant
learning rate and the same number of epochs; the test after each epoch stops the clock, the store's too.

`time to lru's accuracy` is when shade's test accuracy first is that of lru at its end (the mean of its last three
tests: single ones are noisy), as a share of lru's total time; when lru itself first had it stands beside it.
The overhead of learning is timed by wrapping the functions that do it: each thread's own processor time, and by the
wall, as shares of shade's training time. About half an hour; --quick, a minute, shows only that it works.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import _cifar
import augury
from _common import arguments, limit, report, say, seconds, without_data
from augury.cache import Cache
from augury.feedback import Feedback
from augury.learner import one_thread
from augury.samplers.importance import PADS
from augury.scorers.loss import LossRank

CACHES, RECIPES = (0.1, 0.25), ("lru", "shade")
BATCH, AHEAD, EPOCHS = 128, 8, 16
RATE, MOMENTUM, DECAY = 0.02, 0.9, 5e-4
SLOWER = 4.0
"""An epoch without a cache takes so many times its compute."""
LAST = 3
"""Tests whose mean is the final accuracy."""
SOONER, WORSE, OVERHEAD, THROUGHPUT = 0.5, 0.01, 0.02, 1e6
"""The limits: half of lru's time, one point of accuracy, 2 % of training, a million samples a second."""

# What learning costs, by who does it: the training thread, the scorer's, and the one that decides.
LEARNING = {
    "feedback, in the training thread": [(augury.Loader, "feedback")],
    "scoring, in the scorer's thread": [(Feedback, "_score")],
    "learning scores": [(Feedback, "settle")],
    "drawing, arranging, choosing whom to prefetch": [
        (PADS, "draw"),
        (PADS, "arrange"),
        (Cache, "plan"),
        (Cache, "wanted"),
    ],
}


class Clock:
    """Seconds of training: it stands still while the net is tested."""

    def __init__(self) -> None:
        self._still = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        return (self._since or time.perf_counter()) - self._still

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        self._since = time.perf_counter()
        yield
        self._still += time.perf_counter() - self._since
        self._since = None


class Training:
    """One net and its optimizer, the same at the start of every run."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 16, 256),
            nn.ReLU(),
            nn.Linear(256, 10),
        )
        self.net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = torch.optim.SGD(net.parameters(), RATE, momentum=MOMENTUM, weight_decay=DECAY)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Learn from a batch; its losses."""
        losses = cross_entropy(self.net(planes(x)), y, reduction="none")
        self._optimizer.zero_grad()
        losses.mean().backward()
        self._optimizer.step()
        return losses.detach()

    def accuracy(self, x: torch.Tensor, y: torch.Tensor) -> float:
        self.net.eval()
        with torch.no_grad():
            named = torch.cat([self.net(planes(some)).argmax(1) for some in x.split(500)])
        self.net.train()
        return float((named == y).double().mean())


def planes(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 3, 1, 2).float().div_(255).sub_(0.5)


class Times:
    """Seconds within functions, by the wall and of the thread's own processor time."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {name: [0.0, 0.0] for name in LEARNING}

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Within, whatever LEARNING names is timed."""
        with contextlib.ExitStack() as undo:
            for name, functions in LEARNING.items():
                for owner, method in functions:
                    original = getattr(owner, method)
                    setattr(owner, method, self._timed(name, original))
                    undo.callback(setattr, owner, method, original)
            yield

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        spent = self.spent[name]  # each name belongs to one thread

        @functools.wraps(call)
        def timed(*args: Any, **options: Any) -> Any:
            wall, own = time.perf_counter(), time.thread_time()
            try:
                return call(*args, **options)
            finally:
                spent[1] += time.thread_time() - own
                spent[0] += time.perf_counter() - wall

        return timed

    def shares(self, trained: float, computed: float) -> dict[str, Any]:
        """Of so many seconds of training, and of those that were compute and no waiting."""
        parts = {
            name: {"processor": round(own / trained, 5), "wall": round(wall / trained, 5)}
            for name, (wall, own) in self.spent.items()
        }
        in_all = sum(own for _, own in self.spent.values())
        return {
            "shares of training": parts,
            "in all, processor time / training": limit(in_all / trained, at_most=OVERHEAD),
            "in all, processor time / compute": round(in_all / computed, 4),
        }


def compute_per_epoch(cifar: _cifar.Cifar, batches: int = 40, repeats: int = 5) -> float:
    """Seconds of an epoch that never waits for data: the median of some stretches of one."""
    training = Training(0)
    x, y = torch.from_numpy(cifar.x_train[: batches * BATCH]), torch.from_numpy(cifar.y_train[: batches * BATCH]).long()
    for at in range(3):
        training.step(x[at * BATCH : (at + 1) * BATCH], y[at * BATCH : (at + 1) * BATCH])
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        for some_x, some_y in zip(x.split(BATCH), y.split(BATCH), strict=True):
            training.step(some_x, some_y)
        taken.append(time.perf_counter() - began)
    return float(np.median(taken)) * len(cifar.x_train) / len(x)


def run(recipe: str, cache: float, cifar: _cifar.Cifar, bandwidth: float, epochs: int, seed: int) -> dict[str, Any]:
    """Train once; a list per figure, an entry per epoch."""
    clock = Clock()
    x, y = cifar.x_train, cifar.y_train.astype(np.int64)
    source = augury.SlowSource(augury.ArraySource(x, y), bandwidth=bandwidth, clock=clock)
    test = torch.from_numpy(cifar.x_test), torch.from_numpy(cifar.y_test).long()
    ahead = AHEAD * BATCH * x[0].nbytes
    training = Training(seed)
    figures: dict[str, list[float]] = {
        name: [] for name in ("accuracy", "time", "seconds", "stall", "hit ratio", "reads", "coverage", "loss")
    }
    with augury.Loader(
        source,
        BATCH,
        recipe=recipe,
        ram=int(cache * x.nbytes) + ahead,
        readahead=ahead,
        seed=seed,
        epochs=epochs,
        output="torch",
        rank=0,
        world_size=1,
    ) as loader:
        start = clock()
        for _ in range(epochs):
            began, loss, visited = clock(), 0.0, np.zeros(len(x), np.bool_)
            for some_x, some_y, ids in loader:
                losses = training.step(some_x, some_y)
                loader.feedback(ids, losses)
                loss += float(losses.sum())
                visited[ids] = True
            now = clock()
            with clock.stopped():
                accuracy = training.accuracy(*test)
                loader.feedback(accuracy=accuracy)
            stats = loader.stats().epochs[-1]
            shares = stats.counts.shares()
            for name, value in {
                "accuracy": accuracy,
                "time": now - start,
                "seconds": now - began,
                "stall": stats.stall_seconds,
                "hit ratio": shares["hit_ratio"],
                "reads": shares["reads"],
                "coverage": float(visited.mean()),
                "loss": loss / stats.counts.requests,
            }.items():
                figures[name].append(round(value, 4))
            say(
                f"{recipe} {cache:.0%} epoch {len(figures['time'])}: {accuracy:.2%} at {now - start:.0f} s, "
                f"reads {shares['reads']:.2f}, coverage {visited.mean():.2f}"
            )
    return {"final accuracy": figures["accuracy"][-1], f"mean of the last {LAST}": final(figures), **figures}


def final(figures: dict[str, Any]) -> float:
    return round(float(np.mean(figures["accuracy"][-LAST:])), 4)


def reached(figures: dict[str, Any], accuracy: float, total: float) -> float | None:
    """When a run first had an accuracy, as a share of `total`; None: never."""
    times = [at for at, it in zip(figures["time"], figures["accuracy"], strict=True) if it >= accuracy]
    return round(times[0] / total, 3) if times else None


def compared(lru: dict[str, Any], shade: dict[str, Any]) -> dict[str, Any]:
    """One cache size: what the benchmark is about."""
    goal, total = final(lru), lru["time"][-1]
    sooner = reached(shade, goal, total)
    return {
        "lru's accuracy": goal,
        "time to lru's accuracy / lru's time": {
            **(limit(sooner, at_most=SOONER) if sooner is not None else {"value": None, "reached": False}),
            "lru itself": reached(lru, goal, total),
        },
        "time to lru's last test alone / lru's time": {
            "shade": reached(shade, lru["accuracy"][-1], total),
            "lru itself": reached(lru, lru["accuracy"][-1], total),
        },
        "accuracy below lru's": limit(goal - final(shade), at_most=WORSE),
        "whole run / lru's time": round(shade["time"][-1] / total, 3),
    }


def throughput(batch: int = 256, reports: int = 400) -> float:
    """Samples per second that the scorer ranks."""
    rng = np.random.default_rng(0)
    scorer, ids = LossRank(), np.arange(batch)
    losses = rng.random((reports, batch), np.float32)
    return batch * reports / seconds(lambda: [scorer.score(ids, row) for row in losses])


def draw(runs: dict[str, Any], file: Path) -> None:
    """Accuracy over time, a curve per run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    for number, (cache, pair) in enumerate(runs.items()):
        for recipe, figures in pair.items():
            style = "-o" if recipe == "shade" else "--s"
            label = f"{recipe}, cache {cache}"
            minutes = [at / 60 for at in figures["time"]]
            axes.plot(minutes, [100 * it for it in figures["accuracy"]], style, ms=3.5, color=f"C{number}", label=label)
    axes.set(xlabel="training time (minutes)", ylabel="test accuracy (%)", title="CIFAR-10 from a slow store")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def main() -> None:
    options = arguments(
        __doc__ or "",
        data={"type": Path, "metavar": "DIR", "help": "where the packed CIFAR-10 files are"},
        epochs={"type": int, "default": None, "metavar": "N", "help": f"of every run (default: {EPOCHS})"},
        seed={"type": int, "default": 0},
        plot={"type": Path, "metavar": "FILE", "help": "draw the curves there"},
    )
    if without_data(options):
        return
    cifar = _cifar.load(options.data)
    if options.quick:
        cifar = _cifar.Cifar(*(array[:5_000] for array in cifar))
    epochs = options.epochs or (4 if options.quick else EPOCHS)
    with one_thread():
        compute = compute_per_epoch(cifar)
        bandwidth = cifar.x_train.nbytes / (SLOWER * compute)
        say(f"compute {compute:.1f} s per epoch, store {bandwidth / 1e6:.2f} MB/s")
        runs: dict[str, dict[str, Any]] = {}
        times = Times()
        for cache in CACHES:
            pair = runs.setdefault(f"{cache:.0%}", {})
            for recipe in RECIPES:
                with times.taken() if recipe == "shade" else contextlib.nullcontext():
                    pair[recipe] = run(recipe, cache, cifar, bandwidth, epochs, options.seed)
    uncached = [pair["lru"]["seconds"][0] / compute for pair in runs.values()]
    report(
        {
            "benchmark": "shade_training",
            "epochs": epochs,
            "seed": options.seed,
            "compute per epoch, seconds": round(compute, 2),
            "an epoch without a cache / compute": [round(it, 2) for it in uncached],
            **{f"cache {cache}": compared(pair["lru"], pair["shade"]) for cache, pair in runs.items()},
            "overhead": times.shares(
                sum(pair["shade"]["time"][-1] for pair in runs.values()), len(CACHES) * epochs * compute
            ),
            "scorer, million samples per second": limit(throughput() / 1e6, at_least=THROUGHPUT / 1e6),
            "runs": runs,
        },
        options.json,
    )
    if options.plot is not None:
        draw(runs, options.plot)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
