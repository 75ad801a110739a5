"""What is simulated: an environment, a dataset and a training run, as TOML in the letters of the HDMLP thesis.

A scenario is parsed and checked here, and single parameters of it can be overridden ("d.1=20480"). The four
scenarios of the thesis are shipped beside this file. Nothing here simulates.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError, UnknownName
from augury.samplers.shuffle import epoch_rng
from augury.sim.model import Environment, StorageClass, Throughput

Distribution = Literal["uniform", "whole", "imbalanced"]
"""How a batch is divided among the nodes (section 4.1.3)."""

SHIPPED = ("1", "2", "3", "4")
_SIZES_STREAM = 1
"""Sizes are drawn from another stream than the orders, so that one does not follow from the other."""

_NUMBERS = {
    "N": "nodes",
    "c": "compute throughput of a node",
    "beta": "preprocessing rate of a thread",
    "b_c": "network between two nodes",
    "b_fs": "network between a node and the source",
    "E": "epochs",
    "B": "samples per batch, over all nodes",
}
_TABLES = {"sizes", "t", "p", "d", "r", "w"}
_OTHERS = {"name", "distribution", "drop_last"}
_MAY_BE_ZERO = {"b_c"}


@dataclass(frozen=True)
class Scenario:
    """One environment, dataset and training run."""

    name: str
    environment: Environment
    sizes: NDArray[np.float64]
    """s_k, in MB."""
    epochs: int
    batch: int
    """Samples per batch, over all nodes."""
    distribution: Distribution = "uniform"
    drop_last: bool = True

    @property
    def batches(self) -> int:
        """Batches per epoch."""
        whole, rest = divmod(len(self.sizes), self.batch)
        return whole + (rest > 0 and not self.drop_last)


def read(where: str | Path) -> dict[str, Any]:
    """The parameters in a TOML file, or of a scenario of the thesis by its number."""
    try:
        if str(where) in SHIPPED:
            text = resources.files("augury.sim").joinpath(f"scenarios/{where}.toml").read_text("utf-8")
        else:
            text = Path(where).read_text("utf-8")
        return tomllib.loads(text)
    except OSError as error:
        known = ", ".join(SHIPPED)
        raise ConfigError(f"the scenario {where} cannot be read: {error.strerror} (shipped ones: {known})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the scenario {where} is not TOML: {error}") from None


def override(parameters: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """The parameters with one of them changed: "d.1=20480", "sizes.mu=2", "drop_last=false"."""
    path, equals, text = setting.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"{setting!r} does not set a parameter: write one like d.1=20480")
    changed = copy.deepcopy(dict(parameters))
    table = changed
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{setting!r}: {key} is a value, not a table")
    try:
        table[keys[-1]] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        table[keys[-1]] = text.strip()
    return changed


def build(
    parameters: Mapping[str, Any], seed: int = 0, paper: bool = False, sizes: NDArray[np.float64] | None = None
) -> Scenario:
    """A scenario of checked parameters. `sizes` (MB) are those of a real dataset, in place of drawn ones."""
    if not 0 <= seed < 2**64:
        raise ConfigError(f"the seed {seed} must not be negative, nor take more than 64 bits")
    unknown = set(parameters) - set(_NUMBERS) - _TABLES - _OTHERS
    if unknown:
        raise UnknownName("parameter of a scenario", sorted(unknown)[0], [*_NUMBERS, *_TABLES, *_OTHERS])
    numbers = {letter: _number(parameters, letter, meaning) for letter, meaning in _NUMBERS.items()}
    distribution = parameters.get("distribution", "uniform")
    if distribution not in get_args(Distribution):
        raise ConfigError(f"distribution = {distribution!r}: choose {', '.join(get_args(Distribution))}")
    drop_last = parameters.get("drop_last", True)
    if not isinstance(drop_last, bool):
        raise ConfigError(f"drop_last = {drop_last!r}: write true or false")
    environment = Environment(
        nodes=_whole(numbers, "N"),
        compute=numbers["c"],
        preprocess=numbers["beta"],
        network=numbers["b_c"],
        source_network=numbers["b_fs"],
        source=_throughput(parameters.get("t"), "t"),
        classes=tuple(_classes(parameters)),
        paper=paper,
    )
    drawn = _drawn_sizes(parameters.get("sizes"), seed) if sizes is None else sizes
    scenario = Scenario(
        str(parameters.get("name", "unnamed")),
        environment,
        drawn,
        _whole(numbers, "E"),
        _whole(numbers, "B"),
        distribution,
        drop_last,
    )
    if scenario.batches == 0:
        raise ConfigError(
            f"an epoch has no batch: {len(drawn)} samples in batches of {scenario.batch}, the last dropped; lower B"
        )
    return scenario


def _number(parameters: Mapping[str, Any], letter: str, meaning: str) -> float:
    value = parameters.get(letter)
    if value is None:
        raise ConfigError(f"the scenario lacks {letter} ({meaning})")
    if not _is_number(value):
        raise ConfigError(f"{letter} = {value!r} ({meaning}) is not a number")
    if value < 0 or (value == 0 and letter not in _MAY_BE_ZERO):
        raise ConfigError(f"{letter} = {value} ({meaning}) must be positive")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < np.inf


def _whole(numbers: Mapping[str, float], letter: str) -> int:
    if numbers[letter] != int(numbers[letter]):
        raise ConfigError(f"{letter} = {numbers[letter]} ({_NUMBERS[letter]}) must be a whole number")
    return int(numbers[letter])


def _throughput(measured: Any, name: str) -> Throughput:
    if not isinstance(measured, dict) or not measured:
        raise ConfigError(f"the scenario needs a table [{name}] of MB/s by how many read at once, such as 1 = 66")
    for count, value in measured.items():
        if not str(count).isdecimal() or int(count) < 1 or not _is_number(value) or value <= 0:
            raise ConfigError(f"[{name}] takes lines like 2 = 86 (how many at once, MB/s), not {count} = {value!r}")
    return Throughput({int(count): float(value) for count, value in measured.items()})


def _classes(parameters: Mapping[str, Any]) -> Iterator[StorageClass]:
    capacities = table(parameters, "d")
    if "0" not in capacities:
        raise ConfigError("[d] needs at least d.0, the capacity of the staging buffer")
    if set(capacities) != {str(at) for at in range(len(capacities))}:
        raise ConfigError(f"[d] numbers the storage classes 0, 1, 2, ..., not {', '.join(sorted(capacities))}")
    threads, reads, writes = (table(parameters, name) for name in ("p", "r", "w"))
    for name, given in (("p", threads), ("r", reads), ("w", writes)):
        for at in given.keys() - capacities.keys():
            raise ConfigError(f"{name}.{at} belongs to no storage class: there is no d.{at}")
    for at in map(str, range(len(capacities))):
        count = threads.get(at, 1)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(f"p.{at} = {count!r}: a storage class is filled by at least one thread")
        capacity = capacities[at]
        if not _is_number(capacity) or capacity < 0:
            raise ConfigError(f"d.{at} = {capacity!r} is not a capacity in MB")
        write = _throughput(writes[at], f"w.{at}") if at in writes else None
        yield StorageClass(float(capacity), count, _throughput(reads.get(at), f"r.{at}"), write)


def table(parameters: Mapping[str, Any], name: str) -> dict[str, Any]:
    """p, d, r or w: what it says of each storage class."""
    found = parameters.get(name, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{name} is a table with one entry per storage class, not {found!r}")
    return found


def _drawn_sizes(parameters: Any, seed: int) -> NDArray[np.float64]:
    """Normally distributed, those at or below zero drawn again."""
    if not isinstance(parameters, dict) or set(parameters) != {"F", "mu", "sigma"}:
        raise ConfigError("[sizes] needs F (how many samples), mu and sigma (of their sizes in MB)")
    count, mu, sigma = (_size_parameter(parameters, name) for name in ("F", "mu", "sigma"))
    if count != int(count) or count < 1 or mu <= 0 or sigma < 0:
        raise ConfigError(
            f"[sizes]: {count:g} samples of {mu:g} +- {sigma:g} MB make no sense: "
            "F is a whole number from 1 on, mu positive, sigma not negative"
        )
    rng = epoch_rng(seed, 0, _SIZES_STREAM)
    sizes = rng.normal(mu, sigma, int(count))
    while (bad := sizes <= 0).any():
        sizes[bad] = rng.normal(mu, sigma, int(np.count_nonzero(bad)))
    return sizes


def _size_parameter(parameters: Mapping[str, Any], name: str) -> float:
    value = parameters[name]
    if not _is_number(value):
        raise ConfigError(f"sizes.{name} = {value!r} is not a number")
    return float(value)


def divide(batch: int, nodes: int, distribution: Distribution) -> list[slice]:
    """Which part of a batch each node gets (section 4.1.3).

    Uniform: equal parts, the rest to the last node. Whole: all of it. Imbalanced: one half of the nodes gets four
    times as much as the other. (The thesis says twice and half of an equal part, which together is more than all.)
    """
    if distribution == "whole":
        return [slice(0, batch)] * nodes
    if distribution == "uniform":
        ends = [batch // nodes * (node + 1) for node in range(nodes)]
    else:
        weights = np.where(np.arange(nodes) < nodes // 2, 4.0, 1.0)
        ends = np.rint(np.cumsum(weights) / weights.sum() * batch).astype(int).tolist()
    ends[-1] = batch
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
