"""Write the result of a compression as one self-contained HTML file: no script, no external reference.

In: a `Compression`, the command line and the folder. Out: a string: the recommendation, speed by size, the table and
what was found about each variant. Texts from the user's scripts are untrusted: the template escapes all of them.
"""

from __future__ import annotations

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
    next_command,
    outcome_words,
    untouched_cells,
)
from flatout.report.pareto_chart import ParetoPoint, pareto_chart
from flatout.report.template import rendered


def compression_html(result: Compression, command: Sequence[str], folder: Path | str) -> str:
    """Return the page."""
    return rendered("compression.html.j2", page_content(result, command, folder))


def page_content(result: Compression, command: Sequence[str], folder: Path | str) -> dict[str, object]:
    """Return what the template shows, as texts and numbers ready to print."""
    points = _points(result)
    rows = [{"cells": untouched_cells(result), "kind": "untouched"}]
    rows += [{"cells": cells(variant, result), "kind": kind_of(variant)} for variant in result.variants]
    return {
        "tool_version": __version__,
        "command": command_line(command),
        "next_command": next_command(result, folder),
        "headline": headline(result),
        "facts": facts(result),
        "header": header(result),
        "rows": rows,
        "has_chart": len(points) > 1,
        **pareto_chart(points),
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


def _points(result: Compression) -> list[ParetoPoint]:
    """Return the untouched model, and each variant at each batch size of which speed and size are known."""
    points = [ParetoPoint(name=result.untouched.name, kind="untouched", size=1.0, speedup=1.0)]
    for variant in result.variants:
        size = _share(variant, result)
        for speed in variant.speeds:
            if size is not None and speed.verdict.speedup is not None:
                at = "" if speed.batch is None else f", batch {speed.batch}"
                points.append(
                    ParetoPoint(name=variant.name + at, kind=kind_of(variant), size=size, speedup=speed.verdict.speedup)
                )
    return points


def _share(variant: VariantResult, result: Compression) -> float | None:
    if not variant.disk_bytes or not result.untouched.disk_bytes:
        return None
    return variant.disk_bytes / result.untouched.disk_bytes
