"""Orders of waiting jobs: functions of a job and a view that return a sort key.

The job with the smallest key starts first. Any other function of this kind can replace them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from flatout.errors import UsageError
from flatout.schedule.live.view import ClusterView, JobView

_UNLIMITED_S = 1e12


class Order(Protocol):
    """Return a sort key; the job with the smallest key starts first. Only keys from the same order are comparable."""

    def __call__(self, job: JobView, view: ClusterView) -> tuple[float, ...]: ...


def fifo(job: JobView, view: ClusterView) -> tuple[float, ...]:
    """Return a key that puts jobs in order of submission."""
    return (job.submit_unix_s,)


def shortest(job: JobView, view: ClusterView) -> tuple[float, ...]:
    """Return a key that puts the shortest predicted duration first; without a prediction, the time limit is used."""
    return (_duration_s(job, view), job.submit_unix_s)


def qssf(job: JobView, view: ClusterView) -> tuple[float, ...]:
    """Return a key that puts the least predicted GPU-time first (quasi-shortest-service-first, Hu et al., SC'21)."""
    return (_duration_s(job, view) * max(job.num_gpus, 1), job.submit_unix_s)


def least_attained(job: JobView, view: ClusterView) -> tuple[float, ...]:
    """Return a key for the least GPU-time so far (Tiresias, NSDI'19), then for the user with the least running."""
    of_user = sum(
        other.ran_s(view.now_unix_s) * other.held_gpus
        for other in view.jobs
        if other.user == job.user and other.state == "running"
    )
    return (view.attained_gpu_s.get(job.id, 0.0), of_user, job.submit_unix_s)


def _duration_s(job: JobView, view: ClusterView) -> float:
    predicted = view.durations_s.get(job.id)
    if predicted is not None:
        return predicted
    return job.time_limit_s if job.time_limit_s is not None else _UNLIMITED_S


# `priority` leaves the order to the scheduler.
ORDERS: Mapping[str, Order | None] = {
    "priority": None,
    "fifo": fifo,
    "shortest": shortest,
    "qssf": qssf,
    "least-attained": least_attained,
}


def order_named(name: str) -> Order | None:
    if name not in ORDERS:
        raise UsageError(f"--policy must be one of {', '.join(ORDERS)}, but is `{name}`")
    return ORDERS[name]
