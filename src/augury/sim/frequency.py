"""How often one node reads each sample, although all samples are read equally often: section 3.2.1 of the HDMLP thesis.

Every epoch a shuffle deals the samples to the nodes anew, so the number of times that a node gets a given sample in
E epochs is binomial, B(E, 1/N). What a node will read most is what it should hold. Here are the distribution, the
number of samples that it puts far above the mean (Eq. 3.8), draws from our own sampler to compare with (Figure 3.1),
and what a high or low count on one node says of the others (Lemmas 3.1 and 3.2). Pure arithmetic; what is made of it
is the policies' business.

Published for N = 4, E = 1000, F = 10000, delta = 0.1: "around 323", by Monte Carlo 329. The probability meant is that
of *more than* (1 + delta) mu = 275 accesses, which gives 322.9. The sum printed beside it begins at
ceil((1 + delta) mu), which is 275 itself where that is whole: it would give 378.2. So we count strictly more, as the
text and the figures do.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from augury.errors import ConfigError
from augury.knowledge import Knowledge
from augury.samplers.ranks import share
from augury.samplers.shuffle import Shuffle


def access_distribution(nodes: int, epochs: int) -> NDArray[np.float64]:
    """The probability that one node reads a given sample k times in so many epochs, for k from 0 to `epochs`."""
    _check(nodes=nodes, epochs=epochs)
    if nodes == 1:
        certain: NDArray[np.float64] = np.eye(1, epochs + 1, epochs)[0]
        return certain
    # By logarithms: the binomial coefficients of a thousand epochs are beyond any float.
    factorials = np.array([math.lgamma(k + 1) for k in range(epochs + 1)])
    k = np.arange(epochs + 1)
    logarithms = factorials[-1] - factorials - factorials[::-1] + (epochs - k) * math.log(nodes - 1)
    probabilities: NDArray[np.float64] = np.exp(logarithms - epochs * math.log(nodes))
    return probabilities


def frequent_from(nodes: int, epochs: int, delta: float | Fraction) -> int:
    """The least whole number above (1 + delta) mu: so many accesses are "more than" it."""
    _check(nodes=nodes, epochs=epochs)
    return math.floor((1 + _exact(delta)) * Fraction(epochs, nodes)) + 1


def expected_frequent(nodes: int, epochs: int, samples: int, delta: float | Fraction) -> float:
    """Eq. 3.8: how many of the samples one node is expected to read more than (1 + delta) mu times."""
    first = max(0, frequent_from(nodes, epochs, delta))
    return samples * math.fsum(access_distribution(nodes, epochs)[first:])


def access_counts(nodes: int, epochs: int, samples: int, seed: int = 0) -> NDArray[np.int32]:
    """How often each node (row) visits each sample (column), drawn with the sampler of a live run (Figure 3.1)."""
    _check(nodes=nodes, epochs=epochs)
    if samples < nodes:
        raise ConfigError(f"{samples} samples cannot be dealt to {nodes} nodes without repeating some")
    sampler, known = Shuffle(samples, seed), Knowledge.none(samples)
    counts = np.zeros((nodes, samples), np.int32)
    # One batch as long as a node's whole share: the epoch is then cut evenly, whether or not it can be divided.
    batch = -(-samples // nodes)
    for epoch in range(epochs):
        order = sampler.draw(epoch, known)
        for node in range(nodes):
            counts[node, share(order, batch, node, nodes)] += 1
    return counts


def some_other_at_most(nodes: int, epochs: int, delta: float | Fraction) -> int:
    """Lemma 3.1: where a node reads a sample ceil((1 + delta) mu) times, some other reads it at most so often."""
    _check_lemma(nodes, epochs, delta, highest=nodes - 1)
    return math.ceil((nodes - 1 - _exact(delta)) / (nodes - 1) * Fraction(epochs, nodes))


def some_other_at_least(nodes: int, epochs: int, delta: float | Fraction) -> int:
    """Lemma 3.2: where a node reads a sample floor((1 - delta) mu) times, some other reads it at least so often."""
    _check_lemma(nodes, epochs, delta, highest=1)
    return math.floor((nodes - 1 + _exact(delta)) / (nodes - 1) * Fraction(epochs, nodes))


def _exact(delta: float | Fraction) -> Fraction:
    """The decimal that was written: in floats, 1.15 * 100 / 5 is less than 23, and 23 would be more than that."""
    return delta if isinstance(delta, Fraction) else Fraction(repr(float(delta)))


def _check(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ConfigError(f"{name}={number}: give a whole number from 1 on")


def _check_lemma(nodes: int, epochs: int, delta: float | Fraction, highest: int) -> None:
    _check(epochs=epochs)
    if nodes < 2:
        raise ConfigError("one node has no others: give nodes from 2 on")
    if not 0 <= delta <= highest:
        raise ConfigError(f"delta={delta}: no count of accesses is so far from the mean; it lies in [0, {highest}]")
