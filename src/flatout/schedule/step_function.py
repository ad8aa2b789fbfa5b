"""Sums over intervals of time as step functions: how many GPUs were held, how many jobs waited, at any time.

In: arrays of starts, ends and weights. Out: a `StepFunction`, its value at any time and its integral up to any time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class StepFunction(NamedTuple):
    """`values[i]` holds from `times[i]` to `times[i + 1]`; times may repeat. Before the first time the value is 0."""

    times: Floats
    values: Floats

    def at(self, times: Floats) -> Floats:
        """Return the values at these times."""
        index = np.searchsorted(self.times, times, "right") - 1
        values = self.values[np.maximum(0, index)]
        return np.where(times < self.times[0], 0.0, values)

    def integral(self, times: Floats) -> Floats:
        """Return the integral from the first time of the function to each of these times."""
        areas = self.values[:-1] * np.diff(self.times)
        at_own_times = np.concatenate([[0.0], np.cumsum(areas)])
        return np.asarray(np.interp(times, self.times, at_own_times))


def sum_over_intervals(start: Floats, end: Floats, weight: Floats) -> StepFunction:
    """Return the sum of the weights of the intervals that contain each time."""
    times = np.concatenate([start, end])
    change = np.concatenate([weight, -weight])
    order = np.argsort(times, kind="stable")
    return StepFunction(times[order], np.cumsum(change[order]))
