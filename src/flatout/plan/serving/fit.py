"""Fit the constants of a served step to published results, and judge them on sources that had no part in the fit.

The logarithm of a measured output rate is the model's plus noise, and constants have priors. Each source counts as at
most `EFFECTIVE_RESULTS`, however many results it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from flatout.plan.serving.constants import NAMES, PRIOR_SD, StepConstants
from flatout.plan.serving.published import PublishedResult

NOISE = 0.25  # standard deviation of a result's logarithm: engines, versions and settings differ
EFFECTIVE_RESULTS = 6.0  # results that a source counts as, at most


def fitted(results: Sequence[PublishedResult]) -> StepConstants:
    """Return the constants that fit these results and the priors best."""
    priors = StepConstants()
    start = np.array([math.log(getattr(priors, name)) for name in NAMES])
    sds = np.array([PRIOR_SD[name] for name in NAMES])
    weights = np.sqrt(_weights(results)) / NOISE

    def residuals(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        constants = _constants(logs)
        errors = np.array([log_error(result, constants) for result in results])
        return np.concatenate([errors * weights, (logs - start) / sds])

    return _constants(least_squares(residuals, start, loss="soft_l1").x)


def log_error(result: PublishedResult, constants: StepConstants) -> float:
    """Return the logarithm of the measured output rate relative to the predicted one."""
    predicted = result.predicted(constants).rate_per_s * result.output_tokens
    return math.log(result.output_tokens_per_s / predicted)


def held_out(results: Sequence[PublishedResult]) -> dict[str, StepConstants]:
    """Return, for each source, the constants that were fitted to all other sources."""
    sources = dict.fromkeys(result.source for result in results)
    return {source: fitted([result for result in results if result.source != source]) for source in sources}


def _weights(results: Sequence[PublishedResult]) -> npt.NDArray[np.float64]:
    numbers: dict[str, int] = {}
    for result in results:
        numbers[result.source] = numbers.get(result.source, 0) + 1
    return np.array([min(1.0, EFFECTIVE_RESULTS / numbers[result.source]) for result in results])


def _constants(logs: npt.NDArray[np.float64]) -> StepConstants:
    return StepConstants(**{name: float(math.exp(log)) for name, log in zip(NAMES, logs, strict=True)})
