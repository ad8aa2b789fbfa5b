"""Exposed communication -> transfer, wait, bubble or unsplit, once it is known when the others arrived.

A kernel waits until the last rank that it needs has arrived, and transfers from then on. Who is needed: everyone, in
a collective that combines all; the root, for the others of a broadcast or scatter (the root needs nobody); everyone,
for the root of a reduce or gather (the others need nobody); the partner, in a send and receive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.attribute.intervals import Times, clip, covers, distinct, union
from flatout.attribute.segments import merged_segments
from flatout.records.diagnosis import Part
from flatout.records.job import Arrivals, Match, Pipeline
from flatout.records.timeline import CommunicationKernels, RankTimeline, Segments

FROM_ROOT = {"broadcast", "scatter"}
TO_ROOT = {"reduce", "gather"}


def arrivals(timelines: Sequence[RankTimeline], matches: Sequence[Match]) -> dict[int, Arrivals]:
    """When each kernel of each rank stopped waiting. Times must be aligned already."""
    kernels = {t.rank: t.communication for t in timelines}
    result = {
        rank: Arrivals(
            until_ns=k.start_ns.copy(),
            is_known=np.ones(k.num_kernels, dtype=np.bool_),
            late_rank=np.full(k.num_kernels, -1, dtype=np.int64),
            is_pipeline=np.zeros(k.num_kernels, dtype=np.bool_),
            match=np.full(k.num_kernels, -1, dtype=np.int64),
        )
        for rank, k in kernels.items()
    }
    seen = {rank: np.zeros(k.num_kernels, dtype=np.bool_) for rank, k in kernels.items()}
    for index, match in enumerate(matches):
        _arrive(index, match, kernels, result, seen)
    for rank, arrival in result.items():
        arrival.is_known[~seen[rank]] = False
    return result


def _arrive(
    index: int,
    match: Match,
    kernels: dict[int, CommunicationKernels],
    result: dict[int, Arrivals],
    seen: dict[int, NDArray[np.bool_]],
) -> None:
    starts = {rank: int(kernels[rank].start_ns[kernel]) for rank, kernel in match.kernels.items()}
    last = max(starts, key=lambda rank: starts[rank])
    for rank, kernel in match.kernels.items():
        arrival = result[rank]
        seen[rank][kernel] = True
        arrival.is_pipeline[kernel] |= match.is_pipeline
        needed = last
        known = match.is_complete
        if match.operation in FROM_ROOT | TO_ROOT and match.root is None:
            known = False
        elif match.operation in FROM_ROOT:
            root = _member(match, match.root)
            needed, known = (rank, True) if rank == root else (root, root in starts)
        elif match.operation in TO_ROOT and rank != _member(match, match.root):
            needed, known = rank, True
        if not known:
            arrival.is_known[kernel] = False
            continue
        arrived = min(starts[needed], int(kernels[rank].end_ns[kernel]))
        if arrived >= arrival.until_ns[kernel]:
            arrival.until_ns[kernel] = arrived
            arrival.match[kernel] = index
            arrival.late_rank[kernel] = needed if needed != rank else -1


def _member(match: Match, root: int | None) -> int:
    """Roots are recorded as ranks of the job or of the group; a rank of the job is believed first."""
    if root is None:
        return -1
    if match.members is None or root in match.members:
        return root
    return match.members[root] if 0 <= root < len(match.members) else root


def split_segments(timeline: RankTimeline, arrival: Arrivals) -> Segments:
    """The rank's segments with exposed communication split; pipeline waits are `BUBBLE` until `bubbles` caps them."""
    segments = timeline.segments
    low, high = timeline.window_start_ns, timeline.window_end_ns
    kernels = timeline.communication
    start, until, end = kernels.start_ns, arrival.until_ns, kernels.end_ns
    known = arrival.is_known
    # Last written wins: transfer over unknown over waiting for a collective over waiting in the pipeline.
    classes = [(union(*clip(start[p], until[p], low, high)), Part.BUBBLE) for p in [known & arrival.is_pipeline]]
    waits = known & ~arrival.is_pipeline
    classes.append((union(*clip(start[waits], until[waits], low, high)), Part.WAIT))
    classes.append((union(*clip(start[~known], end[~known], low, high)), Part.COMMUNICATION_UNSPLIT))
    classes.append((union(*clip(until[known], end[known], low, high)), Part.TRANSFER))
    points = distinct(
        np.concatenate([segments.start_ns, segments.end_ns, *(t for intervals, _ in classes for t in intervals)])
    )
    at = points[:-1]
    if len(at) == 0:
        return segments
    part = segments.part[np.searchsorted(segments.start_ns, at, side="right") - 1]
    exposed = part == Part.COMMUNICATION_UNSPLIT
    for intervals, claimed in classes:
        part[exposed & covers(*intervals, at)] = claimed
    return merged_segments(points, part)


