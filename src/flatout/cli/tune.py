"""`flatout tune`: find the changes that make a command faster; write a report and the resulting configuration."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.durations import Duration
from flatout.cli.fail_on import exit_if_met, fail_on_option
from flatout.cli.output import typed_command
from flatout.cli.searches import (
    allow_option,
    budget_option,
    ended_by_signals,
    json_option,
    out_option,
    parsed_safety,
    say,
    trials_option,
)
from flatout.cli.values import whole_number

if TYPE_CHECKING:
    from flatout.api.results import TuningResult


def tune(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="Training command, after `--`.", show_default=False)
    ],
    out: Annotated[Path | None, out_option("trials and results", "tune")] = None,
    budget: Annotated[Duration, budget_option(" for tuning")] = Duration("30m", 1800.0),
    trials: Annotated[int | None, trials_option("trials")] = None,
    allow: Annotated[str, allow_option()] = "exact",
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="OBJECTIVE",
            help="Quantity to improve: samples/s, tokens/s, steps/s, memory or energy. [default: samples/s]",
        ),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(metavar="LIMIT", help="Limit on the calls of a script that only infers, e.g. 'p99<50ms'."),
    ] = None,
    knob: Annotated[
        list[str] | None,
        typer.Option(metavar="KNOB", help="Script argument to vary, e.g. 'batch={8,16}:--batch-size={}'. Repeatable."),
    ] = None,
    steps: Annotated[
        int | None, whole_number(least=5, help="Measured steps per trial. [default: chosen from the noise floor]")
    ] = None,
    warmup: Annotated[
        int | None, whole_number(help="Warm-up steps per trial. [default: until step times are stable]")
    ] = None,
    launcher: Annotated[
        str, typer.Option(metavar="WHERE", help="Where to run trials: local, or slurm (each as a batch job).")
    ] = "local",
    sbatch_options: Annotated[
        str | None,
        typer.Option(
            metavar="OPTIONS",
            help="For --launcher slurm: sbatch options, e.g. '--partition=gpu --nodes=2 --gpus-per-node=8'.",
        ),
    ] = None,
    blocks: Annotated[
        bool,
        typer.Option("--blocks", help="Compare changes that can be switched in blocks of steps within one job first."),
    ] = False,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Neither use nor update the prediction history.")
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="If a change is accepted, also write files for other tools.")
    ] = False,
    fail_on: Annotated[list[str] | None, fail_on_option("tune")] = None,
    json: Annotated[bool, json_option()] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the tuning results in DIR.")] = False,
) -> None:
    """Find the changes that make a training command faster, without touching its code.

    `flatout tune nccl` tries only what it measures for NCCL, and `flatout tune --serve` tunes a server.

    Exits with code 0 if a change was accepted, otherwise with 1; with --fail-on, with 1 only if a condition holds.

    Example: flatout tune --budget 20m -- torchrun --standalone --nproc-per-node 2 train.py --out {trial_dir}
    """
    from flatout.api import tune as tune_job
    from flatout.api.jobs import NotWrittenError
    from flatout.conditions.met import met_by_tuning
    from flatout.conditions.words import parse_conditions

    conditions = parse_conditions("tune", fail_on or ())
    try:
        with ended_by_signals():
            result = tune_job(
                command,
                out=out,
                budget_s=budget.seconds,
                trials=trials,
                allow=parsed_safety(allow),
                objective=objective,
                latency=latency,
                knobs=knob or (),
                steps=steps,
                warmup=warmup,
                sbatch_options=_sbatch_options(launcher, sbatch_options),
                blocks=blocks,
                history=not no_history,
                apply=apply,
                force=force,
                typed=typed_command(),
                say=say,
            )
    except NotWrittenError as error:
        _report(error.result, json=json)
        raise
    _report(result, json=json)
    exit_if_met(met_by_tuning(result, conditions))
    raise typer.Exit(0 if conditions or result.is_better else 1)


def _report(result: TuningResult, *, json: bool) -> None:
    if json:
        sys.stdout.write(result.to_json(typed_command()).decode())
        return
    print(result.to_text())


def _sbatch_options(launcher: str, text: str | None) -> tuple[str, ...] | None:
    """Return sbatch's options for trials as batch jobs; None for trials on this machine."""
    from flatout.errors import UsageError

    if launcher not in ("local", "slurm"):
        raise UsageError(f"`--launcher` must be local or slurm, but got {launcher}")
    if launcher == "local":
        if text is not None:
            raise UsageError("`--sbatch-options` needs `--launcher slurm`")
        return None
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise UsageError(f"`--sbatch-options` cannot be parsed as shell arguments: {text}") from error
