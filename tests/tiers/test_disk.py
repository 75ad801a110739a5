"""The disk tier: the contract, restarts, limits in real disk blocks, and whose directory it is."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import augury.tiers.directory
import augury.tiers.disk
from augury.errors import ConfigError, TierFailed
from augury.ids import Ids, as_ids
from augury.testing import TierContract
from augury.testing.tiers import content, plain
from augury.tiers import Tier
from augury.tiers.disk import DiskTier
from augury.tiers.layout import Places, Slots, choose_layout

MIXED = np.resize(np.array([300, 1, 4096, 5000, 0, 20_000, 4081, 70_000], np.int64), 400)
EQUAL = np.broadcast_to(np.int64(3073), 400)
BOTH = pytest.mark.parametrize("sizes", [MIXED, EQUAL], ids=["mixed", "equal"])
PLENTY = 1 << 26


def open_tier(path: Path, sizes: NDArray[Any] = MIXED, capacity: int = PLENTY, **options: Any) -> closing[DiskTier]:
    return closing(DiskTier(path / "cache", capacity, sizes, options.pop("fingerprint", "a"), **options))


def items(sizes: NDArray[Any], ids: Ids) -> list[bytes]:
    return [content(id, int(sizes[id])) for id in ids.tolist()]


def usage(path: Path) -> int:
    """Real disk blocks of everything below a directory, in bytes."""
    return sum(each.stat().st_blocks * 512 for each in path.rglob("*") if each.is_file())


class TestMixedSizes(TierContract):
    def make(self, tmp_path: Path, sizes: NDArray[np.int64], capacity: int) -> Tier:
        return DiskTier(tmp_path, capacity, sizes, "contract", floor=0)


class TestEqualSizes(TierContract):
    uniform = 3073

    def make(self, tmp_path: Path, sizes: NDArray[np.int64], capacity: int) -> Tier:
        return DiskTier(tmp_path, capacity, sizes, "contract", floor=0)


class TestManyFiles(TierContract):
    """With segments so small that the samples spread over many files."""

    @pytest.fixture(autouse=True)
    def small_segments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(augury.tiers.disk, "SEGMENT", 3 * 4096)

    def make(self, tmp_path: Path, sizes: NDArray[np.int64], capacity: int) -> Tier:
        return DiskTier(tmp_path, capacity, sizes, "contract", floor=0)


def test_layout_is_the_cheaper_one() -> None:
    assert isinstance(choose_layout(EQUAL, PLENTY), Slots)
    assert isinstance(choose_layout(np.array([3000, 3073, 3050]), PLENTY), Slots)
    assert isinstance(choose_layout(MIXED, PLENTY), Places)
    assert isinstance(choose_layout(MIXED[:0], PLENTY), Slots)


def test_places_do_not_overlap() -> None:
    layout = Places(MIXED)
    starts = layout.offset_of(np.arange(len(MIXED)))
    assert (starts[1:] == (starts + layout.span(MIXED))[:-1]).all()
    assert layout.extent == starts[-1] + layout.span(MIXED)[-1]


@BOTH
def test_restart_is_warm(tmp_path: Path, sizes: NDArray[Any]) -> None:
    ids = np.arange(0, 400, 3)
    with open_tier(tmp_path, sizes) as tier:
        tier.write(ids, items(sizes, ids))
        tier.drop(ids[::2])
    with open_tier(tmp_path, sizes) as tier:
        assert tier.found().tolist() == ids[1::2].tolist()
        assert plain(tier.read(ids[1::2])) == items(sizes, ids[1::2])
        assert tier.read(ids[::2]) == [None] * len(ids[::2])
        tier.write(ids[::2], items(sizes, ids[::2]))
        assert plain(tier.read(ids)) == items(sizes, ids)


@BOTH
def test_smaller_than_the_catalog_says(tmp_path: Path, sizes: NDArray[Any]) -> None:
    with open_tier(tmp_path, sizes) as tier:
        tier.write(as_ids([0, 7]), [b"", b"short"])
        assert plain(tier.read(as_ids([0, 7]))) == [b"", b"short"]
    with open_tier(tmp_path, sizes) as tier:
        assert plain(tier.read(as_ids([0, 7]))) == [b"", b"short"]


@BOTH
def test_limit_holds_in_disk_blocks(tmp_path: Path, sizes: NDArray[Any]) -> None:
    """Random exchange in a full tier: the blocks on disk never exceed the limit, but for housekeeping."""
    capacity, rng = 1_000_000, np.random.default_rng(0)
    with open_tier(tmp_path, sizes, capacity, floor=0) as tier:
        held: list[int] = []
        for _ in range(60):
            coming = rng.permutation(np.setdiff1d(np.arange(400), held))[:16]
            cost = int(tier.footprint(sizes[coming]).sum())
            while held and cost + int(tier.footprint(sizes[held]).sum()) > capacity:
                tier.drop(as_ids([held.pop(int(rng.integers(len(held))))]))
            tier.write(coming, items(sizes, coming))
            held += coming.tolist()
            data = tmp_path / "cache" / "share-0" / "data.0"
            assert data.stat().st_blocks * 512 <= capacity + 4096
            assert usage(tmp_path) <= capacity + 7 * 4096
        assert plain(tier.read(as_ids(held))) == items(sizes, as_ids(held))


def test_dropped_blocks_return_to_the_file_system(tmp_path: Path) -> None:
    with open_tier(tmp_path) as tier:
        empty = usage(tmp_path)
        tier.write(np.arange(400), items(MIXED, np.arange(400)))
        assert usage(tmp_path) > empty + MIXED.sum()
        tier.drop(np.arange(400))
        assert usage(tmp_path) <= empty + 4096


@BOTH
def test_smaller_limit_after_a_restart(tmp_path: Path, sizes: NDArray[Any]) -> None:
    with open_tier(tmp_path, sizes) as tier:
        tier.write(np.arange(400), items(sizes, np.arange(400)))
    with open_tier(tmp_path, sizes, 200_000) as tier:
        held = tier.found()
        assert 0 < len(held) < 400
        assert tier.footprint(sizes[held]).sum() <= 200_000
        assert usage(tmp_path) <= 200_000 + 7 * 4096
        assert plain(tier.read(held)) == items(sizes, held)
    with open_tier(tmp_path, sizes) as tier:
        assert tier.found().tolist() == held.tolist()
        tier.write(np.arange(400), items(sizes, np.arange(400)))
        assert plain(tier.read(np.arange(400))) == items(sizes, np.arange(400))


def test_lost_blocks_are_given_back(tmp_path: Path) -> None:
    """Blocks that no tag names, as a power cut may leave them."""
    keep = np.arange(0, 400, 40)
    with open_tier(tmp_path) as tier:
        tier.write(np.arange(400), items(MIXED, np.arange(400)))
    index = tmp_path / "cache" / "share-0" / "index"
    tags = np.zeros(400, np.uint8)
    tags[keep] = 1
    index.write_bytes(tags.tobytes())
    with open_tier(tmp_path) as tier:
        assert tier.found().tolist() == keep.tolist()
        assert plain(tier.read(keep)) == items(MIXED, keep)
        assert usage(tmp_path) <= tier.footprint(MIXED[keep]).sum() + 7 * 4096


def test_lost_blocks_in_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augury.tiers.disk, "SEGMENT", 25 * 4096)
    test_lost_blocks_are_given_back(tmp_path)


def test_floor_of_free_space(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    with open_tier(tmp_path, floor=0) as tier:
        tier.write(as_ids([3]), items(MIXED, as_ids([3])))
    with open_tier(tmp_path, floor=2 * free) as tier:
        with pytest.raises(TierFailed, match="nearly full"):
            tier.write(as_ids([5]), items(MIXED, as_ids([5])))
        assert plain(tier.read(as_ids([3, 5]))) == [*items(MIXED, as_ids([3])), None]


def test_another_dataset_starts_anew(tmp_path: Path) -> None:
    ids = np.arange(100)
    with open_tier(tmp_path) as tier:
        tier.write(ids, items(MIXED, ids))
    with open_tier(tmp_path, fingerprint="b") as tier:
        assert len(tier.found()) == 0
        assert tier.read(ids) == [None] * 100
        assert usage(tmp_path) <= 7 * 4096


def test_another_format_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_tier(tmp_path) as tier:
        tier.write(as_ids([3]), items(MIXED, as_ids([3])))
    monkeypatch.setattr(augury.tiers.directory, "FORMAT", 99)
    with open_tier(tmp_path) as tier:
        assert len(tier.found()) == 0


def test_unreadable_marker_starts_anew(tmp_path: Path) -> None:
    with open_tier(tmp_path) as tier:
        tier.write(as_ids([3]), items(MIXED, as_ids([3])))
    (tmp_path / "cache" / "share-0" / "tier.json").write_bytes(b"\xff{")
    with open_tier(tmp_path) as tier:
        assert len(tier.found()) == 0


def test_bytes_of_another_dataset_never_pass(tmp_path: Path) -> None:
    """Even where a crash left another dataset's files under our marker."""
    ids = np.arange(400)
    with open_tier(tmp_path, EQUAL, fingerprint="a") as tier:
        tier.write(ids, items(EQUAL, ids))
    marker = tmp_path / "cache" / "share-0" / "tier.json"
    marker.write_text(marker.read_text().replace('"a"', '"b"'))
    with open_tier(tmp_path, EQUAL, fingerprint="b") as tier:
        assert tier.read(ids) == [None] * 400


