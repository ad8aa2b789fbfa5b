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

# Standard deviations of the offsets of one source, level by level: identical layouts differ by 20 % between software
# stacks (SC21 and MT-NLG), and what the model has wrong of a GPU or a model's shape, all of its runs share.
LEVELS = {"source": 0.12, "gpu": 0.05, "model": 0.05, "software": 0.05}
_TELLING = {
    "source": (),
    "gpu": ("half_peak", "memory", "memory_rate", "domain"),
    "model": ("layers", "hidden", "heads", "experts"),
    "software": ("is_low", "matmul_peak", "eager", "fused", "overlaps_dp", "overlaps_tp", "overlaps_ep", "gathers"),
}
NOISE_SD = 0.06  # within a source: repeats and software versions differ by a median of 6 %, and by 20 % in places
NOISE_FREEDOM = 10.0
# A source counts as at most so many independent runs: its rows share what the model does not know.
MOST_EFFECTIVE_ROWS = 20.0
# How much a constant differs from one source to another, as a share of its prior's deviation: fitted constants are a
# mean over sources, and a new one may have another value.
BETWEEN_SOURCES = 0.6
# Of a very large file: beyond, kinds are left out, and rows to choose from.
MOST_KINDS, MOST_ROWS = 300, 2000
_ITERATIONS = 8
_STEP = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What is known of the constants and of one source's offsets, as logarithms with a normal distribution."""

    logs: Array  # constants, in the order of NAMES
    covariance: Array  # of the constants, then of the effects
    effects: Array  # offsets of the source, and of its GPUs, models and software that were seen
    kinds: tuple[tuple[str, tuple[float, ...]], ...] = ()  # which: a level, and the values of its columns
    num_runs: int = 0

    def offset(self, case: Case) -> Array:
        """What is added to the logarithm of each row."""
        return np.asarray(_design(case, self.kinds) @ self.effects, dtype=np.float64)


def prior() -> Calibration:
    """Before any run was seen."""
    covariance = np.diag([(BETWEEN_SOURCES * PRIOR_SD[name]) ** 2 for name in NAMES])
    return Calibration(logs=to_logs(PRIOR), covariance=covariance, effects=np.zeros(0))


def predict_logs(case: Case, calibration: Calibration) -> tuple[Array, Array]:
    """The logarithm of each step time, and its standard deviation for one more run on the same cluster."""
    mean = np.log(step_time(case, from_logs(calibration.logs)).total_s)
    design = np.hstack([_jacobian(case, calibration.logs, mean), _design(case, calibration.kinds)])
    variance = np.einsum("ri,ij,rj->r", design, calibration.covariance, design)
    for level, deviation in LEVELS.items():
        seen = _design(case, [kind for kind in calibration.kinds if kind[0] == level]).sum(axis=1)
        variance = variance + np.where(seen > 0, 0.0, deviation**2)
    return mean + calibration.offset(case), np.sqrt(variance + NOISE_SD**2)


def fit(case: Case, log_seconds: Array, sources: Sequence[str], before: Calibration | None = None) -> Calibration:
    """Constants from the runs of many sources; offsets are fitted beside them and forgotten.

    Rows of `case`, `log_seconds` and `sources` belong together.
    """
    before = before or prior()
    names = list(dict.fromkeys(sources))
    designs, deviations = [], []
    for name in names:
        own = np.array([source == name for source in sources])
        kinds = _kinds(case, own)
        designs.append(_design(case, kinds) * own[:, None])
        deviations += [LEVELS[level] for level, _ in kinds]
    counts = np.array([sources.count(source) for source in sources])
    weights = np.minimum(MOST_EFFECTIVE_ROWS / counts, 1.0) / NOISE_SD**2
    logs, covariance = _most_probable(case, log_seconds, np.hstack(designs), deviations, weights, before)
    size = len(NAMES)
    spread = np.diag([(BETWEEN_SOURCES * PRIOR_SD[name]) ** 2 for name in NAMES])
    return Calibration(
        logs=logs[:size],
        covariance=covariance[:size, :size] + spread,
        effects=np.zeros(0),
        num_runs=len(log_seconds),
    )


