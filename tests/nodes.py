"""Nodes for tests: in a thread of this process, or as the real command. No test lives here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from augury.node.config import Config
from augury.node.daemon import Node


@contextlib.contextmanager
def served(place: Path, ram=64 << 20, disk=None, disk_bytes=0, **more):
    """A node in a thread; its socket is in a directory of its own below `place`."""
    node = Node(Config(place / "node" / "node.sock", ram=ram, disk=disk, disk_bytes=disk_bytes, **more))
    thread = threading.Thread(target=node.serve, name="augury-node-under-test")
    thread.start()
    try:
        yield node
    finally:
        node.halt()
        thread.join()


class Process:
    """`augury serve`, to be killed and started again."""

    def __init__(self, place: Path, *arguments: str) -> None:
        self.socket = place / "node" / "node.sock"
        self._arguments = ("--socket", str(self.socket), *arguments)
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "augury.cli", "serve", *self._arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"ready")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self) -> int:
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextlib.contextmanager
def process(place: Path, *arguments: str):
    """The real command, stopped at the end."""
    running = Process(place, *arguments)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.signal(signal.SIGCONT)
            running.stop()
