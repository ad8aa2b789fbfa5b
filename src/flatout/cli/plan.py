"""`flatout plan`: choose the parallel layout before a run; `plan evaluate`: measure how wrong plans are."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatout.cli import plan_place, plan_serve
from flatout.cli.fabric_options import FABRIC, LEAF_NODES, OVERSUBSCRIPTION, TORUS
from flatout.cli.help import Command, Group
from flatout.cli.next_command import repeated
from flatout.cli.output import print_json, text_style, typed_command
from flatout.cli.values import amount, whole_number

if TYPE_CHECKING:
    from flatout.records.plan import Plan

_WRITES = ("--html", "--emit", "--out", "--calibrate")  # options with a value that are omitted from the next command
_EVALUATE = "flatout plan evaluate RUNS.csv"
_EXAMPLES = {
    "evaluate": _EVALUATE,
    "place": "flatout plan place --model llama3-70b --cluster h100x64",
    "serve": "flatout plan serve --model llama3-70b --gpu h100 --rate 5",
}


class _PlanGroup(Group):
    """A group that plans if no command is given."""

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        from flatout.errors import UsageError

        if args[0] not in self.commands:
            raise UsageError(f"the commands are `evaluate`, `place` and `serve`, but got `{args[0]}`", hint=_EVALUATE)
        return super().resolve_command(ctx, args)  # type: ignore[arg-type, unused-ignore]


app = typer.Typer(cls=_PlanGroup, invoke_without_command=True, subcommand_metavar="[COMMAND]", rich_markup_mode=None)


@app.callback()
def plan(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Model name, a config.json, FILE.py:NAME (the file is executed), or layers=N,hidden=N,heads=N,...",
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="SYSTEMxGPUS, e.g. h100x512, or a TOML file.")
    ] = None,
    global_batch: Annotated[int, whole_number(least=1, help="Sequences per step.")] = 1024,
    seq: Annotated[int, whole_number(least=1, help="Tokens per sequence.")] = 4096,
    document: Annotated[
        int, whole_number(help="Tokens per document, if several are packed into each sequence; 0 for no packing.")
    ] = 0,
    images: Annotated[
        int, whole_number(help="Images per sequence, of the size that the model's config names, for models that see.")
    ] = 0,
    precision: Annotated[str, typer.Option(metavar="TYPE", help="Data type: bf16, fp16, fp32, fp8 or fp4.")] = "bf16",
    optimizer: Annotated[
        str,
        typer.Option(metavar="NAME", help="Optimizer: adam, adam-8bit, adafactor, lion, muon or sgd."),
    ] = "adam",
    gradients: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Type in which gradients are accumulated and reduced: fp32 or bf16.  [default: fp32]",
            show_default=False,
        ),
    ] = None,
    pure_bf16: Annotated[
        bool,
        typer.Option("--pure-bf16", help="Keep weights, gradients and moments in bf16 only, without fp32 copies."),
    ] = False,
    lora_rank: Annotated[
        int, whole_number(most=1 << 16, help="Train adapters (LoRA) of this rank, not the model; 0 for none.")
    ] = 0,
    lora_targets: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="For --lora-rank: matrices with adapters: attention, linear (all), or names such as q_proj,v_proj.",
        ),
    ] = "attention",
    base_bits: Annotated[
        int, whole_number(least=1, most=16, help="For --lora-rank: bits per weight of the model: 16, 8, or 4 (QLoRA).")
    ] = 16,
    freeze: Annotated[
        list[str] | None,
        typer.Option(metavar="PART", help="Do not train vision, audio, embedding or experts. Repeatable."),
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARAMETER=VALUE",
            help="Consider only layouts with this value: tp=8, pp=4, zero=1, recompute=none, ... Repeatable.",
        ),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="FRAMEWORK",
            help="Consider only layouts that megatron, torchtitan, deepspeed, fsdp2 or nemo can run, or any of these.",
        ),
    ] = "any",
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Measurements: a CSV of runs, a recording, a training's log, or the output of `flatout bench --json`.",
        ),
    ] = None,
    risk: Annotated[
        float,
        amount(
            metavar="PERCENT",
            positive=True,
            most=100,
            unit="%",
            help="Offer only layouts whose probability of running out of memory is below this.",
        ),
    ] = 10.0,
    top: Annotated[int, whole_number(least=1, most=100, help="Number of layouts to show.")] = 10,
    goal: Annotated[
        str | None, typer.Option(metavar="TEXT", help='Training goal, e.g. "100B tokens in 30 days".')
    ] = None,
    gpu_price: Annotated[float | None, amount(metavar="USD", help="For --goal: price per GPU-hour.")] = None,
    prices: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For --goal: TOML file with your own prices, like catalog/prices.toml."),
    ] = None,
    terms: Annotated[
        str, typer.Option(metavar="TERMS", help="For --goal: price type: on-demand, reserved or spot.")
    ] = "on-demand",
    region: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="For --goal: power grid, for carbon, e.g. FR or us-east-1."),
    ] = None,
    fabric: Annotated[str | None, FABRIC] = None,
    oversubscription: Annotated[float | None, OVERSUBSCRIPTION] = None,
    leaf_nodes: Annotated[int | None, LEAF_NODES] = None,
    torus: Annotated[str | None, TORUS] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the plan as an HTML page.")] = None,
    emit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET",
            help="Also write settings for megatron, torchtitan, deepspeed, fsdp2 or nemo. Repeatable.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="For --emit: folder to write into.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Rank all valid parallel layouts of a training run by predicted step time and memory.

    Example: flatout plan --model llama3-70b --cluster h100x512 --global-batch 1024 --seq 8192
    """
    from flatout.errors import UsageError

    if ctx.invoked_subcommand is not None:
        _check_no_options(ctx)
        return
    if model is None or cluster is None:
        raise UsageError(
            "a plan needs --model and --cluster", hint="flatout plan --model llama3-70b --cluster h100x512 --seq 8192"
        )
    from flatout.api import plan as plan_training
    from flatout.plan_pipeline import planned_files

    files = planned_files(html, emit or (), out, force=force)
    result = plan_training(
        model,
        cluster,
        global_batch=global_batch,
        seq=seq,
        document=document,
        images=images,
        precision=precision,
        optimizer=optimizer,
        gradients=gradients,
        pure_bf16=pure_bf16,
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        base_bits=base_bits,
        freeze=freeze or (),
        fix=fix or (),
        target=target,
        calibrate=calibrate,
        risk=risk / 100,
        top=top,
        goal=goal,
        gpu_price=gpu_price,
        prices=prices,
        terms=terms,
        region=region,
        fabric=fabric,
        oversubscription=oversubscription,
        leaf_nodes=leaf_nodes,
        torus=torus,
        note=_note,
    )
    next_command = _next_command(result, has_emitted=bool(emit))
    files.write(
        result,
        result.context,
        command=typed_command(),
        next_command=next_command,
        fixed=tuple(fix or ()),
        note=_note,
    )
    if json:
        sys.stdout.write(result.to_json(typed_command()).decode())
        return
    from flatout.report.plan_text import plan_text

    print(plan_text(result, style=text_style(), next_command=shlex.join(next_command)))


