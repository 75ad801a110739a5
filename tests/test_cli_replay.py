"""`augury replay` as users call it: numbers, traces, pictures, and one clear line for what cannot work."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from augury.cli import main
from augury.recipes import find, policy_rng
from augury.step import step
from augury.trace import Recorder


def augury(*arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "augury.cli", *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def here(monkeypatch, capsys):
    """The same in this process: for what is said, not for how a program starts and ends."""

    def run(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["augury", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == code, said.err
        assert "Traceback" not in said.err
        return said

    return run


@pytest.fixture
def replayed(here):
    return lambda *arguments: json.loads(here("replay", "--json", *arguments).out)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A recorded run: two epochs of 200 samples of mixed sizes, LRU."""
    path = tmp_path_factory.mktemp("log") / "run.trace"
    sizes = np.random.default_rng(0).integers(1, 100, 200)
    with Recorder(path, {"recipe": "lru", "seed": 3, "batch": 16}, sizes) as recorder:
        policy = recorder.wrap(find("lru").policy(sizes, int(sizes.sum()) // 2, policy_rng(3, 0)))
        for epoch in range(2):
            recorder.mark_epoch(epoch)
            order = np.random.default_rng(epoch).permutation(200)
            for at in range(0, 200, 16):
                step([policy], order[at : at + 16])
    return path


def test_the_numbers_of_every_recipe():
    given = "--samples 50000 --epochs 8 --cache 0.2 --batch 128 --recipe lru,lfu,fifo,random,minio,min --seed 0"
    results = {result["recipe"]: result for result in json.loads(augury("replay", "--json", *given.split()).stdout)}
    assert list(results) == ["lru", "lfu", "fifo", "random", "minio", "min"]
    for result in results.values():
        assert result["cache"] == 0.2
        shares = result["hit_ratio"] + result["substitutes"] + result["joined"] + result["misses"]
        assert shares == pytest.approx(1)
        assert result["coverage"] == 1
        assert len(result["per_epoch"]) == len(result["reads_per_epoch"]) == 8
        assert result["us_per_access"] > 0
    assert results["minio"]["per_epoch"][1:] == [pytest.approx(0.2)] * 7
    expected = 0.2 + 0.8 * math.log(0.8)
    assert np.mean(results["lru"]["per_epoch"][1:]) == pytest.approx(expected, abs=0.005)
    assert results["min"]["hit_ratio"] == max(result["hit_ratio"] for result in results.values())


def test_placement_hits_what_it_holds_and_reads_nothing_unasked(replayed):
    (result,) = replayed("--samples", 1000, "--epochs", 4, "--cache", 0.25, "--recipe", "hdmlp")
    assert result["per_epoch"] == [0, 0.25, 0.25, 0.25]
    assert result["reads_per_epoch"] == [1, 0.75, 0.75, 0.75]


def test_comma_lists_give_one_object_per_recipe_and_size(replayed):
    results = replayed("--samples", 200, "--epochs", 2, "--cache", "0.1, 0.5", "--recipe", "lru,minio")
    pairs = [(result["recipe"], result["cache"]) for result in results]
    assert pairs == [("lru", 0.1), ("lru", 0.5), ("minio", 0.1), ("minio", 0.5)]


def test_a_table_for_people():
    done = augury("replay", "--samples", 300, "--epochs", 2, "--recipe", "lru,minio")
    assert all(word in done.stdout for word in ("lru", "minio", "hits", "steady", "coverage"))
    assert done.stderr == ""


@pytest.mark.parametrize("caches", ["0.2", "0.1,0.2,0.4"])
def test_a_picture(tmp_path, caches):
    path = tmp_path / "hits.png"
    augury("replay", "--samples", 300, "--epochs", 3, "--cache", caches, "--plot", path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_recorded_run_under_other_recipes(log, replayed):
    (own,) = replayed("--trace", log)
    assert own["recipe"] == "lru"
    assert own["cache"] == pytest.approx(0.5, abs=0.01)
    assert len(own["per_epoch"]) == 2
    others = replayed("--trace", log, "--recipe", "minio,min", "--cache", "0.5")
    assert [result["recipe"] for result in others] == ["minio", "min"]
    assert others[1]["hit_ratio"] > own["hit_ratio"]


def test_a_log_is_verified(log, tmp_path, here):
    assert "every decision is the same" in here("replay", "--trace", log, "--verify").out
    assert json.loads(here("replay", "--trace", log, "--verify", "--json").out)["same"] is True
    forged = tmp_path / "forged.trace"
    sizes = np.ones(50, np.int64)
    with Recorder(forged, {"recipe": "lru", "seed": 0, "batch": 1}, sizes) as recorder:
        policy = recorder.wrap(find("lfu").policy(sizes, 5, policy_rng(0, 0)))
        for id in [0, 0, 1, 2, 3, 4, 5, 6, 7]:
            step([policy], np.array([id]))
    done = here("replay", "--trace", forged, "--verify", code=1)
    assert "error: call" in done.err
    assert "admit" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--recipe mnio", "did you mean 'minio'"),
        ("--recipe ,", "--recipe is empty"),
        ("--cache 0", "above 0 and at most 1"),
        ("--cache 1.5", "above 0 and at most 1"),
        ("--cache -1", "above 0 and at most 1"),
        ("--cache nan", "above 0 and at most 1"),
        ("--cache big", "not 'big'"),
        ("--samples 0", "samples must be at least 1"),
        ("--epochs 0", "epochs must be at least 1"),
        ("--batch 0", "batch must be at least 1"),
        ("--seed -3", "seed must not be negative"),
        ("--samples 10 --cache 0.01", "not even one"),
        ("--samples many", "--samples"),
        ("--colour red", "--colour"),
        ("--verify", "--trace FILE"),
        ("--trace /nowhere/x.trace", "No such file"),
        ("--trace /nowhere/x.trace --samples 5", "leave out --samples"),
        ("--plot hits.xyz", ".png"),
        ("--plot /nowhere/hits.png", "no directory"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["augury", "replay", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("error: ")
    assert message in said.err


def test_as_a_whole_program_too():
    done = augury("replay", "--recipe", "mnio", code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("error: unknown recipe 'mnio': did you mean 'minio'?")
    assert done.stderr.count("\n") == 1


def test_other_files_are_no_traces(tmp_path, here):
    (tmp_path / "x").write_text("hello")
    assert "is not a call log" in here("replay", "--trace", tmp_path / "x", code=2).err


def test_help_and_version(here):
    everything = here("--help").out
    assert all(name in everything for name in ("demo", "index", "replay"))
    assert "augury replay --cache" in here("replay", "--help").out
    assert here("--version").out.startswith("augury ")
    assert "Did you mean 'replay'" in here("repaly", code=2).err


def test_ctrl_c_ends_with_130():
    command = [sys.executable, "-m", "augury.cli", "replay", "--samples", "300000", "--epochs", "1000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        time.sleep(2.5)
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "Traceback" not in told
