"""From whom a sample is read, where both a level and the source have it: the performance model's choice.

The model is the simulator's (sim/model.py), its throughputs are those that were measured. Asked once per run, as the
answer depends on no sample: section 4.3.5 of the HDMLP thesis assumes that everybody reads from the source at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from augury.sim.model import SOURCE, Environment, StorageClass, Throughput, local
from augury.storage import Storage, StorageLevel

_INSTANT = Throughput({1: math.inf})
"""Of a level that nobody has measured: it is taken at its word that it is faster than the source."""


def slower_than_source(storage: Storage | None, names: Sequence[str], nodes: int, readers: int) -> frozenset[int]:
    """Which of the tiers, given by name, a thread reads from more slowly than from the source.

    `readers` threads of each node read ahead, and those that fill levels read beside them.
    """
    if storage is None or storage.source is None:
        return frozenset()
    levels = {level.name: _class(level) for level in storage.levels}
    staging = StorageClass(0, readers, _INSTANT)
    classes = (staging, *(levels.get(name, staging) for name in names))
    model = Environment(nodes, math.inf, math.inf, 0, math.inf, storage.source, classes)
    depths = range(len(names))
    return frozenset(at for at in depths if model.fastest([local(at + 1), SOURCE], model.readers) is SOURCE)


def _class(level: StorageLevel) -> StorageClass:
    return StorageClass(0, level.threads, level.read or _INSTANT, level.write)
