"""`augury demo`: as a user calls it, and its parts that need neither torch nor time."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from augury import cli
from augury.commands import demo as command
from augury.demo import report
from augury.demo.dataset import CLASSES, FILE_BYTES, HEADER, draw, encode_ppm, parse_ppm
from augury.demo.place import MARKER, Place, Spec
from augury.demo.result import Epoch, Run, Settings, Store, figures
from augury.errors import ConfigError
from augury.metrics import Counts, EpochStats

SAMPLES, EPOCHS = 300, 2


# -- the whole program -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("demo") / "out"
    sizes = ("--samples", str(SAMPLES), "--epochs", str(EPOCHS))
    done = subprocess.run(
        [sys.executable, "-m", "augury.cli", "demo", "--out", str(out), "--recipe", "minio,lru", *sizes],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "120", "PYTHONPATH": os.pathsep.join(sys.path), "RANK": "1", "WORLD_SIZE": "2"},
    )
    assert done.returncode == 0, done.stderr
    return out, done.stdout


@pytest.fixture(scope="module")
def saved(finished: tuple[Path, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((finished[0] / "demo.json").read_text())
    return found


def test_it_says_what_it_emulates_and_what_came_of_it(finished: tuple[Path, str], saved: dict[str, Any]) -> None:
    out, printed = finished
    assert "emulated" in printed
    assert str(command.STORE) in printed
    assert saved["reading"] in " ".join(printed.split())
    assert "\x1b" not in printed  # plain lines where there is no terminal
    for recipe in ("minio", "lru"):
        for epoch in range(1, EPOCHS + 1):
            assert f"{recipe:<8} epoch {epoch}/{EPOCHS}" in printed
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_its_figures_add_up(saved: dict[str, Any]) -> None:
    assert saved["complete"]
    assert saved["store"]["emulated"]
    assert [run["recipe"] for run in saved["runs"]] == ["minio", "lru"]
    for run in saved["runs"]:
        assert len(run["epochs"]) == EPOCHS
        for epoch in run["epochs"]:
            assert epoch["requests"] == SAMPLES == epoch["hits"] + epoch["misses"]
            assert sum(epoch["bytes_from"].values()) == SAMPLES * FILE_BYTES == saved["settings"]["dataset_bytes"]
            assert 0 <= epoch["stall_seconds"] <= epoch["seconds"]
            assert 0 <= epoch["early_hits"] <= epoch["hits"]
        assert run["store_bytes"] == run["store_requests"] * FILE_BYTES
        # A sample that the next epoch asks for while this one's read is under way is read once and delivered twice.
        delivered = sum(epoch["bytes_from"]["source"] for epoch in run["epochs"])
        assert 0 <= delivered - run["store_bytes"] <= (EPOCHS - 1) * saved["settings"]["readahead_bytes"]


def test_minio_hits_what_it_holds(saved: dict[str, Any]) -> None:
    minio, lru = saved["runs"]
    assert minio["hit_ratio"] == pytest.approx(saved["settings"]["cache"], abs=1 / SAMPLES)
    assert lru["hit_ratio"] < minio["hit_ratio"]


def test_the_cache_changes_the_waiting_and_not_the_learning(saved: dict[str, Any]) -> None:
    minio, lru = saved["runs"]
    assert minio["order"] == lru["order"]
    assert [epoch["loss"] for epoch in minio["epochs"]] == [epoch["loss"] for epoch in lru["epochs"]]
    assert "not the learning" in saved["reading"]


# -- mistakes --------------------------------------------------------------------------------------------------


def fails(*arguments: object, monkeypatch: pytest.MonkeyPatch, code: int = 2) -> None:
    monkeypatch.setattr(sys, "argv", ["augury", "demo", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--recipe", "lru,minoi"), "did you mean 'minio'"),
        (("--recipe", ","), "names no recipe"),
        (("--cache", "20"), "--cache 20: give a share"),
        (("--cache", "0"), "--cache 0: give a share"),
        (("--epochs", "0"), "epochs"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(
    arguments: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fails(*arguments, "--out", tmp_path / "out", monkeypatch=monkeypatch)
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("missing", ["torch", "matplotlib"])
def test_what_is_missing_is_named(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    fails("--out", tmp_path / "out", monkeypatch=monkeypatch)
    said = capsys.readouterr().err
    assert missing in said
    assert "pip install 'augury[demo]'" in said


def test_stopping_it_tells_where_the_rest_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(place: Place, settings: Settings, runs: list[Run], console: Console) -> None:
        runs.append(run_of("none", 0, 4.0))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_train", stop)
    monkeypatch.setattr(command, "_check", lambda cache: None)
    fails("--out", tmp_path / "out", "--samples", 100, "--recipe", "none,lru,min", monkeypatch=monkeypatch, code=130)
    said = " ".join(capsys.readouterr().out.split())
    assert "Stopped. 1 of 3 recipes are done" in said
    assert "demo.json" in said


# -- pictures --------------------------------------------------------------------------------------------------


def test_pictures_follow_from_the_seed() -> None:
    first, again = (np.concatenate(list(draw(1200, seed=3, split=0))) for _ in range(2))
    assert first.shape == (1200, 32, 32, 3)
    assert np.array_equal(first, again)
    for seed, split in ((4, 0), (3, 1)):
        assert not np.array_equal(first[:100], next(draw(100, seed=seed, split=split)))


def test_pictures_survive_their_format() -> None:
    picture = next(draw(1, seed=0, split=0))[0]
    data = encode_ppm(picture)
    assert len(data) == FILE_BYTES
    assert data.startswith(b"P6\n32 32\n255\n")
    assert np.array_equal(parse_ppm(data), picture)
    with pytest.raises(ValueError, match="not a PPM"):
        parse_ppm(b"GIF89a" + data[len(HEADER) :])


def test_no_linear_model_can_tell_the_shapes() -> None:
    def features(split: int, samples: int) -> Any:
        pictures = np.concatenate(list(draw(samples, seed=0, split=split))) / 255 - 0.5
        small = pictures.reshape(samples, 8, 4, 8, 4, 3).mean((2, 4)).reshape(samples, -1)
        return np.hstack([small, np.ones((samples, 1))]), np.arange(samples) % len(CLASSES)

    (seen, labels), (unseen, truth) = features(0, 1000), features(1, 300)
    weights = np.linalg.lstsq(seen, np.eye(len(CLASSES))[labels], rcond=None)[0]
    assert np.mean((unseen @ weights).argmax(1) == truth) < 0.3


# -- the directory ---------------------------------------------------------------------------------------------

SMALL = Spec(train=40, test=20, seed=0)


def contents(place: Place) -> dict[str, bytes]:
    return {path.relative_to(place.data).as_posix(): path.read_bytes() for path in place.data.rglob("*.ppm")}


def test_pictures_are_drawn_once(tmp_path: Path) -> None:
    place = Place(tmp_path / "out")
    assert not place.prepare(SMALL)
    drawn = contents(place)
    assert sorted(drawn) == sorted(SMALL.names())
    times = {path: path.stat().st_mtime_ns for path in place.data.rglob("*.ppm")}
    assert place.prepare(SMALL)
    assert times == {path: path.stat().st_mtime_ns for path in place.data.rglob("*.ppm")}
    (place.data / next(SMALL.names())).unlink()
    assert not place.prepare(SMALL)
    assert contents(place) == drawn


def test_other_settings_replace_what_the_demo_wrote_and_nothing_else(tmp_path: Path) -> None:
    place = Place(tmp_path / "out")
    place.prepare(SMALL)
    (place.root / "notes.txt").write_text("mine")
    (place.train / ".augury").mkdir()
    (place.train / ".augury" / "catalog").write_text("mine")
    smaller = Spec(train=20, test=10, seed=1)
    assert not place.prepare(smaller)
    assert sorted(contents(place)) == sorted(smaller.names())
    assert (place.root / "notes.txt").read_text() == "mine"
    assert (place.train / ".augury" / "catalog").read_text() == "mine"


def test_a_drawing_that_was_interrupted_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path / "out")
    with monkeypatch.context() as patched:
        patched.setattr("augury.demo.place.draw", lambda *_: iter(()))
        with pytest.raises(ValueError, match="zip"):
            place.prepare(SMALL)
    assert not place.prepare(SMALL)
    assert sorted(contents(place)) == sorted(SMALL.names())


def test_it_keeps_out_of_what_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match=r"not from an earlier demo.*--out"):
        Place(tmp_path).prepare(SMALL)
    with pytest.raises(ConfigError, match="is a file"):
        Place(tmp_path / "thesis.tex").prepare(SMALL)
    (tmp_path / MARKER).write_text('{"complete": true}')
    with pytest.raises(ConfigError, match="not from an earlier demo"):
        Place(tmp_path).prepare(SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == [MARKER, "thesis.tex"]


def test_files_of_others_among_the_pictures_are_refused(tmp_path: Path) -> None:
    place = Place(tmp_path / "out")
    place.prepare(SMALL)
    (place.train / "disc" / "holiday.ppm").write_text("mine")
    with pytest.raises(ConfigError, match=r"holiday\.ppm was not written by the demo"):
        place.prepare(SMALL)


# -- what is said about the figures ----------------------------------------------------------------------------


def run_of(recipe: str, hits: int, seconds: float, early: int = 0, accuracy: float = 0.9) -> Run:
    """A run of two epochs of 100 samples."""
    epochs = [
        Epoch(EpochStats(0, Counts(100, 0, misses=100), distinct=100, stall_seconds=3.0, seconds=4.0), 1.0, 0.5, 0),
        Epoch(
            EpochStats(1, Counts(100, hits, misses=100 - hits), distinct=100, stall_seconds=1, seconds=seconds),
            1.0,
            accuracy,
            early,
        ),
    ]
    return Run(recipe, epochs, store_requests=200 - hits, store_bytes=(200 - hits) * 1000, order="same")


def settings_of(*recipes: str) -> Settings:
    return Settings(recipes, 2, 0.2, 100, 0, 10, 4, 100_000, Store(0.01, 3e6))


def test_the_reading_follows_the_figures() -> None:
    runs = [run_of("none", 0, 4.0), run_of("lru", 2, 3.9), run_of("minio", 20, 3.0, 5), run_of("min", 20, 3.3, 20)]
    said = report.reading(runs, settings_of("none", "lru", "minio", "min"))
    assert "took 4.0 s, and training stood still for 25%" in said
    assert "minio and min found the most in it: 20%" in said
    assert "25% less time than those without a cache, and its whole run read 10% fewer bytes" in said
    assert "min took 10% longer than minio all the same: 100% of its hits" in said
    assert "lru got less out of the same memory (2.0%)" in said
    assert "All 4 recipes saw identical batches and ended at the same accuracy, 90.0%" in said


def test_the_reading_claims_nothing_that_was_not_seen() -> None:
    runs = [run_of("lru", 30, 3.0), run_of("min", 30, 3.0, accuracy=0.8)]
    said = report.reading(runs, settings_of("lru", "min"))
    assert "Without a cache" not in said
    assert "as many as it can hold" not in said
    assert "less time" not in said
    assert "got less" not in said
    assert "between 80.0% and 90.0%" in said
    runs[0].order = "another"
    assert "identical" not in report.reading(runs, settings_of("lru", "min"))
    assert report.reading([run_of("lru", 0, 3.0)], settings_of("lru")).startswith("lru got less")


def test_the_best_of_each_column_is_marked() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(report.table([run_of("lru", 2, 3.9), run_of("minio", 20, 3.0)]))
    lines = {line.split()[0]: line.split()[1:] for line in console.export_text().splitlines() if line.strip()}
    assert lines["lru"] == ["2.0%", "100%", "3.90", "4.0", "0.2", "90.0%"]
    assert lines["minio"] == ["20.0%", "*", "100%", "3.00", "*", "4.0", "0.2", "90.0%"]


def test_figures_of_a_stopped_demo_say_so() -> None:
    found = figures(settings_of("none", "lru"), [run_of("none", 0, 4.0)])
    assert not found["complete"]
    assert json.loads(json.dumps(found)) == found | {"settings": found["settings"] | {"recipes": ["none", "lru"]}}
