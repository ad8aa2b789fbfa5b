"""Give the step times in a training's log to the commands that compare and track runs.

In: the path of a log of Megatron-LM, NeMo, DeepSpeed, torchtitan or MLPerf, or of a result of Flatout. Out: a
`ResultFile` for `track`. This module composes `read` and `track`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from flatout.errors import InputError
from flatout.input_files import read_bytes
from flatout.read.training_log import MAX_BYTES, read_training_log
from flatout.records.step_series import StepSeries
from flatout.records.tracking import Direction, Measure
from flatout.track.facts import ResultFacts
from flatout.track.result_file import ResultFile, read_result

SCHEMA = "training-log"
MIN_STEPS = 5  # fewer lines say nothing of a usual step
_QUARTILES = (0.25, 0.5, 0.75)
_RATES = (("samples_per_s", "1/s"), ("tokens_per_s", "1/s"), ("flop_per_s", "FLOP/s"))


def read_result_or_log(path: Path) -> ResultFile:
    """Read a result of Flatout, or the log of a training. Raises InputError if it is neither."""
    series = read_training_log(path) if _is_text(path) else None
    if series is None:
        return read_result(path)
    if len(series.step_s) < MIN_STEPS:
        raise InputError(
            f"`{path}` must have the times of at least {MIN_STEPS} steps, but is a log of {series.format} with"
            f" {len(series.step_s)}",
            hint="log more steps: in torchtitan's logs, times come from the lines' own time stamps",
        )
    digest = hashlib.sha256(read_bytes(path, max_bytes=MAX_BYTES)).hexdigest()[:32]
    return ResultFile(schema=SCHEMA, digest=digest, facts=_facts(series))


def _is_text(path: Path) -> bool:
    """Whether a file can be a log: results of Flatout begin with a brace."""
    try:
        return not read_bytes(path, max_bytes=MAX_BYTES)[:256].lstrip().startswith(b"{")
    except OSError:
        return False


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
