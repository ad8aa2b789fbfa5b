"""A logarithmic axis of ratios that includes 1: the position of a ratio, and round marks that do not touch each other.

The axis is logarithmic so that twice as fast and half as fast are equally far from 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

PAD = 0.06  # share of the axis, on both sides
SMALLEST_SPAN = 1.04  # highest over lowest ratio: a smaller span would magnify noise
LOWEST, HIGHEST = 0.01, 1000.0
MARK_DISTANCE = 0.14  # of the axis: the width of a label on a phone
_STRIDES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_MOST_MARKS = 9


class RatioAxis(msgspec.Struct, frozen=True, kw_only=True):
    low: float
    high: float

    def place(self, ratio: float) -> float:
        """Return the position of a ratio, from 0 at the left to 1; a ratio outside the axis is put at its end."""
        inside = min(max(ratio, self.low), self.high)
        return math.log(inside / self.low) / math.log(self.high / self.low)

    def marks(self) -> list[tuple[float, str]]:
        """Return positions and labels, with 1 among them: as many round ratios as fit without touching."""
        clear = (ratios for ratios in self._choices() if len(ratios) > 1 and self._is_clear(ratios))
        shown = next(clear, [1.0])
        return [(self.place(ratio), f"{ratio:g}x") for ratio in shown]

    def _choices(self) -> Iterator[list[float]]:
        """Yield round ratios on the axis, fewer each time."""
        if self.high / self.low < 6:
            for stride in _STRIDES:
                if (self.high - self.low) / stride < _MOST_MARKS:
                    first, last = math.ceil(self.low / stride - 1e-9), math.floor(self.high / stride + 1e-9)
                    yield [round(number * stride, 6) for number in range(first, last + 1)]
        for mantissas in ((1, 2, 5), (1, 3), (1,)):
            decades = [mantissa * 10.0**power for power in range(-3, 5) for mantissa in mantissas]
            yield [ratio for ratio in decades if self.low <= ratio <= self.high]

    def _is_clear(self, ratios: list[float]) -> bool:
        return all(self.place(b) - self.place(a) >= MARK_DISTANCE for a, b in pairwise(ratios))


def ratio_axis(ratios: Iterable[float]) -> RatioAxis:
    """Return an axis that includes all the ratios, and 1."""
    values = [1.0, *(min(max(ratio, LOWEST), HIGHEST) for ratio in ratios if math.isfinite(ratio))]
    low, high = min(values), max(values)
    if high / low < SMALLEST_SPAN:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(SMALLEST_SPAN), middle * math.sqrt(SMALLEST_SPAN)
    pad = (high / low) ** PAD
    return RatioAxis(low=low / pad, high=high * pad)
