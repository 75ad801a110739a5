"""Labelled pictures for a small net: folders of files or arrays on disk become (N, 32, 32, 3) bytes and class numbers.

Pictures of any size are brought to 32 x 32 by averaging areas, whatever their proportions; grey ones get three equal
channels. A picture takes 3 KB of memory. PPM needs no image library, other formats need Pillow. No net is here.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.loader import Loader
from augury.sources.folder import FolderSource, index_folder

SIDE = 32
ENDINGS = (".ppm", ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm")

Progress = Callable[[int, int], None]
"""Called with how many pictures are read, and of how many."""


@dataclass
class Pictures:
    """`x` is (N, 32, 32, 3) bytes, `y` indexes `classes`."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    classes: tuple[str, ...]

    def labelled_like(self, other: Pictures) -> Pictures:
        """The same pictures, numbered by the classes of another set."""
        unknown = sorted(set(self.classes) - set(other.classes))
        if unknown:
            raise ConfigError(f"class {unknown[0]!r} is in the test set and not among those trained on")
        numbers = np.array([other.classes.index(name) for name in self.classes])
        return Pictures(self.x, numbers[self.y], other.classes)


def read_pictures(path: Path, progress: Progress | None = None) -> Pictures:
    """All pictures of a folder with one subfolder per class, of an .npz with x and y, or of x.npy beside y.npy."""
    if not path.exists():
        raise ConfigError(f"{path} does not exist: give a folder of pictures, or an .npz with arrays x and y")
    if path.is_dir() and not (path / "x.npy").is_file():
        return _from_folder(path, progress)
    x, y = _arrays(path)
    return _from_arrays(path, x, y)


# -- folders ---------------------------------------------------------------------------------------------------


def _from_folder(path: Path, progress: Progress | None) -> Pictures:
    """Each file once, through a loader: many reads at a time, and a file that is no picture is named."""
    catalog = index_folder(path, labels="folders", extensions=ENDINGS)
    _check_pillow(path, [catalog.location(id) for id in range(len(catalog))])
    assert catalog.labels is not None
    x = np.empty((len(catalog), SIDE, SIDE, 3), np.uint8)
    done = 0
    source = FolderSource(path, catalog)
    with Loader(
        source,
        64,
        recipe="none",
        shuffle=False,
        epochs=1,
        transform=decode,
        output="numpy",
        rank=0,
        world_size=1,
    ) as loader:
        for pictures, _, ids in loader:
            x[ids] = pictures
            done += len(ids)
            if progress is not None:
                progress(done, len(catalog))
    return _with_classes(x, catalog.labels, catalog.classes)


def _check_pillow(path: Path, files: list[str]) -> None:
    others = [file for file in files if not file.lower().endswith(".ppm")]
    if others and not _has_pillow():
        raise ConfigError(
            f"{path} holds {len(others):,} pictures that are not PPM, such as {others[0]}: "
            "they need Pillow (pip install pillow)"
        )


def _has_pillow() -> bool:
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        return False
    return True


def decode(data: bytes) -> NDArray[np.uint8]:
    """The bytes of a picture file -> (32, 32, 3)."""
    return small(_ppm(data) if data[:2] == b"P6" else _by_pillow(data))


def _by_pillow(data: bytes) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("not a binary PPM; other pictures need Pillow (pip install pillow)") from None
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


# The magic, then three numbers with white space or comments between them, then one white space.
_HEADER = re.compile(rb"P6(?:(?:\s|#[^\n]*\n)+(\d+))(?:(?:\s|#[^\n]*\n)+(\d+))(?:(?:\s|#[^\n]*\n)+(\d+))\s")


def _ppm(data: bytes) -> NDArray[np.uint8]:
    header = _HEADER.match(data)
    if header is None:
        raise ValueError("a PPM picture without a complete header")
    width, height, most = map(int, header.groups())
    if most != 255:
        raise ValueError(f"a PPM picture whose largest value is {most}; only 255 is supported")
    if width < 1 or height < 1 or len(data) - header.end() < width * height * 3:
        raise ValueError(f"a PPM picture of {width} x {height} with only {len(data) - header.end():,} bytes of it")
    return np.frombuffer(data, np.uint8, width * height * 3, header.end()).reshape(height, width, 3)


# -- arrays ----------------------------------------------------------------------------------------------------


def _arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        if path.is_file() and path.suffix.lower() == ".npz":
            return _from_archive(path)
        folder = path if path.is_dir() else path.parent
        if path.is_dir() or path.name == "x.npy":
            x, y = (np.load(folder / name, allow_pickle=False) for name in ("x.npy", "y.npy"))
            return x, y
    except OSError as error:
        raise ConfigError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as arrays: {error}") from error
    raise ConfigError(f"{path} is no dataset: give a folder of pictures, an .npz with x and y, or x.npy beside y.npy")


def _from_archive(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    archive = np.load(path, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError("this is one array, not an .npz of several")
    with archive:
        if not {"x", "y"} <= set(archive.files):
            held = ", ".join(archive.files) or "nothing"
            raise ConfigError(f"{path} holds {held}: it needs the arrays x (pictures) and y (labels)")
        return archive["x"], archive["y"]


def _from_arrays(path: Path, x: NDArray[Any], y: NDArray[Any]) -> Pictures:
    if x.dtype != np.uint8 or not (x.ndim == 3 or (x.ndim == 4 and x.shape[3] == 3)) or 0 in x.shape:
        raise ConfigError(f"{path}: x must be uint8 of shape (N, H, W, 3) or (N, H, W), not {x.dtype} of {x.shape}")
    if y.shape not in ((len(x),), (len(x), 1)) or y.dtype.kind not in "iu":
        raise ConfigError(f"{path}: y must be {len(x):,} whole numbers, one per picture, not {y.dtype} of {y.shape}")
    names, labels = np.unique(y.reshape(-1), return_inverse=True)
    small_x = x if x.shape[1:] == (SIDE, SIDE, 3) else np.stack([small(picture) for picture in x])
    return _with_classes(small_x, labels, [str(name) for name in names])


def _with_classes(x: NDArray[np.uint8], y: NDArray[Any], classes: Any) -> Pictures:
    return Pictures(x, np.asarray(y, np.int64), tuple(classes))


# -- sizes -----------------------------------------------------------------------------------------------------


def small(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Any picture, coloured or grey, as (32, 32, 3)."""
    if picture.ndim == 2:
        picture = np.repeat(picture[..., None], 3, axis=2)
    height, width = picture.shape[:2]
    if (height, width) == (SIDE, SIDE):
        return picture
    rows = np.tensordot(_areas(height), picture.astype(np.float32), (1, 0))
    both = np.einsum("ow,hwc->hoc", _areas(width), rows)
    rounded: NDArray[np.uint8] = np.clip(np.rint(both), 0, 255).astype(np.uint8)
    return rounded


@cache
def _areas(length: int) -> NDArray[np.float32]:
    """(32, length): how much of each old pixel lies below each new one; every row adds up to one."""
    edges = np.linspace(0, length, SIDE + 1)
    old = np.arange(length)
    shared = np.minimum(edges[1:, None], old + 1) - np.maximum(edges[:-1, None], old)
    areas: NDArray[np.float32] = (np.clip(shared, 0, None) * (SIDE / length)).astype(np.float32)
    return areas
