"""Small data and sources that tests share. No test lives here."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np

from augury.sources import Base


def arrays(samples=200, size=24, seed=0):
    """Features whose first eight bytes are their own id, so that a wrong sample is always noticed; and labels."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (samples, size), dtype=np.uint8)
    x[:, :8] = np.arange(samples, dtype="<i8").view(np.uint8).reshape(samples, 8)
    return x, (np.arange(samples) * 7 % 10).astype(np.int64)


def folder(root: Path, samples=60, classes=3, largest=200, seed=0):
    """Files of mixed sizes, in ImageFolder layout; returns their bytes by id."""
    rng = np.random.default_rng(seed)
    contents = []
    for label in range(classes):
        (root / f"class{label}").mkdir(parents=True)
        for at in range(samples // classes):
            data = f"{label}/{at:03d}/".encode() + rng.bytes(int(rng.integers(1, largest)))
            (root / f"class{label}" / f"{at:03d}.bin").write_bytes(data)
            contents.append(data)
    return contents


class Gate(Base):
    """A source that counts what is read, and reads nothing while it is shut."""

    def __init__(self, inner) -> None:
        self.inner, self.catalog = inner, inner.catalog
        self.form, self.self_labelled = inner.form, inner.self_labelled
        self.reads: list[int] = []
        self.open = threading.Event()
        self.open.set()

    def read(self, ids):
        self.open.wait()
        self.reads.extend(ids.tolist())
        return self.inner.read(ids)

    def requests(self, ids):
        return [ids[at : at + 1] for at in range(len(ids))]

    def decode(self, data):
        return self.inner.decode(data)


def settled(look, quiet=0.15, patience=20.0):
    """The value of `look()` once it has stopped changing."""
    deadline = time.monotonic() + patience
    value, since = look(), time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(0.01)
        new = look()
        if new != value:
            value, since = new, time.monotonic()
        elif time.monotonic() - since > quiet:
            return value
    raise AssertionError(f"still changing: {value}")


def visited(loader):
    """All ids of one epoch, in order."""
    return np.concatenate([ids for _, _, ids in loader])


def check_batches(loader, x, y):
    """One epoch whose bytes and labels belong to the ids reported; returns the ids."""
    seen = []
    for features, labels, ids in loader:
        np.testing.assert_array_equal(np.asarray(features), x[ids])
        np.testing.assert_array_equal(np.asarray(labels), y[ids])
        seen.append(ids)
    return np.concatenate(seen) if seen else np.empty(0, np.int64)


def threads():
    """Augury's threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("augury")]
