"""Estimate the mean of the log ratios of pairs with an interval: the paired t, corrected for the order of each pair.

A drift of the machine makes the second trial of each pair slower (or faster) by some d. With the order alternating, a
pair's log ratio is `effect + d * s + noise`, s = +1 for BA and -1 for AB: a straight line fitted by least squares,
whose intercept is the effect. For n balanced pairs it is the mean, and the noise is the residual, with n - 2 degrees of
freedom. If all pairs ran in one order, d and the effect cannot be separated, and this is the ordinary paired t (n - 1).
The same estimate is used for four balanced pairs: the spread then includes d, which makes the interval too wide and
never too narrow, and a third degree of freedom is worth more (at 0.6 %, Student's quantile is 7.5 instead of 12.9).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.verdict.student import t_quantile

Floats = NDArray[np.float64]

FEWEST_FOR_DRIFT = 5  # smallest number of balanced pairs for which a drift is fitted


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean of log ratios (the baseline's cost over the candidate's) and its uncertainty."""

    mean: float
    sd: float  # standard deviation of a single pair
    weight: float  # the standard error is sd / sqrt(weight): the number of pairs, if the orders are balanced
    degrees_of_freedom: int

    @property
    def standard_error(self) -> float:
        return float(self.sd / self.weight**0.5)

    def half_width(self, level: float) -> float:
        """Return half the length of the interval that misses the true mean with probability `level` (two-sided)."""
        return t_quantile(level / 2, self.degrees_of_freedom) * self.standard_error

    def with_other_sd(self, sd: float, degrees_of_freedom: int) -> Estimate:
        """Return the estimate with the spread of other runs that have the same noise.

        The result has the larger of the two spreads, with the degrees of freedom of both. That is conservative: the
        larger spread is at least the pooled spread, which has the same degrees of freedom.
        """
        return msgspec.structs.replace(
            self, sd=max(self.sd, sd), degrees_of_freedom=self.degrees_of_freedom + degrees_of_freedom
        )


def estimate(log_ratios: Sequence[float], orders: Sequence[str]) -> Estimate:
    """Estimate from at least 3 pairs; `orders` has `AB` or `BA` for each."""
    mean, sd, weight, freedom = fit(np.asarray(log_ratios, dtype=np.float64)[:, None], orders)
    return Estimate(mean=float(mean[0]), sd=float(sd[0]), weight=weight, degrees_of_freedom=freedom)


def fit(y: Floats, orders: Sequence[str]) -> tuple[Floats, Floats, float, int]:
    """Return means, sds, weight and degrees of freedom of many comparisons; `y` has the shape (pairs, many)."""
    s = np.array([1.0 if order == "BA" else -1.0 for order in orders])[:, None]
    assert len(y) == len(s) >= 3
    balance = float(s.mean())
    if abs(balance) == 1 or (balance == 0 and len(y) < FEWEST_FOR_DRIFT):
        mean, parameters = y.mean(axis=0), 1
        residuals = y - mean
    else:
        centred = s - balance
        slope = (centred * y).sum(axis=0) / (centred**2).sum()
        mean, parameters = y.mean(axis=0) - slope * balance, 2
        residuals = y - mean - slope * s
    freedom = len(y) - parameters
    # Variance of the intercept over that of one pair: 1 / n + m^2 / sum((s - m)^2), with sum = n (1 - m^2).
    weight = len(y) * (1 - balance**2) if parameters == 2 else float(len(y))
    return mean, ((residuals**2).sum(axis=0) / freedom) ** 0.5, weight, freedom
