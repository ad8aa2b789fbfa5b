"""`flatout tune --serve`: find the settings with which a server answers more requests within latency limits."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.output import text_style, typed_command
from flatout.cli.paths import path_option
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

if TYPE_CHECKING:
    from flatout.records.serving import ServingObjective


def tune_serve(
    server: Annotated[
        str, typer.Argument(metavar="CMD", help="Command that starts the server, in quotes.", show_default=False)
    ],
    load: Annotated[Path, path_option(metavar="FILE", help="Load to send: a load.toml, or a trace as .csv or .jsonl.")],
    slo: Annotated[str, typer.Option(metavar="LIMITS", help="Latency limits, e.g. 'p99 ttft<500ms, p99 itl<50ms'.")],
    out: Annotated[Path | None, out_option("logs and results", "serve")] = None,
    budget: Annotated[Duration, budget_option(" for tuning")] = Duration("30m", 1800.0),
    trials: Annotated[int | None, trials_option("server starts")] = None,
    allow: Annotated[str, allow_option()] = "exact",
    objective: Annotated[
        str, typer.Option(metavar="OBJECTIVE", help="Quantity to improve: goodput, tokens/s or energy (per token).")
    ] = "goodput",
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Kind of server: vllm, sglang, transformers or triton, or your own .toml table. "
            "[default: as the command shows]",
        ),
    ] = None,
    start_limit: Annotated[
        Duration, duration(least_s=1.0, most_s=86_400.0, help="Time limit for the server to become healthy.")
    ] = Duration("10m", 600.0),
    json: Annotated[bool, json_option()] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the results in DIR.")] = False,
) -> None:
    """Find the settings with which a server answers more requests within latency limits.

    Each trial starts the server, sends the same requests when they are due, checks its answers, and stops it.

    Exits with code 0 if a change was accepted, otherwise with 1.

    Example: flatout tune --serve 'vllm serve MODEL' --load load.toml --slo 'p99 ttft<500ms, p99 itl<50ms'
    """
    from flatout.serving.command import ServeCommand
    from flatout.tune.result_folder import SearchLimits

    serving = ServeCommand(
        server=server,
        load=load,
        slo=slo,
        limits=SearchLimits(
            folder=out or Path("flatout-out") / f"serve-{time.strftime('%Y%m%d-%H%M%S')}",
            budget_s=budget.seconds,
            max_trials=trials,
            force=force,
        ),
        objective=_objective(objective),
        allowed=parsed_safety(allow),
        engine=engine,
        start_limit_s=start_limit.seconds,
    )
    with ended_by_signals():
        tuning = serving.tune(say)
    written = serving.write(tuning, typed_command())
    if json:
        from flatout.report.serving_json import serving_json

        sys.stdout.write(serving_json(tuning, typed_command()).decode())
    else:
        from flatout.report.serving_text import serving_text

        print(serving_text(tuning, serving.limits.folder, style=text_style()))
    for line in written:
        say(line)
    raise typer.Exit(0 if tuning.adopted else 1)


def _objective(text: str) -> ServingObjective:
    from flatout.errors import UsageError
    from flatout.records.serving import OBJECTIVES

    for objective in OBJECTIVES:
        if text == objective:
            return objective
    raise UsageError(f"`--objective` must be one of {', '.join(OBJECTIVES)}, but got {text}")
