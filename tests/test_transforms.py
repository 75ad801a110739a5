"""Each transform beside Pillow or NumPy, chance beside what it promises, and decoding joined with what follows it."""

from __future__ import annotations

import io
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from augury.errors import ConfigError
from augury.sources import Form
from augury.transforms import (
    CenterCrop,
    Chance,
    Compose,
    Decode,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToFloat,
    images,
    uniform,
)
from augury.transforms.images import Window


def photo(height=90, width=120, seed=0):
    """Smooth noise: like a photo, it hardly changes from pixel to pixel."""
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def file(pixels, kind="jpeg", mode="RGB", **options):
    written = io.BytesIO()
    options = {"quality": 92} | options if kind == "jpeg" else options
    Image.fromarray(pixels).convert(mode).save(written, kind, **options)
    return written.getvalue()


def by_pillow(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def resized(pixels, height, width, box=None):
    top, left, high, wide = box or (0, 0, *pixels.shape[:2])
    part = Image.fromarray(pixels[top : top + high, left : left + wide])
    return np.asarray(part.resize((width, height), Image.Resampling.BILINEAR))


def difference(one, other):
    return np.abs(one.astype(float) - other).mean()


@pytest.fixture
def decodings(monkeypatch):
    """How many times smaller each JPEG was decoded, and which went to Pillow."""
    seen = []
    jpeg, pillow = images._jpeg, images._by_pillow

    def note_jpeg(data, height, width, times):
        seen.append(times)
        return jpeg(data, height, width, times)

    def note_pillow(data):
        seen.append("pillow")
        return pillow(data)

    monkeypatch.setattr(images, "_jpeg", note_jpeg)
    monkeypatch.setattr(images, "_by_pillow", note_pillow)
    return seen


# -- decoding --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({}, [1]),
        ({"progressive": True}, [1]),
        ({"subsampling": 0}, [1]),
        ({"mode": "L"}, [1]),
        ({"mode": "CMYK"}, ["pillow"]),
        ({"kind": "png"}, ["pillow"]),
        ({"kind": "png", "mode": "P"}, ["pillow"]),
        ({"kind": "png", "mode": "RGBA"}, ["pillow"]),
        ({"kind": "png", "mode": "L"}, ["pillow"]),
        ({"kind": "webp"}, ["pillow"]),
        ({"kind": "bmp"}, ["pillow"]),
    ],
)
def test_every_kind_of_file_is_decoded_as_pillow_does(options, how, decodings):
    data = file(photo(), **options)
    pixels = Decode()(data)
    assert pixels.shape == (90, 120, 3)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, by_pillow(data))
    assert decodings == how


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_decoded_and_the_result_may_be_written_to(kind):
    pixels = Decode()(kind(file(photo())))
    pixels[:] = 0


def test_a_jpeg_with_a_small_fault_is_forgiven():
    good = file(photo())
    np.testing.assert_array_equal(Decode()(good[:-2] + b"\0\0" + good[-2:]), by_pillow(good))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (b"no picture", "10 bytes that are no picture"),
        (file(photo())[:1500], "truncated"),
        (file(photo())[:30], "(?i)truncated|no picture"),
        (file(photo(), "png")[:1500], "truncated"),
        (file(photo())[:2] + bytes(500), "502 bytes"),
    ],
)
def test_what_cannot_be_decoded_is_an_error(data, reason):
    for decode in (Decode(), Compose([Decode(), Resize((8, 8))])):
        with pytest.raises((ValueError, OSError, SyntaxError), match=reason):
            decode(data)


def test_sixteen_bits_are_refused_rather_than_clipped():
    written = io.BytesIO()
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(written, "png")
    with pytest.raises(ValueError, match="8 bits"):
        Decode()(written.getvalue())


def test_arrays_are_not_decoded_and_bytes_not_cropped():
    with pytest.raises(TypeError, match=r"bytes of a picture's file, not an array \(90"):
        Decode()(photo())
    with pytest.raises(TypeError, match=r"Decode\(\) comes first"):
        CenterCrop(3)(file(photo()))
    with pytest.raises(TypeError, match=r"\(90, 120\) of uint8"):
        Resize(8)(photo()[..., 0])


