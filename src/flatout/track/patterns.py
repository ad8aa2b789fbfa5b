"""Patterns of a series that are not a change of its level: two states that alternate, and a drift.

In: a series on a scale on which levels differ by addition. Out: its states, its slope, and a criterion by which
explanations of one series are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from flatout.track.split_tests import CLIP, Flags, Values, robust_sd

LEAST_STATE_SHARE = 0.1  # of the results: a rarer state is made of outliers
STATES_APART = 4.0  # robust standard deviations within a state
LEAST_SWITCHES = 3  # a step and the way back are two
PARAMETERS_OF_A_SLOPE = 2  # the slope, and that it was chosen
PARAMETERS_OF_A_CHANGE = 3  # its level, its place, and that the place was chosen among many


class StateLevels(msgspec.Struct, frozen=True, kw_only=True):
    """The levels of two states, on the scale of the series."""

    low: float
    high: float
    high_share: float  # of the results
    num_switches: int

    def of_each(self, series: Values) -> Values:
        """Return the level of the state that each value belongs to."""
        return np.where(self.is_high(series), self.high, self.low)

    def is_high(self, series: Values) -> Flags:
        """Return which values belong to the higher state."""
        middle = (self.low + self.high) / 2
        return series > middle


def two_states(series: Values, floor_sd: float) -> StateLevels | None:
    """Return the two levels that a series alternates between, or None.

    The values form two groups apart from each other, and the series changes between them at least three times. Single
    values in the other group are taken for outliers there.
    """
    least = max(2, math.ceil(LEAST_STATE_SHARE * len(series)))
    if len(series) < 2 * least + 1:
        return None
    ordered = np.sort(series)
    gaps = np.diff(ordered)[least - 1 : len(series) - least]
    cut = least + int(np.argmax(gaps))
    lower, upper = ordered[:cut], ordered[cut:]
    low, high = float(np.median(lower)), float(np.median(upper))
    within = max(robust_sd(lower), robust_sd(upper), floor_sd)
    is_high = series > (low + high) / 2
    num_rarer = min(int(is_high.sum()), int((~is_high).sum()))
    num_switches = _num_switches(is_high)
    if high - low < STATES_APART * within or num_rarer < least or num_switches < LEAST_SWITCHES:
        return None
    return StateLevels(low=low, high=high, high_share=float(is_high.mean()), num_switches=num_switches)


def _num_switches(is_high: Flags) -> int:
    """Return how often the state changes, without single results in the other state."""
    neighbours = is_high[:-2].astype(int) + is_high[1:-1] + is_high[2:]
    usual = neighbours >= 2
    return int(np.sum(usual[1:] != usual[:-1]))


def slope(series: Values, changes: Sequence[int]) -> float:
    """Return the slope per result within the segments: a mean of their slopes, by their precision.

    The slope of a segment is the median over pairs that are half of it apart. All pairs (Theil and Sen) would take a
    time that grows with the square of the length.
    """
    edges = [0, *changes, len(series)]
    total = weights = 0.0
    for start, end in pairwise(edges):
        part = series[start:end]
        distance = len(part) // 2
        weight = float(len(part)) ** 3
        total += weight * float(np.median(part[distance:] - part[:-distance])) / distance
        weights += weight
    return total / weights


def residuals(series: Values, changes: Sequence[int]) -> Values:
    """Return the series without its levels."""
    edges = [0, *changes, len(series)]
    return np.concatenate([series[start:end] - np.median(series[start:end]) for start, end in pairwise(edges)])


def criterion(series: Values, changes: Sequence[int], num_slopes: int, floor_sd: float) -> float:
    """Return Schwarz's criterion for noise with long tails: the smaller, the better is the explanation."""
    rests = residuals(series, changes)
    spread = max(robust_sd(rests), floor_sd)
    mean_distance = float(np.mean(np.minimum(np.abs(rests), CLIP * spread)))
    num_parameters = PARAMETERS_OF_A_CHANGE * len(changes) + PARAMETERS_OF_A_SLOPE * num_slopes
    return 2 * len(series) * math.log(max(mean_distance, floor_sd)) + num_parameters * math.log(len(series))
