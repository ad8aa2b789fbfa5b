"""Attribute the time of each GPU of a process that drives several (DataParallel, a model split over GPUs).

In: the GPU work of one rank, and the rank's segments, which count a moment as busy if any of its GPUs is busy. Out: the
segments of each GPU. If a GPU is idle while another GPU of the same process works, it waits for that GPU; if all are
idle, the rank's part applies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.attribute.intervals import Flags, clip, covers, distinct, union
from flatout.attribute.launches import GpuWork
from flatout.attribute.segments import merged_segments
from flatout.records.diagnosis import Part
from flatout.records.events import NULL, EventTable, Kind
from flatout.records.timeline import DeviceWork, Segments

# A GPU with less work than this share of the busiest GPU's work is not driven by the process: it has only a context (as
# on GPU 0), or received a single copy.
MIN_SHARE_OF_BUSIEST = 0.01


def driven_devices(table: EventTable, work: GpuWork, is_comm: Flags, window: tuple[int, int]) -> tuple[DeviceWork, ...]:
    """Return the work of each GPU that the process drives; an empty tuple if it drives only one."""
    device = table.device[work.event]
    numbers = [int(number) for number in np.unique(device) if number != NULL]
    if len(numbers) < 2:
        return ()
    is_kernel = table.kind[work.event] == Kind.KERNEL
    # Later entries overwrite earlier ones.
    claims = (
        (~is_kernel & ~is_comm, Part.MEMORY_COPY),
        (is_comm, Part.COMMUNICATION_UNSPLIT),
        (is_kernel & ~is_comm, Part.COMPUTE),
    )
    of_devices = [_device_work(work, device == number, claims, window, number) for number in numbers]
    busiest_ns = max(of_device.busy_ns for of_device in of_devices)
    driven = tuple(each for each in of_devices if each.busy_ns > MIN_SHARE_OF_BUSIEST * busiest_ns)
    return driven if len(driven) > 1 else ()


def _device_work(
    work: GpuWork,
    is_here: Flags,
    claims: Sequence[tuple[Flags, Part]],
    window: tuple[int, int],
    number: int,
) -> DeviceWork:
    unions = []
    for rows, claimed in claims:
        chosen = is_here & rows
        unions.append((union(*clip(work.start_ns[chosen], work.end_ns[chosen], *window)), claimed))
    edges = [times for intervals, _ in unions for times in intervals]
    points = distinct(np.concatenate([np.asarray(window, dtype=np.int64), *edges]))
    part = np.full(len(points) - 1, Part.UNATTRIBUTED, dtype=np.uint8)
    for intervals, claimed in unions:
        part[covers(*intervals, points[:-1])] = claimed
    return DeviceWork(device=number, segments=merged_segments(points, part))


def device_segments(rank_segments: Segments, devices: Sequence[DeviceWork]) -> dict[int, Segments]:
    """Return the segments of each device; `rank_segments` are the final parts of the process as a whole."""
    return {of_device.device: _with_idle_time(rank_segments, of_device.segments) for of_device in devices}


def _with_idle_time(rank: Segments, device: Segments) -> Segments:
    points = distinct(np.concatenate([rank.start_ns, rank.end_ns, device.start_ns, device.end_ns]))
    at = points[:-1]
    own, of_rank = _part_at(device, at), _part_at(rank, at)
    is_idle = own == Part.UNATTRIBUTED
    part = np.where(is_idle, of_rank, own)
    part[is_idle & np.isin(of_rank, _BUSY)] = Part.WAIT
    # Communication is split as it is for the rank as a whole, unless another device was computing.
    is_split = (own == Part.COMMUNICATION_UNSPLIT) & np.isin(of_rank, _COMMUNICATION)
    part[is_split] = of_rank[is_split]
    return merged_segments(points, part.astype(np.uint8))


_COMMUNICATION = (Part.TRANSFER, Part.WAIT, Part.BUBBLE, Part.COMMUNICATION_UNSPLIT)
_BUSY = (Part.COMPUTE, Part.MEMORY_COPY, *_COMMUNICATION)


def _part_at(segments: Segments, times_ns: NDArray[np.int64]) -> NDArray[np.uint8]:
    row = np.searchsorted(segments.start_ns, times_ns, side="right") - 1
    return segments.part[np.maximum(row, 0)]
