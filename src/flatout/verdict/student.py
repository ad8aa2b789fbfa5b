"""Student's t, central and noncentral: the scipy functions that verdicts need, imported at the first call."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=4096)
def t_quantile(upper_tail: float, degrees_of_freedom: int) -> float:
    """Return the value that Student's t exceeds with this chance."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return -float(stdtrit(degrees_of_freedom, upper_tail))


def noncentral_t_tail(value: float, degrees_of_freedom: int, shift: float) -> float:
    """Return the chance that a t with a true effect of `shift` standard errors exceeds the value."""
    from scipy.special import nctdtr

    below = float(nctdtr(degrees_of_freedom, shift, value))
    # Far out the series gives NaN; the chance is then 0 or 1 to all digits.
    return float(shift > value) if math.isnan(below) else 1 - below


def normal_tail(value: float) -> float:
    """Return the chance that a standard normal exceeds the value."""
    return 0.5 * math.erfc(value / math.sqrt(2))
