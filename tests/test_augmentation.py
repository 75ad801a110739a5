"""Transforms in the loader: chance that belongs to (seed, epoch, id), batches made in place, and keep="decoded"."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

import augury
from augury.errors import BadSample, ConfigError, UnknownName, Unreadable
from augury.torch import CachedDataset, Sampler
from augury.transforms import (
    CenterCrop,
    Compose,
    Decode,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToFloat,
)
from helpers import visited

SAMPLES = 24
ROW = [Decode(), Resize((20, 24)), RandomResizedCrop(16), RandomHorizontalFlip(), ToFloat()]
KEPT = 20 * 24 * 3


@pytest.fixture
def photos(tmp_path):
    """JPEGs and PNGs of many sizes in two classes; returns their folder and their bytes by id."""
    rng, contents = np.random.default_rng(0), []
    for label in range(2):
        (tmp_path / "data" / f"class{label}").mkdir(parents=True)
        for at in range(SAMPLES // 2):
            size = tuple(rng.integers(30, 70, 2).tolist())
            picture = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)).resize(size)
            path = tmp_path / "data" / f"class{label}" / f"{at:03d}.{'png' if at % 5 == 0 else 'jpg'}"
            picture.save(path)
            contents.append(path.read_bytes())
    return tmp_path / "data", contents


def epochs(count, data, batch=5, **options):
    """What `count` epochs show: {(epoch, id): sample}."""
    options = {"ram": "10MB", "output": "numpy"} | options
    with augury.Loader(data, batch, **options) as loader:
        return collected(loader, count)


def collected(loader, count, first=0):
    return {
        (epoch, id): sample.copy()
        for epoch in range(first, first + count)
        for x, _, ids in loader
        for id, sample in zip(ids.tolist(), x, strict=True)
    }


def assert_alike(one, other):
    assert one.keys() == other.keys()
    for key, sample in one.items():
        np.testing.assert_array_equal(sample, other[key], err_msg=str(key))


def test_batches_hold_what_the_pipeline_makes_of_each_sample(photos):
    folder, contents = photos
    seen = epochs(2, folder, transform=Compose(ROW), seed=3)
    assert len(seen) == 2 * SAMPLES
    for (epoch, id), sample in seen.items():
        np.testing.assert_array_equal(sample, Compose(ROW)(contents[id], seed=3, epoch=epoch, id=id))
    assert not np.array_equal(seen[0, 0], seen[1, 0])


def test_a_cache_of_decoded_pictures_is_not_taken_for_files(photos):
    folder, _ = photos
    steps = Compose([Decode(), Resize((8, 8))])
    with augury.Loader(folder, 4, transform=steps, keep="decoded", output="numpy") as train:
        list(train)
        with pytest.raises(ConfigError, match=r"data=other\.source"):
            augury.Loader(folder, 4, cache=train.cache, admit=False)
        with augury.Loader(train.source, 4, cache=train.cache, admit=False, output="numpy") as test:
            assert sum(len(ids) for _, _, ids in test) == SAMPLES
            assert test.stats().total.counts.misses == 0
    with (
        augury.Loader(folder, 4, output="numpy") as plain,
        augury.Loader(folder, 4, transform=steps, keep="decoded") as other,
        pytest.raises(ConfigError, match="as stored"),
    ):
        augury.Loader(other.source, 4, cache=plain.cache)


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 7},
        {"workers": 4, "readers": 3},
        {"processes": True, "workers": 2},
        {"shuffle": False},
        {"recipe": "lru", "ram": "40kB"},
        {"collate": np.stack},
        {"keep": "decoded"},
        {"keep": "decoded", "processes": True, "workers": 1},
        {"keep": "decoded", "recipe": "min", "ram": "12kB"},
    ],
    ids=lambda options: "-".join(options),  # values may be functions, whose names differ between test processes
)
def test_augmentation_does_not_depend_on_how_it_is_run(photos, options):
    options = {"transform": Compose(ROW), "seed": 1} | options
    assert_alike(epochs(2, photos[0], **options), epochs(2, photos[0], transform=Compose(ROW), seed=1, workers=1))


def test_ranks_augment_as_one_would(photos):
    options = {"transform": Compose(ROW), "seed": 1}
    ranks = [epochs(1, photos[0], rank=rank, world_size=2, **options) for rank in range(2)]
    assert_alike(ranks[0] | ranks[1], epochs(1, photos[0], **options))


@pytest.mark.parametrize("keep", ["encoded", "decoded"])
def test_a_resumed_run_augments_alike(photos, keep):
    options = {"ram": "10MB", "transform": Compose(ROW), "keep": keep, "output": "numpy"}
    whole = epochs(2, photos[0], **options, seed=6)
    with augury.Loader(photos[0], 5, seed=6, **options) as loader:
        collected(loader, 1)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
    with augury.Loader(photos[0], 3, seed=0, **options) as loader:  # the state brings the seed
        loader.load_state_dict(state)
        rest = collected(loader, 1, first=1)
    assert len(rest) == SAMPLES - 5
    assert_alike(rest, {key: whole[key] for key in rest})


def test_seeds_differ(photos):
    one, other = (epochs(1, photos[0], transform=Compose(ROW), seed=seed) for seed in (1, 2))
    assert not any(np.array_equal(one[key], other[key]) for key in one)


def test_tensors_come_with_the_shape_that_layers_take(photos):
    mean_std = Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    with augury.Loader(photos[0], 8, ram="10MB", transform=Compose([*ROW, mean_std])) as loader:
        x, y, _ = next(iter(loader))
    assert x.shape == (8, 3, 16, 16)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64


def test_batches_that_are_kept_stay_as_they_are(photos):
    with augury.Loader(photos[0], 5, ram="10MB", transform=Compose(ROW), output="numpy") as loader:
        batches = [(x, x.copy()) for _ in range(4) for x, _, _ in loader]
    for batch, copy in batches:
        np.testing.assert_array_equal(batch, copy)


def test_a_single_step_is_a_transform(photos):
    seen = epochs(1, photos[0], transform=Compose([Decode(), RandomResizedCrop(9)]), seed=4)
    with augury.Loader(
        (np.stack(list(seen.values())), None), 5, transform=RandomVerticalFlip(1.0), output="numpy"
    ) as loader:
        for x, _, ids in loader:
            np.testing.assert_array_equal(x, np.stack([list(seen.values())[id][::-1] for id in ids]))


class Shift:
    """A seeded transform of a user's own: adds what belongs to (seed, epoch, id)."""

    def for_batch(self, chance, ids):
        return [lambda row, id=id: row + id * 10_000 + chance.epoch * 100 + chance.seed for id in ids.tolist()]

    def __call__(self, row):
        raise AssertionError("the loader asks for_batch")


