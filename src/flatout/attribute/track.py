"""Build the `RankTrack` of one rank: its launches, the host's waits, and the dependencies between streams.

A synchronising call is assumed to have waited for the last work that ended during the call. A stream is assumed to wait
for another stream if its work begins just after the other stream's work ended, and whenever it must wait: a collective
follows the work launched before it, and the optimizer follows all collectives.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flatout.attribute import names
from flatout.attribute.facts import DIRECTIONS
from flatout.attribute.host import HostStates, synchronising_calls
from flatout.attribute.intervals import Flags, Times, covered_before, covers, gaps, union
from flatout.attribute.launches import GpuWork
from flatout.attribute.steps import HostSteps
from flatout.records.diagnosis import Part
from flatout.records.events import NULL, EventTable, Kind
from flatout.records.timeline import CommunicationKernels, Segments
from flatout.records.track import GpuWorkKind, RankTrack, Spent, TrackNode

NEAR_NS = 10_000  # work that begins within this time after other work ended may have waited for it
RETURN_NS = 5_000  # the clocks of host and GPU agree to within about this
MOST_OF = 0.9  # a call that spans at least this share of a copy blocked the host for it
Intervals = tuple[Times, Times]
Rows = NDArray[np.int64]
_SPENT_PARTS = {Part.COMPUTE: Spent.COMPUTE, Part.DATA_LOADING: Spent.DATA_LOADING, Part.CHECKPOINT: Spent.CHECKPOINT}


def rank_track(table: EventTable, work: GpuWork, is_comm: Flags, states: HostStates, marks: HostSteps) -> RankTrack:
    """Return the track of a rank with GPU work and step marks."""
    low, high = int(marks.start_ns[0]), int(marks.end_ns.max())
    order = np.argsort(work.launched_ns, kind="stable")
    order = order[work.launched_ns[order] < high]
    start, end, launched = work.start_ns[order], work.end_ns[order], work.launched_ns[order]
    kind = _work_kinds(table, work, is_comm)[order]
    calls = _Calls(table, work, states, order, low, high)
    waiting, blocked = calls.waiting()
    times = [np.unique(launched[launched >= low])]
    kinds = [np.full(len(times[0]), TrackNode.LAUNCH)]
    rows = [np.full(len(times[0]), -1)]
    tails = [np.zeros(len(times[0]), dtype=np.int64)]
    for blocked_node, (at, waits_for, tail) in waiting.items():
        times.append(at)
        kinds.append(np.full(len(at), blocked_node))
        rows.append(waits_for)
        tails.append(tail)
    bounds = np.append(marks.start_ns, high)
    times.append(bounds)
    kinds.append(np.full(len(bounds), TrackNode.MARK))
    rows.append(np.full(len(bounds), -1))
    tails.append(np.zeros(len(bounds), dtype=np.int64))
    time, node = np.concatenate(times), np.concatenate(kinds)
    # At equal times, a mark comes first (the final mark last), and a launch before the wait inside its call.
    rank_of = np.where(node == TrackNode.MARK, np.where(time == high, 9, -1), node)
    sort = np.lexsort((rank_of, time))
    time, node = time[sort], node[sort]
    launch_rows = np.flatnonzero(node == TrackNode.LAUNCH)
    by = np.searchsorted(time[launch_rows], launched, side="right") - 1
    launched_by = np.where(launched >= low, launch_rows[np.maximum(by, 0)] if len(launch_rows) else -1, -1)
    phases = _phases(table, states)
    stream = _streams(table, work.event[order])
    comm_row = np.full(len(work), -1, dtype=np.int64)
    comm_row[is_comm] = np.arange(int(is_comm.sum()))
    phase = np.full(len(order), Spent.HOST, dtype=np.uint8)
    for spent in (Spent.ACCUMULATE, Spent.ZERO_GRAD, Spent.OPTIMIZER, Spent.CHECKPOINT):
        phase[covers(*phases[spent], launched) & (launched >= low)] = spent
    return RankTrack(
        origin_ns=low,
        node=node.astype(np.uint8),
        node_ns=time - low,
        spent_ns=_spent(time, phases, union(*blocked)),
        waits_for=np.concatenate(rows)[sort],
        tail_ns=np.concatenate(tails)[sort],
        work=kind,
        start_ns=start - low,
        end_ns=end - low,
        launched_by=launched_by,
        stream=stream,
        after=_after(start, end, stream, kind == GpuWorkKind.COMMUNICATION, phase == Spent.OPTIMIZER, launched_by),
        communication=comm_row[order],
        phase=phase,
        num_bytes=table.num_bytes[work.event[order]].clip(min=0),
    )


def _streams(table: EventTable, events: Rows) -> Rows:
    """Return a number for the stream of each event; streams of different devices have different numbers."""
    device = table.device[events].astype(np.int64)
    if len(np.unique(device)) < 2:
        return table.stream[events]
    pairs = np.stack((device, table.stream[events]), axis=1)
    _, number = np.unique(pairs, axis=0, return_inverse=True)
    return np.asarray(number.reshape(-1), dtype=np.int64)


def cpu_track(segments: Segments, communication: CommunicationKernels, marks: HostSteps) -> RankTrack:
    """Return the track of a rank without GPU work: operators are host time, and exposed communication is a wait."""
    low, high = int(marks.start_ns[0]), int(marks.end_ns.max())
    exposed = (segments.part == Part.COMMUNICATION_UNSPLIT) & (segments.start_ns < high) & (segments.end_ns > low)
    wait_start, wait_end = segments.start_ns[exposed], np.minimum(segments.end_ns[exposed], high)
    inside = np.flatnonzero((communication.start_ns >= low) & (communication.start_ns < high))
    start, end = communication.start_ns[inside], communication.end_ns[inside]
    # The collective that the host waited for is the one that ends when the wait does.
    by_end = np.argsort(end, kind="stable")
    if len(inside):
        last = np.searchsorted(end[by_end], wait_end + RETURN_NS, side="right") - 1
        waits_for = np.where(last >= 0, by_end[np.maximum(last, 0)], -1)
        waits_for[end[waits_for] < wait_start] = -1
    else:
        waits_for = np.full(len(wait_start), -1, dtype=np.int64)
    real = waits_for >= 0
    wait_start, wait_end, waits_for = np.maximum(wait_start, low)[real], wait_end[real], waits_for[real]
    bounds = np.append(marks.start_ns, high)
    time = np.concatenate((start, wait_start, bounds))
    node = np.repeat(
        np.array([TrackNode.LAUNCH, TrackNode.SYNC, TrackNode.MARK]), (len(start), len(wait_start), len(bounds))
    )
    sort = np.lexsort((np.where(node == TrackNode.MARK, np.where(time == high, 9, -1), node), time))
    position = np.empty(len(sort), dtype=np.int64)
    position[sort] = np.arange(len(sort))
    phases = {
        spent: union(segments.start_ns[segments.part == part], segments.end_ns[segments.part == part])
        for part, spent in _SPENT_PARTS.items()
    }
    rows = np.concatenate((np.full(len(start), -1), waits_for, np.full(len(bounds), -1)))
    tails = np.concatenate((np.zeros(len(start)), np.maximum(wait_end - end[waits_for], 0), np.zeros(len(bounds))))
    return RankTrack(
        origin_ns=low,
        node=node[sort].astype(np.uint8),
        node_ns=time[sort] - low,
        spent_ns=_spent(time[sort], phases, (wait_start, wait_end)),
        waits_for=rows[sort],
        tail_ns=tails[sort].astype(np.int64),
        work=np.full(len(inside), GpuWorkKind.COMMUNICATION, dtype=np.uint8),
        start_ns=start - low,
        end_ns=end - low,
        launched_by=position[: len(start)],
        stream=np.arange(len(inside), dtype=np.int64),  # gloo collectives can run at the same time
        after=np.full(len(inside), -1, dtype=np.int64),
        communication=inside,
        phase=np.full(len(inside), Spent.HOST, dtype=np.uint8),
        num_bytes=np.zeros(len(inside), dtype=np.int64),
    )


class _Calls:
    """Host calls that were blocked by the GPU, and the work that each waited for."""

    def __init__(self, table: EventTable, work: GpuWork, states: HostStates, order: Rows, low: int, high: int) -> None:
        self._table, self._work, self._states = table, work, states
        self._start, self._end, self._launched = (c[order] for c in (work.start_ns, work.end_ns, work.launched_ns))
        self._by_end = np.argsort(self._end, kind="stable")
        self._order, self._low, self._high = order, low, high

    def waiting(self) -> tuple[dict[TrackNode, tuple[Times, Rows, Times]], Intervals]:
        """Return calls by node (start, awaited work, duration after that work ended), and all intervals."""
        table, states = self._table, self._states
        mine = states.launching_threads[table.thread] & (table.kind == Kind.RUNTIME)
        syncs = np.flatnonzero(mine & synchronising_calls(table, self._work))
        frees = np.flatnonzero(mine & table.name_matches(names.matching(table.names, names.ALLOCATOR)))
        copies, copy_rows = self._blocking_copies()
        syncs = np.setdiff1d(syncs, copies)
        result: dict[TrackNode, tuple[Times, Rows, Times]] = {}
        starts, ends = [], []
        calls = {
            TrackNode.SYNC: (table.start_ns[syncs], table.end_ns[syncs], None),
            TrackNode.FREE: (table.start_ns[frees], table.end_ns[frees], None),
            TrackNode.COPY_SYNC: (table.start_ns[copies], table.end_ns[copies], copy_rows),
            TrackNode.FULL: (*states.command_buffer_full, None),
        }
        for node, (start, end, rows) in calls.items():
            waits_for = self._last_ended(start, end) if rows is None else rows
            keep = (waits_for >= 0) & (start >= self._low) & (end <= self._high)
            start, end, waits_for = start[keep], end[keep], waits_for[keep]
            result[node] = (start, waits_for, np.maximum(end - self._end[waits_for], 0))
            starts.append(start)
            ends.append(end)
        return result, (np.concatenate(starts), np.concatenate(ends))

    def _last_ended(self, start: Times, end: Times) -> Rows:
        """Return the last work that was launched before each interval and ended in it, or -1 if there is none."""
        ends = self._end[self._by_end]
        at = np.searchsorted(ends, end + RETURN_NS, side="right") - 1
        row = self._by_end[np.maximum(at, 0)]
        good = (at >= 0) & (self._end[row] >= start) & (self._launched[row] <= start)
        return np.where(good, row, -1)

    def _blocking_copies(self) -> tuple[Rows, Rows]:
        """Return the calls that blocked until a copy from or into pageable memory was done, and the copies' rows."""
        table, work = self._table, self._work
        is_pageable = np.fromiter(("Pageable" in name for name in table.names), np.bool_, len(table.names))
        event, launch = work.event[self._order], work.launch[self._order]
        rows = np.flatnonzero((table.kind[event] == Kind.MEMCPY) & is_pageable[table.name[event]] & (launch != NULL))
        calls = launch[rows]
        start, end = self._start[rows], self._end[rows]
        done = (end <= table.end_ns[calls] + RETURN_NS) & (end > table.start_ns[calls])
        # For the long copy of a large batch, the clocks may differ by more than RETURN_NS.
        together = np.minimum(end, table.end_ns[calls]) - np.maximum(start, table.start_ns[calls])
        done |= together >= np.maximum(MOST_OF * (end - start), 10 * RETURN_NS)
        return calls[done], rows[done]


