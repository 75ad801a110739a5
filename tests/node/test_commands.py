"""`augury serve`, `stop`, `stats` and `top` as programs: real processes, sockets, signals and terminals."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

import pytest

import augury
import augury.commands.stats
import augury.commands.stop
import augury.commands.top
from augury.cli import COMMANDS, main
from augury.node.client import Connection, NodeRefuses
from augury.node.config import Config
from augury.node.daemon import Node
from helpers import arrays, check_batches
from nodes import served

NOBODY = 65534
LONG = 60
"""Seconds after which something hangs."""
X, Y = arrays(samples=300, size=96)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as several users")


@pytest.fixture
def place():
    """A directory that other users may enter, and whose path is short."""
    made = Path(tempfile.mkdtemp(prefix="augury-node-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def environment(**more):
    """Ours, without what a developer may have said about nodes; of our code."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AUGURY_NODE")}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "COLUMNS": "80"} | more


def augury_(*arguments, **more):
    """A command that runs to its end."""
    command = [sys.executable, "-m", "augury.cli", *map(str, arguments)]
    more.setdefault("env", environment())
    return subprocess.run(command, capture_output=True, text=True, timeout=LONG, **more)


@contextlib.contextmanager
def serving(*arguments, **more):
    """`augury serve` in the foreground, with the line that it says first; killed at the end if it still runs."""
    command = [sys.executable, "-m", "augury.cli", "serve", *map(str, arguments)]
    more.setdefault("env", environment())
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("ready"), process.stderr.read()
            process.ready = line
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@contextlib.contextmanager
def detached(*arguments, **more):
    """`augury serve --detach`, ended at the end; its process."""
    done = augury_("serve", "--detach", *arguments, **more)
    assert done.returncode == 0, done.stderr
    pid = int(re.search(r"process (\d+)", done.stdout)[1])
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        until(lambda: not running(pid))


def running(pid):
    """Whether a process runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(wanted):
    deadline = time.monotonic() + LONG
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def train(path, epochs=1, **arguments):
    """An epoch through the node, each byte compared; the bytes by holder of the last."""
    with augury.Loader((X, Y), 32, recipe="lru", ram=0.5, node=path, output="numpy", seed=0, **arguments) as loader:
        for _ in range(epochs):
            check_batches(loader, X, Y)
        return loader.stats().epochs[-1].bytes_from


def run_main(monkeypatch, *arguments):
    """A command in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["augury", *map(str, arguments)])
    with pytest.raises(SystemExit) as exited:
        main()
    return exited.value.code


def as_user(uid, *arguments, groups=()):
    """A command in a copy of this process that another user runs: exit code and stderr. (Modules are loaded already:
    another user may not be able to read them.)"""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setgroups(groups)
            os.setgid(uid)
            os.setuid(uid)
            os.dup2(writer, 2)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            sys.argv = ["augury", *map(str, arguments)]
            main()
        except SystemExit as error:
            code = error.code
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as told:
        said = told.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


# Serving ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_says_when_it_is_ready_and_ends_cleanly_by_a_signal(number, place):
    path, disk = place / "s" / "node.sock", place / "disk"
    with serving("--ram", "1MB", "--disk", f"{disk}:9MB", "--socket", path) as process:
        assert process.ready == f"ready at {path}: 1 MB of memory and 9 MB of disk\n"
        train(path)
        process.send_signal(number)
        assert process.wait(LONG) == 0
        log = process.stderr.read()
    assert "Traceback" not in log
    assert "stopped" in log
    assert list((place / "s").iterdir()) == []


def test_what_is_on_disk_is_warm_at_the_next_start(place):
    path = place / "node.sock"
    arguments = ("--ram", "10kB", "--disk", f"{place / 'disk'}:9MB", "--socket", path)
    with serving(*arguments) as process:
        train(path, disk=("unused", "9MB"))
        process.terminate()
        process.wait(LONG)
    with serving(*arguments):
        report = json.loads(augury_("stats", "--json", "--socket", path).stdout)
        assert report["shelves"][1]["samples"] == report["shelves"][1]["idle"] > 0
        holders = train(path, disk=("unused", "9MB"))
    assert holders["source"] <= 10_000  # what was in memory only
    assert holders["disk"] == X.nbytes - holders["source"]