def test_directory_with_foreign_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "thesis.tex").write_text("ten years")
    with pytest.raises(ConfigError, match=r"thesis\.tex.*name a new directory"):
        open_tier(tmp_path)
    assert [each.name for each in (tmp_path / "cache").iterdir()] == ["thesis.tex"]


def test_foreign_files_in_a_share_are_refused(tmp_path: Path) -> None:
    with open_tier(tmp_path):
        pass
    foreign = tmp_path / "cache" / "share-0" / "thesis.tex"
    foreign.write_text("ten years")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        open_tier(tmp_path, fingerprint="b")
    assert foreign.read_text() == "ten years"


def test_files_are_private(tmp_path: Path) -> None:
    with open_tier(tmp_path):
        share = tmp_path / "cache" / "share-0"
        assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
        assert stat.S_IMODE(share.stat().st_mode) == 0o700
        assert stat.S_IMODE((share / "data.0").stat().st_mode) == 0o600
        share.chmod(0o755)
    with open_tier(tmp_path):
        assert stat.S_IMODE(share.stat().st_mode) == 0o700


def test_a_linked_share_is_refused(tmp_path: Path) -> None:
    with open_tier(tmp_path):
        pass
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache" / "share-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="not a directory of this user"):
        open_tier(tmp_path, share="1")


