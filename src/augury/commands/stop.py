"""`augury stop`: end this machine's node."""

from __future__ import annotations

import time
from pathlib import Path

from augury.commands.nodes import Socket, reach
from augury.errors import AuguryError
from augury.node import protocol
from augury.node.place import lock_of

PATIENCE = 30.0
"""Seconds that a node may take to end: it waits for the requests under way."""


def stop(socket: Socket = None) -> None:
    """End this machine's node, and wait until it has gone.

    What is on disk is kept: the next start is warm. Jobs that use the node go
    on from the source, with a warning, and come back to the next one. Only the
    user who started it, and root, can stop it.

    Examples:

      augury stop

      augury stop --socket /run/augury/node.sock
    """
    node = reach(socket)
    pid = node.welcome.pid
    visible = _runs(pid)  # else it is in another container, where processes have other numbers
    node.ask(protocol.Stop(), protocol.Done)
    node.close()
    deadline = time.monotonic() + PATIENCE
    while not _gone(node.path, pid, visible):
        if time.monotonic() > deadline:
            raise AuguryError(
                f"the node (process {pid}) has not ended within {PATIENCE:.0f} s: see its log, or run: kill -9 {pid} "
                "(what is on disk is kept)"
            )
        time.sleep(0.02)
    print(f"stopped: process {pid}, {node.path}")


def _gone(path: Path, pid: int, visible: bool) -> bool:
    """Whether another node could start now; the lock is the last thing that one gives back."""
    return (visible and not _runs(pid)) or not (path.exists() or lock_of(path).exists())


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
