"""The lowest keys of a changing set, found a batch at a time.

`Front` answers one question for `Ranked`: which residents have the lowest keys? It keeps sorted runs of
(key, id) for all residents below a threshold and looks at the others only when the runs are used up. Entries
are never removed: one whose id has left or has got another key is passed over when met. It decides nothing.

Why not a heap: a heap costs Python work per access, and an access in the middle of training must cost less
than a microsecond at ten million ids. Here an access costs a few array operations per batch, and the scan of
all residents is paid once per eighth of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from augury.ids import NONE, Ids, Mask, first_seen

Keys = NDArray[np.float64]

_SHARE = 8
"""A scan takes the lowest 1/8 of the residents: scanning then costs each eviction 8 elements."""
_LEAST = 2048
"""... but never fewer than this, so that small caches do not scan at every batch."""

_GROWTH = 4
"""Each run is at least this many times longer than the next, so that there are few of them to look into."""


class _Run:
    """Entries sorted by key; those before `start` are spent."""

    __slots__ = ("ids", "keys", "start")

    def __init__(self, keys: Keys, ids: Ids, in_order: bool = False) -> None:
        self.keys, self.ids = (keys, ids) if in_order else _sorted(keys, ids)
        self.start = 0

    def __len__(self) -> int:
        return len(self.ids) - self.start


class _Gathering:
    """A scan in pieces, as far as it has come."""

    def __init__(self) -> None:
        self.runs: list[_Run] = []
        self.stop = 0
        """The ids below were scanned."""
        self.threshold = np.inf
        self.late: list[Ids] = []
        """Who came, or got another key, after its piece was scanned."""


class Front:
    """The residents with the lowest keys. `key` and `resident` are the policy's and only read here."""

    def __init__(self, key: Keys, resident: Mask) -> None:
        self._key, self._resident = key, resident
        self._runs: list[_Run] = []
        self._threshold = -np.inf
        """No resident outside the runs has a key below this."""
        self._room = 0
        self._gathering: _Gathering | None = None

    def restart(self) -> None:
        """Any key may have changed."""
        self._runs.clear()

    def gather(self, start: int, stop: int) -> None:
        """Scan the residents among the ids [start, stop) only. Until `gathered` nobody may ask for the lowest."""
        if self._gathering is None:
            self._gathering = _Gathering()
        self._gathering.stop = stop
        ids = start + np.flatnonzero(self._resident[start:stop])
        keys = self._key[ids]
        take = max(_LEAST, len(ids) // _SHARE)
        if take < len(ids):
            lowest = _lowest(keys, take)
            ids, keys = ids[lowest], keys[lowest]
            self._gathering.threshold = min(self._gathering.threshold, float(keys.max()))
        self._gathering.runs.append(_Run(keys, ids))

    def gathered(self) -> None:
        """All ids were gathered. Entries above the threshold go: there may be residents between them."""
        gathering, self._gathering = self._gathering, None
        assert gathering is not None
        keys = np.concatenate([run.keys for run in gathering.runs])
        ids = np.concatenate([run.ids for run in gathering.runs])
        # Sorted pieces, ids ascending from one to the next: a stable sort has little to do, and keeps equals by id.
        order = np.flatnonzero(keys <= gathering.threshold)
        order = order[keys[order].argsort(kind="stable")]
        self._begin(_Run(keys[order], ids[order], in_order=True), len(order))
        self.note(first_seen(np.concatenate([NONE, *gathering.late])))

    def note(self, ids: Ids) -> None:
        """Residents `ids` have new keys (or are new residents).

        A policy whose keys only rise, above every key so far, need not say so: a scan sees to it.
        """
        if self._gathering is not None:
            self._gathering.late.append(ids[ids < self._gathering.stop])
        if not self._runs:
            return
        keys = self._key[ids]
        low = keys < self._threshold
        count = int(np.count_nonzero(low))
        if count == 0:
            return
        self._runs.append(_Run(keys[low], ids[low]))
        while len(self._runs) > 1 and len(self._runs[-2]) <= _GROWTH * len(self._runs[-1]):
            self._merge_last_two()
        if sum(map(len, self._runs)) > self._room:
            self._runs.clear()  # mostly outdated entries: cheaper to scan again when next asked

    def lowest(self, count: int) -> Ids:
        """The `count` residents of lowest key, ascending (all of them if there are fewer)."""
        found = self._peek(count) if self._runs else NONE
        if len(found) < count:
            self._scan(count)
            found = self._peek(count)
        return found

    def _peek(self, count: int) -> Ids:
        """The lowest `count` valid entries of all runs."""
        longest, *others = self._runs
        parts = [self._head(longest, count)]
        keys = parts[0][0]
        bound = keys[count - 1] if len(keys) >= count else np.inf
        for run in others:  # mostly, none of their entries is so low
            near = int(run.keys[run.start :].searchsorted(bound))
            if near:
                parts.append(self._head(run, min(count, near)))
        if len(parts) == 1:
            return parts[0][1][:count]
        low_keys, low_ids = zip(*parts, strict=True)
        return _sorted(np.concatenate(low_keys), np.concatenate(low_ids))[1][:count]

    def _head(self, run: _Run, count: int) -> tuple[Keys, Ids]:
        """The first `count` valid entries of a run (fewer at its end); moves its start past outdated ones."""
        want = count
        while True:
            ids = run.ids[run.start : run.start + want]
            keys = run.keys[run.start : run.start + want]
            valid = self._resident[ids] & (self._key[ids] == keys)
            good = int(np.count_nonzero(valid))
            if good == len(ids):
                return keys, ids
            first = int(valid.argmax()) if good else len(ids)
            run.start += first
            if good >= count or run.start + want - first >= len(run.ids):
                valid = valid[first:]
                return keys[first:][valid], ids[first:][valid]
            want = min(2 * want, len(run))

    def _merge_last_two(self) -> None:
        last, before = self._runs.pop(), self._runs.pop()
        ids = np.concatenate([before.ids[before.start :], last.ids[last.start :]])
        keys = np.concatenate([before.keys[before.start :], last.keys[last.start :]])
        valid = self._resident[ids] & (self._key[ids] == keys)
        self._runs.append(_Run(keys[valid], ids[valid]))

    def _scan(self, count: int) -> None:
        """Start anew: one run of the lowest keys among all residents."""
        ids = np.flatnonzero(self._resident)
        keys = self._key[ids]
        take = max(_LEAST, len(ids) // _SHARE, 2 * count)
        if take < len(ids):
            lowest = _lowest(keys, take)
            ids, keys = ids[lowest], keys[lowest]
        self._begin(_Run(keys, ids), take)

    def _begin(self, run: _Run, count: int) -> None:
        """From here on with this one: nobody outside it has a key below its last."""
        self._runs = [run]
        # Not infinity, even if all residents are here: keys may rise unnoted, and then lie outside.
        self._threshold = float(run.keys[-1]) if len(run) else -np.inf
        self._room = 2 * count + 2 * _LEAST


def _sorted(keys: Keys, ids: Ids) -> tuple[Keys, Ids]:
    """By key, each id once. An id may come twice (it left and came back), then with the same key.

    Of equal keys by id, so that all machines decide the same: fast sorts are not stable.
    """
    order = keys.argsort()
    by_key = keys[order]
    if not (by_key[1:] == by_key[:-1]).any():
        return by_key, ids[order]
    order = np.lexsort((ids, keys))
    keys, ids = keys[order], ids[order]
    distinct = np.ones(len(ids), np.bool_)
    np.not_equal(ids[1:], ids[:-1], out=distinct[1:])
    return keys[distinct], ids[distinct]


def _lowest(keys: Keys, count: int) -> NDArray[np.intp]:
    """Where the `count` lowest keys stand; of equal keys, those that stand first."""
    limit = np.partition(keys, count - 1)[count - 1]
    below = np.flatnonzero(keys < limit)
    equal = np.flatnonzero(keys == limit)[: count - len(below)]
    return np.concatenate([below, equal])
