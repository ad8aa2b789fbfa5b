"""The geometry of a trend: points, levels and changes of one series as paths of SVG.

In: a checked series. Out: texts that a template inserts. A series with more points than a screen has columns is drawn
by the lowest, the middle and the highest value of each column.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import msgspec

from flatout.records.tracking import SeriesCheck

WIDTH, HEIGHT = 1000, 100  # units of the drawing, which is stretched to the page
MOST_COLUMNS = 400
_PAD = 0.08  # of the height, above and below the values


class ChangeMark(msgspec.Struct, frozen=True, kw_only=True):
    """A change: its place, and the places that the values allow, in units of the drawing."""

    x: str
    low: str
    width: str
    effect: str


class TrendChart(msgspec.Struct, frozen=True, kw_only=True):
    points: str  # a path of dots
    intervals: str  # a path of lines; empty if no result has an interval
    levels: str  # a path of the level between changes, or of the drift
    marks: tuple[ChangeMark, ...]
    low: float  # values at the bottom and at the top of the chart
    high: float


def trend_chart(series: SeriesCheck) -> TrendChart:
    """Return the drawing of a series; results are at equal distances, in order."""
    values = [point.value for point in series.points]
    ends = [end for point in series.points for end in (point.low, point.high) if end is not None]
    low, high = min([*values, *ends]), max([*values, *ends])
    if high <= low:
        low, high = low - abs(low) * 0.01 - 1e-12, high + abs(high) * 0.01 + 1e-12
    frame = _Frame(low=low, high=high, num_points=len(values))
    drawn = _drawn(values)
    has_all = len(drawn) == len(values)
    return TrendChart(
        points="".join(f"M{frame.x(index)} {frame.y(value)}h0" for index, value in drawn),
        intervals=_intervals(series, frame) if has_all else "",
        levels=_levels(series, frame),
        marks=tuple(_mark(frame, index, first, last, effect) for index, first, last, effect in _places(series)),
        low=low,
        high=high,
    )


class _Frame(msgspec.Struct, frozen=True, kw_only=True):
    low: float
    high: float
    num_points: int

    def at(self, index: float) -> float:
        return (index + 0.5) / self.num_points * WIDTH

    def x(self, index: float) -> str:
        return f"{self.at(index):.1f}"

    def y(self, value: float) -> str:
        share = (value - self.low) / (self.high - self.low)
        return f"{(1 - _PAD - share * (1 - 2 * _PAD)) * HEIGHT:.1f}"


def _drawn(values: Sequence[float]) -> list[tuple[int, float]]:
    """Return the points to draw: all, or three for each column."""
    if len(values) <= 3 * MOST_COLUMNS:
        return list(enumerate(values))
    edges = [len(values) * column // MOST_COLUMNS for column in range(MOST_COLUMNS + 1)]
    drawn = []
    for start, end in pairwise(edges):
        part = values[start:end]
        middle = (start + end) // 2
        drawn += [(middle, min(part)), (middle, median(part)), (middle, max(part))]
    return drawn


def _intervals(series: SeriesCheck, frame: _Frame) -> str:
    return "".join(
        f"M{frame.x(index)} {frame.y(point.low)}V{frame.y(point.high)}"
        for index, point in enumerate(series.points)
        if point.low is not None and point.high is not None
    )


def _levels(series: SeriesCheck, frame: _Frame) -> str:
    """Return the level between changes as horizontal lines; with a drift, the line from its start to its end."""
    if len(series.points) == 0:
        return ""
    if series.drift is not None and not series.changes:
        last = len(series.points) - 1
        return f"M{frame.x(0)} {frame.y(series.drift.start)}L{frame.x(last)} {frame.y(series.drift.end)}"
    edges = [0, *(tracked.change.index for tracked in series.changes), len(series.points)]
    levels = [*(tracked.change.before for tracked in series.changes), series.level]
    return "".join(
        f"M{frame.x(start - 0.5)} {frame.y(level)}H{frame.x(end - 0.5)}"
        for (start, end), level in zip(pairwise(edges), levels, strict=True)
    )


def _places(series: SeriesCheck) -> list[tuple[int, int, int, str]]:
    changes = [tracked.change for tracked in series.changes]
    return [(change.index, change.low, change.high, change.effect) for change in changes]


def _mark(frame: _Frame, index: int, first: int, last: int, effect: str) -> ChangeMark:
    start = frame.at(first - 1)
    return ChangeMark(x=frame.x(index - 0.5), low=f"{start:.1f}", width=f"{frame.at(last) - start:.1f}", effect=effect)
