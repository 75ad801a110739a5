"""iCache live: stand-ins under their own id and label, packages through the loader, and what can go wrong with them."""

from __future__ import annotations

import threading
import warnings
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import augury
from augury.errors import ConfigError
from augury.packages import PackageStore
from augury.recipes import find
from augury.samplers.selective import IIS
from augury.sim.fields import Synthetic
from augury.sources import Base
from augury.sources.array import ArraySource
from augury.sources.folder import FolderSource
from augury.sources.slow import SlowSource
from helpers import arrays, folder

SAMPLES, BATCH, WIDTH, EPOCHS = 600, 16, 64, 6
FIELD = Synthetic(SAMPLES)
SOON = replace(find("icache"), sampler=partial(IIS, warm_up=1))
"""As icache, but samples are left out from the second epoch on."""


def loader(data=None, recipe=SOON, cache=0.25, **options):
    window = 4 * BATCH * WIDTH
    room = {"ram": int(cache * SAMPLES * WIDTH) + window, "readahead": window, "readers": 4, "output": "numpy"}
    return augury.Loader(arrays(SAMPLES, WIDTH) if data is None else data, BATCH, recipe=recipe, **(room | options))


def train(loader, epochs=EPOCHS):
    """What was served, epoch by epoch."""
    x, y = arrays(SAMPLES, WIDTH)
    served = []
    for epoch in range(epochs):
        ids_of_epoch = []
        for data, labels, ids in loader:
            assert np.array_equal(data, x[ids])
            assert np.array_equal(labels, y[ids])
            loader.feedback(ids, FIELD.losses(epoch, ids))
            ids_of_epoch.append(ids)
        served.append(np.concatenate(ids_of_epoch))
    return served


class PerSample(ArraySource):
    """One request per sample."""

    def requests(self, ids):
        return Base.requests(self, ids)


def test_stand_ins_come_under_their_own_id_and_label():
    with loader() as live:
        train(live)
        assert live.stats().total.counts.substitutes > 0


def test_the_same_seed_gives_the_same_run_however_slow_the_store_is():
    with loader() as quick:
        expected = train(quick)
    with loader(SlowSource(augury.ArraySource(*arrays(SAMPLES, WIDTH)), 0.001)) as slow:
        found = train(slow)
    assert all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True))


def test_nobody_outside_the_subset_stands_in():
    """They may be held back for validation."""
    with loader(subset=np.arange(0, SAMPLES, 2), epochs=6) as live:
        served = np.concatenate(train(live))
        assert live.stats().total.counts.substitutes > 0
    assert (served % 2 == 0).all()


def test_a_stand_in_has_a_weight_of_its_own():
    """Also where it was another rank's to visit."""
    with loader(weights=True, rank=0, world_size=2) as live:
        for epoch in range(6):
            for _, _, ids, weights in live:
                assert (weights > 0).all()
                live.feedback(ids, FIELD.losses(epoch, ids))
        assert live.stats().total.counts.substitutes > 0


def test_a_state_of_another_subset_is_refused():
    with loader(subset=np.arange(0, 300)) as one, loader(subset=np.arange(200, 500)) as other:
        train_some = iter(one)
        next(train_some)
        with pytest.raises(ConfigError, match="another subset="):
            other.load_state_dict(one.state_dict())
        one.load_state_dict(one.state_dict())


def test_stand_ins_are_shown():
    with loader() as live:
        train(live, 3)
        assert "stand-ins" in str(live.stats())
    with loader(recipe="lru") as live:
        train(live, 1)
        assert "stand-ins" not in str(live.stats())


def test_what_waits_to_be_packed_is_part_of_ram(tmp_path):
    with loader(packages=f"{tmp_path / 'packages'}:1MB", ram="60kB", readahead="20kB") as live:
        assert live.source.tap.budget <= 5_000
        train(live, 3)


def test_packages_change_no_decision(tmp_path):
    with loader() as plain:
        expected = train(plain)
    with loader(packages=f"{tmp_path / 'packages'}:1MB") as packed:
        found = train(packed)
    assert all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True))


def test_packages_save_requests(tmp_path):
    requests = {}
    for name in ("none", "packages"):
        source = SlowSource(PerSample(*arrays(SAMPLES, WIDTH)))
        store = PackageStore(tmp_path / name, 1 << 20, source.catalog.fingerprint, line=source.transfer)
        with closing(store), loader(source, packages=store if name == "packages" else None) as live:
            train(live, 3)
            if name == "packages":
                settle(live)
                assert store.ready
            source.requests_made = 0
            train(live, 6)
            requests[name] = source.requests_made
    assert requests["packages"] < requests["none"]


def settle(live):
    """Let the packer finish what it has been told."""
    assert live.packer.wait(20)


def test_the_limit_of_the_package_store_holds(tmp_path):
    limit = 6_000
    with loader(packages=(tmp_path / "packages", limit)) as live:
        train(live)
        settle(live)
        assert 0 < sum(file.stat().st_size for file in tmp_path.rglob("*.package")) <= limit


