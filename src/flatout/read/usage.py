"""Read a CSV of measurements per job into a `Usage` by job.

    job,busy_share,power_w,checkpoint_interval_s
    4711,0.82,415,1800
    4712_3,0.00,,

`busy_share` is the mean share of the time in which the job's GPUs were busy, from 0 to 1, e.g. the mean of
DCGM_FI_DEV_GPU_UTIL / 100 during the job. `power_w` is the mean power per GPU. An empty cell means that the value is
unknown. All columns except `job` are optional, and other columns are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from flatout.errors import InputError
from flatout.read.csv_rows import Row, csv_table
from flatout.records.attempts import Usage

_LIMITS: dict[str, tuple[Callable[[float], bool], str]] = {
    "busy_share": (lambda value: 0 <= value <= 1, "a share from 0 to 1"),
    "power_w": (lambda value: 0 <= value < 1e5, "watts of one GPU"),
    "checkpoint_interval_s": (lambda value: 0 < value < math.inf, "seconds above 0"),
}


def read_usage(path: Path) -> dict[str, Usage]:
    """Read the file. Raises InputError (one line, with the line number) for values out of range and duplicate jobs."""
    found: dict[str, Usage] = {}
    with csv_table(path) as reader:
        names = reader.fieldnames or ()
        if "job" not in names or not _LIMITS.keys() & set(names):
            raise InputError(
                f"`{path}` must have the column job and one of {', '.join(_LIMITS)}, but has {', '.join(names)}"
            )
        for row in reader:
            usage = _usage(f"`{path}`, line {reader.line_num}", row)
            if usage.job in found:
                raise InputError(f"`{path}`, line {reader.line_num}: job {usage.job} is there twice")
            found[usage.job] = usage
    return found


def _usage(where: str, row: Row) -> Usage:
    job = (row["job"] or "").strip()
    if not job:
        raise InputError(f"{where}: `job` is empty")
    values: dict[str, float | None] = dict.fromkeys(_LIMITS)
    for name, (is_valid, what) in _LIMITS.items():
        text = (row.get(name) or "").strip()
        if not text:
            continue
        try:
            values[name] = float(text)
        except ValueError:
            values[name] = math.nan
        if not is_valid(values[name] or 0.0):
            raise InputError(f"{where}: {name} must be {what}, but is `{text}`")
    return Usage(job=job, **values)
