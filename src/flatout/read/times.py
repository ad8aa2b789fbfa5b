"""Convert timestamps in microseconds, as profilers write them, to integer nanoseconds, exactly.

In: decoded events. Out: start and duration in ns, and whether the start is usable. Traces since 2024 write three
decimals relative to a base time, which a float holds exactly; whole microseconds since 1970 are exact too. Microseconds
since 1970 with decimals are not: `times_ns` then returns None, and the caller decodes again into decimals for
`exact_times_ns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from flatout.read.schema import CompleteEvent, ExactEvent

Times = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]

# Above 2^43 us a float no longer resolves a nanosecond; timestamps since 1970 are near 2^51.
_EXACT_BELOW_US = float(1 << 43)
# Fits into 63 bits of nanoseconds, so that a start plus a duration fits into 64: the year 2115.
MAX_US = 4.6e15


def times_ns(rows: Sequence[CompleteEvent]) -> Times | None:
    """Return starts, durations, and whether each start is usable; None if a float is too coarse for them."""
    starts = [row.ts for row in rows]
    start_us = np.fromiter(starts, np.float64, len(rows))
    duration_us = np.fromiter([row.dur for row in rows], np.float64, len(rows))
    placed = np.abs(start_us) < MAX_US  # False for NaN too
    if not placed.all():
        start_us = np.where(placed, start_us, 0.0)
    if len(rows) and start_us.max() >= _EXACT_BELOW_US and float in set(map(type, starts)):
        return None
    return to_ns(start_us), to_ns(np.clip(duration_us, -1, MAX_US)), placed


def to_ns(values_us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Convert to ns, exactly below 2^43 us: the fraction is rounded separately, as `value * 1000` would round twice."""
    whole = np.floor(values_us)
    fraction_ns = np.rint((values_us - whole) * 1000)
    return whole.astype(np.int64) * 1000 + fraction_ns.astype(np.int64)


def exact_times_ns(rows: Sequence[ExactEvent]) -> Times:
    """Convert decimal times. They are compared instead of taking `abs`, which fails for decimals like 1e999999999."""
    limit = Decimal(MAX_US)
    usable = [row.ts.is_finite() and -limit < row.ts < limit for row in rows]
    starts = [round(row.ts * 1000) if ok else 0 for row, ok in zip(rows, usable, strict=True)]
    durations = [round(min(max(row.dur, Decimal(-1)), limit) * 1000) for row in rows]
    num_rows = len(rows)
    return (
        np.fromiter(starts, np.int64, num_rows),
        np.fromiter(durations, np.int64, num_rows),
        np.fromiter(usable, np.bool_, num_rows),
    )
