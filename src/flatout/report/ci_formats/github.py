"""Workflow commands of GitHub Actions: an annotation for each measure that failed, changed or is undecided.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions. The Markdown table goes to the file
$GITHUB_STEP_SUMMARY, which the command line appends to.
"""

from __future__ import annotations

from flatout.records.tracking import Reported, ReportedMeasure
from flatout.report.terminal import visible

_LEVELS = {"failed": "error", "undecided": "warning", "passed": "notice"}


def github(reported: Reported) -> str:
    lines = [_command(measure) for measure in reported.measures if measure.outcome != "passed" or measure.message]
    return "\n".join([*lines, visible(reported.summary)])


def _command(measure: ReportedMeasure) -> str:
    title = _property(f"{measure.name}: {measure.outcome}")
    message = _data(f"{measure.message} ({measure.job}, {measure.machine})")
    return f"::{_LEVELS[measure.outcome]} title={title}::{message}"


def _data(text: str) -> str:
    """Return text that stays in one command: a name from a file cannot begin another."""
    return visible(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
