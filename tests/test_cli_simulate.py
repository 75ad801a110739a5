"""`augury simulate` as whole programs: numbers, sweeps, pictures, and one clear line for what cannot work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from augury.cli import main
from augury.sim.model import Throughput
from augury.sim.strategies import PUBLISHED
from augury.storage import Storage, StorageLevel
from helpers import folder

SMALL = """
N = 2
c = 100
beta = 200
b_c = 10000
b_fs = 2000
E = 2
B = 10
[sizes]
F = 100
mu = 1
sigma = 0.2
[t]
1 = 66
4 = 146
[p]
0 = 2
[d]
0 = 10
1 = 20
2 = 40
[r.0]
1 = 1000
[r.1]
1 = 500
[r.2]
1 = 50
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def augury(*arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "augury.cli", "simulate", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def here(monkeypatch, capsys, *arguments):
    """The same in this process, one case after the other, which is quicker than a program."""
    monkeypatch.setattr(sys, "argv", ["augury", "simulate", "--jobs", "1", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


@pytest.fixture
def simulated(monkeypatch, capsys):
    def run(*arguments):
        code, out, err = here(monkeypatch, capsys, "--json", *arguments)
        assert (code, err) == (0, "")
        return json.loads(out)

    return run


def test_all_ten_as_a_program(small):
    results = json.loads(augury(small, "--json", "--jobs", 2).stdout)
    assert [result["policy"] for result in results] == list(PUBLISHED)
    for result in results:
        assert set(result) == {"policy", "runtime", "stall", "reads"}
        if result["policy"].startswith("lbann"):  # 100 MB into two times 20 MB
            assert result["runtime"] is result["stall"] is result["reads"] is None
        else:
            assert 0 < result["runtime"] < 100
            assert 0 <= result["stall"] < result["runtime"]
            assert set(result["reads"]) == {"source", "local", "remote"}
    by_name = {result["policy"]: result for result in results}
    assert by_name["naive"]["reads"] == {"source": 200, "local": 0, "remote": 0}
    assert by_name["lower-bound"]["runtime"] == min(by_name[name]["runtime"] for name in PUBLISHED[:5])


def test_one_process_or_many_give_the_same(small, simulated):
    assert json.loads(augury(small, "--json", "--jobs", 2, "--policy", "naive,hdmlp").stdout) == simulated(
        small, "--policy", "naive,hdmlp"
    )


def test_a_table_for_people(small):
    done = augury(small, "--policy", "lower-bound,deepio-opportunistic,lbann-preload", "--sweep", "d.1=20,30")
    assert done.stderr == ""
    for word in ("policy", "d.1", "runtime", "x bound", "stall", "source", "deepio-opportunistic", "N/A", "1.000"):
        assert word in done.stdout
    assert "…" not in done.stdout  # rather a long line than half a number


def test_a_shipped_scenario_as_published(simulated):
    (found,) = simulated("--scenario", 1, "--model", "paper", "--seed", 42, "--policy", "staging")
    assert found["runtime"] == pytest.approx(10.24, rel=0.015)


def test_policies_are_given_in_the_order_named(small, simulated):
    names = [result["policy"] for result in simulated(small, "--policy", "naive, hdmlp-cleanup,lower-bound,naive")]
    assert names == ["naive", "hdmlp-cleanup", "lower-bound"]


def test_parameters_are_overridden(small, simulated):
    def runtime(*settings):
        return simulated(small, "--policy", "staging", *settings)[0]["runtime"]

    usual = runtime()
    assert runtime("--set", "c=50", "--set", "E=4") > usual * 2
    assert runtime("--set", "d.1=20480") == usual
    assert runtime("--set", "t.1=1000", "--set", "t.4=4000") < usual
    assert runtime("--seed", "7") != usual


def test_one_parameter_is_swept(small, simulated):
    results = simulated(small, "--policy", "lower-bound,naive", "--sweep", "N=1,2,5")
    assert [(result["policy"], result["set"]) for result in results] == [
        (policy, {"N": count}) for count in ("1", "2", "5") for policy in ("lower-bound", "naive")
    ]
    bounds = [result["runtime"] for result in results if result["policy"] == "lower-bound"]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > 4 * bounds[2]


def test_two_parameters_are_swept(small, simulated):
    results = simulated(small, "--policy", "hdmlp", "--sweep", "d.1=0,50", "--sweep", "d.2=0,50")
    assert [result["set"] for result in results] == [
        {"d.1": one, "d.2": two} for one in ("0", "50") for two in ("0", "50")
    ]
    assert results[0]["runtime"] > results[3]["runtime"]
    assert results[0]["reads"]["local"] == 0


def test_a_series(small, simulated):
    (found,) = simulated(small, "--policy", "naive", "--series")
    assert len(found["ends"]) == len(found["stalls"]) == 20
    assert found["ends"][-1] == found["runtime"]
    assert sum(found["stalls"]) == pytest.approx(found["stall"])


@pytest.mark.parametrize(
    "more", [[], ["--sweep", "N=1,2"], ["--sweep", "d.1=0,10", "--sweep", "distribution=uniform,whole"]]
)
def test_pictures(small, tmp_path, more, monkeypatch, capsys):
    path = tmp_path / "runs.png"
    policies = ["--policy", "lower-bound,naive,lbann-preload"]
    code, out, err = here(monkeypatch, capsys, small, *policies, *more, "--plot", path)
    assert (code, err) == (0, "")
    assert "naive" in out
    assert path.read_bytes().startswith(b"\x89PNG")


def test_sizes_of_a_real_dataset(small, tmp_path, simulated, monkeypatch, capsys):
    contents = folder(tmp_path / "data", samples=60)
    megabytes = sum(map(len, contents)) / 1e6
    given = ["--policy", "lower-bound", "--set", "N=1", "--set", "E=3", "--data"]
    (found,) = simulated(small, *given, tmp_path / "data")
    assert found["runtime"] == pytest.approx(3 * megabytes / 100)
    monkeypatch.setattr(sys, "argv", ["augury", "index", str(tmp_path / "data"), "--out", str(tmp_path / "catalog")])
    with pytest.raises(SystemExit):
        main()
    capsys.readouterr()
    assert simulated(small, *given, tmp_path / "catalog") == [found]


def test_files_that_are_all_empty(small, tmp_path, monkeypatch, capsys):
    (tmp_path / "data" / "a").mkdir(parents=True)
    for at in range(20):
        (tmp_path / "data" / "a" / f"{at}.bin").touch()
    code, out, err = here(monkeypatch, capsys, small, "--data", tmp_path / "data")
    assert (code, err) == (0, "")
    assert "0.00" in out


def test_storage_that_was_probed(small, tmp_path, simulated):
    path = tmp_path / "levels.toml"
    levels = (
        StorageLevel("ram", "150MB", 2, Throughput({1: 5000.0, 2: 9000.0})),
        StorageLevel("disk", 300_000_000, 1, Throughput({1: 200.0}), Throughput({1: 100.0}), path="/nvme"),
    )
    Storage(levels, Throughput({1: 500.0})).save(path)
    probed = simulated(small, "--levels", path, "--policy", "hdmlp,lbann-preload,parallel-staging")
    settings = [
        "d.1=150",
        "d.2=300",
        "p.1=2",
        "p.2=1",
        "r.1={1=5000,2=9000}",
        "r.2={1=200}",
        "w.2={1=100}",
        "t={1=500}",
    ]
    changed = [part for setting in settings for part in ("--set", setting)]
    assert probed == simulated(small, *changed, "--policy", "hdmlp,lbann-preload,parallel-staging")
    assert all(result["runtime"] is not None for result in probed)


def test_a_machine_with_memory_only(small, tmp_path, simulated):
    path = tmp_path / "levels.toml"
    Storage((StorageLevel("ram", 0.6, 2, Throughput({1: 5000.0})),)).save(path)
    folder(tmp_path / "data", samples=60)
    results = simulated(small, "--levels", path, "--data", tmp_path / "data")
    assert [result["policy"] for result in results if result["runtime"] is None] == [
        "parallel-staging",
        "locality-aware",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give one scenario: a TOML file, or --scenario 1 to 4"),
        ("SMALL --scenario 1", "give one scenario"),
        ("--scenario 9", "the scenario 9 cannot be read: No such file or directory (shipped ones: 1, 2, 3, 4)"),
        ("/nowhere/x.toml", "/nowhere/x.toml cannot be read"),
        ("SMALL --policy hdmpl", "unknown policy 'hdmpl': did you mean 'hdmlp'"),
        ("SMALL --policy ,", "--policy is empty"),
        ("SMALL --model papre", "unknown model 'papre': did you mean 'paper'"),
        ("SMALL --set d.1", "'d.1' does not set a parameter"),
        ("SMALL --set q=3", "unknown parameter of a scenario 'q'"),
        ("SMALL --set N=0", "N = 0 (nodes) must be positive"),
        ("SMALL --set B=1000", "lower B"),
        ("SMALL --sweep N", "write a parameter and its values, like d.1=0,10240,20480"),
        ("SMALL --sweep N=", "--sweep is empty"),
        ("SMALL --sweep N=1,0", "N = 0 (nodes) must be positive"),
        ("SMALL --sweep N=1 --sweep N=2", "--sweep varies N twice"),
        ("SMALL --sweep N=1 --sweep B=2 --sweep E=1", "--sweep varies at most two parameters"),
        ("SMALL --seed -3", "the seed -3 must not be negative"),
        ("SMALL --jobs 0", "--jobs 0: at least one"),
        ("SMALL --series", "add --json"),
        ("SMALL --plot x.xyz", ".png"),
        ("SMALL --plot /nowhere/x.png", "no directory"),
        ("SMALL --plot x.png --sweep distribution=uniform,whole", "distribution=uniform is none"),
        ("SMALL --data /nowhere", "/nowhere"),
        ("SMALL --levels /nowhere", "/nowhere"),
        ("SMALL --policy hdmlp-cleanup --model paper", "hdmlp-cleanup has no published figures"),
        ("SMALL --set p=3 --levels LEVELS", "disk is read: measure it with `augury probe`"),
        ("FLAT --levels LEVELS", "p is a table with one entry per storage class, not 3"),
        ("SMALL --levels PART", "is a part of --data: name that"),
        ("SMALL --colour red", "--colour"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(arguments, message, small, tmp_path, monkeypatch, capsys):
    (tmp_path / "flat.toml").write_text("p = 3\n" + SMALL.replace("[p]\n0 = 2\n", ""))
    Storage((StorageLevel("disk", "1GB", 1),)).save(tmp_path / "levels.toml")
    Storage((StorageLevel("ram", 0.5, 1, Throughput({1: 9.0})),)).save(tmp_path / "part.toml")
    names = {"SMALL": small, "FLAT": "flat.toml", "LEVELS": "levels.toml", "PART": "part.toml"}
    given = [str(tmp_path / names[word]) if word in names else word for word in arguments.split()]
    monkeypatch.setattr(sys, "argv", ["augury", "simulate", *given])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("error: ")
    assert message in said.err


def test_an_error_in_a_process_of_the_pool_is_one_line_too(small):
    done = augury(small, "--policy", "naive,hdmlp-cleanup", "--model", "paper", "--jobs", 2, code=2)
    assert done.stderr.startswith("error: hdmlp-cleanup has no published figures")
    assert done.stderr.count("\n") == 1


def test_help_teaches():
    told = augury("--help").stdout
    assert "augury simulate --scenario 3" in told
    assert all(word in told for word in ("--sweep", "--levels", "hdmlp-by-frequency", "augury probe", "clean|paper"))


def children(of):
    """Processes that a process has started, and theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == of:
            number = int(path.parent.name)
            found += [number, *children(number)]
    return found


def is_running(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(how):
    command = [sys.executable, "-m", "augury.cli", "simulate", "--scenario", "3", "--jobs", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        deadline = time.monotonic() + 30
        while len(started := children(running.pid)) < 3 and time.monotonic() < deadline:  # two, and Python's own
            time.sleep(0.05)
        time.sleep(1)
        running.send_signal(how)
        _, told = running.communicate(timeout=30)
    assert running.returncode == (130 if how == signal.SIGINT else -how)
    assert "Traceback" not in told
    assert len(started) >= 3
    deadline = time.monotonic() + 20
    while (left := [number for number in started if is_running(number)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    for number in left:
        os.kill(number, signal.SIGKILL)
    assert left == []
