"""The directory of packages: whose it is, and who may use it now.

    DIRECTORY/AUGURY-PACKAGES       marks the directory as ours; without it, a directory must be empty
    DIRECTORY/lock                  held by the process that uses the directory; contains its pid
    DIRECTORY/DIGEST.package        one package; the digest is that of its ids
    DIRECTORY/DIGEST.package.new    one that is being written, or whose writer was killed

Only packages are ever deleted, and nothing is written anywhere else. What is in the files is not known here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path

from augury.errors import ConfigError
from augury.tiers.directory import Descriptor, locked

MARKER = "AUGURY-PACKAGES"
_MARKER_TEXT = "This directory holds packages of Augury. It can be deleted at any time while no training runs.\n"
_PACKAGE = re.compile(r"([0-9a-f]{32})\.package(\.new)?")


def check_apart(directory: str | os.PathLike[str], source_root: str | os.PathLike[str]) -> None:
    """Raise ConfigError unless neither of the two lies in the other: packages never mix with the user's data."""
    if not os.path.exists(source_root):  # the samples are in memory, or elsewhere
        return
    packages, data = Path(directory).expanduser().resolve(), Path(source_root).resolve()
    if _lies_in(packages, data) or _lies_in(data, packages):
        raise ConfigError(
            f"packages cannot be kept in {packages}, because the data is in {data}: name a directory apart from it"
        )


class Directory:
    """A directory of packages, locked until `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            _mark_as_ours(path)
            self._lock: Descriptor | None = locked(path, f"the packages in {path} are", "give each its own directory")
        except OSError as error:
            raise ConfigError(
                f"packages cannot be kept in {path}: {error}. Name a directory that this user may write to."
            ) from error

    def file(self, name: str) -> Path:
        """Where the package of this name lies."""
        return self.path / f"{name}.package"

    def aside(self, name: str) -> Path:
        """Where it lies while it is being written."""
        return self.path / f"{name}.package.new"

    def found(self) -> list[str]:
        """The names of the packages there are. What killed writers have left is deleted."""
        names = []
        for match in filter(None, map(_PACKAGE.fullmatch, sorted(os.listdir(self.path)))):
            if match[2]:
                self.aside(match[1]).unlink(missing_ok=True)
            else:
                names.append(match[1])
        return names

    def sync(self) -> None:
        """Make renames last."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def release(self) -> None:
        """Let another process use the directory. Explicit, as a forked child may still refer to the lock."""
        lock, self._lock = self._lock, None
        if lock is not None:
            fcntl.flock(lock.fd, fcntl.LOCK_UN)


def _lies_in(inner: Path, outer: Path) -> bool:
    # By what the paths lead to: names differ where a file system ignores case or is mounted twice.
    above = (each for each in (inner, *inner.parents) if each.exists())
    return outer.exists() and any(os.path.samefile(each, outer) for each in above)


def _mark_as_ours(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = sorted(os.listdir(path))
    if names and MARKER not in names:
        some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise ConfigError(
            f"{path} has files that are not Augury's packages ({some}): name a new directory, such as {path / 'augury'}"
        )
    if path.stat().st_uid != os.geteuid():
        raise ConfigError(f"{path} is not a directory of this user: name another directory for packages")
    path.chmod(0o700)  # who may write here decides what training sees
    # Another process may be doing the same at this moment: whoever comes second finds the marker there.
    with contextlib.suppress(FileExistsError), open(path / MARKER, "x") as marker:
        marker.write(_MARKER_TEXT)
