"""`flatout submit`: one way to queue a command, on whichever scheduler is there."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.diagnose import given_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flatout.cli.submit_plan import Planned
    from flatout.records.tuning import Tuning
    from flatout.submit import JobRequest, Prepared

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")


def submit(
    command: Annotated[list[str], typer.Argument(help="The command, after `--`.", show_default=False)],
    nodes: Annotated[int | None, typer.Option(min=1, metavar="N", help="Machines.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, metavar="N", help="GPUs of each machine.")] = None,
    limit: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="The most that it may run, as 90m, 12h or 2d.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="From now on, by when it must have ended, as 36h.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=given_path, help="What `flatout tune` wrote, to be applied: tuned.toml."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", parser=given_path, help="What `flatout plan --json` printed: so many nodes and GPUs."
        ),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Kept alive by `flatout run`: started again inside its allocation."),
    ] = 0,
    checkpoint_folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", parser=given_path, help="For `flatout run`: how often it saves is chosen."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="PATH", parser=given_path, help="For `flatout run`: the script's checkpoint."),
    ] = None,
    resume_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="ARGUMENT", help="For `flatout run`: the script's own flag to resume, on a restart."),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=given_path, help="For `flatout run`: its goodput ledger.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="It goes on from its checkpoint, so it may be requeued.")
    ] = False,
    to: Annotated[
        str | None, typer.Option(metavar="WHERE", help="slurm, ray or kubernetes; else the first that is found.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the job.")] = None,
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Slurm: where it may run.")] = None,
    account: Annotated[str | None, typer.Option(metavar="NAME", help="Slurm: who is charged.")] = None,
    qos: Annotated[str | None, typer.Option(metavar="NAME", help="Slurm: its quality of service.")] = None,
    sbatch_options: Annotated[
        str | None, typer.Option(metavar="OPTIONS", help="Slurm: more of them, as '--mem=64G --cpus-per-task=8'.")
    ] = None,
    image: Annotated[str | None, typer.Option(metavar="IMAGE", help="Kubernetes: with the command in it.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Kubernetes: Kueue's LocalQueue.")] = None,
    spot_trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=given_path,
            help="Slurm: choose between --spot-partition and --partition by this trace, as `flatout cost spot` does.",
        ),
    ] = None,
    spot_partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Slurm: of machines that may be taken away.")
    ] = None,
    work_hours: Annotated[float | None, typer.Option(metavar="N", help="For --spot-trace: work of the job.")] = None,
    gpu_type: Annotated[str | None, typer.Option(metavar="NAME", help="For --spot-trace: its prices, as h100.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", parser=given_path, help="Where its files go: a new folder.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be submitted, and do nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Queue a command on Slurm, on Ray, or as a manifest for Kubernetes, with what was tuned for it.

    \b
    Examples:
      flatout submit --nodes 2 --gpus 8 --time 12h -- torchrun --nproc-per-node 8 train.py
      flatout submit --config tuned.toml --resume --partition preemptible -- python train.py
      flatout submit --plan plan.json --max-restarts 3 -- torchrun --nproc-per-node 8 train.py
      flatout submit --dry-run --to kubernetes --image registry/train:1 --gpus 8 -- torchrun train.py
    """
    from flatout.cli.cost import time_s
    from flatout.cli.run import check_resume
    from flatout.cli.submit_plan import read_planned
    from flatout.submit import JobRequest

    check_resume(resume_arg, checkpoint, max_restarts)
    planned = read_planned(plan, nodes, gpus) if plan is not None else None
    if planned is not None:
        nodes, gpus = planned.num_nodes, planned.gpus_per_node
    keep = _keep_words(max_restarts, checkpoint_folder, checkpoint, resume_arg, ledger, (nodes or 1) * (gpus or 0))
    now = time.strftime("%Y%m%d-%H%M%S")
    request = JobRequest(
        tuning=_tuning(command, config, nodes, keep),
        name=_job_name(name or f"flatout-{now}"),
        folder=_new_folder(out, now),
        working_folder=Path.cwd(),
        num_nodes=nodes,
        gpus_per_node=gpus,
        time_s=time_s("--time", limit) if limit is not None else None,
        deadline_s=time_s("--deadline", deadline) if deadline is not None else None,
        can_resume=resume,
        partitions=(partition,) if partition is not None else (),
        account=account,
        qos=qos,
        options=_words(sbatch_options),
        image=image,
        queue=queue,
    )
    said: tuple[str, ...] = ()
    if spot_trace is not None:
        request, why = _by_spot(request, spot_trace, spot_partition, work_hours, gpu_type)
        said = (why,)
    prepared = _prepared(request, to)
    job = None if dry_run else _do(prepared, request)
    _tell(prepared, request, planned, job, said, dry_run=dry_run, json=json)


