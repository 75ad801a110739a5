"""A cache that lives in the node, as a loader sees it: asked when it is there, done without while it is not.

What the node forgets when it is restarted (the plan, the scores) is kept here and told again. Coming back is a thread's
work: training never waits for it. Decisions are the node's (node/job.py), batches are gather.py's.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from augury.cache import Cache, Level
from augury.errors import AuguryWarning, ConfigError
from augury.ids import NONE, Ids, Mask, Scores, Times
from augury.node import protocol
from augury.node.client import Connection, NodeGone, NodeRefuses
from augury.node.files import blocks
from augury.recipes import RECIPES, Recipe

RETRY = 0.5
"""Seconds until a node that has gone is looked for again; after each vain attempt twice as many."""
LONGEST_RETRY = 30.0
JOINING = 60.0
"""Seconds that a node may take to look through a large dataset."""

Found = NDArray[np.int8]
Result = TypeVar("Result")


class Membership(NamedTuple):
    """What a client takes part in."""

    token: bytes
    """Names the job: whoever has the same one, and the same data, shares its policies."""
    name: str
    recipe: Recipe
    seed: int
    ram: int
    disk: int
    mirrors: bool
    """Whether this client alone drives the job, and must know who is held."""


class Taken(NamedTuple):
    """What the node decided about a batch."""

    served: Ids
    level: NDArray[np.int8]
    found: Found
    """Who gave each sample's bytes: 0 memory, 1 disk, -1 nobody."""
    offer: Mask


class FarTier(NamedTuple):
    """A level of the node's cache, as far as it can be seen from here."""

    name: str
    instant: bool = True