@app.command(cls=Command)
def evaluate(
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="Measured runs to replay.", show_default=False)],
    shipped: Annotated[
        bool,
        typer.Option("--shipped", help="Use the shipped constants instead of fitting them with each source held out."),
    ] = False,
    fit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the constants fitted to all runs.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Replay measured runs, and report the errors of the predictions.

    Example: flatout plan evaluate RUNS.csv
    """
    from flatout.plan.evaluate import evaluate as evaluate_runs
    from flatout.plan.run_calibration import fit_and_write
    from flatout.plan.runs import read_runs
    from flatout.plan.shipped import shipped as shipped_constants

    measured, num_rows = read_runs(runs)
    result = evaluate_runs(measured, num_rows, shipped=shipped_constants() if shipped else None)
    if fit is not None:
        fit_and_write(measured, fit, force=force)
    if json:
        print_json("flatout/plan-evaluation", result)
        return
    from flatout.report.plan_text import evaluation_text

    print(evaluation_text(result, style=text_style()))


plan_place.register(app)
plan_serve.register(app)


def _check_no_options(ctx: typer.Context) -> None:
    """Raise UsageError for options of `flatout plan` before another command, where they would have no effect."""
    from flatout.errors import UsageError

    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(
                f"`{parameter.opts[0]}` precedes `{ctx.invoked_subcommand}`, whose options must follow it",
                hint=_EXAMPLES[ctx.invoked_subcommand or "evaluate"],
            )


def _next_command(result: Plan, *, has_emitted: bool) -> list[str]:
    """Return the command that writes the best layout's settings or, after that, corrects the plan by measurements."""
    runs_on = result.layouts[0].runs_on
    if has_emitted or not runs_on:
        return [*repeated(sys.argv[1:], without=_WRITES), "--calibrate", "RUNS.csv"]
    target = result.target if result.target in runs_on else runs_on[0]
    words = repeated(sys.argv[1:], without=("--html", "--emit", "--out", "--for"))
    return [*words, "--for", target, "--emit", target]


def _note(line: str) -> None:
    print(line, file=sys.stderr)
