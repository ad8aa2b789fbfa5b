"""`flatout compare`: compare two commands, two commits or two Python environments, or two recordings."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.output import text_style, typed_command
from flatout.cli.values import amount, whole_number

if TYPE_CHECKING:
    from flatout.records.comparison import Comparison

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
    gate: Annotated[
        float | None,
        amount(metavar="PERCENT", most=1000.0, unit="%", help="Exit with code 1 if B is worse by more than PERCENT."),
    ] = None,
    undecided: Annotated[
        str, typer.Option(metavar="fail|pass", help="With --gate: exit with code 3 or 0 if it stays undecided.")
    ] = "fail",
    budget: Annotated[
        Duration, duration(least_s=1.0, most_s=_MOST_S, help="Time limit for the comparison.")
    ] = Duration("30m", 1800.0),
    trials: Annotated[int | None, whole_number(least=4, help="Maximum number of trials, at least 4.")] = None,
    steps: Annotated[
        int | None, whole_number(least=5, help="Measured steps per trial. [default: chosen from the first trials]")
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
        int, whole_number(most=20, help="Profiles of each arm, which show where the difference is.")
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
    from flatout.compare.command import CompareCommand
    from flatout.compare.options import CompareOptions
    from flatout.compare.request import compare_arms, recordings_of
    from flatout.errors import UsageError
    from flatout.tune.options import named_objective

    recordings = recordings_of(words or (), (a, b, a_ref, b_ref, a_python, b_python))
    if recordings is not None:
        from flatout.cli.diff import print_diff

        if gate is not None:
            raise UsageError("`--gate` needs commands: one run each gives no verdict", hint="flatout diff --help")
        print_diff(*recordings, json=json)
        return
    arms = compare_arms(words or (), commands=(a, b), refs=(a_ref, b_ref), pythons=(a_python, b_python))
    _check_undecided(undecided)
    comparison = CompareCommand(
        a=arms[0],
        b=arms[1],
        folder=out or Path("flatout-out") / f"compare-{time.strftime('%Y%m%d-%H%M%S')}",
        options=CompareOptions(
            budget_s=budget.seconds,
            max_trials=trials,
            num_steps=steps,
            gate=gate / 100 if gate is not None else None,
            objective=named_objective(objective),
            num_profiles=profiles,
        ),
        warmup=warmup,
        force=force,
    )
    result, exit_code = comparison.run(_say)
    _print(result, comparison.folder, json=json)
    _say(comparison.write(result, typed_command()))
    raise typer.Exit(exit_code if exit_code is not None else gate_code(result, undecided))


def gate_code(result: Comparison, undecided: str) -> int:
    """Return the exit code for the gate."""
    if result.gate is None or result.gate.outcome == "passed":
        return 0
    if result.gate.outcome == "failed":
        return 1
    return 0 if undecided == "pass" else 3


def _check_undecided(text: str) -> None:
    from flatout.errors import UsageError

    if text not in ("fail", "pass"):
        raise UsageError(f"`--undecided` must be fail or pass, but got {text}")


def _print(result: Comparison, folder: Path, *, json: bool) -> None:
    if json:
        from flatout.report.comparison_json import comparison_json

        sys.stdout.write(comparison_json(result, typed_command()).decode())
        return
    from flatout.report.comparison_text import comparison_text
    from flatout.secrets import masked_command

    print(comparison_text(result, folder, masked_command(typed_command()), style=text_style()))


def _say(line: str) -> None:
    print(f"flatout: {line}", file=sys.stderr, flush=True)
