"""The transforms themselves: what each makes of one picture, and how many random numbers it wants for that.

A step decides with the numbers it is given and has no state, so any thread may run it. Who draws the numbers, in which
order steps run and which of them are joined is pipeline.py's business; pixels are images.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.ids import as_ids
from augury.sources import Form
from augury.transforms.chance import Chance, uniform
from augury.transforms.images import Window, as_array, as_image, decoded, libraries, resized, write_channels

if TYPE_CHECKING:
    from PIL.Image import Image

Numbers: TypeAlias = Sequence[float]
"""In [0, 1), as many as a step has asked for."""
Size: TypeAlias = int | tuple[int, int]

_ATTEMPTS = 10
"""How often a random crop may turn out not to fit before the largest one that does is taken, as torchvision has it."""


class Step:
    """One transform of one sample."""

    numbers: int = 0
    """Random numbers that it wants per sample; 0: its result depends on the sample alone."""
    lasting: bool = False
    """Whether `keep="decoded"` may keep its result: not what is random, nor what makes pixels take more room."""

    def run(self, value: Any, numbers: Numbers, out: NDArray[Any] | None = None) -> Any:
        """What becomes of a picture (a Pillow image or an array); `out` has room for the pipeline's result."""
        raise NotImplementedError

    def form(self, given: Form | None) -> Form | None:
        """Type and shape of the result, if all results have the same; `given` is those of what it is run on."""
        return given

    def __call__(self, value: Any, *, seed: int = 0, epoch: int = 0, id: int = 0) -> Any:
        """One sample, as an array: what the loader would make of it if this step were its transform."""
        numbers = uniform(Chance(seed, epoch), as_ids([id]), 0, self.numbers)[0].tolist()
        return as_array(self.run(value, numbers))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Decode(Step):
    """The bytes of a picture's file -> (height, width, 3), RGB, uint8. Grey pictures get three equal channels.

    JPEGs are decoded by simplejpeg, everything else (PNG, WebP, CMYK, JPEGs with small faults) by Pillow. If a random
    crop or Resize follows and makes what it takes at most half as large, the picture is decoded at half, a quarter or
    an eighth of its size to begin with: faster, and all but the same. `reduce=False` never does that. A rotation noted
    in EXIF is not applied.
    """

    lasting = True

    def __init__(self, reduce: bool = True) -> None:
        libraries()
        self.reduce = bool(reduce)

    def run(self, value: Any, numbers: Numbers, out: NDArray[Any] | None = None) -> Image:
        return decoded(value)

    def form(self, given: Form | None) -> Form | None:
        return None


class Part(Step):
    """What is a part of the picture, at another size. If it follows Decode, the two are one."""

    def window(self, height: int, width: int, numbers: Numbers) -> Window:
        """Which part of a picture of this size."""
        raise NotImplementedError

    def run(self, value: Any, numbers: Numbers, out: NDArray[Any] | None = None) -> Image:
        image = as_image(value)
        return resized(image, self.window(image.height, image.width, numbers))


