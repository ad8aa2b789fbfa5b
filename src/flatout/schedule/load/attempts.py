"""Build jobs from attempts, such as those that the reader of Slurm's `sacct` returns.

In: objects with the attributes of `AttemptLike`. Out: jobs; the attempts of one job are combined (it ran for their
sum, and requested GPUs when it was first submitted). Attempts that hold no GPU or never started are skipped; jobs that
still run count for as long as they have run so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from flatout.schedule.jobs import ClusterJob, JobHistory, by_submission
from flatout.schedule.load.rows import Skipped


class AttemptLike(Protocol):
    """The attributes of an attempt that this module reads. None: unknown."""

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
    attempts_of: dict[str, list[AttemptLike]] = {}
    skipped = Skipped()
    for attempt in attempts:
        if attempt.num_gpus <= 0:
            skipped.add("no GPUs")
        elif attempt.elapsed_s <= 0:
            skipped.add("never started")
        elif _submitted_s(attempt) is None:
            skipped.add("no time of submission")
        else:
            attempts_of.setdefault(attempt.job, []).append(attempt)
    jobs = [_job(attempts_of_job) for attempts_of_job in attempts_of.values()]
    return JobHistory(jobs=by_submission(jobs), source=source, skipped=skipped.counts)


def _submitted_s(attempt: AttemptLike) -> float | None:
    """Return the time of submission, or of the start if that is unknown."""
    return attempt.start_s if attempt.submit_s is None else attempt.submit_s


def _job(attempts: Sequence[AttemptLike]) -> ClusterJob:
    last = attempts[-1]
    submitted_s = [_submitted_s(attempt) for attempt in attempts]
    return ClusterJob(
        submit_s=min(time_s for time_s in submitted_s if time_s is not None),
        num_gpus=max(1, round(last.num_gpus)),
        gpu_share=min(1.0, last.num_gpus),
        duration_s=sum(attempt.elapsed_s for attempt in attempts),
        name=last.job,
        user=last.user or "",
        team=last.account or "",
        limit_s=last.time_limit_s,
    )
