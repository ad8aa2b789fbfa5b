"""Fit constants to measured runs, and correct them with measured runs.

In: the runs of a CSV. Out: a `Calibration`, or a file of constants in the format that Flatout ships.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from flatout.errors import InputError, OutputError
from flatout.plan.calibrate import Array, Calibration, fit, predict_logs, prior, update
from flatout.plan.constants import NAMES
from flatout.plan.fits import MemoryCalibration, Outcome, with_outcomes
from flatout.plan.memory import MemoryConstants
from flatout.plan.memory_fit import NAMES as MEMORY_NAMES
from flatout.plan.memory_fit import fit_memory
from flatout.plan.runs import MeasuredRun, as_inputs, read_runs
from flatout.plan.shipped import HeldOut, StoredConstants

# No published run is off by a fifth of this. Beyond it, the file has other units, another batch or another model.
MOST_OFF = 20.0


def fit_and_write(runs: list[MeasuredRun], path: Path, *, force: bool = False) -> Calibration:
    """Fit all timed runs and store the result. Raise OutputError if the file exists and `force` is not given."""
    if path.exists() and not force:
        raise OutputError(f"`{path}` already exists", hint="pass another name, or --force")
    timed = [run for run in runs if run.step_time_s is not None]
    fitted, memory = _fitted(runs)
    sources = sorted({run.source for run in runs})
    without = {} if len(sources) == 1 else {source: _fitted_without(source, runs) for source in sources}
    stored = StoredConstants(
        schema="flatout/plan-constants",
        num_runs=len(timed),
        sources=tuple(sources),
        logs=_rounded_logs(fitted),
        covariance=_rounded_covariance(fitted),
        memory=_rounded_memory(memory),
        without=without,
    )
    path.write_bytes(msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n")
    return fitted


def _fitted(runs: list[MeasuredRun]) -> tuple[Calibration, MemoryConstants]:
    timed = [run for run in runs if run.step_time_s is not None]
    constants = fit(as_inputs(timed), np.log(_seconds(timed)), [run.source for run in timed]) if timed else prior()
    return constants, fit_memory(runs)


def _fitted_without(source: str, runs: list[MeasuredRun]) -> HeldOut:
    fitted, memory = _fitted([run for run in runs if run.source != source])
    return HeldOut(logs=_rounded_logs(fitted), covariance=_rounded_covariance(fitted), memory=_rounded_memory(memory))


def _rounded_logs(fitted: Calibration) -> dict[str, float]:
    return {name: round(float(value), 5) for name, value in zip(NAMES, fitted.logs, strict=True)}


def _rounded_covariance(fitted: Calibration) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(float(value), 6) for value in row) for row in fitted.covariance)


def _rounded_memory(memory: MemoryConstants) -> dict[str, float]:
    return {name: float(f"{getattr(memory, name):.4g}") for name in MEMORY_NAMES}


def runs_of_rows(path: Path) -> tuple[list[MeasuredRun], int]:
    """Return the runs of a CSV, and the number of its rows. Raise InputError if no run has a step time."""
    runs, rows_read = read_runs(path)
    if all(run.step_time_s is None for run in runs):
        raise InputError(
            f"`{path}` must have runs with a step time, but of its {rows_read} rows none can be used",
            hint="docs/how-to/plan.md lists the columns; three runs with different layouts are enough",
        )
    return runs, rows_read


def memory_corrected_by(runs: list[MeasuredRun], before: MemoryCalibration) -> MemoryCalibration:
    """Return the memory model corrected by runs: by their peaks, and by whether they ran."""
    outcomes = [Outcome(run.peak_memory_bytes, run.ran_out_of_memory) for run in runs]
    return with_outcomes(as_inputs(runs), outcomes, before)


def corrected_by(runs: list[MeasuredRun], constants: Calibration) -> Calibration:
    """Return the constants corrected by the runs that have a step time.

    Raise InputError if a step time is too far from its prediction for any run of this kind.
    """
    timed = [run for run in runs if run.step_time_s is not None]
    inputs, seconds = as_inputs(timed), _seconds(timed)
    predicted = np.exp(predict_logs(inputs, constants)[0])
    ratios = seconds / predicted
    worst = int(np.argmax(np.abs(np.log(ratios))))
    if not 1 / MOST_OFF < ratios[worst] < MOST_OFF:
        raise InputError(
            f"a measured step must be within {MOST_OFF:.0f} times of the predicted one, but number {worst + 1} of the "
            f"runs took {seconds[worst]:,.4g} s where {predicted[worst]:,.4g} s are predicted",
            hint="step_time_s is in seconds, for the whole global batch",
        )
    return update(inputs, np.log(seconds), constants)


def _seconds(timed: list[MeasuredRun]) -> Array:
    return np.array([run.step_time_s for run in timed], dtype=np.float64)
