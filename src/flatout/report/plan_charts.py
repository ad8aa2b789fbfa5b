"""The geometry of a plan's charts: rectangles of a pipeline, points of a front; numbers become percentages here.

In: intervals and layouts. Out: texts that a template puts into SVG. Of a pipeline of too many operations the
share of busy time is drawn, and its beginning once more in full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from flatout.records.plan import PlannedLayout
from flatout.records.plan_details import PipelineInterval

WIDTH = 10_000  # of the drawing; 10 are about a pixel
HEIGHT = 10
MOST_DRAWN = 6000  # operations: about 120 kB
COLUMNS = 500  # of the axis, where operations are too many to be drawn apart
APART = 120  # operations of a stage up to which each has an edge
Pipeline = Sequence[Sequence[PipelineInterval]]


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One stage: an SVG path by kind of operation."""

    label: str
    paths: tuple[tuple[str, str], ...]  # class, path
    spoken: str


class PipelineChart(msgspec.Struct, frozen=True, kw_only=True):
    """All stages on one axis of time."""

    lanes: tuple[Lane, ...]
    span_s: float
    is_merged: bool  # operations are too many to be drawn apart
    has_edges: bool


def pipeline_chart(
    pipeline: Pipeline, tail: Sequence[tuple[str, float]], *, until_s: float | None = None
) -> PipelineChart:
    """The pipeline and what follows it (class, seconds); or, up to `until_s`, only its beginning."""
    end_s = max(stage[-1].end_s for stage in pipeline)
    span_s = until_s if until_s is not None else end_s + sum(length_s for _, length_s in tail)
    shown = [[one for one in stage if one.start_s < span_s] for stage in pipeline]
    is_merged = until_s is None and sum(len(stage) for stage in shown) > MOST_DRAWN
    lanes = []
    for number, stage in enumerate(shown):
        if is_merged:
            paths = _busy_columns(stage, span_s)
        else:
            paths = [(kind, _path(spans, span_s)) for kind, spans in _operations(stage).items()]
        if until_s is None:
            start_s = end_s
            for kind, length_s in tail:
                if length_s > 0:
                    paths.append((kind, _path([(start_s, start_s + length_s)], span_s)))
                start_s += length_s
        busy_s = sum(one.end_s - one.start_s for one in pipeline[number])
        spoken = f"stage {number}: busy {busy_s / end_s * 100:.0f} % of the pipeline's time"
        lanes.append(Lane(label=f"stage {number}", paths=tuple(paths), spoken=spoken))
    return PipelineChart(
        lanes=tuple(lanes),
        span_s=span_s,
        is_merged=is_merged,
        has_edges=not is_merged and max(len(stage) for stage in shown) <= APART,
    )


def beginning_s(pipeline: Pipeline) -> float:
    """Three times as long as the first stage waits for its first backward, as far as `MOST_DRAWN` operations go."""
    starts = sorted(one.start_s for stage in pipeline for one in stage)
    filled_s = next(one.end_s for one in pipeline[0] if one.kind == "backward")
    return min(starts[min(MOST_DRAWN, len(starts) - 1)], 3 * filled_s)


def _operations(stage: Sequence[PipelineInterval]) -> dict[str, list[tuple[float, float]]]:
    """By kind, and by whether the chunk is an even one."""
    found: dict[str, list[tuple[float, float]]] = {}
    for one in stage:
        found.setdefault(f"{one.kind} {'odd' if one.chunk % 2 else 'even'}", []).append((one.start_s, one.end_s))
    return found


def _busy_columns(stage: Sequence[PipelineInterval], span_s: float) -> list[tuple[str, str]]:
    """In each column of the axis a bar as high as the stage is busy there; equal neighbours are one."""
    each_s = span_s / COLUMNS
    busy: dict[str, list[float]] = {}
    for one in stage:
        shares = busy.setdefault(one.kind, [0.0] * (COLUMNS + 1))
        start, end = one.start_s / each_s, one.end_s / each_s
        for column in range(int(start), min(COLUMNS, math.ceil(end))):
            shares[column] += max(0.0, min(end, column + 1) - max(start, column))
    runs: list[tuple[str, int, int, int]] = []  # kind, height, first column, columns
    for column in range(COLUMNS):
        parts = {kind: shares[column] for kind, shares in busy.items()}
        whole = sum(parts.values())
        height = round(min(1.0, whole) * HEIGHT)
        if not height:
            continue
        main = max(parts, key=lambda kind: parts[kind])
        kind = main if parts[main] > 0.9 * whole else "both"
        last = runs[-1] if runs else ("", 0, -1, 0)
        if last[:2] == (kind, height) and last[2] + last[3] == column:
            runs[-1] = (kind, height, last[2], last[3] + 1)
        else:
            runs.append((kind, height, column, 1))
    width = WIDTH // COLUMNS
    found: dict[str, list[str]] = {}
    for kind, height, first, count in runs:
        found.setdefault(f"{kind} even", []).append(
            f"M{first * width} {HEIGHT - height}h{count * width}v{height}H{first * width}z"
        )
    return [(kind, "".join(words)) for kind, words in found.items()]


def _path(spans: Sequence[tuple[float, float]], span_s: float) -> str:
    words = []
    for start_s, end_s in spans:
        left = round(start_s / span_s * WIDTH)
        right = min(WIDTH, max(left + 1, round(end_s / span_s * WIDTH)))
        words.append(f"M{left} 0h{right - left}v{HEIGHT}H{left}z")
    return "".join(words)


class FrontPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A layout's place in the chart; percent from the left and from the top."""

    x: str
    y: str
    low: str
    high: str
    is_best: bool
    title: str


def front_points(front: Sequence[PlannedLayout], titles: Sequence[str]) -> tuple[list[FrontPoint], list[float]]:
    """Step time to the right, over all intervals and logarithmic; memory upwards, from 0. With three times to mark."""
    slowest = max(one.step_time_interval_s[1] for one in front)
    fastest = min(one.step_time_interval_s[0] for one in front)
    most = max(one.memory_bytes for one in front)
    span = math.log(slowest / fastest) or 1.0

    def across(seconds: float) -> str:
        return f"{3 + 94 * min(1.0, max(0.0, math.log(seconds / fastest) / span)):.2f}"

    points = [
        FrontPoint(
            x=across(one.step_time_s),
            y=f"{100 - one.memory_bytes / most * 92:.2f}",
            low=across(one.step_time_interval_s[0]),
            high=across(one.step_time_interval_s[1]),
            is_best=number == 0,
            title=title,
        )
        for number, (one, title) in enumerate(zip(front, titles, strict=True))
    ]
    return points, [fastest, math.sqrt(fastest * slowest), slowest]
