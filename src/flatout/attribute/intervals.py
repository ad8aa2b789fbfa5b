"""Arithmetic on half-open intervals [start, end) in integer nanoseconds, stored as pairs of numpy arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
Flags = NDArray[np.bool_]


def union(start: Times, end: Times) -> tuple[Times, Times]:
    """Merge intervals that overlap or touch; return them by start. Empty intervals are dropped."""
    keep = end > start
    start, end = start[keep], end[keep]
    if len(start) == 0:
        return start, end
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.empty(len(start), dtype=np.bool_)
    first[0] = True
    np.greater(start[1:], reach[:-1], out=first[1:])
    last = np.flatnonzero(np.append(first[1:], True))
    return start[first], reach[last]


def distinct(times: Times) -> Times:
    """Return the sorted distinct times. (`np.unique` hashes first, and is several times slower.)"""
    times = np.sort(times)
    keep = np.ones(len(times), dtype=np.bool_)
    np.not_equal(times[1:], times[:-1], out=keep[1:])
    return times[keep]


def clip(start: Times, end: Times, low: int, high: int) -> tuple[Times, Times]:
    """Cut the intervals to [low, high); those outside become empty."""
    return np.clip(start, low, high), np.clip(end, low, high)


def covers(start: Times, end: Times, times: Times) -> Flags:
    """Return True for each time that is in one of the merged intervals (from `union`)."""
    if len(start) == 0:
        return np.zeros(len(times), dtype=np.bool_)
    index = np.searchsorted(start, times, side="right") - 1
    return np.asarray((index >= 0) & (times < end[np.maximum(index, 0)]))


def gaps(start: Times, end: Times, low: int, high: int) -> tuple[Times, Times]:
    """Return the parts of [low, high) that no merged interval covers."""
    gap_start = np.concatenate(([low], end)).astype(np.int64)
    gap_end = np.concatenate((start, [high])).astype(np.int64)
    keep = gap_end > gap_start
    return gap_start[keep], gap_end[keep]


def overlap_ns(start: Times, end: Times, other_start: Times, other_end: Times) -> int:
    """Return the total time during which both sets of merged intervals are open."""
    if len(start) == 0 or len(other_start) == 0:
        return 0
    return int((covered_before(other_start, other_end, end) - covered_before(other_start, other_end, start)).sum())


def covered_before(start: Times, end: Times, times: Times) -> Times:
    """Return, for each time, the total length of the merged intervals before it."""
    if len(start) == 0:
        return np.zeros(len(times), dtype=np.int64)
    lengths = np.concatenate(([0], np.cumsum(end - start)))
    index = np.searchsorted(start, times, side="right") - 1
    safe = np.maximum(index, 0)
    inside = np.minimum(times, end[safe]) - start[safe]
    return np.where(index < 0, 0, lengths[safe] + inside)


class ThreadTimes:
    """Maps (thread, time) to one axis, so that intervals of many threads are handled in one call."""

    def __init__(self, low: int, high: int) -> None:
        self._low = low
        self._stride = max(high - low, 1) + 2

    def __call__(self, thread: NDArray[np.int32], times: Times) -> Times:
        return thread.astype(np.int64) * self._stride + np.clip(times - self._low, 0, self._stride - 2)
