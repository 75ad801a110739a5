"""`augury serve`: this machine's node, in the foreground or in the background.

Here is what makes a program of it: signals, the log, the service manager. What it serves is node/daemon.py's business.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Annotated

import typer

from augury.errors import AuguryError, ConfigError
from augury.node.config import Config, load
from augury.node.daemon import Node
from augury.units import format_size

LOG = 16 << 20
"""Bytes of a log file, and of the one before it, at most."""


def serve(
    ram: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory for samples; else a quarter of this machine's.")
    ] = None,
    disk: Annotated[
        str | None, typer.Option(metavar="DIR:SIZE", help="A second level below, kept across restarts.")
    ] = None,
    socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", readable=False, help="Where clients find it; else AUGURY_NODE, or the user's own."
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Let this group's users in, too; else only its own user.")
    ] = None,
    client_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory that one client may have mapped; else 2 GiB.")
    ] = None,
    clients: Annotated[
        str | None, typer.Option(metavar="N", help="Connections that one user may have; else 256.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same from a TOML file; arguments and environment win.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="Append the log there; else to stderr, or as SOCKET.log."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Go to the background once it is ready.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Log only what goes wrong, not every client that comes and goes.")
    ] = False,
) -> None:
    """Share one cache between all workers, ranks, jobs and users of this machine.

    Jobs use it with augury.Loader(..., node="auto"), or with AUGURY_NODE=auto
    in their environment. Their data needs digests (augury digest PATH): who
    knows a sample's digest may read it, and nobody can list what is there.

    It ends with augury stop, Ctrl-C or SIGTERM; what is on disk is kept for
    the next start. Every size, and the group, can also be set in the
    environment (AUGURY_NODE_RAM=32GB) or in a TOML file (ram = "32GB").

    Examples:

      augury serve --ram 32GB --disk /nvme/augury:500GB

      augury serve --ram 8GB --detach              (then: augury top, augury stop)

      augury serve --group ml --socket /run/augury/node.sock

      augury serve --config /etc/augury/node.toml
    """
    said = {"ram": ram, "disk": disk, "socket": socket, "group": group, "client_bytes": client_bytes}
    chosen = load(said | {"clients": clients}, config)
    level = logging.WARNING if quiet else logging.INFO
    if detach:
        _in_background(chosen, (log or chosen.socket.with_name(f"{chosen.socket.name}.log")).absolute(), level)
    else:
        _run(chosen, log, level, ready=_print_ready)


def _run(config: Config, log: Path | None, level: int, ready: Callable[[Config], None]) -> None:
    node: Node | None = None

    def end(*_: object) -> None:
        if node is None:
            raise KeyboardInterrupt
        node.halt()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, end)
    _one_arena()
    node = Node(config)
    try:
        _open_log(log, level)
        ready(config)
        _notify("READY=1")
    except BaseException:
        node.halt()
        node.serve()  # which gives everything back
        raise
    node.serve(ending=lambda: _notify("STOPPING=1"))


def _open_log(path: Path | None, level: int) -> None:
    handler: logging.Handler = logging.StreamHandler()
    if path is not None:
        try:
            # Made before it is opened for good, so that it is the user's own whatever the umask.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
            os.umask(0o077)  # also when it is begun anew: a client that comes and goes for ever must not fill the disk
            handler = RotatingFileHandler(path, maxBytes=LOG, backupCount=1)
        except OSError as error:
            raise ConfigError(f"the log {path} cannot be written ({error.strerror}): give another --log") from None
    logging.basicConfig(handlers=[handler], level=level, format="%(asctime)s %(levelname)s %(message)s")


def _print_ready(config: Config) -> None:
    disk = f" and {format_size(config.disk_bytes)} of disk" if config.disk else ""
    print(f"ready at {config.socket}: {format_size(config.ram)} of memory{disk}", flush=True)


def _in_background(config: Config, log: Path, level: int) -> None:
    """Fork; the parent ends when the node is ready, or with its complaint."""
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        _await_ready(child, reader)
        return
    os.setsid()
    os.chdir("/")
    os.closerange(3, writer)  # what whoever started it has open is not for keeping
    os.closerange(writer + 1, os.sysconf("SC_OPEN_MAX"))
    parent = os.fdopen(writer, "w")
    try:
        _run(config, log, level, ready=lambda config: _let_go(parent, config))
    except BaseException as error:
        if parent.closed:
            logging.getLogger(__name__).exception("the node has ended")
        else:
            parent.write(str(error) or type(error).__name__)
            parent.close()
        os._exit(1)
    os._exit(0)


def _await_ready(child: int, reader: int) -> None:
    try:
        with os.fdopen(reader) as told:
            answer = told.read()
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        raise
    if not answer.startswith("ready"):
        raise AuguryError(answer or "the node has ended before it was ready")
    print(answer, flush=True)


def _let_go(parent: IO[str], config: Config) -> None:
    parent.write(f"ready at {config.socket}: process {os.getpid()}")
    parent.close()
    null = os.open(os.devnull, os.O_RDWR)
    for each in (0, 1, 2):
        os.dup2(null, each)
    os.close(null)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the rest of this process


def _notify(state: str) -> None:
    """Tell the service manager, if there is one (sd_notify)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        try:
            manager.connect("\0" + address[1:] if address.startswith("@") else address)
            manager.send(state.encode())
        except OSError as error:
            logging.getLogger(__name__).warning("the service manager is not told %s: %s", state, error)


def _one_arena() -> None:
    """Have the C library take all memory from one place: bytes that one thread frees fit those that another needs."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX
