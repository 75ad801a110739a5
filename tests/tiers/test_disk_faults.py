"""The disk tier under faults: killed at every step, damaged, truncated, full, read-only, broken.

Whatever happens, what is read is right or a miss, and what cannot go on says so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import augury.tiers.disk
from augury.errors import TierFailed
from augury.ids import Ids, as_ids
from augury.testing.tiers import content, plain
from augury.tiers.disk import DiskTier

SAMPLES = 60
MIXED = np.resize(np.array([300, 1, 4096, 5000, 0, 20_000, 4081, 9000], np.int64), SAMPLES)
EQUAL = np.broadcast_to(np.int64(3073), SAMPLES)
BOTH = pytest.mark.parametrize("sizes", [MIXED, EQUAL], ids=["mixed", "equal"])
ALL = np.arange(SAMPLES)


def open_tier(path: Path, sizes: NDArray[Any]) -> closing[DiskTier]:
    # Without a floor of free space, so that it is the disk itself that refuses.
    return closing(DiskTier(path / "cache", 1 << 24, sizes, "a", floor=-(1 << 40)))


def items(sizes: NDArray[Any], ids: Ids) -> list[bytes]:
    return [content(id, int(sizes[id])) for id in ids.tolist()]


def file_of(path: Path, name: str) -> Path:
    return path / "cache" / "share-0" / name


def right_or_missed(tier: DiskTier, sizes: NDArray[Any], ids: Ids) -> int:
    """Check every id, and return how many are right."""
    read, expected = plain(tier.read(ids)), items(sizes, ids)
    assert all(each is None or each == right for each, right in zip(read, expected, strict=True))
    return sum(each is not None for each in read)


def churn(tier: DiskTier, sizes: NDArray[Any], rounds: int, seed: int) -> Iterator[int]:
    """Write and drop at random for so many rounds."""
    rng = np.random.default_rng(seed)
    for number in range(rounds):
        tier.drop(rng.permutation(SAMPLES)[:12])
        ids = rng.permutation(SAMPLES)[:12]
        tier.write(ids, items(sizes, ids))
        yield number


def killed_at(call: Callable[..., Any], step: list[int]) -> Callable[..., Any]:
    """The call, but when the steps are counted down it is torn in the middle by SIGKILL."""

    def torn(fd: int, first: Any, *rest: Any) -> Any:
        step[0] -= 1
        if step[0] >= 0:
            return call(fd, first, *rest)
        if call is os.pwritev:
            whole = b"".join(bytes(each) for each in first)
            os.pwrite(fd, whole[: len(whole) // 2], *rest)
        os.kill(os.getpid(), signal.SIGKILL)

    return torn


def run_and_die(path: Path, sizes: NDArray[Any], step: int) -> None:
    """In a fork: use the tier, and be killed in the middle of its n-th change to the disk."""
    child = os.fork()
    if child == 0:
        try:
            with open_tier(path, sizes) as tier:
                left = [step]
                os.pwritev = killed_at(os.pwritev, left)
                augury.tiers.disk.punch = killed_at(augury.tiers.disk.punch, left)  # type: ignore[attr-defined]
                for _ in churn(tier, sizes, 100, seed=step):
                    pass
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@BOTH
def test_killed_at_every_step(tmp_path: Path, sizes: NDArray[Any]) -> None:
    right = 0
    for step in range(40):
        run_and_die(tmp_path, sizes, step)
        with open_tier(tmp_path, sizes) as tier:
            held = tier.found()
            right += right_or_missed(tier, sizes, held)
            blocks = sum(each.stat().st_blocks for each in file_of(tmp_path, "").glob("data.*"))
            assert blocks * 512 <= tier.footprint(sizes[held]).sum() + 4096 or sizes is EQUAL
    assert right > 40 * 8


@BOTH
def test_killed_from_outside(tmp_path: Path, sizes: NDArray[Any]) -> None:
    """A process that works at full speed, killed while it does."""
    kind = "MIXED" if sizes is MIXED else "EQUAL"
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from pathlib import Path; from test_disk_faults import *\n"
        f"with open_tier(Path({str(tmp_path)!r}), {kind}) as tier:\n"
        "    for number in churn(tier, " + kind + ", 100_000, 0): print(number, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for rounds in (3, 10):
        with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(rounds):
                assert process.stdout.readline()
            process.kill()
        with open_tier(tmp_path, sizes) as tier:
            held = tier.found()
            # All but the batch that was being written at that moment.
            assert right_or_missed(tier, sizes, held) >= len(held) - 24


@BOTH
def test_flipped_bits_in_the_data(tmp_path: Path, sizes: NDArray[Any]) -> None:
    rng = np.random.default_rng(0)
    with open_tier(tmp_path, sizes) as tier:
        tier.write(ALL, items(sizes, ALL))
        layout = tier._layout
        with file_of(tmp_path, "data.0").open("r+b") as file:
            for id in ALL[::3].tolist():
                at = int(layout.offset_of(as_ids([id]))[0] + rng.integers(16 + sizes[id]))
                flip(file, at, int(rng.integers(8)))
        read = plain(tier.read(ALL))
        assert [each is None for each in read] == [id % 3 == 0 for id in range(SAMPLES)]
        assert right_or_missed(tier, sizes, ALL) == SAMPLES - 20
        # What was damaged is cleared: it can be written anew, and is not found again.
        tier.write(as_ids([0]), items(sizes, as_ids([0])))
        assert plain(tier.read(as_ids([0]))) == items(sizes, as_ids([0]))
        assert not tier.holds(ALL[3::3]).any()
    with open_tier(tmp_path, sizes) as tier:
        assert len(tier.found()) == SAMPLES - 19
        assert right_or_missed(tier, sizes, tier.found()) == SAMPLES - 19


@BOTH
def test_flipped_bits_in_the_index(tmp_path: Path, sizes: NDArray[Any]) -> None:
    rng, right = np.random.default_rng(0), 0
    for _ in range(20):
        with open_tier(tmp_path, sizes) as tier:
            tier.write(ALL[::2], items(sizes, ALL[::2]))
        index = file_of(tmp_path, "index")
        with index.open("r+b") as file:
            for at in rng.integers(index.stat().st_size, size=5).tolist():
                flip(file, at, int(rng.integers(8)))
        with open_tier(tmp_path, sizes) as tier:
            assert (tier.found() < SAMPLES).all()
            right += right_or_missed(tier, sizes, ALL)
            right_or_missed(tier, sizes, tier.found())
    assert right >= 20 * (SAMPLES // 2 - 5)


def test_two_slots_that_claim_one_id(tmp_path: Path) -> None:
    with open_tier(tmp_path, EQUAL) as tier:
        tier.write(ALL[:3], items(EQUAL, ALL[:3]))
    index = file_of(tmp_path, "index")
    tags = np.frombuffer(index.read_bytes(), "<i8").copy()
    tags[:3] = [2, 2, 3]
    index.write_bytes(tags.tobytes())
    with open_tier(tmp_path, EQUAL) as tier:
        assert tier.found().tolist() == [1, 2]
        assert right_or_missed(tier, EQUAL, ALL) == 2
        tier.write(ALL, items(EQUAL, ALL))
        assert right_or_missed(tier, EQUAL, ALL) == SAMPLES


def flip(file: Any, at: int, bit: int) -> None:
    file.seek(at)
    byte = file.read(1)[0]
    file.seek(at)
    file.write(bytes([byte ^ (1 << bit)]))


@BOTH
@pytest.mark.parametrize("name", ["data.0", "index"])
def test_truncated_file(tmp_path: Path, sizes: NDArray[Any], name: str) -> None:
    """Under a running tier, and found so by the next one."""
    with open_tier(tmp_path, sizes) as tier:
        tier.write(ALL, items(sizes, ALL))
        file = file_of(tmp_path, name)
        os.truncate(file, file.stat().st_size // 2)
        assert right_or_missed(tier, sizes, ALL) >= SAMPLES // 3
        tier.drop(ALL)
        tier.write(ALL, items(sizes, ALL))
        assert right_or_missed(tier, sizes, ALL) == SAMPLES
    os.truncate(file, file.stat().st_size // 2)
    with open_tier(tmp_path, sizes) as tier:
        assert right_or_missed(tier, sizes, ALL) >= SAMPLES // 3
        tier.write(ALL, items(sizes, ALL))
        assert right_or_missed(tier, sizes, ALL) == SAMPLES


@BOTH
@pytest.mark.parametrize("name", ["data.0", "index"])
def test_deleted_file(tmp_path: Path, sizes: NDArray[Any], name: str) -> None:
    with open_tier(tmp_path, sizes) as tier:
        tier.write(ALL, items(sizes, ALL))
    file_of(tmp_path, name).unlink()
    with open_tier(tmp_path, sizes) as tier:
        assert right_or_missed(tier, sizes, ALL) == 0
        tier.write(ALL, items(sizes, ALL))
        assert right_or_missed(tier, sizes, ALL) == SAMPLES


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """A disk of 160 KiB at `path`; where mounting is not permitted, files that end at 64 KiB."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160k", "augury-test", path], capture_output=True, check=False
    )
    if mounted.returncode:
        yield short_files
        return
    try:
        yield contextlib.nullcontext
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@contextlib.contextmanager
def short_files() -> Iterator[None]:
    """Writes beyond 64 KiB of any file fail, as on a full disk; Python ignores the signal that says so."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def fill_until_it_fails(tier: DiskTier, sizes: NDArray[Any]) -> int:
    """How many samples were written before the disk refused one."""
    written = 0

    def fill() -> None:
        nonlocal written
        for id in range(SAMPLES):
            tier.write(as_ids([id]), items(sizes, as_ids([id])))
            written += 1

    with pytest.raises(TierFailed) as failure:
        fill()
    cause = failure.value.__cause__
    assert isinstance(cause, OSError)
    assert cause.errno in (errno.ENOSPC, errno.EFBIG)
    return written


@BOTH
def test_full_disk(tmp_path: Path, sizes: NDArray[Any]) -> None:
    with small_disk(tmp_path / "small") as limit:
        with open_tier(tmp_path / "small", sizes) as tier, limit():
            written = fill_until_it_fails(tier, sizes)
            assert right_or_missed(tier, sizes, ALL) == written > 3
        with open_tier(tmp_path / "small", sizes) as tier:
            assert right_or_missed(tier, sizes, ALL) == written


@BOTH
def test_file_that_cannot_grow(tmp_path: Path, sizes: NDArray[Any]) -> None:
    with open_tier(tmp_path, sizes) as tier, short_files():
        written = fill_until_it_fails(tier, sizes)
        assert right_or_missed(tier, sizes, ALL) == written > 3


@BOTH
@pytest.mark.parametrize("code", [errno.EDQUOT, errno.EROFS, errno.EIO])
def test_writes_that_the_disk_refuses(
    tmp_path: Path, sizes: NDArray[Any], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_tier(tmp_path, sizes) as tier:
        tier.write(ALL[:9], items(sizes, ALL[:9]))
        monkeypatch.setattr(os, "pwritev", failing(code))
        with pytest.raises(TierFailed, match=os.strerror(code)):
            tier.write(ALL[9:], items(sizes, ALL[9:]))
        with pytest.raises(TierFailed, match=os.strerror(code)):
            tier.drop(ALL[:3])
        monkeypatch.undo()
    with open_tier(tmp_path, sizes) as tier:
        assert right_or_missed(tier, sizes, ALL[3:9]) == 6


def test_broken_disk_on_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_tier(tmp_path, MIXED) as tier:
        tier.write(ALL, items(MIXED, ALL))
        monkeypatch.setattr(os, "pread", failing(errno.EIO))
        assert tier.read(ALL) == [None] * len(ALL), "unreadable samples are lost ones"
        monkeypatch.undo()


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system call may take less than it was given, without anything being wrong."""

    def half(fd: int, buffers: tuple[bytes, bytes], offset: int) -> int:
        whole = b"".join(buffers)
        return os.pwrite(fd, whole[: (len(whole) + 1) // 2], offset)

    monkeypatch.setattr(os, "pwritev", half)
    with open_tier(tmp_path, MIXED) as tier:
        tier.write(ALL, items(MIXED, ALL))
        assert right_or_missed(tier, MIXED, ALL) == SAMPLES


def test_close_under_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a read that is under way stay open until it ends."""
    real, tier = os.pread, open_tier(tmp_path, MIXED).thing  # type: ignore[attr-defined]
    tier.write(ALL, items(MIXED, ALL))

    def closing_first(*arguments: Any) -> bytes:
        tier.close()
        return real(*arguments)

    monkeypatch.setattr(os, "pread", closing_first)
    assert plain(tier.read(ALL)) == items(MIXED, ALL)
