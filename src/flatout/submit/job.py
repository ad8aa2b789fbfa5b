"""The job to queue, and its submission as prepared for one scheduler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from flatout.records.submission import Scheduler
from flatout.records.tuning import Tuning
from flatout.submit.canary import Canary
from flatout.submit.options import PodOptions
from flatout.submit.plan_file import Planned


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One job to queue, the same for all schedulers; options for which a scheduler has no setting become notes."""

    tuning: Tuning  # the command, with the changes to apply
    name: str
    folder: Path  # of this submission only; an absolute path
    working_folder: Path
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    time_s: float | None = None  # longest run time
    deadline_s: float | None = None  # time from now by which the job must have ended
    can_resume: bool = False  # the job resumes from its checkpoint when it is started again
    partitions: tuple[str, ...] = ()
    account: str | None = None
    qos: str | None = None
    options: tuple[str, ...] = ()  # for sbatch
    image: str | None = None
    queue: str | None = None  # Kueue's LocalQueue
    planned: Planned | None = None
    canary: Canary | None = None
    pods: PodOptions = PodOptions()  # for Kubernetes
    data_set: str | None = None  # nodes that hold a copy of it are preferred


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A submission that is ready for one scheduler; nothing is written or submitted yet."""

    scheduler: Scheduler
    shown: str  # the command or request, as a user would type it
    files: dict[Path, str]  # to write into the submission's folder
    output: Path | None  # file with the job's output; None: the scheduler keeps the output
    exit_code_file: Path | None
    notes: tuple[str, ...]
    submit: Callable[[], str | None]  # returns the job's ID; None if only files are written
    next_command: Callable[[str | None], str]
