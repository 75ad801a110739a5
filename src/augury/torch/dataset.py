"""Any data behind a cache, as a map-style dataset for torch's DataLoader, also in its worker processes."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from augury import recipes
from augury.batch import Bad, Finisher, OnError, Transform, check_on_error
from augury.buffers import BufferPool
from augury.cache import Cache
from augury.distributed import Place, local_place
from augury.errors import AuguryWarning, ConfigError, InUse
from augury.fetch import READERS, RETRIES, Fetcher
from augury.gather import Gatherer, Raw
from augury.ids import Ids, as_ids
from augury.levels import Disk, disk_wish, divide_memory, open_cache, open_tiers
from augury.metrics import Counts
from augury.policies import Foresight
from augury.sources import Source, open_source
from augury.transforms.chance import Chance
from augury.transforms.keep import Keep, apply_keep
from augury.units import Size


class CachedDataset(Dataset[Any]):
    """Any data behind a cache, as a map-style dataset: items are (sample, label), or samples where nothing is labelled.

    Parameters are those of `augury.Loader`. Under worker processes each worker holds its own share of `ram` and
    `disk`, and all share the catalog by memory map; with `node` all workers and ranks share one cache. `with_ids`
    appends each item's id, for recipes that learn.
    Transforms of `augury.transforms` augment alike in every run if `set_epoch` is called before each epoch, and
    otherwise as torch's own random numbers say.
    ImageFolder's attributes (`classes`, `class_to_idx`, `samples`, `targets`) are there where the data has them.
    """

    def __init__(
        self,
        data: Any,
        *,
        ram: Size | None = None,
        disk: Disk | None = None,
        recipe: str | recipes.Recipe | None = None,
        transform: Transform | None = None,
        keep: Keep = "encoded",
        target_transform: Transform | None = None,
        labels: Any = None,
        seed: int = 0,
        readers: int = READERS,
        retries: int = RETRIES,
        on_error: OnError = "raise",
        with_ids: bool = False,
        node: str | os.PathLike[str] | None = None,
    ) -> None:
        self.source, transform = apply_keep(keep, open_source(data, labels), transform)
        self.recipe = recipes.find(recipe or recipes.DEFAULT)
        if self.recipe.foresight == Foresight.RUN:
            raise ConfigError(
                f"a CachedDataset is not told the order of the run, and recipe {self.recipe.name!r} holds nothing "
                "without it: use augury.Loader, or another recipe"
            )
        if self.recipe.learns:
            warnings.warn(
                f"a CachedDataset cannot be told how training goes: recipe {self.recipe.name!r} keeps what came first. "
                "Use augury.Loader for its hits, or a recipe that need not learn",
                AuguryWarning,
                stacklevel=2,
            )
        self._finish = Finisher(self.source, transform, target_transform, on_error=check_on_error(on_error))
        self._ram, self._disk, self._seed = ram, disk, seed
        self._readers, self._retries, self._with_ids = readers, retries, with_ids
        self._node = node
        self._token = (
            None
            if node is None and not os.environ.get("AUGURY_NODE")
            else _job_token(self.source, self.recipe.name, seed)
        )
        self._anchor: Cache | None = None
        """Keeps the job in the node while worker processes come and go."""
        self._epoch = torch.full((1,), -1).share_memory_()  # type: ignore[no-untyped-call]
        """Shared, so that worker processes that live on see it change; below 0: nobody has said."""
        self._mine: _Mine | None = None
        self._opening = threading.Lock()
        self._memory(Place(0, 1))  # what cannot work is an error here, not in the first batch
        if self._token is not None and (anchor := self._node_cache()) is not None:
            self._anchor = anchor
            self._let_go = weakref.finalize(self, anchor.close)
        else:
            self._token = None  # there is no node: no process looks for one

    def __len__(self) -> int:
        return len(self.source.catalog)

    def __getitem__(self, index: int) -> Any:
        items = self.__getitems__([index])
        if not items:  # an empty answer would look like the end of the dataset
            raise next(bad for bad in self.quarantine if bad.id == index % len(self))
        return items[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """One item per index; torch calls this with a whole batch."""
        mine = self._opened()
        raw = mine.gather(self._checked(indices))
        mine.counts.add(raw.counts)
        usable = self._finish.usable(raw, self._chance())
        mine.note(usable.bad)
        ids = usable.ids.tolist()
        columns = [usable.samples]
        if usable.targets and usable.targets[0] is not None:
            columns.append(usable.targets)
        if self._with_ids:
            columns.append(ids)
        return usable.samples if len(columns) == 1 else list(zip(*columns, strict=True))

    def set_epoch(self, epoch: int) -> None:
        """From now on random transforms draw by (seed, epoch, id). Workers that persist see it, too."""
        if epoch < 0:
            raise ConfigError(f"epoch {epoch}: epochs are counted from 0")
        self._epoch[0] = int(epoch)

    @property
    def classes(self) -> list[str]:
        return list(self.source.catalog.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: at for at, name in enumerate(self.classes)}

    @cached_property
    def targets(self) -> list[Any]:
        labels = self.source.catalog.labels
        if labels is None:
            raise AttributeError("this dataset has no labels")
        listed: list[Any] = labels.tolist()
        return listed

    @cached_property
    def samples(self) -> list[tuple[str, Any]]:
        where = self.source.catalog.location
        return [(where(id), label) for id, label in enumerate(self.targets)]

    def counts(self) -> Counts:
        """What happened to this process's requests (each worker process counts its own)."""
        return Counts() if self._mine is None else self._mine.counts

    @property
    def quarantine(self) -> list[Bad]:
        """Samples that this process could not use, each once."""
        return [] if self._mine is None else self._mine.quarantine

    def close(self) -> None:
        """End this process's threads and give back memory and files."""
        if self._mine is not None:
            self._mine.close()
            self._mine = None
        if self._anchor is not None:
            self._let_go()
            self._anchor = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_mine": None, "_opening": None, "_anchor": None, "_let_go": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._opening = threading.Lock()

    def _chance(self) -> Chance:
        epoch = int(self._epoch[0])
        if not self._finish.by_chance:
            return Chance(self._seed, 0)  # torch's generator is not ours to advance for nothing
        # Who does not say which epoch it is must not get the same pictures in all of them.
        return Chance(self._seed, int(torch.randint(1 << 62, ())) if epoch < 0 else epoch)

    def _checked(self, indices: Sequence[int]) -> Any:
        ids, samples = as_ids(indices), len(self)
        if len(ids) and (ids.min() < -samples or ids.max() >= samples):
            raise IndexError(f"index {ids.min() if ids.min() < 0 else ids.max()} of a dataset of {samples} samples")
        return np.where(ids < 0, ids + samples, ids)

    def _memory(self, where: Place) -> int:
        """What the memory tier of one of several processes may hold. There is no read-ahead here."""
        memory = divide_memory(self.source, 1, self._ram, None, holds=self.recipe.name != "none")
        return (memory.tier + memory.window) // where.world_size if memory.tier else 0

    def _opened(self) -> _Mine:
        """This process's own cache and threads: neither survives a fork, so each process makes its own."""
        with self._opening:
            return self._opened_once()

    def _opened_once(self) -> _Mine:
        if self._mine is None or self._mine.pid != os.getpid():
            info, local = get_worker_info(), local_place()
            workers, worker = (1, 0) if info is None else (info.num_workers, info.id)
            memory = self._memory(Place(worker, workers))
            disk_place = Place(local.rank * workers + worker, local.world_size * workers)
            gatherer = self._through_node()
            if gatherer is None:
                fetcher = Fetcher(self.source, self._readers, self._retries)
                gatherer = Gatherer(self.source, self._open_cache(memory, disk_place), fetcher, BufferPool())
            self._mine = _Mine(gatherer)
        return self._mine

    def _through_node(self) -> Gatherer | None:
        """Batches through this machine's node, if it is asked for and there: all processes share one job."""
        if self._token is None or (cache := self._node_cache(patient=True)) is None:
            return None
        from augury.node.attach import open_gatherer

        return open_gatherer(self.source, cache, Fetcher(self.source, self._readers, self._retries), BufferPool())

    def _node_cache(self, patient: bool = False) -> Cache | None:
        assert self._token is not None
        from augury.node.attach import attach, job_name
        from augury.node.remote import Membership

        whole = self._memory(Place(0, 1))
        wish = disk_wish(self._disk, self.source.catalog.total_bytes, len(self))
        member = Membership(self._token, job_name(self.source), self.recipe, self._seed, whole, wish, mirrors=False)
        return attach(self._node, self.source, member, patient)

    def _open_cache(self, memory: int, disk_place: Place) -> Cache:
        """With the disk, if this process's share of it is free; a cache is no reason to stop."""
        try:
            tiers = open_tiers(self.source, memory, self._disk, disk_place)
        except InUse as error:
            warnings.warn(f"this process goes on without the disk cache: {error}", AuguryWarning, stacklevel=5)
            tiers = open_tiers(self.source, memory, None, disk_place)
        return open_cache(self.source, self.recipe, tiers, self._seed)


