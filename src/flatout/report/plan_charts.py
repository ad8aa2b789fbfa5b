"""The geometry of a plan's charts: the rectangles of a pipeline and the points of a Pareto front.

In: intervals and layouts. Out: texts that a template inserts into SVG. A pipeline with too many operations is drawn as
its share of busy time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from flatout.records.plan import PlannedLayout
from flatout.records.plan_details import PipelineInterval

WIDTH = 10_000  # units of the drawing; a pixel has about 10
HEIGHT = 10
MOST_DRAWN = 6000  # operations: about 120 kB
COLUMNS = 500  # of the axis, if there are too many operations to draw each
APART = 120  # most operations of a stage that are drawn with edges
Pipeline = Sequence[Sequence[PipelineInterval]]


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One stage, with an SVG path per kind of operation."""

    label: str
    paths: tuple[tuple[str, str], ...]  # class, path
    spoken: str


class PipelineChart(msgspec.Struct, frozen=True, kw_only=True):
    """All stages on one time axis."""

    lanes: tuple[Lane, ...]
    span_s: float
    is_merged: bool  # there are too many operations to draw each
    has_edges: bool


def pipeline_chart(
    pipeline: Pipeline, tail: Sequence[tuple[str, float]], *, until_s: float | None = None
) -> PipelineChart:
    """Draw the pipeline and the work after it (`tail`: class, seconds); with `until_s`, only the pipeline's start."""
    end_s = max(stage[-1].end_s for stage in pipeline)
    span_s = until_s if until_s is not None else end_s + sum(length_s for _, length_s in tail)
    shown = [[interval for interval in stage if interval.start_s < span_s] for stage in pipeline]
    is_merged = until_s is None and sum(len(stage) for stage in shown) > MOST_DRAWN
    lanes = []
    for number, stage in enumerate(shown):
        if is_merged:
            paths = _busy_columns(stage, span_s)
        else:
            paths = [(kind, _path(spans, span_s)) for kind, spans in _operations(stage).items()]
        if until_s is None:
            paths += _tail_paths(tail, end_s, span_s)
        busy_s = sum(interval.end_s - interval.start_s for interval in pipeline[number])
        spoken = f"stage {number}: busy {busy_s / end_s * 100:.0f} % of the pipeline's time"
        lanes.append(Lane(label=f"stage {number}", paths=tuple(paths), spoken=spoken))
    return PipelineChart(
        lanes=tuple(lanes),
        span_s=span_s,
        is_merged=is_merged,
        has_edges=not is_merged and max(len(stage) for stage in shown) <= APART,
    )


def _tail_paths(tail: Sequence[tuple[str, float]], start_s: float, span_s: float) -> list[tuple[str, str]]:
    """Return the path of each piece of the tail that takes any time, one after the other."""
    paths = []
    for kind, length_s in tail:
        if length_s > 0:
            paths.append((kind, _path([(start_s, start_s + length_s)], span_s)))
        start_s += length_s
    return paths


def beginning_s(pipeline: Pipeline) -> float:
    """Return how much of the pipeline to draw in full: three times its filling, at most `MOST_DRAWN` operations."""
    starts = sorted(interval.start_s for stage in pipeline for interval in stage)
    filled_s = next(interval.end_s for interval in pipeline[0] if interval.kind == "backward")
    last_drawn_s = starts[min(MOST_DRAWN, len(starts) - 1)]
    return min(last_drawn_s, 3 * filled_s)


def _operations(stage: Sequence[PipelineInterval]) -> dict[str, list[tuple[float, float]]]:
    """Group the spans by kind and by whether their chunk is odd or even."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for interval in stage:
        parity = "odd" if interval.chunk % 2 else "even"
        spans.setdefault(f"{interval.kind} {parity}", []).append((interval.start_s, interval.end_s))
    return spans


def _busy_columns(stage: Sequence[PipelineInterval], span_s: float) -> list[tuple[str, str]]:
    """Draw a bar in each column of the axis, as high as the share of busy time; equal neighbours are merged."""
    column_s = span_s / COLUMNS
    busy: dict[str, list[float]] = {}
    for interval in stage:
        shares = busy.setdefault(interval.kind, [0.0] * (COLUMNS + 1))
        start, end = interval.start_s / column_s, interval.end_s / column_s
        for column in range(int(start), min(COLUMNS, math.ceil(end))):
            shares[column] += max(0.0, min(end, column + 1) - max(start, column))
    runs: list[tuple[str, int, int, int]] = []  # kind, height, first column, number of columns
    for column in range(COLUMNS):
        parts = {kind: shares[column] for kind, shares in busy.items()}
        total = sum(parts.values())
        height = round(min(1.0, total) * HEIGHT)
        if not height:
            continue
        main = max(parts, key=lambda kind: parts[kind])
        kind = main if parts[main] > 0.9 * total else "both"
        last = runs[-1] if runs else ("", 0, -1, 0)
        if last[:2] == (kind, height) and last[2] + last[3] == column:
            runs[-1] = (kind, height, last[2], last[3] + 1)
        else:
            runs.append((kind, height, column, 1))
    width = WIDTH // COLUMNS
    paths: dict[str, str] = {}
    for kind, height, first, count in runs:
        left = first * width
        css = f"{kind} even"
        paths[css] = paths.get(css, "") + f"M{left} {HEIGHT - height}h{count * width}v{height}H{left}z"
    return list(paths.items())


def _path(spans: Sequence[tuple[float, float]], span_s: float) -> str:
    rectangles = []
    for start_s, end_s in spans:
        left = round(start_s / span_s * WIDTH)
        right = min(WIDTH, max(left + 1, round(end_s / span_s * WIDTH)))
        rectangles.append(f"M{left} 0h{right - left}v{HEIGHT}H{left}z")
    return "".join(rectangles)


class FrontPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A layout's position in the chart, in percent from the left and from the top."""

    x: str
    y: str
    low: str
    high: str
    is_best: bool
    title: str


def front_points(front: Sequence[PlannedLayout], titles: Sequence[str]) -> tuple[list[FrontPoint], list[float]]:
    """Return the points, and three step times to mark on the axis.

    Step time runs to the right, over all intervals, on a logarithmic scale; memory runs upwards from 0.
    """
    slowest = max(planned.step_time_interval_s[1] for planned in front)
    fastest = min(planned.step_time_interval_s[0] for planned in front)
    most_bytes = max(planned.memory_bytes for planned in front)
    span = math.log(slowest / fastest) or 1.0

    def across(seconds: float) -> str:
        share = math.log(seconds / fastest) / span
        return f"{3 + 94 * min(1.0, max(0.0, share)):.2f}"

    points = [
        FrontPoint(
            x=across(planned.step_time_s),
            y=f"{100 - planned.memory_bytes / most_bytes * 92:.2f}",
            low=across(planned.step_time_interval_s[0]),
            high=across(planned.step_time_interval_s[1]),
            is_best=number == 0,
            title=title,
        )
        for number, (planned, title) in enumerate(zip(front, titles, strict=True))
    ]
    return points, [fastest, math.sqrt(fastest * slowest), slowest]
