"""Join GPU work with the host calls that launched it, by correlation and by stream."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.attribute.intervals import Flags, Times
from flatout.records.events import GPU_WORK, NULL, EventTable, Kind
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
    """Return, for each GPU event, the last linked event at or before it on its stream; NULL if there is none."""
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
