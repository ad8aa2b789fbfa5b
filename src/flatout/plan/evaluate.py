"""Measured runs replayed: how wrong the predictions are, each source by constants that its rows had no part in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flatout.errors import InputError
from flatout.plan.calibrate import Calibration, fit, most_telling, predict_logs, update
from flatout.plan.fits import SAFE, out_of_memory_probability
from flatout.plan.memory import MemoryConstants, memory
from flatout.plan.runs import Run, as_case
from flatout.plan.shipped import shipped as shipped_constants
from flatout.plan.shipped import shipped_sources
from flatout.records.plan import GroupRegret, PlanEvaluation, SourceAccuracy

Array = npt.NDArray[np.float64]

NUM_CALIBRATION_ROWS = 3
# Draws of three rows; their errors are averaged, so that no lucky draw is published.
NUM_DRAWS = 20
# With fewer rows, too few are left to test on.
FEWEST_ROWS = 5
NINE_IN_TEN = 1.6449  # standard deviations of a normal distribution on either side


def evaluate(
    runs: Sequence[Run], rows_read: int, *, shipped: Calibration | None = None, minimum_group: int = 5
) -> PlanEvaluation:
    """Errors by source and regrets by group.

    Without `shipped`, each source is predicted by constants that saw none of its rows: those of this version, if it is
    no source of theirs, else a fit to all other sources of the file. With it, by those alone.
    InputError: no row can be replayed, or all are of one source and there are no other constants.
    """
    if not runs:
        raise InputError(
            f"no row of {rows_read} can be replayed", hint="docs/how-to/plan.md says which columns a row needs"
        )
    timed = [run for run in runs if run.step_time_s is not None]
    sources = list(dict.fromkeys(run.source for run in runs))
    known, known_sources = shipped_constants(), shipped_sources()
    predicted: dict[int, float] = {}
    accuracies = []
    for source in sources:
        others = [run for run in timed if run.source != source]
        if shipped is not None:
            constants = shipped
        elif source not in known_sources:
            constants = known
        elif others:
            constants = fit(as_case(others), _logs(others), [run.source for run in others])
        else:
            raise InputError(
                f"to hold out a source there must be two, but every row is of `{source}`",
                hint="--shipped uses the constants that Flatout ships",
            )
        own = [run for run in timed if run.source == source]
        accuracy, logs = _accuracy(source, [run for run in runs if run.source == source], own, constants)
        accuracies.append(accuracy)
        predicted |= {id(run): float(np.exp(log)) for run, log in zip(own, logs, strict=True)}
    groups = _regrets(timed, predicted, minimum_group)
    return PlanEvaluation(
        sources=tuple(accuracies),
        groups=groups,
        mape=_mean([accuracy.mape for accuracy in accuracies]),
        mape_calibrated=_mean([accuracy.mape_calibrated for accuracy in accuracies]),
        mape_calibrated_random=_mean([accuracy.mape_calibrated_random for accuracy in accuracies]),
        coverage_90=_mean([accuracy.coverage_90 for accuracy in accuracies]),
        rows_read=rows_read,
        rows_used=len(runs),
        held_out="none" if shipped is not None else "source",
    )


def _logs(runs: Sequence[Run]) -> Array:
    return np.log(np.array([run.step_time_s for run in runs], dtype=np.float64))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _accuracy(
    source: str, runs: Sequence[Run], timed: Sequence[Run], constants: Calibration
) -> tuple[SourceAccuracy, Array]:
    logs = np.zeros(0)
    errors = logs
    inside = logs
    if timed:
        measured = _logs(timed)
        logs, deviations = predict_logs(as_case(list(timed)), constants)
        errors = np.expm1(logs - measured)
        inside = (np.abs(logs - measured) <= NINE_IN_TEN * deviations).astype(np.float64)
    peaks = [run for run in runs if run.peak_memory_bytes is not None]
    out = [run for run in runs if run.ran_out_of_memory]
    memory_errors = _memory_errors(peaks)
    chosen, drawn = _calibrated(timed, constants)
    repeats = _repeats(timed)
    called_safe = int((out_of_memory_probability(as_case(out), MemoryConstants()) < SAFE).sum()) if out else 0
    return (
        SourceAccuracy(
            source=source,
            rows=len(timed),
            mape=float(np.mean(np.abs(errors))) if timed else None,
            mape_calibrated=chosen,
            mape_calibrated_random=drawn,
            mape_in_sample=_error_after(timed, np.arange(len(timed)), constants, on_all=True) if timed else None,
            repeated_rows=len(repeats),
            repeats_differ_by=float(np.mean(np.abs(repeats))) if len(repeats) else None,
            bias=float(np.mean(errors)) if timed else None,
            coverage_90=float(np.mean(inside)) if timed else None,
            memory_rows=len(peaks),
            memory_mape=float(np.mean(np.abs(memory_errors))) if peaks else None,
            out_of_memory_rows=len(out),
            out_of_memory_called_safe=called_safe,
        ),
        logs,
    )


def _memory_errors(peaks: Sequence[Run]) -> Array:
    if not peaks:
        return np.zeros(0)
    measured = np.array([run.peak_memory_bytes for run in peaks], dtype=np.float64)
    return np.asarray(memory(as_case(list(peaks)), MemoryConstants()).total / measured - 1.0)


def _calibrated(timed: Sequence[Run], constants: Calibration) -> tuple[float | None, float | None]:
    """Mean error on the other rows, once three have corrected the constants: the three that the model would have
    measured, then the mean of many random three.
    """
    if len(timed) < FEWEST_ROWS:
        return None, None
    generator = np.random.default_rng(0)
    drawn = [generator.choice(len(timed), NUM_CALIBRATION_ROWS, replace=False) for _ in range(NUM_DRAWS)]
    chosen = np.array(most_telling(as_case(list(timed)), constants, NUM_CALIBRATION_ROWS))
    return _error_after(timed, chosen, constants), float(
        np.mean([_error_after(timed, three, constants) for three in drawn])
    )


def _repeats(timed: Sequence[Run]) -> Array:
    """Of rows that nothing tells apart: how far each is from the median of its like, as a share."""
    alike: dict[tuple[float, ...], list[float]] = {}
    for run in timed:
        alike.setdefault(tuple(run.columns.values()), []).append(float(run.step_time_s or 0.0))
    return np.array([one / np.median(each) - 1.0 for each in alike.values() if len(each) > 1 for one in each])


def _error_after(
    timed: Sequence[Run], three: npt.NDArray[np.intp], constants: Calibration, *, on_all: bool = False
) -> float:
    """Mean error on the rows that were not used, or on all."""
    measured = _logs(timed)
    rest = np.arange(len(timed)) if on_all else np.setdiff1d(np.arange(len(timed)), three)
    corrected = update(as_case([timed[row] for row in three]), measured[three], constants)
    logs, _ = predict_logs(as_case([timed[row] for row in rest]), corrected)
    return float(np.mean(np.abs(np.expm1(logs - measured[rest]))))


def _regrets(timed: Sequence[Run], predicted: dict[int, float], minimum: int) -> tuple[GroupRegret, ...]:
    """A group's layouts in the order of their predictions, and the best measured of the first k against the best of
    all.
    """
    regrets = []
    for group in dict.fromkeys(run.group for run in timed if run.group):
        members = [run for run in timed if run.group == group]
        if len(members) < minimum:
            continue
        members.sort(key=lambda run: predicted[id(run)])
        seconds = [float(run.step_time_s or 0.0) for run in members]
        best = min(seconds)
        one, three, five = (min(seconds[:count]) / best - 1.0 for count in (1, 3, 5))
        regrets.append(GroupRegret(group=group, n=len(members), regret_top1=one, regret_top3=three, regret_top5=five))
    return tuple(regrets)
