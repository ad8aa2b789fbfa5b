"""Collect what a trace shows of the calls of a model, in a script that only infers: its operators, and what is between.

In: the spans that the recorder has put around the calls, and the operators of the thread that calls. Out: `CallFacts`,
in seconds over all traced steps; None if the trace has no such spans. Parts are those of the rank's timeline, so on a
GPU the time between calls is that in which the host is between them, whatever the GPU does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.attribute.intervals import Flags, Times, clip, covers, gaps, union
from flatout.attribute.steps import HostSteps
from flatout.inside.protocol import MODEL_SPAN, OTHER_MODEL_SPAN
from flatout.records.events import EventTable, Kind
from flatout.records.timeline import NUM_PARTS, CallFacts, Segments, StepSpan

MIN_REPEATS = 3  # calls of an operator with the same shapes, of which the fastest shows what one needs
MOST_NAMES = 4


def call_facts(table: EventTable, marks: HostSteps, steps: Sequence[StepSpan], segments: Segments) -> CallFacts | None:
    """Return the facts about the model's calls within complete steps."""
    if MODEL_SPAN not in table.names or not steps:
        return None
    low, high = steps[0].start_ns, steps[-1].end_ns
    is_span = table.name_matches(_named(table, MODEL_SPAN)) & (table.kind == Kind.USER_ANNOTATION)
    model = union(*clip(table.start_ns[is_span], table.end_ns[is_span], low, high))
    if not len(model[0]):
        return None
    between = gaps(*model, low, high)
    thread = table.thread[np.flatnonzero(is_span)[0]]
    operators = np.flatnonzero((table.kind == Kind.CPU_OP) & (table.thread == thread))
    operators = operators[(table.start_ns[operators] >= low) & (table.end_ns[operators] <= high)]
    is_inside = covers(*model, table.start_ns[operators])
    leaves = operators[is_inside][_are_leaves(table, operators[is_inside])]
    others = _other_models(table, thread, low, high)
    outside = operators[~is_inside]
    return CallFacts(
        num_calls=int((is_span & (table.start_ns >= low) & (table.start_ns < high)).sum()),
        model_parts_s=tuple(_parts_s(segments, *model)),
        between_parts_s=tuple(_parts_s(segments, *between)),
        between_operators_s=_largest(table, outside[_are_outermost(table, outside)]),
        other_models_s=others,
        num_operators=len(leaves),
        operators_s=float(table.duration_ns[leaves].sum()) / 1e9,
        repeats_excess_s=_excess_over_fastest_s(table, leaves),
    )


def _named(table: EventTable, name: str) -> Flags:
    return np.fromiter((each == name for each in table.names), np.bool_, len(table.names))


def _parts_s(segments: Segments, start: Times, end: Times) -> NDArray[np.float64]:
    """Return the seconds of each part within the intervals; shape (NUM_PARTS,)."""
    if not len(start):
        return np.zeros(NUM_PARTS)
    spent_ns = segments.cumulative_ns(end) - segments.cumulative_ns(start)
    return np.asarray(spent_ns.sum(axis=0) / 1e9)


def _are_leaves(table: EventTable, rows: NDArray[np.int64]) -> Flags:
    """Return which operators of a thread contain no other one."""
    if not len(rows):
        return np.zeros(0, dtype=np.bool_)
    order = np.lexsort((-table.end_ns[rows], table.start_ns[rows]))
    ordered = rows[order]
    following = np.append(table.start_ns[ordered][1:], np.iinfo(np.int64).max)
    leaves = np.zeros(len(rows), dtype=np.bool_)
    leaves[order] = following >= table.end_ns[ordered]
    return leaves


def _are_outermost(table: EventTable, rows: NDArray[np.int64]) -> Flags:
    """Return which operators of a thread are contained in no other one."""
    if not len(rows):
        return np.zeros(0, dtype=np.bool_)
    order = np.lexsort((-table.end_ns[rows], table.start_ns[rows]))
    ordered = rows[order]
    reach = np.maximum.accumulate(table.end_ns[ordered])
    outermost = np.ones(len(rows), dtype=np.bool_)
    outermost[order[1:]] = table.start_ns[ordered][1:] >= reach[:-1]
    return outermost


def _largest(table: EventTable, rows: NDArray[np.int64]) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for row in rows.tolist():
        seconds[table.names[table.name[row]]] += int(table.duration_ns[row]) / 1e9
    return dict(sorted(seconds.items(), key=lambda item: -item[1])[:MOST_NAMES])


def _other_models(table: EventTable, thread: int, low: int, high: int) -> dict[str, float]:
    starts = np.fromiter((name.startswith(OTHER_MODEL_SPAN) for name in table.names), np.bool_, len(table.names))
    rows = np.flatnonzero(table.name_matches(starts) & (table.thread == thread))
    rows = rows[(table.start_ns[rows] >= low) & (table.end_ns[rows] <= high)]
    return {name.removeprefix(OTHER_MODEL_SPAN): spent_s for name, spent_s in _largest(table, rows).items()}


def _excess_over_fastest_s(table: EventTable, rows: NDArray[np.int64]) -> float:
    """Return what operators took beyond the fastest call of the same operator with the same shapes."""
    if not len(rows):
        return 0.0
    keys = np.stack((table.name[rows].astype(np.int64), table.shape[rows].astype(np.int64)))
    _, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    duration_ns = table.duration_ns[rows].astype(np.float64)
    fastest_ns = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(fastest_ns, group, duration_ns)
    is_repeated = np.bincount(group)[group] >= MIN_REPEATS
    return float((duration_ns - fastest_ns[group])[is_repeated].sum()) / 1e9
