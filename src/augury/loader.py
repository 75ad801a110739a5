"""The loader: source + recipe + cache -> batches. What users import.

Puts the parts together, keeps the place in the epoch and the statistics. The work is done elsewhere: schedule.py says
which batch comes when, staging.py reads ahead, gather.py collects bytes, batch.py makes batches of them.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, cast

from numpy.typing import ArrayLike

from augury import recipes
from augury.arguments import (
    check_callable,
    check_joins,
    check_order,
    check_packs,
    check_positive,
    check_seed,
    check_state,
    checked_subset,
    refuse_with_cache,
    refuse_with_node,
)
from augury.batch import Bad, Batch, Finisher, OnError, Transform, WeightedBatch, as_tensors, check_on_error
from augury.buffers import BufferPool, pinned_buffers
from augury.cache import Cache
from augury.distributed import place
from augury.errors import BadFeedback, Closed, ConfigError, UnknownName
from augury.exchange import agree_on_seed
from augury.fetch import READERS, RETRIES, Fetcher
from augury.gather import Gatherer
from augury.ids import Ids, Scores
from augury.jobs import Benefit
from augury.knowledge import LAG
from augury.learning import Learning
from augury.levels import (
    Disk,
    Levels,
    check_shared,
    disk_wish,
    divide_memory,
    limits,
    open_own_cache,
    open_packages,
    tapped,
)
from augury.metrics import Stats
from augury.owned import Owned
from augury.packages import PackageStore
from augury.planning import Planning, check_epochs
from augury.policies import Foresight
from augury.samplers.ranks import share_size
from augury.samplers.shuffle import InOrder
from augury.schedule import Schedule
from augury.sources import Source, open_source
from augury.staging import Staging
from augury.tally import Tally
from augury.trace import Recorder
from augury.transforms.keep import Keep, apply_keep
from augury.units import Size
from augury.workers import Workers

SOON = 16
"""Before the first batch so many epochs are looked at: none may be empty."""


class Loader:
    """Batches of a dataset that is too slow to read and too large to hold.

    >>> loader = Loader("/data/train", batch_size=256, ram="8GB", transform=decode, seed=0)
    >>> for epoch in range(90):
    ...     for x, y, ids in loader:
    ...         ...

    Parameters
    ----------
    data:
        A folder (one subfolder per class, or any tree of files), tar shards, a NumPy array or (features, labels), a
        torch map-style dataset, or a source (which stays yours to close). See `open_source`.
    batch_size:
        Samples per batch and rank.
    recipe:
        What to visit and what to keep: a name from `augury.recipes.RECIPES`. The default changes nothing about
        training: every sample once per epoch, in random order.
    ram:
        Memory for cached samples and for those read ahead: "8GB", bytes, or a fraction of the dataset (0.2).
        By default the dataset's size, but at most a quarter of the memory that is free. Per process.
    disk:
        A second level below the memory: "/nvme/augury:200GB". It survives restarts. Shared evenly by the processes
        of one machine (as LOCAL_WORLD_SIZE says).
    packages:
        For recipe "icache": a directory beside the data, on the same store, and a limit ("/nfs/packages:20GB"). Samples
        of little importance are copied there in packages of a megabyte, which are then read with one request each.
    levels:
        Instead of `ram` and `disk`: a TOML file that `augury probe` has made (or a `Storage`) with the capacity of each
        level, how many threads fill it, and how fast it is. Where the source is faster, it is read instead of the disk.
    readahead:
        The part of `ram` for batches on their way; by default eight batches, at most a quarter of `ram`.
    transform, target_transform:
        Called with one sample (bytes, an array, or the dataset's item) or its label, after the cache, in a pool. Those
        of `augury.transforms` augment alike in every run with the same seed.
    keep:
        What the cache holds of each sample: "encoded", its bytes as stored; or "decoded", what the leading Decode,
        Resize and CenterCrop of `transform` make of them: more room, less work. What is random always runs anew.
    collate:
        Makes `x` of a list of samples; by default arrays are stacked and tuples and dicts followed.
    workers, processes:
        How many threads transform; with `processes=True` processes, for transforms that hold the interpreter lock.
    readers, retries:
        Threads that read from the source, and how often a passing failure is tried again.
    shuffle, subset, drop_last:
        False: by id. Only these ids. Leave out the last, incomplete batch.
    seed:
        Of the order of every epoch. None: one that rank 0 draws when iteration starts and tells the others.
    rank, world_size:
        By default of `torch.distributed`, or of the launcher's variables, when iteration starts.
    epochs:
        How many epochs there will be, if known: nothing is read ahead beyond the last one. A recipe that plans the
        whole run (hdmlp) must know it.
    on_error:
        What to do about a sample that cannot be read or decoded: "raise", "skip" it, or "substitute" another sample of
        the batch. Either way it is listed in `quarantine`, by id and location.
    output, pin_memory:
        "torch" or "numpy"; "auto" gives tensors if torch is loaded. Page-locked memory for faster copies to a device.
    lag:
        For recipes that learn: feedback of a batch takes effect before the decision about the batch that comes `lag`
        batches later, and no more than so many are decided ahead of training.
    weights:
        True: batches are (x, y, ids, weights). Multiply each sample's loss by its weight, and a recipe that draws by
        importance trains, on average, as if every sample came equally often (p/q, SHADE's Eq. 1).
    cache, admit:
        Share another loader's cache over the same data; with `admit=False` without disturbing it (validation). With
        `recipe="icache"` on both, two jobs that train: the cache weighs their importance by what each gains from it.
    trace:
        A file to record every decision in, for `augury replay --trace`.
    node:
        This machine's node (`augury serve`), whose cache all jobs and users share: "auto" if there is one, or its
        socket; by default as AUGURY_NODE says. Then `ram` beyond the read-ahead window is what this job would have of
        the node's memory. The data needs digests (`augury digest`).
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        *,
        recipe: str | recipes.Recipe | None = None,
        ram: Size | None = None,
        disk: Disk | None = None,
        packages: Disk | PackageStore | None = None,
        levels: Levels | None = None,
        readahead: Size | None = None,
        transform: Transform | None = None,
        keep: Keep = "encoded",
        target_transform: Transform | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        labels: Any = None,
        seed: int | None = 0,
        shuffle: bool = True,
        subset: ArrayLike | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        epochs: int | None = None,
        readers: int = READERS,
        retries: int = RETRIES,
        workers: int | None = None,
        processes: bool = False,
        on_error: OnError = "raise",
        output: Literal["auto", "torch", "numpy"] = "auto",
        pin_memory: bool = False,
        lag: int = LAG,
        weights: bool = False,
        cache: Cache | None = None,
        admit: bool = True,
        trace: str | os.PathLike[str] | None = None,
        node: str | os.PathLike[str] | None = None,
    ) -> None:
        check_positive(batch_size=batch_size, readers=readers, lag=lag)
        check_positive(**{name: n for name, n in (("workers", workers), ("epochs", epochs)) if n is not None})
        check_callable(transform=transform, target_transform=target_transform, collate=collate)
        check_seed(0 if seed is None else seed)
        place(rank, world_size)  # what is given must be right now; what is not is asked when iteration starts
        self.recipe = recipes.find(recipe or recipes.DEFAULT)
        if cache is not None:
            kept = None if keep == "encoded" else keep
            refuse_with_cache(ram=ram, disk=disk, packages=packages, levels=levels, trace=trace, keep=kept, node=node)
            if recipe is not None:
                check_joins(self.recipe, cache.recipe, admit)
        elif node not in (None, "auto", "off"):
            refuse_with_node(packages=packages, levels=levels, trace=trace)
        takes_part = admit and (cache is None or recipe is not None)
        check_epochs(self.recipe, epochs)
        check_order(self.recipe, shuffle)
        check_packs(self.recipe, packages)
        granted = limits(ram, disk, levels)
        foresight = self.recipe.foresight if takes_part else Foresight.NOTHING
        self._given_place = rank, world_size
        self._tensors = _wants_tensors(output)
        self._owned = Owned()
        self._finalizer = weakref.finalize(self, self._owned.close)
        try:
            opened = self._owned.keep(open_source(data, labels), unless=data)
            packaged, self.packer = open_packages(opened, packages, place(rank, world_size), self._owned.keep)
            self.source, transform = apply_keep(keep, packaged, transform)
            self._owned.keep(self.source, unless=opened)
            self.batch_size, self.drop_last, self.epochs = int(batch_size), drop_last, epochs
            self.seed = None if seed is None else int(seed)
            self.subset = None if subset is None else checked_subset(subset, len(self.source.catalog))
            self._make_sampler = self.recipe.sampler if shuffle else InOrder
            holds = cache is None and self.recipe.name != "none" and granted.has_memory
            fills = foresight == Foresight.RUN
            memory = divide_memory(self.source, batch_size, granted.ram, readahead, holds, fills, self.recipe.packs)
            memory = tapped(memory, packaged)
            self._window = memory.window
            self._recorder: Recorder | None = None
            if cache is None:
                # The chance of policies need not be that of orders, which is perhaps not known yet.
                header = {"recipe": self.recipe.name, "seed": self.seed or 0, "batch": self.batch_size}
                embedded = any(given is not None for given in (packages, levels, trace))
                remote = None if embedded or not holds else self._node_cache(node, memory.tier, granted.disk)
                if remote is None:
                    self.cache, self._recorder = open_own_cache(
                        self.source, self.recipe, memory.tier, granted.disk, header, trace, self._owned.keep
                    )
                else:
                    self.cache = self._owned.keep(remote)
            else:
                self.cache = check_shared(cache, self.source)
            self._job = self.cache.join()
            if self.packer is not None:
                self.cache.tell_packages(self.packer.follow)
            fetcher = self._owned.keep(Fetcher(self.source, readers, retries))
            buffers = pinned_buffers() if pin_memory else BufferPool()
            self._finish = Finisher(
                self.source, transform, target_transform, collate, check_on_error(on_error), buffers
            )
            immediate = self._finish.immediate
            self._workers = None if immediate else self._owned.keep(Workers(self._finish, workers, processes))
            self._gatherer = _open_gatherer(self.source, self.cache, fetcher, buffers, admit)
            self._learning = Learning(self.recipe, self.cache, lag, takes_part, self._job)
            self._owned.keep(self._learning)
            self._benefit = Benefit(self.cache.jobs, self._job) if takes_part and self.recipe.shared else None
            if cache is not None:
                self._owned.call(partial(cache.leave, self._job))
            self._weigh = weights
            if weights:  # a sampler that cannot tell says so now
                self._make_sampler(self._samples, 0).weights(0, self._learning.known)
            self._planning = Planning(foresight, self._gatherer, granted.storage, memory.filling, readers)
        except BaseException:
            self._finalizer()
            raise
        self._epoch = self._offset = 0
        self._jump: int | None = None
        self._left_midway = self._resumed = False
        self._at_end = False
        """Training has an epoch's last batch, and that epoch is not over for it."""
        self._running: _Running | None = None
        self._tally = Tally(on_error)
        self._pid = os.getpid()

    def __len__(self) -> int:
        """Batches of the epoch at hand, the same on every rank. Recipes that leave samples out have shorter epochs."""
        return self.batches(self._epoch - self._at_end if self._jump is None else self._jump)

    def batches(self, epoch: int) -> int:
        """Batches of any epoch, the same on every rank: for schedules of the learning rate and for progress bars."""
        return self._schedule().batches_from(epoch)

    def __iter__(self) -> Iterator[Batch]:
        """The next epoch, or the rest of the one that was resumed."""
        self._check_usable()
        if self.seed is None:
            self.seed = agree_on_seed(place(*self._given_place))
        if self._jump is not None:
            self._epoch, self._offset = self._jump, 0
        elif self._left_midway or self._schedule().batches_from(self._epoch, self._offset) == 0:
            self._epoch, self._offset = self._epoch + 1, 0
        self._jump, self._left_midway, self._resumed, self._at_end = None, False, False, False
        running = self._run_from(self._epoch, self._offset)
        running.iterator += 1
        return self._batches(running, running.iterator, running.schedule.batches_from(self._epoch, self._offset))

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch: from its start, or from where it was resumed.

        Not needed when epochs follow each other.
        """
        if epoch < 0:
            raise ConfigError(f"epoch {epoch}: epochs are counted from 0")
        if not (self._resumed and epoch == self._epoch):  # the usual loop names the epoch that was just resumed
            self._jump = int(epoch)

    def feedback(
        self,
        ids: Any = None,
        losses: Any = None,
        *,
        logits: Any = None,
        labels: Any = None,
        embeddings: Any = None,
        accuracy: float | None = None,
    ) -> None:
        """Tell what training made of samples: their losses, or their logits and labels, or (for spider) their
        embeddings and labels; and now and then the accuracy.

        Returns at once: a thread of its own does the work. Tensors of any device, arrays and lists will do. Recipes
        that learn nothing ignore it. A report that cannot be used (lengths that differ, an id that does not exist, a
        loss that is no finite number) is dropped, counted in `stats().feedback`, and a BadFeedback error: at once, or
        with the next call where values still were on a device or losses still had to be computed.

        >>> for x, y, ids in loader:
        ...     losses = F.cross_entropy(model(x), y, reduction="none")
        ...     losses.mean().backward(); ...
        ...     loader.feedback(ids, losses)
        >>> loader.feedback(accuracy=validate(model))
        """
        self._check_usable()
        of_samples = any(given is not None for given in (ids, losses, logits, labels, embeddings))
        if not of_samples and accuracy is None:
            raise BadFeedback("feedback() was given nothing: give ids and losses, or accuracy")
        if of_samples:
            self._learning.tell(ids, losses, logits, labels, embeddings)
        if accuracy is not None:
            self._learning.tell_accuracy(accuracy)

    def state_dict(self) -> dict[str, Any]:
        """Where training is: enough to go on elsewhere, with any number of ranks and any batch size.

        For a recipe that learns it holds the scores and this rank's order of the epoch: on the same rank of as many the
        epoch goes on as it was arranged, elsewhere its rest is drawn anew.
        """
        epoch, offset = (self._epoch, self._offset) if self._jump is None else (self._jump, 0)
        state: dict[str, Any] = {
            "version": 1,
            "seed": self.seed,
            "epoch": epoch,
            "offset": offset,
            "samples": self._samples,
            "recipe": self.recipe.name,
            "subset": None if self.subset is None else zlib.crc32(self.subset.tobytes()),
        }
        return state | self._learning.state_dict(epoch, offset, place(*self._given_place))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken. Costs nothing: no batch is read to be skipped."""
        self._check_usable()
        epoch, offset = check_state(state, self._samples, self.recipe)
        if self.subset is not None and state.get("subset") not in (None, zlib.crc32(self.subset.tobytes())):
            raise ConfigError("this state was saved with another subset= of as many samples")
        self._stop()
        self._learning.load_state_dict(state)
        self._planning.restart()
        self.seed = None if state["seed"] is None else int(state["seed"])
        self._epoch, self._offset = epoch, offset
        self._jump, self._left_midway, self._resumed, self._at_end = None, False, True, False

    @property
    def quarantine(self) -> list[Bad]:
        """Samples that could not be used, each once, as errors with `id`, `location` and `reason`."""
        return self._tally.quarantine

    def stats(self) -> Stats:
        """Hits, misses, bytes by holder and seconds waited, per epoch and in total, of the batches handed out."""
        return Stats(self._tally.epochs(), self._learning.counts)

    def close(self) -> None:
        """End all threads and give back memory and files. What is on disk stays for the next run."""
        if self._pid == os.getpid():
            self._stop()
            self._finalizer()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _node_cache(self, node: str | os.PathLike[str] | None, ram: int, disk: Disk | None) -> Cache | None:
        """This machine's node, if it is asked for and there."""
        if node is None and not os.environ.get("AUGURY_NODE"):
            return None
        from augury.node.attach import attach, job_name
        from augury.node.remote import Membership

        total = self.source.catalog.total_bytes
        wish = disk_wish(disk, total, len(self.source.catalog))
        name, seed = job_name(self.source), self.seed or 0
        return attach(node, self.source, Membership(os.urandom(16), name, self.recipe, seed, ram, wish, mirrors=True))

    @property
    def _samples(self) -> int:
        return len(self.source.catalog) if self.subset is None else len(self.subset)

    def _schedule(self) -> Schedule:
        where = place(*self._given_place)
        count = share_size(self._samples, self.batch_size, *where, self.drop_last)
        sampler = self._make_sampler(self._samples, self.seed or 0, *where, count)  # (its length needs no seed)
        ends = self.drop_last, self.epochs
        return Schedule(
            *(sampler, self.batch_size, where, self._samples, self.subset, *ends),
            *(self.recipe.lookahead, self._weigh, self._job),
        )

    def _run_from(self, epoch: int, offset: int) -> _Running:
        """The read-ahead window that is about to deliver this place, or a new one."""
        running = self._running
        where = place(*self._given_place)
        if running is not None and running.next == (epoch, offset) and running.schedule.place == where:
            return running
        self._stop()
        schedule = self._schedule()
        soon = range(epoch, min(epoch + SOON, self.epochs or epoch + SOON))
        empty = next((each for each in soon if schedule.batches_from(each) == 0), None)
        if empty is not None:
            raise ConfigError(
                f"an epoch has no batch: {schedule.size(empty)} samples, batch_size={self.batch_size}, "
                f"world_size={where.world_size}, drop_last={self.drop_last}"
            )
        learning, planning, seed = self._learning, self._planning, self.seed or 0
        begun = learning.start(schedule, epoch, offset)
        self._plan(schedule, seed, epoch, offset)
        begin = partial(_begin_epoch, learning, self._recorder)
        walk = schedule.walk(epoch, offset, self.cache, learning.known, planning.each_epoch, begin, begun)
        parts = self._gatherer, self._finish, self._workers
        staging = Staging(
            walk, *parts, self._window, seed, learning.feedback, planning.filler, self._job, self._benefit
        )
        if self._benefit is not None:
            self._benefit.batches = schedule.batches_from
        self._running = _Running(staging, schedule, (epoch, offset))
        self._owned.staging = staging
        staging.start()
        return self._running

    def _plan(self, schedule: Schedule, seed: int, epoch: int, offset: int) -> None:
        began = time.perf_counter()
        self._planning.start(schedule, seed, epoch, offset, self._learning.known)
        if self._planning.filler is not None:
            self._tally.epoch(epoch).stall_seconds += time.perf_counter() - began  # training waits for it

    def _batches(self, running: _Running, iterator: int, count: int) -> Iterator[Batch]:
        some = False
        self._left_midway = count > 0
        began = time.perf_counter()
        for index in range(count):
            if self._running is not running or running.iterator != iterator:
                raise Closed("this iterator has ended: the loader was closed, reset, or iterated anew")
            last = index + 1 == count
            batch = self._next(running, last)
            if batch is not None:
                some, self._at_end = True, last
                yield batch
                self._at_end = False
            elif last and not some:
                raise self.quarantine[-1]  # not one sample of the epoch could be used: that is no training
            now = time.perf_counter()
            self._tally.epoch(running.delivered).seconds += now - began
            began = now

    def _next(self, running: _Running, last: bool) -> Batch | None:
        """Take one batch and note it; None where no sample of it could be used."""
        try:
            self._learning.request()
            taken = running.staging.next()
        except BaseException:
            self._stop()
            raise
        if taken is None:
            raise Closed("this loader was closed while it was iterated")
        staged, finished, waited = taken
        epoch, offset = running.next
        running.delivered = epoch
        if self._benefit is not None:
            self._benefit.note(staged.work.at, staged.work.bypasses, time.perf_counter())
        distinct = self._learning.take(epoch, staged.raw.ids, len(staged.work.ids))
        self._tally.note(epoch, staged, finished, distinct, waited)
        self.cache.stalled += waited
        self._tally.epoch(epoch).gauges = self._learning.gauges.get(epoch, {})
        if last:
            self._epoch, self._offset, self._left_midway = epoch + 1, 0, False
        else:
            self._epoch, self._offset = epoch, running.schedule.offset_after(epoch, offset)
        running.next = self._epoch, self._offset
        if last and self.epochs is not None and self._epoch >= self.epochs:
            self._stop()  # nothing is read ahead beyond the last epoch: the window has ended
        if finished.batch is None:
            if running.schedule.place.world_size > 1:
                raise finished.bad[0]  # other ranks have a batch here: to pass over it would leave them waiting
            return None
        return self._handed_out(epoch, finished.batch)

    def _handed_out(self, epoch: int, batch: Batch) -> Batch:
        if self._tensors:
            batch = Batch(as_tensors(batch.x), as_tensors(batch.y), batch.ids)
        if not self._weigh:
            return batch
        weights = self._learning.weights(epoch, batch.ids)
        weighted = WeightedBatch(*batch, as_tensors(weights) if self._tensors else weights)
        return cast(Batch, weighted)  # so that the usual loop over three is of a type that says so

    def _check_usable(self) -> None:
        if not self._finalizer.alive:
            raise Closed("this loader is closed")
        if self._pid != os.getpid():
            raise Closed("this loader was made in another process: make one in each process, or use CachedDataset")

    def _stop(self) -> None:
        """Give up what is read ahead."""
        if self._running is not None:
            self._running.staging.close()
            self._running = self._owned.staging = None


def _open_gatherer(source: Source, cache: Cache, *parts: Any) -> Gatherer:
    """Batches through this process's own cache, or through that of a node, whose code is loaded only then."""
    if type(cache) is Cache:
        return Gatherer(source, cache, *parts)
    from augury.node.attach import open_gatherer

    return open_gatherer(source, cache, *parts)


class _Running:
    """A read-ahead window and the place of the batch that it delivers next."""

    def __init__(self, staging: Staging, schedule: Schedule, next: tuple[int, int]) -> None:
        self.staging, self.schedule, self.next = staging, schedule, next
        self.delivered = next[0]
        self.iterator = 0
        """Which iterator takes from it: the one that was made last."""


def _begin_epoch(learning: Learning, recorder: Recorder | None, epoch: int, order: Ids, weights: Scores | None) -> None:
    """Called by the thread that decides, ahead of training. That thread must not know the loader: it would keep it."""
    learning.begin_epoch(epoch, order, weights)
    if recorder is not None:
        recorder.mark_epoch(epoch)


def _wants_tensors(output: str) -> bool:
    if output not in ("auto", "torch", "numpy"):
        raise UnknownName("output", output, ("auto", "torch", "numpy"))
    if output == "torch":
        import torch  # noqa: F401  (so that a missing torch is an error here and not in the first batch)
    return output == "torch" or (output == "auto" and "torch" in sys.modules)
