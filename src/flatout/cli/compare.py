"""`flatout compare`: compare two commands, two commits or two Python environments, or two recordings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.gate import FAIL, gate_code, gate_option, undecided_option
from flatout.cli.output import text_style, typed_command
from flatout.cli.searches import say
from flatout.cli.values import whole_number

if TYPE_CHECKING:
    from flatout.api.results import ComparisonResult

_MOST_S = 30 * 86_400.0


def compare(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND...]", help="Command of both arms, after `--`; or two recordings, A and B."),
    ] = None,
    a: Annotated[str | None, typer.Option("--a", metavar="CMD", help="Command of A, the baseline.")] = None,
    b: Annotated[str | None, typer.Option("--b", metavar="CMD", help="Command of B.")] = None,
    a_ref: Annotated[
        str | None, typer.Option(metavar="REF", help="Run A on this commit. [default: the files as they are]")
    ] = None,
    b_ref: Annotated[
        str | None, typer.Option(metavar="REF", help="Run B on this commit. [default: the files as they are]")
    ] = None,
    a_python: Annotated[
        Path | None, typer.Option(metavar="ENV", help="Run A in this Python environment: its folder or python.")
    ] = None,
    b_python: Annotated[Path | None, typer.Option(metavar="ENV", help="Run B in this Python environment.")] = None,
    gate: Annotated[float | None, gate_option("B is worse by more than PERCENT")] = None,
    undecided: Annotated[str, undecided_option("it stays undecided")] = FAIL,
    budget: Annotated[
        Duration, duration(least_s=1.0, most_s=_MOST_S, help="Time limit for the comparison.")
    ] = Duration("30m", 1800.0),
    trials: Annotated[int | None, whole_number(least=4, help="Maximum number of trials, at least 4.")] = None,
    steps: Annotated[
        int | None, whole_number(least=5, help="Measured steps per trial. [default: until the mean step is known]")
    ] = None,
    warmup: Annotated[
        int | None, whole_number(help="Warm-up steps per trial. [default: until step times are stable]")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="OBJECTIVE",
            help="Quantity to compare: samples/s, tokens/s, steps/s, memory or energy. [default: samples/s]",
        ),
    ] = None,
    profiles: Annotated[
        int, whole_number(most=20, help="Maximum number of profiles per arm; they show where the difference is.")
    ] = 3,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for trials and the result. [default: flatout-out/compare-TIME]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the comparison in DIR.")] = False,
) -> None:
    """Compare two training commands in alternating trials: which is faster, by how much, and where.

    Exits with code 0 whatever the verdict. With --gate, exits with code 1 if B is shown to be worse by more than the
    gate, and with 3 if that is undecided.

    Example: flatout compare --a-ref main --b-ref HEAD --gate 3% -- torchrun --nproc-per-node 2 train.py
    """
    from flatout.api import compare as compare_commands
    from flatout.api.jobs import InterruptedComparison
    from flatout.compare.request import recordings_of
    from flatout.errors import UsageError

    recordings = recordings_of(words or (), (a, b, a_ref, b_ref, a_python, b_python))
    if recordings is not None:
        from flatout.cli.diff import print_diff

        if gate is not None:
            raise UsageError("`--gate` needs commands: two recordings give no verdict", hint="flatout diff --help")
        print_diff(*recordings, json=json)
        return
    exit_code: int | None = None
    try:
        result = compare_commands(
            words or (),
            a=a,
            b=b,
            a_ref=a_ref,
            b_ref=b_ref,
            a_python=a_python,
            b_python=b_python,
            gate=gate / 100 if gate is not None else None,
            budget_s=budget.seconds,
            trials=trials,
            steps=steps,
            warmup=warmup,
            objective=objective,
            profiles=profiles,
            out=out,
            force=force,
            typed=typed_command(),
            say=say,
        )
    except InterruptedComparison as interrupted:
        result, exit_code = interrupted.result, interrupted.exit_code
    _print(result, json=json)
    if exit_code is None:
        exit_code = gate_code(result.gate.outcome if result.gate is not None else None, undecided)
    raise typer.Exit(exit_code)


def _print(result: ComparisonResult, *, json: bool) -> None:
    if json:
        sys.stdout.write(result.to_json(typed_command()).decode())
        return
    from flatout.report.comparison_text import comparison_text
    from flatout.secrets import masked_command

    print(comparison_text(result, result.folder, masked_command(typed_command()), style=text_style()))
