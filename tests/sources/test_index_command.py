"""`augury index`, as a user calls it."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from augury.catalog import Catalog
from augury.cli import main
from augury.commands import index as index_module
from augury.sources import open_source


def run(*arguments: object) -> tuple[int, str]:
    """The exit code and everything printed."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(printed):
        patch.setattr(sys, "argv", ["augury", "index", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        patch.setenv("NO_COLOR", "1")
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0), printed.getvalue()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/notes.txt"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(b"x" * len(name))
    return tmp_path / "data"


def test_it_saves_and_sums_up(data: Path) -> None:
    code, output = run(data)
    assert code == 0
    lines = {line.split()[0]: line.split()[1:] for line in output.splitlines() if line}
    assert lines["samples"] == ["4"]
    assert lines["labels"] == ["2", "classes"]
    assert lines["bytes"] == ["40"]
    assert lines["catalog"] == [f"{data}/.augury"]
    assert open_source(data).catalog.path == data / ".augury"


def test_options_are_kept(data: Path, tmp_path: Path) -> None:
    code, output = run(data, "--out", tmp_path / "out", "--labels", "none", "--extensions", "jpg", "--quiet")
    assert (code, output) == (0, "")
    catalog = Catalog.open(tmp_path / "out")
    assert len(catalog) == 3
    assert catalog.labels is None
    assert catalog.refresh_command == f"augury index {data} --out {tmp_path}/out --labels none --extensions .jpg"
    assert not (data / ".augury").exists()


def test_check(data: Path) -> None:
    code, output = run(data, "--check")
    assert code == 2
    assert "no catalog at" in output
    run(data)
    assert run(data, "--check") == (0, "4 samples are as the catalog says\n")
    (data / "cat" / "new.jpg").write_bytes(b"new")
    code, output = run(data, "--check")
    assert code == 1
    assert "cat/new.jpg: not in the catalog" in output
    (data / "cat" / "1.jpg").write_bytes(b"changed")
    code, output = run(data, "--check")
    assert code == 1
    assert "cat/1.jpg: expected 9 bytes, found 7" in output
    assert f"augury index {data}" in output


def test_errors_are_one_sentence(tmp_path: Path) -> None:
    code, output = run(tmp_path / "nothing")
    assert code == 2
    assert output.startswith("error: ")
    assert "does not exist" in output
    assert "Traceback" not in output


def test_a_place_that_cannot_be_written_names_out(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module.os, "access", lambda *arguments: False)
    code, output = run(data)
    assert code == 2
    assert "--out" in output


def test_ctrl_c_leaves_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    code, _ = run(data)
    assert code == 130
    assert not (data / ".augury").exists()


def test_help_teaches() -> None:
    _, output = run("--help")
    for word in ("--out", "--labels", "--extensions", "--check", "--quiet", "augury index /data/train"):
        assert word in output