def test_without_the_libraries_the_error_says_what_to_install(monkeypatch):
    images.libraries.cache_clear()
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with pytest.raises(ConfigError, match=r"pip install augury\[images\]"):
        Decode()
    images.libraries.cache_clear()


# -- sizes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(40, 30), (200, 300), (90, 120)])
def test_resize_is_pillows(size):
    np.testing.assert_array_equal(Resize(size)(photo()), resized(photo(), *size))


@pytest.mark.parametrize(("shape", "expected"), [((90, 120), (45, 60)), ((120, 90), (60, 45)), ((50, 51), (45, 45))])
def test_resize_to_one_number_keeps_proportions(shape, expected):
    pixels = photo(*shape)
    np.testing.assert_array_equal(Resize(45)(pixels), resized(pixels, *expected))


def test_center_crop_is_the_middle():
    pixels = photo()
    np.testing.assert_array_equal(CenterCrop((50, 30))(pixels), pixels[20:70, 45:75])
    np.testing.assert_array_equal(CenterCrop(90)(pixels), pixels[:, 15:105])


def test_center_crop_of_less_is_padded_with_black():
    pixels = photo()
    cropped = CenterCrop(100)(pixels)
    np.testing.assert_array_equal(cropped[5:95], pixels[:, 10:110])
    assert not cropped[:5].any()
    assert not cropped[95:].any()


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 10_000))
def test_a_random_crop_lies_within_the_picture_and_its_limits(height, width, id):
    crop = RandomResizedCrop(64)
    (numbers,) = uniform(Chance(0, 0), np.array([id]), 0, crop.numbers).tolist()
    window = crop.window(height, width, numbers)
    assert 0 <= window.top <= window.top + window.height <= height
    assert 0 <= window.left <= window.left + window.width <= width
    assert window.height > 0
    assert window.width > 0
    assert window[4:] == (64, 64)


def windows(crop, height, width, count=4000):
    numbers = uniform(Chance(7, 3), np.arange(count), 1, crop.numbers).tolist()
    return np.array([crop.window(height, width, each) for each in numbers])


def test_random_crops_are_spread_over_area_proportions_and_place():
    crop = RandomResizedCrop(64, scale=(0.1, 0.5), ratio=(0.5, 2.0))
    found = windows(crop, 1000, 1000)
    top, left, height, width = found.T[:4]
    area, ratio = height * width / 1e6, np.log(width / height)
    assert area.min() >= 0.0995
    assert area.max() <= 0.5005
    assert np.abs(np.histogram(area, 8, (0.1, 0.5))[0] - 500).max() < 110
    assert np.abs(ratio).max() <= np.log(2) + 0.01
    assert np.abs(np.histogram(ratio, 8, (-np.log(2), np.log(2)))[0] - 500).max() < 110
    for start, length in ((top, height), (left, width)):
        place = start / (1000 - length)
        assert np.abs(np.histogram(place, 8, (0, 1))[0] - 500).max() < 110
        assert place.max() == 1.0
        assert place.min() == 0.0
    assert abs(np.corrcoef(area, ratio)[0, 1]) < 0.05
    assert abs(np.corrcoef(top, left)[0, 1]) < 0.05


def test_what_never_fits_becomes_the_largest_part_that_does():
    crop = RandomResizedCrop(8, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    assert {tuple(each[2:4]) for each in windows(crop, 30, 100, 20)} == {(30, 30)}
    assert {tuple(each[2:4]) for each in windows(crop, 100, 30, 20)} == {(30, 30)}


def test_a_random_crop_is_pillows_crop_and_resize():
    crop, pixels = RandomResizedCrop((32, 48)), photo()
    for id in range(20):
        (numbers,) = uniform(Chance(1, 2), np.array([id]), 0, crop.numbers).tolist()
        expected = resized(pixels, 32, 48, crop.window(90, 120, numbers)[:4])
        np.testing.assert_array_equal(crop(pixels, seed=1, epoch=2, id=id), expected)


# -- flips and numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flip", "flipped"), [(RandomHorizontalFlip, photo()[:, ::-1]), (RandomVerticalFlip, photo()[::-1])]
)
def test_flips(flip, flipped):
    np.testing.assert_array_equal(flip(1.0)(photo()), flipped)
    np.testing.assert_array_equal(flip(0.0)(photo()), photo())
    tiny = photo(2, 3)
    turned = sum(not np.array_equal(flip(0.3)(tiny, id=id), tiny) for id in range(2000))
    assert 540 < turned < 660


