"""A checked history as text for a terminal: each series with a small chart, its changes, and what changed there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from flatout.records.tracking import SeriesCheck, TrackCheck, TrackedChange
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle
from flatout.report.track_phrases import (
    STATUS_ORDER,
    change_sentence,
    correlation_sentence,
    drift_sentence,
    environment_words,
    gate_sentence,
    parts_words,
    rate_sentence,
    states_sentence,
    summary_sentence,
    value_text,
)

CHART_WIDTH = 40
_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = "_.-=+*#@"


def track_text(check: TrackCheck, *, style: TextStyle, is_check: bool = True) -> str:
    """Return the report. Without `is_check`, all series are shown in the order of the history, as by `track show`."""
    lines = [style.bold(summary_sentence(check))]
    if is_check:
        lines += style.wrapped(rate_sentence(check))
    shown = sorted(check.series, key=lambda one: STATUS_ORDER.index(one.status)) if is_check else check.series
    job = None
    for series in shown:
        if (series.job, series.machine) != job:
            job = series.job, series.machine
            lines += ["", *style.wrapped(series.job, label=""), *style.wrapped(series.machine, indent="  ")]
        lines += _series(series, style)
    lines += [""] * bool(check.notes) + [line for note in check.notes for line in style.wrapped(note)]
    if check.num_damaged:
        lines += ["", *style.wrapped(f"{counted(check.num_damaged, 'damaged line')} skipped")]
    if check.gate is not None:
        lines += ["", *(style.bold(line) for line in style.wrapped(gate_sentence(check)))]
    return "\n".join(lines)


def _series(series: SeriesCheck, style: TextStyle) -> list[str]:
    values = [point.value for point in series.points]
    chart = sparkline(values, style=style)
    head = f"  {style.clean(series.measure)}  {style.dim(chart)}  {value_text(series.level, series.unit)}"
    lines = [f"{head}  {series.status} ({counted(len(values), 'result')})"]
    for tracked in series.changes:
        lines += _change(series, tracked, style)
    if series.drift is not None:
        lines += style.wrapped(drift_sentence(series.drift, series.unit), indent="    ")
    if series.states is not None:
        lines += style.wrapped(states_sentence(series.states, series.unit), indent="    ")
    if series.correlation:
        lines += style.wrapped(correlation_sentence(series), indent="    ")
    if series.outliers:
        lines += style.wrapped(f"{counted(len(series.outliers), 'outlier')}, not counted as a change", indent="    ")
    return lines


def _change(series: SeriesCheck, tracked: TrackedChange, style: TextStyle) -> list[str]:
    lines = style.wrapped(change_sentence(series, tracked), indent="    ")
    if tracked.environment:
        lines += style.wrapped(environment_words(tracked), indent="      ", label="changed there: ")
    if tracked.parts:
        lines += style.wrapped(parts_words(tracked.parts), indent="      ", label="parts: ")
    return lines


def sparkline(values: Sequence[float], *, style: TextStyle, width: int = CHART_WIDTH) -> str:
    """Draw values as one line of at most `width` characters; each is the median of the values at its place."""
    num_columns = min(width, len(values))
    edges = [len(values) * column // num_columns for column in range(num_columns + 1)]
    heights = [median(values[start:end]) for start, end in pairwise(edges)]
    low, high = min(heights), max(heights)
    levels = _LEVELS if style.has_unicode else _ASCII_LEVELS
    if high <= low:
        return levels[0] * num_columns
    scale = (len(levels) - 1) / (high - low)
    return "".join(levels[round((height - low) * scale)] for height in heights)
