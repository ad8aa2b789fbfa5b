"""Say what ran in a stalled step, from the trace of the steps around it.

In: the event table of one rank with a few marked steps. Out: the activities that take longer in its longest step than
in the others, by the name of the outermost event of each thread, and the time in which nothing was recorded. Python
itself, sleeping and garbage collection leave no events.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from flatout.attribute.intervals import clip, union
from flatout.attribute.steps import HostSteps, host_steps
from flatout.records.events import NULL, EventTable, Kind
from flatout.records.stall_trace import StalledRank, TracedActivity

NUM_ACTIVITIES = 3
MIN_SHARE = 0.05  # of the excess of the stalled step; shorter activities are not named
_OF_COLLECTIVES = ("gloo:", "nccl:", "c10d::", "mpi:", "ucc:", "xccl:", "xla:")


def stalled_rank(table: EventTable, rank: int) -> StalledRank | None:
    """Return what ran in the longest of the rank's steps; None if fewer than two steps are marked."""
    marks = host_steps(table)
    if len(marks.number) < 2:
        return None
    durations_ns = marks.end_ns - marks.start_ns
    longest = int(durations_ns.argmax())
    others = [row for row in range(len(durations_ns)) if row != longest]
    # The step after a stall can be long too, because a rank waits in it, so the shortest step is the regular one.
    regular = min(others, key=lambda row: int(durations_ns[row]))
    excess_s = float(durations_ns[longest] - durations_ns[regular]) / 1e9
    spent, usual = _spent_s(table, marks, longest), _spent_s(table, marks, regular)
    beyond = {name: seconds - usual.get(name, 0.0) for name, seconds in spent.items()}
    named = sorted(beyond, key=lambda name: -beyond[name])[:NUM_ACTIVITIES]
    collectives = _communication_names(table)
    return StalledRank(
        rank=rank,
        step=marks.number[longest],
        step_s=float(durations_ns[longest]) / 1e9,
        excess_s=excess_s,
        activities=tuple(
            TracedActivity(name=name, seconds=beyond[name], is_communication=name in collectives)
            for name in named
            if beyond[name] >= MIN_SHARE * excess_s
        ),
        idle_s=max(_idle_s(table, marks, longest) - _idle_s(table, marks, regular), 0.0),
    )


def _is_activity(table: EventTable) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    on_host = table.is_kind(Kind.CPU_OP, Kind.USER_ANNOTATION, Kind.RUNTIME, Kind.PYTHON)
    is_mark = np.array([name.startswith("ProfilerStep") for name in table.names], dtype=np.bool_)
    return np.asarray(on_host & ~is_mark[table.name])


def _spent_s(table: EventTable, marks: HostSteps, row: int) -> dict[str, float]:
    """Return the seconds of the outermost events of each thread in a step, by name."""
    low, high = int(marks.start_ns[row]), int(marks.end_ns[row])
    inside = np.flatnonzero(_is_activity(table) & (table.start_ns < high) & (table.end_ns > low))
    spent: dict[str, float] = defaultdict(float)
    covered_until: dict[int, int] = {}
    for event in inside.tolist():  # by start, and the longest first
        thread = int(table.thread[event])
        start = max(int(table.start_ns[event]), low, covered_until.get(thread, low))
        end = min(int(table.end_ns[event]), high)
        if end > start:
            spent[table.names[table.name[event]]] += (end - start) / 1e9
            covered_until[thread] = end
    return spent


def _idle_s(table: EventTable, marks: HostSteps, row: int) -> float:
    low, high = int(marks.start_ns[row]), int(marks.end_ns[row])
    is_work = _is_activity(table) | table.is_kind(Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    start, end = union(*clip(table.start_ns[is_work], table.end_ns[is_work], low, high))
    return (high - low - int((end - start).sum())) / 1e9


def _communication_names(table: EventTable) -> set[str]:
    with_arguments = {table.names[name] for name in np.unique(table.name[table.collective != NULL]).tolist()}
    return with_arguments | {name for name in table.names if name.startswith(_OF_COLLECTIVES)}
