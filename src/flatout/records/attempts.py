"""Attempts of jobs from a scheduler's accounting: one record per run of a job on its machines."""

from __future__ import annotations

from typing import Literal

import msgspec

# Slurm's states of a job that holds its machines, or is about to hold them again.
RUNNING_STATES = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "UPDATE_DB"}
)
WAITING_STATES = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "POWER_UP_NODE",
        "EXPEDITING",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
        "REVOKED",
    }
)


class JobAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the accounting. Empty texts and unknown times are None."""

    job: str  # ID with the array task or the component of a heterogeneous job: `12`, `12_7`, `12+1`
    state: str  # the state alone: `CANCELLED` for `CANCELLED by 1000`
    elapsed_s: float  # time on its machines; for a running job, until the query
    num_gpus: float  # a MIG slice counts as its share of a GPU
    gpu_types: dict[str, float] = {}  # number of GPUs by type, for types that Slurm reports
    num_requested_gpus: float | None = None
    num_nodes: int | None = None
    nodes: str | None = None
    name: str | None = None
    user: str | None = None
    account: str | None = None
    project: str | None = None  # Slurm's wckey, or the requested column
    partition: str | None = None
    qos: str | None = None
    cluster: str | None = None
    # Unix seconds in the cluster's local time: Slurm writes times without a time zone.
    submit_s: float | None = None
    eligible_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None  # None while the job runs
    time_limit_s: float | None = None  # None: unlimited or unknown
    exit_code: int | None = None
    signal: int | None = None
    energy_j: float | None = None  # energy of its nodes, from their counters
    line: int  # line in the file, from 1

    @property
    def gpu_seconds(self) -> float:
        return self.num_gpus * self.elapsed_s

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING_STATES


class SkippedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row that could not be read."""

    line: int
    reason: str


# Times are by the cluster's clock without a time zone, as Slurm prints them, or in seconds since 1970.
Clock = Literal["local", "utc"]


class Attempts(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts in an accounting file, and the rows that could not be read."""

    path: str
    attempts: tuple[JobAttempt, ...]  # in the order of the file
    num_rows: int  # attempts, steps, repeated and unreadable rows
    num_steps: int = 0  # rows of job steps, whose time is included in their job
    num_repeated: int = 0  # exact copies of earlier rows
    left_out: tuple[SkippedRow, ...] = ()
    notes: tuple[str, ...] = ()
    clocks: tuple[Clock, ...] = ()  # of the times in the file; two cannot be compared


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Measured use of a job's GPUs: means over the GPUs and over time."""

    job: str
    busy_share: float | None = None  # share of time in which the GPUs were busy
    power_w: float | None = None  # per GPU
    checkpoint_interval_s: float | None = None  # time between checkpoints


class AttemptTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of an attempt that a simulator needs."""

    job: str
    submit_s: float
    start_s: float | None
    end_s: float | None
    elapsed_s: float
    num_gpus: float
    user: str | None
    account: str | None
    state: str


def job_times(history: Attempts) -> tuple[AttemptTimes, ...]:
    """Return attempts with GPUs and a known submission time, in that order. A waiting job counts its requested GPUs."""
    times = (
        AttemptTimes(
            job=attempt.job,
            submit_s=attempt.submit_s,
            start_s=attempt.start_s,
            end_s=attempt.end_s,
            elapsed_s=attempt.elapsed_s,
            num_gpus=attempt.num_gpus or attempt.num_requested_gpus or 0.0,
            user=attempt.user,
            account=attempt.account,
            state=attempt.state,
        )
        for attempt in history.attempts
        if attempt.submit_s is not None
    )
    with_gpus = [job for job in times if job.num_gpus]
    return tuple(sorted(with_gpus, key=lambda job: (job.submit_s, job.job)))
