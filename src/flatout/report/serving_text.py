"""The tuning of a server as text for a terminal."""

from __future__ import annotations

from pathlib import Path

from flatout.records.serving import ServingTuning
from flatout.report.serving_phrases import (
    CURVE_HEADER,
    ENDED_WORDS,
    cause_words,
    curve_cells,
    facts,
    headline,
    tried_result,
)
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table


def serving_text(tuning: ServingTuning, folder: Path, *, style: TextStyle) -> str:
    """Return the result: what was adopted, the causes, the load curve, what was tried, and the next command."""
    lines = [*style.wrapped(headline(tuning)), ""]
    for fact in facts(tuning):
        lines += style.wrapped(fact)
    lines += ["", *_causes(tuning, style), *_curves(tuning, style), *_tried(tuning, style)]
    for knob in tuning.unoffered:
        lines += style.wrapped(f"{knob.knob}: {knob.reason}", label="not offered: ")
    for note in tuning.notes:
        lines += style.wrapped(note, label="note: ")
    return "\n".join([*lines, *_next(tuning, folder, style)])


def _causes(tuning: ServingTuning, style: TextStyle) -> list[str]:
    lines = []
    for cause in tuning.causes:
        lines += style.wrapped(cause_words(cause), label=f"{cause.name}: ")
    if not tuning.causes:
        lines.append("no cause of slow requests was found")
    if tuning.adopted:
        left = ", ".join(cause.name for cause in tuning.causes_left) or "none"
        lines += style.wrapped(f"causes left in the tuned server: {left}")
    return [*lines, ""]


def _curves(tuning: ServingTuning, style: TextStyle) -> list[str]:
    lines = []
    for curve in tuning.curves:
        title = "untouched" if curve is tuning.curves[0] else curve.arm
        table = text_table(CURVE_HEADER, [curve_cells(point) for point in curve.points], style=style, flexible=())
        lines += [f"load curve, {title}", *table, ""]
    return lines


def _tried(tuning: ServingTuning, style: TextStyle) -> list[str]:
    lines = []
    for arm in tuning.tried:
        lines += style.wrapped(tried_result(arm), label=f"{arm.name}: ")
    return [*lines, *style.wrapped(f"it ended because {ENDED_WORDS[tuning.ended_by]}"), ""]


def _next(tuning: ServingTuning, folder: Path, style: TextStyle) -> list[str]:
    if tuning.adopted:
        return style.wrapped(f"to start the tuned server: sh {folder / 'launch.sh'}")
    return style.wrapped(f"to see each trial: flatout tune --serve writes them to {folder / 'serving.json'}")