def _work_kinds(table: EventTable, work: GpuWork, is_comm: Flags) -> NDArray[np.uint8]:
    """Return the `GpuWorkKind` of each piece of GPU work; each distinct name is searched once."""
    by_name = np.full(len(table.names), GpuWorkKind.OTHER, dtype=np.uint8)
    is_matmul = names.matching(table.names, names.MATMUL)
    by_name[is_matmul] = GpuWorkKind.PLAIN_MATMUL
    by_name[is_matmul & names.matching(table.names, names.TENSOR_CORE)] = GpuWorkKind.MATMUL
    copies = np.full(len(table.names), GpuWorkKind.COPY_ON_DEVICE, dtype=np.uint8)
    for row, text in enumerate(table.names):
        direction = DIRECTIONS.search(text)
        if direction is None:
            continue
        if direction[1] == "HtoD":
            copies[row] = GpuWorkKind.PAGEABLE_TO_DEVICE if "Pageable" in text else GpuWorkKind.COPY_TO_DEVICE
        elif direction[1] == "DtoH":
            copies[row] = GpuWorkKind.COPY_TO_HOST
    kind = table.kind[work.event]
    name = table.name[work.event]
    result = np.where(kind == Kind.KERNEL, by_name[name], np.where(kind == Kind.MEMCPY, copies[name], GpuWorkKind.SET))
    result[is_comm] = GpuWorkKind.COMMUNICATION
    return result.astype(np.uint8)


