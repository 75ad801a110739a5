"""Live runs that know their future: what is placed is read once, ahead of the batches and beside them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import warnings
from collections import Counter

import numpy as np
import pytest

import augury
from augury.distributed import Place
from augury.errors import TierFailed, Unreadable
from augury.filling import Filler
from augury.holders import slower_than_source
from augury.ids import NONE
from augury.knowledge import Knowledge
from augury.levels import divide_memory
from augury.policies.placement import place
from augury.samplers.shuffle import Shuffle
from augury.schedule import Schedule
from augury.sim.model import Throughput
from augury.sim.verify import verify
from augury.storage import Storage, StorageLevel
from augury.trace import Trace
from helpers import Gate, arrays, check_batches, folder, settled

SIZE, BATCH = 4096, 16
SLOT = SIZE + 24
"""What a sample costs on disk: its bytes, a header and a tag."""


def hdmlp(source, epochs=4, ram=40, window=24, disk=None, **options):
    """Room for `ram` samples in memory, and for `window` on their way."""
    granted = {} if "levels" in options else {"ram": (ram + window) * SIZE}
    options = granted | {"readahead": window * SIZE, "readers": 8, "output": "numpy"} | options
    return augury.Loader(source, BATCH, recipe="hdmlp", epochs=epochs, disk=disk, **options)


def gate(samples=200):
    x, y = arrays(samples, SIZE)
    return x, y, Gate(augury.ArraySource(x, y))


def placed(loader, *where):
    return [set(ids) for ids in placed_in_order(loader, *where)]


def placed_in_order(loader, rank=0, world=1, epoch=0, offset=0):
    """Whom each level of a loader should hold, from the parts that are tested by themselves."""
    samples = len(loader.source.catalog)
    schedule = Schedule(Shuffle(samples, loader.seed), BATCH, Place(rank, world), samples, epochs=loader.epochs)
    order, times = schedule.future(epoch, offset, Knowledge.none(0))
    tiers = [level.tier for level in loader.cache.levels]
    costs = [tier.footprint(loader.source.catalog.sizes) for tier in tiers]
    return [ids.tolist() for ids in place(order, times, costs, [tier.capacity for tier in tiers])]


def resident(loader):
    return [set(np.flatnonzero(level.policy.resident).tolist()) for level in loader.cache.levels]


def source_reads(stats):
    return stats.total.counts.misses + stats.total.counts.prefetched


@pytest.mark.parametrize("world", [1, 3])
def test_what_is_placed_is_read_once_and_then_hit(tmp_path, world):
    """Every rank in a thread of its own, as it would be in a process of its own."""
    epochs, failures, seen = 4, [], [[None] * world for _ in range(4)]

    def run(rank):
        x, y, source = gate()
        options = {"rank": rank, "world_size": world, "ram": 20, "seed": 5}
        with hdmlp(source, epochs, disk=(tmp_path / str(rank), 45 * SLOT), **options) as loader:
            expected = placed(loader, rank, world)
            assert [len(level) for level in expected] == [20, 45]
            batches = iter(loader)
            first = next(batches)
            settled(lambda: len(source.reads))
            assert resident(loader) == expected, "filled before it is asked for"
            seen[0][rank] = np.concatenate([first[2], *[ids for _, _, ids in batches]])
            for epoch in range(1, epochs):
                seen[epoch][rank] = check_batches(loader, x, y)
            stats = loader.stats()
            held = set.union(*expected)
            for epoch in range(1, epochs):
                assert stats.epochs[epoch].counts.hits == sum(id in held for id in seen[epoch][rank].tolist())
                assert stats.epochs[epoch].counts.prefetched == 0
            reads = Counter(source.reads)
            assert max(reads[id] for id in held) == 1
            assert source_reads(stats) == sum(reads.values())
            assert stats.total.bytes_from["source"] + stats.total.prefetched_bytes == SIZE * sum(reads.values())
            assert resident(loader) == expected

    def guarded(rank):
        try:
            run(rank)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    for epoch in seen:
        visits = Counter(np.concatenate(epoch).tolist())
        assert set(visits) == set(range(200))
        # 200 is no multiple of three batches: the last, partial global batch is dealt out, and none is repeated.
        assert set(visits.values()) == {1}


def test_filling_ends_with_what_is_placed_even_if_nobody_takes_a_batch(tmp_path):
    _x, _, source = gate()
    with hdmlp(source, disk=(tmp_path / "cache", 60 * SLOT)) as loader:
        iter(loader)
        settled(lambda: len(source.reads))
        assert resident(loader) == placed(loader)
        assert loader._planning.filler.in_use == 0
        assert max(Counter(source.reads).values()) == 1
        assert len(source.reads) == 100, "the batches read ahead are among the first to be placed"


class Stuck(Gate):
    """Never gives some samples while it is shut; the others at once."""

    def __init__(self, inner, ids) -> None:
        super().__init__(inner)
        self.stuck = set(ids)

    def read(self, ids):
        if self.stuck & set(ids.tolist()):
            self.open.wait()
        self.reads.extend(ids.tolist())
        return self.inner.read(ids)


def test_reads_for_the_levels_hold_up_no_batch(tmp_path):
    """Whatever this rank requests first in the second epoch hangs: the first epoch goes on to its end."""
    x, y, plain = gate()
    sampler = Shuffle(200, 0)
    schedule = Schedule(sampler, BATCH, Place(0, 2), 200, epochs=3)
    now, later = (set(schedule._draw(epoch, Knowledge.none(0)).positions.tolist()) for epoch in (0, 1))
    source = Stuck(plain.inner, later - now)
    source.open.clear()
    with hdmlp(source, 3, ram=90, disk=(tmp_path / "cache", 90 * SLOT), rank=0, world_size=2) as loader:
        batches = iter(loader)
        seen = [next(batches)[2] for _ in range(5)]
        assert len(np.concatenate(seen)) == 80
        source.open.set()
        seen += [ids for _, _, ids in batches]
        assert set(np.concatenate(seen).tolist()) == now
        assert set(check_batches(loader, x, y).tolist()) == later
    assert max(Counter(source.reads).values()) == 1


def test_a_batch_that_asks_for_what_is_being_filled_joins_the_read():
    x, y, source = gate(40)
    source.open.clear()
    with hdmlp(source, 2, ram=60, window=64) as loader:
        batches = iter(loader)
        settled(lambda: loader._planning.filler.in_use)
        source.open.set()
        seen = [ids for _, _, ids in batches]
        assert sorted(np.concatenate(seen)) == list(range(40))
        check_batches(loader, x, y)
        total = loader.stats().total
        assert source_reads(loader.stats()) == len(source.reads) == 40
        assert total.bytes_from.get("source", 0) + total.prefetched_bytes == 40 * SIZE


def test_reads_and_bytes_under_way_are_bounded(tmp_path, monkeypatch):
    seen, start = [], Filler._start

    def watched(self, depth, lane):
        done = start(self, depth, lane)
        seen.append((depth, len(lane.reading), self.in_use))
        return done

    monkeypatch.setattr(Filler, "_start", watched)
    x, y, source = gate()
    levels = Storage((StorageLevel("ram", 64 * SIZE, 2), StorageLevel("disk", 80 * SLOT, 3, path=str(tmp_path / "c"))))
    with hdmlp(source, levels=levels, disk=None) as loader:
        for _ in range(4):
            check_batches(loader, x, y)
        assert [level.tier.name for level in loader.cache.levels] == ["ram", "disk"]
        assert sum(map(len, resident(loader))) == 120
    assert {depth: max(at[1] for at in seen if at[0] == depth) for depth in (0, 1)} == {0: 2, 1: 3}
    assert SIZE <= max(at[2] for at in seen) <= 24 // 4 * SIZE


def test_a_sample_too_large_for_the_filling_room_comes_with_its_batch():
    x, y, source = gate(60)
    with hdmlp(source, 2, ram=60, window=3) as loader:
        iter(loader)
        settled(lambda: len(source.reads))
        assert loader._planning.filler._room < SIZE
        for _ in range(2):
            check_batches(loader, x, y)
        assert loader.stats().total.counts.prefetched == 0
        assert loader.stats().epochs[1].counts.hits == 60


def test_a_live_run_with_two_levels_can_be_replayed_decision_by_decision(tmp_path):
    x, y, source = gate()
    log = tmp_path / "run.trace"
    with hdmlp(source, disk=(tmp_path / "cache", 60 * SLOT), trace=log, rank=1, world_size=2) as loader:
        for _ in range(2):
            check_batches(loader, x, y)
        loader.cache.resize(0, 10 * SIZE)
        loader.cache.resize(1, 20 * SLOT)
        for _ in range(2):
            check_batches(loader, x, y)
    trace = Trace.open(log)
    calls, difference = verify(trace)
    assert difference is None
    ops = Counter((record.op, record.level) for record in trace)
    assert calls > 20
    assert ops["plan", 0] == ops["plan", 1] == 1
    assert ops["wanted", 1] >= 2, "asked again after a resize"
    plans = [record for record in trace if record.op == "plan"]
    assert plans[0].times.sum() == 4 * 100
    assert set(plans[1].ids) == set(plans[0].ids) - set(plans[0].answer)


def test_files_of_mixed_sizes_on_two_levels(tmp_path):
    contents = folder(tmp_path / "data", 90, largest=9000)
    sizes = np.array([len(data) for data in contents])
    source = Gate(augury.FolderSource(tmp_path / "data"))
    options = {"ram": 150_000, "readahead": 60_000, "disk": (tmp_path / "cache", 25 * 4300), "output": "numpy"}
    with augury.Loader(source, 8, recipe="hdmlp", epochs=3, rank=1, world_size=2, **options) as loader:
        for _ in range(3):
            for x, _, ids in loader:
                assert x == [contents[id] for id in ids]
        memory, disk = resident(loader)
        assert memory
        assert disk
        assert sizes[list(memory)].sum() <= 90_000
        assert source_reads(loader.stats()) == len(source.reads)
        total = loader.stats().total
        assert total.bytes_from["source"] + total.prefetched_bytes == sizes[source.reads].sum()
        reads = Counter(source.reads)
        assert max(reads[id] for id in memory | disk) == 1


class TestRestarts:
    def test_a_warm_disk_is_not_read_again(self, tmp_path):
        expected = None
        for _ in range(2):
            x, y, source = gate()
            with hdmlp(source, 2, disk=(tmp_path / "cache", 80 * SLOT)) as loader:
                iter(loader)
                settled(lambda source=source: len(source.reads))
                expected = expected or resident(loader)
                assert resident(loader) == expected
                for _ in range(2):
                    check_batches(loader, x, y)
                on_disk = expected[1]
        assert len(on_disk) == 80
        assert not on_disk & set(source.reads)

    def test_a_warm_disk_of_another_plan_gives_way_as_room_is_needed(self, tmp_path):
        for seed in (0, 1, 2):
            x, y, source = gate()
            with hdmlp(source, 3, disk=(tmp_path / "cache", 80 * SLOT), rank=0, world_size=2, seed=seed) as loader:
                warm = resident(loader)[1]
                iter(loader)
                settled(lambda source=source: len(source.reads))
                memory, disk = resident(loader)
                for _ in range(3):
                    check_batches(loader, x, y)
                assert len(memory) == 40
                assert len(disk) == 80
            assert not warm & disk & set(source.reads), "what has its place there already"
            assert max(Counter(source.reads).values()) <= 2, "requests of those without a place"
            assert len(warm) == (0 if seed == 0 else 80)

    def test_what_the_disk_has_rises_into_memory_without_the_source(self, tmp_path):
        x, y, source = gate(60)
        with hdmlp(source, 1, ram=1, disk=(tmp_path / "cache", 90 * SLOT)) as loader:
            check_batches(loader, x, y)
            assert len(resident(loader)[1]) == 59
        x, y, source = gate(60)
        with hdmlp(source, 2, ram=50, disk=(tmp_path / "cache", 90 * SLOT)) as loader:
            iter(loader)
            settled(lambda: len(resident(loader)[0]))
            assert [len(level) for level in resident(loader)] == [50, 10]
            for _ in range(2):
                check_batches(loader, x, y)
            assert len(source.reads) == 1 == source_reads(loader.stats())

    @pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (3, 1)])
    def test_a_resumed_run_plans_what_is_left_and_visits_the_rest_once(self, before, after):
        x, y, source = gate()
        visited, states = [], []
        for rank in range(before):
            with hdmlp(source, 3, rank=rank, world_size=before) as loader:
                check_batches(loader, x, y)
                batches = iter(loader)
                visited += [next(batches)[2] for _ in range(2)]
                states.append(loader.state_dict())
        assert all(state == states[0] for state in states)
        for rank in range(after):
            with hdmlp(source, 3, rank=rank, world_size=after) as loader:
                loader.load_state_dict(states[0])
                offset = states[0]["offset"]
                batches = iter(loader)
                visited += [next(batches)[2]]
                settled(lambda: len(source.reads))
                assert resident(loader) == placed(loader, rank, after, 1, offset)
                visited += [ids for _, _, ids in batches]
                assert len(check_batches(loader, x, y)) in (200 // after, 200 // after + 1)
        assert sorted(np.concatenate(visited).tolist()) == list(range(200))

    def test_an_epoch_left_midway_changes_no_place_and_costs_no_second_plan(self, tmp_path):
        x, y, source = gate()
        with hdmlp(source, 6, trace=tmp_path / "log") as loader:
            for _ in range(3):
                batches = iter(loader)
                next(batches)
                settled(lambda: len(source.reads))
                held = resident(loader)
                assert held == placed(loader)
                batches.close()
            for epoch in (4, 0):  # onwards, and back to where the plan began
                loader.set_epoch(epoch)
                check_batches(loader, x, y)
            assert resident(loader) == held
            state = loader.state_dict()
            loader.load_state_dict(state)
            check_batches(loader, x, y)
            loader.set_epoch(0)  # before the plan of the rest began
            check_batches(loader, x, y)
        assert sum(record.op == "plan" for record in Trace.open(tmp_path / "log")) == 3
        assert verify(Trace.open(tmp_path / "log"))[1] is None

    def test_beyond_the_last_epoch_the_cache_serves_on(self):
        x, y, source = gate()
        with hdmlp(source, 1) as loader:
            for _ in range(3):
                assert sorted(check_batches(loader, x, y)) == list(range(200))
            assert [epoch.counts.hits for epoch in loader.stats().epochs[1:]] == [40, 40]


PROGRAM = """
import sys, augury
source = augury.SlowSource(augury.FolderSource(sys.argv[1]), latency=0.02)
loader = augury.Loader(source, 4, recipe="hdmlp", epochs=9, ram="20kB", disk=(sys.argv[2], "10MB"))
for batch in loader:
    print(len(batch), flush=True)