def test_to_float_and_normalize():
    pixels = photo()
    expected = pixels.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    got = ToFloat()(pixels)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected)
    assert (ToFloat()(np.full((2, 2, 3), 255, np.uint8)) == 1).all()
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    normal = Compose([ToFloat(), Normalize(mean, std)])(pixels)
    assert normal.dtype == np.float32
    wanted = (expected - np.float32(mean).reshape(3, 1, 1)) / np.float32(std).reshape(3, 1, 1)
    np.testing.assert_allclose(normal, wanted, rtol=1e-6)
    with pytest.raises(TypeError, match="ToFloat"):
        Normalize(mean, std)(pixels)


def test_normalize_leaves_what_it_is_given():
    given = np.ones((3, 2, 2), np.float32)
    Normalize((1, 1, 1), (2, 2, 2))(given)
    assert (given == 1).all()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Resize(0),
        lambda: Resize((3, 4, 5)),
        lambda: CenterCrop("large"),
        lambda: RandomResizedCrop(8, scale=(0.5, 2)),
        lambda: RandomResizedCrop(8, ratio=(2, 1)),
        lambda: RandomHorizontalFlip(1.5),
        lambda: Normalize((0.5,), (0.5,)),
        lambda: Normalize((0, 0, 0), (1, 0, 1)),
        lambda: Compose([]),
        lambda: Compose([Decode(), "resize"]),
        lambda: Compose(Decode()),
    ],
)
def test_arguments_that_cannot_work(wrong):
    with pytest.raises(ConfigError):
        wrong()


# -- chance ----------------------------------------------------------------------------------------------------


def test_numbers_are_even_and_independent():
    numbers = uniform(Chance(0, 0), np.arange(50_000), 0, 4)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    for column in numbers.T:
        assert np.abs(np.histogram(column, 20, (0, 1))[0] - 2500).max() < 250
    others = [
        uniform(chance, ids, stream, 4)
        for chance, ids, stream in (
            (Chance(1, 0), np.arange(50_000), 0),
            (Chance(0, 1), np.arange(50_000), 0),
            (Chance(0, 0), np.arange(50_000), 1),
            (Chance(0, 0), np.arange(1, 50_001), 0),
        )
    ]
    columns = np.concatenate([numbers, *others], axis=1).T
    off = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(off).max() < 0.025
    assert len(np.unique(np.concatenate([numbers, *others[:3]]))) == 4 * numbers.size


def test_seed_and_epoch_do_not_stand_in_for_each_other():
    ids = np.arange(10)
    drawn = {
        uniform(Chance(seed, epoch), ids, stream, 1).tobytes()
        for seed in range(5)
        for epoch in range(5)
        for stream in range(5)
    }
    assert len(drawn) == 125
    assert uniform(Chance(2**63 - 1, 2**62), ids, 0, 1).max() < 1


