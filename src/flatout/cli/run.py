"""`flatout run`: run a command with the changes of a tuning, and restart it after failures if requested."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import typer

from flatout.cli.durations import Duration, parse_duration
from flatout.cli.paths import path_option
from flatout.cli.values import InvalidValue, whole_number
from flatout.errors import UsageError


@dataclass(frozen=True, slots=True)
class HangAfter:
    """The value of `--hang-after`: whether hangs are detected, and after how long; None: learned from the steps."""

    is_on: bool
    limit: Duration | None = None


def _parse_hang_after(text: str) -> HangAfter:
    if text in ("auto", "off"):
        return HangAfter(text == "auto")
    try:
        return HangAfter(True, parse_duration(text, least_s=1.0))
    except InvalidValue as error:
        raise InvalidValue(f"must be auto or off, or {error.message}") from None


def _parse_on_regression(text: str) -> Literal["off", "warn", "revert"]:
    match text:
        case "off" | "warn" | "revert":
            return text
    raise UsageError(f"`--on-regression` must be warn, revert or off, but got {text}")


def _parse_adapt(text: str) -> Literal["off", "dry-run", "on"]:
    match text:
        case "off" | "dry-run" | "on":
            return text
    raise UsageError(f"`--adapt` must be dry-run, on or off, but got {text}")


def _metrics(address: str, port: int | None, otlp: str | None) -> tuple[str, int] | None:
    """Return where metrics are served; any port of the loopback if they are only pushed."""
    if otlp is not None and urlsplit(otlp).scheme not in ("http", "https"):
        raise UsageError(
            f"`--metrics-otlp` must be an address like http://localhost:4318/v1/metrics, but is {otlp}",
            hint="only OTLP over HTTP is supported, not over gRPC",
        )
    if port is not None:
        return address, port
    return None if otlp is None else ("127.0.0.1", 0)


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="Training command, after `--`.", show_default=False)
    ],
    config: Annotated[
        Path | None, path_option(help="tuned.toml from `flatout tune`, with the changes to apply.")
    ] = None,
    max_restarts: Annotated[int, whole_number(help="Maximum restarts after failures.")] = 0,
    hang_after: Annotated[
        HangAfter | None,
        typer.Option(
            metavar="auto|off|DURATION",
            parser=_parse_hang_after,
            help="End the job after it has hung for this long; auto derives the limit from its step times. "
            "[default: auto with --max-restarts, else off]",
        ),
    ] = None,
    resume_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARGUMENT",
            help="The script's option for resuming, added to the command on restarts once a checkpoint exists.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, path_option(metavar="PATH", help="Checkpoint that the script writes, for --resume-arg.")
    ] = None,
    checkpoint_folder: Annotated[
        Path | None,
        path_option(
            metavar="DIR",
            help="Folder that the script's flatout.checkpoint writes to; Flatout chooses the checkpoint interval.",
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        path_option(help="Goodput ledger to append to: how each GPU-second was used."),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="If this job is still running after its `flatout run` was killed, end it first."
        ),
    ] = False,
    recording: Annotated[
        Path | None,
        path_option(
            metavar="DIR",
            help="Recording of the same job, from which the ledger takes the shares of communication and waiting.",
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        whole_number(
            help="GPUs allocated to the job, for the ledger. [default: all that NVML sees, else one per rank]",
            least=1,
        ),
    ] = None,
    metrics_port: Annotated[
        int | None, whole_number(help="Port to serve Prometheus metrics on.", metavar="PORT", most=65_535)
    ] = None,
    metrics_address: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to serve Prometheus metrics on.")
    ] = "127.0.0.1",
    metrics_otlp: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="OpenTelemetry collector to push the metrics to over HTTP, e.g. http://localhost:4318/v1/metrics.",
        ),
    ] = None,
    adapt: Annotated[
        str,
        typer.Option(
            metavar="dry-run|on|off",
            help="Adapt the running job, and undo what does not help: more loader workers where ranks wait for "
            "batches, a smaller microbatch after the GPU memory ran out, an elastic job without a late node; dry-run "
            "only reports it.",
        ),
    ] = "off",
    micro_batch: Annotated[
        str | None,
        typer.Option(
            metavar="OPTION,OPTION",
            help="The script's options for its microbatch and its passes per step, for --adapt, e.g. "
            "--micro-batch=--batch-size,--accumulate. [default: those of transformers, nanoGPT and diffusers]",
        ),
    ] = None,
    adapt_semantic: Annotated[
        bool,
        typer.Option(
            "--adapt-semantic",
            help="With --adapt, also change what is trained: average weights every 8 steps where exchanging gradients "
            "takes long, or give a late rank fewer samples and the others more.",
        ),
    ] = False,
    adapt_power: Annotated[
        bool,
        typer.Option(
            "--adapt-power",
            help="With --adapt, also lower the power limits of the job's GPUs to their knee until the job ends: only "
            "on a machine that is yours.",
        ),
    ] = False,
    machine_code: Annotated[
        int | None,
        whole_number(
            help="Exit with this code if the machine is at fault, so that the scheduler uses another machine.",
            metavar="CODE",
            least=1,
            most=255,
        ),
    ] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Mask host names in the output and the ledger.")] = False,
    on_regression: Annotated[
        str,
        typer.Option(
            metavar="warn|revert|off",
            help="If the first steps are slower than without the changes of --config: warn, or restart without them at "
            "the next checkpoint.",
        ),
    ] = "warn",
    data_cache: Annotated[
        str | None,
        typer.Option(
            metavar="DIR:SIZE",
            help="Copy files that the job reads from network file systems to DIR on this node, up to SIZE, and read "
            "the copies in later epochs, e.g. /local/cache:200GiB.",
        ),
    ] = None,
    data_from: Annotated[
        list[Path] | None,
        path_option(metavar="DIR", help="Cache the files of this folder, instead of all network file systems."),
    ] = None,
    packed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR[=SOURCE]",
            help="Read the files of a data set from this folder of `flatout data pack`; SOURCE is the data set's folder"
            " if it has moved. Repeatable.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command without starting it.")] = False,
) -> None:
    """Run a training command with the changes from a tuned.toml, and keep it alive.

    Exits with the command's own code.

    Example: flatout run --config tuned.toml --max-restarts 3 -- torchrun --standalone --nproc-per-node 2 train.py
    """
    from flatout.change.micro_batch import parse_options
    from flatout.launch import end_like
    from flatout.run import RunRequest, prepare
    from flatout.run import run as run_job
    from flatout.run.data_cache import requested_cache
    from flatout.run.messages import say

    hangs = hang_after if hang_after is not None else HangAfter(max_restarts > 0)
    request = RunRequest(
        command=tuple(command),
        config=config,
        max_restarts=max_restarts,
        watches_hangs=hangs.is_on,
        hang_after_s=hangs.limit.seconds if hangs.limit is not None else None,
        resume_arguments=tuple(resume_arg or ()),
        checkpoint=checkpoint,
        checkpoint_folder=checkpoint_folder,
        ledger=ledger,
        takes_over=take_over,
        recording=recording,
        num_gpus=gpus,
        metrics=_metrics(metrics_address, metrics_port, metrics_otlp),
        otlp=metrics_otlp,
        adapts=_parse_adapt(adapt),
        micro_batch_options=parse_options(micro_batch) if micro_batch is not None else None,
        adapts_semantic=adapt_semantic,
        adapts_power=adapt_power,
        machine_code=machine_code,
        redacts=redact,
        on_regression=_parse_on_regression(on_regression),
        data_cache=requested_cache(data_cache, data_from or ()),
        packed=tuple(packed or ()),
    )
    request.check()
    prepared = prepare(request, os.environ)
    for warning in prepared.warnings:
        say(warning)
    if dry_run:
        print(prepared.as_typed())
        for note in prepared.masked_notes():
            say(note)
        return
    ended = run_job(request, prepared)
    sys.stdout.flush()
    raise typer.Exit(end_like(ended))
