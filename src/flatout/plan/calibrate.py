"""Fit the constants, with their uncertainty, to measured runs.

The same Bayesian fit produces the shipped constants from many runs and corrects them with a user's few runs.

The logarithm of a step time is modelled as the cost model's prediction, plus an offset for the source (its software,
clocks and network, which no column records), plus noise. Constants and offsets have separate priors. A few robust
Gauss-Newton iterations find the most probable values, and the curvature at that point gives their covariance. With
three runs, mostly the offset changes; with many measured layouts, the constants that distinguish them change too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flatout.plan.constants import NAMES, PRIOR, PRIOR_SD, Constants, from_logs, to_logs
from flatout.plan.inputs import CostModelInputs
from flatout.plan.step_time import step_time

Array = npt.NDArray[np.float64]

Z_90 = 1.6449  # a normal distribution has 90 % within this many standard deviations of its mean
# Standard deviations of one source's offsets, by level. Identical layouts differ by 20 % between software stacks (SC21
# and MT-NLG), and all runs on the same GPU or model shape share the cost model's error for it.
#
# The rest is doubt about what few or no published runs show, and applies only to rows that have it: experts, whose
# dispatch changes with each release (identical layouts of NVIDIA's recipes drift by up to 77 %); experts beyond an
# NVLink domain, where dispatchers differ by half; experts in releases from before the fitted ones, in which DeepSeek-V3
# took three times as long on GB200 as half a year later (a factor of three is at the interval's edge); experts in fp8
# on Blackwell if no part of a layer is a CUDA graph (NVIDIA's DeepSeek-V3 on GB200 took twice as long before its host
# launched less; the launches that it counts explain less than that, so the time is in doubt rather than modelled); a
# GPU whose matrix rate nobody has measured; and software that no constant was fitted to: PaddleNLP was predicted 15 %
# too fast, Nanotron 47 % in the median.
LEVELS = {
    "source": 0.12,
    "gpu": 0.05,
    "model": 0.05,
    "software": 0.05,
    "experts": 0.12,
    "far_experts": 0.2,
    "early_experts": 0.65,
    "launched_experts": 0.4,
    "new_gpu": 0.12,
    "new_software": 0.25,
}
QUICK_GPU = 1e15  # 16-bit FLOP/s: of Blackwell, whose experts in fp8 take less time than their launches

# The inputs that distinguish two kinds of the same level.
_DISTINGUISHING = {
    "source": (),
    "gpu": ("half_peak", "memory", "memory_rate", "domain"),
    "model": ("layers", "hidden", "heads", "experts"),
    "software": ("is_low", "matmul_peak", "eager", "fused", "overlaps_dp", "overlaps_tp", "overlaps_ep", "gathers"),
    "experts": ("experts", "topk"),
    "far_experts": (),
    "early_experts": ("experts", "topk"),
    "launched_experts": (),
    "new_gpu": ("half_peak", "memory"),
    "new_software": (),
}
NOISE_SD = 0.06  # within a source: the median difference between repeats or software versions is 6 %, sometimes 20 %
NOISE_FREEDOM = 10.0
# A source counts as at most this many independent runs, because its rows share the same unmodelled errors.
MOST_EFFECTIVE_ROWS = 20.0
# How much a constant differs between sources, as a share of its prior's standard deviation: fitted constants are a mean
# over sources, and a new source can have a different value.
BETWEEN_SOURCES = 0.6
# Limits for a very large file: additional kinds are skipped, and rows are chosen from an evenly spaced subset.
MOST_KINDS, MOST_ROWS = 300, 2000
_ITERATIONS = 8
_STEP = 1e-4
_LARGEST_MOVE = 0.7  # largest change of a logarithm in one iteration


class RunKind(NamedTuple):
    """The rows of one level whose distinguishing inputs have these values."""

    level: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The constants and one source's offsets: normally distributed logarithms."""

    logs: Array  # constants, in the order of NAMES
    covariance: Array  # of the constants, followed by the effects
    effects: Array  # offsets of the source, and of the GPUs, models and software in its runs
    kinds: tuple[RunKind, ...] = ()  # one per effect
    num_runs: int = 0

    def offset(self, inputs: CostModelInputs) -> Array:
        """Return the offset to add to the logarithm of each row's step time."""
        return np.asarray(_design(inputs, self.kinds) @ self.effects, dtype=np.float64)


def prior() -> Calibration:
    """Return the prior of the constants, before any run is taken into account."""
    return Calibration(logs=to_logs(PRIOR), covariance=_spread_between_sources(), effects=np.zeros(0))


def _spread_between_sources() -> Array:
    return np.diag([(BETWEEN_SOURCES * PRIOR_SD[name]) ** 2 for name in NAMES])