def test_a_service_manager_is_told(place):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(place / "notify"))
        manager.settimeout(LONG)
        told = environment(NOTIFY_SOCKET=str(place / "notify"))
        with serving("--ram", "1MB", "--socket", place / "node.sock", env=told) as process:
            assert manager.recv(100) == b"READY=1"
            Connection(place / "node.sock", "test").close()
            process.terminate()
            assert manager.recv(100) == b"STOPPING=1"
            assert process.wait(LONG) == 0


def test_a_service_manager_with_an_abstract_address_or_none_at_all(place):
    name = f"augury-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        manager.settimeout(LONG)
        with serving("--ram", "1MB", "--socket", place / "a.sock", env=environment(NOTIFY_SOCKET=f"@{name}")):
            assert manager.recv(100) == b"READY=1"
    with serving("--ram", "1MB", "--socket", place / "b.sock", env=environment(NOTIFY_SOCKET="/none")) as process:
        process.terminate()
        assert process.wait(LONG) == 0
        assert "not told READY=1" in process.stderr.read()


def test_settings_from_the_environment_and_a_file(place):
    (place / "node.toml").write_text(f'ram = "3MB"\ndisk = "{place}/disk:5MB"\nclients = 1\n')
    told = environment(AUGURY_NODE=str(place / "e.sock"), AUGURY_NODE_RAM="2MB")
    with serving("--config", place / "node.toml", "--disk", f"{place}/disk:7MB", env=told) as process:
        assert process.ready == f"ready at {place}/e.sock: 2 MB of memory and 7 MB of disk\n"
        first = Connection(place / "e.sock", "first")
        with pytest.raises(NodeRefuses, match="1 connections already"):
            Connection(place / "e.sock", "second")
        first.close()
        until(lambda: augury_("stop", env=told).returncode == 0)


def test_a_node_that_was_killed_does_not_prevent_the_next(place):
    path = place / "node.sock"
    with serving("--ram", "1MB", "--socket", path) as process:
        process.kill()
        process.wait(LONG)
    assert path.exists()
    done = augury_("stats", "--socket", path)
    assert done.returncode == 2
    assert "has been killed" in done.stderr
    with serving("--ram", "1MB", "--socket", path):
        train(path)


def test_the_second_node_on_a_socket_is_refused_and_the_first_unharmed(place):
    path = place / "node.sock"
    with detached("--ram", "1MB", "--socket", path) as pid:
        before = (place / "node.sock.log").read_text()
        for more in ((), ("--detach",)):
            done = augury_("serve", "--ram", "1MB", "--socket", path, *more)
            assert done.returncode == 2
            assert f"{path} is in use by process {pid}" in done.stderr
            assert "--socket" in done.stderr
        assert (place / "node.sock.log").read_text() == before
        train(path)


def test_two_nodes_may_have_their_sockets_in_one_directory(place):
    with (
        serving("--ram", "1MB", "--socket", place / "a.sock"),
        serving("--ram", "1MB", "--socket", place / "b.sock"),
    ):
        train(place / "a.sock")
        train(place / "b.sock")


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_modes_do_not_depend_on_the_umask(mask, place):
    with detached("--ram", "1MB", "--socket", place / "s" / "node.sock", umask=mask):
        assert {each.name: oct(mode(each)) for each in (place / "s").iterdir()} == {
            "node.sock": "0o600",
            "node.sock.lock": "0o600",
            "node.sock.log": "0o600",
        }
        assert mode(place / "s") == 0o700


@as_root
def test_a_group_reaches_the_socket_and_others_do_not(place):
    path = place / "a" / "b" / "node.sock"
    with detached("--ram", "1MB", "--socket", path, "--group", "12345", umask=0o077):
        assert mode(path) == 0o660
        assert path.stat().st_gid == 12345
        assert mode(path.parent) == 0o710
        assert path.parent.stat().st_gid == 12345
        assert as_user(NOBODY, "stats", "--json", "--socket", path, groups=[12345])[0] == 0
        code, said = as_user(NOBODY, "stats", "--socket", path)
        assert code == 2
        assert f"no node at {path} for this user" in said


