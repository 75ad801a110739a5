"""What every tier must do. Subclass `TierContract`, write `make`, and pytest runs all of it.

    class TestMyTier(TierContract):
        def make(self, tmp_path, sizes, capacity):
            return MyTier(sizes, capacity)

Nothing here is about one kind of tier: restarts, damage and full disks are tested where they can happen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from augury.errors import AuguryError, Closed
from augury.ids import Ids, as_ids
from augury.sources import Buffer
from augury.tiers import Tier

SAMPLES = 40


def content(id: int, size: int, version: int = 0) -> bytes:
    """The bytes of a sample, which tell its id (and how often it was rewritten)."""
    return np.random.default_rng([id, version]).bytes(size)


class TierContract:
    """Round trips, limits, threads and the end of a tier, the same for all."""

    uniform: ClassVar[int | None] = None
    """The size of every sample, for a tier that takes only samples of one size."""

    def make(self, tmp_path: Path, sizes: NDArray[np.int64], capacity: int) -> Tier:
        """A new, empty tier; `tmp_path` is a directory of its own."""
        raise NotImplementedError

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Sizes of the samples, mixed where the tier allows it: empty, tiny, odd, around whole blocks."""
        if self.uniform is not None:
            return np.full(SAMPLES, self.uniform, np.int64)
        return np.resize(np.array([300, 1, 4096, 5000, 4080, 0, 20_000, 4081], np.int64), SAMPLES)

    def items(self, ids: Ids, version: int = 0) -> list[Buffer]:
        """What is written for these ids."""
        return [content(id, size, version) for id, size in zip(ids.tolist(), self.sizes[ids].tolist(), strict=True)]

    def room_for(self, tmp_path: Path, ids: Ids) -> int:
        """The capacity that these ids need."""
        with closing(self.make(tmp_path / "measure", self.sizes, 1 << 24)) as tier:
            return int(tier.footprint(self.sizes[ids]).sum())

    def roomy(self, tmp_path: Path) -> closing[Tier]:
        """A tier that can hold everything."""
        return closing(self.make(tmp_path / "tier", self.sizes, 1 << 24))

    def check(self, tier: Tier, ids: Ids, version: int = 0) -> None:
        """These are held, with the right bytes."""
        assert plain(tier.read(ids)) == plain(self.items(ids, version))

    def test_reads_what_was_written(self, tmp_path: Path) -> None:
        with self.roomy(tmp_path) as tier:
            assert isinstance(tier.name, str)
            assert tier.capacity == 1 << 24
            ids = as_ids([7, 3, 6, 20, 5, 1])
            tier.write(ids, self.items(ids))
            self.check(tier, ids)
            self.check(tier, ids[::-1])

    def test_absent_is_none(self, tmp_path: Path) -> None:
        with self.roomy(tmp_path) as tier:
            assert tier.read(as_ids([0, 1])) == [None, None]
            tier.write(as_ids([1]), self.items(as_ids([1])))
            before, there, after = tier.read(as_ids([0, 1, 2]))
            assert (before, after) == (None, None)
            assert there is not None

    def test_new_tier_has_found_nothing(self, tmp_path: Path) -> None:
        with self.roomy(tmp_path) as tier:
            assert len(tier.found()) == 0

    def test_duplicates_in_a_read(self, tmp_path: Path) -> None:
        with self.roomy(tmp_path) as tier:
            tier.write(as_ids([3, 4]), self.items(as_ids([3, 4])))
            self.check(tier, as_ids([3, 4, 3, 3]))

    def test_empty_batches(self, tmp_path: Path) -> None:
        with self.roomy(tmp_path) as tier:
            tier.write(as_ids([]), [])
            tier.drop(as_ids([]))
            assert tier.read(as_ids([])) == []
            assert len(tier.footprint(self.sizes[:0])) == 0

    def test_takes_every_kind_of_buffer(self, tmp_path: Path) -> None:
        with self.roomy(tmp_path) as tier:
            ids = as_ids([2, 8, 16])
            first, second, third = plain(self.items(ids))
            assert first is not None
            assert second is not None
            assert third is not None
            square = np.frombuffer(third, np.uint8).reshape(1, -1)
            tier.write(ids, [first, bytearray(second), square.data])
            self.check(tier, ids)

    def test_owns_what_it_holds(self, tmp_path: Path) -> None:
        with self.roomy(tmp_path) as tier:
            buffer = bytearray(self.items(as_ids([2]))[0])
            tier.write(as_ids([2]), [buffer])
            buffer[:] = bytes(len(buffer))
            self.check(tier, as_ids([2]))

    def test_what_was_read_outlives_a_drop(self, tmp_path: Path) -> None:
        ids, others = as_ids([0, 2]), as_ids([8, 10])
        with closing(self.make(tmp_path / "tier", self.sizes, self.room_for(tmp_path, ids))) as tier:
            tier.write(ids, self.items(ids))
            read = tier.read(ids)
            tier.drop(ids)
            tier.write(others, self.items(others))
            assert plain(read) == plain(self.items(ids))

    def test_drop(self, tmp_path: Path) -> None:
        with self.roomy(tmp_path) as tier:
            ids = as_ids([0, 2, 3, 5, 8])
            tier.write(ids, self.items(ids))
            tier.drop(as_ids([2, 5, 2, 30]))
            assert tier.read(as_ids([2, 5, 30])) == [None] * 3
            self.check(tier, as_ids([0, 3, 8]))
            tier.drop(as_ids([2]))
            self.check(tier, as_ids([0, 3, 8]))

    def test_written_again(self, tmp_path: Path) -> None:
        with self.roomy(tmp_path) as tier:
            ids = as_ids([2, 3, 6])
            tier.write(ids, self.items(ids))
            tier.write(ids[:2], self.items(ids[:2], version=1))
            self.check(tier, ids[:2], version=1)
            self.check(tier, ids[2:])
            tier.drop(ids)
            tier.write(ids, self.items(ids, version=2))
            self.check(tier, ids, version=2)

    def test_limit_holds_and_nothing_is_lost(self, tmp_path: Path) -> None:
        ids = np.arange(10)
        with closing(self.make(tmp_path / "tier", self.sizes, self.room_for(tmp_path, ids))) as tier:
            tier.write(ids, self.items(ids))
            more = as_ids([14])
            with pytest.raises(AuguryError):
                tier.write(more, self.items(more))
            self.check(tier, ids)
            assert tier.read(more) == [None]

    def test_room_is_given_back(self, tmp_path: Path) -> None:
        ids = np.arange(8)
        with closing(self.make(tmp_path / "tier", self.sizes, self.room_for(tmp_path, ids))) as tier:
            # Ids eight apart have one size: a full tier can exchange them for ever.
            for start in (0, 8, 16, 24, 0, 32):
                tier.write(ids + start, self.items(ids + start))
                self.check(tier, ids + start)
                tier.drop(ids + start)

    def test_holding_an_id_again_costs_nothing(self, tmp_path: Path) -> None:
        ids = np.arange(4)
        with closing(self.make(tmp_path / "tier", self.sizes, self.room_for(tmp_path, ids))) as tier:
            for version in range(3):
                tier.write(ids, self.items(ids, version))
                self.check(tier, ids, version)

    def test_no_capacity_holds_nothing(self, tmp_path: Path) -> None:
        with closing(self.make(tmp_path / "tier", self.sizes, 0)) as tier:
            with pytest.raises(AuguryError):
                tier.write(as_ids([0]), self.items(as_ids([0])))
            assert tier.read(as_ids([0, 1])) == [None, None]
            tier.drop(as_ids([0]))

    def test_bad_batches_are_refused_whole(self, tmp_path: Path) -> None:
        with self.roomy(tmp_path) as tier:
            ids = as_ids([0, 2])
            good = self.items(ids)
            with pytest.raises(ValueError, match="2 ids with 1 items"):
                tier.write(ids, good[:1])
            with pytest.raises(ValueError, match="twice"):
                tier.write(as_ids([0, 0]), good)
            with pytest.raises(ValueError, match="bytes"):
                tier.write(ids, [good[0], bytes(int(self.sizes[2]) + 1)])
            assert tier.read(ids) == [None, None]

    def test_reads_beside_writes_and_drops_of_others(self, tmp_path: Path) -> None:
        steady, moving = np.arange(0, 16), np.arange(16, SAMPLES)
        with self.roomy(tmp_path) as tier:
            tier.write(steady, self.items(steady))
            expected, wrong = plain(self.items(steady)), list[object]()
            done = threading.Event()

            def keep_reading() -> None:
                while not done.is_set():
                    read = plain(tier.read(steady))
                    if read != expected:
                        wrong.append(read)

            readers = [threading.Thread(target=keep_reading) for _ in range(3)]
            for each in readers:
                each.start()
            for version in range(12):
                tier.write(moving, self.items(moving, version))
                tier.drop(moving[version % 3 :: 2])
            done.set()
            for each in readers:
                each.join()
            assert not wrong

    def test_closed(self, tmp_path: Path) -> None:
        tier = self.make(tmp_path / "tier", self.sizes, 1 << 24)
        ids = as_ids([2])
        tier.write(ids, self.items(ids))
        tier.close()
        tier.close()
        uses: list[Callable[[], object]] = [
            lambda: tier.read(ids),
            lambda: tier.write(ids, self.items(ids)),
            lambda: tier.drop(ids),
        ]
        for use in uses:
            with pytest.raises(Closed):
                use()

    def test_agrees_with_a_dict(self, tmp_path: Path) -> None:
        batch = st.lists(st.integers(0, SAMPLES - 1), max_size=8, unique=True).map(as_ids)
        step = st.tuples(st.sampled_from(["write", "drop", "read"]), batch)

        @settings(max_examples=40, deadline=None, derandomize=True, database=None,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(steps=st.lists(step, max_size=30))
        def run(tier: Tier, capacity: int, steps: list[tuple[str, Ids]]) -> None:
            tier.drop(np.arange(SAMPLES))
            model: dict[int, bytes] = {}
            for version, (action, ids) in enumerate(steps):
                if action == "drop":
                    tier.drop(ids)
                    for id in ids.tolist():
                        model.pop(id, None)
                elif action == "write" and self.cost(tier, model.keys() | set(ids.tolist())) <= capacity:
                    items = self.items(ids, version)
                    tier.write(ids, items)
                    model.update(zip(ids.tolist(), map(bytes, items), strict=True))
                assert plain(tier.read(ids)) == [model.get(id) for id in ids.tolist()]
            assert plain(tier.read(np.arange(SAMPLES))) == [model.get(id) for id in range(SAMPLES)]

        capacity = self.room_for(tmp_path, np.arange(12))
        with closing(self.make(tmp_path / "tier", self.sizes, capacity)) as tier:
            run(tier, capacity)

    def cost(self, tier: Tier, ids: set[int]) -> int:
        """What holding these ids would take."""
        return int(tier.footprint(self.sizes[as_ids(sorted(ids))]).sum())


def plain(data: list[Any]) -> list[bytes | None]:
    """Buffers of any kind as bytes, to compare."""
    return [None if each is None else bytes(each) for each in data]
