"""A real `augury serve` in a process of its own, for benchmarks. No measurement lives here."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Served(NamedTuple):
    """A node that runs."""

    socket: Path
    pid: int


@contextlib.contextmanager
def serving(directory: Path, ram: int) -> Iterator[Served]:
    """A node with so many bytes of memory, and no disk; ended at the end."""
    socket = directory / "node" / "node.sock"
    log = directory / "node.log"
    command = [sys.executable, "-m", "augury.cli", "serve", "--ram", str(ram), "--socket", str(socket)]
    process = subprocess.Popen([*command, "--log", str(log)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said.startswith("ready"):
            raise RuntimeError(f"the node has not started: {log.read_text() if log.exists() else said}")
        yield Served(socket, process.pid)
    finally:
        process.terminate()
        process.wait()
