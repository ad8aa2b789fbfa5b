"""Write the tuning of a server as one self-contained HTML file: no script, no external reference.

In: a `ServingTuning`, the command line and the folder. Out: a string: the load curves with their intervals, the causes,
and what was tried. Texts from the user's server are untrusted: the template escapes all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flatout import __version__
from flatout.records.serving import LoadCurve, ServingTuning
from flatout.report.command import command_line
from flatout.report.serving_phrases import (
    CURVE_HEADER,
    ENDED_WORDS,
    cause_words,
    curve_cells,
    facts,
    headline,
    tried_result,
)
from flatout.report.template import rendered

WIDTH, HEIGHT = 600, 240  # size of the chart's coordinate system
MOST_TRIED = 200


def serving_html(tuning: ServingTuning, command: Sequence[str], folder: Path | str) -> str:
    """Return the page."""
    return rendered("serving.html.j2", page_content(tuning, command, folder))


def page_content(tuning: ServingTuning, command: Sequence[str], folder: Path | str) -> dict[str, object]:
    """Return what the template shows, as texts and numbers ready to print."""
    most_rate, most_goodput = _extent(tuning.curves)
    return {
        "tool_version": __version__,
        "command": command_line(command),
        "next_command": f"sh {folder}/launch.sh" if tuning.adopted else f"less {folder}/serving.json",
        "headline": headline(tuning),
        "facts": facts(tuning),
        "causes": [{"name": cause.name, "words": cause_words(cause)} for cause in tuning.causes],
        "causes_left": [cause.name for cause in tuning.causes_left],
        "has_adopted": bool(tuning.adopted),
        "header": CURVE_HEADER,
        "curves": [
            {
                "title": "untouched" if place == 0 else curve.arm,
                "kind": "untouched" if place == 0 else "tuned",
                "rows": [curve_cells(point) for point in curve.points],
                **_drawn(curve, most_rate, most_goodput),
            }
            for place, curve in enumerate(tuning.curves)
        ],
        "most_rate": f"{most_rate:.3g}",
        "most_goodput": f"{most_goodput:.3g}",
        "width": WIDTH,
        "height": HEIGHT,
        "tried": [{"name": arm.name, "result": tried_result(arm)} for arm in tuning.tried[:MOST_TRIED]],
        "ended": ENDED_WORDS[tuning.ended_by],
        "unoffered": [{"name": knob.knob, "reason": knob.reason} for knob in tuning.unoffered],
        "notes": list(tuning.notes),
    }


def _extent(curves: Sequence[LoadCurve]) -> tuple[float, float]:
    points = [point for curve in curves for point in curve.points]
    highs = [point.goodput_interval[1] if point.goodput_interval else point.goodput_per_s for point in points]
    return max((point.rate_per_s for point in points), default=1.0), max([*highs, 1e-9])


def _drawn(curve: LoadCurve, most_rate: float, most_goodput: float) -> dict[str, object]:
    """Return the line of a curve, and the interval of each of its points."""
    places = [_place(point.rate_per_s, point.goodput_per_s, most_rate, most_goodput) for point in curve.points]
    bars = []
    for point in curve.points:
        if point.goodput_interval is None:
            continue
        low, high = point.goodput_interval
        x, bottom = _place(point.rate_per_s, low, most_rate, most_goodput)
        _, top = _place(point.rate_per_s, high, most_rate, most_goodput)
        bars.append(f"M{x:.1f} {bottom:.1f}V{top:.1f}")
    line = " ".join(f"{'M' if number == 0 else 'L'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(places))
    return {"line": line, "bars": "".join(bars)}


def _place(rate: float, goodput: float, most_rate: float, most_goodput: float) -> tuple[float, float]:
    return WIDTH * rate / most_rate, HEIGHT * (1 - goodput / most_goodput)
