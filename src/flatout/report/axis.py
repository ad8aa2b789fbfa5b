"""The labels above and below the chart of steps: the step numbers that fit, and round times.

In: steps with their positions on the axis. Out: labels that do not overlap, on a phone or a large screen, without a
script: each label has the smallest chart width at which it fits next to the more important labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from flatout.records.diagnosis import StepDiagnosis

# The narrowest chart, in px, that shows each class of labels; in narrower charts the style sheet hides it.
WIDTHS = {"": 200, "medium": 480, "wide": 830}
_CHARACTER_PX, _AROUND_PX = 8.5, 11
_UNUSUAL = 1.5  # times the median step: a longer step is of interest, a shorter one has little space
_MOST_LONG = 8
_MOST_OF_LEVEL = 0.8  # share of equally round numbers: if fewer fit, they would look deliberately chosen
BEFORE = 0.8  # of the axis: beyond this, a number is placed left of its mark to stay inside the chart


class Label(msgspec.Struct, frozen=True, kw_only=True):
    left: float  # share of the axis
    text: str
    size: str  # key of WIDTHS
    is_before: bool


def step_labels(steps: Sequence[StepDiagnosis], first_s: float, span_s: float) -> list[Label]:
    """Return the labels of the steps that fit, in the order of time."""
    lefts = {step.step: (step.start_s - first_s) / span_s for step in steps}
    placed: dict[int, str] = {}
    for size, width_px in WIDTHS.items():
        taken = [_extent(lefts[number], number, width_px) for number in placed]
        for level, least_share in _by_importance(steps):
            missing = [number for number in level if number not in placed]
            fitting: dict[int, tuple[float, float]] = {}
            for number in missing:
                left_px, right_px = _extent(lefts[number], number, width_px)
                if all(right_px <= left or right <= left_px for left, right in (*taken, *fitting.values())):
                    fitting[number] = (left_px, right_px)
            if len(fitting) >= least_share * len(missing):
                placed |= dict.fromkeys(fitting, size)
                taken += fitting.values()
    return [
        Label(left=lefts[number], text=str(number), size=placed[number], is_before=lefts[number] > BEFORE)
        for number in sorted(placed, key=lambda number: lefts[number])
    ]


def _extent(left: float, number: int, width_px: float) -> tuple[float, float]:
    length_px = len(str(number)) * _CHARACTER_PX + _AROUND_PX
    mark_px = left * width_px
    if left > BEFORE:
        return mark_px - length_px, mark_px
    return mark_px, mark_px + length_px


def _by_importance(steps: Sequence[StepDiagnosis]) -> Iterator[tuple[list[int], float]]:
    """Yield step numbers by importance, with the share of them that must fit.

    Long steps come first, then the first step, then round numbers, and short steps last.
    """
    usual_s = median(step.window_s for step in steps)
    long = [step for step in steps if step.window_s > usual_s * _UNUSUAL]
    yield [step.step for step in sorted(long, key=lambda step: -step.window_s)[:_MOST_LONG]], 0.0
    usual = [step.step for step in steps if step.window_s * _UNUSUAL > usual_s]
    yield usual[:1], 0.0
    for stride in (1000, 500, 100, 50, 10, 5, 1):
        yield [number for number in usual if number % stride == 0], _MOST_OF_LEVEL
    yield [step.step for step in steps], _MOST_OF_LEVEL


def ticks(first_s: float, span_s: float) -> list[tuple[float, str]]:
    """Return at most seven round times with their positions along the axis."""
    rough = span_s / 6
    magnitude = 10.0 ** math.floor(math.log10(rough))
    distance_s = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough)
    unit, scale = _unit_of(span_s)
    digits = 0 if distance_s * scale >= 0.999 else 1
    first = math.ceil(first_s / distance_s - 1e-9)
    times = [index * distance_s for index in range(first, first + 8)]
    return [
        ((time_s - first_s) / span_s, f"{time_s * scale:.{digits}f} {unit}")
        for time_s in times
        if time_s <= first_s + span_s * 0.82  # a later one would not fit before the edge
    ]


def _unit_of(span_s: float) -> tuple[str, float]:
    """Return the unit in which the span is at least 1, and the number of such units per second."""
    for unit, per_second in (("s", 1.0), ("ms", 1e3)):
        if span_s * per_second >= 1:
            return unit, per_second
    return "us", 1e6
