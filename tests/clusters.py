"""Small clusters that tests share, in numbers that can be reckoned by hand. No test lives here."""

from __future__ import annotations

import numpy as np

from augury.sim.model import Environment, StorageClass, Throughput
from augury.sim.scenario import Scenario


def environment(nodes=1, threads=1, capacities=(100.0, 0.0, 0.0), rates=(1000.0, 100.0, 10.0), **changed):
    """Every thread gets its rate from its class; the source gives 10 MB/s to all of its readers together."""
    classes = tuple(
        StorageClass(capacity, threads, Throughput({1: rate * threads}))
        for capacity, rate in zip(capacities, rates, strict=False)
    )
    known = {
        "nodes": nodes,
        "compute": 4.0,
        "preprocess": 20.0,
        "network": 50.0,
        "source_network": 1000.0,
        "source": Throughput({1: 10.0}),
        "classes": classes,
    }
    return Environment(**known | changed)


def scenario(sizes, batch, epochs=1, distribution="uniform", drop_last=True, **changed):
    return Scenario(
        "test", environment(**changed), np.asarray(sizes, np.float64), epochs, batch, distribution, drop_last
    )


PARAMETERS = {
    "N": 4,
    "c": 100,
    "beta": 200,
    "b_c": 10000,
    "b_fs": 2000,
    "E": 2,
    "B": 10,
    "sizes": {"F": 100, "mu": 1.0, "sigma": 0.2},
    "t": {"1": 66, "4": 146},
    "p": {"0": 2, "1": 2},
    "d": {"0": 10, "1": 20},
    "r": {"0": {"1": 1000}, "1": {"1": 500}},
}
"""A scenario as TOML gives it."""
