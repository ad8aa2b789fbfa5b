"""What is to be queued, and what that means to one scheduler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from flatout.records.submission import Scheduler
from flatout.records.tuning import Tuning
from flatout.submit.plan_file import Planned


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One job to queue, the same for all schedulers; what a scheduler has no setting for becomes a note."""

    tuning: Tuning  # the command, with the changes to apply
    name: str
    folder: Path  # of this submission, absolute
    working_folder: Path
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    time_s: float | None = None  # longest run time
    deadline_s: float | None = None  # from now until the job must have ended
    can_resume: bool = False  # from its checkpoint, when it is started again
    partitions: tuple[str, ...] = ()
    account: str | None = None
    qos: str | None = None
    options: tuple[str, ...] = ()  # of sbatch
    image: str | None = None
    queue: str | None = None  # Kueue's LocalQueue
    planned: Planned | None = None


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A submission to one scheduler that is ready; nothing is written or submitted yet."""

    scheduler: Scheduler
    shown: str  # the command or request, as one would type it
    files: dict[Path, str]  # to write into the submission's folder
    output: Path | None  # file with what the job prints; None: the scheduler keeps it
    exit_code_file: Path | None
    notes: tuple[str, ...]
    submit: Callable[[], str | None]  # returns the job's number; None where only files are written
    next_command: Callable[[str | None], str]