class RemoteCache(Cache):
    """The node's cache for one dataset and recipe. Any thread may call it."""

    def __init__(
        self,
        path: Path,
        digests: NDArray[np.uint8],
        sizes: NDArray[np.int64],
        content: str,
        membership: Membership,
        patient: bool = False,
    ) -> None:
        if RECIPES.get(membership.recipe.name) is not membership.recipe:
            raise ConfigError(
                f"recipe {membership.recipe.name!r} is not one of the table, and a node knows only those: leave out "
                "node=, or name one of augury.recipes.RECIPES"
            )
        super().__init__([], sizes, content, membership.recipe)
        self.path, self.membership, self.pid = path, membership, os.getpid()
        self.outages = 0
        """How often the node has gone."""
        self._digests = digests
        self._node_costs = [max(1.0, float(costs.mean())) for costs in (sizes, blocks(sizes))]
        """What a sample takes of the node's memory and disk, on average."""
        self._link = _Link()
        self._telling = threading.RLock()
        """Held while something is noted here and told to the node: one that comes back meanwhile is told it, too."""
        self._plans: dict[int, tuple[Ids, Times | None, Ids]] = {}
        self._asked: dict[int, int] = {}
        self._scores: Scores | None = None
        self._progress: protocol.Progress | None = None
        self._node_wishes = 0
        self._mirror = np.full(len(sizes) if membership.mirrors else 0, -1, np.int8)
        self._promised: set[int] = set()
        self._prefetches = self._refills = False
        try:
            self._connect()
        except NodeGone as error:
            if not patient:
                raise
            self._do_without(error)

    def take(self, ids: Ids, job: int, admit: bool, bypass: bool, out: NDArray[np.uint8]) -> Taken | None:
        """Decide a batch, with the bytes that are there copied to `out`; None where the node has gone."""

        def ask(connection: Connection) -> Taken:
            with connection.lock:
                area, at = connection.area_of(out)
                request = protocol.Take(job, area, at, out.nbytes, admit, bypass, self.stalled)
                answer, (served, level, found, offer, *changes) = connection.ask(request, protocol.Taken, (ids,))
                self._follow(*changes)
                if answer.wishes != self._node_wishes:
                    self._node_wishes = answer.wishes
                    self.wishes += 1
                taken = Taken(served if len(served) else ids, level, found, offer)
                self._promised.update(taken.served[offer].tolist())
                return taken

        return self._try(ask)

    def note_asked(self, job: int, samples: int) -> None:
        """A batch is requested, with or without the node: how far a job is in its plan."""
        self._asked[job] = self._asked.get(job, 0) + samples

    @property
    def largest(self) -> int:
        """Bytes of a batch, at most, that the node takes."""
        connection = self._link.connection
        return 0 if connection is None else connection.welcome.area_bytes

    def on_its_way(self, ids: Ids, taken: Taken) -> Mask:
        """Which of these this process was to offer before a batch was taken, and has not yet."""
        fresh = set(taken.served[taken.offer].tolist())
        return np.array([id in self._promised and id not in fresh for id in ids.tolist()], np.bool_)

    def unasked(self, ids: Ids) -> tuple[Ids, NDArray[np.int8], Mask] | None:
        """Decide about ids that nobody has asked for: who is taken, from which level, and whose bytes are wanted."""

        def ask(connection: Connection) -> tuple[Ids, NDArray[np.int8], Mask]:
            with connection.lock:
                _, (taken, level, offer, *changes) = connection.ask(protocol.Unasked(), protocol.Decided, (ids,))
                self._follow(*changes)
                self._promised.update(taken[offer].tolist())
                return taken, level, offer

        return self._try(ask)

    def offer(self, ids: Ids, memory: NDArray[np.uint8], offsets: NDArray[np.int64]) -> int:
        """Bytes that the node asked for; how many of them are not what their digest says."""
        self._promised.difference_update(ids.tolist())

        def ask(connection: Connection) -> int:
            with connection.lock:
                area, at = connection.area_of(memory)
                answer, _ = connection.ask(protocol.Offer(area), protocol.Offered, (ids, offsets + at))
            return answer.refused

        return self._try(ask) or 0

    def lost(self, ids: Ids) -> None:
        """What the node asked for and will not get."""
        if len(ids):
            self._promised.difference_update(ids.tolist())
            self._say(protocol.Lost(), ids)

    def wanted(self, level: int = 0) -> Ids:
        wanted = self._try(lambda connection: connection.ask(protocol.Wanted(level), protocol.Listed)[1][0])
        return NONE if wanted is None else wanted

    def progress(self, done: float, spreads: Sequence[float], accuracies: Sequence[float]) -> None:
        with self._telling:
            self._progress = protocol.Progress(done, list(spreads), list(accuracies))
            self._say(self._progress)

    @property
    def gauges(self) -> dict[str, float]:
        seen = self._look()
        return {} if seen is None else dict(seen[0].gauges)

    @property
    def resident(self) -> Mask:
        seen = self._look()
        return np.zeros(self.samples, np.bool_) if seen is None else seen[1] >= 0

    @property
    def prefetches(self) -> bool:
        return self._prefetches

    @property
    def refills(self) -> bool:
        return self._refills

    @property
    def room(self) -> float:
        seen = self._look()
        if seen is None:
            return 0.0
        return sum(capacity / cost for capacity, cost in zip(seen[0].capacities, self._node_costs, strict=False))

    @property
    def depth(self) -> int:
        return len(self.levels)

    def holder(self, id: int) -> int | None:
        level = int(self._mirror[id])
        return None if level < 0 else level

    def readable(self, level: int, ids: Ids) -> Mask:
        return np.array([id not in self._promised for id in ids.tolist()], np.bool_)

    def resize(self, level: int, capacity: int) -> None:
        """The share that this job would have; it gets what the others leave."""
        self._say(protocol.Resize(level, capacity))

    @property
    def connected(self) -> bool:
        """Whether the node is there."""
        return self._link.connection is not None

    def close(self) -> None:
        if os.getpid() == self.pid:  # a forked child has a copy of the connection
            self._link.close()

    def _end(self, job: int) -> None:
        with self._telling:
            self._plans.pop(job, None)
            self._say(protocol.Leave(job))

    def _teach(self, ids: Ids, scores: Scores, kin: Ids | None = None) -> None:
        with self._telling:
            if self._scores is None:
                self._scores = np.full(self.samples, np.nan, np.float32)
            self._scores[ids] = scores
            self._say(protocol.Learn(kin is not None), ids, scores, NONE if kin is None else kin)

    def _plan(self, order: Ids, job: int, times: Times | None, later: Ids) -> Sequence[Ids]:
        with self._telling:
            self._plans[job], self._asked[job] = (order, times, later), 0
            self._say(protocol.Plan(job, times is not None), order, NONE if times is None else times, later)
        self.wishes += 1
        return ()

    def _look(self) -> tuple[protocol.Seen, Found] | None:
        def ask(connection: Connection) -> tuple[protocol.Seen, Found]:
            seen, (levels,) = connection.ask(protocol.Look(), protocol.Seen)
            return seen, levels

        return self._try(ask)

    def _say(self, message: protocol.Message, *arrays: NDArray[Any]) -> None:
        self._try(lambda connection: connection.ask(message, protocol.Done, arrays))

    def _try(self, ask: Callable[[Connection], Result]) -> Result | None:
        """Ask the node; None where it has gone: one warning, and it is looked for from now on."""
        connection = self._link.connection
        if connection is None:
            return None
        try:
            return ask(connection)
        except NodeGone as error:
            self._lose(connection, error)
            return None

    def _lose(self, connection: Connection, error: NodeGone) -> None:
        with self._link.lock:
            if self._link.connection is not connection:
                return  # another thread has seen it first
            self._link.connection = None
        connection.close()
        self._do_without(error)

    def _do_without(self, error: NodeGone) -> None:
        """Until the node is back."""
        self.outages += 1
        self._mirror[:] = -1
        self._promised.clear()
        if self.outages == 1:
            warnings.warn(
                f"{error}. Training goes on from the source, and back to the node when it answers again.",
                AuguryWarning,
                stacklevel=5,
            )
        self._link.look_for(self)

    def _connect(self) -> None:
        """Join the job; NodeGone where that cannot be."""
        member = self.membership
        connection = self._link.opening = Connection(self.path, member.name)
        try:
            uniform = bool((self._sizes == self._sizes[0]).all())
            request = protocol.Join(
                *(member.token, member.name, member.recipe.name, member.seed, self.samples),
                *(member.ram, member.disk, member.mirrors),
            )
            arrays = self._digests.reshape(-1), self._sizes[:1] if uniform else self._sizes
            joined, (levels,) = connection.ask(request, protocol.Joined, arrays, patience=JOINING)
            self.levels = [Level(None, FarTier(name)) for name in joined.levels]  # type: ignore[arg-type]
            self._prefetches, self._refills = joined.prefetches, joined.refills
            if member.mirrors:
                self._mirror[:] = levels
            with self._telling:  # what is told from now on is told to this node
                self._tell_again(connection)
                self.wishes += 1
                self._link.connection = connection
        except BaseException:
            connection.close()
            raise

    def _tell_again(self, connection: Connection) -> None:
        """What a node that was restarted does not know."""
        if self._scores is not None:
            ids = np.flatnonzero(~np.isnan(self._scores))
            connection.ask(protocol.Learn(False), protocol.Done, (ids, self._scores[ids], NONE))
        if self._progress is not None:
            connection.ask(self._progress, protocol.Done)
        for job, (order, times, later) in list(self._plans.items()):
            # With how often each will come the order is that of first requests, and nothing can be cut off.
            rest = order if times is not None else order[self._asked.get(job, 0) :]
            told = NONE if times is None else times
            connection.ask(protocol.Plan(job, times is not None), protocol.Done, (rest, told, later))

    def _follow(self, ids: Ids, levels: NDArray[np.int8]) -> None:
        if len(self._mirror):
            self._mirror[ids] = levels