def test_any_transform_may_ask_for_seed_epoch_and_id():
    x = np.zeros((10, 2), np.int64)
    seen = epochs(2, (x, None), batch=4, transform=Shift(), seed=7)
    for (epoch, id), row in seen.items():
        assert row.tolist() == [id * 10_000 + epoch * 100 + 7] * 2


def test_a_seeded_transform_that_answers_too_little_is_told_so():
    class Lazy(Shift):
        def for_batch(self, chance, ids):
            return []

    with (
        augury.Loader(np.zeros((10, 2)), 4, transform=Lazy()) as loader,
        pytest.raises(ConfigError, match="one function"),
    ):
        visited(loader)


def test_any_function_works_as_before(photos):
    def shout(data):
        return np.frombuffer(data[:2], np.uint8)

    for (_, id), start in epochs(1, photos[0], transform=shout).items():
        assert start.tobytes() == photos[1][id][:2]


# -- bad samples -----------------------------------------------------------------------------------------------


@pytest.fixture
def with_bad(photos):
    """The same with one file cut short and one that is no picture."""
    folder, contents = photos
    (folder / "class0" / "004.jpg").write_bytes(contents[4][: len(contents[4]) // 2])
    (folder / "class1" / "002.jpg").write_bytes(b"<html>not found</html>")
    return folder, {4: str(folder / "class0" / "004.jpg"), 14: str(folder / "class1" / "002.jpg")}


@pytest.mark.parametrize("keep", ["encoded", "decoded"])
def test_bad_pictures_are_named(with_bad, keep):
    folder, bad = with_bad
    options = {"ram": "10MB", "transform": Compose(ROW), "keep": keep, "output": "numpy"}
    with augury.Loader(folder, 5, **options) as loader, pytest.raises((BadSample, Unreadable)) as caught:
        visited(loader)
    assert caught.value.location == bad[caught.value.id]
    good = epochs(2, folder, **options, on_error="skip")
    assert {id for _, id in good} == set(range(SAMPLES)) - set(bad)
    for (epoch, id), sample in good.items():
        file = (folder / f"class{id // 12}").glob(f"{id % 12:03d}.*")
        np.testing.assert_array_equal(sample, Compose(ROW)(next(file).read_bytes(), epoch=epoch, id=id))


@pytest.mark.parametrize("keep", ["encoded", "decoded"])
def test_bad_pictures_are_skipped_or_substituted_and_listed(with_bad, keep):
    folder, bad = with_bad
    options = {"ram": "10MB", "transform": Compose(ROW), "keep": keep, "output": "numpy"}
    for on_error, expected in (("skip", SAMPLES - 2), ("substitute", SAMPLES)):
        with augury.Loader(folder, 6, on_error=on_error, **options) as loader:
            for _ in range(2):
                batches = [(x.copy(), ids) for x, _, ids in loader]
                assert sum(len(ids) for _, ids in batches) == expected
                for x, ids in batches:
                    assert len(x) == len(ids)
                    assert not set(ids.tolist()) & set(bad)
            assert {error.id: error.location for error in loader.quarantine} == bad


# -- keep ------------------------------------------------------------------------------------------------------


def test_decoded_pictures_are_kept_and_counted_by_their_size(photos):
    room = 10 * KEPT
    with augury.Loader(
        photos[0], 4, transform=Compose(ROW), keep="decoded", ram=room + 4 * KEPT, readahead=4 * KEPT, output="numpy"
    ) as loader:
        collected(loader, 3)
        stats = loader.stats()
    assert [epoch.counts.hits for epoch in stats.epochs] == [0, 10, 10]
    assert stats.epochs[2].bytes_from == {"ram": 10 * KEPT, "source": (SAMPLES - 10) * KEPT}


def test_each_picture_is_decoded_once(photos, monkeypatch):
    calls = []
    window = Resize.window
    monkeypatch.setattr(Resize, "window", lambda *size, **drawn: calls.append(1) or window(*size, **drawn))
    epochs(3, photos[0], transform=Compose(ROW), keep="decoded")
    assert len(calls) == SAMPLES


def test_without_random_steps_batches_are_ready_as_gathered(photos):
    row = [Decode(), Resize(20), CenterCrop((12, 10))]
    with augury.Loader(photos[0], 5, ram="10MB", transform=Compose(row), keep="decoded", output="numpy") as loader:
        assert loader._workers is None
        for (_, id), sample in collected(loader, 2).items():
            np.testing.assert_array_equal(sample, Compose(row)(photos[1][id]))


def disk_epochs(photos, tmp_path, row, keep="decoded"):
    disk = (tmp_path / "cache", "10MB")
    with augury.Loader(
        photos[0], 5, ram="12kB", readahead="8kB", disk=disk, transform=Compose(row), keep=keep, output="numpy"
    ) as loader:
        seen = collected(loader, 1)
        return seen, loader.stats().total


def test_a_restart_finds_decoded_pictures_on_disk(photos, tmp_path):
    first, cold = disk_epochs(photos, tmp_path, ROW)
    again, warm = disk_epochs(photos, tmp_path, ROW)
    assert (cold.counts.hits, warm.counts.hits) == (0, warm.bytes_from["disk"] // KEPT)
    assert warm.counts.hits > SAMPLES // 2
    assert_alike(again, first)


@pytest.mark.parametrize(
    ("other", "keep"),
    [
        ([Decode(), CenterCrop((20, 24)), *ROW[2:]], "decoded"),  # as large, and not the same
        ([Decode(reduce=False), *ROW[1:]], "decoded"),
        ([Decode(), Resize((24, 20)), *ROW[2:]], "decoded"),
        (ROW, "encoded"),
    ],
    ids=str,
)
def test_a_cache_of_other_content_is_not_used(photos, tmp_path, other, keep):
    disk_epochs(photos, tmp_path, ROW)
    seen, stats = disk_epochs(photos, tmp_path, other, keep)
    assert stats.counts.hits == 0
    for (_, id), sample in seen.items():
        np.testing.assert_array_equal(sample, Compose(other)(photos[1][id], id=id))


def test_what_comes_after_the_cache_may_change(photos, tmp_path):
    disk_epochs(photos, tmp_path, ROW)
    _, stats = disk_epochs(photos, tmp_path, [*ROW[:2], RandomVerticalFlip()])
    assert stats.counts.hits > 0


def test_tar_shards_and_arrays_are_kept_decoded_too(photos, tmp_path):
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for id, data in enumerate(photos[1]):
            for name, content in ((f"{id:03d}.jpg", data), (f"{id:03d}.cls", str(id % 3).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    kept = epochs(1, tmp_path / "shard.tar", transform=Compose(ROW), keep="decoded")
    assert_alike(kept, epochs(1, tmp_path / "shard.tar", transform=Compose(ROW)))
    pixels = np.random.default_rng(0).integers(0, 256, (10, 9, 9, 3), dtype=np.uint8)
    row = [CenterCrop(6), RandomHorizontalFlip()]
    kept = epochs(2, pixels, transform=Compose(row), keep="decoded")
    assert_alike(kept, epochs(2, pixels, transform=Compose(row)))


def test_validation_reads_what_training_keeps_decoded(photos):
    with augury.Loader(photos[0], 5, ram="10MB", transform=Compose(ROW), keep="decoded", output="numpy") as train:
        collected(train, 1)
        with augury.Loader(
            train.source, 5, cache=train.cache, admit=False, shuffle=False, transform=ToFloat(), output="numpy"
        ) as check:
            for (_, id), sample in collected(check, 1).items():
                np.testing.assert_array_equal(sample, Compose([*ROW[:2], ToFloat()])(photos[1][id]))
            assert check.stats().total.counts.hits == SAMPLES
        with pytest.raises(ConfigError, match="keep= belongs to the loader that made the cache"):
            augury.Loader(photos[0], 5, cache=train.cache, keep="decoded", transform=Compose(ROW))


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (None, "there is none"),
        (len, r"cannot be split: write augury\.transforms\.Compose"),
        (Compose([Decode(), RandomResizedCrop(16)]), r"one size.*add Resize\(\(height, width\)\)"),
        (Compose([Decode(), Resize(16), RandomHorizontalFlip()]), r"CenterCrop\(size\) behind Resize\(size=16\)"),
        (Compose([RandomHorizontalFlip(), Resize((8, 8))]), r"RandomHorizontalFlip\(p=0.5\) is random"),
        (Compose([len]), "begin with Decode"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_decoded_says_what_to_write(photos, transform, says):
    with pytest.raises(ConfigError, match=says):
        augury.Loader(photos[0], 4, ram="10MB", transform=transform, keep="decoded")


def test_keep_is_one_of_two_words_and_labels_are_not_lost(photos):
    with pytest.raises(UnknownName, match="decoded"):
        augury.Loader(photos[0], 4, ram="10MB", keep="decode")
    items = [(data, at) for at, data in enumerate(photos[1])]
    with pytest.raises(ConfigError, match="labels"):
        augury.Loader(items, 4, ram="10MB", transform=Compose(ROW), keep="decoded")


# -- under torch's DataLoader ----------------------------------------------------------------------------------


def items_of(dataset, workers, persistent=False, count=2, tell=True):
    sampler = Sampler(dataset, seed=0)
    loader = torch.utils.data.DataLoader(
        dataset, 5, sampler=sampler, num_workers=workers, persistent_workers=persistent, collate_fn=list
    )
    seen = {}
    for epoch in range(count):
        if tell:
            dataset.set_epoch(epoch)
        for batch in loader:
            seen |= {(epoch, id): sample for sample, _, id in batch}
    return seen


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("keep", ["encoded", "decoded"])
def test_a_cached_dataset_augments_as_the_loader(photos, workers, persistent, keep):
    dataset = CachedDataset(photos[0], ram="10MB", transform=Compose(ROW), keep=keep, seed=5, with_ids=True)
    try:
        assert_alike(items_of(dataset, workers, persistent), epochs(2, photos[0], transform=Compose(ROW), seed=5))
    finally:
        dataset.close()


def test_a_cached_dataset_that_is_not_told_the_epoch_still_varies(photos):
    dataset = CachedDataset(photos[0], ram="10MB", transform=Compose(ROW), with_ids=True)
    torch.manual_seed(0)
    seen = items_of(dataset, 0, tell=False)
    assert not any(np.array_equal(seen[0, id], seen[1, id]) for id in range(SAMPLES))
    torch.manual_seed(0)
    assert_alike(items_of(dataset, 0, tell=False), seen)
    with pytest.raises(ConfigError, match="epoch -1"):
        dataset.set_epoch(-1)
    dataset.close()
