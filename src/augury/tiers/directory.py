"""The directory of a disk tier: whose it is, who may use it now, and its files.

    DIRECTORY/AUGURY-CACHE          marks the directory as ours; without it, a directory must be empty
    DIRECTORY/share-0/              one per process that caches on this machine, mode 0700
        lock                        held by the process that uses the share; contains its pid
        tier.json                   format, dataset and layout of the files below
        index                       one tag per place
        data.0, data.1, ...         the samples
    DIRECTORY/share-node/           a node's, with its files in 00, 01, ... ff (node/files.py)

Only these files are ever deleted. Nothing here knows what the files contain.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from augury.errors import ConfigError, InUse, TierFailed

FORMAT = 1
MARKER = "AUGURY-CACHE"
_MARKER_TEXT = "This directory is a cache of Augury. It can be deleted at any time while no training runs.\n"
_EACH_ITS_OWN = (
    "give each job its own directory (ranks of one job share one if LOCAL_RANK and LOCAL_WORLD_SIZE are set, as "
    "torchrun does)"
)
_OUR_FILES = re.compile(r"lock|tier\.json|tier\.json\.new|index|probe|data\.\d+|[0-9a-f]{2}")
_SHARE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_USERS_TO_MEND = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EFBIG}


class Descriptor:
    """An open file that closes when nobody refers to it any more, never under a thread that reads it."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.fd)


class Share:
    """One process's part of a cache directory, locked until `release`."""

    def __init__(self, directory: Path, name: str) -> None:
        if not _SHARE_NAME.fullmatch(name):
            raise ConfigError(f"share={name!r} is not a name: use letters, digits, '_', '.' and '-'")
        self.path = directory / f"share-{name}"
        with mending(directory):
            _mark_as_ours(directory)
            _make_private(self.path)
            self._lock: Descriptor | None = locked(self.path, f"the disk cache {self.path} is", _EACH_ITS_OWN)

    def prepare(self, fingerprint: str, layout: str) -> bool:
        """Whether the files are those of this dataset and layout; if not, they are deleted."""
        wanted = {"format": FORMAT, "fingerprint": fingerprint, "layout": layout}
        marker = self.path / "tier.json"
        with mending(self.path):
            if _read_json(marker) == wanted:
                return True
            # The files go first: a crash before the new marker leaves an empty tier, not a false one.
            self.clear()
            aside = self.path / "tier.json.new"
            aside.write_text(json.dumps(wanted))
            aside.replace(marker)
        return False

    def clear(self) -> None:
        """Delete what the share holds."""
        for each in self.path.iterdir():
            if each.name != "lock":
                each.unlink()

    def open(self, name: str, length: int) -> Descriptor:
        """One of the share's files, made as long as it must be; what is missing is a hole."""
        with mending(self.path):
            file = Descriptor(self.path / name)
            if os.fstat(file.fd).st_size != length:
                os.ftruncate(file.fd, length)
        return file

    def release(self) -> None:
        """Let another process use the share. Explicit, as a forked child may still refer to the lock."""
        lock, self._lock = self._lock, None
        if lock is not None:
            fcntl.flock(lock.fd, fcntl.LOCK_UN)


def empty_shares_beyond(directory: Path, shares: int) -> None:
    """Give back what a run of more processes has left: the limit is for all shares together. One in use stays."""
    for path in directory.glob("share-*"):
        number = path.name.removeprefix("share-")
        if number.isdigit() and int(number) >= shares:
            with contextlib.suppress(ConfigError):
                share = Share(directory, number)
                share.clear()
                share.release()


@contextlib.contextmanager
def mending(path: Path) -> Iterator[None]:
    """Turn errors of opening into ConfigError where the user can mend them, into TierFailed otherwise."""
    try:
        yield
    except TierFailed:
        raise
    except OSError as error:
        if error.errno in _USERS_TO_MEND:
            raise ConfigError(
                f"the disk cache cannot use {path}: {error}. Give it a directory that this user may write to."
            ) from error
        raise TierFailed(f"the disk cache at {path} cannot be opened: {error}") from error


def _mark_as_ours(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = os.listdir(directory)
    foreign = sorted(name for name in names if name != MARKER and not (MARKER in names and name.startswith("share-")))
    if foreign:
        raise ConfigError(_foreign(directory, foreign) + f"name a new directory, such as {directory / 'augury'}")
    # Another rank may be doing the same at this moment: whoever comes second finds the marker there.
    with contextlib.suppress(FileExistsError), open(directory / MARKER, "x") as marker:
        marker.write(_MARKER_TEXT)


def _make_private(path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if path.is_symlink() or not path.is_dir() or status.st_uid != os.geteuid():
        raise ConfigError(f"{path} is not a directory of this user: name another directory for the disk cache")
    path.chmod(0o700)
    foreign = sorted(name for name in os.listdir(path) if not _OUR_FILES.fullmatch(name))
    if foreign:
        raise ConfigError(_foreign(path, foreign) + "move them elsewhere, or name another directory")


def _foreign(directory: Path, names: list[str]) -> str:
    some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{directory} has files that are not Augury's ({some}), and it deletes no one else's: "


def locked(path: Path, what: str, advice: str, name: str = "lock") -> Descriptor:
    """The lock of a directory, taken; InUse, with the pid that has it, where another process does. Closing frees it."""
    lock = Descriptor(path / name)
    try:
        fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(lock.fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise InUse(f"{what} in use by process {pid}: end that process, or {advice}") from None
    os.ftruncate(lock.fd, 0)
    os.pwrite(lock.fd, f"{os.getpid()}\n".encode(), 0)
    return lock


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = getattr(_libc, "fallocate", None)
if _fallocate is not None:
    _fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def punch(fd: int, offset: int, length: int) -> None:
    """Give the blocks of a range back to the file system; they read as zeros from then on."""
    if _fallocate is None:
        raise OSError(errno.EOPNOTSUPP, "this system cannot punch holes into files")
    if length and _fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, offset, length):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def check_punching(share: Share, block: int) -> None:
    """Raise ConfigError unless the file system gives back a single block punched out of a file."""
    probe = share.open("probe", 0)
    try:
        with mending(share.path):
            os.pwrite(probe.fd, b"\1" * (3 * block), 0)
            os.fsync(probe.fd)
            before = os.fstat(probe.fd).st_blocks
            with contextlib.suppress(OSError):
                punch(probe.fd, block, block)
            os.fsync(probe.fd)
            if os.fstat(probe.fd).st_blocks >= before:
                raise ConfigError(
                    f"the file system of {share.path} cannot give back single blocks of a file, which "
                    "samples of mixed sizes need: name a directory on ext4, XFS, Btrfs or tmpfs"
                )
    finally:
        (share.path / "probe").unlink(missing_ok=True)
