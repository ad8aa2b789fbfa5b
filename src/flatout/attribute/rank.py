"""Attribute one rank's events: find its window and its steps, and assign each moment to a part.

Exposed communication stays unsplit here: only the other ranks' traces show how much of it was waiting (`split.py`).
"""

from __future__ import annotations

from collections.abc import Set

import msgspec
import numpy as np

from flatout.attribute.communication import communication_kernels, is_communication
from flatout.attribute.cpu import cpu_parts
from flatout.attribute.device import no_communication, of_unknown_device, sign_of_unseen_gpu
from flatout.attribute.devices import driven_devices
from flatout.attribute.evaluation import evaluated_steps
from flatout.attribute.facts import rank_facts
from flatout.attribute.host import HostStates, host_states
from flatout.attribute.intervals import Flags, Times, clip, covers, distinct, gaps, union
from flatout.attribute.launches import GpuWork, knows_launches, link_launches, lost_launches, unknown_idle_time
from flatout.attribute.notes import rank_notes
from flatout.attribute.segments import merged_segments
from flatout.attribute.start import num_start_steps, start_note, start_up
from flatout.attribute.steps import HostSteps, host_steps, step_spans, window_of
from flatout.attribute.track import cpu_track, rank_track
from flatout.records.diagnosis import Part
from flatout.records.events import EventTable, Kind
from flatout.records.timeline import CommunicationKernels, DeviceWork, RankTimeline, Segments
from flatout.records.track import RankTrack


def attribute_rank(
    table: EventTable,
    rank: int | None = None,
    *,
    with_track: bool = False,
    recurring_steps: Set[int] = frozenset(),
    counts_start: bool = False,
) -> RankTimeline:
    """Assign every nanosecond of the rank's window to one part; `rank` overrides the rank in the trace.

    `with_track` also keeps each launch and each kernel, which a replay needs. `recurring_steps` are numbers of steps
    that the step log shows to be long for a reason that recurs; `counts_start` counts a start-up like all other steps.
    """
    marks = host_steps(table)
    timeline = _attributed(table, marks, rank, with_track=with_track)
    num_steps = 0 if counts_start else num_start_steps(timeline, recurring_steps | evaluated_steps(table, marks))
    if not num_steps:
        return timeline
    start, note = start_up(timeline, num_steps), start_note(timeline, num_steps)
    timeline = _attributed(table, marks.after(num_steps), rank, with_track=with_track)
    return msgspec.structs.replace(timeline, quality=(*timeline.quality, note), start_up=start)


def _attributed(table: EventTable, marks: HostSteps, rank: int | None, *, with_track: bool) -> RankTimeline:
    work = link_launches(table)
    window_start, window_end = window_of(table, marks, work)
    steps = step_spans(marks, work, window_end, knows_launches=knows_launches(table, work))
    states = host_states(table, work, marks)
    has_gpu = len(work) > 0
    devices: tuple[DeviceWork, ...] = ()
    lost = lost_launches(table, work)
    sign_of_gpu = sign_of_unseen_gpu(table, work, len(lost))
    is_comm = is_communication(table, work)
    if has_gpu:
        lead_in_end = steps[0].start_ns if steps else window_start
        lost_ns = np.sort(table.start_ns[lost])
        segments = _gpu_parts(table, work, is_comm, states, lost_ns, (window_start, lead_in_end, window_end))
        communication = communication_kernels(table, work, is_comm, (states.sync_start_ns, states.sync_end_ns))
        devices = driven_devices(table, work, is_comm, (window_start, window_end))
    elif sign_of_gpu is not None:
        segments = of_unknown_device(cpu_parts(table, marks, states, (window_start, window_end)))
        communication = no_communication()
    else:
        segments = cpu_parts(table, marks, states, (window_start, window_end))
        communication = communication_kernels(table, work, is_comm, (states.sync_start_ns, states.sync_end_ns))
    track = None
    if with_track and sign_of_gpu is None:
        track = _track(table, work, is_comm, states, marks, segments, communication)
    notes = rank_notes(work, table.meta.format, has_steps=bool(steps), num_lost=len(lost), sign_of_gpu=sign_of_gpu)
    return RankTimeline(
        meta=table.meta,
        rank=rank if rank is not None else (table.meta.rank or 0),
        has_gpu=has_gpu,
        devices=devices,
        is_device_known=sign_of_gpu is None,
        first_event_ns=int(table.start_ns[0]) if table.num_events else window_start,
        window_start_ns=window_start,
        window_end_ns=window_end,
        steps=steps,
        segments=segments,
        communication=communication,
        quality=(*table.quality, *notes),
        facts=rank_facts(table, work, is_comm, states, marks, steps, segments, communication, len(devices) or 1),
        track=track,
    )


