"""Attempts of jobs as a scheduler's accounting has them: one record for each time that a job had its machines."""

from __future__ import annotations

import msgspec

# Slurm's job states in which the job holds its machines, or may hold them again.
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
    """One row of the accounting. Text that the row leaves empty is None; so is a time that is not known."""

    job: str  # with its array task or its part of a heterogeneous job: `12`, `12_7`, `12+1`
    state: str  # the state alone: `CANCELLED` of `CANCELLED by 1000`
    elapsed_s: float  # with its machines; of a running one, until the accounting was asked
    num_gpus: float  # a MIG slice is its share of a GPU
    gpu_types: dict[str, float] = {}  # of them, those whose type Slurm tells
    num_requested_gpus: float | None = None
    num_nodes: int | None = None
    nodes: str | None = None
    name: str | None = None
    user: str | None = None
    account: str | None = None
    project: str | None = None  # Slurm's wckey, or the column that was asked for
    partition: str | None = None
    qos: str | None = None
    cluster: str | None = None
    # Seconds since 1970 as the cluster's clocks show them: Slurm writes times without their zone.
    submit_s: float | None = None
    eligible_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None  # None while it runs
    time_limit_s: float | None = None  # None: unlimited or not told
    exit_code: int | None = None
    signal: int | None = None
    energy_j: float | None = None  # of its nodes, by their own counters
    line: int  # of the file, from 1

    @property
    def gpu_seconds(self) -> float:
        return self.num_gpus * self.elapsed_s

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING_STATES


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A row that could not be read."""

    line: int
    reason: str


class Attempts(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of accounting holds, and what of it could not be read."""

    path: str
    attempts: tuple[JobAttempt, ...]  # in the file's order
    num_rows: int  # of attempts, steps, repeated and unreadable ones together
    num_steps: int = 0  # rows of a job's steps: their time is their job's
    num_repeated: int = 0  # rows that say again, word for word, what an earlier one said
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a job while it had its GPUs: means over them and over its time."""

    job: str
    busy_share: float | None = None  # of the time, the GPUs did something
    power_w: float | None = None  # of one GPU
    checkpoint_interval_s: float | None = None  # how often it saves what it has


class JobTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulator needs of a job's attempt."""

    job: str
    submit_s: float
    start_s: float | None
    end_s: float | None
    elapsed_s: float
    num_gpus: float
    user: str | None
    account: str | None
    state: str


def job_times(found: Attempts) -> tuple[JobTimes, ...]:
    """Attempts with GPUs and a known submission, by it. A waiting one counts with what it asked for."""
    times = (
        JobTimes(
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
        for attempt in found.attempts
        if attempt.submit_s is not None
    )
    return tuple(sorted((each for each in times if each.num_gpus), key=lambda each: (each.submit_s, each.job)))