def predict_logs(inputs: CostModelInputs, calibration: Calibration) -> tuple[Array, Array]:
    """Return the logarithm of each step time, and its standard deviation for a new run on the same cluster."""
    mean = _model_logs(inputs, calibration.logs)
    design = np.hstack([_jacobian(inputs, calibration.logs, mean), _design(inputs, calibration.kinds)])
    variance = np.einsum("ri,ij,rj->r", design, calibration.covariance, design)
    for level, deviation in LEVELS.items():
        seen_kinds = [kind for kind in calibration.kinds if kind.level == level]
        is_seen = _design(inputs, seen_kinds).sum(axis=1) > 0
        is_unknown = _applies(inputs, level, len(mean)) & ~is_seen
        variance = variance + np.where(is_unknown, deviation**2, 0.0)
    return mean + calibration.offset(inputs), np.sqrt(variance + NOISE_SD**2)


def fit(
    inputs: CostModelInputs, log_seconds: Array, sources: Sequence[str], before: Calibration | None = None
) -> Calibration:
    """Fit the constants to the runs of many sources; the sources' offsets are fitted too, then discarded.

    `inputs`, `log_seconds` and `sources` have one row per run.
    """
    designs, deviations = [], []
    for name in dict.fromkeys(sources):
        is_own = np.array([source == name for source in sources])
        kinds = _kinds(inputs, is_own)
        designs.append(_design(inputs, kinds) * is_own[:, None])
        deviations += _deviations(kinds)
    rows_of_source = np.array([sources.count(source) for source in sources])
    weights = np.minimum(MOST_EFFECTIVE_ROWS / rows_of_source, 1.0) / NOISE_SD**2
    values, covariance = _most_probable(inputs, log_seconds, np.hstack(designs), deviations, weights, before or prior())
    size = len(NAMES)
    return Calibration(
        logs=values[:size],
        covariance=covariance[:size, :size] + _spread_between_sources(),
        effects=np.zeros(0),
        num_runs=len(log_seconds),
    )


def update(inputs: CostModelInputs, log_seconds: Array, before: Calibration) -> Calibration:
    """Fit the offsets of one source to its few runs, and the constants as far as these runs determine them."""
    kinds = _kinds(inputs, np.ones(len(log_seconds), dtype=bool))
    noise = _noise(log_seconds - _model_logs(inputs, before.logs))
    weights = np.full(len(log_seconds), 1.0 / noise**2)
    values, covariance = _most_probable(
        inputs, log_seconds, _design(inputs, kinds), _deviations(kinds), weights, before
    )
    size = len(NAMES)
    return Calibration(
        logs=values[:size], covariance=covariance, effects=values[size:], kinds=tuple(kinds), num_runs=len(log_seconds)
    )


def most_informative(inputs: CostModelInputs, before: Calibration, count: int) -> list[int]:
    """Return the rows to measure: those that most reduce the variance of all rows' predictions, chosen greedily.

    The choice depends on the layouts alone; no measurement is needed.
    """
    kinds = _kinds(inputs, np.ones(_num_rows(inputs), dtype=bool))[:MOST_KINDS]
    mean = _model_logs(inputs, before.logs)
    design = np.hstack([_jacobian(inputs, before.logs, mean), _design(inputs, kinds)])
    size = len(NAMES)
    covariance = np.diag([0.0] * size + [deviation**2 for deviation in _deviations(kinds)])
    covariance[:size, :size] = before.covariance[:size, :size]
    spaced = np.linspace(0, len(design) - 1, min(len(design), MOST_ROWS)).astype(np.intp)
    design = design[spaced]
    between_rows = design @ covariance @ design.T  # covariance of the rows' logarithms
    variance_before = np.diag(between_rows).copy()
    chosen: list[int] = []
    for _ in range(min(count, len(between_rows))):
        explained = (np.square(between_rows) / variance_before[:, None]).sum(axis=0)
        gain = explained / (np.diag(between_rows) + NOISE_SD**2)
        gain[chosen] = -1.0
        best = int(np.argmax(gain))
        chosen.append(best)
        of_best = between_rows[:, best]
        between_rows = between_rows - np.outer(of_best, between_rows[best]) / (of_best[best] + NOISE_SD**2)
    return [int(spaced[row]) for row in chosen]


def _model_logs(inputs: CostModelInputs, logs: Array) -> Array:
    """Return the logarithm of each row's step time as the cost model predicts it, without offsets."""
    return np.asarray(np.log(step_time(inputs, from_logs(logs)).total_s), dtype=np.float64)


def _noise(residuals: Array) -> float:
    """Return the noise of one source, estimated from the spread of its runs' errors.

    The default `NOISE_SD` enters the estimate with the weight of `NOISE_FREEDOM` additional runs.
    """
    freedom = len(residuals) - 1
    squares = float(np.var(residuals, ddof=1)) * freedom if freedom else 0.0
    pooled = (NOISE_FREEDOM * NOISE_SD**2 + squares) / (NOISE_FREEDOM + freedom)
    return max(NOISE_SD, float(np.sqrt(pooled)))


