"""Replay measured runs to determine the prediction errors, with constants that were not fitted to the runs' source.

In: the runs of a CSV. Out: errors by source, and for each group of layouts, how much slower the layouts predicted to
be best are than the layout measured to be best. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flatout.errors import InputError
from flatout.plan.calibrate import Z_90, Calibration, fit, most_informative, predict_logs, update
from flatout.plan.fits import SAFE, out_of_memory_probability
from flatout.plan.memory import MemoryConstants, memory
from flatout.plan.runs import MeasuredRun, as_inputs
from flatout.plan.shipped import shipped as shipped_constants
from flatout.plan.shipped import shipped_sources
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
    were not fitted to it: those of this version if possible, else a fit to all other sources in the file. Raise
    InputError if no row can be replayed, or if all rows are from one source and no other constants are available.
    """
    if not runs:
        raise InputError(
            f"no row of {rows_read} can be replayed", hint="docs/how-to/plan.md says which columns a row needs"
        )
    timed = [run for run in runs if run.step_time_s is not None]
    accuracies: list[SourceAccuracy] = []
    predicted_s: dict[int, float] = {}  # keyed by id(run)
    for source in dict.fromkeys(run.source for run in runs):
        constants = shipped or _constants_without(source, timed)
        predicted = _predict([run for run in timed if run.source == source], constants)
        accuracies.append(_accuracy(source, [run for run in runs if run.source == source], predicted))
        for run, log in zip(predicted.runs, predicted.logs, strict=True):
            predicted_s[id(run)] = float(np.exp(log))
    return PlanEvaluation(
        sources=tuple(accuracies),
        groups=_regrets(timed, predicted_s, minimum_group),
        mape=_mean(accuracy.mape for accuracy in accuracies),
        mape_calibrated=_mean(accuracy.mape_calibrated for accuracy in accuracies),
        mape_calibrated_random=_mean(accuracy.mape_calibrated_random for accuracy in accuracies),
        coverage_90=_mean(accuracy.coverage_90 for accuracy in accuracies),
        rows_read=rows_read,
        rows_used=len(runs),
        held_out="none" if shipped is not None else "source",
    )


def _constants_without(source: str, timed: Sequence[MeasuredRun]) -> Calibration:
    """Return constants that were fitted without any run of the source."""
    if source not in shipped_sources():
        return shipped_constants()
    others = [run for run in timed if run.source != source]
    if not others:
        raise InputError(
            f"holding out a source needs at least two sources, but every row is from `{source}`",
            hint="--shipped uses the constants that Flatout ships",
        )
    return fit(as_inputs(others), _measured_logs(others), [run.source for run in others])


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


def _accuracy(source: str, runs: Sequence[MeasuredRun], predicted: _Predicted) -> SourceAccuracy:
    """Return the errors of one source; `runs` are all of its rows, including those without a step time."""
    differences = predicted.logs - predicted.measured_logs
    errors = np.expm1(differences)
    is_inside = (np.abs(differences) <= Z_90 * predicted.deviations).astype(np.float64)
    chosen, drawn = _calibrated(predicted)
    repeats = _repeats(predicted.runs)
    memory_errors = _memory_errors(runs)
    out_of_memory = [run for run in runs if run.ran_out_of_memory]
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
        out_of_memory_rows=len(out_of_memory),
        out_of_memory_called_safe=_num_called_safe(out_of_memory),
    )


def _num_called_safe(out_of_memory: Sequence[MeasuredRun]) -> int:
    """Return the number of runs that ran out of memory although a plan would have called them safe."""
    if not out_of_memory:
        return 0
    return int((out_of_memory_probability(as_inputs(out_of_memory), MemoryConstants()) < SAFE).sum())


def _memory_errors(runs: Sequence[MeasuredRun]) -> Array:
    """Return the relative error of the predicted peak memory of each run whose measured peak is known."""
    with_peak = [run for run in runs if run.peak_memory_bytes is not None]
    if not with_peak:
        return np.zeros(0)
    measured = np.array([run.peak_memory_bytes for run in with_peak], dtype=np.float64)
    return np.asarray(memory(as_inputs(with_peak), MemoryConstants()).total / measured - 1.0)


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
    timed: Sequence[MeasuredRun], predicted_s: dict[int, float], minimum_group: int
) -> tuple[GroupRegret, ...]:
    """Return, per group, how much slower the best of the k fastest predicted layouts is than the best, as measured."""
    regrets = []
    for group in dict.fromkeys(run.group for run in timed if run.group):
        members = [run for run in timed if run.group == group]
        if len(members) < minimum_group:
            continue
        members.sort(key=lambda run: predicted_s[id(run)])
        seconds = [float(run.step_time_s or 0.0) for run in members]
        top1, top3, top5 = (min(seconds[:count]) / min(seconds) - 1.0 for count in (1, 3, 5))
        regrets.append(GroupRegret(group=group, n=len(members), regret_top1=top1, regret_top3=top3, regret_top5=top5))
    return tuple(regrets)
