"""A logarithmic axis of ratios with 1 on it: where a ratio lies, and round marks that do not touch each other.

Logarithmic, because twice as fast and half as fast are then equally far from 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

PAD = 0.06  # of the axis, on both sides
SMALLEST_SPAN = 1.04  # of the highest over the lowest ratio: noise is not drawn large
LOWEST, HIGHEST = 0.01, 1000.0
MARK_DISTANCE = 0.14  # of the axis: what a label takes on a phone
_STRIDES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_MOST_MARKS = 9


class RatioAxis(msgspec.Struct, frozen=True, kw_only=True):
    low: float
    high: float

    def place(self, ratio: float) -> float:
        """From 0, the left end, to 1; what lies outside is put at the end."""
        inside = min(max(ratio, self.low), self.high)
        return math.log(inside / self.low) / math.log(self.high / self.low)

    def marks(self) -> list[tuple[float, str]]:
        """Places and labels, 1 among them: as many round ratios as do not touch each other."""
        kept = next((found for found in self._choices() if len(found) > 1 and self._is_clear(found)), [1.0])
        return [(self.place(ratio), f"{ratio:g}x") for ratio in kept]

    def _choices(self) -> Iterator[list[float]]:
        """Round ratios on the axis, fewer and fewer."""
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
    """An axis on which all of them lie, and 1."""
    values = [1.0, *(min(max(ratio, LOWEST), HIGHEST) for ratio in ratios if math.isfinite(ratio))]
    low, high = min(values), max(values)
    if high / low < SMALLEST_SPAN:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(SMALLEST_SPAN), middle * math.sqrt(SMALLEST_SPAN)
    pad = (high / low) ** PAD
    return RatioAxis(low=low / pad, high=high * pad)
