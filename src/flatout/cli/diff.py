"""`flatout diff`: two diagnoses side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.diagnose import given_path

if TYPE_CHECKING:
    from flatout.records.diagnosis import Diagnosis


def diff(
    before: Annotated[
        Path, typer.Argument(metavar="A", parser=given_path, help="Traces, or a diagnosis saved with --json.")
    ],
    after: Annotated[Path, typer.Argument(metavar="B", parser=given_path, help="What to compare it with.")],
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Compare two diagnoses, part by part and finding by finding.

    Example: flatout diff before/ after/
    """
    from flatout.report.diff import diff as compare
    from flatout.report.diff import diff_json, diff_text

    a, b = _diagnosis(before), _diagnosis(after)
    result = compare(a, b)
    if json:
        sys.stdout.write(diff_json(result, ["flatout", *sys.argv[1:]]).decode())
        return
    from flatout.report.terminal import style_of

    print(diff_text(result, a, b, style=style_of(sys.stdout), next_command=_next_command(after, b)))


def _next_command(after: Path, diagnosis: Diagnosis) -> str:
    """Traces can be diagnosed; of a saved diagnosis only its first finding explained."""
    import shlex

    from flatout.report.json import is_diagnosis

    if not is_diagnosis(after):
        return f"flatout diagnose {shlex.quote(str(after))}"
    return f"flatout explain {diagnosis.findings[0].name}" if diagnosis.findings else ""


def _diagnosis(path: Path) -> Diagnosis:
    """A saved diagnosis is read, anything else diagnosed."""
    from flatout.cli.progress import Progress
    from flatout.diagnosis_pipeline import diagnose_paths
    from flatout.report.json import is_diagnosis, read_diagnosis

    if is_diagnosis(path):
        return read_diagnosis(path)
    with Progress(f"reading {path}") as progress:
        return diagnose_paths([path], progress=progress.show).diagnosis
