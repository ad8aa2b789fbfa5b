"""Find the operators and collectives that a step of B calls more or less often than a step of A.

In: the traces of both arms' profiles. Out: `CallDifference`s. Times are those of an operator itself, without the
operators that it calls; they are of the host's threads, so that on a GPU they show launching, not computing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from flatout.compare.parts import COLLECTIVE_NAMES
from flatout.diagnosis_pipeline import Diagnosed
from flatout.read import read_trace
from flatout.records.comparison import CallDifference
from flatout.records.events import EventTable, Kind

MOST_NAMED = 6
MIN_CALLS = 0.5  # per step: a smaller difference is an operator that only some steps call
MIN_SHARE = 0.02  # of the longer traced step: a smaller difference in an operator's time is not listed
_MARK = "ProfilerStep#"


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a profile, per step and rank."""

    step_s: float
    counts: dict[str, float]
    seconds: dict[str, float]


def calls_of(done: Diagnosed) -> Calls | None:
    """Count the calls in a profile's traced steps; None if no rank has such steps."""
    counts: dict[str, float] = defaultdict(float)
    seconds: dict[str, float] = defaultdict(float)
    num_steps, total_s = 0, 0.0
    for timeline in done.job.timelines:
        if not timeline.steps:
            continue
        num_steps += len(timeline.steps)
        total_s += sum(step.end_ns - step.start_ns for step in timeline.steps) / 1e9
        table = read_trace(done.sources[timeline.rank])
        _add(table, [step.number for step in timeline.steps], counts, seconds)
    if not num_steps:
        return None
    return Calls(
        step_s=total_s / num_steps,
        counts={name: count / num_steps for name, count in counts.items()},
        seconds={name: value_s / num_steps for name, value_s in seconds.items()},
    )


def _add(table: EventTable, steps: Sequence[int], counts: dict[str, float], seconds: dict[str, float]) -> None:
    """Add the calls within the marks of these steps, each with its own time."""
    is_communication = np.array([name.startswith(COLLECTIVE_NAMES) for name in table.names], dtype=np.bool_)
    is_annotation = table.is_kind(Kind.USER_ANNOTATION)
    is_call = table.is_kind(Kind.CPU_OP) | (is_annotation & table.name_matches(is_communication))
    marks = {f"{_MARK}{number}" for number in steps}
    is_mark = is_annotation & table.name_matches(np.array([name in marks for name in table.names], dtype=np.bool_))
    inside = np.zeros(table.num_events, dtype=np.bool_)
    for row in np.flatnonzero(is_mark).tolist():
        start_ns, end_ns = table.start_ns[row], table.end_ns[row]
        inside |= (table.start_ns >= start_ns) & (table.start_ns < end_ns)
    rows = np.flatnonzero(is_call & inside)
    own_ns = _own_ns(table, rows)
    for row, value_ns in zip(rows.tolist(), own_ns, strict=True):
        name = table.names[int(table.name[row])]
        counts[name] += 1
        seconds[name] += value_ns / 1e9


def _own_ns(table: EventTable, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> list[int]:
    """Return the duration of each event without the events that it contains on its thread."""
    own = table.duration_ns[rows].tolist()
    ends = table.end_ns[rows].tolist()
    open_calls: dict[int, list[int]] = defaultdict(list)  # by thread: places in `rows`, the innermost last
    for place, thread in enumerate(table.thread[rows].tolist()):
        stack = open_calls[thread]
        start_ns = int(table.start_ns[rows[place]])
        while stack and ends[stack[-1]] <= start_ns:
            stack.pop()
        if stack:
            own[stack[-1]] -= own[place]
        stack.append(place)
    return [max(value_ns, 0) for value_ns in own]


def call_differences(a: Sequence[Calls], b: Sequence[Calls]) -> tuple[CallDifference, ...]:
    """Return the calls that differ most between the profiles of both arms, by the change of their time."""
    if not a or not b:
        return ()
    threshold_s = MIN_SHARE * max(calls.step_s for calls in (*a, *b))
    names = dict.fromkeys(name for calls in (*a, *b) for name in calls.counts)
    found = []
    for name in names:
        difference = CallDifference(
            name=name,
            a_calls=_mean([calls.counts for calls in a], name),
            b_calls=_mean([calls.counts for calls in b], name),
            a_s=_mean([calls.seconds for calls in a], name),
            b_s=_mean([calls.seconds for calls in b], name),
        )
        is_longer_or_shorter = abs(difference.b_s - difference.a_s) >= threshold_s
        has_other_count = abs(difference.b_calls - difference.a_calls) >= MIN_CALLS
        if is_longer_or_shorter or has_other_count:
            found.append(difference)
    return tuple(sorted(found, key=lambda call: -abs(call.b_s - call.a_s))[:MOST_NAMED])


def _mean(columns: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(column.get(name, 0.0) for column in columns) / len(columns)
