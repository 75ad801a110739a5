"""The JPEG part of warm.py: photos in memory, decoded, cropped at random to 224 x 224 and flipped, in two threads.

What is measured against: the same work by hand in as many threads, with nothing around it (crops chosen beforehand,
no loader, no batches to hand over), and a torch DataLoader with two worker processes that decode by the same library.
All take turns, in shuffled order, so that all meet the same noise; of each ratio the median over the rounds counts.
Loaders are timed in full swing: after the first batches, for which memory is new, and with batches still to come.
"""

from __future__ import annotations

import io
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image

import augury
from _common import limit, say
from augury.catalog import Catalog
from augury.transforms import Compose, Decode, RandomHorizontalFlip, RandomResizedCrop, uniform
from augury.transforms.chance import Chance
from augury.transforms.images import Window

SIDE = 224
BATCH = 125
TURN = 1_500
MARGIN = 4 * BATCH
"""Photos before and after those of a turn, which are loaded and not timed."""
THREADS = 2
CROP = RandomResizedCrop(SIDE)
Plan = list[tuple[bytes, Window, bool]]
"""Per photo: its file, the part wanted, and whether it is flipped."""
Spent = np.ndarray[Any, Any]
"""Seconds, and seconds of processor time."""


class InMemory(augury.sources.Base):
    """Files that are in memory to begin with."""

    def __init__(self, files: list[bytes]) -> None:
        self.files = files
        self.catalog = Catalog([len(file) for file in files], kind="memory", root="memory", fingerprint="-")

    def read(self, ids: Any) -> list[Any]:
        return [self.files[id] for id in ids.tolist()]


class Decoding(torch.utils.data.Dataset[Any]):
    """What is written by hand for torch: the same work, one photo per item."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, at: int) -> Any:
        return by_hand(*self.plan[at]).copy()  # torch wants to be able to write to it


def by_hand(file: bytes, window: Window, flip: bool, reduced: bool = False) -> np.ndarray[Any, Any]:
    """simplejpeg, a crop, Pillow's resize and flip."""
    times = window.reduction if reduced else 1
    pixels = simplejpeg.decode_jpeg(file) if times == 1 else decode_smaller(file, times)
    top, left, height, width = (each // times for each in window[:4])
    image = Image.fromarray(pixels[top : top + height, left : left + width])
    image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image)