@as_root
def test_a_group_that_cannot_reach_the_socket_is_told_to_the_log(place):
    place.chmod(0o700)
    with detached("--ram", "1MB", "--socket", place / "n.sock", "--group", "12345"):
        until(lambda: f"{place} is closed to them" in (place / "n.sock.log").read_text())


@as_root
def test_the_log_names_processes_and_users_and_refusals_even_if_quiet(place):
    path = place / "node.sock"
    for more in ((), ("--quiet",)):
        log = place / f"log{len(more)}"
        with detached("--ram", "1MB", "--socket", path, "--log", log, *more):
            path.chmod(0o666)  # as if modes were not enough
            code, said = as_user(NOBODY, "stats", "--socket", path)
            assert code == 2
            assert "refuses: this node is not for this user" in said
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as garbage:
                garbage.connect(str(path))
                garbage.send(b"garbage\n2026 a forged line")
                garbage.recv(1000)
            Connection(path, "a name\nwith a forged line").close()
            until(lambda: log.read_text().count("has gone") == (1 if more else 2))  # noqa: B023 - at once
        lines = log.read_text()
        assert re.search(rf"WARNING client 1 \(process \d+, user {NOBODY}\) is refused: this node is not", lines)
        assert re.search(rf"WARNING client 2 \(.*process {os.getpid()}, user 0\) has gone: ", lines)
        assert (f"INFO client 3: process {os.getpid()}, user 0" in lines) is (not more)
        assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:", line) for line in lines.splitlines())


# Starting in the background -----------------------------------------------------------------------------------


def test_detached_it_is_ready_when_the_command_returns_and_holds_nothing_of_it(place):
    path = place / "s" / "node.sock"
    reader, writer = os.pipe()
    try:
        with detached("--ram", "1MB", "--socket", path, pass_fds=[writer], cwd=place) as pid:
            train(path)
            os.close(writer)
            assert os.read(reader, 1) == b""  # nobody else has it
            assert os.readlink(f"/proc/{pid}/cwd") == "/"
            assert os.getsid(pid) == pid
            assert {os.readlink(f"/proc/{pid}/fd/{each}") for each in range(3)} == {os.devnull}
            assert "ready at" in (place / "s" / "node.sock.log").read_text()
    finally:
        os.close(reader)
    assert [each.name for each in (place / "s").iterdir()] == ["node.sock.log"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ram", "1MB", "--group", "no-such-group"], "there is no group 'no-such-group'"),
        (["--ram", "1MB", "--group", "9999999999"], "there is no group '9999999999'"),
        (["--ram", "0"], "a node without either holds nothing; give --ram 8GB"),
        (["--ram", "much"], "--ram='much' is not a size"),
        (["--clients", "-1"], "--clients='-1': give a whole number from 1 on"),
        (["--ram", "1MB", "--socket", "{place}/" + "x" * 100], "too long for a socket: give a shorter --socket"),
        (["--ram", "1MB", "--socket", "/proc/augury/node.sock"], "/proc/augury cannot be used for the socket"),
        (["--ram", "1MB", "--socket", "{place}/file/node.sock"], "cannot be used for the socket (Not a directory)"),
        (["--ram", "1MB", "--log", "/proc/no/log"], "the log /proc/no/log cannot be written"),
        (["--ram", "1MB", "--disk", "{place}/others:1MB"], "others can be written to by others"),
        (["--ram", "1MB", "--disk", "{place}/file:1MB"], "file"),
        (["--ram", "1MB", "--socket", "{place}/others/node.sock"], "anyone can write to {place}/others"),
        (["--config", "{place}/none.toml"], "none.toml cannot be read"),
    ],
)
def test_what_cannot_start_says_why_and_leaves_nothing(arguments, complaint, place):
    (place / "file").write_text("")
    (place / "others").mkdir()
    (place / "others").chmod(0o777)
    given = [each.format(place=place) for each in arguments]
    where = [] if "--socket" in given else ["--socket", place / "node.sock"]
    done = augury_("serve", "--detach", *where, *given)
    assert done.returncode == 2, done.stderr
    assert complaint.format(place=place) in done.stderr.replace("\n", "")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert sorted(each.name for each in place.iterdir()) == ["file", "others"]


