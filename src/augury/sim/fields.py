"""Loss fields: the loss that every sample has in every epoch, which drives importance recipes without training.

`Synthetic` is made up, the same for everybody; `Recorded` was measured once (`augury record`) and lies in a file.
How losses become scores, orders and decisions is not here.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from augury.errors import ConfigError
from augury.ids import Ids

SYNTHETIC = "synthetic"
FORMAT = "augury loss field 1"


class LossField(Protocol):
    """What replay asks for losses. One thread at a time."""

    @property
    def samples(self) -> int:
        """Ids are 0 to samples - 1."""

    def losses(self, epoch: int, ids: Ids) -> NDArray[np.float32]:
        """The loss that each sample would have if it were visited in that epoch."""

    def accuracy_after(self, epoch: int) -> float | None:
        """The model's accuracy on held-out data after an epoch, if it was measured."""

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """The class of each sample, if known."""

    @property
    def embeddings(self) -> NDArray[np.float32] | None:
        """Where each sample lies in the eyes of the network, if known."""


class Synthetic:
    """Losses that fall at one pace for all, from difficulties that differ widely; similar samples, some mislabelled.

    Sample i has a difficulty d ~ lognormal(0, 1). A visit in epoch e finds the loss d exp(-e/20) times noise
    ~ lognormal(0, 0.5). Labels are uniform. Embeddings lie in four clusters per class, the difficult ones further out;
    one in a hundred lies in a cluster of another class. Fixed, so that figures of different runs can be compared:
    a seed means the same numbers for ever.
    """

    CLASSES, CLUSTERS, DIMENSIONS = 10, 4, 32
    PACE, NOISE, MISPLACED = 20.0, 0.5, 0.01

    def __init__(self, samples: int, seed: int = 0) -> None:
        if samples < 1:
            raise ConfigError(f"samples must be at least 1, not {samples}")
        if seed < 0:
            raise ConfigError(f"seed must not be negative: {seed}")
        self.samples, self.seed = samples, seed
        self._rng = np.random.default_rng(seed)
        self.difficulty: NDArray[np.float64] = self._rng.lognormal(0, 1, samples)
        self._epoch: int | None = None
        self._losses = np.empty(0, np.float32)

    def losses(self, epoch: int, ids: Ids) -> NDArray[np.float32]:
        """See `LossField`. The current epoch is kept; to go back to an earlier one costs a draw."""
        if epoch != self._epoch:
            self._losses, self._epoch = self._draw(_checked_epoch(epoch)), epoch
        return self._losses[ids]

    def accuracy_after(self, epoch: int) -> float | None:
        """Nobody was trained."""
        return None

    def _draw(self, epoch: int) -> NDArray[np.float32]:
        # A child of the seed rather than [seed, epoch]: NumPy pads keys with zeros, so [seed, 0] would be the very
        # stream that the difficulties come from, and the noise of epoch 0 a function of them.
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(epoch,)))
        noise = rng.lognormal(0, self.NOISE, self.samples)
        drawn: NDArray[np.float32] = (self.difficulty * np.exp(-epoch / self.PACE) * noise).astype(np.float32)
        return drawn

    # Difficulties, labels, embeddings come from one stream in this order, whoever asks for which of them first.

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The class of each sample."""
        return self._rng.integers(0, self.CLASSES, self.samples)

    @cached_property
    def embeddings(self) -> NDArray[np.float32]:
        """(samples, 32): made when first asked for, because a million samples take 128 MB."""
        labels, rng = self.labels, self._rng
        centres = 10 * rng.standard_normal((self.CLASSES, self.CLUSTERS, self.DIMENSIONS))
        cluster = rng.integers(0, self.CLUSTERS, self.samples)
        stray = rng.random(self.samples) < self.MISPLACED
        home = (labels + stray * rng.integers(1, self.CLASSES, self.samples)) % self.CLASSES
        spread = (0.15 + 0.1 * np.minimum(self.difficulty, 5)).astype(np.float32)
        made = rng.standard_normal((self.samples, self.DIMENSIONS), np.float32)
        made *= spread[:, None]
        made += centres.astype(np.float32)[home, cluster]
        return made


class Recorded:
    """Losses of a real training run, as (epochs, samples). Epochs beyond the last give the last one again.

    `labels` and the test `accuracy` after each epoch are there if they were recorded; `meta` says of what it is.
    """

    embeddings = None

    def __init__(
        self,
        table: ArrayLike,
        labels: ArrayLike | None = None,
        accuracy: ArrayLike | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.table = _checked_table(np.asarray(table))
        self.labels: NDArray[np.int64] | None = _checked("labels", labels, "iu", self.samples)
        self.accuracy: NDArray[np.float64] | None = _checked("test accuracies", accuracy, "f", self.epochs)
        self.meta = meta or {}

    @property
    def epochs(self) -> int:
        return int(self.table.shape[0])

    @property
    def samples(self) -> int:
        return int(self.table.shape[1])

    def losses(self, epoch: int, ids: Ids) -> NDArray[np.float32]:
        """See `LossField`. What was not recorded is as in the last epoch that was."""
        row: NDArray[np.float16] = self.table[min(_checked_epoch(epoch), self.epochs - 1)]
        return row[ids].astype(np.float32)

    def accuracy_after(self, epoch: int) -> float | None:
        """See `LossField`. Nothing is known of epochs that were not recorded."""
        return None if self.accuracy is None or epoch >= self.epochs else float(self.accuracy[epoch])


def open_field(name: str, samples: int | None, seed: int) -> LossField:
    """A field by what a user writes: "synthetic", or the path of a recorded one.

    `samples`: how many there must be, or None to take what the file has. `seed` is of the synthetic one.
    """
    if name == SYNTHETIC:
        if samples is None:
            raise ConfigError("the synthetic loss field is of any size: say how many samples it has")
        return Synthetic(samples, seed)
    path = Path(name).expanduser()
    field = _opened(path)
    if samples is not None and field.samples != samples:
        raise ConfigError(f"{path} holds the losses of {field.samples:,} samples, and there are {samples:,} here")
    return field


def save_field(path: str | os.PathLike[str], field: Recorded) -> None:
    """Write a recorded field as .npz, without pickle, whole or not at all."""
    meta = field.meta | {"format": FORMAT, "samples": field.samples, "epochs": field.epochs}
    arrays = {"losses": field.table, "meta": np.array(json.dumps(meta))}
    if field.labels is not None:
        arrays["labels"] = field.labels.astype(np.int32)
    if field.accuracy is not None:
        arrays["accuracy"] = field.accuracy
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        try:
            with open(aside, "wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror or error}; choose another place") from error


# -- files -----------------------------------------------------------------------------------------------------

_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, NotImplementedError)
"""What NumPy and zipfile raise over bytes that are not what they were."""


def _opened(path: Path) -> Recorded:
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"PK\x03\x04":
                raise _foreign(path)
            file.seek(0)
            arrays = _arrays(path, file)
    except FileNotFoundError:
        raise ConfigError(f"there is no loss field {path}: make one with augury record, or use {SYNTHETIC!r}") from None
    except OSError as error:
        raise ConfigError(f"the loss field {path} cannot be read: {error.strerror or error}") from error
    try:
        return Recorded(arrays["losses"], arrays.get("labels"), arrays.get("accuracy"), _meta(arrays))
    except ConfigError as error:
        raise ConfigError(f"the loss field {path} cannot be used: {error}") from None


def _arrays(path: Path, file: Any) -> dict[str, NDArray[Any]]:
    try:
        with np.load(file, allow_pickle=False) as archive:
            if not {"losses", "meta"} <= set(archive.files):
                raise _foreign(path)
            arrays = {name: archive[name] for name in archive.files}
            if _meta(arrays).get("format") != FORMAT:
                raise _foreign(path)
            return arrays
    except ConfigError:
        raise
    except _DAMAGED as error:
        raise ConfigError(f"the loss field {path} is damaged ({error}): record or copy it again") from error


def _meta(arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    meta = json.loads(str(arrays["meta"]))
    return meta if isinstance(meta, dict) else {}


def _foreign(path: Path) -> ConfigError:
    return ConfigError(f"{path} is not a loss field as augury record writes it (or of another release)")


def _checked_table(table: NDArray[Any]) -> NDArray[np.float16]:
    if table.ndim != 2 or 0 in table.shape or not np.issubdtype(table.dtype, np.floating):
        raise ConfigError(f"losses are numbers by (epoch, sample), not {table.dtype} of shape {table.shape}")
    bad = np.argwhere(~np.isfinite(table))
    if len(bad):
        epoch, id = bad[0]
        first = f"{table[epoch, id]} of sample {id} in epoch {epoch}"
        raise ConfigError(f"{len(bad):,} losses are not finite, the first is {first}: record it anew")
    most = np.finfo(np.float16).max  # beyond it only "very large" matters
    checked: NDArray[np.float16] = np.clip(table, -most, most).astype(np.float16, copy=False)
    return checked


def _checked(name: str, given: ArrayLike | None, kinds: str, length: int) -> Any:
    """One number of those kinds for each of `length` things, or None."""
    if given is None:
        return None
    array = np.asarray(given)
    if array.shape != (length,) or array.dtype.kind not in kinds:
        raise ConfigError(f"{name} must be {length:,} numbers, not {array.dtype} of shape {array.shape}")
    return array.astype(np.float64 if kinds == "f" else np.int64)


def _checked_epoch(epoch: int) -> int:
    if epoch < 0:
        raise ConfigError(f"epoch {epoch}: epochs are counted from 0")
    return epoch
