"""Fit the memory model's constants to measured peaks, and to runs of which only the outcome is known.

In: runs. Out: `MemoryConstants`. A run without a measured peak is evidence too: it fitted, or it ran out of memory. So
the most probable constants maximize a censored likelihood: the density at a measured peak, the probability of being
below the limit for a run that fitted, and of being above it for one that did not. Each source has an offset, which is
fitted and discarded, and counts as at most a number of independent runs. Runs that do not say what they recompute are
no evidence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr  # type: ignore[import-untyped]

from flatout.plan.calibrate import MOST_EFFECTIVE_ROWS
from flatout.plan.fits import USABLE
from flatout.plan.memory import MemoryConstants, memory
from flatout.plan.runs import MeasuredRun, as_inputs

Array = npt.NDArray[np.float64]

# Prior of each constant: its value, and the standard deviation of its logarithm.
PRIOR = {
    "context_bytes": (1.5e9, 0.3),
    "group_bytes": (0.6e9, 0.5),
    "allocator": (1.04, 0.02),
    "activations": (1.0, 0.06),
    "unfused": (1.1, 0.08),
    "returned": (0.03, 0.5),
}
NAMES = tuple(PRIOR)
SOURCE_SD = 0.06  # of a source's offset
ROW_SD = 0.07  # of a row within its source
_OUTLIER = 3.0  # residuals beyond this many standard deviations count less: pictures are misread, columns are guessed
_LEAST_LOG_LIKELIHOOD = -8.0  # no single run that fitted weighs more: its recomputation may be misreported


def fit_memory(runs: Sequence[MeasuredRun]) -> MemoryConstants:
    """Return the most probable constants, given all runs whose recomputation is known."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]  # takes 0.3 s, which no other use of a plan needs

    runs = [run for run in runs if run.says_recompute]
    if not runs:
        return from_logs(_prior_logs())
    sources = list(dict.fromkeys(run.source for run in runs))
    of_source = np.array([sources.index(run.source) for run in runs])
    weights = np.minimum(MOST_EFFECTIVE_ROWS / np.bincount(of_source)[of_source], 1.0)
    inputs = as_inputs(runs)
    peaks = np.array([run.peak_memory_bytes or np.nan for run in runs])
    has_peak = np.isfinite(peaks)
    log_peaks = np.log(np.where(has_peak, peaks, 1.0))
    ran_out = np.array([run.ran_out_of_memory for run in runs])
    log_limits = np.log(USABLE * np.asarray(inputs.memory))
    prior_logs, prior_sds = _prior_logs(), np.array([PRIOR[name][1] for name in NAMES])

    def loss(values: Array) -> float:
        constants, offsets = from_logs(values[: len(NAMES)]), values[len(NAMES) :]
        logs = np.log(memory(inputs, constants).total) + offsets[of_source]
        needed = logs + np.log1p(-constants.returned)
        residuals = (log_peaks - logs) / ROW_SD
        at_peak = -0.5 * residuals**2 / np.sqrt(1.0 + (residuals / _OUTLIER) ** 2)
        below = np.maximum(log_ndtr((log_limits - needed) / ROW_SD), _LEAST_LOG_LIKELIHOOD)
        above = np.maximum(log_ndtr((needed - log_limits) / ROW_SD), _LEAST_LOG_LIKELIHOOD)
        of_outcome = np.where(ran_out, above, below)
        evidence = np.where(has_peak, at_peak, of_outcome)
        beliefs = np.sum(((values[: len(NAMES)] - prior_logs) / prior_sds) ** 2) + np.sum((offsets / SOURCE_SD) ** 2)
        return float(0.5 * beliefs - np.sum(weights * evidence))

    start = np.concatenate([prior_logs, np.zeros(len(sources))])
    fitted = minimize(loss, start, method="L-BFGS-B")
    return from_logs(fitted.x[: len(NAMES)])


def from_logs(logs: Array) -> MemoryConstants:
    """Return the constants with these logarithms, in the order of `NAMES`."""
    return MemoryConstants(**dict(zip(NAMES, map(float, np.exp(logs)), strict=True)))


def _prior_logs() -> Array:
    return np.log([PRIOR[name][0] for name in NAMES])
