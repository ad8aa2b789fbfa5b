"""`flatout log`: write a result to a run tracker: MLflow, Weights & Biases or TensorBoard."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from flatout.cli.paths import path_argument
from flatout.cli.values import whole_number


def log(
    result: Annotated[
        Path,
        path_argument(
            metavar="RESULT",
            help="A result that a command printed with --json, the folder of a tuning or a comparison, or traces.",
        ),
    ],
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Log to this tracking server or folder of MLflow.")
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(metavar="NAME", help="For --mlflow: experiment of a new run. [default: flatout]")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option(metavar="ID", help="For --mlflow: log to this run. [default: a new run]")
    ] = None,
    wandb: Annotated[
        Path | None,
        typer.Option(metavar="DIR", readable=False, help="Write an offline run of Weights & Biases below this folder."),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", readable=False, help="Write an event file of TensorBoard.")
    ] = None,
    step: Annotated[int, whole_number(help="Training step that the result belongs to.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print what was logged as JSON.")] = False,
) -> None:
    """Write a result to a run tracker: parts of the step, findings, goodput and verdicts, next to its curves.

    Example: flatout log tuning.json --mlflow http://127.0.0.1:5000 --run-id 4f1c2e
    """
    from flatout.cli.output import print_json
    from flatout.errors import UsageError
    from flatout.run_trackers.result import read_result_record
    from flatout.run_trackers.stores import log_to_mlflow, log_to_tensorboard, log_to_wandb
    from flatout.run_trackers.values import logged_values

    if mlflow is None and wandb is None and tensorboard is None:
        raise UsageError("a tracker is needed: --mlflow, --wandb or --tensorboard", hint="flatout log --help")
    if mlflow is None and (experiment is not None or run_id is not None):
        raise UsageError("`--experiment` and `--run-id` need `--mlflow`")
    record: dict[str, Any] = read_result_record(result)
    values = logged_values(record)
    if mlflow is not None:
        logged = log_to_mlflow(values, record, uri=mlflow, experiment=experiment, run_id=run_id, step=step)
        print(f"logged to run {logged} of MLflow", file=sys.stderr)
    if wandb is not None:
        folder = log_to_wandb(values, folder=wandb)
        print(f"wrote an offline run: {folder}\nnext: wandb sync {folder}", file=sys.stderr)
    if tensorboard is not None:
        folder = log_to_tensorboard(values, folder=tensorboard, step=step)
        print(f"wrote an event file\nnext: tensorboard --logdir {folder}", file=sys.stderr)
    if json:
        print_json("flatout/logged", values)
