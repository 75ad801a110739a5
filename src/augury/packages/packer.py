"""The threads that write the packages wanted, beside training, and remove those that are not.

What is wanted is said by `follow`, as often as it changes. Bytes come from the tap, from packages that hold them
already, or from the source. Which samples belong together is not decided here.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Sequence

import numpy as np

from augury.errors import AuguryWarning, Closed, Unreadable
from augury.fetch import BACKOFF, RETRIES
from augury.ids import NONE, Ids, as_ids, first_seen
from augury.packages.source import PackagedSource
from augury.packages.store import PackageStore
from augury.sources import Buffer
from augury.tiers.checks import byte_lengths

THREADS = 2
"""Reads at once for packing: few, so that training's own come first."""


class Packer:
    """Keeps `store` filled with the packages that are wanted. Any thread may call it; not to be used across a fork.

    Neither the source nor the store is closed with it: close it before them.
    """

    def __init__(self, source: PackagedSource, store: PackageStore, threads: int = THREADS) -> None:
        store.claim()
        # The threads know the work, not the packer: they end when nobody refers to it any more.
        self._work = _Work(source, store)
        self._finalizer = weakref.finalize(self, self._work.end)
        self._threads = [
            threading.Thread(target=self._work.run, name=f"augury-packer-{at}", daemon=True) for at in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def written(self) -> int:
        """Packages written so far."""
        return self._work.written

    @property
    def given_up(self) -> int:
        """Packages that had no room, or a sample that cannot be read."""
        return self._work.given_up

    @property
    def samples_tapped(self) -> int:
        """Samples that were packed without being read for it."""
        return self._work.samples_tapped

    @property
    def samples_read(self) -> int:
        """Samples that were read to be packed, from packages or from the source."""
        return self._work.samples_read

    def follow(self, packages: Sequence[Ids]) -> None:
        """From now on these are wanted, the most urgent first, and no others."""
        self._work.follow(packages)

    def wait(self, timeout: float | None = None) -> bool:
        """Until all that is wanted is written or given up, and the rest removed; whether it is."""
        return self._work.wait(timeout)

    def close(self) -> None:
        """End the threads, after the one read or write that each may have under way."""
        self._finalizer()
        for thread in self._threads:
            if thread is not threading.current_thread() and os.getpid() == self._work.pid:
                thread.join()


class _Work:
    """What the threads share. `changed` guards all of it, and is never held while bytes move."""

    def __init__(self, source: PackagedSource, store: PackageStore) -> None:
        self.source, self.store, self.pid = source, store, os.getpid()
        self.written = self.given_up = self.samples_tapped = self.samples_read = 0
        self.changed = threading.Condition()
        self.ending = False
        self.named: dict[int, tuple[Ids, Ids, str]] = {}
        """By identity, what `follow` was given last: most packages stay from time to time, and need no new name."""
        self.wanted: dict[str, Ids] = {}
        self.line: list[str] = []
        """Names to be written. Those before `at` are under way or done with; those before `heard` are the tap's."""
        self.at = self.heard = self.heard_bytes = 0
        self.making: dict[str, int] = {}
        """Names that a thread is busy with, and the room that each will need."""
        self.abandoned: list[str] = []
        """Ready, wanted no more, and still good to read from; the last one leaves first."""
        self.removing: set[str] = set()
        self.warned = False

    def follow(self, packages: Sequence[Ids]) -> None:
        named = {id(ids): self.named.get(id(ids)) or self._name(ids) for ids in packages}
        self.named = named
        wanted = {name: ids for _, ids, name in named.values() if len(ids)}
        with self.changed:
            if self.ending:
                raise Closed("the packer is closed")
            ready = self.store.ready
            self.wanted = wanted
            done = (ready.keys() | self.making.keys()) - self.removing
            self.line, self.at = [name for name in wanted if name not in done], 0
            # What is being made or removed is in good hands.
            others = ready.keys() - wanted.keys() - self.making.keys() - self.removing
            self.abandoned = self._least_useful_last({name: ready[name] for name in others})
            held = self.source.tap.shut()
            self.heard = self.heard_bytes = 0
            self._listen_ahead()
            self.source.tap.offer(*held)
            self.changed.notify_all()

    def _name(self, given: Ids) -> tuple[Ids, Ids, str]:
        ids = _checked(given, len(self.source.catalog))
        return given, ids, self.store.name_of(ids)

    def wait(self, timeout: float | None) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.ending or self._idle(), timeout)
            return self._idle()

    def end(self) -> None:
        """Tell the threads. The garbage collector may call this anywhere: it must not wait for long."""
        if os.getpid() != self.pid:  # a forked child has no such threads, and perhaps a lock that nobody will free
            return
        self.ending = True
        self.store.unclaim()
        if self.changed.acquire(timeout=1.0):
            self.changed.notify_all()
            self.changed.release()

    def run(self) -> None:
        """One thread, until the end."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.ending or self._has_work())
                if self.ending:
                    break
                name, ids = self._next()
            # Where warnings are made errors, nobody could catch one here.
            with contextlib.suppress(AuguryWarning):
                if name:
                    self._make(name, ids)
                else:
                    self._remove_one()
        self.source.tap.shut()

    def _idle(self) -> bool:
        return self.at >= len(self.line) and not (self.making or self.abandoned or self.removing)

    def _has_work(self) -> bool:
        """Whether there is something to do now. Whatever lacks room waits until it is sure that there will be none."""
        if self.at < len(self.line):
            name = self.line[self.at]
            return name not in self.removing and (self._fits(name) or not (self.making or self.removing))
        return bool(self.abandoned) and not self.making

    def _next(self) -> tuple[str, Ids]:
        """The package to make now; without a name where there is none, and what is abandoned can go."""
        while self.at < len(self.line):
            name = self.line[self.at]
            ids = self.wanted[name]
            if self.at < self.heard:
                self.heard_bytes -= self._content(ids)
            self.at += 1
            self.heard = max(self.heard, self.at)
            if self._fits(name):
                self.making[name] = self._cost(ids)
                self._listen_ahead()
                return name, ids
            self.source.tap.take(ids)
            self.given_up += 1
        self.changed.notify_all()
        return "", NONE

    def _fits(self, name: str) -> bool:
        """Whether there is room for it beside what is being made, once all that is abandoned is gone."""
        to_go = sum(map(self.store.size_of, self.abandoned))
        coming = sum(self.making.values()) + self._cost(self.wanted[name])
        return self.store.bytes_used - to_go + coming <= self.store.limit

    def _content(self, ids: Ids) -> int:
        return int(self.source.catalog.sizes[ids].sum())

    def _cost(self, ids: Ids) -> int:
        return self.store.cost_of(len(ids), self._content(ids))

    def _listen_ahead(self) -> None:
        """Let the tap listen for as many of the next packages as it has room for."""
        while self.heard < len(self.line):
            ids = self.wanted[self.line[self.heard]]
            if self.heard_bytes + self._content(ids) > self.source.tap.budget:
                return
            self.source.tap.want(ids)
            self.heard_bytes += self._content(ids)
            self.heard += 1

    def _least_useful_last(self, packages: dict[str, Ids]) -> list[str]:
        """Names of packages, the one that holds the most samples still to be packed first."""
        needed = np.zeros(len(self.source.catalog), np.bool_)
        for name in self.line:
            needed[self.wanted[name]] = True
        return sorted(packages, key=lambda name: (-np.count_nonzero(needed[packages[name]]), name))

    def _make(self, name: str, ids: Ids) -> None:
        """Write one package. Whatever goes wrong, the thread goes on with the next."""
        written, reason = False, ""
        try:
            data = self._collect(name, ids)
            if data is None:
                return
            written = self._write(ids, data)
        except Closed:
            self._give_up_all()
        except Exception as error:
            reason = str(error)
        with self.changed:
            self.making.pop(name, None)
            self.written += written
            self.given_up += not written
            if written and name not in self.wanted:
                self.abandoned.append(name)
            self.changed.notify_all()
        if reason:
            self._warn(f"a package is left out, and its samples are read one by one: {reason}")

    def _collect(self, name: str, ids: Ids) -> list[Buffer] | None:
        """Its samples; None if it is wanted no more."""
        found: dict[int, Buffer] = {**self.source.tap.take(ids)}
        tapped = len(found)
        rest = ids[np.fromiter((id not in found for id in ids.tolist()), np.bool_, len(ids))]
        for group in self.source.requests(rest):
            if self._dropped(name):
                return None
            found.update(self._read(group))
        with self.changed:
            self.samples_tapped += tapped
            self.samples_read += len(rest)
        return [found[id] for id in ids.tolist()]

    def _read(self, ids: Ids) -> dict[int, Buffer]:
        """One request's samples; what fails for the time being is tried again, anything else is raised."""
        found: dict[int, Buffer] = {}
        for attempt in range(RETRIES + 1):
            failed: list[Unreadable] = []
            for id, item in zip(ids.tolist(), self.source.read_aside(ids), strict=True):
                if isinstance(item, Unreadable):
                    failed.append(item)
                else:
                    found[id] = item
            if not failed:
                break
            final = [error for error in failed if not error.transient]
            if final or attempt == RETRIES or self.ending:
                raise (final or failed)[0]
            ids = as_ids([error.id for error in failed])
            with self.changed:
                self.changed.wait_for(lambda: self.ending, BACKOFF * 2**attempt)
        return found

    def _dropped(self, name: str) -> bool:
        """Whether it is wanted no more. If so, whoever wants it again will find it neither made nor being made."""
        with self.changed:
            if not self.ending and name in self.wanted:
                return False
            self.making.pop(name, None)
            self.changed.notify_all()
            return True

    def _write(self, ids: Ids, data: list[Buffer]) -> bool:
        """Write it, and remove what is abandoned as far as room is needed."""
        while not self.store.write(ids, data):
            if not self._remove_one():
                cost = self.store.cost_of(len(ids), int(byte_lengths(data).sum()))
                if self.store.bytes_used + cost <= self.store.limit:
                    self._give_up_all()  # it is not the limit but the disk, and so for the others
                return False
        return True

    def _remove_one(self) -> bool:
        """Remove a package that is abandoned, or wait for those that are being removed; False where there are none."""
        with self.changed:
            if not self.abandoned:
                waited = bool(self.removing)
                self.changed.wait_for(lambda: not self.removing)
                return waited
            name = self.abandoned.pop()
            self.removing.add(name)
        try:
            self.store.remove(name)
        finally:
            with self.changed:
                self.removing.discard(name)
                self.changed.notify_all()
        return True

    def _give_up_all(self) -> None:
        with self.changed:
            self.given_up += len(self.line) - self.at
            self.at = self.heard = len(self.line)
            self.heard_bytes = 0
        self.source.tap.shut()

    def _warn(self, text: str) -> None:
        """Once, and not of what fails because all is being closed."""
        with self.changed:
            silent = self.warned or self.ending
            self.warned = True
        if not silent:
            warnings.warn(text, AuguryWarning, stacklevel=2)


def _checked(ids: Ids, samples: int) -> Ids:
    ids = first_seen(as_ids(ids))
    if len(ids) and not 0 <= ids.min() <= ids.max() < samples:
        raise IndexError(f"a package names ids that are not in [0, {samples})")
    return ids
