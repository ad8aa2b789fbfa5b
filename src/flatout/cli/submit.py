"""`flatout submit`: queue a command in the same way on any scheduler."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.output import print_json
from flatout.cli.paths import path_option
from flatout.cli.values import amount, whole_number
from flatout.secrets import masked_command


def submit(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="Command, after `--`.", show_default=False)
    ],
    nodes: Annotated[int | None, whole_number(least=1, help="Number of nodes.")] = None,
    gpus: Annotated[int | None, whole_number(help="GPUs per node.")] = None,
    limit: Annotated[
        Duration | None, duration("--time", instead_of="m", help="Maximum run time, e.g. 90m, 12h or 2d.")
    ] = None,
    deadline: Annotated[Duration | None, duration(help="Time by which the job must finish, counted from now.")] = None,
    config: Annotated[
        Path | None,
        path_option(help="tuned.toml from `flatout tune`, with the changes to apply."),
    ] = None,
    canary: Annotated[
        bool,
        typer.Option(
            "--canary",
            help="Let the first job try the changes of --config; later ones get them if its ledger says they help.",
        ),
    ] = False,
    plan: Annotated[
        Path | None,
        path_option(help="Output of `flatout plan --json`; sets the number of nodes and GPUs."),
    ] = None,
    max_restarts: Annotated[
        int, whole_number(help="Run under `flatout run`; restart within the allocation at most N times.")
    ] = 0,
    checkpoint_folder: Annotated[
        Path | None,
        path_option(
            metavar="DIR",
            help="For `flatout run`: folder that flatout.checkpoint writes to; Flatout chooses its interval.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        path_option(metavar="PATH", help="For `flatout run`: checkpoint that the script writes."),
    ] = None,
    resume_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARGUMENT", help="For `flatout run`: the script's option for resuming, added on restarts."
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        path_option(help="For `flatout run`: goodput ledger to append to."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="The job resumes from its checkpoint, so it may be requeued.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(metavar="SCHEDULER", help="Scheduler: slurm, ray or kubernetes. [default: the first one found]"),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Job name. [default: flatout-TIME]")] = None,
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Slurm: partition.")] = None,
    account: Annotated[str | None, typer.Option(metavar="NAME", help="Slurm: account to charge.")] = None,
    qos: Annotated[str | None, typer.Option(metavar="NAME", help="Slurm: quality of service.")] = None,
    sbatch_options: Annotated[
        str | None,
        typer.Option(metavar="OPTIONS", help="Slurm: more sbatch options, e.g. '--mem=64G --cpus-per-task=8'."),
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Kubernetes: container image to run the command in.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Kubernetes: Kueue LocalQueue to submit to.")
    ] = None,
    kube_nodes: Annotated[
        Path | None,
        path_option(
            help="Kubernetes: output of `kubectl get nodes -o json`, or a TOML of what nodes can allocate; sets the"
            " requests."
        ),
    ] = None,
    cpus: Annotated[
        float | None,
        amount(
            metavar="N",
            positive=True,
            help="CPUs per node. [default: Kubernetes: by --kube-nodes; Slurm: by the partition]",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Kubernetes: memory per node, e.g. 512Gi. [default: by --kube-nodes]"),
    ] = None,
    shm: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Kubernetes: size of /dev/shm, a part of the memory. [default: half of the memory]"
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(metavar="RESOURCE[=N]", help="Kubernetes: network devices per node, e.g. rdma/hca=8. Repeatable."),
    ] = None,
    gpu_memory: Annotated[
        float | None, amount(metavar="GB", positive=True, help="Kubernetes: minimum memory of each GPU, e.g. 80.")
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="Kubernetes: level of Kueue's topology that must hold the job, `preferred:LABEL` or `none`."
            " [default: the host, for one node]",
        ),
    ] = None,
    data_set: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Prefer nodes that hold this data set, by a Slurm feature or a Kubernetes label (see `data stage`).",
        ),
    ] = None,
    spot_trace: Annotated[
        Path | None,
        path_option(help="Slurm: spot availability trace; decides between --spot-partition and --partition."),
    ] = None,
    spot_partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Slurm: partition of preemptible machines.")
    ] = None,
    work_hours: Annotated[
        float | None,
        amount(metavar="N", positive=True, help="For --spot-trace: hours that the job takes without interruptions."),
    ] = None,
    gpu_type: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="GPU type, e.g. h100: for --spot-trace its prices; on Kubernetes, the nodes that have it.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        path_option(metavar="DIR", help="New folder for the submission's files. [default: flatout-out/submit-TIME]"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be submitted without submitting it.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Submit a command to Slurm or Ray, or as a Kubernetes manifest, with the changes that a tuning found.

    Examples:
      flatout submit --nodes 2 --gpus 8 --time 12h -- torchrun --nproc-per-node 8 train.py
      flatout submit --config tuned.toml --resume --partition preemptible -- python train.py
      flatout submit --plan plan.json --max-restarts 3 -- torchrun --nproc-per-node 8 train.py
      flatout submit --dry-run --to kubernetes --image registry/train:1 --gpus 8 -- torchrun train.py
    """
    from flatout import submit as submission
    from flatout.report.submission_text import submission_text
    from flatout.run.request import check_resume

    check_resume(resume_arg or (), checkpoint, max_restarts)
    request = submission.job_request(
        submission.SubmitOptions(
            command=tuple(command),
            config=config,
            has_canary=canary,
            plan=plan,
            num_nodes=nodes,
            gpus_per_node=gpus,
            time_s=limit.seconds if limit is not None else None,
            deadline_s=deadline.seconds if deadline is not None else None,
            can_resume=resume,
            keep=submission.KeepOptions(
                max_restarts=max_restarts,
                checkpoint_folder=checkpoint_folder,
                checkpoint=checkpoint,
                resume_arguments=tuple(resume_arg or ()),
                ledger=ledger,
            ),
            name=name,
            partition=partition,
            account=account,
            qos=qos,
            sbatch_options=sbatch_options,
            image=image,
            queue=queue,
            pods=submission.PodOptions(
                nodes=kube_nodes,
                cpus=cpus,
                memory=memory,
                shm=shm,
                network=tuple(network or ()),
                gpu_type=gpu_type,
                gpu_memory_gb=gpu_memory,
                topology=topology,
            ),
            out=out,
            data_set=data_set,
        )
    )
    notes = []
    if spot_trace is not None:
        from flatout.submit.spot import SpotOptions, choose_partitions

        spot = SpotOptions(trace=spot_trace, partition=spot_partition, work_hours=work_hours, gpu_type=gpu_type)
        request, reason = choose_partitions(request, spot)
        notes.append(reason)
    prepared = submission.prepare(request, to, os.environ)
    job = None if dry_run else submission.submit(prepared, request)
    next_command = _without_dry_run(sys.argv[1:]) if dry_run else prepared.next_command(job)
    result = submission.submitted(prepared, request, job=job, notes=notes, next_command=next_command, dry_run=dry_run)
    if json:
        print_json("flatout/submission", result)
    else:
        print(submission_text(result, prepared.files, is_wrapped=bool(request.tuning.keep)))


def _without_dry_run(arguments: list[str]) -> str:
    """Return this `flatout` invocation without its first `--dry-run`; one of the user's own command is kept."""
    words = list(arguments)
    words.remove("--dry-run")
    return shlex.join(["flatout", *masked_command(words)])