@as_root
def test_directories_of_another_user_are_refused(place):
    theirs = place / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    done = augury_("serve", "--ram", "1MB", "--socket", place / "n.sock", "--disk", f"{theirs}:1MB", "--detach")
    assert done.returncode == 2
    assert f"{theirs} belongs to another user" in done.stderr
    done = augury_("serve", "--ram", "1MB", "--socket", theirs / "n.sock")
    assert done.returncode == 2
    assert f"{theirs} belongs to another user" in done.stderr
    assert list(theirs.iterdir()) == []


# Stopping -----------------------------------------------------------------------------------------------------


def test_stop_returns_when_another_node_could_start(place):
    path = place / "s" / "node.sock"
    for _ in range(3):
        with detached("--ram", "1MB", "--socket", path, "--disk", f"{place / 'disk'}:1MB") as pid:
            done = augury_("stop", "--socket", path)
            assert (done.returncode, done.stdout) == (0, f"stopped: process {pid}, {path}\n")
            assert [each.name for each in (place / "s").iterdir()] == ["node.sock.log"]


def test_stop_where_there_is_no_node(place, monkeypatch, capsys):
    assert run_main(monkeypatch, "stop", "--socket", place / "node.sock") == 2
    said = capsys.readouterr().err
    assert f"there is no node at {place}/node.sock" in said
    assert "augury serve" in said


def test_stop_while_training_lets_it_go_on(place, monkeypatch, capsys):
    path = place / "node.sock"
    with (
        detached("--ram", "1MB", "--socket", path),
        augury.Loader((X, Y), 32, recipe="lru", ram=0.5, node=path, output="numpy", seed=0) as loader,
    ):
        check_batches(loader, X, Y)
        assert run_main(monkeypatch, "stop", "--socket", path) == 0
        with pytest.warns(augury.AuguryWarning):
            check_batches(loader, X, Y)


@as_root
def test_only_the_nodes_own_user_stops_it(place):
    path = place / "s" / "node.sock"
    with detached("--ram", "1MB", "--socket", path, "--group", "12345"):
        code, said = as_user(NOBODY, "stop", "--socket", path, groups=[12345])
        assert code == 2
        assert "only the node's own user may stop it" in said
        path.parent.chmod(0o755)
        code, said = as_user(NOBODY, "stop", "--socket", path)
        assert code == 2
        assert "is another user's" in said
        assert Connection(path, "test").welcome.pid


# Watching -----------------------------------------------------------------------------------------------------

WORDS = """name user recipe clients began seconds samples shares used charged requests hit_ratio substitutes joined
    misses reads bytes_from refused stall_seconds"""
JOB_KEYS = set(WORDS.split())


@contextlib.contextmanager
def busy(place, **more):
    """A node with a job that has read its only epoch."""
    with served(place, **more) as node:
        path = node.config.socket
        with augury.Loader((X, Y), 32, recipe="lru", ram=0.5, node=path, output="numpy", seed=0, epochs=1) as loader:
            check_batches(loader, X, Y)
            yield node


def test_stats_as_json_has_the_keys_that_are_promised(place, monkeypatch, capsys):
    with busy(place, disk=place / "disk", disk_bytes=1 << 20) as node:
        assert run_main(monkeypatch, "stats", "--json", "--socket", node.config.socket) == 0
    report = json.loads(capsys.readouterr().out)
    assert report.keys() == {"version", "pid", "seconds", "socket", "clients", "shelves", "jobs", "counts"}
    assert report["counts"] == dict.fromkeys(
        ["refused", "bad_messages", "poisoned", "errors", "damaged", "unwritten"], 0
    )
    assert [shelf.keys() for shelf in report["shelves"]] == [{"name", "capacity", "used", "samples", "idle"}] * 2
    (job,) = report["jobs"]
    assert job.keys() == JOB_KEYS
    assert job["requests"] == 300
    assert sum(job["bytes_from"].values()) == X.nbytes
    assert job["user"] == os.geteuid()
    assert job["recipe"] == "lru"
    assert report["pid"] == os.getpid()