def update(case: Case, log_seconds: Array, before: Calibration) -> Calibration:
    """A few runs of one source: its offsets, and the constants where its runs tell of them."""
    kinds = _kinds(case, np.ones(len(log_seconds), dtype=bool))
    deviations = [LEVELS[level] for level, _ in kinds]
    noise = _noise(log_seconds - np.log(step_time(case, from_logs(before.logs)).total_s))
    weights = np.full(len(log_seconds), 1.0 / noise**2)
    values, covariance = _most_probable(case, log_seconds, _design(case, kinds), deviations, weights, before)
    size = len(NAMES)
    return Calibration(
        logs=values[:size], covariance=covariance, effects=values[size:], kinds=tuple(kinds), num_runs=len(log_seconds)
    )


def most_telling(case: Case, before: Calibration, count: int) -> list[int]:
    """Rows whose step times, once measured, would leave the least variance of all rows alike: one after another.

    They are chosen before anything was measured: only the layouts are looked at.
    """
    kinds = _kinds(case, np.ones(_rows(case), dtype=bool))[:MOST_KINDS]
    mean = np.log(step_time(case, from_logs(before.logs)).total_s)
    design = np.hstack([_jacobian(case, before.logs, mean), _design(case, kinds)])
    size = len(NAMES)
    covariance = np.diag([0.0] * size + [LEVELS[level] ** 2 for level, _ in kinds])
    covariance[:size, :size] = before.covariance[:size, :size]
    some = np.linspace(0, len(design) - 1, min(len(design), MOST_ROWS)).astype(np.intp)
    design = design[some]
    rows = design @ covariance @ design.T
    uncertain = np.diag(rows).copy()
    chosen: list[int] = []
    for _ in range(min(count, len(rows))):
        gain = (np.square(rows) / uncertain[:, None]).sum(axis=0) / (np.diag(rows) + NOISE_SD**2)
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        rows = rows - np.outer(rows[:, best], rows[best]) / (rows[best, best] + NOISE_SD**2)
    return [int(some[row]) for row in chosen]


def _noise(residuals: Array) -> float:
    """Of one source, from how far its runs' errors differ; the usual noise counts as `NOISE_FREEDOM` runs more."""
    freedom = len(residuals) - 1
    seen = float(np.var(residuals, ddof=1)) * freedom if freedom else 0.0
    return max(NOISE_SD, float(np.sqrt((NOISE_FREEDOM * NOISE_SD**2 + seen) / (NOISE_FREEDOM + freedom))))


def _columns(case: Case, level: str, rows: int) -> Array:
    """What tells the kinds of a level apart: one row of numbers a row of the case."""
    names = _TELLING[level]
    if not names:
        return np.zeros((rows, 0))
    return np.stack([np.broadcast_to(np.asarray(getattr(case, name), dtype=np.float64), (rows,)) for name in names], 1)


def _rows(case: Case) -> int:
    return max(np.size(case.tp), np.size(case.layers))


def _kinds(case: Case, rows: npt.NDArray[np.bool_]) -> list[tuple[str, tuple[float, ...]]]:
    """Of each level those kinds that the rows have."""
    found: list[tuple[str, tuple[float, ...]]] = []
    for level in LEVELS:
        values = _columns(case, level, len(rows))[rows]
        found += [(level, kind) for kind in dict.fromkeys(map(tuple, values.tolist()))]
    return found


def _design(case: Case, kinds: Sequence[tuple[str, tuple[float, ...]]]) -> Array:
    """1 where a row is of a kind."""
    rows = _rows(case)
    columns = [np.all(_columns(case, level, rows) == np.array(kind), axis=1) for level, kind in kinds]
    return np.array(columns, dtype=np.float64).T if columns else np.zeros((rows, 0))


def _most_probable(
    case: Case, log_seconds: Array, design: Array, deviations: Sequence[float], weights: Array, before: Calibration
) -> tuple[Array, Array]:
    """Constants then effects, and their covariance."""
    size, num_effects = len(NAMES), design.shape[1]
    precision = np.zeros((size + num_effects, size + num_effects))
    precision[:size, :size] = np.linalg.inv(before.covariance[:size, :size])
    precision[range(size, size + num_effects), range(size, size + num_effects)] = 1.0 / np.square(deviations)
    start = np.concatenate([before.logs, np.zeros(num_effects)])
    values = start.copy()
    covariance = np.linalg.inv(precision)
    for _ in range(_ITERATIONS):
        mean = np.log(step_time(case, from_logs(values[:size])).total_s)
        residual = log_seconds - mean - design @ values[size:]
        # Rows far off count less (pseudo-Huber): a published table has typing errors and other software.
        robust = weights / np.sqrt(1.0 + (residual / (2.0 * NOISE_SD)) ** 2)
        jacobian = np.hstack([_jacobian(case, values[:size], mean), design])
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
