"""Repair impossible durations.

In: the columns of a table, sorted by time. Out: durations that are neither negative nor absurd, and the number of
changes. Two kinds of durations are repaired: those that are out of proportion to everything around them, e.g. because a
counter overflowed (ROCm: TraceLens issue 669), and GPU work that ends after later work on its stream, which runs in
order. Work that can overlap on one stream is not repaired: the kernels of one CUDA graph, and a kernel that starts
before its predecessor has ended (programmatic dependent launch).
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.read.lookups import distinct
from flatout.read.schema import is_kind
from flatout.records.events import GPU_WORK, NULL, Kind
from flatout.units import NS_PER_S

# Absurd: longer than a hundred times the distance to the next start on its stream, and than half of the trace.
_MIN_GAPS = 100
_MIN_SHARE_OF_SPAN = 0.5
# Also absurd: longer than a hundred times the complete trace. An annotation can outlast the last start of a short
# trace, so on the host only durations that no recording can contain are cut.
_MIN_SPANS = 100
_MIN_DEVICE_NS = NS_PER_S
_MIN_HOST_NS = 24 * 3600 * NS_PER_S
# A step mark ends where the next one begins, up to rounding.
_MIN_MARK_OVERLAP_NS = 1_000_000
# The last mark can outlast the recording, but not by more than ten steps.
_MIN_MARK_MEDIANS = 10
# Dependent launches overlap by microseconds (at most 3.7 us in public traces). None of these traces has a kernel that
# outlasts a later kernel on its stream.
_MIN_OUTLASTING_NS = 10_000


class Repairs(msgspec.Struct, frozen=True, kw_only=True):
    num_negative: int = 0  # negative or missing
    num_clipped: int = 0
    clipped_ns: int = 0  # total time removed by clipping
    num_marks: int = 0  # number of step marks that were cut
    marks_ns: int = 0  # total time removed from step marks
    num_outlasting: int = 0  # number of pieces of GPU work that outlast later work on their stream
    outlasting_ns: int = 0  # total time removed from them
    span_ns: int = 0  # from the first to the last start of the trace

    @property
    def any(self) -> bool:
        return bool(self.num_negative or self.num_clipped or self.num_marks or self.num_outlasting)


def repair_durations(columns: dict[str, NDArray[Any]], is_mark: NDArray[np.bool_]) -> Repairs:
    """Change `duration_ns` in place; `is_mark` is true for the step marks on the host."""
    start_ns, duration_ns = columns["start_ns"], columns["duration_ns"]
    if not len(start_ns):
        return Repairs()
    negative = duration_ns < 0
    duration_ns[negative] = 0
    span_ns = int(start_ns[-1] - start_ns[0])
    is_work = is_kind(columns["kind"], *GPU_WORK)
    num_clipped, clipped_ns = _clip_absurd(columns, is_work, span_ns)
    num_outlasting, outlasting_ns = _cut_outlasting(columns, np.flatnonzero(is_work))
    num_marks, marks_ns = _cut_marks(columns, np.flatnonzero(is_mark))
    return Repairs(
        num_negative=int(negative.sum()),
        num_clipped=num_clipped,
        clipped_ns=clipped_ns,
        num_marks=num_marks,
        marks_ns=marks_ns,
        num_outlasting=num_outlasting,
        outlasting_ns=outlasting_ns,
        span_ns=span_ns,
    )


def _clip_absurd(columns: dict[str, NDArray[Any]], is_work: NDArray[np.bool_], span_ns: int) -> tuple[int, int]:
    """Clip durations beyond their limits; return the number and the time removed."""
    start_ns, duration_ns = columns["start_ns"], columns["duration_ns"]
    if not (duration_ns > _MIN_SHARE_OF_SPAN * span_ns).any():
        return 0, 0  # no limit is below this share
    shortest_ns = np.where(is_work, _MIN_DEVICE_NS, _MIN_HOST_NS)
    limit_ns = np.maximum(shortest_ns, min(_MIN_SPANS * span_ns, 1 << 62))
    end_ns = np.full(len(start_ns), start_ns[-1])  # the end to which a duration beyond its limit is clipped
    work = np.flatnonzero(is_work)
    next_start = _next_start_on_stream(columns, work)
    followed = next_start >= 0
    rows = work[followed]
    gap_limit = np.maximum(_MIN_GAPS * (next_start[followed] - start_ns[rows]), int(_MIN_SHARE_OF_SPAN * span_ns))
    limit_ns[rows] = np.minimum(limit_ns[rows], gap_limit)
    end_ns[rows] = next_start[followed]
    absurd = np.flatnonzero(duration_ns > limit_ns)
    clipped = end_ns[absurd] - start_ns[absurd]
    clipped_ns = int(np.minimum((duration_ns[absurd] - clipped).astype(np.float64).sum(), 2**62))
    duration_ns[absurd] = clipped
    return len(absurd), clipped_ns


def _cut_outlasting(columns: dict[str, NDArray[Any]], work: NDArray[np.int64]) -> tuple[int, int]:
    """End GPU work that outlasts later work of its stream where that begins; return the number and the time removed.

    A copy or memory set must not overlap the next work on its stream: only kernels can overlap their successor.
    """
    streams, of_stream = distinct(columns["stream"][work])
    queues, queue = distinct(columns["device"][work].astype(np.int64) * len(streams) + of_stream)
    if len(queues) < 1 << 15:
        queue = queue.astype(np.int16)  # such numbers are sorted in a small part of the time
    order = np.argsort(queue, kind="stable")  # the rows are in order of time
    ordered = work[order]
    num_cut, cut_ns = 0, 0
    for rows in np.split(ordered, np.flatnonzero(np.diff(queue[order])) + 1):
        removed_ns = _excess_on_stream(columns, rows)
        columns["duration_ns"][rows] -= removed_ns
        num_cut += int((removed_ns > 0).sum())
        cut_ns += int(removed_ns.sum())
    return num_cut, cut_ns


def _excess_on_stream(columns: dict[str, NDArray[Any]], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the impossible part of the duration of each piece of work on one stream, in the order of start."""
    start_ns, correlation = columns["start_ns"][rows], columns["correlation"][rows]
    end_ns = start_ns + columns["duration_ns"][rows]
    if (end_ns[:-1] - _MIN_OUTLASTING_NS <= start_ns[1:]).all():
        return np.zeros(len(rows), np.int64)  # each piece ends before the next one begins
    # The work that one call launched (a graph) may overlap: each piece is compared with what follows all of it.
    is_last = np.ones(len(rows), np.bool_)
    is_last[:-1] = (correlation[1:] != correlation[:-1]) | (correlation[1:] == NULL)
    lasts = np.flatnonzero(is_last)
    following = lasts[np.searchsorted(lasts, np.arange(len(rows)))] + 1
    never = np.iinfo(np.int64).max
    next_start_ns = np.append(start_ns, never)[following]
    earliest_end_ns = np.append(np.minimum.accumulate(end_ns[::-1])[::-1], never)[following]
    is_kernel = columns["kind"][rows] == Kind.KERNEL
    limit_ns = np.where(is_kernel, earliest_end_ns, next_start_ns)
    is_outlasting = end_ns - _MIN_OUTLASTING_NS > limit_ns
    return np.where(is_outlasting, end_ns - np.maximum(next_start_ns, start_ns), 0)


