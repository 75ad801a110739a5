"""Augury: a training-data cache and loader for deep learning.

*The more you know, the less cache you need.* `import augury` loads NumPy and nothing else; each name below loads
what it needs when it is first used. `augury.transforms` decodes and augments pictures; `augury.torch` holds what is for
torch's own DataLoader.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from augury import transforms as transforms
    from augury.batch import Batch as Batch
    from augury.cache import Cache as Cache
    from augury.catalog import Catalog as Catalog
    from augury.errors import AuguryError as AuguryError
    from augury.errors import AuguryWarning as AuguryWarning
    from augury.errors import BadFeedback as BadFeedback
    from augury.loader import Loader as Loader
    from augury.recipes import Recipe as Recipe
    from augury.sources import open_source as open_source
    from augury.sources.array import ArraySource as ArraySource
    from augury.sources.dataset import DatasetSource as DatasetSource
    from augury.sources.folder import FolderSource as FolderSource
    from augury.sources.packed import PackedSource as PackedSource
    from augury.sources.slow import SlowSource as SlowSource

__version__ = "0.1.0"

_HOMES = {
    "ArraySource": "augury.sources.array",
    "AuguryError": "augury.errors",
    "AuguryWarning": "augury.errors",
    "BadFeedback": "augury.errors",
    "Batch": "augury.batch",
    "Cache": "augury.cache",
    "Catalog": "augury.catalog",
    "DatasetSource": "augury.sources.dataset",
    "FolderSource": "augury.sources.folder",
    "Loader": "augury.loader",
    "PackedSource": "augury.sources.packed",
    "Recipe": "augury.recipes",
    "SlowSource": "augury.sources.slow",
    "open_source": "augury.sources",
}

__all__ = sorted([*_HOMES, "__version__", "transforms"])


def __getattr__(name: str) -> Any:
    if name == "transforms":
        return importlib.import_module("augury.transforms")
    if name not in _HOMES:
        raise AttributeError(f"module 'augury' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
