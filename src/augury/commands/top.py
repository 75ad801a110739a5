"""`augury top`: a live view of this machine's node. What the numbers mean is the node's business (Node.report)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from augury.commands.nodes import HOLDERS, Numbers, Report, Socket, overview, percent, reach, report_of
from augury.errors import AuguryError, ConfigError
from augury.node.client import Connection
from augury.units import format_size

TITLES = ("req/s", "hits", "now", "stall"), tuple(f"{holder}/s" for holder in HOLDERS)


def top(
    socket: Socket = None,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="How often to look.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one view, of averages so far, and exit.")] = False,
) -> None:
    """Watch this machine's node: how full it is, who uses it, hits, waiting.

    q or Ctrl-C ends it. Where the output is no terminal it is as with --once.

    Of each job:

      hits, now   requests that found their sample: all so far, and lately

      stall       part of the time that training has waited for data

      poisoned    samples offered whose bytes are not those of their digest

      ram, disk   bytes per second from the job's own levels; shared: from
                  what others hold; source: the rest, read from the store

      share       what the job may use of a level, what it uses, and what it
                  is charged: what several hold is there once, for all

    Examples:

      augury top

      augury top --every 5

      augury top --once | less
    """
    if not 0.05 <= every <= 3600:
        raise ConfigError(f"--every {every:g}: give seconds from 0.05 to 3600")
    console = Console(highlight=False)
    node = reach(socket)
    if once or not console.is_terminal:
        console.print(view(report_of(node), None, console))
        node.close()
    else:
        _watch(node, every, console)


def view(now: Report, before: Report | None, console: Console) -> Group:
    """The state of the node, with rates since the report before; without, since each job began."""
    then = {_identity(job): job for job in before["jobs"]} if before is not None else {}
    return overview(now, TITLES, [_rates(job, then.get(_identity(job))) for job in now["jobs"]], console)


def _identity(job: Report) -> tuple[object, ...]:
    return job["user"], job["name"], job["began"]


def _rates(now: Report, before: Report | None) -> Numbers:
    old: Report = before or {"seconds": 0, "requests": 0, "hit_ratio": 0, "stall_seconds": 0, "bytes_from": {}}
    seconds = max(1e-9, now["seconds"] - old["seconds"])
    requests = now["requests"] - old["requests"]
    hits = now["requests"] * now["hit_ratio"] - old["requests"] * old["hit_ratio"]
    stall = min(1.0, max(0.0, now["stall_seconds"] - old["stall_seconds"]) / seconds)
    held = [now["bytes_from"].get(holder, 0) - old["bytes_from"].get(holder, 0) for holder in HOLDERS]
    recent = percent(hits / requests) if requests > 0 else "-"
    fares = f"{requests / seconds:,.0f}", percent(now["hit_ratio"]), recent, percent(stall)
    return fares, [format_size(amount / seconds) for amount in held]


def _watch(node: Connection, every: float, console: Console) -> None:
    """Until `q` or a signal; a node that goes is waited for."""
    watcher = _Watcher(node)
    live = Live(console=console, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), _keys() as ends_within, live:
        live.update(watcher.look(console), refresh=True)
        while not ends_within(every):
            live.update(watcher.look(console), refresh=True)
    watcher.close()


class _Watcher:
    """One report after the other, whatever becomes of the node."""

    def __init__(self, node: Connection) -> None:
        self._path: Path = node.path
        self._node: Connection | None = node
        self._now: Report | None = None

    def look(self, console: Console) -> RenderableType:
        """The view as it is now."""
        before = self._now
        try:
            if self._node is None:
                self._node, before = reach(self._path), None
            self._now = report_of(self._node)
        except AuguryError as error:
            self.close()
            self._now = None
            moment = time.strftime("%H:%M:%S")
            return Text.assemble((f"{error}\n", "yellow"), (f"{moment}: waiting for it to come back; q ends", "dim"))
        return Group(view(self._now, before, console), Text("q ends", "dim"))

    def close(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            node.close()


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """A function that waits, and says whether `q` was pressed meanwhile. The terminal is as before at the end."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    handlers = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = None if keyboard is None else termios.tcgetattr(keyboard)
    try:
        if keyboard is not None:
            tty.setcbreak(keyboard, termios.TCSANOW)
        yield lambda seconds: _pressed(keyboard, seconds)
    finally:
        if keyboard is not None and before is not None:
            with contextlib.suppress(termios.error):  # the terminal has gone
                termios.tcsetattr(keyboard, termios.TCSANOW, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _pressed(keyboard: int | None, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([] if keyboard is None else [keyboard], [], [], left)
        if ready and keyboard is not None:
            typed = os.read(keyboard, 1024)
            if not typed or b"q" in typed.lower():  # nothing: the terminal has gone
                return True
    return False
