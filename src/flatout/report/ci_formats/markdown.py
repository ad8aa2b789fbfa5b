"""A table in Markdown, for a pull request or a page of a wiki."""

from __future__ import annotations

import re

from flatout.records.tracking import Reported, ReportedMeasure
from flatout.report.terminal import visible
from flatout.report.track_phrases import value_text

_MARKED = re.compile(r"([\\`*_{}\[\]<>#|~!@])")


def markdown(reported: Reported) -> str:
    lines = [f"### {_plain(reported.title)}", "", _plain(reported.summary)]
    tables: dict[tuple[str, str], list[ReportedMeasure]] = {}
    for measure in reported.measures:
        tables.setdefault((measure.job, measure.machine), []).append(measure)
    for (job, machine), measures in tables.items():
        lines += ["", f"**{_plain(job)}** on {_plain(machine)}", "", "| Measure | Value | Interval | Outcome | |"]
        lines += ["|---|---:|---:|---|---|", *(_row(measure) for measure in measures)]
    return "\n".join(lines)


def _row(measure: ReportedMeasure) -> str:
    interval = ""
    if measure.low is not None and measure.high is not None:
        interval = f"{value_text(measure.low, measure.unit)} to {value_text(measure.high, measure.unit)}"
    outcome = measure.outcome or "no gate"
    cells = [measure.name, value_text(measure.value, measure.unit), interval, outcome, measure.message]
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is; a name from a file is neither a link nor a mention."""
    return _MARKED.sub(r"\\\1", visible(text))