def test_a_store_that_fails_stops_nothing(tmp_path):
    with loader(packages=f"{tmp_path / 'packages'}:1MB") as live:
        train(live, 2)
        settle(live)
        for file in tmp_path.rglob("*.package"):
            file.write_bytes(b"not what was written")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train(live, 4)


def test_files_of_mixed_sizes_in_packages(tmp_path):
    contents = folder(tmp_path / "data", samples=300, largest=400)
    with augury.Loader(
        tmp_path / "data", 8, recipe=SOON, ram="30kB", packages=f"{tmp_path / 'packages'}:1MB", output="numpy"
    ) as live:
        for epoch in range(6):
            for data, _, ids in live:
                assert [bytes(item) for item in data] == [contents[id] for id in ids]
                live.feedback(ids, Synthetic(300).losses(epoch, ids))
        settle(live)
        assert live.stats().total.counts.substitutes > 0
    assert list((tmp_path / "packages").rglob("*.package"))


def test_resumed_midway_it_asks_for_the_rest_of_the_epoch():
    with loader() as whole, loader() as first, loader() as second:
        train(whole, 3)
        train(first, 2)
        asked = []
        for number, (_, _, ids) in enumerate(first):
            first.feedback(ids, FIELD.losses(2, ids))
            asked.append(len(ids))
            if number == 10:
                break
        second.load_state_dict(first.state_dict())
        rest = sum(len(ids) for _, _, ids in second)
    assert sum(asked) + rest == round(SAMPLES / 1.33)


def test_a_disk_below_the_memory(tmp_path):
    with loader(disk=f"{tmp_path / 'disk'}:20kB", cache=0.1) as live:
        served = train(live)
        assert live.stats().total.counts.substitutes > 0
        assert live.stats().total.bytes_from["disk"] > 0
    for ids in served[1:]:  # who stands in was not used before in the epoch, and mostly does not come itself
        assert len(np.unique(ids)) > 0.95 * len(ids)


def test_decoded_samples_with_packages(tmp_path):
    pytest.importorskip("PIL")
    from PIL import Image

    from augury import transforms

    (tmp_path / "data" / "a").mkdir(parents=True)
    for number in range(60):
        Image.new("RGB", (12, 10), (number, 0, 0)).save(tmp_path / "data" / "a" / f"{number:03d}.png")
    with augury.Loader(
        tmp_path / "data",
        4,
        recipe=SOON,
        ram="30kB",
        keep="decoded",
        transform=transforms.Compose([transforms.Decode(), transforms.Resize((8, 8))]),
        packages=f"{tmp_path / 'packages'}:1MB",
        output="numpy",
    ) as live:
        for epoch in range(5):
            for data, _, ids in live:
                assert np.array_equal(data[:, 4, 4, 0], ids)
                live.feedback(ids, Synthetic(60).losses(epoch, ids))


def test_threads_end_with_the_loader(tmp_path):
    with loader(packages=f"{tmp_path / 'packages'}:1MB") as live:
        train(live, 2)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("augury-")]


class TestMistakes:
    def test_packages_within_the_data(self, tmp_path):
        folder(tmp_path / "data")
        with pytest.raises(ConfigError, match="data"):
            augury.Loader(tmp_path / "data", 4, recipe="icache", packages=f"{tmp_path / 'data' / 'packages'}:1MB")
        assert not (tmp_path / "data" / "packages").exists()

    def test_packages_for_a_recipe_that_has_none(self, tmp_path):
        with pytest.raises(ConfigError, match="packages= is of no use to recipe 'lru'"):
            loader(recipe="lru", packages=f"{tmp_path / 'packages'}:1MB")
        assert not (tmp_path / "packages").exists()

    def test_in_catalog_order_others_would_come(self):
        with pytest.raises(ConfigError, match="shuffle=False"):
            loader(shuffle=False)

    def test_packages_without_a_limit(self, tmp_path):
        with pytest.raises(ConfigError, match="packages="):
            loader(packages=str(tmp_path / "packages"))

    def test_packages_beside_another_loaders_cache(self, tmp_path):
        with loader() as first, pytest.raises(ConfigError, match="packages= belongs to the loader that made"):
            augury.Loader(first.source, BATCH, cache=first.cache, packages=f"{tmp_path / 'packages'}:1MB")

    def test_a_directory_that_is_not_ours(self, tmp_path):
        folder(tmp_path / "mine")
        with pytest.raises(ConfigError):
            loader(packages=f"{tmp_path / 'mine'}:1MB")


def test_a_folder_is_read_once_per_package(tmp_path):
    """Two loaders, one after the other: the second finds the first one's packages."""
    folder(tmp_path / "data", samples=300, largest=400)
    for _ in range(2):
        with augury.Loader(
            FolderSource(tmp_path / "data"), 8, recipe=SOON, ram="30kB", packages=f"{tmp_path / 'packages'}:1MB"
        ) as live:
            for epoch in range(4):
                for _, _, ids in live:
                    live.feedback(ids, Synthetic(300).losses(epoch, ids))
            settle(live)
