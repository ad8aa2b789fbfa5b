"""The time lost to low GPU clocks: NVML's samples, once per second -> a share of the time between two moments.

A sample counts if the driver reports that heat, the power brake or the hardware lowers the clock. The lost share is
then 1 - clock / highest clock: exact for work whose speed is proportional to the clock, an upper bound for other work.
A power cap does not count: by design, a busy GPU at its full power limit runs below its highest clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

_EVERY_NS, _MOST_APART_NS = 1_000_000_000, 5_000_000_000
_MOST_SAMPLES = 100_000  # more than a day's samples
_COUNTED = {"software_thermal", "hardware_thermal", "hardware_slowdown", "power_brake"}


class ClockWatch:
    """Samples GPU clocks. `read` returns `uuid`, `sm_clock_hz`, `max_sm_clock_hz`, `throttle` per GPU, if available."""

    def __init__(self, read: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        self._read = read
        self._next_ns = 0
        self._samples: dict[str, tuple[list[int], list[float]]] = {}

    def look(self, now_ns: int) -> None:
        """Take a sample if it is due; this can be called at any rate."""
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + _EVERY_NS
        for gpu in self._read():
            share = _lost(gpu)
            if share is None:
                continue
            times, shares = self._samples.setdefault(str(gpu["uuid"]), ([], []))
            times.append(now_ns)
            shares.append(share)
            if len(times) > _MOST_SAMPLES:
                del times[: _MOST_SAMPLES // 2], shares[: _MOST_SAMPLES // 2]

    def lost(self, uuid: str | None, begin_ns: int, end_ns: int) -> float | None:
        """Return the lost share of the time; None unless the GPU was sampled throughout."""
        times, shares = self._samples.get(uuid or "", ([], []))
        first, last = max(bisect_right(times, begin_ns) - 1, 0), bisect_right(times, end_ns)
        edges = [begin_ns, *times[first:last], end_ns]
        if last == first or any(after - before > _MOST_APART_NS for before, after in pairwise(edges)):
            return None
        return sum(shares[first:last]) / (last - first)


def _lost(gpu: Mapping[str, Any]) -> float | None:
    try:
        clock_hz, highest_hz, reasons = gpu["sm_clock_hz"], gpu["max_sm_clock_hz"], gpu["throttle"]
    except KeyError:  # the driver does not report it
        return None
    if "uuid" not in gpu or highest_hz <= 0:
        return None
    return max(1 - clock_hz / highest_hz, 0.0) if _COUNTED & set(reasons) else 0.0
