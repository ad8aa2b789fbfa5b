"""History -> corrections: by family, how far measured speedups lie from predicted ones, on average.

The correction is a log ratio, shrunk toward 0 (empirical Bayes, a normal prior): with n outcomes of a family it is
their mean times n / (n + spread within / spread between families). One or two outcomes move it little; a wild one
counts as `MAX_LOG` at most.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from flatout.records.prediction import Outcome

WITHIN_SD = 0.15  # of the log ratio within a family, before anything is known: 15 %
BETWEEN_SD = 0.10  # of families' means
PRIOR_WEIGHT = 5.0  # outcomes that the prior of WITHIN_SD is worth
MAX_LOG = math.log(2.0)


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Corrections by family; a family that was never seen has none."""

    factor: Mapping[str, float] = {}  # the speedup times this
    spread: Mapping[str, float] = {}  # the interval's ends are moved out by this factor
    num_outcomes: Mapping[str, int] = {}

    def of(self, family: str) -> tuple[float, float]:
        return self.factor.get(family, 1.0), self.spread.get(family, 1.0)


def calibrate(history: Iterable[Outcome]) -> Calibration:
    """Works on any history, an empty one too."""
    errors: dict[str, list[float]] = defaultdict(list)
    for outcome in history:
        if outcome.predicted > 0 and outcome.measured > 0:
            error = math.log(outcome.measured / outcome.predicted)
            errors[outcome.family].append(min(max(error, -MAX_LOG), MAX_LOG))
    factor, spread = {}, {}
    for family, logs in errors.items():
        values = np.array(logs)
        # A few outcomes say little of their own spread, so the prior counts as some more of them.
        squares = float(((values - values.mean()) ** 2).sum()) + PRIOR_WEIGHT * WITHIN_SD**2
        within = squares / (len(values) - 1 + PRIOR_WEIGHT)
        shrunk = len(values) / (len(values) + within / BETWEEN_SD**2)
        factor[family] = math.exp(float(np.mean(values)) * shrunk)
        spread[family] = math.exp(math.sqrt(within / (len(values) + within / BETWEEN_SD**2)))
    return Calibration(factor=factor, spread=spread, num_outcomes={family: len(v) for family, v in errors.items()})


def median_absolute_error(history: Iterable[Outcome]) -> float | None:
    """Of the predicted speedup over the measured one, as a share; None without outcomes."""
    errors = [abs(outcome.predicted / outcome.measured - 1.0) for outcome in history if outcome.measured > 0]
    return float(np.median(errors)) if errors else None
