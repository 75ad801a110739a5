"""Pictures from bytes, and parts of pictures at other sizes: the only place that calls simplejpeg and Pillow.

Both are loaded when first needed. Between decoding and the end of a pipeline a picture is a Pillow image of mode RGB.
Decoding, resizing and flipping release the interpreter lock (docs/decisions/0007-transforms.md). No chance lives here.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

_DEEP = ("I", "F")
"""Pillow's modes of more than eight bits per channel begin so. It would clip them, mostly to white."""
_COLOURS = ("YCbCr", "RGB", "Gray")
"""What simplejpeg turns into RGB; of other colours (CMYK, YCCK) it would make something else without a word."""
_SMALLER = (8, 4, 2)
"""Fractions at which libjpeg-turbo decodes with vector instructions, and faster than in full."""


class Window(NamedTuple):
    """A part of a picture, and the size it shall have."""

    top: int
    left: int
    height: int
    width: int
    new_height: int
    new_width: int

    @property
    def reduction(self) -> int:
        """By how much the picture may be decoded smaller so that the part still has all the pixels wanted of it."""
        spare = min(self.height // self.new_height, self.width // self.new_width)
        return next((times for times in _SMALLER if times <= spare), 1)


Choice: TypeAlias = Callable[[int, int], Window]
"""Which part of a picture of this height and width is wanted."""


@cache
def libraries() -> tuple[ModuleType, ModuleType]:
    """simplejpeg and Pillow's Image."""
    try:
        import simplejpeg
        from PIL import Image
    except ImportError as error:
        raise ConfigError(f"transforms need simplejpeg and Pillow ({error}): pip install augury[images]") from error
    return simplejpeg, Image


def decoded(data: Any) -> Image:
    """The whole picture."""
    size = _jpeg_size(data)
    pixels = None if size is None else _jpeg(data, *size, 1)
    return _by_pillow(data) if pixels is None else _cut(pixels, 0, 0, *pixels.shape[:2])


def decoded_part(data: Any, choose: Choice, reduce: bool) -> Image:
    """The part that `choose` wants of the picture, decoded no larger than needed if `reduce`."""
    size = _jpeg_size(data)
    if size is not None:
        window = choose(*size)
        times = window.reduction if reduce else 1
        pixels = _jpeg(data, *size, times)
        if pixels is not None:
            return _cut_and_scaled(pixels, window, times)
    image = _by_pillow(data)
    return resized(image, choose(image.height, image.width))


def resized(image: Image, window: Window) -> Image:
    """The part, scaled: averaging where it shrinks."""
    top, left, height, width = window[:4]
    if (height, width) != (image.height, image.width):
        image = image.crop((left, top, left + width, top + height))
    return _scaled(image, window)


def as_image(value: Any) -> Image:
    """A picture as Pillow sees it."""
    _, pillow = libraries()
    if isinstance(value, pillow.Image):
        return value if value.mode == "RGB" else _in_colours(value)
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] == 3:
        image: Image = pillow.fromarray(value)
        return image
    hint = ": Decode() comes first" if isinstance(value, bytes | bytearray | memoryview) else ""
    raise TypeError(f"a picture is an array (height, width, 3) of uint8, not {_described(value)}{hint}")


def as_array(value: Any) -> Any:
    """A Pillow image as an array (height, width, 3); anything else as it is."""
    _, pillow = libraries()
    if not isinstance(value, pillow.Image):
        return value
    pixels = bytearray(value.tobytes())  # a bytearray, because whoever gets the array may write to it
    return np.frombuffer(pixels, np.uint8).reshape(value.height, value.width, 3)


def write(image: Image, out: NDArray[np.uint8]) -> None:
    """The picture's pixels into an array (height, width, 3)."""
    np.copyto(out, np.frombuffer(image.tobytes(), np.uint8).reshape(out.shape))


def write_channels(image: Image, out: NDArray[np.float32]) -> None:
    """The picture into an array (3, height, width): channel by channel is faster than turning it round."""
    for channel, name in enumerate("RGB"):
        out[channel] = np.frombuffer(image.tobytes("raw", name), np.uint8).reshape(out.shape[1:])


def _jpeg_size(data: Any) -> tuple[int, int] | None:
    """Height and width of a JPEG that simplejpeg can turn into RGB."""
    jpeg, _ = libraries()
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"Decode() takes the bytes of a picture's file, not {_described(data)}")
    if data[:2] != b"\xff\xd8":
        return None
    try:
        height, width, colours, _ = jpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    return (height, width) if colours in _COLOURS else None


def _jpeg(data: Any, height: int, width: int, times: int) -> NDArray[np.uint8] | None:
    """The picture, so many times smaller; None if simplejpeg objects: Pillow forgives more, and says why if not."""
    jpeg, _ = libraries()
    least = -(-height // times), -(-width // times)
    try:
        pixels: NDArray[np.uint8] = jpeg.decode_jpeg(data, "RGB", False, False, *least, times)
    except ValueError:
        return None
    return pixels


def _cut(pixels: NDArray[np.uint8], top: int, left: int, height: int, width: int) -> Image:
    """A part as a Pillow image; its rows are picked out of the picture's, so that only the part is copied."""
    _, pillow = libraries()
    stride = pixels.strides[0]
    rows = pixels.reshape(-1)[top * stride + left * 3 :]
    image: Image = pillow.frombuffer("RGB", (width, height), rows, "raw", "RGB", stride, 1)
    return image


def _cut_and_scaled(pixels: NDArray[np.uint8], window: Window, times: int) -> Image:
    """The part of a picture that was decoded so many times smaller; its edges may lie within a pixel."""
    top, left = window.top // times, window.left // times
    bottom, right = -(-(window.top + window.height) // times), -(-(window.left + window.width) // times)
    image = _cut(pixels, top, left, bottom - top, right - left)
    if times == 1:
        return _scaled(image, window)
    down, across = window.top / times - top, window.left / times - left
    return _scaled(image, window, (across, down, across + window.width / times, down + window.height / times))


def _scaled(image: Image, window: Window, box: tuple[float, float, float, float] | None = None) -> Image:
    bilinear = libraries()[1].Resampling.BILINEAR
    return image.resize((window.new_width, window.new_height), bilinear, box)


def _by_pillow(data: Any) -> Image:
    _, pillow = libraries()
    try:
        with pillow.open(io.BytesIO(data)) as image:
            return _in_colours(image)
    except pillow.UnidentifiedImageError:
        raise ValueError(f"{len(data)} bytes that are no picture Pillow knows") from None


def _in_colours(image: Image) -> Image:
    if image.mode.startswith(_DEEP):
        raise ValueError(f"a picture of mode {image.mode} has more than 8 bits per channel: decode it by a function")
    return image.convert("RGB")


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.shape} of {value.dtype}"
    return f"a {type(value).__name__}"