class Resize(Part):
    """To (height, width); or, given one number, so that the shorter side has this length and the proportions stay."""

    lasting = True

    def __init__(self, size: Size) -> None:
        libraries()
        pair = _pair(size)
        self.size = int(size) if isinstance(size, int | np.integer) else pair

    def window(self, height: int, width: int, numbers: Numbers) -> Window:
        if not isinstance(self.size, int):
            return Window(0, 0, height, width, *self.size)
        short, long = sorted((height, width))
        other = max(1, self.size * long // short)
        new = (self.size, other) if height <= width else (other, self.size)
        return Window(0, 0, height, width, *new)

    def form(self, given: Form | None) -> Form | None:
        return None if isinstance(self.size, int) else _pixels(self.size)


class CenterCrop(Step):
    """The middle of the picture, (height, width) or a square; black where the picture is smaller."""

    lasting = True

    def __init__(self, size: Size) -> None:
        libraries()
        self.size = _pair(size)

    def run(self, value: Any, numbers: Numbers, out: NDArray[Any] | None = None) -> Image:
        image = as_image(value)
        height, width = self.size
        top, left = round((image.height - height) / 2), round((image.width - width) / 2)
        return image.crop((left, top, left + width, top + height))

    def form(self, given: Form | None) -> Form:
        return _pixels(self.size)


class RandomResizedCrop(Part):
    """A part of random size, proportions and place, scaled to `size`.

    Its area is a share of the picture's between the limits of `scale`, evenly; its width over its height lies between
    those of `ratio`, evenly on a logarithmic scale. As in torchvision, and unlike HDMLP, whose ratio is relative to the
    picture's own.
    """

    numbers = 2 * _ATTEMPTS + 2

    def __init__(
        self, size: Size, scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
    ) -> None:
        libraries()
        self.size, self.scale, self.ratio = _pair(size), _range("scale", scale), _range("ratio", ratio)

    def window(self, height: int, width: int, numbers: Numbers) -> Window:
        down, across = numbers[:2]
        part_height, part_width = self._extent(height, width, numbers[2:])
        top, left = int(down * (height - part_height + 1)), int(across * (width - part_width + 1))
        return Window(top, left, part_height, part_width, *self.size)

    def _extent(self, height: int, width: int, numbers: Numbers) -> tuple[int, int]:
        (least, most), (narrow, wide) = self.scale, self.ratio
        low, high = log(narrow), log(wide)
        for at in range(0, 2 * _ATTEMPTS, 2):
            area = height * width * (least + numbers[at] * (most - least))
            ratio = exp(low + numbers[at + 1] * (high - low))
            part_width, part_height = round(sqrt(area * ratio)), round(sqrt(area / ratio))
            if 0 < part_width <= width and 0 < part_height <= height:
                return part_height, part_width
        ratio = min(max(width / height, narrow), wide)  # the picture's own, or the nearest allowed
        return max(1, min(height, round(width / ratio))), max(1, min(width, round(height * ratio)))

    def form(self, given: Form | None) -> Form:
        return _pixels(self.size)


class RandomHorizontalFlip(Step):
    """Left becomes right, with probability `p`."""

    numbers = 1
    _upside_down = False

    def __init__(self, p: float = 0.5) -> None:
        libraries()
        if not 0 <= p <= 1:
            raise ConfigError(f"p={p!r}: a probability is from 0 to 1")
        self.p = float(p)

    def run(self, value: Any, numbers: Numbers, out: NDArray[Any] | None = None) -> Image:
        image = as_image(value)
        if numbers[0] >= self.p:
            return image
        ways = libraries()[1].Transpose
        return image.transpose(ways.FLIP_TOP_BOTTOM if self._upside_down else ways.FLIP_LEFT_RIGHT)


class RandomVerticalFlip(RandomHorizontalFlip):
    """Top becomes bottom, with probability `p`."""

    _upside_down = True


class ToFloat(Step):
    """(height, width, 3) of 0 to 255 -> (3, height, width) of 0 to 1, float32: what torch's layers take."""

    def run(self, value: Any, numbers: Numbers, out: NDArray[Any] | None = None) -> NDArray[np.float32]:
        image = as_image(value)
        result = np.empty((3, image.height, image.width), np.float32) if out is None else out
        write_channels(image, result)
        return np.divide(result, np.float32(255), out=result)

    def form(self, given: Form | None) -> Form | None:
        if given is None or len(given.shape) != 3:
            return None
        height, width, channels = given.shape
        return Form(np.dtype(np.float32), (channels, height, width))


class Normalize(Step):
    """(x - mean) / std per channel, after ToFloat."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (tuple(float(each) for each in given) for given in (mean, std))
        if len(self.mean) != 3 or len(self.std) != 3 or not all(self.std):
            raise ConfigError(f"Normalize({mean!r}, {std!r}): give three means and three deviations that are not 0")

    def run(self, value: Any, numbers: Numbers, out: NDArray[Any] | None = None) -> NDArray[np.float32]:
        if not isinstance(value, np.ndarray) or value.dtype != np.float32 or value.ndim != 3 or len(value) != 3:
            raise TypeError("Normalize takes what ToFloat() gives: put ToFloat() before it")
        mean, std = (np.array(each, np.float32).reshape(3, 1, 1) for each in (self.mean, self.std))
        centred = np.subtract(value, mean, out=out)
        return np.divide(centred, std, out=centred)


def _pixels(size: tuple[int, int]) -> Form:
    return Form(np.dtype(np.uint8), (*size, 3))


def _pair(size: Size) -> tuple[int, int]:
    """(height, width), also of one number."""
    pair = (size, size) if isinstance(size, int | np.integer) else tuple(size)
    if len(pair) != 2 or not all(isinstance(each, int | np.integer) and each > 0 for each in pair):
        raise ConfigError(f"size={size!r}: give a number of pixels, or (height, width)")
    return int(pair[0]), int(pair[1])


def _range(name: str, limits: tuple[float, float]) -> tuple[float, float]:
    low, high = limits
    if not 0 < low <= high or (name == "scale" and high > 1):
        most = ", at most 1" if name == "scale" else ""
        raise ConfigError(f"{name}={limits!r}: give two positive numbers{most}, the lower one first")
    return float(low), float(high)
