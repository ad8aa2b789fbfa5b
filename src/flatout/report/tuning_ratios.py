"""Write ratios of a tuning as texts, each with its interval: measured, predicted, and the gain of a verdict.

A ratio that has an interval is never shown without it, and one that has none says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flatout.records.prediction import Prediction
from flatout.records.tuning import TuneResult
from flatout.records.verdict import Objective, Verdict

UNKNOWN = "unknown"
NO_INTERVAL = "no interval"
_SAVED: Mapping[Objective, str] = {
    "peak_memory_bytes": "peak memory",
    "j_per_sample": "energy per sample",
    "j_per_step": "energy per step",
}
DEFAULT_OBJECTIVES = ("s_per_sample", "step_s")


def ratio(value: float) -> str:
    """Format a ratio: `1.83x`. A ratio near 1 has three decimals, so that it does not read as 1."""
    return f"{value:.{_digits((value,))}f}x"


def ratio_range(low: float, high: float) -> str:
    """Format a range of ratios: `1.79-1.87`."""
    digits = _digits((low, high))
    return f"{low:.{digits}f}-{high:.{digits}f}"


class EstimateText(NamedTuple):
    """A value and its interval, as texts: `1.83x` and `1.79-1.87`, or `no interval`."""

    value: str
    interval: str

    def __str__(self) -> str:
        return f"{self.value} ({self.interval})"


def ratio_estimate(value: float, interval: tuple[float, float] | None) -> EstimateText:
    """Format a ratio with its interval: `1.83x (1.79-1.87)`, or `1.83x (no interval)`."""
    if interval is None:
        return EstimateText(ratio(value), NO_INTERVAL)
    digits = _digits((value, *interval))
    return EstimateText(f"{value:.{digits}f}x", f"{interval[0]:.{digits}f}-{interval[1]:.{digits}f}")


def _digits(values: Sequence[float]) -> int:
    if max(values) >= 19.995:
        return 1
    if any(value != 1 and abs(value - 1) < 0.0095 for value in values):
        return 3
    return 2


def measured_text(verdict: Verdict | None) -> str:
    """Format the measured ratio: `1.83x (1.79-1.87)`, or `unknown`."""
    if verdict is None or verdict.speedup is None:
        return UNKNOWN
    return str(ratio_estimate(verdict.speedup, verdict.interval))


def predicted_estimate(prediction: Prediction) -> EstimateText:
    return ratio_estimate(prediction.speedup, (prediction.low, prediction.high))


def predicted_text(prediction: Prediction | None, bound: float | None, objective: Objective) -> str:
    """Format the predicted ratio: `1.60x (1.30-1.90)`, or `at most 3.70x` if only the findings' bound is known.

    Both are ratios of time: memory and energy are not predicted.
    """
    if objective in _SAVED:
        return UNKNOWN
    if prediction is not None:
        return str(predicted_estimate(prediction))
    if bound is not None and math.isfinite(bound):
        return f"at most {ratio(bound)}"
    return UNKNOWN


def has_predictions(result: TuneResult) -> bool:
    """Return whether predictions apply to the measured quantity: they are predictions of time."""
    return result.objective not in _SAVED


def gain(verdict: Verdict) -> EstimateText:
    """Return the gain that a verdict claims: `1.83x faster (1.79-1.87)`, `44 % less peak memory (42 % to 46 %)`.

    The verdict must have a speedup.
    """
    assert verdict.speedup is not None
    saved = _SAVED.get(verdict.objective)
    if saved is not None:
        return _saving(saved, verdict.speedup, verdict.interval)
    if verdict.verdict == "worse" and verdict.speedup < 1:
        slowdown_interval = (1 / verdict.interval[1], 1 / verdict.interval[0]) if verdict.interval else None
        slower = ratio_estimate(1 / verdict.speedup, slowdown_interval)
        return slower._replace(value=f"{slower.value} slower")
    estimate = ratio_estimate(verdict.speedup, verdict.interval)
    if verdict.verdict == "better":
        return estimate._replace(value=f"{estimate.value} faster")
    return estimate


def _saving(what: str, speedup: float, interval: tuple[float, float] | None) -> EstimateText:
    """Format a saving: `44 % less peak memory (42 % to 46 %)`; a loss is `more`."""
    share = 1 - 1 / speedup
    sign, direction = (1, "less") if share >= 0 else (-1, "more")
    if interval is None:
        return EstimateText(f"{sign * share * 100:.1f} % {direction} {what}", NO_INTERVAL)
    low, high = sorted(sign * (1 - 1 / end) * 100 for end in interval)
    digits = 0 if high - low >= 2 else 1
    value = f"{sign * share * 100:.{digits}f} % {direction} {what}"
    return EstimateText(value, f"{low:.{digits}f} % to {high:.{digits}f} %")
