"""`flatout plan`: the parallel layout before the run starts; `flatout plan evaluate`: how wrong such plans are."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from flatout.plan.search import Setting


def plan(
    action: Annotated[
        str | None, typer.Argument(metavar="[evaluate]", help="Replay measured runs in place of planning.")
    ] = None,
    runs: Annotated[Path | None, typer.Argument(metavar="RUNS.csv", help="The measured runs to replay.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="A known model, or a config.json.")] = None,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help="SYSTEMxGPUS as h100x512, or a TOML.")] = None,
    global_batch: Annotated[int, typer.Option(min=1, metavar="N", help="Sequences a step.")] = 1024,
    seq: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens a sequence.")] = 4096,
    precision: Annotated[str, typer.Option(metavar="TYPE", help="bf16, fp16, fp32, fp8 or fp4.")] = "bf16",
    fix: Annotated[
        list[str] | None,
        typer.Option(metavar="DIAL=VALUE", help="Only layouts with it: tp=8, pp=4, zero=1, recompute=none, ..."),
    ] = None,
    calibrate: Annotated[
        Path | None, typer.Option(metavar="RUNS.csv", help="A handful of runs measured on the cluster.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Layouts to show.")] = 10,
    shipped: Annotated[
        bool, typer.Option("--shipped", help="For evaluate: the shipped constants, nothing held out.")
    ] = False,
    fit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For evaluate: write constants fitted to all of the runs.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Choose the parallel layout of a training run: all valid ones, by predicted step time and memory.

    Example: flatout plan --model llama3-70b --cluster h100x512 --global-batch 1024 --seq 8192
    """
    from flatout.errors import UsageError

    if action == "evaluate":
        if runs is None:
            raise UsageError(
                "`flatout plan evaluate` needs a CSV of measured runs", hint="flatout plan evaluate RUNS.csv"
            )
        _evaluate(runs, uses_shipped=shipped, fit=fit, force=force, json=json)
        return
    if action is not None:
        raise UsageError(f"the only action is `evaluate`, but got `{action}`", hint="flatout plan evaluate RUNS.csv")
    if model is None or cluster is None:
        raise UsageError(
            "a plan needs --model and --cluster", hint="flatout plan --model llama3-70b --cluster h100x512 --seq 8192"
        )
    from flatout.plan.search import plan as search

    setting = _setting(model, cluster, global_batch, seq, precision, calibrate)
    result = search(setting, num_layouts=top, fixed=tuple(fix or ()))
    if json:
        _print_json("flatout/plan", result)
        return
    from flatout.report.plan_text import plan_text
    from flatout.report.terminal import style_of

    again = f"flatout plan --model {shlex.quote(model)} --cluster {shlex.quote(cluster)} --calibrate RUNS.csv"
    print(plan_text(result, style=style_of(sys.stdout), next_command=again))


def _setting(model: str, cluster: str, global_batch: int, seq: int, precision: str, calibrate: Path | None) -> Setting:
    from flatout.errors import UsageError
    from flatout.plan.case import PRECISIONS, Software
    from flatout.plan.clusters import cluster as read_cluster
    from flatout.plan.layouts import Job
    from flatout.plan.model_names import workload
    from flatout.plan.search import Setting
    from flatout.plan.shipped import calibrated_with, shipped

    if precision not in PRECISIONS:
        raise UsageError(f"--precision must be one of {', '.join(PRECISIONS)}, but is `{precision}`")
    machine, shares = read_cluster(cluster)
    known = shipped()
    return Setting(
        job=Job(workload=workload(model), cluster=machine, global_batch=global_batch, seq=seq),
        precision=precision,
        matmul_share=shares,
        software=Software(),
        calibration=calibrated_with(calibrate, known) if calibrate else known,
    )


def _evaluate(path: Path, *, uses_shipped: bool, fit: Path | None, force: bool, json: bool) -> None:
    from flatout.plan.evaluate import evaluate
    from flatout.plan.runs import read_runs
    from flatout.plan.shipped import fit_and_write, shipped

    found, rows_read = read_runs(path)
    result = evaluate(found, rows_read, shipped=shipped() if uses_shipped else None)
    if fit is not None:
        fit_and_write(found, fit, force=force)
    if json:
        _print_json("flatout/plan-evaluation", result)
        return
    from flatout.report.plan_text import evaluation_text
    from flatout.report.terminal import style_of

    print(evaluation_text(result, style=style_of(sys.stdout)))


def _print_json(schema: str, record: object) -> None:
    import msgspec

    from flatout.report.json import enveloped_json

    assert isinstance(record, msgspec.Struct)
    sys.stdout.write(enveloped_json(schema, 1, ["flatout", *sys.argv[1:]], record).decode())