def test_stats_as_tables(place, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with busy(place) as node:
        assert run_main(monkeypatch, "stats", "--socket", node.config.socket) == 0
    said = capsys.readouterr().out
    assert f"process {os.getpid()}" in said
    assert "nothing refused" in said
    assert f"-{os.getpid()}" in said
    assert "300" in said
    assert "28.8 kB" in said
    assert all(len(line) <= 80 for line in said.splitlines())


def test_stats_of_a_node_without_jobs(place, monkeypatch, capsys):
    with served(place) as node:
        assert run_main(monkeypatch, "stats", "--socket", node.config.socket) == 0
    assert "no jobs" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--once"]])
@pytest.mark.parametrize("columns", [80, 250])
def test_top_prints_one_view_where_there_is_no_terminal(columns, more, place, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    with busy(place) as node:
        assert run_main(monkeypatch, "top", "--socket", node.config.socket, *more) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "…" not in said
    for word in ("ram", "hits", "stall", "lru", "shared/s", "charged", f"-{os.getpid()}"):
        assert word in said
    assert said.count("-" + str(os.getpid())) == (1 if columns == 250 else 3)


def test_names_that_clients_choose_cannot_move_the_cursor(place, monkeypatch, capsys):
    from augury.digests import digests_of
    from augury.node.remote import Membership, RemoteCache
    from augury.recipes import RECIPES
    from augury.sources import open_source

    source = open_source((X, Y))
    with served(place) as node:
        told = Membership(os.urandom(16), "\x1b[2J\a[red]name\r\n", RECIPES["lru"], 0, 1000, 0, True)
        cache = RemoteCache(node.config.socket, digests_of(source), source.catalog.sizes, "", told)
        assert run_main(monkeypatch, "top", "--once", "--socket", node.config.socket) == 0
        cache.close()
    said = capsys.readouterr().out
    assert "?[2J?[red]name??" in said
    assert not set(said) & {"\x1b", "\a", "\r"}


def test_rates_are_those_since_the_report_before(place):
    from rich.console import Console

    console = Console(width=300)

    def numbers(now, before):
        with console.capture() as captured:
            console.print(augury.commands.top.view(now, before, console))
        line = next(line for line in captured.get().splitlines() if line.startswith("job-a"))
        return re.split(r"  +", line.strip())

    job = {"name": "job-a", "user": 0, "recipe": "lru", "clients": 2, "began": 5.0, "seconds": 10.0, "requests": 1000}
    job |= {"hit_ratio": 0.5, "bytes_from": {"ram": 10_000, "source": 10_000}, "refused": 0, "stall_seconds": 2.0}
    job |= {"shares": [1000], "used": [900], "charged": {"ram": 800}}
    before = {"version": "1", "pid": 1, "seconds": 20.0, "socket": "/s", "clients": 1, "counts": {}, "jobs": [job]}
    before |= {"shelves": [{"name": "ram", "capacity": 5000, "used": 900, "samples": 9, "idle": 0}]}
    later = job | {"seconds": 12.0, "requests": 1200, "hit_ratio": 0.5833333333333334, "stall_seconds": 3.0}
    later |= {"bytes_from": {"ram": 14_000, "source": 10_000, "shared": 200}}
    now = before | {"jobs": [later]}
    fares = ["100", "58.3 %", "100.0 %", "50.0 %", "0"]
    assert numbers(now, before)[2:7] == fares
    assert numbers(now, before)[9:] == ["2 kB", "0 B", "100 B", "0 B", "1 kB", "900 B", "800 B"]
    assert numbers(before, None)[2:7] == ["100", "50.0 %", "50.0 %", "20.0 %", "0"]
    assert numbers(now, now)[2:7] == ["0", "58.3 %", "-", "0.0 %", "0"]
    another = before | {"jobs": [job | {"began": 6.0}]}
    assert numbers(now, another)[2:5] == numbers(now, None)[2:5]  # of the same name, but not the same


@pytest.mark.parametrize("every", ["0", "-1", "nan", "1e9"])
def test_top_refuses_intervals_that_make_no_sense(every, place, monkeypatch, capsys):
    assert run_main(monkeypatch, "top", "--every", every) == 2
    assert "from 0.05 to 3600" in capsys.readouterr().err


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *arguments, rows=40, columns=80):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.seen = ""
        told = environment(TERM="xterm-256color")
        del told["COLUMNS"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "augury.cli", *map(str, arguments)],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=told,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LONG)
        os.close(self.master)
        os.close(self.slave)

    def until(self, text):
        """Wait until a text appears that was not there before."""
        self.seen = ""
        deadline = time.monotonic() + LONG
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen[-2000:]
            self._look()

    def type(self, keys):
        os.write(self.master, keys)

    def end(self):
        """Its exit code; the terminal must be as it was before."""
        deadline = time.monotonic() + LONG
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen[-2000:]
            self._look()
        self._look()
        assert termios.tcgetattr(self.slave) == self.before
        assert self.seen.rfind("\x1b[?1049l") > self.seen.rfind("\x1b[?1049h")  # the screen as it was
        assert self.seen.rfind("\x1b[?25h") > self.seen.rfind("\x1b[?25l")  # with its cursor
        assert "Traceback" not in self.seen
        assert "error" not in self.seen
        return self.process.returncode

    def _look(self):
        while select.select([self.master], [], [], 0.05)[0]:
            self.seen += os.read(self.master, 1 << 16).decode(errors="replace")


