"""`keep="decoded"`: the source that a cache keeps, and what is left to do for every batch.

Cuts a pipeline in two and wraps the source; whoever holds both need not know of it. The wrapper is sources/decoded.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from augury.errors import ConfigError, UnknownName
from augury.sources import Source
from augury.sources.decoded import DecodedSource
from augury.transforms.pipeline import Compose, as_pipeline

Keep: TypeAlias = Literal["encoded", "decoded"]

_PIXELS = 1
"""Count up when the same steps come to give other pixels: caches on disk then start anew."""


def apply_keep(
    keep: str, source: Source, transform: Callable[[Any], Any] | None
) -> tuple[Source, Callable[[Any], Any] | None]:
    """What to cache from, and what to do after the cache."""
    if keep not in ("encoded", "decoded"):
        raise UnknownName("keep", keep, ("encoded", "decoded"))
    if keep == "encoded":
        return source, transform
    if source.self_labelled:
        raise ConfigError(
            "keep='decoded' keeps pictures and no labels, and this data has them inside its items: use a folder, tar "
            "shards or arrays, or keep='encoded'"
        )
    pipeline = _pipeline(transform)
    lasting, rest = pipeline.split()
    if lasting is None:
        raise ConfigError(
            f"keep='decoded': {pipeline.steps[0]!r} is random or makes pixels larger, so nothing comes before it that "
            "could be kept: begin with Decode() and Resize((height, width)), or use keep='encoded'"
        )
    form = lasting.form(source.form)
    if form is None:
        raise ConfigError(
            f"keep='decoded' needs pictures of one size, and {lasting!r} gives many: add Resize((height, width)) or "
            f"CenterCrop(size) behind {lasting.steps[-1]!r}"
        )
    return DecodedSource(source, lasting, form, _identity(lasting)), rest


def _pipeline(transform: Callable[[Any], Any] | None) -> Compose:
    pipeline = as_pipeline(transform)
    if isinstance(pipeline, Compose):
        return pipeline
    given = "there is none" if transform is None else f"{transform!r} cannot be split"
    raise ConfigError(
        f"keep='decoded' keeps what the first steps of transform= make, and {given}: write "
        "augury.transforms.Compose([Decode(), Resize((height, width)), ...]) with Decode, Resize and CenterCrop first"
    )


def _identity(lasting: Compose) -> str:
    """Differs where pixels may differ."""
    names = (f"{type(step).__module__}.{type(step).__qualname__} {step!r}" for step in lasting.steps)
    return "\n".join((str(_PIXELS), *names))
