"""Find a rank's window and its steps, with the time at which each begins and ends on the GPU.

In: a rank's events and GPU work. Out: the profiler's step marks on the host, the window, and the GPU's steps.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np

from flatout.attribute import names
from flatout.attribute.intervals import Times
from flatout.attribute.launches import GpuWork
from flatout.records.events import GPU_WORK, EventTable, Kind
from flatout.records.timeline import StepSpan


class HostSteps(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The profiler's own step marks on the host, by start."""

    number: tuple[int, ...]
    start_ns: Times
    end_ns: Times
    thread: int | None  # row of table.threads; None without steps

    def after(self, num_steps: int) -> HostSteps:
        """Return the marks, except the first `num_steps`."""
        return HostSteps(
            number=self.number[num_steps:],
            start_ns=self.start_ns[num_steps:],
            end_ns=self.end_ns[num_steps:],
            thread=self.thread,
        )


def host_steps(table: EventTable) -> HostSteps:
    """Return the `ProfilerStep#N` marks of the thread with the most marks.

    Of marks with equal numbers, the first counts.
    """
    numbers = np.full(len(table.names), -1, dtype=np.int64)
    for row, name in enumerate(table.names):
        if name.startswith("ProfilerStep"):
            mark = re.match(names.STEP, name)
            numbers[row] = int(mark[1]) if mark else -1
    if (numbers < 0).all():
        return HostSteps(number=(), start_ns=_none(), end_ns=_none(), thread=None)
    rows = np.flatnonzero((numbers[table.name] >= 0) & table.is_kind(Kind.USER_ANNOTATION, Kind.CPU_OP))
    if len(rows) == 0:
        return HostSteps(number=(), start_ns=_none(), end_ns=_none(), thread=None)
    thread = int(np.bincount(table.thread[rows]).argmax())
    rows = rows[table.thread[rows] == thread]
    _, first = np.unique(numbers[table.name[rows]], return_index=True)
    rows = rows[np.sort(first)]
    return HostSteps(
        number=tuple(int(n) for n in numbers[table.name[rows]]),
        start_ns=table.start_ns[rows],
        end_ns=table.end_ns[rows],
        thread=thread,
    )


def window_of(table: EventTable, marks: HostSteps, work: GpuWork) -> tuple[int, int]:
    """Return the interval from the start of the first host step to the end of the last one and of its GPU work.

    Without steps, it extends from the first event to the last.
    """
    if marks.number:
        end = int(marks.end_ns.max())
        if len(work):
            end = max(end, int(work.end_ns.max()))
        return int(marks.start_ns[0]), end
    counted = table.is_kind(Kind.CPU_OP, Kind.USER_ANNOTATION, Kind.RUNTIME, Kind.PYTHON, *GPU_WORK)
    if not counted.any():
        return 0, 0
    return int(table.start_ns[counted].min()), int(table.end_ns[counted].max())


def step_spans(
    marks: HostSteps, work: GpuWork, window_end_ns: int, *, knows_launches: bool = True
) -> tuple[StepSpan, ...]:
    """Return the steps: each begins at its mark, or when the last GPU work launched before the mark ends, if later.

    A file whose format has no launches does not say what was launched before a mark: its steps begin at their marks.
    """
    if not marks.number:
        return ()
    begins = marks.start_ns
    if len(work) and knows_launches:
        order = np.argsort(work.launched_ns, kind="stable")
        busy_until = np.maximum.accumulate(work.end_ns[order])
        num_before = np.searchsorted(work.launched_ns[order], marks.start_ns, side="left")
        drained = np.where(num_before > 0, busy_until[np.maximum(num_before - 1, 0)], marks.start_ns)
        begins = np.maximum(begins, drained)
    ends = np.append(begins[1:], window_end_ns)
    return tuple(
        StepSpan(number=number, start_ns=int(start), end_ns=int(end))
        for number, start, end in zip(marks.number, begins, ends, strict=True)
    )


def _none() -> Times:
    return np.zeros(0, dtype=np.int64)
