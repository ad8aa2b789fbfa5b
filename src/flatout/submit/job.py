"""What is to be queued, what that means to a scheduler, and what it answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from flatout.records.tuning import Tuning

Scheduler = Literal["slurm", "ray", "kubernetes"]
SCHEDULERS: tuple[Scheduler, ...] = ("slurm", "ray", "kubernetes")


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The same for all schedulers; what one of them has no setting for becomes a note."""

    tuning: Tuning  # the command, with what was tuned
    name: str
    folder: Path  # of this submission, absolute
    working_folder: Path
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    time_s: float | None = None  # the most that it may run
    deadline_s: float | None = None  # from now on, by when it must have ended
    can_resume: bool = False  # it goes on from its checkpoint when it is started again
    partitions: tuple[str, ...] = ()
    account: str | None = None
    qos: str | None = None
    options: tuple[str, ...] = ()  # of sbatch
    image: str | None = None
    queue: str | None = None  # Kueue's LocalQueue


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is written or submitted yet."""

    scheduler: Scheduler
    shown: str  # the command or request, as one would type it
    files: dict[Path, str]  # to write into the submission's folder
    output: Path | None  # where what the job prints comes to lie; None: the scheduler keeps it
    exit_code_file: Path | None
    notes: tuple[str, ...]
    submit: Callable[[], str | None]  # the job's number; None where only files are written
    next_command: Callable[[str | None], str]


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """For JSON."""

    scheduler: Scheduler
    job: str | None  # None: nothing was submitted
    dry_run: bool
    submitted: str
    queued: str  # the command of the job, with `flatout run` around it where that keeps it alive
    num_nodes: int | None  # as asked for; None: the scheduler's own default
    gpus_per_node: int | None
    plan: str | None  # the file of --plan
    layout: str | None  # that the plan found fastest; the command's own arguments must say it
    folder: str | None
    files: tuple[str, ...]
    output: str | None
    exit_code_file: str | None
    notes: tuple[str, ...]
    next: str
