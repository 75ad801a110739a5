"""The loader as users rely on it: once per epoch, right bytes, resumable, bounded, and gone when closed."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import augury
from augury.errors import BadSample, Closed, ConfigError, Stale, Unreadable
from augury.recipes import DEFAULT, RECIPES
from augury.sim.verify import verify
from augury.trace import Trace
from helpers import Gate, arrays, check_batches, folder, settled, threads, visited


def small_loader(x, y, batch=16, **options):
    options = {"ram": 0.5, "readahead": 3 * batch * x.shape[1], "readers": 4, "output": "numpy"} | options
    return augury.Loader((x, y), batch, **options)


ONCE = [name for name, recipe in RECIPES.items() if not recipe.learns]


@pytest.mark.parametrize("recipe", ONCE)
def test_every_recipe_gives_each_sample_once_per_epoch_with_its_own_bytes(recipe):
    x, y = arrays()
    with small_loader(x, y, recipe=recipe, epochs=4) as loader:
        orders = [check_batches(loader, x, y) for _ in range(4)]
        for order in orders:
            assert sorted(order) == list(range(len(x)))
        assert not np.array_equal(orders[0], orders[1])
        total = loader.stats().total
        counts = total.counts
        assert counts.requests == 4 * len(x) == counts.hits + counts.substitutes + counts.joined + counts.misses
        assert sum(total.bytes_from.values()) == 4 * x.nbytes


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    x, y = arrays()
    runs = []
    for seed in (5, 5, 6):
        with small_loader(x, y, seed=seed, recipe="random") as loader:
            runs.append((visited(loader).tolist(), visited(loader).tolist(), loader.stats().total.counts))
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]


def test_a_batch_handed_out_belongs_to_the_user():
    x, y = arrays(500)
    with small_loader(x, y) as loader:
        batches = list(itertools.chain(loader, loader, loader))
    for features, labels, ids in batches:
        np.testing.assert_array_equal(features, x[ids])
        np.testing.assert_array_equal(labels, y[ids])


def test_writing_to_a_batch_changes_nothing_that_is_cached():
    x, y = arrays()
    with small_loader(x.copy(), y) as loader:
        for _ in range(2):
            for features, _, ids in loader:
                np.testing.assert_array_equal(features, x[ids])
                features[:] = 0


@settings(max_examples=25, deadline=None)
@given(
    samples=st.integers(1, 90),
    batch=st.integers(1, 12),
    worlds=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    stops=st.lists(st.integers(0, 5), min_size=4, max_size=4),
)
def test_resumes_with_other_world_sizes_cover_exactly_the_epoch(samples, batch, worlds, stops):
    x, y = arrays(samples)
    state, seen = None, []
    for part, world in enumerate(worlds):
        lengths, states, parts = set(), [], []
        for rank in range(world):
            with small_loader(x, y, batch, rank=rank, world_size=world, readers=1, recipe="none", ram=10_000) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                batches = iter(loader)
                if part < len(worlds) - 1:
                    batches = itertools.islice(batches, stops[part])
                taken = [ids for _, _, ids in batches]
                lengths.add(len(taken))
                parts.append(np.concatenate(taken) if taken else np.empty(0, np.int64))
                states.append(loader.state_dict())
        assert len(lengths) == 1, "every rank has equally many batches"
        assert all(other == states[0] for other in states)
        seen += np.concatenate(parts).tolist()
        state = states[0]
        if state["epoch"] == 1:
            break
    padding = len(seen) - samples
    assert set(seen) == set(range(samples))
    assert 0 <= padding < worlds[part], "samples are repeated only where a rank would have none"


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped():
    x, y = arrays()
    with small_loader(x, y) as loader:
        whole = [visited(loader), visited(loader)]
    with small_loader(x, y) as loader:
        begun = [ids for _, _, ids in itertools.islice(loader, 5)]
        state = loader.state_dict()
    with small_loader(x, y, seed=99) as loader:
        loader.load_state_dict(state)
        rest = visited(loader)
        assert np.concatenate([*begun, rest]).tolist() == whole[0].tolist()
        assert visited(loader).tolist() == whole[1].tolist()


def test_a_resume_reads_nothing_that_was_visited_already():
    x, y = arrays()
    gate = Gate(augury.ArraySource(x, y))
    with augury.Loader(gate, 20, epochs=1, ram=1.0, output="numpy") as loader:
        loader.load_state_dict({"version": 1, "seed": 0, "epoch": 0, "offset": 160, "samples": 200, "recipe": DEFAULT})
        assert len(visited(loader)) == 40
    assert len(gate.reads) == 40


def test_a_state_of_another_recipe_with_the_same_orders_will_do():
    with augury.Loader(arrays(), 20, epochs=1, ram=1.0, output="numpy") as loader:
        loader.load_state_dict({"version": 1, "seed": 0, "epoch": 0, "offset": 160, "samples": 200, "recipe": "minio"})
        assert len(visited(loader)) == 40


@pytest.mark.parametrize("change", [{"samples": 3}, {"recipe": "shade"}, {"version": 2}])
def test_a_state_of_something_else_is_refused(change):
    x, y = arrays()
    with small_loader(x, y) as loader, pytest.raises(ConfigError, match=next(iter(change))):
        loader.load_state_dict(loader.state_dict() | change)


def test_leaving_an_epoch_early_keeps_its_place_until_iterated_again():
    x, y = arrays()
    with small_loader(x, y) as loader:
        for _ in loader:
            break
        assert (loader.state_dict()["epoch"], loader.state_dict()["offset"]) == (0, 16)
        second = visited(loader)
        assert len(second) == len(x)
        loader.set_epoch(1)
        assert visited(loader).tolist() == second.tolist()


def test_a_new_iterator_ends_the_old_one():
    x, y = arrays()
    with small_loader(x, y) as loader:
        old = iter(loader)
        next(old)
        next(iter(loader))
        with pytest.raises(Closed):
            next(old)


def test_drop_last_and_len():
    x, y = arrays(50)
    with small_loader(x, y, 16, ram=5000) as loader:
        assert len(loader) == 4
        assert [len(ids) for _, _, ids in loader] == [16, 16, 16, 2]
    with small_loader(x, y, 16, drop_last=True, ram=5000) as loader:
        assert len(loader) == 3
        assert [len(ids) for _, _, ids in loader] == [16, 16, 16]


def test_subset_and_no_shuffle():
    x, y = arrays()
    with small_loader(x, y, subset=[5, 3, 9], shuffle=False) as loader:
        assert check_batches(loader, x, y).tolist() == [5, 3, 9]


def test_reading_ahead_stops_at_the_window_and_crosses_the_epoch():
    x, y = arrays(100, 32)
    gate = Gate(augury.ArraySource(x, y))
    with augury.Loader(gate, 10, recipe="none", ram=3200, readahead=960, readers=2, output="numpy") as loader:
        batches = iter(loader)
        next(batches)
        assert settled(lambda: len(gate.reads)) == 10 + 30, "three batches of 320 bytes fit into the window"
        for _ in batches:
            pass
        # A sample of the next epoch that is still in flight for this one is not read twice.
        assert 100 < settled(lambda: len(gate.reads)) <= 100 + 30, "the next epoch is under way"


def test_nothing_is_read_ahead_beyond_the_last_epoch():
    x, y = arrays(100, 32)
    gate = Gate(augury.ArraySource(x, y))
    with augury.Loader(gate, 10, recipe="none", epochs=2, ram=3200, output="numpy") as loader:
        visited(loader)
        visited(loader)
        assert settled(lambda: len(gate.reads)) <= 200


def test_a_sample_in_flight_is_read_once():
    x, y = arrays(40, 16)
    gate = Gate(augury.ArraySource(x, y))
    ids = np.tile(np.arange(10), 4)  # every batch of ten asks for the same ten
    gate.open.clear()
    with augury.Loader(gate, 10, recipe="none", subset=ids, shuffle=False, ram=640, output="numpy", epochs=1) as loader:
        batches = iter(loader)
        threading.Timer(0.3, gate.open.set).start()
        assert len(list(batches)) == 4
        bytes_from = loader.stats().total.bytes_from
    assert sorted(gate.reads) == list(range(10))
    assert bytes_from == {"source": 160, "in flight": 480}, "the store is charged once"


def test_passing_failures_are_retried_and_no_sample_is_lost(monkeypatch):
    monkeypatch.setattr("augury.fetch.BACKOFF", 0.002)  # it is the retries that count, not the waiting
    x, y = arrays()
    slow = augury.SlowSource(augury.ArraySource(x, y), failure_rate=0.3, seed=1)
    with augury.Loader(slow, 16, recipe="lru", ram=0.3, retries=12, output="numpy") as loader:
        for _ in range(3):
            assert sorted(check_batches(loader, x, y)) == list(range(len(x)))
        assert loader.quarantine == []


@pytest.mark.parametrize("recipe", ["lru", "minio", "random", "min"])
def test_samples_that_stay_unreadable_never_corrupt_others(recipe):
    x, y = arrays()
    slow = augury.SlowSource(augury.ArraySource(x, y), failure_rate=0.25, seed=2)
    delivered = 0
    with augury.Loader(slow, 16, recipe=recipe, ram=0.4, retries=0, on_error="skip", output="numpy") as loader:
        for _ in range(5):
            seen = check_batches(loader, x, y)
            assert len(seen) == len(set(seen.tolist())) < len(x)
            delivered += len(seen)
        assert loader.stats().total.bad_samples == 5 * len(x) - delivered
        assert len({bad.id for bad in loader.quarantine}) == len(loader.quarantine) > 0


def test_on_error_names_the_corrupt_file(tmp_path):
    contents = folder(tmp_path, samples=30)

    def parse(data: bytes) -> int:
        if bytes(data) == contents[7]:
            raise ValueError("not an image")
        return len(data)

    bad = tmp_path / "class0" / "007.bin"
    options = {"transform": parse, "ram": "1MB", "workers": 2, "output": "numpy"}
    with augury.Loader(tmp_path, 8, **options) as loader, pytest.raises(BadSample, match=r"007\.bin") as caught:
        visited(loader)
    assert caught.value.id == 7
    assert "not an image" in str(caught.value)
    with augury.Loader(tmp_path, 8, on_error="skip", **options) as loader:
        seen = [visited(loader), visited(loader)]
        assert [len(ids) for ids in seen] == [29, 29]
        assert all(7 not in ids for ids in seen)
        assert [(item.id, item.location) for item in loader.quarantine] == [(7, str(bad))]
        assert loader.stats().total.bad_samples == 2
    with augury.Loader(tmp_path, 8, on_error="substitute", **options) as loader:
        batches = list(loader)
        assert [len(ids) for _, _, ids in batches] == [8, 8, 8, 6]
        for lengths, labels, ids in batches:
            assert 7 not in ids
            assert lengths.tolist() == [len(contents[id]) for id in ids]
            assert labels.tolist() == [id // 10 for id in ids]


def test_a_missing_and_a_changed_file_are_named_with_the_command_that_refreshes(tmp_path):
    folder(tmp_path, samples=12)
    augury.FolderSource(tmp_path).catalog.save(tmp_path / ".augury")
    with augury.Loader(tmp_path, 4, ram="1MB", on_error="skip", output="numpy", transform=len) as loader:
        (tmp_path / "class1" / "001.bin").unlink()
        (tmp_path / "class2" / "002.bin").write_bytes(b"other")
        visited(loader)
        assert sorted(error.id for error in loader.quarantine) == [5, 10]
        for error in loader.quarantine:
            assert isinstance(error, Stale)
            assert f"augury index {tmp_path}" in str(error)


def test_a_whole_unreadable_batch_is_passed_over(tmp_path):
    folder(tmp_path, samples=12)
    with augury.Loader(tmp_path, 4, ram="1MB", on_error="skip", shuffle=False, transform=len, output="numpy") as loader:
        for file in (tmp_path / "class1").iterdir():
            file.unlink()
        assert visited(loader).tolist() == [0, 1, 2, 3, 8, 9, 10, 11]


def test_an_error_is_raised_in_its_place_and_the_loader_can_be_iterated_again(tmp_path):
    folder(tmp_path, samples=12)
    missing = tmp_path / "class1" / "001.bin"
    data = missing.read_bytes()
    with augury.Loader(tmp_path, 4, ram="1MB", shuffle=False, transform=len, output="numpy") as loader:
        missing.unlink()
        batches = iter(loader)
        assert len(next(batches).ids) == 4
        with pytest.raises(Unreadable, match=r"001\.bin"):
            next(batches)
        missing.write_bytes(data)
        assert len(visited(loader)) == 12


def test_mixed_shapes_name_the_sample(tmp_path):
    folder(tmp_path, samples=12)
    parse = lambda data: np.frombuffer(data, np.uint8)  # noqa: E731
    with (
        augury.Loader(tmp_path, 4, ram="1MB", transform=parse) as loader,
        pytest.raises(BadSample, match=r"\.bin.*collate="),
    ):
        visited(loader)
    with augury.Loader(tmp_path, 4, ram="1MB", transform=parse, collate=list, output="numpy") as loader:
        assert all(isinstance(x, list) for x, _, _ in loader)


def test_files_without_a_transform_come_as_bytes(tmp_path):
    contents = folder(tmp_path)
    with augury.Loader(tmp_path, 7, ram=0.5, output="numpy", recipe="lru") as loader:
        for _ in range(3):
            for x, y, ids in loader:
                assert x == [contents[id] for id in ids]
                assert y.tolist() == [id // 20 for id in ids]


def test_validation_on_the_same_cache_does_not_disturb_it():
    x, y = arrays()
    source = augury.ArraySource(x, y)
    with augury.Loader(source, 16, recipe="lru", ram=0.4, readahead=500, epochs=1, output="numpy") as train:
        visited(train)
        policy = train.cache.levels[0].policy
        held, keys = policy.resident.copy(), policy.key.copy()
        with augury.Loader(
            source, 10, cache=train.cache, admit=False, shuffle=False, subset=range(50), output="numpy"
        ) as check:
            assert check_batches(check, x, y).tolist() == list(range(50))
            counts = check.stats().total.counts
            assert counts.hits == held[:50].sum()
        assert np.array_equal(policy.resident, held)
        assert np.array_equal(policy.key, keys)
        assert sorted(check_batches(train, x, y)) == list(range(len(x)))


def test_two_loaders_on_one_cache_both_get_right_bytes():
    x, y = arrays()
    source = augury.SlowSource(augury.ArraySource(x, y), latency=0.0005)
    with (
        augury.Loader(source, 16, recipe="lru", ram=0.4, readahead=500, output="numpy") as one,
        augury.Loader(source, 10, cache=one.cache, seed=9, readahead=500, output="numpy") as two,
    ):
        for _ in range(3):
            for first, second in zip(one, two, strict=False):
                for features, labels, ids in (first, second):
                    np.testing.assert_array_equal(features, x[ids])
                    np.testing.assert_array_equal(labels, y[ids])


def test_close_ends_every_thread_and_use_afterwards_is_an_error():
    x, y = arrays()
    loader = small_loader(x, y)
    next(iter(loader))
    assert threads()
    loader.close()
    loader.close()
    assert threads() == []
    with pytest.raises(Closed):
        iter(loader)


def test_a_forgotten_loader_ends_its_threads():
    x, y = arrays()
    loader = small_loader(x, y)
    next(iter(loader))
    del loader  # the fixture finds whatever is left


def test_processes_transform_where_threads_would_wait_for_each_other(tmp_path):
    contents = folder(tmp_path)
    with augury.Loader(tmp_path, 8, ram="1MB", transform=len, processes=True, workers=2, output="numpy") as loader:
        for lengths, _, ids in loader:
            assert lengths.tolist() == [len(contents[id]) for id in ids]
    with pytest.raises(ConfigError, match="lambda"):
        augury.Loader(tmp_path, 8, ram="1MB", transform=lambda data: 1, processes=True)


def test_processes_get_what_lies_on_disk(tmp_path):
    contents = folder(tmp_path / "data")
    options = {"ram": 3000, "readahead": 2500, "disk": (tmp_path / "cache", "1MB"), "output": "numpy"}
    with augury.Loader(tmp_path / "data", 8, transform=len, processes=True, workers=1, **options) as loader:
        for _ in range(3):
            for lengths, _, ids in loader:
                assert lengths.tolist() == [len(contents[id]) for id in ids]
        assert loader.stats().total.bytes_from["disk"] > 0


def test_an_epoch_of_nothing_but_bad_samples_is_an_error(tmp_path):
    folder(tmp_path, samples=12)
    with (
        augury.Loader(tmp_path, 4, ram="1MB", on_error="skip", transform=lambda data: None, output="numpy") as loader,
        pytest.warns(augury.AuguryWarning, match="quarantine"),
        pytest.raises(BadSample, match="returned None"),
    ):
        list(loader)
    assert loader.stats().total.batches == 0


def test_two_iterators_do_not_share_an_epoch():
    x, y = arrays()
    with small_loader(x, y) as loader, pytest.raises(Closed):
        list(zip(loader, loader, strict=True))


def test_statistics_print_as_a_table():
    x, y = arrays()
    with small_loader(x, y) as loader:
        visited(loader)
        lines = str(loader.stats()).splitlines()
    assert len(lines) == 3
    assert lines[2].split()[:2] == ["all", "13"]
    assert "source 4.8 kB" in lines[2]


class Breaks(Gate):
    """A source that misbehaves once, in one of several ways."""

    def __init__(self, inner, how) -> None:
        super().__init__(inner)
        self.how = how

    def _once(self, how):
        once = self.how == how
        if once:
            self.how = ""
        return once

    def requests(self, ids):
        if self._once("requests"):
            raise RuntimeError("cannot be asked")
        return super().requests(ids)

    def read(self, ids):
        if self._once("raises"):
            raise RuntimeError("cannot read")
        if self._once("nothing"):
            return [None] * len(ids)
        if self._once("too few"):
            return []
        return super().read(ids)


@pytest.mark.parametrize("how", ["requests", "raises", "nothing", "too few"])
def test_a_source_that_breaks_its_promises_is_an_error_and_no_hang(how):
    x, y = arrays()
    with augury.Loader(Breaks(augury.ArraySource(x, y), how), 16, ram=0.5, output="numpy") as loader:
        with pytest.raises(Unreadable):
            visited(loader)
        assert sorted(check_batches(loader, x, y)) == list(range(len(x)))


def test_a_failing_gather_is_an_error_and_no_hang(monkeypatch):
    x, y = arrays(2000, 1024)
    with augury.Loader((x, y), 100, output="numpy") as loader:
        visited(loader)
        tier = loader.cache.levels[0].tier
        monkeypatch.setattr(tier, "take", lambda *arguments: (_ for _ in ()).throw(MemoryError("no memory")))
        with pytest.raises(MemoryError):
            for _ in range(3):
                visited(loader)
        monkeypatch.undo()
        loader.set_epoch(9)
        assert sorted(check_batches(loader, x, y)) == list(range(len(x)))


def test_more_epochs_than_were_announced():
    x, y = arrays()
    with small_loader(x, y, epochs=2) as loader:
        for _ in range(5):
            assert sorted(check_batches(loader, x, y)) == list(range(len(x)))


def test_a_resumed_place_without_a_whole_batch_is_the_end_of_its_epoch():
    x, y = arrays(10)
    with small_loader(x, y, 4, drop_last=True, ram=5000) as loader:
        loader.load_state_dict(loader.state_dict() | {"offset": 9})
        assert len(visited(loader)) == 8
        assert loader.state_dict()["epoch"] == 2
        with pytest.raises(ConfigError, match="does not exist"):
            loader.load_state_dict(loader.state_dict() | {"offset": 11})


def test_set_epoch_within_an_epoch_holds_for_the_next_and_keeps_a_resumed_place():
    x, y = arrays()
    with small_loader(x, y) as loader:
        epochs = [visited(loader).tolist() for _ in range(4)]
        loader.set_epoch(0)
        for at, _ in enumerate(loader):
            if at == 1:
                loader.set_epoch(3)
            if at == 2:
                break
        assert visited(loader).tolist() == epochs[3]
        loader.load_state_dict(loader.state_dict() | {"epoch": 2, "offset": 160})
        loader.set_epoch(2)
        assert visited(loader).tolist() == epochs[2][160:]


def test_decoded_samples_count_in_the_window(tmp_path):
    folder(tmp_path, samples=60, largest=20)
    done = []

    def swell(data: bytes) -> np.ndarray:
        done.append(1)
        return np.zeros(10_000, np.uint8)

    options = {"ram": 400_000, "readahead": 350_000, "recipe": "none", "output": "numpy", "workers": 1}
    with augury.Loader(tmp_path, 10, transform=swell, **options) as loader:
        batches = iter(loader)
        next(batches)
        assert settled(lambda: len(done)) <= 10 + 40, "three batches of 100 kB fit, and one more was under way"
        assert len(list(batches)) == 5


def test_samples_without_bytes_do_not_run_away():
    x = np.empty((1000, 0), np.uint8)
    gate = Gate(augury.ArraySource(x))
    with augury.Loader(gate, 10, recipe="none", output="numpy") as loader:
        next(iter(loader))
        assert settled(lambda: len(gate.reads)) < 200


def test_a_dataset_is_asked_by_one_thread_at_a_time(tmp_path):
    x, _ = arrays(500, 64)
    (tmp_path / "data").write_bytes(x.tobytes())

    class Seeks:
        def __init__(self) -> None:
            self.file = open(tmp_path / "data", "rb")  # noqa: SIM115

        def __len__(self):
            return len(x)

        def __getitem__(self, at):
            self.file.seek(at * 64)
            return np.frombuffer(self.file.read(64), np.uint8)

    dataset = Seeks()
    with dataset.file, augury.Loader(dataset, 50, ram="1MB", output="numpy") as loader:
        for features, _, ids in loader:
            np.testing.assert_array_equal(features, x[ids])


def test_close_in_another_thread_ends_the_iteration():
    x, y = arrays()
    gate = Gate(augury.ArraySource(x, y))
    loader = augury.Loader(gate, 10, recipe="none", output="numpy")
    gate.open.clear()
    closing = threading.Timer(0.2, loader.close)
    closing.start()
    threading.Timer(0.4, gate.open.set).start()
    with pytest.raises(Closed):
        list(loader)
    closing.join()


class Squares:
    """A map-style dataset as users have them."""

    classes = ("even", "odd")

    def __len__(self):
        return 30

    def __getitem__(self, at):
        if at == 13:
            raise ValueError("a bad row")
        return {"value": np.full((2, 2), at * at, np.float32), "name": f"n{at}"}, at % 2


def test_any_map_style_dataset_can_be_cached():
    with augury.Loader(Squares(), 6, ram=0.6, on_error="skip", output="numpy") as loader:
        for _ in range(3):
            for x, y, ids in loader:
                assert x["value"][:, 0, 0].tolist() == [id * id for id in ids.tolist()]
                assert x["name"] == [f"n{id}" for id in ids]
                assert y.tolist() == [id % 2 for id in ids]
        assert [bad.id for bad in loader.quarantine] == [13]
        assert loader.stats().total.counts.hits > 0


def test_a_live_run_can_be_replayed_decision_by_decision(tmp_path):
    x, y = arrays()
    for recipe in ONCE:  # those that learn: test_learning.py
        file = tmp_path / f"{recipe}.trace"
        slow = augury.SlowSource(augury.ArraySource(x, y), failure_rate=0.1, seed=3)  # lost bytes are in the log too
        disk = (tmp_path / f"disk-{recipe}", "100kB")
        options = {"ram": 0.4, "readahead": 600, "retries": 0, "on_error": "skip", "output": "numpy"}
        with augury.Loader(slow, 16, recipe=recipe, trace=file, disk=disk, epochs=2, **options) as loader:
            for _ in range(2):
                check_batches(loader, x, y)
        trace = Trace.open(file)
        calls, difference = verify(trace)
        assert difference is None
        assert calls > 50
        orders = [np.concatenate(epoch) for epoch in trace.epochs()]
        assert [sorted(order) for order in orders] == [list(range(len(x)))] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "minoi"}, "did you mean 'minio'"),
        ({"ram": "10GBB"}, "10GBB"),
        ({"ram": -1}, "negative"),
        ({"ram": 100, "readahead": 90}, "smallest sample"),
        ({"ram": 20}, "largest sample"),
        ({"readahead": 10}, "largest sample"),
        ({"ram": 100, "readahead": 200}, "cannot exceed"),
        ({"disk": "/nowhere"}, "200GB"),
        ({"disk": ("cache", 10)}, "smallest sample"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": None}, "batch_size"),
        ({"disk": Path("cache")}, "200GB"),
        ({"ram": "0.5"}, "without quotes"),
        ({"transform": "decode"}, "transform"),
        ({"seed": -1}, "seed"),
        ({"rank": 3, "world_size": 2}, "rank 3 of 2"),
        ({"rank": 3}, "together"),
        ({"on_error": "ignore"}, "on_error"),
        ({"output": "jax"}, "output"),
        ({"subset": []}, "no sample"),
        ({"subset": [500]}, "500"),
        ({"drop_last": True, "batch_size": 1000}, "no batch"),
    ],
)
def test_bad_arguments_say_what_to_do(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = arrays()
    with pytest.raises(ConfigError, match=message):
        list(augury.Loader((x, y), **{"batch_size": 16} | options))


def test_bad_paths_say_what_to_do(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("x")
    for path, message in (
        (tmp_path / "empty", "empty|no "),
        (tmp_path / "file.txt", "file"),
        (tmp_path / "none", "exist"),
    ):
        with pytest.raises(augury.AuguryError, match=message):
            augury.Loader(path, 4)


def test_samples_larger_than_the_cache_bypass_it_with_one_warning(tmp_path):
    contents = folder(tmp_path)
    (tmp_path / "class0" / "large.bin").write_bytes(b"x" * 5000)
    with (
        pytest.warns(augury.AuguryWarning, match="1 of 61 samples"),
        augury.Loader(tmp_path, 7, ram=9000, readahead=5000, recipe="lru", output="numpy", transform=len) as loader,
    ):
        for _ in range(3):
            assert len(visited(loader)) == len(contents) + 1


def test_pinned_memory_without_a_device_is_a_warning():
    x, y = arrays()
    with pytest.warns(augury.AuguryWarning, match="pin_memory"), small_loader(x, y, pin_memory=True) as loader:
        check_batches(loader, x, y)
