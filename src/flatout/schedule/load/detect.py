"""Detect the format of a job history from its first row, and read it.

In: a file. Out: a `JobHistory`. A file of an unknown format is an InputError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.schedule.jobs import JobHistory
from flatout.schedule.load import acme, gavel, helios, openb, philly, plain
from flatout.schedule.load.rows import LONGEST_JOB_S, SHORTEST_JOB_S, header

# In order of preference: the first format whose columns are all present is used.
FORMATS: tuple[tuple[str, tuple[str, ...], Callable[[Path], JobHistory]], ...] = (
    ("plain", plain.COLUMNS, plain.load),
    ("philly", philly.COLUMNS, philly.load),
    ("openb", openb.COLUMNS, openb.load),
    ("acme", acme.COLUMNS, acme.load),
    ("helios", helios.COLUMNS, helios.load),
)
_MOST_UNREADABLE = 5  # number of reasons that are reported


def load(path: Path) -> JobHistory:
    """Read a history in any of the known formats. Raise InputError, with the field, if a duration is impossible."""
    history = _load(path)
    longest = max(history.jobs, key=lambda job: job.duration_s, default=None)
    if longest is not None and longest.duration_s > LONGEST_JOB_S:
        name = f" of job {longest.name[:60]}" if longest.name else ""
        raise InputError(
            f"{path}: the duration{name} must be at most {LONGEST_JOB_S:,.0f} s (ten years), but is "
            f"{longest.duration_s:,.0f} s",
            hint="durations are in seconds, not in milliseconds",
        )
    shortest = min(history.jobs, key=lambda job: job.duration_s, default=None)
    if shortest is not None and shortest.duration_s < SHORTEST_JOB_S:
        name = f" of job {shortest.name[:60]}" if shortest.name else ""
        raise InputError(
            f"{path}: the duration{name} must be at least {SHORTEST_JOB_S:g} s, but is {shortest.duration_s:.3g} s",
            hint="durations are in seconds; leave the cell empty if the job did not run",
        )
    return history


def _load(path: Path) -> JobHistory:
    if path.suffix == ".trace":
        return gavel.load(path)
    names = {name.strip() for name in header(path)}
    for _, columns, read in FORMATS:
        if names >= set(columns):
            return read(path)
    if any("|" in name for name in names):
        return _sacct(path)
    formats = ", ".join(name for name, _, _ in FORMATS)
    raise InputError(
        f"{path}: its columns must be those of a known job history ({formats}, sacct or gavel), but match none",
        hint=f"a plain CSV needs the columns {', '.join(plain.COLUMNS)}",
    )


def _sacct(path: Path) -> JobHistory:
    from importlib import import_module

    from flatout.schedule.load import attempts

    read = import_module("flatout.read.sacct").read_sacct(path)
    history = attempts.load(read.attempts)
    unreadable = Counter(f"unreadable: {row.reason}" for row in read.left_out)
    if not read.attempts and read.num_steps:
        unreadable["the row describes a job step, not a job"] = read.num_steps
    skipped = {**history.skipped, **dict(unreadable.most_common(_MOST_UNREADABLE))}
    return msgspec.structs.replace(history, skipped=skipped, notes=(*history.notes, *read.notes))
