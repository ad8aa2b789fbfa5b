"""`flatout diff`: compare two diagnoses."""

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
    from flatout.records.diagnosis import Diagnosis
    from flatout.report.diff import DiagnosisDiff


def diff(
    before: Annotated[
        Path, typer.Argument(metavar="A", parser=given_path, help="Traces, or a diagnosis saved with --json.")
    ],
    after: Annotated[
        Path, typer.Argument(metavar="B", parser=given_path, help="Traces or a diagnosis to compare with A.")
    ],
    fail_on: Annotated[list[str] | None, fail_on_option("diff")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Compare two diagnoses, part by part and finding by finding.

    Two sizes of one job are compared by their scaling efficiency.

    Example: flatout diff before/ after/ --fail-on slower=10%
    """
    from flatout.conditions.met import met_by_diff
    from flatout.conditions.words import parse_conditions

    conditions = parse_conditions("diff", fail_on or ())
    exit_if_met(met_by_diff(print_diff(before, after, json=json), conditions))


def print_diff(before: Path, after: Path, *, json: bool) -> DiagnosisDiff:
    """Print and return the comparison of two diagnoses, for this command and for `flatout compare`."""
    from flatout.compare.environment import environment_differences, facts_of
    from flatout.report.diff import diff as compare
    from flatout.report.diff import diff_json
    from flatout.report.diff_text import diff_text

    a, b = _diagnosis(before), _diagnosis(after)
    result = compare(a, b, environment_differences(facts_of(before), facts_of(after), (), ()))
    if json:
        sys.stdout.write(diff_json(result, typed_command()).decode())
        return result
    print(diff_text(result, a, b, style=text_style(), next_command=_next_command(after, b)))
    return result


def _next_command(after: Path, diagnosis: Diagnosis) -> str:
    """Return the command to diagnose traces, or to explain the first finding of a saved diagnosis."""
    from flatout.report.json import is_diagnosis

    if not is_diagnosis(after):
        return f"flatout diagnose {shlex.quote(str(after))}"
    return f"flatout explain {diagnosis.findings[0].name}" if diagnosis.findings else ""


def _diagnosis(path: Path) -> Diagnosis:
    """Read a saved diagnosis; diagnose anything else."""
    from flatout.api import diagnose
    from flatout.report.json import is_diagnosis, read_diagnosis
    from flatout.report.progress import ProgressLine

    if is_diagnosis(path):
        return read_diagnosis(path)
    with ProgressLine(f"reading {path}") as progress:
        return diagnose(path, progress=progress.show)
