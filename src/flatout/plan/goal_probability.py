"""Estimate the probability that a candidate reaches its goal, in time and within a sum of money.

In: a candidate's step time, its share of productive time, and a price, each with its range. Out: a probability. The
step time is log-normal, with the plan's 90 % interval. The productive share and the price are triangular between the
extremes of their sources: this is assumed, because the sources give no distribution. All three are independent.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr  # type: ignore[import-untyped]

from flatout.plan.calibrate import Z_90
from flatout.plan.goal import S_PER_DAY, GoalCandidate

NUM_POINTS = 64  # equally likely values of each triangular distribution
Array = npt.NDArray[np.float64]


class PricePerHour(NamedTuple):
    """USD per GPU-hour."""

    low: float
    typical: float
    high: float


def probability(
    candidate: GoalCandidate, *, days: float | None, usd: float | None, price: PricePerHour | None
) -> float | None:
    """Return the probability of finishing within the days and the USD, as far as they are limits.

    None if there is no limit, or if the price is unknown and money is a limit.
    """
    if days is None and usd is None:
        return None
    if usd is not None and price is None:
        return None
    share = candidate.effective_share
    shares = triangular_values(share.low, share.value, share.high)
    limits_days = np.full(1, math.inf if days is None else days)
    if usd is not None and price is not None:
        prices = triangular_values(price.low, price.typical, price.high)
        with np.errstate(divide="ignore"):
            affordable_days = usd / (prices * 24.0 * candidate.num_gpus)
        limits_days = np.minimum(limits_days, affordable_days)
    longest_step_s = np.outer(shares, limits_days) * S_PER_DAY / candidate.num_steps
    low_s, high_s = candidate.planned.step_time_interval_s
    deviation = math.log(high_s / low_s) / (2.0 * Z_90)
    logs = np.log(longest_step_s / candidate.planned.step_time_s)
    if deviation <= 0.0:
        return float(np.mean(logs >= 0.0))
    return float(np.mean(ndtr(logs / deviation)))


def triangular_values(low: float, mode: float, high: float) -> Array:
    """Return equally likely values of a triangular distribution: the quantiles at the middles of equal shares."""
    if high <= low:
        return np.full(1, float(mode))
    quantiles = (np.arange(NUM_POINTS) + 0.5) / NUM_POINTS
    at_mode = (mode - low) / (high - low)
    below = low + np.sqrt(quantiles * (high - low) * (mode - low))
    above = high - np.sqrt((1.0 - quantiles) * (high - low) * (high - mode))
    return np.asarray(np.where(quantiles < at_mode, below, above))
