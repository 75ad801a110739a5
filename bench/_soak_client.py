"""What the soak's clients train on, and the clients themselves: each checks every byte and label that it is given.

A client is a forked process of its own user. It writes a heartbeat with every batch, and, whenever it has closed all it
had open, what is left open. Faults and verdicts are node_soak.py's.
"""

from __future__ import annotations

import faulthandler
import gc
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import augury
from augury.errors import ConfigError

try:  # before any fork: a client that is killed is back at once
    import torch.utils.data

    import augury.torch
except ImportError:
    torch = None  # type: ignore[assignment]

EQUAL, EQUAL_BYTES = 1500, 2048
MIXED, LARGEST = 360, 40_000
EPOCHS = 8
"""Of a loader; then it is closed, what is left is counted, and the next one is opened."""
FEW_EPOCHS = 3
"""Of the client that is never killed: it shall open and close many."""
STEP = 0.003
"""Seconds of training, per batch."""
WORKERS = 2


class Wrong(Exception):
    """A client was given what it must not be given."""


@dataclass
class World:
    """The two datasets as they must be, and where the node is."""

    socket: Path
    folder: Path
    logs: Path
    temporary: Path
    equal: NDArray[np.uint8]
    equal_labels: NDArray[np.int64]
    mixed: list[bytes]
    mixed_labels: NDArray[np.int64]


class Client(NamedTuple):
    """One of the clients. No two have a recipe in common, so that the node's report tells them apart."""

    name: str
    data: str
    recipes: tuple[str, ...]
    second_user: bool
    workers: bool = False
    lasts: bool = False
    """It is never killed."""


CLIENTS = (
    Client("steady", "equal", ("random",), second_user=False, lasts=True),
    Client("exact", "mixed", ("augury-exact", "hdmlp", "lru"), second_user=True),
    Client("workers", "mixed", ("minio", "lfu"), second_user=False, workers=True),
    Client("learner", "equal", ("shade", "augury", "icache", "spider"), second_user=True),
)

FIELDS = ("beat", "batches", "bytes", "lives", "deaths", "files", "threads", "memory", "files_first", "threads_first")
FIELDS += ("memory_first", "quit", "waiting")
Row = dict[str, int]


class Beats:
    """A row of numbers per client, in memory that all processes share; each writes its own."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 * len(CLIENTS) * len(FIELDS))
        self._table = np.frombuffer(self._memory, np.int64).reshape(len(CLIENTS), len(FIELDS))

    def get(self, client: int, field: str) -> int:
        return int(self._table[client, FIELDS.index(field)])

    def set(self, client: int, field: str, value: int) -> None:
        self._table[client, FIELDS.index(field)] = value

    def add(self, client: int, field: str, value: int) -> None:
        self._table[client, FIELDS.index(field)] += value


def make_world(place: Path, socket: Path) -> World:
    """The same in every run."""
    rng = np.random.default_rng(7)
    equal = rng.integers(0, 256, (EQUAL, EQUAL_BYTES), dtype=np.uint8)
    equal[:, :8] = np.arange(EQUAL, dtype="<i8").view(np.uint8).reshape(EQUAL, 8)
    folder, mixed, labels = place / "mixed", [], []
    for label in range(3):
        (folder / f"class{label}").mkdir(parents=True)
        for at in range(MIXED // 3):
            data = f"{label}/{at:04d}/".encode() + rng.bytes(int(LARGEST * rng.random() ** 3) + 1)
            (folder / f"class{label}" / f"{at:04d}.bin").write_bytes(data)
            mixed.append(data)
            labels.append(label)
    logs, temporary = place / "logs", place / "tmp"
    for each in (logs, temporary):
        each.mkdir()
        each.chmod(0o1777)
    equal_labels = (np.arange(EQUAL) * 7 % 10).astype(np.int64)
    return World(socket, folder, logs, temporary, equal, equal_labels, mixed, np.array(labels))


def become(uid: int | None, groups: list[int]) -> None:
    """From now on this process is another user's."""
    if uid is not None:
        os.setgroups(groups)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def into(log: Path) -> None:
    """From now on what this process says goes to a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for each in (1, 2):
        os.dup2(file, each)
    os.close(file)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - for the rest of this process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def run(at: int, world: World, beats: Beats, turn: int, seed: int) -> None:
    """Be client `at` until told to quit."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    trainee = _Trainee(at, world, beats)
    client = CLIENTS[at]
    turn += seed
    while not beats.get(at, "quit"):
        recipe = client.recipes[turn % len(client.recipes)]
        if client.workers and torch is not None:
            trainee.with_workers_that_die(recipe, turn)
        else:
            trainee.with_loader(recipe, turn)
        trainee.count_what_is_left()
        turn += 1


def rehearse(world: World) -> None:
    """Be every client for a moment."""
    beats = Beats()
    for at, client in enumerate(CLIENTS):
        trainee = _Trainee(at, world, beats)
        for recipe in client.recipes:
            beats.set(at, "quit", 1)
            trainee.with_loader(recipe, 0)
        if client.workers and torch is not None:
            trainee.with_workers(client.recipes[0], 0)


