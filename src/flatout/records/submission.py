"""The job that `flatout submit` submitted, or would submit: the contract `flatout/submission`."""

from __future__ import annotations

from typing import Literal

import msgspec

Scheduler = Literal["slurm", "ray", "kubernetes"]
SCHEDULERS: tuple[Scheduler, ...] = ("slurm", "ray", "kubernetes")


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """One submission."""

    scheduler: Scheduler
    job: str | None  # None: nothing was submitted
    dry_run: bool
    submitted: str  # the command or request, as one would type it
    queued: str  # the job's command, wrapped in `flatout run` if that keeps it alive
    num_nodes: int | None  # as requested; None: the scheduler's own default
    gpus_per_node: int | None
    plan: str | None  # the file of --plan
    layout: str | None  # fastest layout of the plan; the command's own arguments must select it
    folder: str | None
    files: tuple[str, ...]
    output: str | None
    exit_code_file: str | None
    notes: tuple[str, ...]
    next: str
