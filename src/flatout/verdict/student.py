"""Quantiles of Student's t and of the normal distribution; scipy is imported at the first call."""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist


@lru_cache(maxsize=4096)
def t_quantile(upper_tail: float, degrees_of_freedom: int) -> float:
    """Return the value that Student's t exceeds with probability `upper_tail`."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return -float(stdtrit(degrees_of_freedom, upper_tail))


def normal_quantile(upper_tail: float) -> float:
    """Return the value that a standard normal variable exceeds with probability `upper_tail`."""
    return NormalDist().inv_cdf(1 - upper_tail)
