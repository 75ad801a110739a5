"""Section 3.2.1 and Figure 3.1 of the HDMLP thesis: how often a node reads each sample: expected, published, drawn.

    python bench/hdmlp_frequency.py                        twenty draws of 10,000 samples over 1,000 epochs on 4 nodes
    python bench/hdmlp_frequency.py --plot frequency.png   also draws the distribution (Figure 3.1)

The orders are drawn by the sampler of a live run. One draw scatters by some 18 samples around what is expected, so that
a single one, such as the published, says little: ours are given with their spread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _common import arguments, limit, report, say
from augury.sim.frequency import access_counts, access_distribution, expected_frequent, frequent_from

NODES, EPOCHS, SAMPLES, DELTA = 4, 1000, 10_000, 0.1
PUBLISHED = {"expected": 323, "monte carlo": 329}


def main() -> None:
    given = arguments(__doc__, plot={"metavar": "FILE", "type": Path, "help": "draw the distribution into this file"})
    seeds = range(2 if given.quick else 20)
    drawn = []
    for seed in seeds:
        say(f"draw {seed + 1} of {len(seeds)}")
        drawn.append(access_counts(NODES, EPOCHS, SAMPLES, seed))
    frequent = np.array([(counts >= _first()).sum(axis=1) for counts in drawn])
    result = {
        "nodes": NODES,
        "epochs": EPOCHS,
        "samples": SAMPLES,
        "delta": DELTA,
        "published": PUBLISHED,
        "expected": _expected(),
        "monte carlo": _monte_carlo(frequent),
        "checks": _checks(frequent),
    }
    if given.plot:
        _draw(drawn, given.plot)
    report(result, given.json)


def _first() -> int:
    return frequent_from(NODES, EPOCHS, DELTA)


def _expected() -> dict[str, float]:
    """Eq. 3.8 as its text has it, and as the sum printed beside it has it, which begins one earlier."""
    strictly = expected_frequent(NODES, EPOCHS, SAMPLES, DELTA)
    one_earlier = SAMPLES * float(access_distribution(NODES, EPOCHS)[_first() - 1 :].sum())
    return {f"more than {_first() - 1}": round(strictly, 2), f"at least {_first() - 1}": round(one_earlier, 2)}


def _monte_carlo(frequent: NDArray[Any]) -> dict[str, Any]:
    return {
        "draws (each of so many nodes)": list(frequent.shape),
        "mean": round(float(frequent.mean()), 1),
        "standard deviation of one": round(float(frequent.std()), 1),
        "least": int(frequent.min()),
        "most": int(frequent.max()),
        "first draw": frequent[0].tolist(),
    }


def _checks(frequent: NDArray[Any]) -> dict[str, Any]:
    expected = expected_frequent(NODES, EPOCHS, SAMPLES, DELTA)
    # Nodes of one draw are not independent of each other, draws are.
    means = frequent.mean(axis=1)
    error = float(means.std(ddof=1)) / len(means) ** 0.5
    return {
        "expected, from the published 323": limit(abs(expected - PUBLISHED["expected"]), at_most=0.5),
        "mean of the draws, from the expected, in standard errors": limit(
            abs(float(means.mean()) - expected) / error, at_most=3
        ),
        "published draw, from the expected, in standard deviations of one": limit(
            abs(PUBLISHED["monte carlo"] - expected) / float(frequent.std()), at_most=3
        ),
    }


def _draw(drawn: list[NDArray[Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    counts = np.concatenate(drawn).reshape(-1)
    shown = np.arange(counts.min(), counts.max() + 1)
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    per_node = np.bincount(counts, minlength=shown[-1] + 1)[shown] / (len(drawn) * NODES)
    axes.bar(
        shown, per_node, width=1, color="tab:blue", alpha=0.5, label=f"drawn, mean of {len(drawn)} x {NODES} nodes"
    )
    axes.plot(shown, SAMPLES * access_distribution(NODES, EPOCHS)[shown], color="black", label="expected: B(E, 1/N)")
    axes.axvline(_first() - 0.5, color="tab:red", linestyle="--", label=f"more than {_first() - 1} times")
    axes.set(xlabel="accesses by one node", ylabel="samples", title=f"N = {NODES}, E = {EPOCHS}, F = {SAMPLES}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    say(f"drew {path}")


if __name__ == "__main__":
    main()
