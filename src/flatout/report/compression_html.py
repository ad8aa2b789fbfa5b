"""Write the result of a compression as one self-contained HTML file: no script, no external reference.

In: a `Compression`, the command line and the folder. Out: a string: the recommendation, speed by size, the table and
what was found about each variant. Texts from the user's scripts are untrusted: the template escapes all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from flatout import __version__
from flatout.records.compression import Compression, VariantResult
from flatout.report.command import command_line
from flatout.report.compression_phrases import (
    cells,
    details,
    facts,
    header,
    headline,
    outcome_words,
    untouched_cells,
)
from flatout.report.template import rendered

WIDTH, HEIGHT = 600, 260  # size of the chart's coordinate system
_MARGIN = 24.0
_LEAST_RANGE = 0.1  # of the logarithm of the speedup


def compression_html(result: Compression, command: Sequence[str], folder: Path | str) -> str:
    """Return the page."""
    return rendered("compression.html.j2", page_content(result, command, folder))


def page_content(result: Compression, command: Sequence[str], folder: Path | str) -> dict[str, object]:
    """Return what the template shows, as texts and numbers ready to print."""
    rows = [{"cells": untouched_cells(result), "kind": "untouched"}]
    rows += [{"cells": cells(variant, result), "kind": kind_of(variant)} for variant in result.variants]
    return {
        "tool_version": __version__,
        "command": command_line(command),
        "next_command": f"less {folder}/compress.json",
        "headline": headline(result),
        "facts": facts(result),
        "header": header(result),
        "rows": rows,
        "width": WIDTH,
        "height": HEIGHT,
        **_chart(result),
        "variants": [
            {"name": variant.name, "outcome": outcome_words(variant), "lines": details(variant, result)}
            for variant in result.variants
        ],
        "unoffered": [{"name": each.name, "reason": each.reason} for each in result.unoffered],
        "notes": list(result.notes),
    }


def kind_of(variant: VariantResult) -> str:
    """Return how a variant is drawn: `recommended`, `slower`, `dominated`, `refused` or `other`."""
    if variant.is_recommended:
        return "recommended"
    if any(speed.verdict.verdict == "worse" for speed in variant.speeds):
        return "slower"
    if variant.outcome != "measured" or variant.refusal in ("inferior", "loss_not_shown"):
        return "refused"
    return "dominated" if variant.dominated_by is not None else "other"


def _chart(result: Compression) -> dict[str, object]:
    """Return the points of speed by size: one for each variant and batch size that has both."""
    points = [(result.untouched.name, "untouched", 1.0, 1.0)]
    for variant in result.variants:
        size = _share(variant, result)
        for speed in variant.speeds:
            if size is not None and speed.verdict.speedup is not None:
                at = "" if speed.batch is None else f", batch {speed.batch}"
                points.append((variant.name + at, kind_of(variant), size, speed.verdict.speedup))
    most_size = max(size for _, _, size, _ in points)
    logs = [math.log(speedup) for _, _, _, speedup in points]
    low, high = min([*logs, -_LEAST_RANGE]), max([*logs, _LEAST_RANGE])

    def y(log: float) -> float:
        return HEIGHT - _MARGIN - (HEIGHT - 2 * _MARGIN) * (log - low) / (high - low)

    drawn = [
        {
            "label": f"{name}: {speedup:.2f}x at {size:.0%} of the size",
            "kind": kind,
            "x": f"{_MARGIN + (WIDTH - 2 * _MARGIN) * size / most_size:.1f}",
            "y": f"{y(math.log(speedup)):.1f}",
        }
        for name, kind, size, speedup in points
    ]
    return {"points": drawn, "equal_y": f"{y(0.0):.1f}", "has_chart": len(points) > 1}


def _share(variant: VariantResult, result: Compression) -> float | None:
    if not variant.disk_bytes or not result.untouched.disk_bytes:
        return None
    return variant.disk_bytes / result.untouched.disk_bytes