def _keep_words(
    max_restarts: int,
    checkpoint_folder: Path | None,
    checkpoint: Path | None,
    resume_arg: Sequence[str] | None,
    ledger: Path | None,
    num_gpus: int,
) -> tuple[str, ...]:
    """Options for `flatout run`, as it reads them; none where nothing of it is asked for."""
    words = ["--max-restarts", str(max_restarts)] if max_restarts else []
    for option, path in (("--checkpoint-folder", checkpoint_folder), ("--checkpoint", checkpoint)):
        words += [option, str(path)] if path is not None else []
    words += [f"--resume-arg={word}" for word in resume_arg or ()]
    if ledger is not None:
        # NVML sees those of the first node alone.
        words += ["--ledger", str(ledger), *(("--gpus", str(num_gpus)) if num_gpus else ())]
    return tuple(words)


def _tuning(command: list[str], config: Path | None, nodes: int | None, keep: tuple[str, ...]) -> Tuning:
    import msgspec

    from flatout.emit import tuned_toml
    from flatout.records.change import ChangeSet
    from flatout.records.tuning import Tuning

    if config is None:
        tuning = Tuning(command=tuple(command), changes=ChangeSet())
    else:
        tuned = tuned_toml.read(config)
        tuning = Tuning(
            command=tuple(command),
            changes=tuned.change_set(),
            num_trials=tuned.num_trials,
            machine=tuned.machine,
            versions=tuned.versions,
            date=tuned.date,
            config=str(config.resolve()),
        )
    # Of how many machines it was tuned on says nothing of how many it runs on now.
    return msgspec.structs.replace(tuning, keep=keep, machine={**tuning.machine, "num_hosts": str(nodes or 1)})


def _job_name(name: str) -> str:
    from flatout.errors import UsageError

    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"`--name` must begin with a letter and have small letters, digits and `-`, at most 52, but is `{name}`"
        )
    return name


def _new_folder(out: Path | None, now: str) -> Path:
    """Of this submission alone."""
    from flatout.errors import OutputError

    if out is not None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise OutputError(f"`{out}` exists already, and nothing is overwritten", hint="give another --out")
        return out.absolute()
    folder = Path("flatout-out").absolute() / f"submit-{now}"
    number = 2
    while folder.exists():
        folder = folder.with_name(f"submit-{now}-{number}")
        number += 1
    return folder


def _words(options: str | None) -> tuple[str, ...]:
    from flatout.errors import UsageError

    try:
        words = tuple(shlex.split(options or ""))
    except ValueError as error:
        raise UsageError(f"`--sbatch-options` is no line that a shell could read: {options}") from error
    for word in words:
        if word.partition("=")[0] in ("--output", "-o", "--wrap", "--array", "-a", "--parsable"):
            raise UsageError(f"`--sbatch-options` cannot have {word}: one job, whose output lies in its folder")
    return words


def _by_spot(
    request: JobRequest, trace: Path, spot_partition: str | None, work_hours: float | None, gpu_type: str | None
) -> tuple[JobRequest, str]:
    """The partition that the trace, the prices and the deadline speak for; both where the advice is a mix."""
    import msgspec

    from flatout.cli.cost import spot_result
    from flatout.errors import UsageError

    if spot_partition is None or not request.partitions or request.deadline_s is None or work_hours is None:
        raise UsageError("`--spot-trace` needs --spot-partition, --partition, --deadline and --work-hours")
    found = spot_result(
        trace,
        work_hours=work_hours,
        deadline_s=request.deadline_s,
        instances=request.num_nodes or 1,
        gpus_per_instance=request.gpus_per_node or 1,
        gpu_type=gpu_type,
    )
    chosen = {
        "spot": (spot_partition,),
        "mix": (spot_partition, *request.partitions),
        "on-demand": request.partitions,
        None: request.partitions,
    }[found.advice]
    if found.advice in ("spot", "mix") and not request.can_resume:
        raise UsageError(
            f"the trace speaks for {found.advice}, where machines are taken away, and the job is not said to go on from"
            " its checkpoint",
            hint="--resume if it does; without --spot-trace it waits for --partition",
        )
    why = f"{found.advice or 'on demand'}: {found.why}"
    if found.advice == "mix":
        why += "; Slurm starts it in the partition that is free first, and does not move it by itself"
    return msgspec.structs.replace(request, partitions=chosen), why


