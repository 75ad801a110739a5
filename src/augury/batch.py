"""From bytes to a batch: decode, transform, collate, and what to do about samples that cannot be used.

`Finisher` works on one batch at a time, in whatever thread or process it is called; it knows nothing of caches or
order, and of epochs only to tell transforms that want to know. Whatever it hands out carries the ids of the samples
that are really in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from augury.buffers import BufferPool
from augury.collate import DoesNotFit, collate
from augury.errors import BadSample, ConfigError, UnknownName, Unreadable
from augury.gather import Raw
from augury.ids import Ids
from augury.sources import Form, Source
from augury.transforms.chance import Chance
from augury.transforms.pipeline import Compose, Seeded, as_pipeline

OnError: TypeAlias = Literal["raise", "skip", "substitute"]
Transform: TypeAlias = Callable[[Any], Any]
Bad: TypeAlias = Unreadable | BadSample


class Batch(NamedTuple):
    """What the loader yields. `y` is None where nothing is labelled."""

    x: Any
    y: Any
    ids: Ids


class WeightedBatch(NamedTuple):
    """What the loader yields with `weights=True`."""

    x: Any
    y: Any
    ids: Ids
    weights: Any
    """What each sample's loss is to be multiplied by."""


@dataclass
class Finished:
    """A batch and the samples that could not be part of it. `batch` is None when none could."""

    batch: Batch | None
    bad: list[Bad] = field(default_factory=list)


@dataclass
class Usable:
    """Samples and their targets, one per id; and those that are not among them."""

    ids: Ids
    samples: list[Any]
    targets: list[Any]
    bad: list[Bad]


