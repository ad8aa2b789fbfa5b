"""A plain CSV: submit_s, num_gpus and duration_s, and any of the other columns below. An empty value is unknown.

submit_s may be a number or a time as 2026-01-31 12:00:00; gpu_types are separated by spaces.
"""

from __future__ import annotations

from pathlib import Path

from flatout.errors import InputError
from flatout.schedule.jobs import ClusterJob, JobHistory, by_submission
from flatout.schedule.load.rows import left_out, number, rows, whole
from flatout.schedule.load.times import time_s

COLUMNS = ("submit_s", "num_gpus", "duration_s")
OPTIONAL = (
    *("name", "user", "team", "gpu_share", "gpu_types", "priority", "limit_s", "checkpoint_s", "restart_s"),
    *("min_gpus", "max_gpus", "scaling", "utilization", "phases"),
)


def load(path: Path) -> JobHistory:
    jobs: list[ClusterJob] = []
    skipped: dict[str, int] = {}
    for line, row in rows(path, COLUMNS, OPTIONAL):
        if not row[1] or not row[2]:
            left_out(skipped, "no duration" if row[1] else "no GPUs")
            continue
        job = _job(path, line, row)
        if job.duration_s <= 0 or job.num_gpus <= 0:
            left_out(skipped, "no duration" if job.num_gpus > 0 else "no GPUs")
            continue
        jobs.append(job)
    return JobHistory(jobs=by_submission(jobs), source="CSV", left_out=skipped)


def _job(path: Path, line: int, row: list[str]) -> ClusterJob:
    values = dict(zip((*COLUMNS, *OPTIONAL), row, strict=True))

    def amount(column: str, low: float, high: float = 1e12) -> float | None:
        if not values[column]:
            return None
        value = number(path, line, column, values[column])
        if not low <= value <= high:
            raise InputError(
                f"{path}, line {line}: {column} must be from {low:g} to {high:g}, but is {values[column]!r}"
            )
        return value

    def count(column: str) -> int | None:
        return whole(path, line, column, values[column]) if amount(column, 1) is not None else None

    submit = values["submit_s"]
    gpus, share = whole(path, line, "num_gpus", values["num_gpus"]), amount("gpu_share", 0.001, 1)
    if share is not None and share < 1 and gpus != 1:
        raise InputError(f"{path}, line {line}: only a job of one GPU may have a gpu_share below 1, but it has {gpus}")
    duration = number(path, line, "duration_s", values["duration_s"])
    low, high = count("min_gpus"), count("max_gpus")
    if (low or gpus) > gpus or (high or gpus) < gpus:
        raise InputError(
            f"{path}, line {line}: min_gpus <= num_gpus <= max_gpus must hold, but is {low}, {gpus}, {high}"
        )
    scaling = amount("scaling", 0, 1)
    return ClusterJob(
        submit_s=time_s(path, line, "submit_s", submit)
        if "-" in submit[1:] and ":" in submit
        else number(path, line, "submit_s", submit),
        num_gpus=gpus,
        duration_s=duration,
        name=values["name"],
        user=values["user"],
        team=values["team"],
        gpu_share=1.0 if share is None else share,
        gpu_types=tuple(values["gpu_types"].split()),
        priority=whole(path, line, "priority", values["priority"]) if values["priority"] else 0,
        limit_s=amount("limit_s", 1),
        checkpoint_s=amount("checkpoint_s", 1),
        restart_s=amount("restart_s", 0),
        min_gpus=low if low is not None or high is None else gpus,
        max_gpus=high,
        scaling=0.9 if scaling is None else scaling,
        utilization=amount("utilization", 0, 1),
        phases=_phases(path, line, values["phases"], duration),
    )


def _phases(path: Path, line: int, text: str, duration_s: float) -> tuple[float, ...]:
    found = tuple(number(path, line, "phases", piece) for piece in text.split())
    if found and (min(found) < 0 or abs(sum(found) - duration_s) > 1e-6 * duration_s + 1e-3):
        raise InputError(
            f"{path}, line {line}: phases must be seconds of 0 or more that sum to duration_s, but sum to "
            f"{sum(found):g} and {duration_s:g}"
        )
    return found
