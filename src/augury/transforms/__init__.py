"""Decode, crop, flip, normalise: pictures for training, alike in every run with the same seed.

    from augury.transforms import Compose, Decode, Normalize, RandomHorizontalFlip, RandomResizedCrop, ToFloat

`steps` are the transforms, `pipeline` puts them in a row, `chance` draws for (seed, epoch, id, visit), `images` calls
the image libraries, `keep` decides what a cache may keep. Needs `pip install augury[images]`; importing it does not.
Caches, threads and batches are not here: whoever runs a transform brings those.
"""

from __future__ import annotations

from augury.transforms.chance import Chance, uniform
from augury.transforms.pipeline import Compose, Seeded
from augury.transforms.steps import (
    CenterCrop,
    Decode,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToFloat,
)

__all__ = [
    "CenterCrop",
    "Chance",
    "Compose",
    "Decode",
    "Normalize",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "Seeded",
    "ToFloat",
    "uniform",
]