def _distinguishing_columns(inputs: CostModelInputs, level: str, num_rows: int) -> Array:
    """Return the inputs that distinguish the kinds of a level, one row of numbers per row of the inputs."""
    names = _DISTINGUISHING[level]
    if not names:
        return np.zeros((num_rows, 0))
    columns = [np.asarray(getattr(inputs, name), dtype=np.float64) for name in names]
    return np.stack([np.broadcast_to(column, (num_rows,)) for column in columns], axis=1)


def _applies(inputs: CostModelInputs, level: str, num_rows: int) -> npt.NDArray[np.bool_]:
    """Return which rows have the offset of a level."""
    has_experts = np.asarray(inputs.moe_layers) > 0
    applies = {
        "experts": has_experts,
        "far_experts": has_experts & (np.asarray(inputs.ep) > np.asarray(inputs.domain)),
        "early_experts": has_experts & (np.asarray(inputs.early_experts) > 0),
        "launched_experts": has_experts & _is_launched(inputs),
        "new_gpu": np.asarray(inputs.is_measured) == 0,
        "new_software": np.asarray(inputs.is_known) == 0,
    }.get(level, True)
    return np.broadcast_to(np.asarray(applies, dtype=bool), (num_rows,))


def _is_launched(inputs: CostModelInputs) -> npt.NDArray[np.bool_]:
    """Return which rows multiply in fp8 or fp4 on a quick GPU, with every kernel launched by the host."""
    is_quick = (np.asarray(inputs.is_low) > 0) & (np.asarray(inputs.half_peak) > QUICK_GPU)
    return np.asarray(is_quick & (np.asarray(inputs.lacks_graphs) > 0), dtype=bool)


def _num_rows(inputs: CostModelInputs) -> int:
    return max(np.size(inputs.tp), np.size(inputs.layers))


def _kinds(inputs: CostModelInputs, rows: npt.NDArray[np.bool_]) -> list[RunKind]:
    """Return the kinds that occur in the rows, at every level."""
    kinds: list[RunKind] = []
    for level in LEVELS:
        applies = rows & _applies(inputs, level, len(rows))
        values = _distinguishing_columns(inputs, level, len(rows))[applies]
        kinds += [RunKind(level, kind) for kind in dict.fromkeys(map(tuple, values.tolist()))]
    return kinds


def _deviations(kinds: Sequence[RunKind]) -> list[float]:
    """Return the standard deviation of each kind's offset."""
    return [LEVELS[kind.level] for kind in kinds]


def _design(inputs: CostModelInputs, kinds: Sequence[RunKind]) -> Array:
    """Return the design matrix: one column per kind, 1 in the rows of that kind and 0 elsewhere."""
    num_rows = _num_rows(inputs)
    if not kinds:
        return np.zeros((num_rows, 0))
    is_of_kind = [
        np.all(_distinguishing_columns(inputs, kind.level, num_rows) == np.array(kind.values), axis=1)
        & _applies(inputs, kind.level, num_rows)
        for kind in kinds
    ]
    return np.array(is_of_kind, dtype=np.float64).T


def _most_probable(
    inputs: CostModelInputs,
    log_seconds: Array,
    design: Array,
    deviations: Sequence[float],
    weights: Array,
    before: Calibration,
) -> tuple[Array, Array]:
    """Return the most probable constants, followed by the effects, and their joint covariance."""
    size, num_effects = len(NAMES), design.shape[1]
    effects = range(size, size + num_effects)
    precision = np.zeros((size + num_effects, size + num_effects))
    precision[:size, :size] = np.linalg.inv(before.covariance[:size, :size])
    precision[effects, effects] = 1.0 / np.square(deviations)
    start = np.concatenate([before.logs, np.zeros(num_effects)])
    values = start.copy()
    covariance = np.linalg.inv(precision)
    for _ in range(_ITERATIONS):
        mean = _model_logs(inputs, values[:size])
        residual = log_seconds - mean - design @ values[size:]
        # Outliers count less (pseudo-Huber): published tables contain typing errors and runs of other software.
        robust = weights / np.sqrt(1.0 + (residual / (2.0 * NOISE_SD)) ** 2)
        jacobian = np.hstack([_jacobian(inputs, values[:size], mean), design])
        curvature = (jacobian * robust[:, None]).T @ jacobian + precision
        gradient = jacobian.T @ (robust * residual) - precision @ (values - start)
        move = np.linalg.solve(curvature, gradient)
        values = values + np.clip(move, -_LARGEST_MOVE, _LARGEST_MOVE)
        covariance = np.linalg.inv(curvature)
    return values, np.asarray(covariance, dtype=np.float64)


def _jacobian(inputs: CostModelInputs, logs: Array, mean: Array) -> Array:
    """Return the derivatives of the rows' logarithms with respect to the constants', by forward differences."""
    moved = np.exp(logs[None, :] + _STEP * np.eye(len(logs)))
    columns: dict[str, Any] = {name: moved[:, number, None] for number, name in enumerate(NAMES)}
    logarithms = np.log(step_time(inputs, Constants(**columns)).total_s)
    return np.asarray((logarithms - mean) / _STEP, dtype=np.float64).T
