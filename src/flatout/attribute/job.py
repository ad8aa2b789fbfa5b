"""Timelines of all ranks -> the whole job: aligned clocks, split communication, blame."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from flatout.attribute.blame import BlameBook
from flatout.attribute.match import clock_offsets, match_kernels
from flatout.attribute.split import arrivals, cap_bubbles, exposed_ns, pipelines, split_segments
from flatout.records.diagnosis import Part
from flatout.records.job import BlameSlice, JobAttribution
from flatout.records.timeline import BEFORE_RECORDING, RankTimeline, Segments, StepSpan


def attribute_job(timelines: Sequence[RankTimeline]) -> JobAttribution:
    """Align, match, split and charge. Works for any number of ranks; what missing ranks hide stays unsplit."""
    timelines = sorted(timelines, key=lambda t: t.rank)
    matches, quality = match_kernels(timelines)
    offsets, clock_quality = clock_offsets(timelines, matches)
    timelines = [_shifted(t, offsets[t.rank]) if offsets.get(t.rank) else t for t in timelines]
    arrival = arrivals(timelines, matches)
    shapes = pipelines(timelines, matches)
    stage_of = {rank: shape for shape in shapes for rank in shape.stages}
    segments = {}
    for timeline in timelines:
        split = split_segments(timeline, arrival[timeline.rank])
        segments[timeline.rank] = cap_bubbles(timeline, split, stage_of.get(timeline.rank))
    book = BlameBook(timelines, segments, matches, arrival, shapes)
    by_rank = {t.rank: t for t in timelines}
    slices = tuple(
        BlameSlice(
            waiting_rank=rank,
            blamed_rank=blamed,
            part=part,
            start_ns=start,
            wait_ns=ns,
            step=_step_number(by_rank[rank].steps, start),
            match=match,
        )
        for rank, start, (blamed, part), ns, match in book.charge()
    )
    sizes = [t.meta.world_size for t in timelines if t.meta.world_size]
    world_size = max(sizes) if sizes else None
    present = {t.rank for t in timelines}
    missing = tuple(sorted(set(range(world_size)) - present)) if world_size else ()
    return JobAttribution(
        timelines=tuple(timelines),
        segments=segments,
        matches=tuple(matches),
        arrivals=arrival,
        pipelines=tuple(shapes),
        slices=slices,
        clock_offset_ns=offsets,
        exposed_transfer_ns={
            t.rank: exposed_ns(
                segments[t.rank],
                t.communication.start_ns,
                np.where(arrival[t.rank].is_known, t.communication.end_ns, t.communication.start_ns),
                Part.TRANSFER,
            )
            for t in timelines
        },
        exposed_unsplit_ns={
            t.rank: exposed_ns(
                segments[t.rank], t.communication.start_ns, t.communication.end_ns, Part.COMMUNICATION_UNSPLIT
            )
            for t in timelines
        },
        world_size=world_size,
        missing_ranks=missing,
        quality=tuple(quality + clock_quality),
    )


def _step_number(steps: tuple[StepSpan, ...], time_ns: int) -> int | None:
    row = int(np.searchsorted([s.start_ns for s in steps], time_ns, side="right")) - 1
    return steps[row].number if row >= 0 else None


def _shifted(timeline: RankTimeline, offset_ns: int) -> RankTimeline:
    """The same timeline on the common clock."""
    kernels = timeline.communication
    launched = kernels.launched_ns
    return msgspec.structs.replace(
        timeline,
        first_event_ns=timeline.first_event_ns + offset_ns,
        window_start_ns=timeline.window_start_ns + offset_ns,
        window_end_ns=timeline.window_end_ns + offset_ns,
        steps=tuple(
            StepSpan(number=s.number, start_ns=s.start_ns + offset_ns, end_ns=s.end_ns + offset_ns)
            for s in timeline.steps
        ),
        segments=Segments(
            start_ns=timeline.segments.start_ns + offset_ns,
            end_ns=timeline.segments.end_ns + offset_ns,
            part=timeline.segments.part,
        ),
        communication=msgspec.structs.replace(
            kernels,
            start_ns=kernels.start_ns + offset_ns,
            end_ns=kernels.end_ns + offset_ns,
            launched_ns=np.where(launched == BEFORE_RECORDING, launched, launched + offset_ns),
        ),
    )
