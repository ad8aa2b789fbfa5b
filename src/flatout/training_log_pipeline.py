"""Give the step times in the log of a training to the commands that compare, price, plan and track runs.

In: the path of a log of Megatron-LM, NeMo, DeepSpeed, torchtitan or MLPerf, or of a result of Flatout. Out: a
`ResultFile` for `track`, a `LogChange` for `diff`, the `Totals` of a ledger, and a median step for `plan --calibrate`.
This module composes `read`, `track` and `keep`.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flatout.errors import InputError
from flatout.input_files import open_file, read_bytes
from flatout.keep.account import CLASSES
from flatout.keep.ledger import Totals
from flatout.keep.step_breakdown import PARTED
from flatout.read.training_log import MAX_BYTES, read_training_log
from flatout.records.step_series import LogChange, LogSide, StepSeries
from flatout.records.tracking import Direction, Measure
from flatout.track.facts import ResultFacts
from flatout.track.result_file import ResultFile, read_result

SCHEMA = "training-log"
_HEAD_BYTES = 4096
_DRAWS = 2000
_SAME_WORK = 0.02  # of the samples of a step
MIN_STEPS = 5  # fewer lines say nothing of a usual step
_QUARTILES = (0.25, 0.5, 0.75)
_RATES = (("samples_per_s", "1/s"), ("tokens_per_s", "1/s"), ("flop_per_s", "FLOP/s"))


def read_result_or_log(path: Path) -> ResultFile:
    """Read a result of Flatout, or the log of a training. Raises InputError if it is neither."""
    series = series_of(path)
    if series is None:
        return read_result(path)
    digest = hashlib.sha256(read_bytes(path, max_bytes=MAX_BYTES)).hexdigest()[:32]
    return ResultFile(schema=SCHEMA, digest=digest, facts=_facts(series))


def series_of(path: Path) -> StepSeries | None:
    """Return the steps in the log of a training; None for any other file. Raises InputError if they are too few."""
    series = read_training_log(path) if _is_text(path) else None
    if series is not None and len(series.step_s) < MIN_STEPS:
        raise InputError(
            f"`{path}` must have the times of at least {MIN_STEPS} steps, but is a log of {series.format} with"
            f" {len(series.step_s)}",
            hint="log more steps: in torchtitan's logs, times come from the lines' own time stamps",
        )
    return series


def median_step_s(series: StepSeries) -> float:
    """Return the median step, without the first line."""
    return float(np.median(series.step_s[1:]))


def _is_text(path: Path) -> bool:
    """Whether a file can be a log: results and traces begin with a brace, and other traces are not text."""
    if not path.is_file():
        return False
    try:
        with open_file(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return not head.lstrip().startswith(b"{") and b"\0" not in head


def log_change(a: Path, b: Path) -> LogChange | None:
    """Compare the steps in the logs of two trainings; None if neither is one.

    Raises InputError if only one of them is.
    """
    for path in (a, b):
        if not path.exists():
            raise InputError(f"`{path}` does not exist", hint="check its path")
    series = series_of(a), series_of(b)
    if series[0] is None and series[1] is None:
        return None
    if series[0] is None or series[1] is None:
        log, other = (a, b) if series[1] is None else (b, a)
        raise InputError(
            f"the log of a training is compared with another such log, but `{log}` is one and `{other}` is not",
            hint="pass two logs, or two recordings",
        )
    sides = _side(a, series[0]), _side(b, series[1])
    speedup, speedup_by = _speedup(*sides)
    return LogChange(
        a=sides[0],
        b=sides[1],
        ratio=sides[1].step_s / sides[0].step_s,
        ratio_range=_ratio_range(series[0].step_s[1:], series[1].step_s[1:]),
        speedup=speedup,
        speedup_by=speedup_by,
        has_same_work=_has_same_work(*sides),
    )


def _side(path: Path, series: StepSeries) -> LogSide:
    low, middle, high = (float(each) for each in np.quantile(series.step_s[1:], _QUARTILES))
    rates = {name: float(np.median(values[1:])) if (values := getattr(series, name)) else None for name, _ in _RATES}
    return LogSide(
        path=str(path),
        format=series.format,
        num_lines=len(series.step_s) - 1,
        step_s=middle,
        low_step_s=low,
        high_step_s=high,
        mean_step_s=float(np.mean(series.step_s[1:])),
        **rates,
    )


def _speedup(a: LogSide, b: LogSide) -> tuple[float, str]:
    """Return how many times as fast B is, by the first rate that both logs have, and by which."""
    for name in ("samples_per_s", "tokens_per_s"):
        before, after = getattr(a, name), getattr(b, name)
        if before and after:
            return after / before, name
    return a.step_s / b.step_s, "step_s"


def _has_same_work(a: LogSide, b: LogSide) -> bool | None:
    for name in ("samples_per_s", "tokens_per_s"):
        before, after = getattr(a, name), getattr(b, name)
        if before and after:
            work = before * a.step_s, after * b.step_s
            return bool(abs(work[0] - work[1]) <= _SAME_WORK * max(work))
    return None


def _ratio_range(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, float]:
    """Return a 95 % interval of the ratio of the medians, from blocks of lines drawn again and again.

    Neighbouring steps resemble each other, so whole blocks are drawn.
    """
    random = np.random.default_rng(0)
    medians = [_drawn_medians(np.array(each), random) for each in (a, b)]
    low, high = np.quantile(medians[1] / medians[0], (0.025, 0.975))
    return float(low), float(high)


def _drawn_medians(values: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    length = max(1, round(len(values) ** (1 / 3)))
    num_blocks = math.ceil(len(values) / length)
    starts = random.integers(0, len(values) - length + 1, size=(_DRAWS, num_blocks))
    rows = (starts[:, :, None] + np.arange(length)).reshape(_DRAWS, -1)[:, : len(values)]
    return np.asarray(np.median(values[rows], axis=1))


def log_totals(path: Path, num_devices: int) -> Totals | None:
    """Return the ledger of a training by its log; None for any other file.

    Steps whose numbers were logged before are made again: the training resumed from a checkpoint. Time between the
    lines that is in no step is known only where they have time stamps, and what it was spent on is unknown.
    """
    series = series_of(path)
    return None if series is None else _totals(series, num_devices)


def _totals(series: StepSeries, num_devices: int) -> Totals:
    numbers = np.array(series.number)
    counts = np.diff(numbers, prepend=numbers[0])
    usual = int(np.median(counts[counts > 0])) if (counts > 0).any() else 1
    farthest = np.maximum.accumulate(np.append(numbers[0] - usual, numbers))[:-1]
    is_restart = counts <= 0
    is_restart[0] = False
    counts = np.where(counts > 0, counts, usual)
    num_new = np.clip(numbers - np.maximum(farthest, numbers - counts), 0, counts)
    step_s = np.array(series.step_s)
    start_up_s = max(0.0, float(step_s[0]) - median_step_s(series)) * usual
    spent_s = dict.fromkeys(CLASSES, 0.0)
    spent_s["productive"] = float((num_new * step_s).sum()) - start_up_s
    spent_s["recomputed"] = float(((counts - num_new) * step_s).sum())
    spent_s["start_up"] = start_up_s
    if series.written_s:
        between_s = np.clip(np.diff(series.written_s) - (counts * step_s)[1:], 0, None)
        spent_s["restart"] = float(between_s[is_restart[1:]].sum())
        spent_s["unknown"] = float(between_s[~is_restart[1:]].sum())
    num_restarts = int(is_restart.sum())
    return Totals(
        num_runs=1,
        num_attempts=1 + num_restarts,
        num_hangs=0,
        num_failures=num_restarts,
        num_not_the_jobs=0,
        num_unfinished=0,
        num_bad_lines=series.num_skipped,
        num_devices=num_devices,
        gpu=None,
        num_steps=int(num_new.sum()),
        ns={name: round(seconds * 1e9) * num_devices for name, seconds in spent_s.items()},
        failures=tuple(f"the log resumes before step {number}: why is not in it" for number in numbers[is_restart]),
        not_known=dict.fromkeys(PARTED, f"a log of {series.format} has only whole steps"),
    )


def _facts(series: StepSeries) -> ResultFacts:
    """Return the median step with its quartiles, without the first line: it has the start of the training in it."""
    measures = [_measure("step_s", series.step_s[1:], "s", "lower")]
    for name, unit in _RATES:
        values = getattr(series, name)
        if values:
            measures.append(_measure(name, values[1:], unit, "higher"))
    return ResultFacts(measures=tuple(measures), job=None, environment={"log": str(series.format)})


def _measure(name: str, values: tuple[float, ...], unit: str, direction: Direction) -> Measure:
    low, middle, high = (float(each) for each in np.quantile(values, _QUARTILES))
    return Measure(name=name, value=middle, unit=unit, direction=direction, low=low, high=high)