class _Trainee:
    """Trains, on nothing but the checks of what it is given."""

    def __init__(self, at: int, world: World, beats: Beats) -> None:
        self._at, self._world, self._beats = at, world, beats
        equal = CLIENTS[at].data == "equal"
        self._labels = world.equal_labels if equal else world.mixed_labels
        self._data: Any = (world.equal, world.equal_labels) if equal else str(world.folder)
        self._samples: Any = world.equal if equal else world.mixed
        self._equal = equal
        self._epochs = FEW_EPOCHS if CLIENTS[at].lasts else EPOCHS

    def with_loader(self, recipe: str, seed: int) -> None:
        options = {} if self._equal else {"collate": list}
        with self._patiently(
            lambda: augury.Loader(
                *(self._data, 64 if self._equal else 16),
                **{"recipe": recipe, "seed": seed, "epochs": self._epochs, "ram": 0.5, "readers": 8},
                **{"node": self._world.socket, "output": "numpy"},
                **options,
            )
        ) as loader:
            for _ in range(self._epochs):
                seen = [self._check(*batch, loader) for batch in self._until_told(iter(loader))]
                if self._quits:
                    return
                self._check_epoch(recipe, np.concatenate(seen))

    def with_workers_that_die(self, recipe: str, seed: int) -> None:
        """A worker that was killed ends the epoch, wherever the trainer is (torch raises from a signal's handler)."""
        try:
            try:
                self.with_workers(recipe, seed)
            except (OSError, EOFError):  # perhaps of a tensor that a worker was handing over when it was killed
                time.sleep(1.0)  # then torch says so now
                raise
        except RuntimeError as error:
            if "killed by signal" not in str(error) and "exited unexpectedly" not in str(error):
                raise
            self._beats.add(self._at, "deaths", 1)

    def with_workers(self, recipe: str, seed: int) -> None:
        data = self._patiently(
            lambda: augury.torch.CachedDataset(
                self._data, ram=0.5, recipe=recipe, seed=seed, with_ids=True, readers=4, node=self._world.socket
            )
        )
        loader = torch.utils.data.DataLoader(
            *(data, 16, True), num_workers=WORKERS, collate_fn=_as_tensors, multiprocessing_context="fork"
        )
        for _ in range(self._epochs):
            seen = [self._check(*_apart(*batch)) for batch in self._until_told(iter(loader))]
            if self._quits:
                return
            self._check_epoch(recipe, np.concatenate(seen))

    def count_what_is_left(self) -> None:
        """All is closed now."""
        gc.collect()
        ended = time.monotonic() + 2.0  # the system has a thread a little longer than Python has
        while len(os.listdir("/proc/self/task")) > max(1, self._beats.get(self._at, "threads_first")):
            if time.monotonic() > ended:
                print("threads:", [thread.name for thread in threading.enumerate()])
                break
            time.sleep(0.01)
        left = {"files": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}
        left["memory"] = resident_memory(os.getpid())
        if self._beats.get(self._at, "lives") == 2:  # what is made once and kept is there by now
            for name, count in left.items():
                self._beats.set(self._at, f"{name}_first", count)
        for name, count in left.items():
            self._beats.set(self._at, name, count)
        self._beats.add(self._at, "lives", 1)

    @property
    def _quits(self) -> bool:
        return bool(self._beats.get(self._at, "quit"))

    def _patiently(self, start: Callable[[], Any]) -> Any:
        """A job that is started while there is no node is told so, and is started again."""
        while True:
            try:
                return start()
            except ConfigError as error:
                if not any(word in str(error) for word in ("there is no node", "does not answer", "has gone")):
                    raise
                self._beats.add(self._at, "waiting", 1)
                self._beat()
                time.sleep(0.1)

    def _until_told(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if self._quits:
                return

    def _check(self, x: Any, y: Any, ids: Any, loader: Any = None) -> NDArray[np.int64]:
        ids = np.asarray(ids)
        if self._equal:
            wrong = ids[(np.asarray(x) != self._samples[ids]).any(axis=1)].tolist()
            size = x.nbytes
        else:
            wrong = [id for id, data in zip(ids.tolist(), x, strict=True) if bytes(data) != self._samples[id]]
            size = sum(map(len, x))
        if wrong:
            raise Wrong(f"wrong bytes: samples {wrong}")
        if not np.array_equal(np.asarray(y), self._labels[ids]):
            raise Wrong(f"wrong labels: among samples {ids.tolist()}")
        if loader is not None and loader.recipe.learns:
            self._teach(loader, x, y, ids)
        self._beats.add(self._at, "batches", 1)
        self._beats.add(self._at, "bytes", size)
        self._beat()
        time.sleep(STEP)
        return ids

    def _teach(self, loader: Any, x: NDArray[np.uint8], y: Any, ids: NDArray[np.int64]) -> None:
        if loader.recipe.name == "spider":
            loader.feedback(ids, embeddings=x[:, :16].astype(np.float32), labels=y)
        else:
            loader.feedback(ids, np.abs(np.sin(ids)).astype(np.float32))

    def _check_epoch(self, recipe: str, ids: NDArray[np.int64]) -> None:
        if not augury.recipes.RECIPES[recipe].learns and not np.array_equal(np.sort(ids), np.arange(len(self._labels))):
            raise Wrong(f"recipe {recipe} promises every sample once per epoch, and one came twice or not at all")

    def _beat(self) -> None:
        self._beats.set(self._at, "beat", time.monotonic_ns())


def _as_tensors(items: list[Any]) -> tuple[Any, ...]:
    """All bytes, where each sample ends, labels and ids. Tensors go from worker to trainer in shared memory: what went
    through a pipe would, where the trainer is killed, keep the worker waiting for ever."""
    samples, labels, ids = zip(*items, strict=True)
    whole = torch.frombuffer(bytearray(b"".join(samples)), dtype=torch.uint8)
    return whole, np.cumsum([len(each) for each in samples]).tolist(), torch.tensor(labels), torch.tensor(ids)


def _apart(whole: Any, ends: list[int], labels: Any, ids: Any) -> tuple[list[bytes], Any, Any]:
    data = whole.numpy().tobytes()
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)], labels, ids


def resident_memory(pid: int) -> int:
    """Bytes of memory that a process uses."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE
