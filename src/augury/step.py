"""The heart: one batch's decisions over a stack of policies, shared by the simulator and the live cache.

Pure: policies in, ids out; no bytes, tiers, clock or threads. The cache (cache.py) moves the bytes afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from augury.ids import NONE, Ids, Times, first_seen
from augury.metrics import Counts
from augury.policies import Policy


@dataclass(slots=True)
class Step:
    """What is to be done for one batch of requests."""

    asked: Ids
    served: Ids
    """Each requested id, or its stand-in."""
    level: NDArray[np.int8]
    """Which level of the stack held each served id; the number of levels stands for the source."""
    missed: Ids
    """Distinct ids to be read from the source, in access order."""
    writes: list[Ids]
    """Per level: ids whose bytes it takes."""
    drops: list[Ids]
    """Per level: ids whose bytes it gives up, before it takes any."""

    on_top: bool = False
    """Whether the topmost tier held everything as asked for: then no byte moves between tiers."""

    def counts(self) -> Counts:
        if self.on_top:
            return Counts(len(self.asked), hits=len(self.asked))
        return Counts.of(self.asked, self.served, self.level < len(self.writes), self.missed)


def step(stack: Sequence[Policy], ids: Ids, job: int = 0, admit: bool = True) -> Step:
    """Serve a batch: who holds each id, what must be read, and what each level takes and gives up.

    Every policy of the stack sees every request, so that each has the same view of use. An id is held by one level
    at most: what an upper level gives up is offered to the next one down, and what a lower level holds is
    offered to those above, and leaves it if admitted there. Without `admit` nothing is noted and nothing changes.
    """
    source = len(stack)
    nothing = [NONE] * source
    served, level = _serve(stack, ids, job, admit)
    if source and not level.any():
        return Step(ids, served, level, NONE, nothing, nothing, on_top=served is ids)
    missed = first_seen(served[level == source])
    if not admit:
        return Step(ids, served, level, missed, nothing, nothing)
    absent = first_seen(served[level > 0]) if source > 1 else missed
    writes, drops = _place(stack, absent)
    return Step(ids, served, level, missed, writes, drops)


def uncached(levels: int, ids: Ids) -> Step:
    """Serve a batch as if there were no cache: nothing is noted, taken or given up."""
    nothing = [NONE] * levels
    return Step(ids, ids, np.full(len(ids), levels, np.int8), first_seen(ids), nothing, nothing)


def plan(stack: Sequence[Policy], order: Ids, job: int = 0, times: Times | None = None, later: Ids = NONE) -> None:
    """Tell every level the future; what a level has set aside for itself is no business of those below it."""
    for policy in stack:
        taken = policy.plan(order, job, times, later)
        if len(taken):
            rest = ~np.isin(order, taken)
            order, times = order[rest], None if times is None else times[rest]
            later = later[~np.isin(later, taken)]


def prefetch(stack: Sequence[Policy], ids: Ids) -> Step:
    """Take ids that nobody asked for, as far as a level keeps them; the others need not be read."""
    source = len(stack)
    level = np.full(len(ids), source, np.int8)
    for depth in reversed(range(source)):
        level[stack[depth].resident[ids]] = depth
    writes, drops = _place(stack, ids[level > 0])
    taken = np.zeros(len(ids), np.bool_)
    for kept in writes:
        taken |= np.isin(ids, kept)
    served, level = ids[taken], level[taken]
    return Step(served, served, level, served[level == source], writes, drops)


def _serve(stack: Sequence[Policy], ids: Ids, job: int, admit: bool) -> tuple[Ids, NDArray[np.int8]]:
    source = len(stack)
    if source == 0:
        return ids, np.zeros(len(ids), np.int8)
    served = stack[0].serve(ids, job) if admit else ids
    level = (~stack[0].resident[served]).view(np.int8)  # 0: found on top, 1: not
    if source == 1:
        return served, level
    level *= source
    for depth, policy in enumerate(stack[1:], start=1):
        answer = policy.serve(served, job) if admit else served
        found = policy.resident[answer] & (level == source)
        level[found] = depth
        if answer is not served:
            served = np.where(found, answer, served)
    return served, level


def _place(stack: Sequence[Policy], offered: Ids) -> tuple[list[Ids], list[Ids]]:
    """Offer absent ids to the topmost level, what does not stay there to the next, and so on."""
    writes: list[Ids] = []
    drops: list[list[Ids]] = [[] for _ in stack]
    for depth, policy in enumerate(stack):
        kept, evicted = policy.admit(offered)
        stays = offered[kept]
        writes.append(stays)
        drops[depth].append(evicted)
        if depth + 1 == len(stack):
            break
        rest = offered[~kept]
        for below in range(depth + 1, len(stack)):
            held = stack[below].resident
            risen = stays[held[stays]]
            if len(risen):
                stack[below].forget(risen)
                drops[below].append(risen)
            rest = rest[~held[rest]]  # it stays where it is
        offered = np.concatenate([evicted, rest])
    return writes, [np.concatenate(parts) if len(parts) > 1 else parts[0] for parts in drops]
