"""A job of a history: what was asked for, how long it ran, and what interrupting it costs.

Times are seconds; `submit_s` counts from any fixed origin. What a history does not say is `None` or empty, and then the
replay's own assumptions hold (`Assumptions`), which every result names.
"""

from __future__ import annotations

import msgspec

HOUR = 3600.0


class ClusterJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `duration_s` is its time on `num_gpus` GPUs of speed 1, uninterrupted."""

    submit_s: float
    num_gpus: int
    duration_s: float
    name: str = ""
    user: str = ""
    team: str = ""  # virtual cluster, account or project: who owns a share and pays
    gpu_share: float = 1.0  # of the one GPU, for MIG, MPS or shards; only with `num_gpus == 1`
    gpu_types: tuple[str, ...] = ()  # the types it may run on; empty: any
    type_speeds: tuple[tuple[str, float], ...] = ()  # speed on a type, relative to `duration_s`; 1 where it isn't named
    num_cpus: float = 0.0
    memory_bytes: float = 0.0
    priority: int = 0  # higher is more urgent
    limit_s: float | None = None  # the time limit that the user gave
    checkpoint_s: float | None = None  # interval between checkpoints
    restart_s: float | None = None  # from being placed again to the first new step
    min_gpus: int | None = None  # an elastic job runs on `min_gpus` to `max_gpus`
    max_gpus: int | None = None
    scaling: float = 0.9  # exponent of an elastic job's speed: (gpus / num_gpus) ** scaling
    # Seconds of work and of holding the GPUs without using them, in turn, beginning with work; they sum to
    # `duration_s`. Empty: it works all the time.
    phases: tuple[float, ...] = ()
    utilization: float | None = None  # of its GPUs while it works, 0 to 1, for packing; None: unknown


class Assumptions(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for jobs that say nothing of their own."""

    checkpoint_s: float = 1800.0
    restart_s: float = 180.0


class JobHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A history as read: the jobs in order of submission, and what was left out and why, with counts."""

    jobs: tuple[ClusterJob, ...]
    source: str
    left_out: dict[str, int] = {}
    notes: tuple[str, ...] = ()


def by_submission(jobs: list[ClusterJob]) -> tuple[ClusterJob, ...]:
    """By submission; jobs of the same second keep the order of the file."""
    return tuple(sorted(jobs, key=lambda job: job.submit_s))
