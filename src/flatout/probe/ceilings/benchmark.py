"""A benchmark: one measurement, and how to prepare, call and check it.

A family yields benchmarks; a worker times them. `work` is the amount of work of one call (for example bytes, if the
rate is in B/s), so that rate = work / seconds. `who` says which ranks call it: `each` (all at the same time), `turns`
(one after the other), `first` (only the first), or `group` (together).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Who = Literal["each", "turns", "first", "group"]


@dataclass(kw_only=True)
class Benchmark:
    name: str
    unit: str
    work: float
    call: Callable[[], None]
    # Returns a description of the error in the result, or None. It runs the call itself, on data with a known answer.
    check: Callable[[], str | None]
    checked: str
    who: Who = "each"
    sync: Callable[[], None] = lambda: None
    before: Callable[[], None] = lambda: None  # runs before each repetition, untimed: for example to empty a cache
    max_calls: int = 1_000_000
    sample_s: float = 0.0  # a repetition takes at least this long; 0: the device's default
    labels: dict[str, Any] = field(default_factory=dict)
    # (calls, seconds per call as timed by the host) -> device seconds per call, see `queued`. None: host time counts.
    queued: Callable[[int, float], float | None] | None = None
    curve: str = ""  # sizes of one curve are in ascending order; a size that is too slow ends the curve


class CannotMeasureError(Exception):
    """A family or a benchmark cannot be measured here, for the reason in the message."""