"""


class Failing(Gate):
    """Some samples cannot be read, and one has the wrong size."""

    bad, short = frozenset({3, 50, 77}), 20

    def read(self, ids):
        answers = super().read(ids)
        for at, id in enumerate(ids.tolist()):
            if id in self.bad:
                answers[at] = Unreadable(id, f"array[{id}]", "simulated")
            elif id == self.short:
                answers[at] = bytes(answers[at])[:-1]
        return answers


class TestFaults:
    def test_unreadable_samples_spoil_no_other_and_are_reported_by_their_batches(self, tmp_path):
        x, y, plain = gate(100)
        source = Failing(plain.inner)
        with (
            pytest.warns(augury.AuguryWarning, match="cannot be read"),
            hdmlp(source, 3, ram=60, disk=(tmp_path / "cache", 90 * SLOT), on_error="skip") as loader,
        ):
            # Of those in memory the one that is requested last: the filler comes to it before its batch does.
            source.short = placed_in_order(loader)[0][-1]
            wrong = source.bad | {source.short}
            iter(loader)
            settled(lambda: len(source.reads))
            assert source.short in source.reads
            for _ in range(3):
                assert set(check_batches(loader, x, y).tolist()) == set(range(100)) - wrong
            assert {bad.id for bad in loader.quarantine} == wrong
            assert loader._planning.filler.in_use == 0
            loader.cache.abandon(loader.cache.decide(NONE))  # what was lost is forgotten with the next decision
            assert set.union(*resident(loader)) == set(range(100)) - wrong

    def test_a_disk_that_fails_is_turned_off_with_one_warning(self, tmp_path):
        x, y, source = gate()
        with hdmlp(source, disk=(tmp_path / "cache", 100 * SLOT)) as loader:
            tier = loader.cache.levels[1].tier
            writes = iter(range(3))

            def write(ids, data):
                if next(writes, None) is None:
                    raise TierFailed("no space left on device")
                type(tier).write(tier, ids, data)

            tier.write = write
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(4):
                    assert sorted(check_batches(loader, x, y)) == list(range(200))
            ours = [str(warning.message) for warning in caught if issubclass(warning.category, augury.AuguryWarning)]
            assert len(ours) == 1
            assert "disk tier is turned off" in ours[0]
            assert loader.stats().epochs[-1].counts.hits == 40

    def test_a_disk_that_is_off_is_not_filled_any_more(self, tmp_path):
        x, y, source = gate()
        with hdmlp(source, ram=10, disk=(tmp_path / "cache", 190 * SLOT)) as loader:

            def write(ids, data):
                raise TierFailed("no space left on device")

            loader.cache.levels[1].tier.write = write
            with pytest.warns(augury.AuguryWarning, match="disk tier is turned off"):
                iter(loader)
                settled(lambda: len(source.reads))
            assert len(source.reads) < 100
            check_batches(loader, x, y)

    def test_a_level_that_shrinks_and_grows_while_it_is_filled(self):
        x, y, source = gate()
        with hdmlp(source, 4) as loader:
            batches = iter(loader)
            next(batches)
            for room in (10, 40, 25):
                loader.cache.resize(0, room * SIZE)
                next(batches)
                settled(lambda: len(source.reads))
                assert len(resident(loader)[0]) == room
            for _ in range(3):
                check_batches(loader, x, y)

    def test_closing_in_the_middle_of_filling_leaves_nothing_behind(self, tmp_path):
        x, y, plain = gate()
        for attempt in range(6):
            source = augury.SlowSource(plain.inner, latency=0.002)
            loader = hdmlp(source, disk=(tmp_path / "cache", 150 * SLOT))
            batches = iter(loader)
            for _ in range(attempt % 3):
                next(batches)
            loader.close()
        with hdmlp(plain.inner, disk=(tmp_path / "cache", 150 * SLOT)) as loader:
            check_batches(loader, x, y)

    def test_ctrl_c_while_levels_are_filled_leaves_a_disk_that_is_right(self, tmp_path):
        contents = folder(tmp_path / "data", 300)
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        command = [sys.executable, str(program), str(tmp_path / "data"), str(tmp_path / "cache")]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(40):
            assert run.stdout.readline()
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=30)
        assert "KeyboardInterrupt" in errors
        assert errors.count("Traceback") == 1, errors
        source = Gate(augury.FolderSource(tmp_path / "data"))
        disk = (tmp_path / "cache", "10MB")
        with augury.Loader(source, 4, recipe="hdmlp", epochs=1, ram="20kB", disk=disk, output="numpy") as loader:
            assert len(resident(loader)[1]) > 3
            for x, _, ids in loader:
                assert x == [contents[id] for id in ids]
        assert len(source.reads) < 300

    def test_an_error_of_a_batch_ends_the_iteration_and_not_the_filling_of_the_next(self):
        x, y, plain = gate(100)
        source = Failing(plain.inner)
        with hdmlp(source, 3, ram=60) as loader:
            with pytest.raises(augury.AuguryError, match="cannot be read"):
                for _ in loader:
                    pass
            source.bad, source.short = frozenset(), -1
            assert len(check_batches(loader, x, y)) == 100


class TestOptions:
    def test_the_number_of_epochs_must_be_known(self):
        _x, _y, source = gate(20)
        with pytest.raises(augury.AuguryError, match=r"'hdmlp' plans the whole run.*epochs=90"):
            augury.Loader(source, 4, recipe="hdmlp")

    def test_a_dataset_below_torchs_own_loader_cannot_know_the_order(self):
        torch = pytest.importorskip("augury.torch")
        with pytest.raises(augury.AuguryError, match="not told the order"):
            torch.CachedDataset(arrays()[0], recipe="hdmlp")

    def test_subsets_and_orders_by_id_are_planned_too(self):
        x, y, source = gate()
        with hdmlp(source, 2, subset=np.arange(50, 150), shuffle=False) as loader:
            for _ in range(2):
                assert check_batches(loader, x, y).tolist() == list(range(50, 150))
            assert resident(loader) == [set(range(50, 90))]


def storage(path, source=None, disk=None, ram=64):
    read = None if disk is None else Throughput(disk)
    levels = StorageLevel("ram", ram * SIZE, 2), StorageLevel("disk", 100 * SLOT, 2, read, path=str(path))
    return Storage(levels, None if source is None else Throughput(source))


class TestLevels:
    def test_memory_for_filling_is_part_of_the_limit(self):
        source = gate(100)[2]
        for window, filling in ((24, 6), (2, 0.5), (1, 0)):
            memory = divide_memory(source, BATCH, 60 * SIZE, window * SIZE, holds=True, fills=True)
            assert sum(memory) == 60 * SIZE
            assert memory.filling == filling * SIZE
            assert memory.window >= SIZE
            assert divide_memory(source, BATCH, 60 * SIZE, window * SIZE, holds=True).filling == 0

    def test_levels_from_a_file_are_those_of_ram_and_disk(self, tmp_path):
        x, y, source = gate()
        storage(tmp_path / "cache", {1: 50}, {1: 500}).save(tmp_path / "levels.toml")
        with hdmlp(source, levels=str(tmp_path / "levels.toml")) as loader:
            assert [level.tier.capacity for level in loader.cache.levels] == [40 * SIZE, 100 * SLOT]
            for _ in range(2):
                check_batches(loader, x, y)
            assert loader.stats().epochs[1].bytes_from["disk"] > 50 * SIZE

    def test_a_disk_alone(self, tmp_path):
        x, y, source = gate()
        only = Storage((StorageLevel("disk", 100 * SLOT, 2, path=str(tmp_path / "cache")),))
        with hdmlp(source, levels=only) as loader:
            for _ in range(2):
                check_batches(loader, x, y)
            assert [level.tier.name for level in loader.cache.levels] == ["disk"]
            assert loader.stats().epochs[1].counts.hits == 100

    @pytest.mark.parametrize("given", [{"ram": "1MB"}, {"disk": "/tmp/augury:1GB"}])
    def test_levels_beside_ram_or_disk_are_refused(self, given, tmp_path):
        _x, _y, source = gate(20)
        with pytest.raises(augury.AuguryError, match="leave out ram= and disk="):
            augury.Loader(source, 4, levels=storage(tmp_path), **given)

    def test_a_disk_level_without_a_directory_is_refused(self):
        with pytest.raises(augury.AuguryError, match="say where the disk level is"):
            augury.Loader(gate(20)[2], 4, levels=Storage((StorageLevel("disk", "1MB", 1),)))

    def test_what_a_slow_disk_holds_is_read_from_a_faster_source(self, tmp_path):
        x, y, source = gate()
        with (
            pytest.warns(augury.AuguryWarning, match="the source is faster than disk"),
            hdmlp(source, levels=storage(tmp_path / "cache", {1: 1000, 64: 64_000}, {1: 100})) as loader,
        ):
            for _ in range(3):
                check_batches(loader, x, y)
            for epoch in loader.stats().epochs:
                assert "disk" not in epoch.bytes_from
            last = loader.stats().epochs[-1]
            assert (last.counts.hits, last.counts.misses) == (40, 160), "reads from the source are no hits"
            assert last.bytes_from == {"ram": 40 * SIZE, "source": 160 * SIZE}

    def test_more_ranks_make_the_source_slower_and_the_disk_worth_asking(self):
        given = storage("/nowhere", {1: 1000}, {1: 100, 2: 200})
        # One thread has 100 MB/s from the disk. Of the source's 1000 MB/s it has 1/(6 + 2 + 2) with one rank.
        assert slower_than_source(given, ["ram", "disk"], 1, 6) == frozenset()
        assert slower_than_source(given, ["ram", "disk"], 1, 5) == {1}
        assert slower_than_source(given, ["disk"], 1, 5) == {0}
        assert slower_than_source(given, ["ram", "disk"], 2, 5) == frozenset()
        assert slower_than_source(storage("/nowhere", None, {1: 1}), ["ram", "disk"], 1, 1) == frozenset()
        assert slower_than_source(storage("/nowhere", {1: 1000}), ["ram", "disk"], 1, 1) == frozenset()
        assert slower_than_source(None, ["ram", "disk"], 1, 1) == frozenset()


RANK = """
import json, sys
import numpy as np, torch
import augury