def _cut_marks(columns: dict[str, NDArray[Any]], marks: NDArray[np.int64]) -> tuple[int, int]:
    """Cut step marks that reach far beyond the next mark of their thread, or the last mark beyond all other events.

    Kineto occasionally writes a span with a corrupt end. Return the number of marks cut, and the total time removed.
    """
    start_ns, duration_ns = columns["start_ns"], columns["duration_ns"]
    num_cut, cut_ns = 0, 0
    last_of_thread: list[tuple[int, NDArray[np.int64]]] = []
    for thread in np.unique(columns["thread"][marks]).tolist():
        rows = marks[columns["thread"][marks] == thread]
        following = np.searchsorted(
            start_ns[rows], start_ns[rows], side="right"
        )  # two marks can start at the same time
        others = following < len(rows)
        last_of_thread += [(int(row), rows[others]) for row in rows[~others]]
        next_start = start_ns[rows[following[others]]]
        absurd = start_ns[rows[others]] + duration_ns[rows[others]] > next_start + _MIN_MARK_OVERLAP_NS
        cut, end_ns = rows[others][absurd], next_start[absurd]
        num_cut += len(cut)
        cut_ns += sum((start_ns[cut] + duration_ns[cut] - end_ns).tolist())
        duration_ns[cut] = end_ns - start_ns[cut]
    is_other = np.ones(len(start_ns), np.bool_)
    is_other[[row for row, _ in last_of_thread]] = False
    last_end = int((start_ns + duration_ns)[is_other].max(initial=0))
    for row, earlier in last_of_thread:
        limit_ns = max(last_end, int(start_ns[row]))
        beyond_ns = int(start_ns[row] + duration_ns[row]) - limit_ns
        if len(earlier) and beyond_ns > _MIN_MARK_MEDIANS * float(np.median(duration_ns[earlier])):
            num_cut += 1
            cut_ns += beyond_ns
            duration_ns[row] -= beyond_ns
    return num_cut, cut_ns


def _next_start_on_stream(columns: dict[str, NDArray[Any]], work: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each row of `work`, the next later start on the same device and stream; -1 if none."""
    start_ns, device, stream = columns["start_ns"][work], columns["device"][work], columns["stream"][work]
    order = np.lexsort((start_ns, stream, device))
    start_ns, device, stream = start_ns[order], device[order], stream[order]
    following = np.full(len(work), -1, np.int64)
    same = (device[1:] == device[:-1]) & (stream[1:] == stream[:-1])
    following[order[:-1][same]] = start_ns[1:][same]
    return following