def _phases(table: EventTable, states: HostStates) -> dict[Spent, Intervals]:
    """Return the intervals of each kind of host activity; if they overlap, the first kind counts."""
    annotated = table.is_kind(Kind.USER_ANNOTATION, Kind.CPU_OP) & states.launching_threads[table.thread]
    optimizer = annotated & table.name_matches(names.matching(table.names, names.OPTIMIZER))
    zero_grad = annotated & table.name_matches(names.matching(table.names, names.ZERO_GRAD))
    accumulate = annotated & table.name_matches(names.matching(table.names, names.ACCUMULATE))
    return {
        Spent.CHECKPOINT: states.checkpoint,
        Spent.DATA_LOADING: states.data_loading,
        Spent.ALLOCATOR: states.allocator,
        Spent.OPTIMIZER: union(table.start_ns[optimizer], table.end_ns[optimizer]),
        Spent.ZERO_GRAD: union(table.start_ns[zero_grad], table.end_ns[zero_grad]),
        Spent.ACCUMULATE: union(table.start_ns[accumulate], table.end_ns[accumulate]),
    }


def _spent(time: Times, phases: dict[Spent, Intervals], blocked: Intervals) -> NDArray[np.int64]:
    """Return each node's unblocked host time since the previous node, by activity; shape (nodes, Spent)."""
    blocked = union(*blocked)
    taken = blocked
    spent = np.zeros((len(time), len(Spent)), dtype=np.int64)
    for phase, intervals in phases.items():
        joined = union(np.concatenate((taken[0], intervals[0])), np.concatenate((taken[1], intervals[1])))
        spent[1:, phase] = np.diff(covered_before(*joined, time)) - np.diff(covered_before(*taken, time))
        taken = joined
    free = gaps(*taken, int(time[0]), int(time[-1]) + 1)
    spent[1:, Spent.HOST] = np.diff(covered_before(*free, time))
    return spent


