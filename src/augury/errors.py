"""Every error that Augury raises on purpose.

    AuguryError
    ├── ConfigError (ValueError)        an argument that cannot work; says which, why, and what to write instead
    │   ├── UnknownName                 a name that is not in a table; suggests the nearest
    │   └── InUse                       a cache directory that another process is using
    ├── CatalogError                    a catalog that cannot be built or opened
    ├── Unreadable (OSError)            one sample that cannot be read; has its id and location
    │   └── Stale                       ... because the data is no longer what the catalog says
    ├── BadSample (ValueError)          one sample that cannot be decoded, transformed or collated; likewise
    ├── BadFeedback (ValueError)        a report of training that cannot be used; says what is wrong with it
    ├── TierFailed (OSError)            a tier that cannot go on; the cache turns it off and training continues
    └── Closed (RuntimeError)           use after close()

Warnings that users may filter are AuguryWarning. Nothing else lives here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AuguryError(Exception):
    """Base of all errors raised on purpose."""


class AuguryWarning(UserWarning):
    """Base of all warnings: something is slower or smaller than asked for, and training goes on."""


class ConfigError(AuguryError, ValueError):
    """An argument that cannot work."""


class UnknownName(ConfigError):
    """A name that is not in a table."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        super().__init__(f"unknown {kind} {name!r}: {hint}Known: {', '.join(known)}.")


class InUse(ConfigError):
    """A cache directory that another process is using."""


class CatalogError(AuguryError):
    """A catalog that cannot be built or opened."""


class Unreadable(AuguryError, OSError):
    """One sample that cannot be read. `transient` says whether trying again may help."""

    def __init__(self, id: int, location: str, reason: str, *, transient: bool = False) -> None:
        self.id, self.location, self.reason, self.transient = int(id), location, reason, transient
        super().__init__(f"sample {id} ({location}) cannot be read: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        return _unreadable, (type(self), self.id, self.location, self.reason, self.transient)


class Stale(Unreadable):
    """The data is no longer what the catalog says: a file is missing or has another size."""


class BadSample(AuguryError, ValueError):
    """One sample that cannot be decoded, transformed or collated."""

    def __init__(self, id: int, location: str, reason: str) -> None:
        self.id, self.location, self.reason = int(id), location, reason
        super().__init__(f"sample {id} ({location}): {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.id, self.location, self.reason)


class BadFeedback(AuguryError, ValueError):
    """A report of training that cannot be used: it is dropped and counted."""


class TierFailed(AuguryError, OSError):
    """A tier that cannot go on."""


class Closed(AuguryError, RuntimeError):
    """Use after close()."""


def _unreadable(kind: type[Unreadable], id: int, location: str, reason: str, transient: bool) -> Unreadable:
    return kind(id, location, reason, transient=transient)
