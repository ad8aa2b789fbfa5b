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
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A known model, a config.json, FILE.py:NAME, or layers=N,hidden=N,heads=N,..."
        ),
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help="SYSTEMxGPUS as h100x512, or a TOML.")] = None,
    global_batch: Annotated[int, typer.Option(min=1, metavar="N", help="Sequences a step.")] = 1024,
    seq: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens a sequence.")] = 4096,
    document: Annotated[
        int, typer.Option(min=0, metavar="N", help="Tokens of a document, where several are packed into a sequence.")
    ] = 0,
    precision: Annotated[str, typer.Option(metavar="TYPE", help="bf16, fp16, fp32, fp8 or fp4.")] = "bf16",
    fix: Annotated[
        list[str] | None,
        typer.Option(metavar="DIAL=VALUE", help="Only layouts with it: tp=8, pp=4, zero=1, recompute=none, ..."),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Runs of the cluster as CSV, a recording, or flatout bench --json."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Layouts to show.")] = 10,
    goal: Annotated[
        str | None, typer.Option(metavar="TEXT", help='What it is to reach: "100B tokens in 30 days".')
    ] = None,
    gpu_price: Annotated[
        float | None, typer.Option("--gpu-price", min=0, metavar="USD", help="For --goal: what you pay a GPU-hour.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For --goal: a TOML of your prices, as catalog/prices.toml.")
    ] = None,
    terms: Annotated[str, typer.Option(metavar="TERMS", help="For --goal: on-demand, reserved or spot.")] = "on-demand",
    region: Annotated[
        str | None, typer.Option(metavar="NAME", help="For --goal: the grid, as FR or us-east-1, for carbon.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the plan as one HTML page.")] = None,
    emit: Annotated[
        list[str] | None,
        typer.Option(metavar="TARGET", help="Also write settings for megatron, torchtitan, deepspeed, fsdp2 or nemo."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="For --emit: the folder to write into.")] = Path(),
    shipped: Annotated[
        bool, typer.Option("--shipped", help="For evaluate: the shipped constants, nothing held out.")
    ] = False,
    fit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For evaluate: write constants fitted to all of the runs.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
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
    if shipped or fit is not None:
        name = "--shipped" if shipped else "--fit"
        raise UsageError(f"{name} is for `evaluate`, which is not given", hint="flatout plan evaluate RUNS.csv")
    if model is None or cluster is None:
        raise UsageError(
            "a plan needs --model and --cluster", hint="flatout plan --model llama3-70b --cluster h100x512 --seq 8192"
        )
    from flatout.cli.plan_goal import wanted_goal, with_goal
    from flatout.cli.plan_output import calibrated, wanted_output

    output = wanted_output(html, emit, out, force=force)
    wanted = wanted_goal(goal, global_batch, seq, gpu_price, prices, terms, region)
    from flatout.plan.search import plan as search

    setting = _setting(model, cluster, global_batch, seq, document, precision, calibrate, fix)
    result = search(setting, num_layouts=top, fixed=tuple(fix or ()))
    result = with_goal(result, setting, wanted, tuple(fix or ()))
    output.write(result, setting)
    if json:
        _print_json("flatout/plan", result)
        return
    from flatout.report.plan_text import plan_text
    from flatout.report.terminal import style_of

    print(plan_text(result, style=style_of(sys.stdout), next_command=shlex.join(calibrated(sys.argv[1:]))))


def _setting(
    model: str,
    cluster: str,
    global_batch: int,
    seq: int,
    document: int,
    precision: str,
    calibrate: Path | None,
    fix: list[str] | None,
) -> Setting:
    from flatout.errors import UsageError
    from flatout.plan.case import PRECISIONS
    from flatout.plan.clusters import cluster as read_cluster
    from flatout.plan.layouts import Job
    from flatout.plan.model_names import workload
    from flatout.plan.search import Setting
    from flatout.plan.shipped import shipped
    from flatout.records.plan import Software

    if precision not in PRECISIONS:
        raise UsageError(f"--precision must be one of {', '.join(PRECISIONS)}, but is `{precision}`")
    machine, shares = read_cluster(cluster)
    types = [name for name in PRECISIONS if name.partition("-")[0] in machine.peak_flops_per_s]
    if precision not in types:
        half = next((name for name in ("bf16", "fp16") if name in types), "fp32")
        raise UsageError(
            f"--precision must be a type that the GPU multiplies, but {machine.gpu} has no {precision}",
            hint=f"--precision {half}; it has: {', '.join(types)}",
        )
    setting = Setting(
        job=Job(workload=workload(model), cluster=machine, global_batch=global_batch, seq=seq, document=document),
        precision=precision,
        matmul_share=shares,
        software=Software(),
        calibration=shipped(),
    )
    if calibrate is None:
        return setting
    from flatout.cli.plan_calibrate import calibrated

    return calibrated(setting, calibrate, fix or ())


def _evaluate(path: Path, *, uses_shipped: bool, fit: Path | None, force: bool, json: bool) -> None:
    from flatout.plan.evaluate import evaluate
    from flatout.plan.run_calibration import fit_and_write
    from flatout.plan.runs import read_runs
    from flatout.plan.shipped import shipped

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
