"""Workflow commands of GitHub Actions: an annotation for each measure that failed, changed or is undecided.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions. The Markdown table goes to the file
$GITHUB_STEP_SUMMARY, which the command line appends to.
"""

from __future__ import annotations

from flatout.records.tracking import Reported, ReportedMeasure
from flatout.report.terminal import visible

_LEVELS = {"failed": "error", "undecided": "warning", "passed": "notice"}


def github(reported: Reported) -> str:
    told = [measure for measure in reported.measures if measure.outcome in ("failed", "undecided") or measure.message]
    lines = [_command(measure) for measure in told]
    return "\n".join([*lines, visible(reported.summary)])


def _command(measure: ReportedMeasure) -> str:
    title = _property(f"{measure.name}: {measure.outcome}" if measure.outcome is not None else measure.name)
    level = _LEVELS[measure.outcome] if measure.outcome is not None else "notice"
    message = _data(f"{measure.message} ({measure.job}, {measure.machine})")
    return f"::{level} title={title}::{message}"


def _data(text: str) -> str:
    """Return text that stays in one command: a name from a file cannot begin another."""
    return visible(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