def _track(
    table: EventTable,
    work: GpuWork,
    is_comm: Flags,
    states: HostStates,
    marks: HostSteps,
    segments: Segments,
    communication: CommunicationKernels,
) -> RankTrack | None:
    if not marks.number:
        return None
    return rank_track(table, work, is_comm, states, marks) if len(work) else cpu_track(segments, communication, marks)


def _gpu_parts(
    table: EventTable,
    work: GpuWork,
    is_comm: Flags,
    states: HostStates,
    lost_ns: Times,
    bounds: tuple[int, int, int],
) -> Segments:
    """Assign times with GPU work first (compute, communication, copies), then the gaps by the host's activity.

    Gaps in which unrecorded kernels (launched at `lost_ns`) may have run are unattributed.
    """
    low, lead_in_end, high = bounds
    start, end = clip(work.start_ns, work.end_ns, low, high)
    is_kernel = table.kind[work.event] == Kind.KERNEL
    compute = union(*_take(start, end, is_kernel & ~is_comm))
    comm = union(*_take(start, end, is_comm))
    copies = union(*_take(start, end, ~is_kernel & ~is_comm))
    busy = union(start, end)
    gap_start, gap_end = gaps(*busy, low, high)
    is_launch_known = knows_launches(table, work)
    ready, drained = _gap_ends(work, states, gap_start, gap_end, high, is_launch_known=is_launch_known)
    host = (states.checkpoint, states.data_loading, states.allocator, states.command_buffer_full, states.active)
    unknown = unknown_idle_time(work, lost_ns, gap_start, gap_end)
    cuts = [compute, comm, copies, (gap_start, gap_end), unknown, *host]
    marks = np.asarray([low, lead_in_end, high], dtype=np.int64)
    points = np.concatenate([marks, ready, *(times for cut in cuts for times in cut)])
    points = distinct(points[(points >= low) & (points <= high)])
    at = points[:-1]
    gap = np.maximum(np.searchsorted(gap_start, at, side="right") - 1, 0)
    if len(gap_start):
        before_ready = at < ready[gap]
        is_drained = drained[gap]
    else:
        before_ready = is_drained = np.zeros(len(at), dtype=np.bool_)
    # Apply the last rule first, so that earlier rules overwrite later ones.
    part = np.full(len(at), Part.UNATTRIBUTED, dtype=np.uint8)
    part[covers(*states.active, at)] = Part.HOST_LAUNCH
    part[~before_ready] = Part.LAUNCH_LATENCY
    part[before_ready & covers(*states.command_buffer_full, at)] = Part.LAUNCH_LATENCY
    part[is_drained] = Part.HOST_SYNC
    for intervals, claimed in (
        (states.allocator, Part.ALLOCATOR),
        (states.data_loading, Part.DATA_LOADING),
        (states.checkpoint, Part.CHECKPOINT),
    ):
        part[before_ready & covers(*intervals, at)] = claimed
    part[covers(*unknown, at)] = Part.UNATTRIBUTED
    part[at < lead_in_end] = Part.UNATTRIBUTED
    part[covers(*copies, at)] = Part.MEMORY_COPY
    part[covers(*comm, at)] = Part.COMMUNICATION_UNSPLIT
    part[covers(*compute, at)] = Part.COMPUTE
    return merged_segments(points, part)


def _gap_ends(
    work: GpuWork, states: HostStates, gap_start: Times, gap_end: Times, window_end: int, *, is_launch_known: bool
) -> tuple[Times, Flags]:
    """Return, for each gap, when the work after it was launched, and whether a synchronising call drained the GPU.

    Where launches are unknown, nothing counts as launched within a gap.
    """
    order = np.lexsort((-np.maximum(work.launch_end_ns, 0), work.start_ns))
    at = np.searchsorted(work.start_ns[order], gap_end, side="left")
    follows = at < len(order)
    row = order[np.minimum(at, len(order) - 1)]
    follows &= (work.start_ns[row] == gap_end) & (gap_end < window_end)
    if not is_launch_known:
        follows[:] = False
    ready = np.where(follows, np.clip(work.launch_end_ns[row], gap_start, gap_end), gap_end)
    num_begun = np.searchsorted(states.sync_start_ns, gap_start, side="left")
    num_ended = np.searchsorted(states.sync_end_ns, gap_start, side="left")
    return ready, num_begun > num_ended


def _take(start: Times, end: Times, rows: Flags) -> tuple[Times, Times]:
    return start[rows], end[rows]
