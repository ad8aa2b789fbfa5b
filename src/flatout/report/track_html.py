"""Write a checked history as one self-contained HTML page: no script, no external reference.

In: a `TrackCheck` and the command line. Out: a string. Texts from the history are untrusted: the template escapes them,
and a content policy in the page forbids scripts and external references.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout import __version__
from flatout.records.tracking import Effect, SeriesCheck, TrackCheck, TrackedChange
from flatout.report.command import command_line
from flatout.report.phrases import counted
from flatout.report.template import rendered
from flatout.report.track_charts import HEIGHT, WIDTH, trend_chart
from flatout.report.track_phrases import (
    STATUS_ORDER,
    change_percent,
    change_sentence,
    correlation_sentence,
    drift_sentence,
    environment_words,
    gate_sentence,
    parts_words,
    rate_sentence,
    short_commit,
    states_sentence,
    summary_sentence,
    value_text,
)

MOST_SERIES = 200
_EFFECTS: tuple[tuple[Effect, str], ...] = (("worse", "worse"), ("better", "better"), ("neutral", "other"))


def track_html(check: TrackCheck, command: Sequence[str]) -> str:
    """Return the page: what changed first, then each job and class of machine with its trends."""
    ordered = sorted(check.series, key=lambda one: STATUS_ORDER.index(one.status))[:MOST_SERIES]
    groups: dict[tuple[str, str], list[SeriesCheck]] = {}
    for series in ordered:
        groups.setdefault((series.job, series.machine), []).append(series)
    content = {
        "tool_version": __version__,
        "command": command_line(command),
        "headline": _headline(check),
        "facts": [check.path, summary_sentence(check)],
        "gate": gate_sentence(check),
        "rate": rate_sentence(check),
        "width": WIDTH,
        "height": HEIGHT,
        "groups": [
            {"job": job, "machine": machine, "series": [_series(series) for series in members]}
            for (job, machine), members in groups.items()
        ],
        "num_more": len(check.series) - len(ordered),
        "notes": [*check.notes, *_damaged(check)],
    }
    return rendered("track.html.j2", content)


def _headline(check: TrackCheck) -> str:
    """Return what the last change of each series says together."""
    effects = [series.changes[-1].change.effect for series in check.series if series.changes]
    if not effects:
        return "No measure changed its level"
    counts = [(effects.count(effect), word) for effect, word in _EFFECTS]
    words = [f"{number} {word}" for number, word in counts if number]
    return f"{counted(len(effects), 'measure')} changed: {', '.join(words)}"


def _damaged(check: TrackCheck) -> list[str]:
    return [f"{counted(check.num_damaged, 'damaged line')} skipped"] if check.num_damaged else []


def _series(series: SeriesCheck) -> dict[str, object]:
    chart = trend_chart(series)
    sentences = [drift_sentence(series.drift, series.unit)] if series.drift is not None else []
    if series.states is not None:
        sentences.append(states_sentence(series.states, series.unit))
    if series.correlation:
        sentences.append(correlation_sentence(series))
    if series.outliers:
        sentences.append(f"{counted(len(series.outliers), 'outlier')}, not counted as a change")
    return {
        "measure": series.measure,
        "status": series.status,
        "css": _css(series),
        "level": value_text(series.level, series.unit),
        "num_results": counted(len(series.points), "result"),
        "direction": {"lower": "lower is better", "higher": "higher is better"}.get(series.direction, ""),
        "chart": chart,
        "high": value_text(chart.high, series.unit),
        "low": value_text(chart.low, series.unit),
        "first": short_commit(series.points[0].commit),
        "last": short_commit(series.points[-1].commit),
        "spoken": f"{series.measure}: {value_text(series.level, series.unit)}, {series.status}",
        "changes": [_change(series, tracked) for tracked in series.changes],
        "sentences": sentences,
    }


def _css(series: SeriesCheck) -> str:
    """Return the class of the status: that of the last change, if there is one."""
    return series.changes[-1].change.effect if series.changes else "calm"


def _change(series: SeriesCheck, tracked: TrackedChange) -> dict[str, str]:
    return {
        "effect": tracked.change.effect,
        "percent": change_percent(tracked.change.before, tracked.change.after),
        "text": change_sentence(series, tracked),
        "environment": environment_words(tracked),
        "parts": parts_words(tracked.parts),
    }
