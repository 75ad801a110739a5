"""From `node=` to a cache in this machine's node: found, spoken to and joined, or a clear word why not."""

from __future__ import annotations

import itertools
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from blake3 import blake3

from augury.buffers import BufferPool
from augury.cache import Cache
from augury.digests import digests_of, known
from augury.errors import AuguryWarning, ConfigError
from augury.fetch import Fetcher
from augury.gather import Gatherer
from augury.node.client import NodeGone
from augury.node.config import VARIABLE, socket_of
from augury.node.gather import RemoteGatherer
from augury.node.remote import Membership, RemoteCache
from augury.sources import Source

_numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def attach(
    node: str | os.PathLike[str] | None, source: Source, membership: Membership, patient: bool = False
) -> RemoteCache | None:
    """The node's cache for this data; None where no node is asked for, or none is there and none need be.

    Who is `patient` knows that there was a node, and does without it until it is back.
    """
    wanted = socket_of(node)
    if wanted is None:
        return None
    path, needed = wanted
    if "auto" in (node, os.environ.get(VARIABLE)) and not patient and not _exists(path):
        return None  # that there is none needs no word
    digests = digests_of(source)
    if digests is None:
        _complain(_undigested(source), needed)
        return None
    try:
        return RemoteCache(path, digests, source.catalog.sizes, "", membership, patient)
    except NodeGone as error:
        hint = f"; start one with: augury serve --socket {path}" if not _exists(path) else ""
        _complain(f"{error}{hint}", needed)
        return None


def open_gatherer(source: Source, cache: Cache, fetcher: Fetcher, buffers: BufferPool, admit: bool = True) -> Gatherer:
    """What makes batches through a cache, wherever that is."""
    if isinstance(cache, RemoteCache):
        return RemoteGatherer(source, cache, fetcher, buffers, admit)
    return Gatherer(source, cache, fetcher, buffers, admit)


def job_token(source: Source, recipe: str, seed: int) -> bytes:
    """A name for a new job: the same in all processes that a launcher has started, for the same data and recipe."""
    what = f"{source.catalog.fingerprint} {recipe} {seed}"
    number = next(_numbers[what])
    launch = [os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")]
    if int(os.environ.get("WORLD_SIZE", "1") or 1) < 2 or not any(launch):
        return os.urandom(16)
    return blake3("\0".join([*launch, str(os.getppid()), what, str(number)]).encode()).digest(16)


def job_name(source: Source) -> str:
    """How people see a job: its data and its process."""
    root = str(source.catalog.root)
    return f"{Path(root).name or root}-{os.getpid()}"[:100]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # in a directory that is closed to this user
        return True


def _undigested(source: Source) -> str:
    catalog = source.catalog
    if catalog.kind in ("decoded", "dataset"):
        return (
            "a node keeps samples as stored: leave out keep='decoded', and give the loader files rather than a dataset"
        )
    if catalog.names is None:
        return "the data has no digests: source.catalog.digests = augury.digests.digest_samples(source, range(N))"
    lacking = len(catalog) if catalog.digests is None else int(np.count_nonzero(~known(catalog.digests)))
    return (
        f"{lacking} of {len(catalog)} samples have no digest, by which a node knows them: make them with: "
        f"{catalog.digest_command}"
    )


def _complain(reason: str, needed: bool) -> None:
    if needed:
        raise ConfigError(f"node=: {reason}")
    warnings.warn(f"this process goes on with a cache of its own: {reason}", AuguryWarning, stacklevel=5)
