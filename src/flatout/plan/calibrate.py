"""Measured runs -> constants with their uncertainty: one Bayesian fit for the shipped constants and for a user's
handful.

The logarithm of a step time is predicted as the model's plus an offset of the source (its software, clocks and
network as no column tells them), plus noise. Constants have a prior, offsets another; a robust Gauss-Newton step
repeated a few times finds the most probable values, and the curvature there their covariance. With three runs the
offset moves most; with many layouts measured, the constants that tell these layouts apart move too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flatout.plan.case import Case
from flatout.plan.constants import NAMES, PRIOR, PRIOR_SD, Constants, from_logs, to_logs
from flatout.plan.step_time import step_time

Array = npt.NDArray[np.float64]

OFFSET_SD = 0.12  # between sources: identical layouts differ by 20 % between software stacks (SC21 and MT-NLG)
NOISE_SD = 0.14  # within a source: repeats and software versions differ by a median of 6 %, and by 20 % in places
# A source counts as at most so many independent runs: its rows share what the model does not know.
MOST_EFFECTIVE_ROWS = 12.0
# How much a constant differs from one source to another, as a share of its prior's deviation: fitted constants are a
# mean over sources, and a new one may have another value.
BETWEEN_SOURCES = 0.6
_ITERATIONS = 8
_STEP = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What is known of the constants and of one cluster's offset, as logarithms with a normal distribution."""

    logs: Array  # constants, in the order of NAMES
    covariance: Array  # of the constants
    offset: float = 0.0
    offset_sd: float = OFFSET_SD
    cross: Array | None = None  # covariance of the constants with the offset
    num_runs: int = 0


def prior() -> Calibration:
    """Before any run was seen."""
    return Calibration(logs=to_logs(PRIOR), covariance=np.diag([(0.6 * PRIOR_SD[name]) ** 2 for name in NAMES]))


def predict_logs(case: Case, calibration: Calibration) -> tuple[Array, Array]:
    """The logarithm of each step time, and its standard deviation for one more run on the same cluster."""
    mean = np.log(step_time(case, from_logs(calibration.logs)).total_s)
    jacobian = _jacobian(case, calibration.logs, mean)
    variance = np.einsum("ri,ij,rj->r", jacobian, calibration.covariance, jacobian)
    if calibration.cross is not None:
        variance = variance + 2.0 * jacobian @ calibration.cross
    variance = variance + calibration.offset_sd**2 + NOISE_SD**2
    return mean + calibration.offset, np.sqrt(np.maximum(variance, NOISE_SD**2))


def fit(case: Case, log_seconds: Array, sources: Sequence[str], before: Calibration | None = None) -> Calibration:
    """Constants from the runs of many sources; offsets are fitted beside them and forgotten.

    Rows of `case`, `log_seconds` and `sources` belong together.
    """
    before = before or prior()
    names = list(dict.fromkeys(sources))
    which = np.array([names.index(source) for source in sources])
    counts = np.bincount(which)
    weights = np.minimum(MOST_EFFECTIVE_ROWS / counts[which], 1.0) / NOISE_SD**2
    logs, covariance = _most_probable(case, log_seconds, which, len(names), weights, before)
    size = len(NAMES)
    spread = np.diag([(BETWEEN_SOURCES * PRIOR_SD[name]) ** 2 for name in NAMES])
    return Calibration(logs=logs[:size], covariance=covariance[:size, :size] + spread, num_runs=len(log_seconds))


def update(case: Case, log_seconds: Array, before: Calibration) -> Calibration:
    """A few runs of one cluster: its offset, and the constants where its runs tell of them."""
    which = np.zeros(len(log_seconds), dtype=np.intp)
    weights = np.full(len(log_seconds), 1.0 / NOISE_SD**2)
    values, covariance = _most_probable(case, log_seconds, which, 1, weights, before)
    return Calibration(
        logs=values[:-1],
        covariance=covariance[:-1, :-1],
        offset=float(values[-1]),
        offset_sd=float(np.sqrt(covariance[-1, -1])),
        cross=covariance[:-1, -1],
        num_runs=len(log_seconds),
    )


def _most_probable(
    case: Case, log_seconds: Array, which: npt.NDArray[np.intp], num_offsets: int, weights: Array, before: Calibration
) -> tuple[Array, Array]:
    """Constants then offsets, and their covariance."""
    size = len(NAMES)
    precision = np.zeros((size + num_offsets, size + num_offsets))
    precision[:size, :size] = np.linalg.inv(before.covariance)
    precision[range(size, size + num_offsets), range(size, size + num_offsets)] = 1.0 / before.offset_sd**2
    start = np.concatenate([before.logs, np.full(num_offsets, before.offset)])
    values = start.copy()
    offsets = np.zeros((len(log_seconds), num_offsets))
    offsets[np.arange(len(log_seconds)), which] = 1.0
    covariance = np.linalg.inv(precision)
    for _ in range(_ITERATIONS):
        mean = np.log(step_time(case, from_logs(values[:size])).total_s)
        residual = log_seconds - mean - offsets @ values[size:]
        # Rows far off count less (pseudo-Huber): a published table has typing errors and other software.
        robust = weights / np.sqrt(1.0 + (residual / (2.0 * NOISE_SD)) ** 2)
        jacobian = np.hstack([_jacobian(case, values[:size], mean), offsets])
        curvature = (jacobian * robust[:, None]).T @ jacobian + precision
        gradient = jacobian.T @ (robust * residual) - precision @ (values - start)
        values = values + np.clip(np.linalg.solve(curvature, gradient), -0.7, 0.7)
        covariance = np.linalg.inv(curvature)
    return values, np.asarray(covariance, dtype=np.float64)


def _jacobian(case: Case, logs: Array, mean: Array) -> Array:
    """Change of each row's logarithm with each constant's: forward differences, all constants in one pass."""
    moved = np.exp(logs[None, :] + _STEP * np.eye(len(logs)))
    columns: dict[str, Any] = {name: moved[:, number, None] for number, name in enumerate(NAMES)}
    logarithms = np.log(step_time(case, Constants(**columns)).total_s)
    return np.asarray((logarithms - mean) / _STEP, dtype=np.float64).T
