"""The journal of a catalog: digests that are made and not yet in it, left by a run that was stopped for the next one.

    DIRECTORY/digests.journal       rows of an id, its digest, and a check over both and the catalog's fingerprint

Rows are only appended. One that is torn, garbled or of another catalog does not fit its check and does not count: no
write need be synced, no file repaired. Who has the journal open has it locked, and alone replaces the catalog. How
digests are made is the business of `digests`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from augury.catalog import DIGEST, Catalog
from augury.digests import Digests, carried, digest
from augury.errors import CatalogError, ConfigError, InUse
from augury.ids import Ids

FILE = "digests.journal"
_ROW = np.dtype([("id", "<i8"), ("digest", "u1", (DIGEST,)), ("check", "<u8")])
_PATIENCE = 2.0
"""Seconds to wait for another process: longer than one needs to save a catalog, shorter than one hashes."""


class Journal:
    """The right to replace the catalog in a directory, and the file that keeps digests until then. A context."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = Path(place)
        self.resumed = 0
        """How many digests a run that was stopped has left; known after `adopt`."""
        self._made = not self.place.exists()
        self._file, self._salt = -1, np.uint64(0)

    def __enter__(self) -> Journal:
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            self._file = _locked(self.place / FILE)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"cannot write to {self.place}: {reason}; choose another place with --out DIR") from error
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if os.fstat(self._file).st_size == 0:
                (self.place / FILE).unlink()
                if self._made:
                    self.place.rmdir()  # which it only does if nothing was saved
        os.close(self._file)

    def adopt(self, catalog: Catalog) -> Catalog:
        """Save a catalog in place of the one before, with the digests known of samples that are still the same."""
        before = self._before()
        catalog = catalog.with_digests(None if before is None else carried(before, catalog))
        self.save(catalog)
        return catalog

    def save(self, catalog: Catalog) -> None:
        """Save a catalog that has all digests of the journal; rows added from now on are of this one."""
        catalog.save(self.place)
        os.ftruncate(self._file, 0)
        self._salt = _salt(catalog)

    def add(self, ids: Ids, digests: Digests) -> None:
        """Keep these digests even if the process is killed."""
        rows = np.empty(len(ids), _ROW)
        rows["id"], rows["digest"] = ids, digests
        rows["check"] = _checks(rows, self._salt)
        data = memoryview(rows.tobytes())
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            reason = error.strerror or error
            raise CatalogError(f"cannot write {self.place / FILE}: {reason}; what is in it is kept") from error

    def _before(self) -> Catalog | None:
        """The catalog that is there, with what the journal has of it."""
        try:
            before = Catalog.open(self.place)
        except CatalogError:
            return None
        rows = _rows(self._file, before)
        self.resumed = len(rows)
        if not len(rows):
            return before
        digests = np.zeros((len(before), DIGEST), np.uint8) if before.digests is None else before.digests.copy()
        digests[rows["id"]] = rows["digest"]
        return before.with_digests(digests)


def _rows(file: int, catalog: Catalog) -> NDArray[Any]:
    """The rows that are whole and of this catalog."""
    with open(file, "rb", closefd=False) as opened:
        opened.seek(0)
        data = opened.read()
    rows = np.frombuffer(data, _ROW, len(data) // _ROW.itemsize)
    fitting: NDArray[Any] = rows[_checks(rows, _salt(catalog)) == rows["check"]]
    return fitting[(fitting["id"] >= 0) & (fitting["id"] < len(catalog))]


def _salt(catalog: Catalog) -> np.uint64:
    return np.uint64(int.from_bytes(digest(catalog.fingerprint.encode())[:8], "little"))


def _checks(rows: NDArray[Any], salt: np.uint64) -> NDArray[np.uint64]:
    """Eight bytes per row that no torn or foreign one will have."""
    check: NDArray[np.uint64] = rows["id"].astype(np.uint64) ^ salt
    for word in np.ascontiguousarray(rows["digest"]).view("<u8").T:
        check = (check ^ word) * np.uint64(0xBF58476D1CE4E5B9)
        check ^= check >> np.uint64(31)
    return check


def _locked(path: Path) -> int:
    """The file, made if need be and locked; InUse where another process has it for long."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        if _lock(file) and _is_at(path, file):
            return file
        os.close(file)
        if time.monotonic() > deadline:
            raise InUse(f"another process is making the digests of {path.parent}: wait until it has ended")
        time.sleep(0.01)


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: nobody else can be told, and files are replaced at once anyway
    return True


def _is_at(path: Path, file: int) -> bool:
    """Whether this is still the file of that name: who had the lock before may have removed it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False