def _job_token(source: Source, recipe: str, seed: int) -> bytes:
    from augury.node.attach import job_token

    return job_token(source, recipe, seed)


class _Mine:
    """What belongs to one process."""

    def __init__(self, gatherer: Gatherer) -> None:
        self.pid, self.gatherer = os.getpid(), gatherer
        self.counts = Counts()
        self.quarantine: list[Bad] = []
        self._aside = ThreadPoolExecutor(1, "augury-aside")
        self.close = weakref.finalize(self, _close, os.getpid(), self._aside, gatherer.fetcher, gatherer.cache)

    def gather(self, ids: Ids) -> Raw:
        """One batch of bytes. Ctrl-C interrupts the main thread anywhere: there it shall meet only the waiting for
        this, never a decision half made."""
        if threading.current_thread() is threading.main_thread():
            return self._aside.submit(self.gatherer.now, ids).result()
        return self.gatherer.now(ids)

    def note(self, bad: list[Bad]) -> None:
        known = {error.id for error in self.quarantine} if bad else set()
        self.quarantine.extend(error for error in bad if error.id not in known)


def _close(pid: int, aside: ThreadPoolExecutor, *parts: Any) -> None:
    if pid == os.getpid():  # a forked child has copies, but not the threads
        aside.shutdown()
        for part in parts:
            part.close()
