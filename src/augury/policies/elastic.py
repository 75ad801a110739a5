"""How much of the cache is for important samples and how much for stand-ins, as training goes on.

Wang et al., "SpiderCache: Semantic-Aware Caching Strategy for DNN Training", ICPP 2025, section 4.3: an importance
monitor (Eq. 5), an accuracy monitor (Eqs. 6 and 7) and the controller of the ratio (Eq. 8). Numbers in, a number out;
what is held in each part is spider.py's business.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

START, END = 0.9, 0.8
"""r_start and r_end."""
WINDOW = 5
"""m of Eq. 6, and the window of both monitors."""
DEGREE = 2
"""Of the polynomials that smooth."""
GAMMA = 0.01
"""Of Eq. 7, which leaves it open: an accuracy that grows by one hundredth of itself per report is half of rapid."""


def importance_ratio(
    done: float, spreads: Sequence[float], accuracies: Sequence[float], start: float = START, end: float = END
) -> float:
    """The importance section's part of the cache when the part `done` of training is over.

    `spreads` are the standard deviations of all scores, epoch by epoch. Once they have begun to fall importance counts
    as converging: a single epoch's noise does not turn it back.
    """
    windows = (spreads[at : at + WINDOW] for at in range(len(spreads) - WINDOW + 1))
    return ratio(done, growth(accuracies), any(map(falls, windows)), start, end)


def ratio(done: float, penalty: float, active: bool, start: float = START, end: float = END) -> float:
    """Eq. 8, with `done` for t/T, `penalty` for u and `active` for beta."""
    return start - (start - end) * float(done) ** (1 + penalty) if active else start


def falls(spreads: Sequence[float]) -> bool:
    """Eq. 5: whether the standard deviation of the scores has a negative slope, over some epochs (least squares)."""
    values = np.asarray(spreads, np.float64)
    slope = float((np.arange(len(values)) - (len(values) - 1) / 2) @ values)
    return slope < -1e-9 * float(np.abs(values).sum())  # rounding is no slope


def growth(accuracies: Sequence[float], gamma: float = GAMMA) -> float:
    """Eqs. 6 and 7: from 0, where accuracy has stopped to grow, towards 1, where it grows fast.

    Growth is of the accuracy itself, so that shares and percentages are alike. Where too little was reported to say, it
    counts as fast: then the ratio changes slowest.
    """
    if len(accuracies) < 2:
        return 1.0
    smooth = smoothed(accuracies)
    steps = min(WINDOW, len(smooth) - 1)
    level = abs(float(smooth[-1]))
    grown = float(smooth[-1] - smooth[-1 - steps]) / steps / max(level, 1e-12)
    return max(0.0, grown) / (gamma + max(0.0, grown))


def smoothed(values: Sequence[float], window: int = WINDOW, degree: int = DEGREE) -> NDArray[np.float64]:
    """Savitzky and Golay's filter: each value is that of the polynomial nearest to those around it; at the ends, of
    the one nearest to the first or last window. Fewer values than a window stay as they are."""
    series = np.asarray(values, np.float64)
    if len(series) < window:
        return series
    places = np.arange(window) - window // 2
    powers = np.vander(places, degree + 1, increasing=True)
    fit = powers @ np.linalg.pinv(powers)  # row i: the weights of a window for the polynomial's value at its place i
    windows = np.lib.stride_tricks.sliding_window_view(series, window)
    half = window // 2
    return np.concatenate([windows[0] @ fit[:half].T, windows @ fit[half], windows[-1] @ fit[half + 1 :].T])
