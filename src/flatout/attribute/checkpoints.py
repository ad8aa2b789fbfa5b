"""Find when a rank was writing a checkpoint: from annotations, or by its signature in a plain trace.

`torch.save` of GPU tensors shows as a burst of device-to-host copies into pageable memory, followed by a time in which
the profiler sees no host activity (pickling, writing). A series of copies that exceeds `MIN_BYTES` counts as a
checkpoint, from the last launch before the burst to the first operator after it.
"""

from __future__ import annotations

import numpy as np

from flatout.attribute import names
from flatout.attribute.intervals import Flags, Times, union
from flatout.attribute.launches import GpuWork
from flatout.attribute.steps import HostSteps
from flatout.records.events import EventTable, Kind

MIN_BYTES = 64 * 2**20


def pageable_to_host(table: EventTable, work: GpuWork) -> Flags:
    """Return True for each GPU event that copies from the device into pageable host memory."""
    matching = np.fromiter(("DtoH" in name and "Pageable" in name for name in table.names), np.bool_, len(table.names))
    return np.asarray((table.kind[work.event] == Kind.MEMCPY) & matching[table.name[work.event]])


def checkpoint_intervals(
    table: EventTable, work: GpuWork, marks: HostSteps, launching_threads: Flags
) -> tuple[Times, Times]:
    """Return the merged intervals in which a launching thread writes a checkpoint.

    `launching_threads` has the shape (threads,).
    """
    is_annotated = names.matching(table.names, names.CHECKPOINT)
    annotated = (
        is_annotated[table.name]
        & table.is_kind(Kind.CPU_OP, Kind.USER_ANNOTATION, Kind.PYTHON)
        & launching_threads[table.thread]
    )
    starts, ends = [table.start_ns[annotated]], [table.end_ns[annotated]]
    for start, end in _signatures(table, work, marks):
        starts.append(np.array([start], dtype=np.int64))
        ends.append(np.array([end], dtype=np.int64))
    return union(np.concatenate(starts), np.concatenate(ends))


def _signatures(table: EventTable, work: GpuWork, marks: HostSteps) -> list[tuple[int, int]]:
    to_host = pageable_to_host(table, work) & work.is_linked
    if table.num_bytes[work.event[to_host]].clip(min=0).sum() <= MIN_BYTES:
        return []
    extents = []
    linked = np.flatnonzero(work.is_linked)
    linked = linked[np.argsort(table.start_ns[work.launch[linked]], kind="stable")]
    threads = table.thread[work.launch[linked]]
    for thread in np.unique(threads[to_host[linked]]):
        mine = linked[threads == thread]
        copies = to_host[mine]
        is_kernel = table.kind[work.event[mine]] == Kind.KERNEL
        # A series ends at the next kernel that the thread launches.
        series = np.cumsum(is_kernel)
        size = np.where(copies, table.num_bytes[work.event[mine]].clip(min=0), 0)
        for number in np.flatnonzero(np.bincount(series, weights=size) > MIN_BYTES):
            rows = np.flatnonzero(copies & (series == number))
            extents.append(_extent(table, work, marks, int(thread), mine, int(rows[0]), int(rows[-1])))
    return extents


def _extent(
    table: EventTable, work: GpuWork, marks: HostSteps, thread: int, mine: Times, first: int, last: int
) -> tuple[int, int]:
    """Return the interval from the end of the launch before row `first` to the start of the operator after `last`."""
    calls = work.launch[mine]
    first_call, last_call = calls[first], calls[last]
    start = int(table.end_ns[calls[first - 1]]) if first else int(table.start_ns[first_call])
    copied_at = int(table.start_ns[last_call])
    # Traces of 2021 record the step marks as operators.
    is_operator = table.is_kind(Kind.CPU_OP) & ~names.matching(table.names, names.STEP)[table.name]
    operators = is_operator & (table.thread == thread) & (table.start_ns > copied_at)
    # An operator nested in one that was open at the copy belongs to the copy (aten::copy_ in aten::to).
    is_open = is_operator & (table.thread == thread) & (table.start_ns <= copied_at) & (table.end_ns > copied_at)
    copied_until = int(table.end_ns[is_open].max()) if is_open.any() else int(table.end_ns[last_call])
    after = table.start_ns[operators & (table.start_ns >= copied_until)]
    if len(after):
        return start, int(after.min())
    step = np.flatnonzero((marks.start_ns <= copied_at) & (marks.end_ns > copied_at))
    end = int(marks.end_ns[step[-1]]) if len(step) else copied_until
    return start, max(end, copied_until)