class _Link:
    """The connection of a remote cache, and the thread that looks for a node that has gone."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.opening: Connection | None = None
        """One that joins, or has joined; closed to end the wait for a node that does not answer."""
        self.lock = threading.Lock()
        self._closing = threading.Event()
        self._searches = False
        self._thread: threading.Thread | None = None

    def look_for(self, cache: RemoteCache) -> None:
        with self.lock:
            if self._closing.is_set() or self._searches:
                return
            self._searches = True
            self._thread = threading.Thread(
                target=self._look, args=(weakref.ref(cache),), name="augury-node-search", daemon=True
            )
            self._thread.start()

    def _look(self, known: weakref.ref[RemoteCache]) -> None:
        pause = RETRY
        while not self._closing.wait(pause):
            cache = known()
            if cache is None:
                return
            began = time.monotonic()
            try:
                cache._connect()
            except NodeRefuses as error:
                warnings.warn(f"{error}. It is asked again in {LONGEST_RETRY:.0f} s.", AuguryWarning, stacklevel=2)
                pause = LONGEST_RETRY
            except Exception:  # gone again, or not there yet
                pause = min(LONGEST_RETRY, max(2 * pause, time.monotonic() - began) if pause >= RETRY else RETRY)
            else:
                with self.lock:
                    if self.connection is not None:
                        self._searches = False
                        return
                pause = RETRY  # it has gone again at once
            del cache

    def close(self) -> None:
        self._closing.set()
        thread = self._thread
        if self.opening is not None:
            self.opening.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self.lock:
            connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
