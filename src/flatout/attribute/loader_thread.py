"""Find when the training threads wait for a batch that another thread of the process loads.

In: the events of a rank. Out: intervals of data loading. Where a separate thread loads batches into a queue, the
training threads have no event while they wait: they look idle. They wait for the loader if they are idle while it is
in its `next()`, and continue when it returns. A loader that is ahead does not fit, nor does a training thread that
continues later because it does work without events.
"""

from __future__ import annotations

import numpy as np

from flatout.attribute import names
from flatout.attribute.intervals import Flags, Times, gaps, union
from flatout.records.events import EventTable, Kind

# From the end of `next()` to the first event of the training thread: Python lets a thread run for 5 ms at a time.
MAX_HAND_OVER_NS = 6_000_000


def waits_for_loader_thread(table: EventTable, loading: Flags, training: Flags) -> tuple[Times, Times]:
    """Return the merged intervals of these waits.

    `loading` marks the events in which any thread asks a loader for its next batch; `training` is True for each
    training thread.
    """
    of_training = training[table.thread]
    elsewhere = loading & ~of_training
    if not elsewhere.any():
        return _none()
    on_host = table.is_kind(Kind.CPU_OP, Kind.USER_ANNOTATION, Kind.RUNTIME, Kind.PYTHON)
    is_mark = table.name_matches(names.matching(table.names, names.STEP))
    at_work = on_host & of_training & ~is_mark
    busy = union(table.start_ns[at_work], table.end_ns[at_work])
    if not len(busy[0]):
        return _none()
    idle_start, idle_end = gaps(*busy, int(busy[0][0]), int(busy[1][-1]))
    next_start, next_end = table.start_ns[elsewhere], table.end_ns[elsewhere]
    starts: list[int] = []
    ends: list[int] = []
    for start, end in zip(idle_start.tolist(), idle_end.tolist(), strict=True):
        returned = next_end[(next_end > start) & (next_end <= end)]
        if not len(returned) or end - int(returned.max()) > MAX_HAND_OVER_NS:
            continue
        is_open = (next_start < end) & (next_end > start)
        starts += np.maximum(next_start[is_open], start).tolist()
        ends += np.minimum(next_end[is_open], end).tolist()
    return union(np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64))


def _none() -> tuple[Times, Times]:
    return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
