"""`flatout tune nccl`: measure NCCL's settings and choices by message size, and write a table of what is faster."""

from __future__ import annotations

import sys
import time as clock
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.output import print_json, text_style, typed_command
from flatout.cli.paths import path_option
from flatout.cli.searches import say
from flatout.cli.values import whole_number

if TYPE_CHECKING:
    from flatout.nccl_tuner.command import NcclCommand

_LEAST_S, _MOST_S = 5.0, 86_400.0


def tune_nccl(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND...]",
            help="Training command, after `--`: its own collectives are measured, and its step decides.",
            show_default=False,
        ),
    ] = None,
    recording: Annotated[
        Path | None, path_option(metavar="DIR", help="Recording of a job, whose groups and sizes are measured.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for the table and the result. [default: flatout-out/nccl-TIME]"),
    ] = None,
    time: Annotated[
        Duration, duration(least_s=_LEAST_S, most_s=_MOST_S, help="Time limit for the measurements.")
    ] = Duration("5m", 300.0),
    budget: Annotated[
        Duration, duration(least_s=1.0, most_s=30 * _MOST_S, help="Time limit for tuning COMMAND.")
    ] = Duration("30m", 1800.0),
    ranks: Annotated[
        int | None, whole_number(least=2, most=1024, help="Number of processes. [default: one per GPU]")
    ] = None,
    transport: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Transport: socket, shared_memory, pcie, nvlink, infiniband or efa. [default: as found]",
        ),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(metavar="NAME", help="Library to measure: nccl or gloo. [default: nccl]")
    ] = None,
    fabric: Annotated[
        Path | None, path_option(help="TOML file of a simulated fabric, to rehearse on CPU ranks without NCCL.")
    ] = None,
    no_plugin: Annotated[
        bool, typer.Option("--no-plugin", help="Measure settings only, without the tuner plugin and its table.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the results in DIR.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure NCCL by message size, check each result, and write a table of what is faster than the default.

    With COMMAND, its own collectives are measured, and the change is accepted only if its step becomes faster.

    Exits with code 0 if something is faster, otherwise with 1.

    Example: flatout tune nccl -- torchrun --standalone --nproc-per-node 8 train.py
    """
    from flatout.nccl_tuner.command import NcclCommand

    measuring = NcclCommand(
        folder=out or Path("flatout-out") / f"nccl-{clock.strftime('%Y%m%d-%H%M%S')}",
        time_s=time.seconds,
        recording=recording,
        transport=transport,
        backend=backend,
        fabric=fabric,
        num_ranks=ranks,
        uses_plugin=not no_plugin,
        force=force,
    )
    measuring.check()
    if command:
        raise typer.Exit(_tune(tuple(command), measuring, budget.seconds, json=json))
    tuning = measuring.run(say)
    if tuning is None:
        return
    written = measuring.write(tuning, typed_command())
    if json:
        from flatout.nccl_tuner.command import SCHEMA, VERSION

        print_json(SCHEMA, tuning, version=VERSION)
    else:
        from flatout.report.nccl_tuning_text import nccl_tuning_text

        print(nccl_tuning_text(tuning, style=text_style()))
    for line in written:
        say(line)
    raise typer.Exit(0 if tuning.settings or tuning.table.rows else 1)


def _tune(command: tuple[str, ...], measuring: NcclCommand, budget_s: float, *, json: bool) -> int:
    """Tune the command by changes of NCCL only, and return the exit code."""
    from flatout.nccl_tuner.judged import tuned_by_step
    from flatout.tune.result import is_better
    from flatout.tune.signals import EndedBySignal

    try:
        result, written = tuned_by_step(command, measuring, budget_s, typed_command(), say)
    except EndedBySignal as signal:
        return 128 + signal.number
    if json:
        from flatout.report.tuning_json import tuning_json

        sys.stdout.write(tuning_json(result, typed_command()).decode())
    else:
        from flatout.report.tuning_text import tuning_text

        print(tuning_text(result, measuring.folder))
    for line in written:
        say(line)
    return 0 if is_better(result) else 1
