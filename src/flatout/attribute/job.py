"""Combine the timelines of all ranks into a job: align clocks, match and split communication, charge waits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from flatout.attribute.blame import BlameBook
from flatout.attribute.clock import clock_offsets, without_impossible
from flatout.attribute.devices import device_segments
from flatout.attribute.intervals import Times
from flatout.attribute.match import match_kernels, world_size_of
from flatout.attribute.split import arrivals, cap_bubbles, exposed_ns, pipelines, split_segments
from flatout.records.diagnosis import Part
from flatout.records.events import Quality
from flatout.records.job import Arrivals, BlameSlice, JobAttribution, Pipeline
from flatout.records.timeline import BEFORE_RECORDING, DeviceWork, RankTimeline, Segments, StepSpan
from flatout.units import percent

MIN_UNSPLIT_SHARE = 0.01  # of the steps; a smaller share changes no finding


def attribute_job(timelines: Sequence[RankTimeline]) -> JobAttribution:
    """Align, match, split and charge. Works for any number of ranks; communication with missing ranks stays unsplit."""
    timelines = sorted(timelines, key=lambda t: t.rank)
    matches, match_notes = match_kernels(timelines)
    offsets, clock_notes = clock_offsets(timelines, matches)
    timelines = [_shifted(t, offsets[t.rank]) if offsets.get(t.rank) else t for t in timelines]
    matches, impossible_notes = without_impossible(timelines, matches)
    arrival = arrivals(timelines, matches)
    shapes = pipelines(timelines, matches)
    segments = _split(timelines, arrival, shapes)
    of_devices = {t.rank: device_segments(segments[t.rank], t.devices) for t in timelines if t.devices}
    book = BlameBook(timelines, segments, matches, arrival, shapes)
    world_size = world_size_of(timelines)
    job_notes = _job_quality(timelines, segments, arrival, world_size)
    return JobAttribution(
        timelines=tuple(timelines),
        segments=segments,
        matches=tuple(matches),
        arrivals=arrival,
        pipelines=tuple(shapes),
        slices=_slices(book, timelines),
        clock_offset_ns=offsets,
        exposed_transfer_ns={t.rank: _exposed_transfer_ns(t, segments[t.rank], arrival[t.rank]) for t in timelines},
        exposed_unsplit_ns={t.rank: _exposed_unsplit_ns(t, segments[t.rank]) for t in timelines},
        world_size=world_size,
        missing_ranks=_missing_ranks(timelines, world_size),
        device_segments=of_devices,
        quality=(*match_notes, *clock_notes, *impossible_notes, *job_notes),
    )


def _split(
    timelines: Sequence[RankTimeline], arrival: Mapping[int, Arrivals], shapes: Sequence[Pipeline]
) -> dict[int, Segments]:
    pipeline_of = {rank: shape for shape in shapes for rank in shape.stages}
    segments = {}
    for timeline in timelines:
        split = split_segments(timeline, arrival[timeline.rank])
        segments[timeline.rank] = cap_bubbles(timeline, split, pipeline_of.get(timeline.rank))
    return segments


def _slices(book: BlameBook, timelines: Sequence[RankTimeline]) -> tuple[BlameSlice, ...]:
    step_at = {t.rank: _step_numbers(t.steps) for t in timelines}
    return tuple(
        BlameSlice(
            waiting_rank=rank,
            blamed_rank=blamed,
            part=part,
            start_ns=start,
            wait_ns=ns,
            step=step_at[rank](start),
            match=match,
        )
        for rank, start, (blamed, part), ns, match in book.charge()
    )


def _exposed_transfer_ns(timeline: RankTimeline, segments: Segments, arrival: Arrivals) -> Times:
    kernels = timeline.communication
    end_ns = np.where(arrival.is_known, kernels.end_ns, kernels.start_ns)
    return exposed_ns(segments, kernels.start_ns, end_ns, Part.TRANSFER)


def _exposed_unsplit_ns(timeline: RankTimeline, segments: Segments) -> Times:
    kernels = timeline.communication
    return exposed_ns(segments, kernels.start_ns, kernels.end_ns, Part.COMMUNICATION_UNSPLIT)


def _missing_ranks(timelines: Sequence[RankTimeline], world_size: int | None) -> tuple[int, ...]:
    if not world_size:
        return ()
    return tuple(sorted(set(range(world_size)) - {t.rank for t in timelines}))


def _job_quality(
    timelines: Sequence[RankTimeline],
    segments: Mapping[int, Segments],
    arrival: Mapping[int, Arrivals],
    world_size: int | None,
) -> list[Quality]:
    """Return notes on uncertainties about the job as a whole."""
    notes = []
    if world_size is None and any(t.communication.num_kernels for t in timelines):
        notes.append(
            Quality(
                problem="no trace states how many ranks the job has",
                effect="these ranks are assumed to be all ranks; if some are missing, waiting is counted as transfer",
            )
        )
    num_steps = {len(t.steps) for t in timelines}
    if len(num_steps) > 1:
        notes.append(
            Quality(
                problem=f"ranks recorded different numbers of steps: {min(num_steps)} to {max(num_steps)}",
                effect="the ranks' mean steps cover different steps",
            )
        )
    if len(timelines) > 1 and (world_size is None or len(timelines) >= world_size):
        notes += _unmatched_note(timelines, segments, arrival)
    return notes


def _unmatched_note(
    timelines: Sequence[RankTimeline], segments: Mapping[int, Segments], arrival: Mapping[int, Arrivals]
) -> list[Quality]:
    """Return a note if much communication stays unsplit although no rank is missing."""
    in_steps = np.sum([segments[t.rank].between_ns(t.first_step_ns, t.window_end_ns) for t in timelines], axis=0)
    unsplit = float(in_steps[Part.COMMUNICATION_UNSPLIT] / max(in_steps.sum(), 1))
    if unsplit < MIN_UNSPLIT_SHARE:
        return []
    unmatched = sum(int((~arrival[t.rank].is_known).sum()) for t in timelines)
    total = sum(t.communication.num_kernels for t in timelines)
    problem = f"{unmatched:,} of {total:,} communication kernels could not be matched between the ranks"
    if not unmatched:
        problem = "calls of collectives last longer than the transfers that were recorded in them"
    return [
        Quality(
            problem=problem,
            effect=f"{percent(unsplit)} of the step is communication that cannot be split into waiting and transfer",
        )
    ]


def _step_numbers(steps: tuple[StepSpan, ...]) -> Callable[[int], int | None]:
    """Return a function that maps a time (ns) to the number of its step; None before the first step."""
    starts = [step.start_ns for step in steps]

    def number_at(time_ns: int) -> int | None:
        row = bisect_right(starts, time_ns) - 1
        return steps[row].number if row >= 0 else None

    return number_at


def _shifted(timeline: RankTimeline, offset_ns: int) -> RankTimeline:
    """Return the timeline on the common clock."""
    kernels = timeline.communication
    launched_ns = kernels.launched_ns
    track = timeline.track
    if track is not None:
        track = msgspec.structs.replace(track, origin_ns=track.origin_ns + offset_ns)
    return msgspec.structs.replace(
        timeline,
        first_event_ns=timeline.first_event_ns + offset_ns,
        window_start_ns=timeline.window_start_ns + offset_ns,
        window_end_ns=timeline.window_end_ns + offset_ns,
        steps=tuple(
            StepSpan(number=s.number, start_ns=s.start_ns + offset_ns, end_ns=s.end_ns + offset_ns)
            for s in timeline.steps
        ),
        segments=_shifted_segments(timeline.segments, offset_ns),
        devices=tuple(_shifted_device(work, offset_ns) for work in timeline.devices),
        communication=msgspec.structs.replace(
            kernels,
            start_ns=kernels.start_ns + offset_ns,
            end_ns=kernels.end_ns + offset_ns,
            launched_ns=np.where(launched_ns == BEFORE_RECORDING, launched_ns, launched_ns + offset_ns),
        ),
        track=track,
    )


def _shifted_segments(segments: Segments, offset_ns: int) -> Segments:
    return Segments(start_ns=segments.start_ns + offset_ns, end_ns=segments.end_ns + offset_ns, part=segments.part)


def _shifted_device(work: DeviceWork, offset_ns: int) -> DeviceWork:
    return DeviceWork(device=work.device, segments=_shifted_segments(work.segments, offset_ns))
