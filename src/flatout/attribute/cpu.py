"""Attribute the time of a rank without GPU events: operators are compute, other collectives are communication."""

from __future__ import annotations

import numpy as np

from flatout.attribute import names
from flatout.attribute.host import HostStates, data_loading_events
from flatout.attribute.intervals import Flags, Times, clip, covers, distinct, union
from flatout.attribute.segments import merged_segments
from flatout.attribute.steps import HostSteps
from flatout.records.diagnosis import Part
from flatout.records.events import EventTable, Kind
from flatout.records.timeline import Segments


def cpu_parts(table: EventTable, marks: HostSteps, states: HostStates, bounds: tuple[int, int]) -> Segments:
    """Assign each moment to the first part that applies: checkpoint, data loading, operators, collectives, others.

    Operators that run while the host does something else, as XLA's do, come first: the host has the time without them.
    """
    low, high = bounds
    training = states.launching_threads[table.thread]
    on_host = table.is_kind(Kind.CPU_OP, Kind.USER_ANNOTATION, Kind.RUNTIME, Kind.PYTHON)
    is_collective = table.name_matches(names.matching(table.names, names.COLLECTIVE_OPERATION))
    loading = data_loading_events(table) & training
    # Traces of 2021 record the step marks as operators.
    is_mark = table.name_matches(names.matching(table.names, names.STEP))
    is_session = table.name_matches(names.matching(table.names, names.SESSION))
    computes = (table.kind == Kind.CPU_OP) | is_session
    operators = computes & training & ~is_collective & ~loading & ~is_mark
    by_host = [
        (_cut(table, on_host & training & ~is_collective, low, high), Part.HOST_LAUNCH),
        (union(*clip(marks.start_ns, marks.end_ns, low, high)), Part.HOST_LAUNCH),
    ]
    by_operators = [
        (_cut(table, on_host & is_collective, low, high), Part.COMMUNICATION_UNSPLIT),
        (_cut(table, operators, low, high), Part.COMPUTE),
    ]
    by_calls = [
        (union(*clip(*states.data_loading, low, high)), Part.DATA_LOADING),
        (union(*clip(*states.checkpoint, low, high)), Part.CHECKPOINT),
    ]
    # Later entries overwrite earlier ones.
    is_beside = table.meta.runs_beside_host
    claims = [*by_calls, *by_operators] if is_beside else [*by_operators, *by_calls]
    if table.meta.knows_host:
        claims = [*by_host, *claims]
    window = np.asarray([low, high], dtype=np.int64)
    points = distinct(np.concatenate([window, *(times for intervals, _ in claims for times in intervals)]))
    part = np.full(max(len(points) - 1, 0), Part.UNATTRIBUTED, dtype=np.uint8)
    for intervals, claimed in claims:
        part[covers(*intervals, points[:-1])] = claimed
    return merged_segments(points, part)


def _cut(table: EventTable, rows: Flags, low: int, high: int) -> tuple[Times, Times]:
    return union(*clip(table.start_ns[rows], table.end_ns[rows], low, high))
