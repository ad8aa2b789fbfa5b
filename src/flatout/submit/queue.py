"""Put a `JobRequest` into the queue of one scheduler, or show what would be submitted to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flatout.emit.command import tuned_command
from flatout.errors import InputError, UsageError
from flatout.records.submission import SCHEDULERS, Submitted
from flatout.report.command import command_line
from flatout.report.files import write_new
from flatout.submit import kubernetes, ray, slurm
from flatout.submit.canary import note_canary
from flatout.submit.find import FoundScheduler, found_schedulers
from flatout.submit.job import JobRequest, Prepared
from flatout.submit.ray_cluster import RAY_DASHBOARD, is_dashboard_of_another


def prepare(request: JobRequest, scheduler: str | None, environment: Mapping[str, str]) -> Prepared:
    """Prepare the submission to `scheduler` or, without one, to the first scheduler found."""
    if scheduler is not None and scheduler not in SCHEDULERS:
        raise UsageError(f"`--to` must be one of {', '.join(SCHEDULERS)}, but is `{scheduler}`")
    candidates = found_schedulers(environment)
    chosen = scheduler or next((each.scheduler for each in candidates if each.is_there), None)
    if chosen is None:
        raise _no_scheduler(request, candidates)
    if chosen == "slurm":
        return slurm.prepare(request)
    if chosen == "ray":
        return ray.prepare(request, _ray_address(candidates))
    return kubernetes.prepare(request)


def _ray_address(candidates: Sequence[FoundScheduler]) -> str:
    """Return the address of the dashboard, to which the user's command is sent."""
    address = next((each.address for each in candidates if each.address), None)
    if address is None and is_dashboard_of_another():
        raise InputError(
            f"the process that listens at {RAY_DASHBOARD} belongs to another user, and no job of yours is sent to it",
            hint="set RAY_API_SERVER_ADDRESS to the address of your dashboard",
        )
    return address or RAY_DASHBOARD


def _no_scheduler(request: JobRequest, candidates: Sequence[FoundScheduler]) -> InputError:
    looked_for = "; ".join(f"for {each.scheduler}: {each.looked_for}" for each in candidates)
    tuning = request.tuning
    config = ["--config", tuning.config] if tuning.changes.changes and tuning.config else []
    wrapper = ["flatout", "run", *config, *tuning.keep, "--"] if config or tuning.keep else []
    command = command_line([*wrapper, *tuning.command])
    return InputError(f"no scheduler was found ({looked_for})", hint=f"to run it here and now: {command}")


def submit(prepared: Prepared, request: JobRequest) -> str | None:
    """Write the files, submit the job and return its ID; None if only files are written.

    The files are written first, because the job writes next to them, and are removed if the scheduler refuses the job.
    """
    is_new = not request.folder.exists()
    for path, text in prepared.files.items():
        write_new(path, text)
    try:
        job = prepared.submit()
    except BaseException:
        for path in prepared.files:
            path.unlink(missing_ok=True)
        if is_new:
            request.folder.rmdir()
        raise
    if request.canary is not None:
        note_canary(request.canary)
    return job


def submitted(
    prepared: Prepared, request: JobRequest, *, job: str | None, notes: Sequence[str], next_command: str, dry_run: bool
) -> Submitted:
    """Return a record of the submission that was made or would be made."""
    planned = request.planned
    of_canary = (request.canary.note,) if request.canary is not None else ()
    return Submitted(
        scheduler=prepared.scheduler,
        job=job,
        dry_run=dry_run,
        submitted=prepared.shown,
        queued=command_line(tuned_command(request.tuning)),
        num_nodes=request.num_nodes,
        gpus_per_node=request.gpus_per_node,
        plan=str(planned.path) if planned is not None else None,
        layout=planned.layout if planned is not None else None,
        folder=None if dry_run else str(request.folder),
        files=() if dry_run else tuple(str(path) for path in prepared.files),
        output=str(prepared.output) if prepared.output is not None else None,
        exit_code_file=str(prepared.exit_code_file) if prepared.exit_code_file is not None else None,
        notes=(*of_canary, *notes, *prepared.notes),
        next=next_command,
    )
