"""What a demo was asked to do and what came of it, as plain figures. Computes; prints, draws and measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from augury.metrics import EpochStats
from augury.units import format_size


@dataclass(frozen=True)
class Store:
    """The store that is emulated."""

    latency: float
    """Seconds per request, however many are under way."""
    bandwidth: float
    """Bytes per second, for all readers together."""

    def __str__(self) -> str:
        return f"an object store with {self.latency * 1000:g} ms per request and {format_size(self.bandwidth)}/s"


@dataclass(frozen=True)
class Settings:
    """Everything that a demo's figures depend on, but the machine."""

    recipes: tuple[str, ...]
    epochs: int
    cache: float
    """Share of the dataset that the cache may hold."""
    samples: int
    seed: int
    batch_size: int
    batches_ahead: int
    dataset_bytes: int
    store: Store

    @property
    def cache_bytes(self) -> int:
        return int(self.cache * self.dataset_bytes)

    @property
    def readahead_bytes(self) -> int:
        return self.batches_ahead * self.batch_size * (self.dataset_bytes // self.samples)

    @property
    def ram_bytes(self) -> int:
        """What the loader is given: the cache and the read-ahead window."""
        return self.cache_bytes + self.readahead_bytes

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        sizes = {name: getattr(self, name) for name in ("cache_bytes", "readahead_bytes", "ram_bytes")}
        return {**{name: value for name, value in vars(self).items() if name != "store"}, **sizes}


@dataclass
class Epoch:
    """One epoch of one recipe: the loader's figures, and how well the model did."""

    stats: EpochStats
    loss: float
    """Mean over the samples trained on."""
    accuracy: float
    """On the test pictures, after the epoch."""
    early_hits: int
    """Hits in the first quarter of its batches: whether hits are spread or come all at once."""


@dataclass
class Run:
    """One recipe from the first to the last epoch."""

    recipe: str
    epochs: list[Epoch] = field(default_factory=list)
    store_requests: int = 0
    store_bytes: int = 0
    """As the store counted them."""
    order: str = ""
    """A digest of all ids in the order of training: equal digests saw equal batches."""

    @property
    def later(self) -> list[Epoch]:
        """The first epoch fills the cache: what the recipe is worth shows afterwards (if there is an afterwards)."""
        return self.epochs[1:] or self.epochs

    @property
    def hit_ratio(self) -> float:
        requests = sum(epoch.stats.counts.requests for epoch in self.later)
        return sum(epoch.stats.counts.hits for epoch in self.later) / max(1, requests)

    @property
    def coverage(self) -> float:
        """Different pictures that an epoch visits, as a share of its visits."""
        requests = sum(epoch.stats.counts.requests for epoch in self.later)
        return sum(epoch.stats.distinct for epoch in self.later) / max(1, requests)

    @property
    def early_share(self) -> float:
        """Of all hits, how many fell into the first quarter of an epoch."""
        hits = sum(epoch.stats.counts.hits for epoch in self.later)
        return sum(epoch.early_hits for epoch in self.later) / max(1, hits)

    @property
    def epoch_seconds(self) -> float:
        return _mean([epoch.stats.seconds for epoch in self.later])

    @property
    def epoch_stall_seconds(self) -> float:
        return _mean([epoch.stats.stall_seconds for epoch in self.later])

    @property
    def stall_seconds(self) -> float:
        """Of all epochs."""
        return sum(epoch.stats.stall_seconds for epoch in self.epochs)

    @property
    def seconds(self) -> float:
        """Of all epochs, without the tests between them."""
        return sum(epoch.stats.seconds for epoch in self.epochs)

    @property
    def accuracy(self) -> float:
        return self.epochs[-1].accuracy

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        names = (
            "hit_ratio",
            "coverage",
            "epoch_seconds",
            "epoch_stall_seconds",
            "stall_seconds",
            "seconds",
            "accuracy",
        )
        epochs = [
            {**epoch.stats.as_dict(), **{name: getattr(epoch, name) for name in ("loss", "accuracy", "early_hits")}}
            for epoch in self.epochs
        ]
        return {
            "recipe": self.recipe,
            **{name: getattr(self, name) for name in names},
            "store_requests": self.store_requests,
            "store_bytes": self.store_bytes,
            "order": self.order,
            "epochs": epochs,
        }


def figures(settings: Settings, runs: Sequence[Run], reading: str = "") -> dict[str, Any]:
    """Everything, for demo.json."""
    return {
        "complete": [run.recipe for run in runs] == list(settings.recipes),
        "settings": settings.as_dict(),
        "store": {"emulated": True, "description": str(settings.store), **asdict(settings.store)},
        "runs": [run.as_dict() for run in runs],
        "reading": reading,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
