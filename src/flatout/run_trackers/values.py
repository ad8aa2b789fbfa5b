"""The numbers, tags and the text of a result for a run tracker, under documented names.

In: what `--json` prints, as a dictionary. Out: `LoggedValues`. Unknown values are not logged, rather than as 0.

    flatout/step_s, flatout/samples_per_s, flatout/mfu, ...   the measures that `flatout track` keeps
    flatout/parts.NAME                                        seconds of a part per step, the mean over ranks
    flatout/share.NAME, flatout/goodput                       of a ledger: shares of the allocated time
    flatout/finding.NAME                                      seconds per step that fixing a finding would save
    flatout/num_findings
    flatout/verdict.speedup, .low, .high                      of a tuning or a comparison, above 1 if it is faster
"""

from __future__ import annotations

from typing import Any

import msgspec

from flatout.errors import InputError
from flatout.track.facts import at, items, number, text
from flatout.track.result_file import SOURCES

PREFIX = "flatout/"


class LoggedValues(msgspec.Struct, frozen=True, kw_only=True):
    """What is logged of one result."""

    schema: str
    numbers: dict[str, float]
    tags: dict[str, str]  # `flatout.verdict`: better, worse, equivalent or undecided; `flatout.findings`: their names
    summary: str  # Markdown: the findings or changes, one a line; empty without any


def logged_values(record: dict[str, Any]) -> LoggedValues:
    """Return what is logged of a result. Raise InputError if it is not one that a tracker can show."""
    schema = text(record, "schema")
    source = SOURCES.get(schema or "")
    if source is None:
        known = ", ".join(sorted(SOURCES))
        raise InputError(f"a result must have one of the schemas {known}, but has `{schema}`")
    facts = source(record)
    numbers = {measure.name: measure.value for measure in facts.measures}
    numbers |= _findings(record) | _verdict(record)
    tags = {"schema": schema, "tool_version": text(record, "tool_version"), "verdict": facts.verdict}
    tags |= {"findings": _names(record, "findings"), "changes": _names(record, "changes"), "gate": facts.gate}
    return LoggedValues(
        schema=str(schema),
        numbers={f"{PREFIX}{name}": value for name, value in numbers.items()},
        tags={f"flatout.{name}": value for name, value in tags.items() if value},
        summary=_summary(record),
    )


def _findings(record: dict[str, Any]) -> dict[str, float]:
    """Return the cost of each finding, and their number; nothing for a result that has no list of findings."""
    if not isinstance(record.get("findings"), list):
        return {}
    costs: dict[str, float] = {}
    for finding in items(record, "findings"):
        name, cost_s = text(finding, "name"), number(finding, "cost_s_per_step")
        if name is not None and cost_s is not None:
            costs[f"finding.{name}"] = costs.get(f"finding.{name}", 0.0) + cost_s
    return {**costs, "num_findings": float(len(items(record, "findings")))}


def _verdict(record: dict[str, Any]) -> dict[str, float]:
    """Return the speedup that a tuning or a comparison found, with its interval."""
    verdict = at(record, "verdict")
    judged = verdict if isinstance(verdict, dict) else record  # a tuning has its verdict's numbers at the top
    numbers = {"verdict.speedup": number(judged, "speedup")}
    interval = at(judged, "interval")
    if isinstance(interval, list) and len(interval) == 2:
        ends = {"low": interval[0], "high": interval[1]}
        numbers |= {f"verdict.{name}": number(ends, name) for name in ends}
    return {name: value for name, value in numbers.items() if value is not None}


def _names(record: dict[str, Any], key: str) -> str:
    return ", ".join(name for one in items(record, key) if (name := text(one, "name")) is not None)


def _summary(record: dict[str, Any]) -> str:
    lines = [f"- {title}" for finding in items(record, "findings") if (title := text(finding, "title"))]
    lines += [f"- {name}" for change in items(record, "changes") if (name := text(change, "name"))]
    return "\n".join(lines)