def _after(start: Times, end: Times, stream: Times, is_comm: Flags, is_optimizer: Flags, launched_by: Rows) -> Rows:
    """Return the work on another stream that each piece of work had to wait for, or -1; rows are in launch order."""
    num = len(start)
    result = np.full(num, -1, dtype=np.int64)
    if num == 0:
        return result
    rows = np.arange(num)
    by_end = np.argsort(end, kind="stable")
    at = np.searchsorted(end[by_end], start + 1_000, side="right")
    # among the last few that ended, take the first that was launched before, on another stream
    for back in range(1, 4):
        position = at - back
        near = by_end[np.maximum(position, 0)]
        good = (result < 0) & (position >= 0) & (stream[near] != stream) & (near < rows)
        good &= start - end[near] <= NEAR_NS
        result[good] = near[good]
    last_other = np.maximum.accumulate(np.where(is_comm, -1, rows))
    follows = is_comm & (last_other >= 0) & (result < 0)
    follows &= end[last_other] <= start + 1_000
    result[follows] = last_other[follows]
    last_comm = np.maximum.accumulate(np.where(is_comm, rows, -1))
    first = is_optimizer & ~np.append(False, is_optimizer[:-1]) & (result < 0) & (last_comm >= 0) & (launched_by >= 0)
    first &= end[last_comm] <= start + 1_000
    result[first] = last_comm[first]
    return result
