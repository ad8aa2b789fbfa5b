"""Student's t, central and noncentral: the scipy functions that verdicts need, imported at the first call."""

from __future__ import annotations

import math
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


def noncentral_t_tail(value: float, degrees_of_freedom: int, shift: float) -> float:
    """Return the probability that t exceeds the value if the true effect is `shift` standard errors."""
    from scipy.special import nctdtr

    below = float(nctdtr(degrees_of_freedom, shift, value))
    # Far from the centre, the series returns NaN; the probability is then 0 or 1 to all digits.
    return float(shift > value) if math.isnan(below) else 1 - below


def normal_tail(value: float) -> float:
    """Return the probability that a standard normal variable exceeds the value."""
    return 0.5 * math.erfc(value / math.sqrt(2))
