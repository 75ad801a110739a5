"""The demo's pictures: ten shapes of 32 x 32 pixels, drawn with NumPy, and the file format they are written in.

Every picture has its own place, size, turn, colours, light, pattern and noise, and the shape is as often darker than
its background as lighter: no pixel says anything by itself, so a linear model stays near chance and a small
convolutional net has something to learn. Where the files lie is place.py's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

SIDE = 32
HEADER = b"P6\n%d %d\n255\n" % (SIDE, SIDE)
"""Of a binary PPM: any image viewer opens it, and reading one takes no image library."""
FILE_BYTES = len(HEADER) + SIDE * SIDE * 3
VERSION = 1
"""Of the drawing: pictures of another version are drawn anew."""

_CHUNK = 1000
"""Pictures drawn at a time: some 12 MB per intermediate array, however many are asked for."""

Floats: TypeAlias = NDArray[np.floating[Any]]
Pictures: TypeAlias = NDArray[np.uint8]


def draw(samples: int, seed: int, split: int) -> Iterator[Pictures]:
    """`samples` pictures in chunks; picture i shows shape i modulo 10. Other splits have other pictures."""
    rng = np.random.default_rng([seed, split])
    for first in range(0, samples, _CHUNK):
        labels = np.arange(first, min(samples, first + _CHUNK)) % len(CLASSES)
        yield _draw(labels, rng)


def encode_ppm(picture: Pictures) -> bytes:
    """One picture as the bytes of a file."""
    return HEADER + picture.tobytes()


def parse_ppm(data: bytes) -> Pictures:
    """The loader's `transform`: bytes of a file -> (32, 32, 3), without a copy."""
    if not data.startswith(HEADER):
        raise ValueError(f"not a PPM picture of {SIDE} x {SIDE} pixels as the demo writes them")
    return np.frombuffer(data, np.uint8, offset=len(HEADER)).reshape(SIDE, SIDE, 3)


# -- shapes: below zero inside, in units of the shape's size ---------------------------------------------------


def _box(u: Floats, v: Floats, width: float, height: float) -> Floats:
    inside: Floats = np.maximum(np.abs(u) - width, np.abs(v) - height)
    return inside


def _triangle(u: Floats, v: Floats) -> Floats:
    sector = 2 * np.pi / 3
    folded: Floats = np.hypot(u, v) * np.cos(np.mod(np.arctan2(v, u), sector) - sector / 2) - 0.5
    return folded


_SHAPES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "bars": lambda u, v: np.maximum(np.abs(np.mod(u + 0.3, 0.6) - 0.3) - 0.15, _box(u, v, 0.9, 0.8)),
    "crescent": lambda u, v: np.maximum(np.hypot(u, v) - 0.9, 0.72 - np.hypot(u - 0.42, v)),
    "cross": lambda u, v: np.minimum(_box(u, v, 0.95, 0.26), _box(u, v, 0.26, 0.95)),
    "disc": lambda u, v: np.hypot(u, v) - 0.8,
    "dumbbell": lambda u, v: np.minimum(np.hypot(np.abs(u) - 0.62, v) - 0.36, _box(u, v, 0.6, 0.12)),
    "frame": lambda u, v: np.abs(_box(u, v, 0.6, 0.6)) - 0.18,
    "ring": lambda u, v: np.abs(np.hypot(u, v) - 0.68) - 0.2,
    "square": lambda u, v: _box(u, v, 0.72, 0.72),
    "star": lambda u, v: np.hypot(u, v) - 0.62 - 0.32 * np.cos(5 * np.arctan2(v, u)),
    "triangle": _triangle,
}
CLASSES = tuple(sorted(_SHAPES))

# How hard it is, found by trying: a linear model stays below 20 %, the net of training.py comes to about 55 % after
# one epoch of 4,000 pictures and to 95 % after five.
_TURN = 1.0  # radians either way
_SHIFT = 0.15  # of half the picture, either way
_SIZES = (0.55, 0.8)  # of half the picture
_CONTRAST = 0.65  # least distance between the two colours, in a cube of side 1
_LIGHT = 0.25
_PATTERN = 0.16
_NOISE = 0.06


def _draw(labels: NDArray[np.int64], rng: np.random.Generator) -> Pictures:
    samples = len(labels)
    y, x = (axis.astype(np.float32) / (SIDE / 2) for axis in np.mgrid[0:SIDE, 0:SIDE] - (SIDE - 1) / 2)
    cover = _coverage(labels, x, y, rng)[..., None]
    shape, ground = _colours(samples, rng)
    slope = rng.normal(0, _LIGHT / 2, (samples, 1, 1, 2, 3)).astype(np.float32)
    light = x[..., None] * slope[..., 0, :] + y[..., None] * slope[..., 1, :]
    noise = rng.standard_normal((samples, SIDE, SIDE, 3), np.float32) * np.float32(_NOISE)
    mixed = ground + (shape - ground) * cover + light + _pattern(samples, x, y, rng)[..., None] + noise
    drawn: Pictures = (np.clip(mixed, 0, 1) * 255).astype(np.uint8)
    return drawn


def _coverage(labels: NDArray[np.int64], x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """How much of each pixel the shape covers: turned, shifted, scaled, with smooth edges."""
    samples = len(labels)
    turn, size = _uniform(rng, samples, -_TURN, _TURN), _uniform(rng, samples, *_SIZES)
    right, down = ((axis - _uniform(rng, samples, -_SHIFT, _SHIFT)) / size for axis in (x, y))
    u, v = np.cos(turn) * right + np.sin(turn) * down, np.cos(turn) * down - np.sin(turn) * right
    outside = np.empty_like(u)
    for label, name in enumerate(CLASSES):
        which = labels == label
        outside[which] = _SHAPES[name](u[which], v[which])
    covered: Floats = np.clip(0.5 - outside * size * (SIDE / 2), 0, 1)
    return covered


def _colours(samples: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Two colours per picture, neither of which is the lighter one by rule, but far enough apart to be told."""
    ground = _uniform(rng, samples, 0, 1, 3)
    step = _uniform(rng, samples, 0, 1, 3) - ground
    length = np.linalg.norm(step, axis=-1, keepdims=True)
    return ground + step / length * np.maximum(length, np.float32(_CONTRAST)), ground


def _pattern(samples: int, x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Waves across the whole picture, so that an edge alone does not give the shape away."""
    angle, phase = _uniform(rng, samples, 0, 2 * np.pi), _uniform(rng, samples, 0, 2 * np.pi)
    pitch, strength = _uniform(rng, samples, 5, 20), _uniform(rng, samples, 0, _PATTERN)
    waves: Floats = strength * np.sin(pitch * (np.cos(angle) * x + np.sin(angle) * y) + phase)
    return waves


def _uniform(rng: np.random.Generator, samples: int, low: float, high: float, channels: int | None = None) -> Floats:
    """One number per picture (or per picture and channel), shaped to be combined with pixels."""
    shape = (samples, 1, 1) if channels is None else (samples, 1, 1, channels)
    return rng.uniform(low, high, shape).astype(np.float32)