def exposed_ns(segments: Segments, start: Times, end: Times, part: Part) -> Times:
    """Nanoseconds of `part` in each interval, by start; where intervals overlap, the first that began has them."""
    if len(start) == 0:
        return np.zeros(0, dtype=np.int64)
    end = np.maximum(end, start)
    begin = np.maximum(start, np.append(start[0], np.maximum.accumulate(end)[:-1]))
    at = segments.cumulative_part_ns(part, np.concatenate([begin, np.maximum(end, begin)]))
    return at[len(start) :] - at[: len(start)]


def pipelines(timelines: Sequence[RankTimeline], matches: Sequence[Match]) -> list[Pipeline]:
    """Chains of ranks that send to each other, with the microbatches that pass each step."""
    num_steps = max((len(t.steps) for t in timelines), default=0) or 1
    sent: dict[tuple[int, int], int] = defaultdict(int)
    for match in matches:
        if match.is_pipeline and match.source is not None and match.members:
            source, target = match.members
            sent[source, target] += 1
    neighbours: dict[int, set[int]] = defaultdict(set)
    for source, target in sent:
        neighbours[source].add(target)
        neighbours[target].add(source)
    result = []
    left = set(neighbours)
    while left:
        stages = _component(min(left), neighbours)
        left -= stages
        passes = [count for (source, _), count in sent.items() if source in stages]
        result.append(Pipeline(stages=tuple(sorted(stages)), num_microbatches=max(1, round(max(passes) / num_steps))))
    return result


def _component(start: int, neighbours: dict[int, set[int]]) -> set[int]:
    found, waiting = {start}, [start]
    while waiting:
        for rank in neighbours[waiting.pop()] - found:
            found.add(rank)
            waiting.append(rank)
    return found


def cap_bubbles(timeline: RankTimeline, segments: Segments, pipeline: Pipeline | None) -> Segments:
    """Pipeline waiting beyond the idle share of an ideal schedule of that shape is wait, not bubble.

    Each step keeps its first nanoseconds of pipeline waiting as bubble, up to that share of the step.
    """
    is_bubble = segments.part == Part.BUBBLE
    if not is_bubble.any():
        return segments
    if pipeline is None:
        return Segments(
            start_ns=segments.start_ns,
            end_ns=segments.end_ns,
            part=np.where(is_bubble, Part.WAIT, segments.part).astype(np.uint8),
        )
    spans = [(s.start_ns, s.end_ns) for s in timeline.steps] or [(timeline.window_start_ns, timeline.window_end_ns)]
    cuts = []
    for start, end in spans:
        allowed = round((end - start) * pipeline.ideal_bubble_share)
        cuts.append((_spent_at(segments, start, end, allowed), end))
    points = distinct(np.concatenate([segments.start_ns, segments.end_ns, [t for cut in cuts for t in cut]]))
    points = points[(points >= segments.start_ns[0]) & (points <= segments.end_ns[-1])].astype(np.int64)
    part = segments.part[np.searchsorted(segments.start_ns, points[:-1], side="right") - 1]
    for start, end in cuts:
        beyond = (part == Part.BUBBLE) & (points[:-1] >= start) & (points[:-1] < end)
        part[beyond] = Part.WAIT
    return merged_segments(points, part)


def _spent_at(segments: Segments, start: int, end: int, allowed: int) -> int:
    """The time at which the bubbles of [start, end) have summed up to `allowed`, or `end`."""
    inside = np.minimum(segments.end_ns, end) - np.maximum(segments.start_ns, start)
    lengths = np.where(segments.part == Part.BUBBLE, inside.clip(min=0), 0)
    total = np.cumsum(lengths)
    at = int(np.searchsorted(total, allowed, side="right"))
    if at >= len(total):
        return end
    before = int(total[at] - lengths[at])
    return int(max(segments.start_ns[at], start)) + allowed - before
