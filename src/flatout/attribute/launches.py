"""Join GPU work with the host calls that launched it, by correlation and by stream; find launches without work.

A launch without a kernel means that the profiler lost the kernel's record: the GPU's activity is then unknown at any
time at which the kernel may have run.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.attribute import names
from flatout.attribute.intervals import Flags, ThreadTimes, Times, covers, union
from flatout.records.events import GPU_WORK, NULL, EventTable, Kind, TraceFormat
from flatout.records.timeline import BEFORE_RECORDING


class GpuWork(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The GPU work of one rank with its launches, in the table's order (by start). Columns of equal length.

    Work without a launching call in the recording takes the launch time of the previous work on its stream, which
    cannot have been launched later. If there is no previous work, it was launched before the recording.
    """

    event: NDArray[np.int64]  # row in the event table
    start_ns: Times
    end_ns: Times
    launch: NDArray[np.int64]  # row of the launching RUNTIME event; NULL if the recording has none
    launched_ns: Times  # BEFORE_RECORDING if launched before the recording
    launch_end_ns: Times
    is_linked: Flags

    def __len__(self) -> int:
        return len(self.event)


def link_launches(table: EventTable) -> GpuWork:
    """Join GPU work with its launching calls by correlation; one launch may start many kernels (graphs)."""
    event = np.flatnonzero(table.is_kind(*GPU_WORK))
    runtime = np.flatnonzero(table.is_kind(Kind.RUNTIME) & (table.correlation != NULL))
    # A stable sort keeps the table's order, so the first of equal correlations is the earliest call.
    runtime = runtime[np.argsort(table.correlation[runtime], kind="stable")]
    wanted = table.correlation[event]
    position = np.searchsorted(table.correlation[runtime], wanted)
    in_range = position < len(runtime)
    launch = np.full(len(event), NULL, dtype=np.int64)
    launch[in_range] = runtime[position[in_range]]
    linked = in_range & (wanted != NULL)
    linked[linked] = table.correlation[launch[linked]] == wanted[linked]
    launch[~linked] = NULL

    start, end = table.start_ns[event], table.end_ns[event]
    source = _last_linked_on_stream(table.device[event], table.stream[event], linked)
    has_launch = source != NULL
    launched = np.full(len(event), BEFORE_RECORDING, dtype=np.int64)
    launch_end = launched.copy()
    calls = launch[source[has_launch]]
    launched[has_launch] = table.start_ns[calls]
    launch_end[has_launch] = table.start_ns[calls] + table.duration_ns[calls]
    return GpuWork(
        event=event,
        start_ns=start,
        end_ns=end,
        launch=launch,
        launched_ns=launched,
        launch_end_ns=launch_end,
        is_linked=linked,
    )


def _last_linked_on_stream(device: NDArray[np.int32], stream: Times, linked: Flags) -> NDArray[np.int64]:
    """Return, for each GPU event, the last linked event up to and including it on its stream; NULL if there is none."""
    order = np.lexsort((np.arange(len(stream)), stream, device))
    stream_changes = np.ones(len(order), dtype=np.bool_)
    if len(order):
        stream_changes[1:] = (np.diff(stream[order]) != 0) | (np.diff(device[order]) != 0)
    position = np.arange(len(order))
    first_of_stream = np.maximum.accumulate(np.where(stream_changes, position, 0))
    latest = np.maximum.accumulate(np.where(linked[order], position, -1))
    result = np.full(len(order), NULL, dtype=np.int64)
    valid = latest >= first_of_stream
    result[order[valid]] = order[latest[valid]]
    return result


def knows_launches(table: EventTable, work: GpuWork) -> bool:
    """Whether the trace says when work was launched. Kineto's does: what it does not link came before the recording."""
    return table.meta.format == TraceFormat.KINETO or bool(work.is_linked.any())


def lost_launches(table: EventTable, work: GpuWork) -> NDArray[np.int64]:
    """Return the events that launched a kernel that the trace does not contain.

    A launch during the capture of a graph starts no kernel, and a launch call inside another one starts the same.
    """
    is_launch = names.matching(table.names, names.LAUNCH)[table.name] & (table.kind == Kind.RUNTIME)
    is_launch &= table.correlation != NULL
    has_work = np.isin(table.correlation, table.correlation[work.event])
    lost = np.flatnonzero(is_launch & ~has_work)
    if len(lost) == 0:
        return lost
    axis = ThreadTimes(int(table.start_ns[0]), int(table.end_ns.max()))
    at = axis(table.thread[lost], table.start_ns[lost])
    end = axis(table.thread[lost], table.end_ns[lost])
    launched = np.flatnonzero(is_launch & has_work)
    launched_at = axis(table.thread[launched], table.start_ns[launched])
    calls = union(launched_at, axis(table.thread[launched], table.end_ns[launched]))
    launched_at = np.sort(launched_at)
    encloses_a_launch = np.searchsorted(launched_at, end) > np.searchsorted(launched_at, at)
    return lost[~encloses_a_launch & ~covers(*calls, at) & ~covers(*_captures(table, axis), at)]


def _captures(table: EventTable, axis: ThreadTimes) -> tuple[Times, Times]:
    """Return the intervals in which a thread captures a graph, on the axis of its thread."""
    calls = table.kind == Kind.RUNTIME
    begin = np.flatnonzero(calls & names.matching(table.names, names.BEGIN_CAPTURE)[table.name])
    end = np.flatnonzero(calls & names.matching(table.names, names.END_CAPTURE)[table.name])
    begin_at = np.sort(axis(table.thread[begin], table.start_ns[begin]))
    end_at = np.sort(axis(table.thread[end], table.end_ns[end]))
    following = np.searchsorted(end_at, begin_at)
    has_end = following < len(end_at)
    return union(begin_at[has_end], end_at[following[has_end]])


def unknown_idle_time(work: GpuWork, lost_ns: Times, gap_start: Times, gap_end: Times) -> tuple[Times, Times]:
    """Return the parts of the gaps between recorded GPU work in which lost kernels may have run.

    `lost_ns` are the times of their launches, sorted. Work starts in launch order: a kernel that was launched before
    work that started before a gap ran before that gap too.
    """
    if len(lost_ns) == 0:
        return lost_ns, lost_ns
    by_start = np.argsort(work.start_ns, kind="stable")
    last_launch = np.maximum.accumulate(work.launched_ns[by_start])
    num_started = np.searchsorted(work.start_ns[by_start], gap_start, side="left")
    started_launch = np.append(BEFORE_RECORDING, last_launch)[num_started]
    first_lost = np.searchsorted(lost_ns, started_launch, side="right")
    never = np.iinfo(np.int64).max
    since = np.maximum(np.append(lost_ns, never)[first_lost], gap_start)
    is_unknown = since < gap_end
    return since[is_unknown], gap_end[is_unknown]
