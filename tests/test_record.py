"""`augury record` as users call it, on pictures drawn here, and how pictures of all kinds are read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from augury import cli
from augury.commands import record as command
from augury.errors import AuguryError, ConfigError
from augury.pictures import decode, read_pictures, small
from augury.recording import Plan, Recording
from augury.sim.fields import Recorded, open_field

torch = pytest.importorskip("torch")

SAMPLES = 90


def shapes(samples: int = SAMPLES, seed: int = 0, side: int = 32) -> tuple[Any, Any]:
    """Noise with a bright half: above (0), below (1) or on the left (2). Easy to learn within an epoch or two."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 120, (samples, side, side, 3), dtype=np.uint8)
    y = np.arange(samples) % 3
    half = side // 2
    x[y == 0, :half] += 100
    x[y == 1, half:] += 100
    x[y == 2, :, :half] += 100
    return x, y


def ppm(picture: Any) -> bytes:
    height, width = picture.shape[:2]
    return b"P6\n%d %d\n255\n" % (width, height) + picture.tobytes()


def folder(root: Path, samples: int = SAMPLES, seed: int = 0, classes: str = "abc") -> Path:
    for number, (picture, label) in enumerate(zip(*shapes(samples, seed), strict=True)):
        (root / classes[label]).mkdir(parents=True, exist_ok=True)
        (root / classes[label] / f"{number:03d}.ppm").write_bytes(ppm(picture))
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of pictures to train on."""
    path = tmp_path_factory.mktemp("data") / "shapes.npz"
    x, y = shapes()
    np.savez(path, x=x, y=y)
    return path


def program(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "augury.cli", "record", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "120", "PYTHONPATH": os.pathsep.join(sys.path), "RANK": "1", "WORLD_SIZE": "2"},
        **options,
    )


def here(monkeypatch: pytest.MonkeyPatch, *arguments: object, code: int = 0) -> None:
    """The same without the seconds that a new process takes to load torch."""
    monkeypatch.setattr(sys, "argv", ["augury", "record", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code


def opened(path: Path) -> Recorded:
    field = open_field(str(path), None, 0)
    assert isinstance(field, Recorded)
    return field


# -- runs ------------------------------------------------------------------------------------------------------


def test_a_whole_run(tmp_path: Path) -> None:
    train, test, out = folder(tmp_path / "train"), folder(tmp_path / "val", 30, seed=1), tmp_path / "field.npz"
    with program(train, "--out", out, "--test", test, "--epochs", 4, "--batch", 16, "--width", 4) as running:
        said, told = running.communicate(timeout=120)
    assert running.returncode == 0, told
    assert [line.split("  ")[0] for line in told.splitlines()] == [f"epoch {n}/4" for n in range(1, 5)]
    assert "test accuracy" in told
    assert "left" in told
    assert "\x1b" not in told
    assert f"4 epochs x {SAMPLES} samples in {out}" in said
    field = opened(out)
    assert field.table.shape == (4, SAMPLES)
    assert field.labels is not None
    assert np.bincount(field.labels).tolist() == [30, 30, 30]
    assert field.accuracy is not None
    assert field.accuracy[-1] > 0.5
    assert field.table[-1].mean() < field.table[0].mean()
    meta = field.meta
    assert (meta["dataset"], meta["seed"], meta["samples"], meta["epochs"]) == ("train", 0, SAMPLES, 4)
    assert meta["classes"] == ["a", "b", "c"]
    assert "width 4" in meta["model"]


def test_the_same_seed_gives_the_same_file_and_another_does_not(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outs = [tmp_path / f"{name}.npz" for name in "abc"]
    for out, seed in zip(outs, (3, 3, 4), strict=True):
        torch.rand(len(out.name) + seed)  # what others drew before must not matter
        here(monkeypatch, data, "--out", out, "--epochs", 2, "--width", 2, "--seed", seed)
    one, again, other = (opened(out) for out in outs)
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert np.array_equal(one.table, again.table)
    assert not np.array_equal(one.table, other.table)
    assert one.accuracy is None


def test_every_loss_is_that_of_its_sample(data: Path) -> None:
    """Samples whose label is wrong are the ones that stand out, wherever the shuffle put them."""
    train = read_pictures(data)
    wrong = np.array([5, 40, 77])
    train.y[wrong] = (train.y[wrong] + 1) % 3
    recording = Recording("shapes", train, None, Plan(epochs=6, batch=16, seed=0, width=4))
    recording.run(Silent())
    assert set(np.argsort(recording.field().table[-1])[-3:]) == set(wrong)


class Silent:
    def __init__(self) -> None:
        self.passes = 0

    def worked(self, epoch: int, passes: int) -> None:
        self.passes += passes

    def epoch(self, number: int, epoch: Any) -> None:
        pass


def test_the_work_is_as_much_as_was_announced(data: Path) -> None:
    train, watcher = read_pictures(data), Silent()
    recording = Recording("shapes", train, train, Plan(epochs=2, batch=50, seed=0, width=1))
    recording.run(watcher)
    assert watcher.passes == recording.passes


# -- Ctrl-C ----------------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_the_epochs_that_are_done(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "field.npz"
    with program(data, "--out", out, "--epochs", 100_000, "--batch", 8) as running:
        assert running.stderr is not None
        while not running.stderr.readline().startswith("epoch 3/"):
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in told
    field = opened(out)
    assert field.epochs >= 3
    assert f"Stopped. {field.epochs} of 100000 epochs are recorded in {out}." in told
    assert field.meta["planned_epochs"] == 100_000
    assert [path.name for path in tmp_path.iterdir()] == ["field.npz"]


def test_ctrl_c_before_the_first_epoch_leaves_no_file(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(self: Any, x: Any, y: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("augury.learner.Learner.learn", stop)
    here(monkeypatch, data, "--out", tmp_path / "field.npz", code=130)
    assert "No epoch was done" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# -- mistakes --------------------------------------------------------------------------------------------------


def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], message: str, *arguments: object
) -> None:
    here(monkeypatch, *arguments, code=2)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert message in said.err


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("field.txt", "ends in .npz"),
        ("nowhere/field.npz", "there is no directory"),
        ("taken.npz", "--force"),
        ("folder.npz", "is a directory"),
        ("data.npz", "is the data itself"),
    ],
)
def test_a_result_that_cannot_be_written_is_told_first(
    out: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "taken.npz").write_text("mine")
    (tmp_path / "data.npz").write_text("not even pictures: nobody has looked yet")
    refused(monkeypatch, capsys, message, tmp_path / "data.npz", "--out", tmp_path / out)
    assert (tmp_path / "taken.npz").read_text() == "mine"


def test_a_directory_that_may_not_be_written_to(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command.os, "access", lambda _, mode: not mode & os.W_OK)
    refused(monkeypatch, capsys, "may not be written to", data, "--out", tmp_path / "field.npz")


def test_force_replaces_another_file_but_never_the_data(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "field.npz"
    out.write_text("old")
    here(monkeypatch, data, "--out", out, "--force", "--epochs", 1, "--width", 1)
    assert opened(out).epochs == 1
    capsys.readouterr()
    for arguments in ((data,), (out, "--test", data)):
        refused(monkeypatch, capsys, "is the data itself", *arguments, "--out", data, "--force")


def test_torch_is_missing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(monkeypatch, capsys, "pip install 'augury[torch]'", data, "--out", tmp_path / "field.npz")


@pytest.mark.parametrize("arguments", [("--epochs", 0), ("--batch", 0), ("--seed", -1), ("--width", 0)])
def test_numbers_that_make_no_sense(
    arguments: tuple[Any, ...],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused(monkeypatch, capsys, arguments[0], data, "--out", tmp_path / "field.npz", *arguments)


def test_help_teaches(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    here(monkeypatch, "--help")
    said = capsys.readouterr().out
    assert "augury record cifar10.npz --out field.npz" in said
    assert "32 x 32" in said


def test_one_class_is_nothing_to_learn(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=shapes(9)[0], y=np.ones(9, int))
    with pytest.raises(ConfigError, match="only one class"):
        Recording("x", read_pictures(tmp_path / "x.npz"), None, Plan(1, 8, 0, 1))


def test_test_classes_are_matched_by_name(tmp_path: Path) -> None:
    train, test = read_pictures(folder(tmp_path / "train")), read_pictures(folder(tmp_path / "val", classes="bca"))
    matched = test.labelled_like(train)
    assert [train.classes[label] for label in matched.y] == [test.classes[label] for label in test.y]
    with pytest.raises(ConfigError, match="class 'z' is in the test set"):
        read_pictures(folder(tmp_path / "other", classes="abz")).labelled_like(train)


# -- pictures --------------------------------------------------------------------------------------------------


def test_folders_and_arrays_of_the_same_pictures_are_the_same(tmp_path: Path) -> None:
    x, y = shapes()
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y[:, None])
    np.savez(tmp_path / "both.npz", x=x, y=y)
    by_label = np.argsort(y, kind="stable")  # as folders sort them
    progress: list[tuple[int, int]] = []
    found = read_pictures(folder(tmp_path / "folder"), lambda done, of: progress.append((done, of)))
    assert np.array_equal(found.x, x[by_label])
    assert np.array_equal(found.y, y[by_label])
    assert progress[-1] == (SAMPLES, SAMPLES)
    for path in (tmp_path / "both.npz", tmp_path / "x.npy", tmp_path):
        found = read_pictures(path)
        assert np.array_equal(found.x, x)
        assert np.array_equal(found.y, y)
        assert found.classes == ("0", "1", "2")


def test_labels_of_any_numbers_become_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=shapes(4)[0], y=np.array([700, -2, 700, 9]))
    found = read_pictures(tmp_path / "x.npz")
    assert found.classes == ("-2", "9", "700")
    assert found.y.tolist() == [2, 0, 2, 1]


def test_other_sizes_are_averaged() -> None:
    large = np.kron(shapes(1)[0][0].astype(int), np.ones((3, 5, 1), int)).astype(np.uint8)
    assert large.shape == (96, 160, 3)
    assert np.array_equal(small(large), shapes(1)[0][0])
    tiny = np.array([[0, 100], [200, 50]], np.uint8)
    grown = small(tiny)
    assert grown.shape == (32, 32, 3)
    assert np.array_equal(grown[::16, ::16, 0], tiny)
    uneven = np.random.default_rng(0).integers(0, 256, (45, 28), dtype=np.uint8)
    assert small(uneven).mean() == pytest.approx(uneven.mean(), abs=0.5)
    assert np.array_equal(small(np.full((7, 300, 3), 9, np.uint8)), np.full((32, 32, 3), 9))


def test_grey_arrays_get_three_channels(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(5))
    found = read_pictures(tmp_path / "x.npz").x
    assert found.shape == (5, 32, 32, 3)
    assert np.array_equal(found[..., 0], found[..., 2])


def test_ppm_with_comments_and_any_spaces() -> None:
    picture = shapes(1)[0][0]
    data = b"P6 # made\n# by hand\n 32\t32 #size\n255\n" + picture.tobytes()
    assert np.array_equal(decode(data), picture)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"P6\n32", "without a complete header"),
        (b"P6\n2 2\n65535\n" + bytes(24), "largest value is 65535"),
        (b"P6\n2 2\n255\n" + bytes(11), "2 x 2 with only 11 bytes"),
        (b"P6\n0 2\n255\n" + bytes(11), "0 x 2"),
    ],
)
def test_torn_ppm(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(data)


def test_other_formats_by_pillow(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    picture = shapes(1)[0][0]
    for name, kind in (("a", "png"), ("b", "bmp"), ("c", "ppm")):
        (tmp_path / name).mkdir()
        image.fromarray(picture).save(tmp_path / name / f"one.{kind}")
    (tmp_path / "c" / "notes.txt").write_text("no picture")
    (tmp_path / "d").mkdir()
    image.fromarray(picture[..., 0]).save(tmp_path / "d" / "grey.png")
    found = read_pictures(tmp_path)
    assert all(np.array_equal(found.x[id], picture) for id in range(3))
    assert np.array_equal(found.x[3, ..., 1], picture[..., 0])


def test_without_pillow_only_ppm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert len(read_pictures(folder(tmp_path / "plain")).x) == SAMPLES
    (tmp_path / "plain" / "a" / "photo.JPG").write_bytes(b"whatever")
    with pytest.raises(ConfigError, match=r"1 pictures that are not PPM, such as .*photo\.JPG: they need Pillow"):
        read_pictures(tmp_path / "plain")
    with pytest.raises(ValueError, match="need Pillow"):
        decode(b"\x89PNG")


@pytest.mark.parametrize("content", [b"P6\n32 32\n255\nshort", b"no picture at all"])
def test_a_file_that_is_no_picture_is_named(tmp_path: Path, content: bytes) -> None:
    folder(tmp_path, 9)
    (tmp_path / "b" / "bad.ppm").write_bytes(content)
    with pytest.raises(AuguryError, match=r"b/bad\.ppm"):
        read_pictures(tmp_path)


def test_data_that_is_none(tmp_path: Path) -> None:
    for name, content, message in (
        ("nowhere", None, "does not exist"),
        ("x.txt", b"hello", "is no dataset"),
        ("other.npy", b"hello", "is no dataset"),
        ("torn.npz", b"PK\x03\x04torn", "cannot be read as arrays"),
        ("text.npz", b"hello", "cannot be read as arrays"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            read_pictures(tmp_path / name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(AuguryError, match="holds no files"):
        read_pictures(tmp_path / "empty")
    np.save(tmp_path / "x.npy", shapes(3)[0])
    with pytest.raises(ConfigError, match=r"y\.npy cannot be read"):
        read_pictures(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": shapes(3)[0]}, "needs the arrays x"),
        ({"x": shapes(3)[0].astype(float), "y": np.arange(3)}, "x must be uint8"),
        ({"x": shapes(3)[0][..., :2], "y": np.arange(3)}, "x must be uint8"),
        ({"x": shapes(3)[0][:0], "y": np.arange(0)}, "x must be uint8"),
        ({"x": shapes(3)[0], "y": np.arange(4)}, "y must be 3 whole numbers"),
        ({"x": shapes(3)[0], "y": np.arange(3) / 2}, "y must be 3 whole numbers"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ConfigError, match=message):
        read_pictures(tmp_path / "x.npz")


def test_pickles_are_never_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=shapes(3)[0], y=np.array([0, None, 1], object))
    with pytest.raises(ConfigError, match="cannot be read as arrays"):
        read_pictures(tmp_path / "x.npz")
