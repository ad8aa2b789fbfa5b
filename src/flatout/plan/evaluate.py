"""Replay measured runs to determine the prediction errors, with constants that were not fitted to the runs' source.

In: the runs of a CSV. Out: errors by source, and for each group of layouts, how much slower the layouts predicted to
be best are than the layout measured to be best. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from flatout.errors import InputError
from flatout.plan.calibrate import Z_90, Calibration, most_informative, predict_logs, update
from flatout.plan.fits import SAFE, MemoryCalibration, out_of_memory_probability
from flatout.plan.inputs import RECOMPUTE
from flatout.plan.memory import MemoryConstants, memory
from flatout.plan.runs import MeasuredRun, as_inputs
from flatout.plan.shipped import shipped as shipped_constants
from flatout.plan.shipped import shipped_without
from flatout.records.plan import GroupRegret, PlanEvaluation, SourceAccuracy

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

NUM_CALIBRATION_ROWS = 3
# Number of random draws of three rows; their errors are averaged, so that the result does not depend on a lucky draw.
NUM_DRAWS = 20
# With fewer rows, too few remain to test on.
FEWEST_ROWS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Predicted:
    """The timed runs of one source, with their predictions."""

    runs: Sequence[MeasuredRun]
    constants: Calibration
    logs: Array  # predicted logarithm of each run's step time in seconds
    deviations: Array
    measured_logs: Array


def evaluate(
    runs: Sequence[MeasuredRun], rows_read: int, *, shipped: Calibration | None = None, minimum_group: int = 5
) -> PlanEvaluation:
    """Return the errors by source and the regrets by group.

    If `shipped` is given, all predictions use these constants. Otherwise each source is predicted with constants that
    were not fitted to it: those of this version, or if they were fitted to it, those that this version has without it.
    Raise InputError if no row can be replayed.
    """
    if not runs:
        raise InputError(
            f"no row of {rows_read} can be replayed", hint="docs/how-to/plan.md says which columns a row needs"
        )
    sources = [_evaluate_source(source, runs, shipped) for source in dict.fromkeys(run.source for run in runs)]
    accuracies = [source.accuracy for source in sources]
    predicted_s = {run: seconds for source in sources for run, seconds in source.predicted_s.items()}
    is_safe = {run: safe for source in sources for run, safe in source.is_safe.items()}
    return PlanEvaluation(
        sources=tuple(accuracies),
        groups=_regrets(_timed(runs), predicted_s, is_safe, minimum_group),
        mape=_mean(accuracy.mape for accuracy in accuracies),
        mape_calibrated=_mean(accuracy.mape_calibrated for accuracy in accuracies),
        mape_calibrated_random=_mean(accuracy.mape_calibrated_random for accuracy in accuracies),
        coverage_90=_mean(accuracy.coverage_90 for accuracy in accuracies),
        called_unsafe=_share_of_rows(accuracies, "called_unsafe"),
        called_unsafe_as_read=_share_of_rows(accuracies, "called_unsafe_as_read"),
        memory_mape=_mean(accuracy.memory_mape for accuracy in accuracies),
        rows_read=rows_read,
        rows_used=len(runs),
        held_out="none" if shipped is not None else "source",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _EvaluatedSource:
    """One source, predicted with constants that were not fitted to it. Keys are the `id` of a run."""

    accuracy: SourceAccuracy
    predicted_s: dict[int, float]
    is_safe: dict[int, bool]


def _evaluate_source(source: str, runs: Sequence[MeasuredRun], shipped: Calibration | None) -> _EvaluatedSource:
    constants, memory_constants = _constants_for(source, shipped)
    own = [run for run in runs if run.source == source]
    predicted = _predict(_timed(own), constants)
    judged = _judged(own, memory_constants)
    step_times_s = np.exp(predicted.logs)
    is_safe = judged.probability < SAFE
    return _EvaluatedSource(
        accuracy=_accuracy(source, own, predicted, judged),
        predicted_s={id(run): float(seconds) for run, seconds in zip(predicted.runs, step_times_s, strict=True)},
        is_safe={id(run): bool(safe) for run, safe in zip(own, is_safe, strict=True)},
    )


def _constants_for(source: str, shipped: Calibration | None) -> tuple[Calibration, MemoryConstants]:
    """Return the given constants, or else those of this version that were not fitted to the source."""
    if shipped is not None:
        return shipped, MemoryConstants()
    return shipped_without(source) or (shipped_constants(), MemoryConstants())


def _timed(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    return [run for run in runs if run.step_time_s is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """The memory of all runs of one source."""

    predicted_bytes: Array
    probability: Array  # of running out of memory
    probability_as_read: Array  # the same if unknown recomputation is taken as none


def _judged(runs: Sequence[MeasuredRun], constants: MemoryConstants) -> _Judged:
    """Predict the memory of the runs.

    A run that does not say what it recomputes is judged by the recomputation that needs the least memory: a plan would
    offer its degrees if any recomputation made them safe.
    """
    calibration = MemoryCalibration(constants=constants)
    as_read = out_of_memory_probability(as_inputs(runs), calibration)
    probability = as_read.copy()
    is_silent = np.array([not run.says_recompute for run in runs])
    for recompute in RECOMPUTE[1:]:
        variants = [_with_recompute(run, recompute) for run in runs]
        with_recompute = out_of_memory_probability(as_inputs(variants), calibration)
        probability = np.where(is_silent, np.minimum(probability, with_recompute), probability)
    predicted_bytes = np.asarray(memory(as_inputs(runs), constants).total)
    return _Judged(predicted_bytes=predicted_bytes, probability=probability, probability_as_read=as_read)


def _with_recompute(run: MeasuredRun, recompute: str) -> MeasuredRun:
    columns = run.columns | {"selective": float(recompute == "selective"), "full": float(recompute == "full")}
    return replace(run, columns=columns)


def _predict(timed: Sequence[MeasuredRun], constants: Calibration) -> _Predicted:
    logs, deviations = np.zeros(0), np.zeros(0)
    if timed:
        logs, deviations = predict_logs(as_inputs(timed), constants)
    return _Predicted(
        runs=timed, constants=constants, logs=logs, deviations=deviations, measured_logs=_measured_logs(timed)
    )


def _measured_logs(runs: Sequence[MeasuredRun]) -> Array:
    return np.log(np.array([run.step_time_s for run in runs], dtype=np.float64))


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values; None if no value is known."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _mean_or_none(values: Array) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _share_of_rows(accuracies: Sequence[SourceAccuracy], name: str) -> float | None:
    """Return the mean of a share over the rows that ran, of all sources."""
    num_rows = sum(accuracy.ran_rows for accuracy in accuracies)
    num_called = sum(accuracy.ran_rows * (getattr(accuracy, name) or 0.0) for accuracy in accuracies)
    return num_called / num_rows if num_rows else None


def _accuracy(source: str, runs: Sequence[MeasuredRun], predicted: _Predicted, judged: _Judged) -> SourceAccuracy:
    """Return the errors of one source; `runs` are all of its rows, including those without a step time."""
    differences = predicted.logs - predicted.measured_logs
    errors = np.expm1(differences)
    is_inside = (np.abs(differences) <= Z_90 * predicted.deviations).astype(np.float64)
    chosen, drawn = _calibrated(predicted)
    repeats = _repeats(predicted.runs)
    memory_errors = _memory_errors(runs, judged)
    ran_out = np.array([run.ran_out_of_memory for run in runs])
    is_unsafe, is_unsafe_as_read = judged.probability >= SAFE, judged.probability_as_read >= SAFE
    return SourceAccuracy(
        source=source,
        rows=len(predicted.runs),
        mape=_mean_or_none(np.abs(errors)),
        mape_calibrated=chosen,
        mape_calibrated_random=drawn,
        mape_in_sample=_error_in_sample(predicted),
        repeated_rows=len(repeats),
        repeats_differ_by=_mean_or_none(np.abs(repeats)),
        bias=_mean_or_none(errors),
        coverage_90=_mean_or_none(is_inside),
        memory_rows=len(memory_errors),
        memory_mape=_mean_or_none(np.abs(memory_errors)),
        out_of_memory_rows=int(ran_out.sum()),
        out_of_memory_called_safe=int((ran_out & ~is_unsafe).sum()),
        ran_rows=int((~ran_out).sum()),
        called_unsafe=_mean_or_none(is_unsafe[~ran_out].astype(np.float64)),
        called_unsafe_as_read=_mean_or_none(is_unsafe_as_read[~ran_out].astype(np.float64)),
        recompute_unknown_rows=sum(not run.says_recompute for run in runs),
    )


def _memory_errors(runs: Sequence[MeasuredRun], judged: _Judged) -> Array:
    """Return the relative error of the predicted peak memory of each run whose measured peak is known."""
    measured = np.array([run.peak_memory_bytes or np.nan for run in runs], dtype=np.float64)
    has_peak = np.isfinite(measured)
    return np.asarray(judged.predicted_bytes[has_peak] / measured[has_peak] - 1.0)


def _calibrated(predicted: _Predicted) -> tuple[float | None, float | None]:
    """Return the mean error on the remaining rows after three rows have corrected the constants.

    The first value uses the three rows that the model would choose to measure, the second is averaged over random draws
    of three rows. Both are None if there are too few rows.
    """
    count = len(predicted.runs)
    if count < FEWEST_ROWS:
        return None, None
    generator = np.random.default_rng(0)
    draws = [generator.choice(count, NUM_CALIBRATION_ROWS, replace=False) for _ in range(NUM_DRAWS)]
    chosen = most_informative(as_inputs(predicted.runs), predicted.constants, NUM_CALIBRATION_ROWS)
    error_of_chosen = _error_without(predicted, np.array(chosen))
    errors_of_drawn = [_error_without(predicted, draw) for draw in draws]
    return error_of_chosen, float(np.mean(errors_of_drawn))


def _repeats(timed: Sequence[MeasuredRun]) -> Array:
    """Return the relative deviation of each repeated run from the median of the runs with the same inputs."""
    alike: dict[tuple[float, ...], list[float]] = {}
    for run in timed:
        alike.setdefault(tuple(run.columns.values()), []).append(float(run.step_time_s or 0.0))
    repeated = [times_s for times_s in alike.values() if len(times_s) > 1]
    return np.array([time_s / np.median(times_s) - 1.0 for times_s in repeated for time_s in times_s])


def _error_in_sample(predicted: _Predicted) -> float | None:
    """Return the mean error on all rows when all of them have corrected the constants."""
    if not predicted.runs:
        return None
    everything = np.arange(len(predicted.runs))
    return _error_after(predicted, everything, everything)


def _error_without(predicted: _Predicted, used: Rows) -> float:
    """Return the mean error on the remaining rows after the rows `used` have corrected the constants."""
    return _error_after(predicted, used, np.setdiff1d(np.arange(len(predicted.runs)), used))


def _error_after(predicted: _Predicted, used: Rows, tested: Rows) -> float:
    runs, measured_logs = predicted.runs, predicted.measured_logs
    corrected = update(as_inputs([runs[row] for row in used]), measured_logs[used], predicted.constants)
    logs, _ = predict_logs(as_inputs([runs[row] for row in tested]), corrected)
    return float(np.mean(np.abs(np.expm1(logs - measured_logs[tested]))))


def _regrets(
    timed: Sequence[MeasuredRun], predicted_s: dict[int, float], is_safe: dict[int, bool], minimum_group: int
) -> tuple[GroupRegret, ...]:
    """Return, per group, how much slower the best of the k fastest predicted layouts is than the best, as measured.

    With the gate, the k fastest are those of the layouts that are called safe, as in a plan.
    """
    regrets = []
    for group in dict.fromkeys(run.group for run in timed if run.group):
        members = [run for run in timed if run.group == group]
        if len(members) < minimum_group:
            continue
        members.sort(key=lambda run: predicted_s[id(run)])
        seconds = [float(run.step_time_s or 0.0) for run in members]
        seconds_of_safe = [float(run.step_time_s or 0.0) for run in members if is_safe[id(run)]]
        top1, top3, top5 = (min(seconds[:count]) / min(seconds) - 1.0 for count in (1, 3, 5))
        gated = [_regret(seconds_of_safe[:count], min(seconds)) for count in (1, 3, 5)]
        regrets.append(
            GroupRegret(
                group=group,
                n=len(members),
                regret_top1=top1,
                regret_top3=top3,
                regret_top5=top5,
                num_safe=len(seconds_of_safe),
                regret_top1_gated=gated[0],
                regret_top3_gated=gated[1],
                regret_top5_gated=gated[2],
            )
        )
    return tuple(regrets)


def _regret(offered_s: Sequence[float], best_s: float) -> float | None:
    """Return how much slower the best of the offered layouts is than the best; None if none is offered."""
    return min(offered_s) / best_s - 1.0 if offered_s else None
