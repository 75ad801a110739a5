"""CIFAR-10 from the packed files that benchmarks are given with --data. No measurement lives here.

The files are cifar10_train_0.zip, cifar10_train_1.zip and cifar10_test.zip: in each, labels.npy and lossless WebP
mosaics of 50 x 50 pictures, row by row. Unpacking takes Pillow and some seconds, so the arrays are kept in the
directory for temporary files (184 MB) and found there the next time.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

PARTS = {"train": ("cifar10_train_0.zip", "cifar10_train_1.zip"), "test": ("cifar10_test.zip",)}
SAMPLES = {"train": 50_000, "test": 10_000}
SIDE, ROW = 32, 50


class Cifar(NamedTuple):
    """Pictures (N, 32, 32, 3) and labels 0 to 9."""

    x_train: Bytes
    y_train: Bytes
    x_test: Bytes
    y_test: Bytes


def load(directory: Path) -> Cifar:
    """All of CIFAR-10. Exits with one line where that cannot work."""
    missing = [name for names in PARTS.values() for name in names if not (directory / name).is_file()]
    if missing:
        raise SystemExit(f"error: --data {directory} holds no {', '.join(missing)}")
    kept = _place(directory)
    if not kept.is_dir():
        _keep(kept, _unpack(directory))
    return Cifar(*(np.load(kept / f"{name}.npy") for name in Cifar._fields))


def _place(directory: Path) -> Path:
    """Of these files, as they are now, and of this user: nobody reads what another left there."""
    about = [(name, (directory / name).stat()) for names in PARTS.values() for name in names]
    text = f"{directory.resolve()} " + " ".join(f"{name} {it.st_size} {it.st_mtime_ns}" for name, it in about)
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir(), f"augury-cifar10-{os.getuid()}-{digest}")


def _keep(place: Path, cifar: Cifar) -> None:
    """Whole or not at all: written aside, then renamed."""
    aside = Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=place.parent))
    try:
        for name, array in cifar._asdict().items():
            np.save(aside / f"{name}.npy", array)
        aside.rename(place)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _unpack(directory: Path) -> Cifar:
    arrays = []
    for split, names in PARTS.items():
        parts = [_part(directory / name) for name in names]
        x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
        if len(x) != len(y) or len(x) != SAMPLES[split]:
            raise SystemExit(f"error: {directory}: {split} has {len(x):,} pictures and {len(y):,} labels")
        arrays += [x, y.astype(np.uint8)]
    return Cifar(*arrays)


def _part(path: Path) -> tuple[Bytes, Bytes]:
    try:
        from PIL import Image
    except ImportError:
        raise SystemExit("error: CIFAR-10 is unpacked with Pillow: pip install 'augury[bench]'") from None
    pictures = []
    with zipfile.ZipFile(path) as packed:
        labels = np.load(io.BytesIO(packed.read("labels.npy")), allow_pickle=False)
        for name in sorted(name for name in packed.namelist() if name.endswith(".webp")):
            mosaic = np.asarray(Image.open(io.BytesIO(packed.read(name))).convert("RGB"))
            tiles = mosaic.reshape(ROW, SIDE, ROW, SIDE, 3).swapaxes(1, 2)
            pictures.append(tiles.reshape(-1, SIDE, SIDE, 3))
    return np.concatenate(pictures), labels
