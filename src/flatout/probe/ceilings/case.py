"""One thing that is measured: how it is prepared, done once, and checked.

A family yields cases; a worker times them. `work` is what one call does in the unit of the rate, so that rate =
work / seconds. `who` says which ranks do it: `each` at the same time, `turns` one after the other, `first` the first
alone, `group` together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Who = Literal["each", "turns", "first", "group"]


@dataclass(kw_only=True)
class Case:
    name: str
    unit: str
    work: float
    call: Callable[[], None]
    # What is wrong with the result, or None. It runs the call itself, on data with a known answer.
    check: Callable[[], str | None]
    checked: str
    who: Who = "each"
    sync: Callable[[], None] = lambda: None
    before: Callable[[], None] = lambda: None  # each repetition, not timed: an emptied cache
    max_calls: int = 1_000_000
    sample_s: float = 0.0  # a repetition takes at least this long; 0: what is usual of the device
    labels: dict[str, Any] = field(default_factory=dict)
    # Device seconds of a call, of (calls, seconds of a call as the host saw it): see `queued`. None: host time is it.
    queued: Callable[[int, float], float | None] | None = None
    curve: str = ""  # sizes of one curve come in ascending order; a slow one ends it


class CannotMeasureError(Exception):
    """Why a family or a case is not measured here."""
