"""Where a node's settings come from, which place wins, and what is said of those that cannot work."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

import augury
from augury.errors import AuguryWarning, ConfigError, UnknownName
from augury.node.config import default_socket, load, place_of, socket_of
from helpers import arrays, check_batches

EVERYWHERE = {
    "socket": ("/a/arg.sock", "/e/env.sock", "/f/file.sock"),
    "ram": ("1MB", "2MB", "3MB"),
    "disk": ("/a:10MB", "/e:20MB", "/f:30MB"),
    "group": ("1", "2", "3"),
    "client_bytes": ("4MB", "5MB", "6MB"),
    "clients": ("7", "8", "9"),
}
SEEN = {
    "socket": [Path("/a/arg.sock"), Path("/e/env.sock"), Path("/f/file.sock")],
    "ram": [1_000_000, 2_000_000, 3_000_000],
    "disk": [Path("/a"), Path("/e"), Path("/f")],
    "group": ["1", "2", "3"],
    "client_bytes": [4_000_000, 5_000_000, 6_000_000],
    "clients": [7, 8, 9],
}


def variable(name):
    return "AUGURY_NODE" if name == "socket" else f"AUGURY_NODE_{name.upper()}"


def write(tmp_path, text):
    file = tmp_path / "node.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", EVERYWHERE)
def test_an_argument_wins_over_the_environment_over_the_file(name, tmp_path):
    argument, environment, toml = EVERYWHERE[name]
    file = write(tmp_path, f'{name} = "{toml}"\n')
    places = {"arguments": {name: argument}, "environment": {variable(name): environment}, "file": file}
    found = []
    for gone in ((), ("arguments",), ("arguments", "environment")):
        left = {"arguments": {}, "environment": {}, "file": None} | {
            place: value for place, value in places.items() if place not in gone
        }
        found.append(getattr(load(**left), name))
    assert found == SEEN[name]


def test_each_setting_is_looked_for_by_itself(tmp_path):
    file = write(tmp_path, 'ram = "3MB"\nclients = 9\ngroup = 5\n')
    config = load({"ram": None, "clients": None}, file, {"AUGURY_NODE_CLIENTS": "8"})
    assert (config.ram, config.clients, config.group) == (3_000_000, 8, "5")


def test_without_a_word_a_node_takes_a_quarter_of_memory_and_lets_nobody_else_in():
    config = load({}, None, {"XDG_RUNTIME_DIR": "/run/user/7"})
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert config.ram == whole // 4
    assert config.socket == Path("/run/user/7/augury/node.sock")
    assert config.group is None
    assert config.disk is None


def test_the_usual_place_is_the_users_own():
    assert default_socket({}) == Path(f"/tmp/augury-{os.geteuid()}/node.sock")


@pytest.mark.parametrize("said", ["auto", "off"])
def test_what_the_environment_says_to_clients_is_no_path_for_a_node(said):
    assert load({}, None, {"AUGURY_NODE": said}).socket == default_socket({})


def test_paths_may_begin_with_the_home_directory():
    config = load({"socket": "~/n.sock", "disk": "~/cache:1GB", "ram": "1GB"}, None, {})
    assert config.socket == Path.home() / "n.sock"
    assert config.disk == Path.home() / "cache"


def test_an_unknown_key_is_named_with_the_nearest_known_one(tmp_path):
    with pytest.raises(UnknownName, match=r"'client_byte'.*did you mean 'client_bytes'"):
        load({}, write(tmp_path, 'client_byte = "1GB"\n'), {})


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("ram = 'lots'", "ram='lots' is not a size.*10GB"),
        ("ram = 0.5", "ram=0.5: write a size with its unit"),
        ("ram = true", "ram=True: write a size"),
        ("ram = -1", "ram=-1: a size cannot be negative"),
        ("ram = 0", "give --ram 8GB"),
        ("disk = '/nvme'", "disk='/nvme': write a directory and a limit, like"),
        ("disk = 5", "disk=5: write a directory and a limit"),
        ("disk = '/nvme:much'", "disk='much' is not a size"),
        ("disk = '/nvme:0'", "too small to be of use"),
        ("socket = 5", "socket=5: write the path of a socket"),
        ("socket = ''", "socket='': write the path of a socket"),
        ("group = 1.5", "group=1.5: write the name or the number of a group"),
        ("clients = 0", "clients=0: give a whole number from 1 on"),
        ("clients = 2.7", "clients=2.7: give a whole number"),
        ("clients = true", "clients=True: give a whole number"),
        ("client_bytes = 10", "client_bytes=10: too small"),
    ],
)
def test_what_cannot_work_is_named_with_what_to_write(line, complaint, tmp_path):
    file = write(tmp_path, line + "\n")
    with pytest.raises(ConfigError, match=complaint) as caught:
        load({}, file, {})
    assert str(file) in str(caught.value) or "--ram" in str(caught.value)


def test_a_complaint_names_the_place_where_it_was_said():
    with pytest.raises(ConfigError, match=r"^AUGURY_NODE_RAM='x'"):
        load({}, None, {"AUGURY_NODE_RAM": "x"})
    with pytest.raises(ConfigError, match=r"^--client-bytes='x'"):
        load({"client_bytes": "x"}, None, {})
    with pytest.raises(ConfigError, match=r"^--ram='0\.5': write a size with its unit"):
        load({"ram": "0.5"}, None, {})


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load({}, tmp_path / "none.toml", {})
    with pytest.raises(ConfigError, match="is not TOML"):
        load({}, write(tmp_path, "ram 5"), {})


# What node= and AUGURY_NODE mean to clients -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "said", "meant"),
    [
        (None, None, None),
        (None, "", None),
        (None, "off", None),
        ("off", "/e/n.sock", None),
        (None, "/e/n.sock", (Path("/e/n.sock"), False)),
        ("/a/n.sock", "/e/n.sock", (Path("/a/n.sock"), True)),
        ("auto", "/e/n.sock", (Path("/e/n.sock"), False)),
        (None, "auto", (Path("/run/user/7/augury/node.sock"), False)),
        ("auto", None, (Path("/run/user/7/augury/node.sock"), False)),
        ("auto", "off", (Path("/run/user/7/augury/node.sock"), False)),
    ],
)
def test_which_socket_is_meant_and_whether_it_must_be_there(node, said, meant, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.delenv("AUGURY_NODE", raising=False)
    if said is not None:
        monkeypatch.setenv("AUGURY_NODE", said)
    assert socket_of(node) == meant


def test_commands_look_where_they_are_told_then_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.setenv("AUGURY_NODE", "/e/n.sock")
    assert place_of(Path("/a/n.sock")) == Path("/a/n.sock")
    assert place_of(None) == Path("/e/n.sock")
    monkeypatch.setenv("AUGURY_NODE", "auto")
    assert place_of(None) == Path("/run/user/7/augury/node.sock")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a directory of another user")
def test_a_usual_place_that_somebody_else_has_made_is_no_node(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("AUGURY_NODE", raising=False)
    (tmp_path / "augury").mkdir()
    assert socket_of("auto") is not None
    os.chown(tmp_path / "augury", 65534, 65534)
    assert socket_of("auto") is None


@pytest.mark.parametrize("said", [None, "off", "auto"])
def test_a_loader_without_a_node_uses_a_cache_of_its_own_and_says_nothing(said, tmp_path, monkeypatch):
    x, y = arrays()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("AUGURY_NODE", raising=False)
    if said is not None:
        monkeypatch.setenv("AUGURY_NODE", said)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with augury.Loader((x, y), 16, recipe="lru", ram=0.5, output="numpy", seed=0) as loader:
            check_batches(loader, x, y)


def test_a_node_that_was_named_must_be_there(tmp_path, monkeypatch):
    path = tmp_path / "node.sock"
    monkeypatch.delenv("AUGURY_NODE", raising=False)
    with pytest.raises(ConfigError, match=f"augury serve --socket {path}"):
        augury.Loader(arrays(), 16, recipe="lru", ram=0.5, seed=0, node=str(path))


def test_one_that_the_environment_names_is_missed_and_done_without(tmp_path, monkeypatch):
    x, y = arrays()
    path = tmp_path / "node.sock"
    monkeypatch.setenv("AUGURY_NODE", str(path))
    with (
        pytest.warns(AuguryWarning, match=f"augury serve --socket {path}"),
        augury.Loader((x, y), 16, recipe="lru", ram=0.5, seed=0, output="numpy") as loader,
    ):
        check_batches(loader, x, y)
