"""From what the user says (ram, disk, or levels; recipe) to the levels of a cache, with every limit checked first.

The only place that knows how tiers and policies are put together. It decides nothing while training runs.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from augury.cache import Cache, Level
from augury.distributed import Place, local_place
from augury.errors import AuguryWarning, ConfigError
from augury.gather import row_bytes
from augury.packages import PackagedSource, PackageStore, Packer, check_apart
from augury.recipes import Recipe, policy_rng
from augury.sources import Source
from augury.storage import Storage
from augury.tiers import Tier
from augury.tiers.directory import empty_shares_beyond
from augury.tiers.disk import DiskTier
from augury.tiers.memory import memory_tier
from augury.trace import Recorder
from augury.units import Size, format_size, parse_size

Disk: TypeAlias = str | tuple[str | os.PathLike[str], Size]
"""Where and how much: "/nvme/augury:200GB" or ("/nvme/augury", "200GB")."""

Levels: TypeAlias = str | os.PathLike[str] | Storage
"""The same for all levels, with their throughputs: a TOML file, or what was read from one."""

LOADS = 4 << 20
"""Bytes of the read-ahead window, at least, where packages of a megabyte pass through it."""
TAPPED = 4
"""One part in so many of the read-ahead window is for bytes that wait to be packed."""
AHEAD = 8
"""Batches that the read-ahead window holds by default: covers the latency of 32 readers for batches of 16 or more."""


class Memory(NamedTuple):
    """How `ram=` is divided."""

    tier: int
    window: int
    filling: int = 0
    """For samples on their way into a level before anybody has asked for them."""


class Limits(NamedTuple):
    """What the user grants, in whichever way it was said."""

    ram: Size | None
    disk: Disk | None
    storage: Storage | None = None

    @property
    def has_memory(self) -> bool:
        """Whether samples may be held in memory."""
        return self.storage is None or self.ram is not None


def limits(ram: Size | None, disk: Disk | None, levels: Levels | None) -> Limits:
    """`ram` and `disk`, or both from `levels`."""
    if levels is None:
        return Limits(ram, disk)
    if ram is not None or disk is not None:
        raise ConfigError("levels= says how much memory and disk there is: leave out ram= and disk= beside it")
    storage = levels if isinstance(levels, Storage) else Storage.load(levels)
    found = {level.name: level for level in storage.levels}
    if "disk" in found and found["disk"].path is None:
        raise ConfigError('levels=: say where the disk level is, like path = "/nvme/augury"')
    memory = found["ram"].capacity if "ram" in found else None
    return Limits(memory, (found["disk"].path or "", found["disk"].capacity) if "disk" in found else None, storage)


def divide_memory(
    source: Source,
    batch_size: int,
    ram: Size | None,
    readahead: Size | None,
    holds: bool,
    fills: bool = False,
    loads: bool = False,
) -> Memory:
    """The memory tier's share and the read-ahead window's; together they are `ram`.

    A recipe that `fills` levels beside training does so within a quarter of the window. One that `loads` packages
    should find room for some of them among the batches.
    """
    sizes = source.catalog.sizes
    total = source.catalog.total_bytes
    wanted = AHEAD * batch_size * max(1, total // len(sizes))
    if ram is None:
        limit = min(total + wanted, _available_memory() // 4)
    else:
        limit = parse_size(ram, "ram", total)
    largest = source.catalog.uniform_size or int(sizes.max())
    if readahead is None:
        window = min(wanted, limit // 4) if holds else min(wanted, limit)
        window = max(window, min(largest, limit), min(LOADS, limit // 4) if loads else 0)
    else:
        window = parse_size(readahead, "readahead", total)
    if window < largest:
        what = "ram" if readahead is None else "readahead"
        raise ConfigError(
            f"a read-ahead window of {format_size(window)} cannot hold the largest sample ({format_size(largest)}): "
            f"give a larger {what}="
        )
    if window > limit:
        raise ConfigError(f"readahead={format_size(window)} is part of ram={format_size(limit)} and cannot exceed it")
    filling = min(window // 4, window - largest) if fills else 0
    return Memory(limit - window if holds else 0, window - filling, filling)


def open_tiers(source: Source, memory: int, disk: Disk | None, place: Place) -> list[Tier]:
    """Up to two tiers for one source, the fastest first. `place` names this process's share of the disk."""
    sizes = source.catalog.sizes
    tiers: list[Tier] = []
    if memory > 0:
        _check_holds("ram", memory, sizes, "after the read-ahead window, ")
        tiers.append(memory_tier(len(sizes), sizes, memory, row_bytes(source)))
    if disk is not None:
        tiers.append(_disk_tier(source, disk, place))
    return tiers


def open_cache(
    source: Source, recipe: Recipe, tiers: Sequence[Tier], seed: int, recorder: Recorder | None = None
) -> Cache:
    """A cache over these tiers, each with its own policy."""
    levels = []
    for depth, tier in enumerate(tiers):
        costs = tier.footprint(source.catalog.sizes)
        _warn_of_larger(tier, costs)
        policy = recipe.policy_at(depth)(costs, tier.capacity, policy_rng(seed, depth))
        levels.append(Level(policy if recorder is None else recorder.wrap(policy, depth, costs), tier))
    return Cache(levels, source.catalog.sizes, _content(source), recipe)


