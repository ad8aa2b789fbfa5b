"""The constants that Flatout ships, fitted to published runs, with their covariance: `constants.json`.

Written by `flatout plan evaluate RUNS.csv --fit FILE` (the file says from how many runs of which sources).
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from flatout.errors import InputError, OutputError
from flatout.plan.calibrate import Calibration, fit, predict_logs, update
from flatout.plan.constants import NAMES
from flatout.plan.runs import Run, as_case, read_runs

# No published run is off by a fifth as much: beyond it units, batch or model are others than the file says.
MOST_OFF = 20.0
FILE = Path(__file__).with_name("constants.json")


class _Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: str
    num_runs: int
    sources: tuple[str, ...]
    logs: dict[str, float]
    covariance: tuple[tuple[float, ...], ...]


def shipped(path: Path = FILE) -> Calibration:
    """The constants of this version."""
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_Stored)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"`{path}` holds no constants of the planner: {error}") from error
    return Calibration(
        logs=np.array([stored.logs[name] for name in NAMES]),
        covariance=np.array(stored.covariance),
        effects=np.zeros(0),
        num_runs=stored.num_runs,
    )


def shipped_sources(path: Path = FILE) -> tuple[str, ...]:
    """Those that the constants of this version were fitted to."""
    return msgspec.json.decode(path.read_bytes(), type=_Stored).sources


def fit_and_write(runs: list[Run], path: Path, *, force: bool = False) -> Calibration:
    """Fit all timed runs and store the result. OutputError: the file is there and `force` is not given."""
    if path.exists() and not force:
        raise OutputError(f"`{path}` exists already", hint="give another name, or --force")
    timed = [run for run in runs if run.step_time_s is not None]
    seconds = np.array([run.step_time_s for run in timed], dtype=np.float64)
    found = fit(as_case(timed), np.log(seconds), [run.source for run in timed])
    stored = _Stored(
        schema="flatout/plan-constants",
        num_runs=len(timed),
        sources=tuple(sorted({run.source for run in timed})),
        logs={name: round(float(value), 5) for name, value in zip(NAMES, found.logs, strict=True)},
        covariance=tuple(tuple(round(float(value), 7) for value in row) for row in found.covariance),
    )
    path.write_bytes(msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n")
    return found


def calibrated_with(path: Path, known: Calibration) -> Calibration:
    """The constants corrected by the timed runs of one cluster. InputError: none has a step time."""
    return corrected_by(timed_runs(path), known)


def timed_runs(path: Path) -> list[Run]:
    """Those of a CSV that have a step time. InputError: none has."""
    return timed_of_rows(path)[0]


def timed_of_rows(path: Path) -> tuple[list[Run], int]:
    """The same, and how many rows the CSV has."""
    runs, rows_read = read_runs(path)
    timed = [run for run in runs if run.step_time_s is not None]
    if not timed:
        raise InputError(
            f"`{path}` must have runs with a step time, but of its {rows_read} rows none can be used",
            hint="docs/how-to/plan.md lists the columns; three runs with different layouts are enough",
        )
    return timed, rows_read


def corrected_by(timed: list[Run], known: Calibration) -> Calibration:
    """The constants corrected by runs that have a step time. InputError: one that no run of this kind can have."""
    seconds = np.array([run.step_time_s for run in timed], dtype=np.float64)
    predicted = np.exp(predict_logs(as_case(timed), known)[0])
    ratios = seconds / predicted
    worst = int(np.argmax(np.abs(np.log(ratios))))
    if not 1 / MOST_OFF < ratios[worst] < MOST_OFF:
        raise InputError(
            f"a measured step must be within {MOST_OFF:.0f} times of the predicted one, but number {worst + 1} of the "
            f"runs took {seconds[worst]:,.4g} s where {predicted[worst]:,.4g} s are predicted",
            hint="step_time_s is in seconds, for the whole global batch",
        )
    return update(as_case(timed), np.log(seconds), known)