class Finisher:
    """Makes batches of bytes. Any thread may call it; a picklable transform and collate make it picklable."""

    def __init__(
        self,
        source: Source,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        on_error: OnError = "raise",
        buffers: BufferPool | None = None,
    ) -> None:
        self.source, self.on_error = source, on_error
        self._transform, self._target_transform, self._collate = as_pipeline(transform), target_transform, collate_fn
        self._buffers = buffers or BufferPool()
        untouched = transform is None and target_transform is None and collate_fn is None
        self.immediate = untouched and source.form is not None
        """Whether a batch is ready as gathered, without work per sample."""
        self.by_chance = isinstance(self._transform, Seeded)
        """Whether the transform wants to know which samples of which epoch it is given."""
        knows_form = isinstance(self._transform, Compose) and collate_fn is None
        self._form: Form | None = self._transform.form(source.form) if knows_form else None
        """Of all samples, where the transform says so and can write them straight to their places in the batch."""
        self.sample_bytes: int | None = None if self._form is None else self._form.nbytes
        """How large every finished sample is, where that is known beforehand."""

    def __call__(self, raw: Raw, chance: Chance) -> Finished:
        if self.immediate and not raw.errors:
            return Finished(Batch(self._as_arrays(raw), self._labels(raw.ids), raw.ids))
        form = self._form
        places = None if form is None else self._buffers.take((len(raw.ids), *form.shape), form.dtype)
        usable = self.usable(raw, chance, places)
        if not usable.samples:
            return Finished(None, usable.bad)
        y = None if all(target is None for target in usable.targets) else self._collated(usable.targets, usable.ids)
        x = places if places is not None and not usable.bad else self._made(usable)
        return Finished(Batch(x, y, usable.ids), usable.bad)

    def usable(self, raw: Raw, chance: Chance, places: NDArray[Any] | None = None) -> Usable:
        """The samples of a batch, decoded and transformed, after `on_error` has dealt with those that failed."""
        found = Usable(raw.ids, [], [], [])
        used = []
        calls = self._calls(raw.ids, chance)
        if places is not None:
            calls = [partial(call, out=place) for call, place in zip(calls, places, strict=True)]
        for at, id in enumerate(raw.ids.tolist()):
            try:
                sample, target = self._sample(raw, at, id, calls[at])
            except (Unreadable, BadSample) as error:
                found.bad.append(error)
                continue
            used.append(at)
            found.samples.append(sample)
            found.targets.append(target)
        if found.bad and self.on_error == "raise":
            found.bad[0].add_note("To go on without such samples, pass on_error='skip' or 'substitute'.")
            raise found.bad[0]
        if found.bad and used and self.on_error == "substitute":
            # Good samples of the batch once more, in the places of bad ones: spread, and the same in every run.
            place = {at: order for order, at in enumerate(used)}
            chosen = [place.get(at, at % len(used)) for at in range(len(raw.ids))]
            found.samples = [found.samples[order] for order in chosen]
            found.targets = [found.targets[order] for order in chosen]
            used = [used[order] for order in chosen]
        found.ids = raw.ids[used]
        return found

    def _as_arrays(self, raw: Raw) -> NDArray[Any]:
        form, rows = self.source.form, raw.rows
        assert form is not None
        assert isinstance(rows, np.ndarray)
        return rows.view(form.dtype).reshape(len(rows), *form.shape)

    def _labels(self, ids: Ids) -> NDArray[Any] | None:
        labels = self.source.catalog.labels
        return None if labels is None else labels[ids]

    def _calls(self, ids: Ids, chance: Chance) -> Sequence[Callable[..., Any]]:
        """What to call with each sample."""
        transform = self._transform
        if not isinstance(transform, Seeded):
            return [_as_it_is if transform is None else transform] * len(ids)
        calls = transform.for_batch(chance, ids)
        if len(calls) != len(ids):
            raise ConfigError(f"for_batch() of {transform!r} must give one function per id: {len(calls)} of {len(ids)}")
        return calls

    def _sample(self, raw: Raw, at: int, id: int, transform: Transform) -> tuple[Any, Any]:
        """One sample and its target, as the user's functions make them."""
        if at in raw.errors:
            raise raw.errors[at]
        row: Any = raw.rows[at]
        form, labels = self.source.form, self.source.catalog.labels
        doing = "decoding"
        try:
            if isinstance(row, np.ndarray):  # a row of this batch's own buffer: the user may write to it
                sample = self.source.decode(row.tobytes()) if form is None else row.view(form.dtype).reshape(form.shape)
            else:
                sample = self.source.decode(row)
            target = None if labels is None else labels[id]
            if self.source.self_labelled:
                sample, target = sample
            doing = "transform"
            sample = transform(sample)
            if sample is None and self._transform is not None:
                raise TypeError("it returned None (is a return missing?)")
            doing = "target_transform"
            if self._target_transform is not None and target is not None:
                target = self._target_transform(target)
        except Exception as error:
            raise self._bad(id, f"{doing} failed: {type(error).__name__}: {error}") from error
        return sample, target

    def _made(self, usable: Usable) -> Any:
        return self._collated(usable.samples, usable.ids) if self._collate is None else self._collate(usable.samples)

    def _collated(self, items: list[Any], ids: Ids) -> Any:
        try:
            return collate(items, self._buffers)
        except DoesNotFit as error:
            raise self._bad(int(ids[error.position]), error.reason) from None

    def _bad(self, id: int, reason: str) -> BadSample:
        return BadSample(id, self.source.catalog.location(id), reason)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_buffers": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._buffers = BufferPool()


def _as_it_is(sample: Any) -> Any:
    return sample


def as_tensors(value: Any) -> Any:
    """Arrays as torch tensors over the same memory; anything that torch cannot hold stays as it is."""
    import torch

    if isinstance(value, np.ndarray):
        try:
            return torch.from_numpy(value)
        except TypeError:  # a type without a tensor, such as texts
            return value
        except ValueError:  # the other byte order
            return torch.from_numpy(value.astype(value.dtype.newbyteorder("=")))
    if isinstance(value, dict):
        return {key: as_tensors(item) for key, item in value.items()}
    if isinstance(value, tuple):
        items = [as_tensors(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def nbytes(value: Any) -> int:
    """Roughly what a finished batch occupies."""
    if isinstance(value, dict):
        return sum(map(nbytes, value.values()))
    if isinstance(value, tuple | list):
        return sum(map(nbytes, value))
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value)
    return int(getattr(value, "nbytes", 8))


def check_on_error(on_error: str) -> OnError:
    """A user's word as one of the three."""
    if on_error not in ("raise", "skip", "substitute"):
        raise UnknownName("on_error", on_error, ("raise", "skip", "substitute"))
    return cast(OnError, on_error)