def open_own_cache(
    source: Source,
    recipe: Recipe,
    memory: int,
    disk: Disk | None,
    header: dict[str, Any],
    trace: str | os.PathLike[str] | None,
    keep: Callable[[Any], Any],
) -> tuple[Cache, Recorder | None]:
    """A loader's own cache and, with `trace`, its log. Whatever is opened is handed to `keep`, which closes it."""
    tiers = open_tiers(source, memory, disk, local_place())
    for tier in tiers:
        keep(tier)
    # Only now: another job that has the disk may be recording to the same file.
    recorder = None if trace is None else keep(Recorder(trace, header, source.catalog.sizes))
    return open_cache(source, recipe, tiers, header["seed"], recorder), recorder


def open_packages(
    source: Source, packages: Disk | PackageStore | None, place: Place, keep: Callable[[Any], Any]
) -> tuple[Source, Packer | None]:
    """The source with a store for packages beside it, and who writes them. What is opened is handed to `keep`.

    Each of several ranks has a directory of its own: all machines see the same store.
    """
    if packages is None:
        return source, None
    if isinstance(packages, PackageStore):
        store = packages
    else:
        directory, size = _parse_place("packages", packages)
        check_apart(directory, source.catalog.root)
        room = parse_size(size, "packages", source.catalog.total_bytes) // place.world_size
        own = directory if place.world_size == 1 else directory.with_name(f"{directory.name}-{place.rank}")
        store = keep(PackageStore(own, room, source.catalog.fingerprint))
    packaged = PackagedSource(source, store)
    return packaged, keep(Packer(packaged, store))


def tapped(memory: Memory, source: Source) -> Memory:
    """The same with room for bytes that wait to be packed, if there are packages."""
    if not isinstance(source, PackagedSource):
        return memory
    source.tap.budget = min(source.tap.budget, memory.window // TAPPED)
    return memory._replace(window=memory.window - source.tap.budget)


def disk_wish(disk: Disk | None, total: int, samples: int) -> int:
    """How much of a node's disk a job would have: as `disk=` says, or all its data, in whole blocks."""
    if disk is None:
        return total + samples * 4096
    return parse_size(_parse_place("disk", disk)[1], "disk", total)


def check_shared(cache: Cache, source: Source) -> Cache:
    """Another loader's cache, if it is for as many samples."""
    samples = len(source.catalog)
    if cache.samples != samples:
        raise ConfigError(
            f"the cache is for {cache.samples} samples and this data has {samples}: share only over one dataset"
        )
    if cache.content != _content(source):
        raise ConfigError(
            "the cache holds decoded pictures (keep='decoded'), and this loader would take them for samples as stored: "
            "give it data=other.source, where `other` made the cache, and only the transforms that come after the cache"
            if cache.content
            else "the cache holds samples as stored, and this data is decoded before it is: give it its own cache"
        )
    return cache


def _content(source: Source) -> str:
    """What is made of samples before they are held."""
    return source.catalog.fingerprint if source.catalog.kind == "decoded" else ""


def _disk_tier(source: Source, disk: Disk, place: Place) -> DiskTier:
    directory, size = _parse_place("disk", disk)
    capacity = parse_size(size, "disk", source.catalog.total_bytes) // place.world_size
    sizes = source.catalog.sizes
    _check_holds("disk", capacity, sizes, f"shared by {place.world_size} processes, " if place.world_size > 1 else "")
    tier = DiskTier(directory, capacity, sizes, source.catalog.fingerprint, share=str(place.rank))
    empty_shares_beyond(directory, place.world_size)
    return tier


def _parse_place(name: str, given: Disk) -> tuple[Path, Size]:
    wrong = ConfigError(f'{name}={given!r}: write a directory and a limit, like "/nvme/augury:200GB"')
    if isinstance(given, str):
        directory, colon, size = given.rpartition(":")
        if not colon or not directory:
            raise wrong
        return Path(directory).expanduser(), size
    if not isinstance(given, tuple) or len(given) != 2:
        raise wrong
    return Path(given[0]).expanduser(), given[1]


def _check_holds(what: str, capacity: int, sizes: NDArray[np.int64], why: str) -> None:
    smallest = int(sizes.min())
    if capacity < smallest:
        raise ConfigError(
            f"{what}: {why}{format_size(capacity)} are left for the cache, and the smallest sample has "
            f"{format_size(smallest)}: give more {what}=, or recipe='none' for no cache"
        )


def _warn_of_larger(tier: Tier, costs: NDArray[np.int64]) -> None:
    larger = int(np.count_nonzero(costs > tier.capacity))
    if larger:
        warnings.warn(
            f"{larger} of {len(costs)} samples are larger than the {tier.name} tier "
            f"({format_size(tier.capacity)}) and will always be read from the source",
            AuguryWarning,
            stacklevel=4,
        )


def _available_memory() -> int:
    """What this process may still use: of the machine, or of its container if that is less."""
    with open("/proc/meminfo") as file:
        lines = dict(line.split(":", 1) for line in file)
    available = int(lines["MemAvailable"].split()[0]) * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return available
    return available if limit == "max" else max(0, min(available, int(limit) - used))
