"""Test splits of a series into two levels: Student's test on values that are clipped around their median.

In: windows of a series. Out: the split that separates two levels best, and the logarithm of its p-value. An outlier is
clipped, so it can move a mean by little; Hunter (arXiv:2301.03034) tests unclipped values.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr  # type: ignore[import-untyped]

Values = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]

CLIP = 3.0  # robust standard deviations
MAD_TO_SD = 1.4826
_SHRINK = math.sqrt(2)  # of the length of seeded intervals, from layer to layer
_SMALLEST_P = 1e-300
_MOST_CORRELATION = 0.9
POSSIBLE = 0.5  # standard errors of a correlation of neighbours: a smaller one counts as 0 in a test
SHOWN = 2.0  # and a larger one than this is shown to be above 0


def seeded_intervals(length: int, shortest: int) -> list[tuple[int, Indices]]:
    """Return layers of intervals: their length, and their starts. Their total length grows as n log n.

    Source: Kovacs, Li, Buehlmann and Munk, "Seeded binary segmentation", 2020, arXiv:2002.06633.
    """
    layers = []
    size = float(length)
    while size >= shortest:
        width = math.ceil(size)
        count = 2 * math.ceil(length / size) - 1
        starts = np.unique(np.floor(np.linspace(0, length - width, count)).astype(np.int64))
        layers.append((width, starts))
        size /= _SHRINK
    return layers


def best_splits(windows: Values, least: int, floor_sd: float) -> tuple[Values, Indices]:
    """Return for each row the smallest log p-value of its splits, and that split: the number of values before it.

    Each side has at least `least` values. `floor_sd`: noise below this is not believed.
    """
    clipped = _clipped(windows, floor_sd)
    length = windows.shape[1]
    before = np.arange(least, length - least + 1)
    sums = np.cumsum(clipped, axis=1)
    total = sums[:, -1:]
    left = sums[:, before - 1]
    gaps = left / before - (total - left) / (length - before)
    between = gaps**2 * before * (length - before) / length
    around_mean = np.sum(clipped**2, axis=1) - total[:, 0] ** 2 / length
    best = np.argmax(between, axis=1)
    largest = between[np.arange(len(windows)), best]
    freedom = length - 2
    return _log_p(largest, (around_mean - largest) / freedom, freedom, floor_sd), before[best]


def split_log_p(values: Values, split: int, floor_sd: float, *, are_independent: bool = False) -> float:
    """Return the log p-value of one split; values that depend on their predecessors count for fewer.

    With a correlation r of neighbours, n values say as much about a mean as n (1 - r) / (1 + r) independent ones, and
    the test has as many fewer degrees of freedom.
    """
    clipped = _clipped(values[None, :], floor_sd)[0]
    sides = clipped[:split], clipped[split:]
    rests = np.concatenate([side - side.mean() for side in sides])
    between = (sides[0].mean() - sides[1].mean()) ** 2 * split * (len(values) - split) / len(values)
    correlation = 0.0 if are_independent else neighbour_correlation(rests, num_levels=2)
    inflation = (1 + correlation) / (1 - correlation)
    variance = float(np.sum(rests**2)) / (len(values) - 2) * inflation
    freedom = max(len(values) / inflation - 2, 1.0)
    return float(_log_p(np.array([between]), np.array([variance]), freedom, floor_sd)[0])


def possible_splits(values: Values, least: int, floor_sd: float, drop: float) -> Indices:
    """Return the splits whose twice log likelihood is less than `drop` below that of the best split."""
    clipped = _clipped(values[None, :], floor_sd)[0]
    length = len(values)
    before = np.arange(least, length - least + 1)
    sums = np.cumsum(clipped)
    gaps = sums[before - 1] / before - (sums[-1] - sums[before - 1]) / (length - before)
    between = gaps**2 * before * (length - before) / length
    within = np.maximum(np.sum((clipped - clipped.mean()) ** 2) - between, length * floor_sd**2)
    is_possible = length * np.log(within / within.min()) <= drop
    possible: Indices = before[is_possible]
    return possible


def robust_sd(values: Values) -> float:
    """Return the standard deviation of values with outliers, from the median of their distances from the median."""
    return float(np.median(np.abs(values - np.median(values)))) * MAD_TO_SD


def _clipped(windows: Values, floor_sd: float) -> Values:
    """Return each row around its median, with values cut at `CLIP` robust standard deviations."""
    centers = np.median(windows, axis=1, keepdims=True)
    spreads = np.median(np.abs(windows - centers), axis=1, keepdims=True) * MAD_TO_SD
    reach = CLIP * np.maximum(spreads, floor_sd)
    return np.clip(windows - centers, -reach, reach)


def _log_p(between: Values, variance: Values, freedom: float, floor_sd: float) -> Values:
    """Return the log of the two-sided p-value of Student's test.

    `between` is the sum of squares between two levels, and `variance` that of the values around them.
    """
    p_value = 2 * stdtr(freedom, -np.sqrt(between / np.maximum(variance, floor_sd**2)))
    log_p: Values = np.log(np.maximum(p_value, _SMALLEST_P))
    return log_p


def neighbour_correlation(rests: Values, *, num_levels: int, least_errors: float = POSSIBLE) -> float:
    """Return the correlation of neighbours in values around their levels; 0 below `least_errors` standard errors.

    The plain estimate r is too small by about (1 + 3 r) / n for each level that was subtracted (Kendall 1954,
    Biometrika 41, "Note on bias in the estimation of autocorrelation").
    """
    power = float(np.sum(rests**2))
    if power <= 0:
        return 0.0
    plain = float(np.sum(rests[1:] * rests[:-1])) / power
    correlation = plain + num_levels * (1 + 3 * max(plain, 0.0)) / len(rests)
    is_large = correlation > least_errors / math.sqrt(len(rests))
    return min(correlation, _MOST_CORRELATION) if is_large else 0.0