def test_a_file_in_the_way_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="may write to"):
        DiskTier(tmp_path / "file" / "cache", PLENTY, MIXED, "a")


@pytest.mark.parametrize("share", ["", "../x", "a/b", ".hidden"])
def test_share_must_be_a_name(tmp_path: Path, share: str) -> None:
    with pytest.raises(ConfigError, match="share"):
        open_tier(tmp_path, share=share)


def test_second_user_of_a_share_is_refused(tmp_path: Path) -> None:
    with open_tier(tmp_path):
        with pytest.raises(ConfigError, match=rf"process {os.getpid()}.*own directory"):
            open_tier(tmp_path)
        with open_tier(tmp_path, share="1") as other:
            other.write(as_ids([0]), items(MIXED, as_ids([0])))
    with open_tier(tmp_path) as tier:
        assert len(tier.found()) == 0


def test_second_process_is_refused(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np; from augury.tiers.disk import DiskTier; "
        f"tier = DiskTier({str(tmp_path / 'cache')!r}, 1 << 20, np.full(4, 5), 'a'); "
        "print('ready', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], env=import_path(), **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == b"ready\n"
        with pytest.raises(ConfigError, match=f"process {other.pid}"):
            open_tier(tmp_path)
        other.kill()
        other.wait()
        with open_tier(tmp_path):
            pass


def test_forks_may_not_use_it(tmp_path: Path) -> None:
    with open_tier(tmp_path) as tier:
        child = os.fork()
        if child == 0:
            try:
                tier.read(as_ids([0]))
            except TierFailed:
                tier.close()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with pytest.raises(ConfigError, match="in use"):
            open_tier(tmp_path)


def test_file_system_that_cannot_punch_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(augury.tiers.directory, "punch", refuse)
    with pytest.raises(ConfigError, match="ext4"):
        open_tier(tmp_path, MIXED)
    with open_tier(tmp_path, EQUAL) as tier:
        tier.write(as_ids([0]), items(EQUAL, as_ids([0])))


def import_path() -> dict[str, str]:
    """The environment of a child process that imports the same Augury."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
