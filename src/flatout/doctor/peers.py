"""Find which of several similar devices or hosts differ from the rest, by rules that work for few peers and for many.

A number is an outlier if it differs from the median by more than `NUM_SPREADS` robust spreads, and by more than a given
share of the median. The spread is the median absolute deviation, scaled to a normal distribution's standard deviation
and corrected for the number of values, because it is too small for few values. Fewer than `MIN_PEERS` values are not
judged.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value", bound=Hashable)

MIN_PEERS = 4
NUM_SPREADS = 5.0
_NORMAL = 1.4826  # standard deviations in a median absolute deviation of a normal distribution


def outliers(values: Mapping[Name, float], *, share: float) -> dict[Name, float]:
    """Return the peers that differ by more than `share` and 5 robust spreads: name -> value / median - 1."""
    if len(values) < MIN_PEERS:
        return {}
    median = statistics.median(values.values())
    if median == 0:
        return {}
    deviation = statistics.median(abs(value - median) for value in values.values())
    count = len(values)
    spread = _NORMAL * deviation * count / (count - 0.8)  # Croux and Rousseeuw, 1992: unbiased for small samples
    limit = max(NUM_SPREADS * spread, share * abs(median))
    return {name: value / median - 1 for name, value in values.items() if abs(value - median) > limit}


def minority(values: Mapping[Name, Value]) -> tuple[Value, list[Name]] | None:
    """Return the majority value and the peers without it; None if all agree, or if no value has a majority."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return None
    usual, num_usual = counts.most_common(1)[0]
    if num_usual * 2 <= len(values):
        return None
    return usual, [name for name, value in values.items() if value != usual]
