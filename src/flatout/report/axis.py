"""What stands above and below the chart of steps: the numbers of steps that have room, and round times.

In: steps with their places on the axis. Out: labels that do not lie over each other, on a phone as on a desk, without a
script: each has the width of chart from which on it fits beside the more important ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from flatout.records.diagnosis import StepDiagnosis

# Narrowest chart in px that each class of labels is shown in; the style sheet hides the others there.
WIDTHS = {"": 200, "medium": 480, "wide": 830}
_CHARACTER_PX, _AROUND_PX = 8.5, 11
_UNLIKE = 1.5  # of the median step: a longer step is one to look at, a shorter one has little room
_MOST_LONG = 8
_MOST_OF_LEVEL = 0.8  # of equally round numbers: fewer would look like a choice
BEFORE = 0.8  # of the axis: from here on a number stands before its mark, or it would leave the chart


class Label(msgspec.Struct, frozen=True, kw_only=True):
    left: float  # share of the axis
    text: str
    size: str  # key of WIDTHS
    is_before: bool


def step_labels(steps: Sequence[StepDiagnosis], first_s: float, span_s: float) -> list[Label]:
    """The numbers of steps that fit, in the order of time."""
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
    return (mark_px - length_px, mark_px) if left > BEFORE else (mark_px, mark_px + length_px)


def _by_importance(steps: Sequence[StepDiagnosis]) -> Iterator[tuple[list[int], float]]:
    """Long steps, the first, then by round numbers, short ones last; with the share of each that must fit."""
    usual_s = median(step.window_s for step in steps)
    long = [step for step in steps if step.window_s > usual_s * _UNLIKE]
    yield [step.step for step in sorted(long, key=lambda step: -step.window_s)[:_MOST_LONG]], 0.0
    usual = [step.step for step in steps if step.window_s * _UNLIKE > usual_s]
    yield usual[:1], 0.0
    for stride in (1000, 500, 100, 50, 10, 5, 1):
        yield [number for number in usual if number % stride == 0], _MOST_OF_LEVEL
    yield [step.step for step in steps], _MOST_OF_LEVEL


def ticks(first_s: float, span_s: float) -> list[tuple[float, str]]:
    """Round times along the axis with their places, at most seven."""
    rough = span_s / 6
    magnitude = 10.0 ** math.floor(math.log10(rough))
    distance_s = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough)
    unit, scale = next(
        (unit, scale) for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)) if span_s * scale >= 1 or unit == "us"
    )
    digits = 0 if distance_s * scale >= 0.999 else 1
    first = math.ceil(first_s / distance_s - 1e-9)
    times = [index * distance_s for index in range(first, first + 8)]
    return [
        ((time_s - first_s) / span_s, f"{time_s * scale:.{digits}f} {unit}")
        for time_s in times
        if time_s <= first_s + span_s * 0.82  # a later one would not fit before the edge
    ]