def _prepared(request: JobRequest, to: str | None) -> Prepared:
    from flatout.errors import InputError, UsageError
    from flatout.submit import found_schedulers, kubernetes, ray, slurm
    from flatout.submit.find import RAY_DASHBOARD
    from flatout.submit.job import SCHEDULERS

    found = found_schedulers(os.environ)
    if to is not None and to not in SCHEDULERS:
        raise UsageError(f"`--to` must be one of {', '.join(SCHEDULERS)}, but is `{to}`")
    chosen = to or next((each.scheduler for each in found if each.is_there), None)
    if chosen is None:
        looked = "; ".join(f"for {each.scheduler}: {each.looked_for}" for each in found)
        config = ["--config", request.tuning.config] if request.tuning.changes.changes else []
        words = ["flatout", "run", *config, *request.tuning.keep, "--"] if config or request.tuning.keep else []
        raise InputError(
            f"no scheduler was found ({looked})",
            hint=f"here and now: {shlex.join([*words, *request.tuning.command])}",
        )
    if chosen == "slurm":
        return slurm.prepare(request)
    if chosen == "ray":
        return ray.prepare(request, next((each.address for each in found if each.address), RAY_DASHBOARD))
    return kubernetes.prepare(request)


def _do(prepared: Prepared, request: JobRequest) -> str | None:
    """Files first, since the job writes beside them; gone again where the scheduler refuses it."""
    from flatout.report.files import write_new

    is_new = not request.folder.exists()
    for path, text in prepared.files.items():
        write_new(path, text)
    try:
        return prepared.submit()
    except BaseException:
        for path in prepared.files:
            path.unlink(missing_ok=True)
        if is_new:
            request.folder.rmdir()
        raise


def _tell(
    prepared: Prepared,
    request: JobRequest,
    planned: Planned | None,
    job: str | None,
    said: tuple[str, ...],
    *,
    dry_run: bool,
    json: bool,
) -> None:
    from flatout.emit.command import tuned_command
    from flatout.report.json import enveloped_json
    from flatout.submit import Submitted

    notes = (*said, *prepared.notes)
    queued = shlex.join(tuned_command(request.tuning))
    result = Submitted(
        scheduler=prepared.scheduler,
        job=job,
        dry_run=dry_run,
        submitted=prepared.shown,
        queued=queued,
        num_nodes=request.num_nodes,
        gpus_per_node=request.gpus_per_node,
        plan=str(planned.path) if planned is not None else None,
        layout=planned.layout if planned is not None else None,
        folder=None if dry_run else str(request.folder),
        files=() if dry_run else tuple(str(path) for path in prepared.files),
        output=str(prepared.output) if prepared.output is not None else None,
        exit_code_file=str(prepared.exit_code_file) if prepared.exit_code_file is not None else None,
        notes=notes,
        next=_without_dry_run(sys.argv[1:]) if dry_run else prepared.next_command(job),
    )
    if json:
        sys.stdout.write(enveloped_json("flatout/submission", 1, ["flatout", *sys.argv[1:]], result).decode())
        return
    print(f"{'would submit' if dry_run else 'submitted'}: {prepared.shown}")
    if dry_run:
        for path, text in prepared.files.items():
            print(f"\n{path}:\n{text.rstrip()}\n")
    layout = f"{result.layout}, as its own arguments say: flatout plan --emit" if result.layout is not None else None
    for label, value in (
        ("job", job),
        ("command", queued if request.tuning.keep else None),
        ("layout", layout),
        ("output", result.output),
        ("exit code", result.exit_code_file),
        *(("note", note) for note in notes),
    ):
        if value is not None:
            print(f"{label}: {value}")
    print(f"next: {result.next}")


def _without_dry_run(words: list[str]) -> str:
    """The same again; of the user's command nothing is taken away."""
    words = list(words)
    words.remove("--dry-run")
    return shlex.join(["flatout", *words])