rank, folder = int(sys.argv[1]), sys.argv[2]
loader = augury.Loader(np.zeros((60, 4), np.uint8), 10, recipe="hdmlp", epochs=2, ram=0.9, seed=None, output="numpy")
torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
with loader:
    visited = [[int(id) for _, _, ids in loader for id in ids] for _ in range(2)]
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump({"seed": loader.state_dict()["seed"], "visited": visited}, file)
torch.distributed.destroy_process_group()
"""


class TestSeed:
    def test_no_seed_is_another_one_every_time_and_saved(self):
        x, y, source = gate(50)
        orders, states = [], []
        for _ in range(2):
            with augury.Loader(source, 10, seed=None, output="numpy") as loader:
                assert len(loader) == 5
                assert loader.state_dict()["seed"] is None
                loader.load_state_dict(loader.state_dict())
                orders.append(check_batches(loader, x, y).tolist())
                states.append(loader.state_dict())
        assert orders[0] != orders[1]
        assert states[0]["seed"] != states[1]["seed"]
        with augury.Loader(source, 10, seed=states[0]["seed"], output="numpy") as loader:
            assert check_batches(loader, x, y).tolist() == orders[0]

    def test_ranks_of_a_process_group_agree_on_one(self, tmp_path):
        (tmp_path / "rank.py").write_text(RANK)
        runs = [
            subprocess.Popen([sys.executable, tmp_path / "rank.py", str(rank), tmp_path], stderr=subprocess.PIPE)
            for rank in range(2)
        ]
        for run in runs:
            _, said = run.communicate(timeout=120)
            assert run.returncode == 0, said.decode()
        one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
        assert one["seed"] == other["seed"] > 0
        for epoch in range(2):
            assert sorted(one["visited"][epoch] + other["visited"][epoch]) == list(range(60))

    def test_several_ranks_without_a_process_group_cannot_agree(self):
        _x, _y, source = gate(50)
        with (
            augury.Loader(source, 10, seed=None, rank=0, world_size=2) as loader,
            pytest.raises(augury.AuguryError, match=r"init_process_group.*same seed="),
        ):
            iter(loader)
