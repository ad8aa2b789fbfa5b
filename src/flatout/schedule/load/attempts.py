"""Jobs from attempts, as a reader of Slurm's `sacct` gives them.

In: objects with the attributes of `AttemptLike`. Out: jobs; the attempts of one job are put together (it ran for their
sum, and asked for GPUs when it was first submitted). Attempts that hold no GPU or never started are skipped; jobs that
still run count for as long as they have run so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from flatout.schedule.jobs import ClusterJob, JobHistory, by_submission
from flatout.schedule.load.rows import left_out


class AttemptLike(Protocol):
    """What is read of an attempt. None is unknown."""

    @property
    def job(self) -> str: ...
    @property
    def elapsed_s(self) -> float: ...
    @property
    def num_gpus(self) -> float: ...
    @property
    def user(self) -> str | None: ...
    @property
    def account(self) -> str | None: ...
    @property
    def submit_s(self) -> float | None: ...
    @property
    def start_s(self) -> float | None: ...
    @property
    def time_limit_s(self) -> float | None: ...


def load(attempts: Iterable[AttemptLike], *, source: str = "sacct") -> JobHistory:
    found: dict[str, list[AttemptLike]] = {}
    skipped: dict[str, int] = {}
    for attempt in attempts:
        if attempt.num_gpus <= 0:
            left_out(skipped, "no GPUs")
        elif attempt.elapsed_s <= 0:
            left_out(skipped, "never started")
        elif attempt.submit_s is None and attempt.start_s is None:
            left_out(skipped, "no time of submission")
        else:
            found.setdefault(attempt.job, []).append(attempt)
    return JobHistory(jobs=by_submission([_job(each) for each in found.values()]), source=source, left_out=skipped)


def _job(attempts: list[AttemptLike]) -> ClusterJob:
    last = attempts[-1]
    times = [attempt.submit_s if attempt.submit_s is not None else attempt.start_s for attempt in attempts]
    gpus = last.num_gpus
    return ClusterJob(
        submit_s=min(time for time in times if time is not None),
        num_gpus=max(1, round(gpus)),
        gpu_share=gpus if gpus < 1 else 1.0,
        duration_s=sum(attempt.elapsed_s for attempt in attempts),
        name=last.job,
        user=last.user or "",
        team=last.account or "",
        limit_s=last.time_limit_s,
    )
