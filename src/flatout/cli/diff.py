"""`flatout diff`: compare two diagnoses, or the logs of two trainings."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.fail_on import exit_if_met, fail_on_option
from flatout.cli.output import text_style, typed_command
from flatout.cli.paths import given_path

if TYPE_CHECKING:
    from flatout.api.results import DiffResult, LogDiffResult
    from flatout.records.diagnosis import Diagnosis


def diff(
    before: Annotated[
        Path,
        typer.Argument(
            metavar="A", parser=given_path, help="Traces, a diagnosis saved with --json, or the log of a training."
        ),
    ],
    after: Annotated[
        Path, typer.Argument(metavar="B", parser=given_path, help="Traces, a diagnosis or a log to compare with A.")
    ],
    fail_on: Annotated[list[str] | None, fail_on_option("diff")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Compare two diagnoses, part by part and finding by finding, or the logs of two trainings.

    Two sizes of one job are compared by their scaling efficiency. Logs of Megatron-LM, NeMo, DeepSpeed, torchtitan and
    MLPerf are compared by their step times.

    Example: flatout diff before/ after/ --fail-on slower=10%
    """
    from flatout.conditions.met import met_by_diff, met_by_log_change
    from flatout.conditions.words import parse_conditions
    from flatout.records.step_series import LogChange

    conditions = parse_conditions("diff", fail_on or ())
    result = print_diff(before, after, json=json)
    met = met_by_log_change if isinstance(result, LogChange) else met_by_diff
    exit_if_met(met(result, conditions))  # type: ignore[arg-type]


def print_diff(before: Path, after: Path, *, json: bool) -> DiffResult | LogDiffResult:
    """Print and return the comparison of two runs, for this command and for `flatout compare`."""
    from flatout.api import diff as compare
    from flatout.records.step_series import LogChange
    from flatout.report.diff_text import diff_text
    from flatout.report.log_change_text import log_change_text
    from flatout.report.progress import ProgressLine

    with ProgressLine("reading") as progress:
        result = compare(before, after, progress=progress.show)
    if json:
        sys.stdout.write(result.to_json(typed_command()).decode())
    elif isinstance(result, LogChange):
        print(log_change_text(result, style=text_style()))
    else:
        a, b = result.diagnoses
        print(diff_text(result, a, b, style=text_style(), next_command=_next_command(after, b)))
    return result


def _next_command(after: Path, diagnosis: Diagnosis) -> str:
    """Return the command to diagnose traces, or to explain the first finding of a saved diagnosis."""
    from flatout.report.json import is_diagnosis

    if not is_diagnosis(after):
        return f"flatout diagnose {shlex.quote(str(after))}"
    return f"flatout explain {diagnosis.findings[0].name}" if diagnosis.findings else ""