@pytest.mark.parametrize("way", [b"q", b"\x03", signal.SIGTERM])
def test_top_ends_by_q_or_a_signal_and_restores_the_terminal(way, place):
    with busy(place) as node, Terminal("top", "--every", "0.1", "--socket", node.config.socket) as terminal:
        for _ in range(2):
            terminal.until("lru")
        if isinstance(way, bytes):
            terminal.type(way)
        else:
            terminal.process.send_signal(way)
        assert terminal.end() == 0


def test_top_waits_for_a_node_that_goes_and_sees_the_next(place):
    config = Config(place / "node" / "node.sock", ram=1 << 20)
    with served(place) as node:
        terminal = Terminal("top", "--every", "0.1", "--socket", config.socket)
        with contextlib.suppress(BaseException):
            terminal.until("no jobs")
        node.halt()
    with terminal:
        terminal.until("waiting for it to come back")
        again = Node(config)
        thread = threading.Thread(target=again.serve, name="augury-node-again")
        thread.start()
        try:
            terminal.until("no jobs")
            terminal.type(b"q")
            assert terminal.end() == 0
        finally:
            again.halt()
            thread.join()


def test_top_in_a_terminal_that_is_much_too_small(place):
    with busy(place) as node:
        arguments = ("top", "--every", "0.1", "--socket", node.config.socket)
        with Terminal(*arguments, rows=4, columns=20) as terminal:
            terminal.until("node")
            terminal.type(b"xyq")
            assert terminal.end() == 0


def test_top_where_there_is_no_node(place, monkeypatch, capsys):
    assert run_main(monkeypatch, "top", "--socket", place / "node.sock") == 2
    assert "augury serve" in capsys.readouterr().err


# Help ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["serve", "stop", "stats", "top"])
def test_help_teaches_with_examples(command, monkeypatch, capsys):
    assert run_main(monkeypatch, command, "--help") == 0
    said = capsys.readouterr().out
    assert "Examples:" in said
    assert said.count(f"augury {command}") >= 3


def test_commands_are_listed_in_order():
    assert list(COMMANDS) == sorted(COMMANDS)


def test_a_file_at_the_place_of_the_socket_is_left_alone(tmp_path):
    path = tmp_path / "precious"
    path.write_text("precious")
    done = augury_("serve", "--ram", "1MB", "--socket", str(path))
    assert done.returncode == 2
    assert "left alone" in done.stderr
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["precious"]
