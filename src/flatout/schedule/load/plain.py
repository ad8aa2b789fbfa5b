"""A plain CSV: submit_s, num_gpus and duration_s, and any of the columns below. An empty cell means unknown.

submit_s can be a number or a time such as 2026-01-31 12:00:00; gpu_types are separated by spaces. gpu_memory_gib is per
GPU; memory_gib, cpus and network_gbit_per_s are what each of the job's nodes must have. A job with a dataset prefers
nodes on which an earlier job has left it; stage_s is the time to copy it to nodes that do not hold it.
"""

from __future__ import annotations

from pathlib import Path

from flatout.errors import InputError
from flatout.schedule.jobs import ClusterJob, JobHistory, by_submission
from flatout.schedule.load.rows import LONGEST_JOB_S, Skipped, number, rows, whole
from flatout.schedule.load.times import time_s

COLUMNS = ("submit_s", "num_gpus", "duration_s")
OPTIONAL = (
    *("name", "user", "team", "gpu_share", "gpu_types", "priority", "limit_s", "checkpoint_s", "restart_s"),
    *("min_gpus", "max_gpus", "scaling", "utilization", "phases"),
    *("gpu_memory_gib", "memory_gib", "cpus", "network_gbit_per_s"),
    *("dataset", "stage_s"),
)
_MOST = 1e12


def load(path: Path) -> JobHistory:
    jobs: list[ClusterJob] = []
    skipped = Skipped()
    for line, texts in rows(path, COLUMNS, OPTIONAL):
        row = _Row(path, line, dict(zip((*COLUMNS, *OPTIONAL), texts, strict=True)))
        if not row.text("num_gpus"):
            skipped.add("no GPUs")
            continue
        if not row.text("duration_s"):
            skipped.add("no duration")
            continue
        job = _job(row)
        if job.num_gpus <= 0:
            skipped.add("no GPUs")
        elif job.duration_s <= 0:
            skipped.add("no duration")
        else:
            jobs.append(job)
    return JobHistory(jobs=by_submission(jobs), source="CSV", skipped=skipped.counts)


class _Row:
    """The values of one row by column; an invalid value raises an InputError that names the line."""

    def __init__(self, path: Path, line: int, texts: dict[str, str]) -> None:
        self._path, self._line, self._texts = path, line, texts

    def text(self, column: str) -> str:
        return self._texts[column]

    def number(self, column: str) -> float:
        return number(self._path, self._line, column, self._texts[column])

    def whole(self, column: str) -> int:
        return whole(self._path, self._line, column, self._texts[column])

    def amount(self, column: str, low: float, high: float = _MOST) -> float | None:
        """Return a number within limits; None if the value is empty."""
        if not self._texts[column]:
            return None
        value = self.number(column)
        if not low <= value <= high:
            raise self.error(f"{column} must be from {low:g} to {high:g}, but is {self._texts[column]!r}")
        return value

    def count(self, column: str) -> int | None:
        """Return a whole number of at least 1; None if the value is empty."""
        if self.amount(column, 1) is None:
            return None
        return self.whole(column)

    def submit_s(self) -> float:
        text = self._texts["submit_s"]
        is_date_and_time = "-" in text[1:] and ":" in text
        if is_date_and_time:
            return time_s(self._path, self._line, "submit_s", text)
        return self.number("submit_s")

    def phases(self, duration_s: float) -> tuple[float, ...]:
        texts = self._texts["phases"].split()
        lengths_s = tuple(number(self._path, self._line, "phases", text) for text in texts)
        if not lengths_s:
            return ()
        sums_to_duration = abs(sum(lengths_s) - duration_s) <= 1e-6 * duration_s + 1e-3
        if min(lengths_s) < 0 or not sums_to_duration:
            raise self.error(
                "phases must be seconds of at least 0 that sum to duration_s, but sum to "
                f"{sum(lengths_s):g} and {duration_s:g}"
            )
        return lengths_s

    def error(self, problem: str) -> InputError:
        return InputError(f"{self._path}, line {self._line}: {problem}")


def _job(row: _Row) -> ClusterJob:
    num_gpus = row.whole("num_gpus")
    gpu_share = row.amount("gpu_share", 0.001, 1)
    if gpu_share is not None and gpu_share < 1 and num_gpus != 1:
        raise row.error(f"only a job with one GPU can have a gpu_share below 1, but it has {num_gpus}")
    duration_s = row.number("duration_s")
    if duration_s > LONGEST_JOB_S:
        raise row.error(
            f"duration_s must be at most {LONGEST_JOB_S:,.0f} (ten years), but is {duration_s:,.0f}; "
            "is it in milliseconds?"
        )
    min_gpus, max_gpus = _gpu_range(row, num_gpus)
    scaling = row.amount("scaling", 0, 1)
    return ClusterJob(
        submit_s=row.submit_s(),
        num_gpus=num_gpus,
        duration_s=duration_s,
        name=row.text("name"),
        user=row.text("user"),
        team=row.text("team"),
        gpu_share=1.0 if gpu_share is None else gpu_share,
        gpu_types=tuple(row.text("gpu_types").split()),
        priority=row.whole("priority") if row.text("priority") else 0,
        limit_s=row.amount("limit_s", 1),
        checkpoint_s=row.amount("checkpoint_s", 1),
        restart_s=row.amount("restart_s", 0),
        min_gpus=min_gpus,
        max_gpus=max_gpus,
        scaling=0.9 if scaling is None else scaling,
        utilization=row.amount("utilization", 0, 1),
        gpu_memory_bytes=(row.amount("gpu_memory_gib", 0) or 0.0) * 2**30,
        memory_bytes=(row.amount("memory_gib", 0) or 0.0) * 2**30,
        num_cpus=row.amount("cpus", 0) or 0.0,
        network_bits_per_s=(row.amount("network_gbit_per_s", 0) or 0.0) * 1e9,
        phases=row.phases(duration_s),
        dataset=row.text("dataset"),
        stage_s=_stage_s(row),
    )


def _stage_s(row: _Row) -> float:
    """Return the time to copy the job's data set to its nodes."""
    stage_s = row.amount("stage_s", 0, LONGEST_JOB_S) or 0.0
    if stage_s and not row.text("dataset"):
        raise row.error("stage_s needs a dataset, but there is none")
    return stage_s


def _gpu_range(row: _Row, num_gpus: int) -> tuple[int | None, int | None]:
    """Return the range of an elastic job; a job with only a maximum has `num_gpus` as its minimum."""
    low, high = row.count("min_gpus"), row.count("max_gpus")
    if (low or num_gpus) > num_gpus or (high or num_gpus) < num_gpus:
        raise row.error(f"min_gpus <= num_gpus <= max_gpus must hold, but is {low}, {num_gpus}, {high}")
    if low is None and high is not None:
        low = num_gpus
    return low, high
