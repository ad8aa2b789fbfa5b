"""Place variants of a model in a chart of speed by size, with the numbers and titles of its axes.

In: points, each a share of the untouched model's size and a speedup. Out: coordinates and texts for the template. The
speed is on a logarithmic scale, so that half as fast is as far from the untouched model as twice as fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

WIDTH, HEIGHT = 600, 290  # size of the chart's coordinate system
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 24.0, 28.0, 46.0
_LEAST_RANGE = 0.1  # of the logarithm of the speedup, on both sides of 1
_MOST_TICKS = 7
_SIZE_STEPS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ParetoPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A variant at one batch size."""

    name: str
    kind: str
    size: float  # as a share of the untouched model's
    speedup: float


def pareto_chart(points: Sequence[ParetoPoint]) -> dict[str, object]:
    """Return what the template draws: points, and the ticks of both axes."""
    scale = _Scale(points)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": f"{_LEFT:g}",
        "right": f"{WIDTH - _RIGHT:g}",
        "top": f"{_TOP:g}",
        "bottom": f"{HEIGHT - _BOTTOM:g}",
        "points": [
            {
                "label": f"{point.name}: {point.speedup:.2f}x at {point.size:.0%} of the size",
                "kind": point.kind,
                "x": f"{scale.x(point.size):.1f}",
                "y": f"{scale.y(point.speedup):.1f}",
            }
            for point in points
        ],
        "size_ticks": [{"x": f"{scale.x(size):.1f}", "text": f"{100 * size:.0f} %"} for size in scale.sizes()],
        "speed_ticks": [
            {"y": f"{scale.y(speedup):.1f}", "text": f"{speedup:g}x", "is_equal": speedup == 1.0}
            for speedup in scale.speedups()
        ],
    }


class _Scale:
    """The ranges of both axes, which include the untouched model."""

    def __init__(self, points: Sequence[ParetoPoint]) -> None:
        logs = [math.log(point.speedup) for point in points]
        self._low, self._high = min([*logs, -_LEAST_RANGE]), max([*logs, _LEAST_RANGE])
        self._most_size = max([1.0, *(point.size for point in points)])

    def x(self, size: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * size / self._most_size

    def y(self, speedup: float) -> float:
        share = (math.log(speedup) - self._low) / (self._high - self._low)
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * share

    def sizes(self) -> list[float]:
        """Return sizes from 0, a round step apart."""
        step = next((step for step in _SIZE_STEPS if self._most_size / step < _MOST_TICKS - 1), self._most_size)
        return [step * number for number in range(int(self._most_size / step) + 1)]

    def speedups(self) -> list[float]:
        """Return powers of 2 that are inside the range, always with 1; those of a small range are a tenth apart."""
        low, high = math.exp(self._low), math.exp(self._high)
        if high / low < 2.0:
            return [tenths / 10 for tenths in range(math.ceil(low * 10), math.floor(high * 10) + 1)]
        first, last = math.ceil(self._low / math.log(2)), math.floor(self._high / math.log(2))
        step = math.ceil((last - first + 1) / _MOST_TICKS)
        return [2.0**power for power in range(first, last + 1) if power % step == 0]