def decode_smaller(file: bytes, times: int) -> np.ndarray[Any, Any]:
    height, width = simplejpeg.decode_jpeg_header(file)[:2]
    return simplejpeg.decode_jpeg(file, min_height=-(-height // times), min_width=-(-width // times), min_factor=times)


def in_threads(plan: Plan, reduced: bool) -> Spent:
    """The limit: every thread makes its share of the batches, in a buffer that it uses again."""

    def work(mine: Plan) -> None:
        batch = np.empty((BATCH, SIDE, SIDE, 3), np.uint8)
        for at, photo in enumerate(mine):
            batch[at % BATCH] = by_hand(*photo, reduced=reduced)

    began = now()
    threads = [threading.Thread(target=work, args=(plan[at::THREADS],)) for at in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return now() - began


def planned(files: list[bytes]) -> Plan:
    """Crops as the loader would draw them."""
    numbers = uniform(Chance(0, 0), np.arange(len(files)), 1, CROP.numbers + 1).tolist()
    sizes = (simplejpeg.decode_jpeg_header(file)[:2] for file in files)
    return [
        (file, CROP.window(*size, drawn), drawn[-1] < 0.5)
        for file, size, drawn in zip(files, sizes, numbers, strict=True)
    ]


def now() -> Spent:
    """Seconds on the clock, and of this process's processor time."""
    return np.array([time.perf_counter(), time.process_time()])


def in_full_swing(batches: Iterator[Any], photos: int) -> Spent:
    """The time that `photos` take, between the margins. All batches are taken, so that nothing is left to run on."""
    for _ in range(MARGIN // BATCH):
        next(batches)
    began = now()
    for _ in range(photos // BATCH):
        next(batches)
    spent = now() - began
    assert sum(1 for _ in batches) == MARGIN // BATCH
    return spent


class Turns(torch.utils.data.Sampler[int]):
    """The photos of one turn."""

    def __init__(self) -> None:
        self.ids = np.arange(0)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids.tolist())


class Warm:
    """A cache that holds all photos. Each turn is a loader of its own, so that none reads ahead while others run."""

    def __init__(self, files: list[bytes]) -> None:
        window = 8 * BATCH * max(map(len, files))
        ram = sum(map(len, files)) + window
        self.filled = augury.Loader(InMemory(files), BATCH, ram=ram, readahead=window, epochs=1)
        for _ in self.filled:
            pass

    def turn(self, ids: np.ndarray[Any, Any], reduce: bool) -> Spent:
        row = Compose([Decode(reduce=reduce), RandomResizedCrop(SIDE), RandomHorizontalFlip()])
        options = {"subset": ids, "shuffle": False, "workers": THREADS, "epochs": 1}
        with augury.Loader(self.filled.source, BATCH, cache=self.filled.cache, transform=row, **options) as loader:
            spent = in_full_swing(iter(loader), len(ids) - 2 * MARGIN)
            assert loader.stats().total.counts.hits == len(ids), "all photos must come from memory"
        return spent


def measure_jpeg(data: Path | None, photos: int, rounds: int) -> dict[str, Any]:
    """Photos per second of each contestant, and the median over rounds of each ratio."""
    files = photos_of(data) if data is not None else made_photos(64)
    files = [files[at % len(files)] for at in range(photos)]
    plan, warm, turns = planned(files), Warm(files), Turns()
    torch_loader = torch.utils.data.DataLoader(
        Decoding(plan), BATCH, sampler=turns, num_workers=2, persistent_workers=True
    )
    turn = min(TURN, photos)
    contestants: dict[str, Callable[[Any, Plan], Spent]] = {
        "augury": lambda ids, plan: warm.turn(ids, reduce=True),
        "augury, reduce=False": lambda ids, plan: warm.turn(ids, reduce=False),
        "bare threads": lambda ids, plan: in_threads(plan, reduced=False),
        "bare threads, reduced decode": lambda ids, plan: in_threads(plan, reduced=True),
        "torch, 2 workers, same decoder": lambda ids, plan: in_full_swing(iter(torch_loader), turn),
    }
    spent: dict[str, list[Spent]] = {name: [] for name in contestants}
    for number in range(rounds):
        turns.ids = ids = np.arange(number * turn - MARGIN, (number + 1) * turn + MARGIN) % photos
        timed = [plan[id] for id in ids[MARGIN:-MARGIN]]
        for name in np.random.default_rng(number).permutation(list(contestants)).tolist():
            spent[name].append(contestants[name](ids, timed) / turn)
        say(f"  {number + 1} of {rounds} rounds")
    warm.filled.close()
    seconds, processor = ({name: [each[which] for each in of] for name, of in spent.items()} for which in (0, 1))
    return _result(files, seconds, processor)


def _result(files: list[bytes], seconds: dict[str, list[float]], processor: dict[str, list[float]]) -> dict[str, Any]:
    """`seconds` and `processor` are per photo, one per round."""

    def faster(one: str, other: str) -> float:
        return median(b / a for a, b in zip(seconds[one], seconds[other], strict=True))

    def dearer(one: str, other: str) -> float:
        return median(a / b for a, b in zip(processor[one], processor[other], strict=True))

    bare, reduced, peer = "bare threads", "bare threads, reduced decode", "torch, 2 workers, same decoder"
    exact = "augury, reduce=False"
    return {
        "photos": len(files),
        "mean_bytes": round(sum(map(len, files)) / len(files)),
        "photos_per_second": {name: round(1 / median(each)) for name, each in seconds.items()},
        f"augury / {bare}": limit(faster("augury", bare), at_least=0.95),
        f"{exact} / {bare}": round(faster(exact, bare), 3),
        f"{reduced} / {bare}": round(faster(reduced, bare), 3),
        f"augury / {reduced}": round(faster("augury", reduced), 3),
        f"augury / {peer}": limit(faster("augury", peer), at_least=1.0),
        f"processor time, augury / {bare}": round(dearer("augury", bare), 3),
        f"processor time, {exact} / {bare}": round(dearer(exact, bare), 3),
    }


def photos_of(data: Path) -> list[bytes]:
    """All JPEGs of a tar file or a folder."""
    endings = (".jpg", ".jpeg")
    if data.is_dir():
        found = [path.read_bytes() for path in sorted(data.rglob("*")) if path.suffix.lower() in endings]
    else:
        with tarfile.open(data) as tar:
            found = [tar.extractfile(each).read() for each in tar if each.name.lower().endswith(endings)]  # type: ignore[union-attr]
    if not found:
        raise SystemExit(f"{data} holds no .jpg")
    return found


def made_photos(count: int) -> list[bytes]:
    """Smooth noise with some grain, about as hard to decode as photos of 130 KB."""
    rng = np.random.default_rng(0)
    return [_made_photo(rng) for _ in range(count)]


def _made_photo(rng: np.random.Generator) -> bytes:
    width, height = (640, 480) if rng.random() < 0.75 else (480, 640)
    picture = np.zeros((height, width, 3), np.float32)
    for side, strength in ((4, 80), (24, 40), (120, 22)):
        coarse = Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8))
        fine = coarse.resize((width, height), Image.Resampling.BICUBIC)
        picture += (np.asarray(fine, np.float32) - 128) * (strength / 128)
    picture += rng.normal(0, 6, picture.shape)
    file = io.BytesIO()
    Image.fromarray((picture + 128).clip(0, 255).astype(np.uint8)).save(file, "jpeg", quality=89, subsampling=0)
    return file.getvalue()
