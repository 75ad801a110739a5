"""The cache: a policy and a tier per level, and the order in which bytes follow decisions.

Decisions are made in access order (`decide`), each gets a ticket. Bytes follow in the order of the tickets: when a
ticket's turn comes the tiers hold exactly what the decisions before it say, so hits can be read, and then
`commit` drops and writes what this ticket decided. A slow reader never sees a row that was given to another
sample, and no lock is held while bytes move. Reading from the source is fetch.py's work, batches are gather.py's.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from augury.errors import AuguryWarning, Closed, ConfigError, TierFailed, Unreadable
from augury.ids import NONE, Ids, Mask, Scores, Times
from augury.jobs import Jobs
from augury.policies import Policy
from augury.recipes import Recipe
from augury.sources import Buffer
from augury.step import Step, plan, prefetch, step, uncached
from augury.tiers import Tier
from augury.units import format_size


class Bell(Protocol):
    """Who wants to know that the turn has moved on."""

    def ring(self) -> None: ...


class Level(NamedTuple):
    """One level of the cache, the fastest first."""

    policy: Policy
    tier: Tier


class Ticket(NamedTuple):
    """One batch's decisions and its place in the order of bytes."""

    number: int
    step: Step


class Cache:
    """Levels shared by the loaders of one process. Any thread may call it."""

    def __init__(
        self, levels: Sequence[Level], sizes: NDArray[np.int64], content: str = "", recipe: Recipe | None = None
    ) -> None:
        self.levels = list(levels)
        self.content = content
        """Names what is made of samples before they are held; empty where they are held as stored."""
        self.recipe = recipe
        """Whose policy it has."""
        self.jobs = Jobs(len(sizes))
        self.turn = 0
        """The ticket whose bytes may move now."""
        self.wishes = 0
        """Grows when the policies may want others than before: they were told a plan, or a level's size changed."""
        self.stalled = 0.0
        """Seconds that training has waited so far, for those who watch."""
        self._sizes = sizes
        self._stack = [level.policy for level in levels]
        self._mean_costs = [max(1.0, float(level.tier.footprint(sizes).mean())) for level in levels]
        self._joined: set[int] = set()
        self._packers: list[Callable[[Sequence[Ids]], None]] = []
        self._next = 0
        self._lock = threading.Lock()
        self._turning = threading.Lock()
        self._orphans: dict[int, Ticket] = {}
        self._admitted = [np.full(len(sizes), -1, np.int32) for _ in levels]
        """Per level and id: the ticket that last admitted it. Its bytes are there once that ticket is committed."""
        self._lost: list[tuple[int, Ids, int]] = []
        self._broken: set[int] = set()
        self._damaged: set[int] = set()
        self._bells: list[Bell] = []
        for level in self.levels:
            level.tier.drop(level.policy.adopt(level.tier.found()))

    def join(self) -> int:
        """A loader that uses this cache: the number of its job."""
        number = next(number for number in itertools.count() if number not in self._joined)
        self._joined.add(number)
        return number

    def leave(self, job: int) -> None:
        """A job has ended: nothing more is kept for it."""
        told = self.jobs.leave(job)
        self._end(job)
        self._joined.discard(job)
        if told and (importance := self.jobs.alone()) is not None:
            self._teach(np.arange(self.samples), importance)  # the adjusted one has another scale

    def _end(self, job: int) -> None:
        with self._lock:
            for policy in self._stack:
                policy.leave(job)

    @property
    def samples(self) -> int:
        """How many ids there are."""
        return len(self._sizes)

    def decide(self, ids: Ids, job: int = 0, admit: bool = True, bypass: bool = False) -> Ticket:
        """Decide one batch. Every ticket must be committed or abandoned, or all later ones wait for ever.

        With `bypass` it is read from the source as if there were no cache.
        """
        with self._lock:
            self._settle_losses()
            if bypass:
                return self._ticket(uncached(len(self._stack), ids))
            return self._ticket(step(self._stack, ids, job, admit))

    def decide_unasked(self, ids: Ids) -> Ticket:
        """Decide which of the ids that the policy wants are taken; a ticket like any other."""
        with self._lock:
            self._settle_losses()
            return self._ticket(prefetch(self._stack, ids))

    def wanted(self, level: int = 0) -> Ids:
        """Whom a level's policy would hold if it had them, most urgent first."""
        with self._lock:
            if level >= len(self._stack):
                return NONE
            return self._stack[level].wanted(self._stack[level].capacity)

    def learn(self, ids: Ids, scores: Scores, kin: Ids | None = None, job: int = 0) -> None:
        """New importance of ids, as a job sees it. Where there are several jobs it counts from the next plan on."""
        if self.recipe is not None and self.recipe.shared:
            self.jobs.learn(job, ids, scores)
        if not self.jobs.several:
            self._teach(ids, scores, kin)

    def _teach(self, ids: Ids, scores: Scores, kin: Ids | None = None) -> None:
        with self._lock:
            for policy in self._stack:
                policy.learn(ids, scores, kin)

    def progress(self, done: float, spreads: Sequence[float], accuracies: Sequence[float]) -> None:
        """How far training is; see `Policy.progress`."""
        with self._lock:
            for policy in self._stack:
                policy.progress(done, spreads, accuracies)

    @property
    def gauges(self) -> dict[str, float]:
        """What the topmost policy says of itself."""
        with self._lock:
            return dict(self._stack[0].gauges) if self._stack else {}

    @property
    def resident(self) -> Mask:
        """Who is held, by any level, after all decisions so far; a copy."""
        with self._lock:
            held = np.zeros(len(self._sizes), np.bool_)
            for policy in self._stack:
                held |= policy.resident
            return held

    @property
    def prefetches(self) -> bool:
        """Whether the topmost level may want others than an epoch brings."""
        return bool(self._stack) and self._stack[0].prefetches

    @property
    def refills(self) -> bool:
        """Whether the topmost level may want others before any batch."""
        return bool(self._stack) and self._stack[0].refills

    @property
    def room(self) -> float:
        """How many samples can be held, if they are of mean size."""
        return sum(policy.capacity / cost for policy, cost in zip(self._stack, self._mean_costs, strict=False))

    def plan(self, order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> None:
        """What a job will request from now on; see `Policy.plan`."""
        if self.jobs.several:
            self._teach(np.arange(self.samples), self.jobs.adjusted())
        packages = self._plan(order, job, times, later)
        for tell in self._packers:
            with contextlib.suppress(Closed):
                tell(packages)

    def _plan(self, order: Ids, job: int, times: Times | None, later: Ids) -> Sequence[Ids]:
        with self._lock:
            plan(self._stack, order, job, times, later)
            self.wishes += 1
            return self._stack[0].packages if self._stack else ()

    def tell_packages(self, packer: Callable[[Sequence[Ids]], None]) -> None:
        """Call it, after every plan, with the groups of ids that should lie together in the store. It must not wait."""
        self._packers.append(packer)

    @property
    def depth(self) -> int:
        """How many levels are used."""
        return len(self._stack)

    def use(self, levels: int) -> None:
        """Decide about the first so many levels only. What the others hold stays there and is not asked for."""
        with self._lock:
            self._stack = [level.policy for level in self.levels[:levels]]
            self.wishes += 1

    def holder(self, id: int) -> int | None:
        """The level that holds an id after all decisions so far; None if none does."""
        for depth, policy in enumerate(self._stack):
            if policy.resident[id]:
                return depth
        return None

    def readable(self, level: int, ids: Ids) -> Mask:
        """Which ids of a level are there already; the others will be when earlier tickets are committed."""
        there: Mask = self._admitted[level][ids] < self.turn
        return there

    def commit(self, ticket: Ticket, data: Mapping[int, Buffer | Unreadable]) -> None:
        """Give up and take bytes as decided; `data` has the batch's samples that the top level did not hold.

        Only in turn. A sample without bytes, and one larger than its catalog says, is forgotten by the policy.
        """
        try:
            self._apply(ticket, data)
        finally:
            self._advance()

    def abandon(self, ticket: Ticket) -> None:
        """Its batch will not be used after all: it is committed without bytes when its turn comes, by whoever is there.

        Does not wait; harmless where the ticket was committed already.
        """
        with self._turning:
            if ticket.number > self.turn:
                self._orphans[ticket.number] = ticket
            if ticket.number != self.turn:
                return
        self.commit(ticket, {})

    def lose(self, level: int, ids: Ids, number: int) -> None:
        """Bytes of a level turned out to be lost, as seen by ticket `number`; takes effect at the next decision."""
        self._lost.append((level, ids, number))

    def report_damage(self, level: int, count: int) -> None:
        """Say once that a tier gave back other bytes than were written."""
        if level not in self._damaged and level not in self._broken:
            self._damaged.add(level)
            warnings.warn(
                f"the {self.levels[level].tier.name} tier has lost or damaged samples ({count} of them seen so far): "
                "they are read from the source again",
                AuguryWarning,
                stacklevel=2,
            )

    def listen(self, bell: Bell) -> None:
        """Ring it whenever the turn moves on."""
        with self._lock:
            self._bells = [*self._bells, bell]

    def unlisten(self, bell: Bell) -> None:
        """Ring it no longer."""
        with self._lock:
            self._bells = [other for other in self._bells if other is not bell]

    def resize(self, level: int, capacity: int) -> None:
        """A new byte limit for one level, within what its tier was made for."""
        most = self.levels[level].tier.capacity
        if not 0 <= capacity <= most:
            raise ConfigError(
                f"level {level} was made for {format_size(most)} and cannot be resized to {capacity} bytes"
            )
        with self._lock:
            evicted = self._stack[level].resize(capacity)
            self.wishes += 1
            number = self._next
            self._next += 1
        ticket = Ticket(number, _only_drops(len(self.levels), level, evicted))
        try:
            self.wait_turn(ticket)
        finally:
            self.abandon(ticket)  # there are no bytes to wait for

    def wait_turn(self, ticket: Ticket) -> None:
        """Block until it is this ticket's turn."""
        if self.turn == ticket.number:
            return
        bell = _Waiting()
        self.listen(bell)
        try:
            while self.turn != ticket.number:
                bell.wait()
        finally:
            self.unlisten(bell)

    def close(self) -> None:
        """Give back memory and files. What is on disk stays for the next run."""
        for level in self.levels:
            level.tier.close()

    def _ticket(self, decided: Step) -> Ticket:
        number = self._next
        self._next += 1
        if not decided.on_top:
            for admitted, writes in zip(self._admitted, decided.writes, strict=False):
                admitted[writes] = number
        return Ticket(number, decided)

    def _settle_losses(self) -> None:
        """Tell the policies what was lost since the last decision, unless it was admitted again meanwhile."""
        while self._lost:
            level, ids, number = self._lost.pop(0)
            if level in self._broken:
                self._stack[level].resize(0)
                self.wishes += 1
            self._stack[level].forget(ids[self._admitted[level][ids] <= number])

    def _drop(self, decided: Step) -> dict[int, Buffer]:
        """Let go of what each level gives up; returns the bytes that a lower level takes over."""
        falling: dict[int, Buffer] = {}
        for depth, ids in enumerate(decided.drops):
            if len(ids) == 0 or depth in self._broken:
                continue
            tier = self.levels[depth].tier
            if depth + 1 < len(self.levels):
                below = np.concatenate([NONE, *decided.writes[depth + 1 :]])
                moving = ids[np.isin(ids, below)]
                with contextlib.suppress(OSError):  # then it falls to nobody
                    kept = zip(moving.tolist(), tier.read(moving), strict=True)
                    falling.update((id, data) for id, data in kept if data is not None)
            self._guard(depth, lambda tier=tier, ids=ids: tier.drop(ids))  # type: ignore[misc]
        return falling

    def _write(
        self,
        depth: int,
        ids: Ids,
        data: Mapping[int, Buffer | Unreadable],
        falling: Mapping[int, Buffer],
        number: int,
    ) -> None:
        found = [_bytes(data.get(id, falling.get(id)), limit) for id, limit in self._limits(ids)]
        there = np.array([item is not None for item in found], np.bool_)
        if depth in self._broken:
            there[:] = False
        tier = self.levels[depth].tier
        if there.any():
            chosen = [item for item in found if item is not None]
            written = self._guard(depth, lambda: tier.write(ids[there], chosen))
            there &= written
        if not there.all():
            self.lose(depth, ids[~there], number)

    def _limits(self, ids: Ids) -> list[tuple[int, int]]:
        return list(zip(ids.tolist(), self._sizes[ids].tolist(), strict=True))

    def _guard(self, depth: int, act: Callable[[], None]) -> bool:
        """Do something to a tier; if it fails, turn the tier off with one warning, and go on without it."""
        try:
            act()
            return True
        except (TierFailed, OSError) as error:
            tier = self.levels[depth].tier
            self._broken.add(depth)
            self.lose(depth, np.arange(len(self._sizes)), np.iinfo(np.int32).max)
            warnings.warn(
                f"the {tier.name} tier is turned off: {error}. Training goes on without it.",
                AuguryWarning,
                stacklevel=2,
            )
            return False

    def _apply(self, ticket: Ticket, data: Mapping[int, Buffer | Unreadable]) -> None:
        decided = ticket.step
        if decided.on_top:
            return
        falling = self._drop(decided)
        for depth, ids in enumerate(decided.writes):
            if len(ids):
                self._write(depth, ids, data, falling, ticket.number)

    def _advance(self) -> None:
        while True:
            with self._turning:
                self.turn += 1
                orphan = self._orphans.pop(self.turn, None)
            if orphan is None:
                break
            self._apply(orphan, {})
        for bell in self._bells:
            bell.ring()


class _Waiting:
    """A thread that waits for its turn."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    def wait(self) -> None:
        self._event.wait()
        self._event.clear()


def _bytes(data: Buffer | Unreadable | None, limit: int) -> Buffer | None:
    return None if data is None or isinstance(data, Unreadable) or len(data) > limit else data


def _only_drops(levels: int, level: int, ids: Ids) -> Step:
    drops = [ids if at == level else NONE for at in range(levels)]
    return Step(NONE, NONE, np.empty(0, np.int8), NONE, [NONE] * levels, drops)