class SplitMix64:
    """Steele, Lea and Flood's generator, as its authors write it."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        mixed = (self.state ^ self.state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
        return mixed ^ mixed >> 31


def test_numbers_never_change():
    """A resumed run augments as before, also under a later release."""
    for seed, epoch, id, stream in ((0, 0, 0, 0), (3, 1, 5, 2), (2**63 - 1, 99, 2**40, 7)):
        key = 0
        for part in (seed, epoch, stream):
            key = SplitMix64((key + part) % 2**64).next()
        hashed = SplitMix64((key + (id - 1) * 0x9E3779B97F4A7C15) % 2**64).next()
        model = SplitMix64(hashed)
        expected = [(model.next() >> 11) / 2**53 for _ in range(5)]
        assert uniform(Chance(seed, epoch), np.array([id]), stream, 5)[0].tolist() == expected
    assert uniform(Chance(3, 1), np.array([5]), 2, 1).item() == 0.8797994703754421


AUGMENT = [Decode(), RandomResizedCrop(16), RandomHorizontalFlip(), RandomVerticalFlip()]


def test_results_depend_on_seed_epoch_and_id_only():
    pipeline, data = Compose(AUGMENT), file(photo())
    alone = [pipeline(data, seed=4, epoch=2, id=id) for id in range(30)]
    together = [run(data) for run in pipeline.for_batch(Chance(4, 2), np.arange(30))]
    backwards = [run(data) for run in pipeline.for_batch(Chance(4, 2), np.arange(30)[::-1])][::-1]
    with ThreadPoolExecutor(4) as pool:
        in_threads = list(pool.map(lambda run: run(data), pipeline.for_batch(Chance(4, 2), np.arange(30))))
    for others in (together, backwards, in_threads):
        np.testing.assert_array_equal(others, alone)
    assert len({each.tobytes() for each in alone}) == 30
    for other in ({"seed": 5, "epoch": 2}, {"seed": 4, "epoch": 3}):
        assert not np.array_equal(pipeline(data, **other, id=0), alone[0])


def test_two_equal_steps_draw_apart():
    twice = Compose([RandomHorizontalFlip(), RandomHorizontalFlip()])
    pixels = photo(2, 3)
    turned = sum(not np.array_equal(twice(pixels, id=id), pixels) for id in range(1000))
    assert 430 < turned < 570


# -- in a row --------------------------------------------------------------------------------------------------


def apart(steps, data, id):
    """The same steps with Decode by itself."""
    return Compose([lambda pixels: pixels, *steps[1:]])(steps[0](data), id=id)


@pytest.mark.parametrize("kind", ["jpeg", "png"])
@pytest.mark.parametrize("second", [RandomResizedCrop(100), Resize((60, 80)), Resize(70)], ids=repr)
def test_joined_with_decoding_nothing_changes(kind, second, decodings):
    data, steps = file(photo(), kind), [Decode(), second, RandomHorizontalFlip()]
    for id in range(20):
        np.testing.assert_array_equal(Compose(steps)(data, id=id), apart(steps, data, id))
    assert set(decodings) == ({1} if kind == "jpeg" else {"pillow"})


@pytest.mark.parametrize("second", [RandomResizedCrop(32), Resize((40, 60)), Resize(24), Resize((13, 17))], ids=repr)
def test_reduced_decoding_is_all_but_the_same(second, decodings):
    for seed in range(3):
        data = file(photo(311, 405, seed), quality=90)
        for id in range(8):
            decodings.clear()
            got = Compose([Decode(), second])(data, id=id)
            assert decodings[0] in (1, 2, 4, 8)
            exact = Compose([Decode(reduce=False), second])(data, id=id)
            assert got.shape == exact.shape
            assert difference(got, exact) < (1.5 if decodings[0] > 1 else 1e-9)
    assert decodings[-1] == 1  # reduce=False


def test_reduction_leaves_at_least_the_pixels_wanted():
    for (height, width, new_height, new_width), times in {
        (100, 100, 100, 100): 1,
        (199, 300, 100, 100): 1,
        (200, 300, 100, 100): 2,
        (800, 400, 100, 100): 4,
        (799, 801, 100, 100): 4,
        (8000, 801, 100, 100): 8,
    }.items():
        assert Window(0, 0, height, width, new_height, new_width).reduction == times


def test_what_decides_is_the_part_and_not_the_picture(decodings):
    data = file(photo(400, 400))
    for id in range(30):
        Compose([Decode(), RandomResizedCrop(64, scale=(0.05, 1))])(data, id=id)
    assert {1, 2, 4} >= set(decodings) > {2}


def test_an_edge_of_the_part_may_lie_within_a_reduced_pixel():
    """A ramp shows where the part was taken to a fraction of a pixel."""
    ramp = np.repeat(np.repeat(np.linspace(20, 220, 512).astype(np.uint8)[None, :, None], 300, 0), 3, 2)
    data = file(ramp, quality=98, subsampling=0)
    for left in range(9, 17):
        window = Window(33, left, 256, 256, 60, 60)
        part = np.asarray(images.decoded_part(data, lambda *size, window=window: window, True))
        exact = resized(ramp, 60, 60, window[:4])
        assert window.reduction == 4
        assert abs(part.astype(float).mean() - exact.mean()) < 0.15


def test_functions_get_arrays_and_give_what_they_like():
    seen = []

    def note(pixels):
        seen.append((type(pixels), pixels.shape))
        return pixels.mean()

    assert Compose([Decode(), Resize((8, 9)), note])(file(photo())) == pytest.approx(photo().mean(), abs=2)
    assert seen == [(np.ndarray, (8, 9, 3))]
    assert Compose([len])(b"abc") == 3


def test_pipelines_can_be_nested():
    inner = Compose([Decode(), RandomResizedCrop(16)])
    outer = Compose([inner, RandomHorizontalFlip(), RandomVerticalFlip()])
    data = file(photo())
    np.testing.assert_array_equal(outer(data, id=3), Compose(AUGMENT)(data, id=3))
    assert repr(outer) == repr(Compose(AUGMENT))


def test_forms():
    pixels, floats = np.dtype(np.uint8), np.dtype(np.float32)
    assert Compose([Decode()]).form() is None
    assert Compose([Decode(), Resize(8)]).form() is None
    assert Compose([Decode(), Resize((8, 9))]).form() == Form(pixels, (8, 9, 3))
    assert Compose([Decode(), Resize(8), CenterCrop(7)]).form() == Form(pixels, (7, 7, 3))
    assert Compose([*AUGMENT, ToFloat(), Normalize((0,) * 3, (1,) * 3)]).form() == Form(floats, (3, 16, 16))
    assert Compose([RandomHorizontalFlip()]).form(Form(pixels, (5, 6, 3))) == Form(pixels, (5, 6, 3))
    assert Compose([RandomHorizontalFlip()]).form() is None
    assert Compose([*AUGMENT, np.asarray]).form() is None


@pytest.mark.parametrize(
    "steps", [AUGMENT, [*AUGMENT, ToFloat()], [*AUGMENT, ToFloat(), Normalize((0.5,) * 3, (2,) * 3)]]
)
def test_results_are_written_where_they_belong(steps):
    pipeline, data = Compose(steps), file(photo())
    form = pipeline.form()
    place = np.zeros(form.shape, form.dtype)
    (run,) = pipeline.for_batch(Chance(0, 0), np.array([9]))
    assert run(data, out=place) is place
    np.testing.assert_array_equal(place, pipeline(data, id=9))


def test_a_split_draws_as_the_whole():
    whole = Compose([Decode(), Resize((40, 50)), RandomResizedCrop(16), RandomHorizontalFlip(), ToFloat()])
    lasting, rest = whole.split()
    data = file(photo())
    for id in range(10):
        np.testing.assert_array_equal(rest(lasting(data), id=id), whole(data, id=id))
    assert [type(step).__name__ for step in lasting.steps] == ["Decode", "Resize"]
    assert Compose([Decode(), CenterCrop(9)]).split()[1] is None
    assert Compose([RandomHorizontalFlip(), CenterCrop(9)]).split()[0] is None
    assert len(Compose([Decode(), CenterCrop(9), ToFloat()]).split()[1].steps) == 1  # four times the room: not kept


def test_pipelines_travel_to_other_processes():
    pipeline, data = Compose([*AUGMENT, ToFloat()]), file(photo())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(pipeline))(data, id=1), pipeline(data, id=1))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([Decode(), ToFloat(), RandomResizedCrop(8)], r"put ToFloat\(\) and Normalize\(\) after it"),
        ([Decode(), ToFloat(), ToFloat()], "after it"),
        ([RandomHorizontalFlip(), Decode()], "comes first"),
        ([Decode, ToFloat()], r"write Decode\(\)"),
    ],
)
def test_a_row_in_the_wrong_order_is_refused_when_it_is_made(steps, message):
    with pytest.raises(ConfigError, match=message):
        Compose(steps)


def test_a_function_may_come_anywhere():
    Compose([lambda data: data, Decode(), ToFloat(), lambda picture: picture, Normalize([0.5] * 3, [0.5] * 3)])
