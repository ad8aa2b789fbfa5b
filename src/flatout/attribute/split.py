"""Split exposed communication into transfer, wait, bubble and unsplit, by the arrival of the other ranks.

In: timelines and matches on the common clock. Out: when each kernel stopped waiting, and segments with the split parts.
A kernel waits until the last rank that it needs has arrived, and then transfers. In a collective that combines all
data, every rank needs all others. In a broadcast or scatter, the others need the root, and the root needs nobody. In a
reduce or gather, the root needs all others, and these need nobody. In a send and receive, each needs its partner. If
the root was not recorded, the needed rank is unknown. On the CPU, where gloo never records the root, an operation needs
the last rank that arrived before the operation's end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.attribute.intervals import Flags, Times, clip, covers, distinct, union
from flatout.attribute.segments import merged_segments
from flatout.records.diagnosis import Part
from flatout.records.job import Arrivals, Match, Pipeline
from flatout.records.timeline import CommunicationKernels, RankTimeline, Segments

FROM_ROOT = {"broadcast", "scatter"}
TO_ROOT = {"reduce", "gather"}


def arrivals(timelines: Sequence[RankTimeline], matches: Sequence[Match]) -> dict[int, Arrivals]:
    """Return when each kernel of each rank stopped waiting. Times must be aligned already."""
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
    on_cpu = {t.rank for t in timelines if not t.has_gpu}
    for index, match in enumerate(matches):
        _arrive(index, match, kernels, result, seen, on_cpu)
    for rank, arrival in result.items():
        arrival.is_known[~seen[rank]] = False
    return result


def _arrive(
    index: int,
    match: Match,
    kernels: dict[int, CommunicationKernels],
    result: dict[int, Arrivals],
    seen: dict[int, NDArray[np.bool_]],
    on_cpu: set[int],
) -> None:
    starts = {rank: int(kernels[rank].start_ns[kernel]) for rank, kernel in match.kernels.items()}
    last = max(starts, key=lambda rank: starts[rank])
    for rank, kernel in match.kernels.items():
        arrival = result[rank]
        seen[rank][kernel] = True
        arrival.is_pipeline[kernel] |= match.is_pipeline
        end_ns = int(kernels[rank].end_ns[kernel])
        needed = _needed_rank(match, rank, last)
        if needed is None and match.is_complete and rank in on_cpu:
            needed = _last_before(starts, end_ns)
        if needed is None or needed not in starts:
            arrival.is_known[kernel] = False
            continue
        arrived = min(starts[needed], end_ns)
        if arrived >= arrival.until_ns[kernel]:
            arrival.until_ns[kernel] = arrived
            arrival.match[kernel] = index
            arrival.late_rank[kernel] = needed if needed != rank else -1


def _last_before(starts: dict[int, int], end_ns: int) -> int:
    """Return the rank that arrived last before an operation's end: it cannot have needed a rank that came later."""
    arrived = [rank for rank, start_ns in starts.items() if start_ns <= end_ns]
    return max(arrived, key=lambda rank: starts[rank])


def _needed_rank(match: Match, rank: int, last: int) -> int | None:
    """Return the rank that this rank must wait for: itself if it waits for nobody, None if unknown.

    `last` is the recorded rank that arrived last.
    """
    if match.root is None and match.operation in FROM_ROOT | TO_ROOT:
        return None
    if match.operation in FROM_ROOT:
        return _root(match)
    if match.operation in TO_ROOT and rank != _root(match):
        return rank
    return last if match.is_complete else None


def _root(match: Match) -> int | None:
    """Return the root as a rank of the job; a root that is not a member of the group is taken as a rank within it."""
    root = match.root
    if root is None or match.members is None or root in match.members:
        return root
    return match.members[root] if 0 <= root < len(match.members) else root


def split_segments(timeline: RankTimeline, arrival: Arrivals) -> Segments:
    """Split a rank's exposed communication; all pipeline waits become `BUBBLE` here (see `cap_bubbles`)."""
    segments = timeline.segments
    kernels = timeline.communication
    start, until, end = kernels.start_ns, arrival.until_ns, kernels.end_ns

    def merged(begin: Times, finish: Times, rows: Flags) -> tuple[Times, Times]:
        return union(*clip(begin[rows], finish[rows], timeline.window_start_ns, timeline.window_end_ns))

    is_known, is_pipeline = arrival.is_known, arrival.is_pipeline
    # Later claims overwrite earlier ones: transfer, then unknown, then waiting for a collective, then for the pipeline.
    claims = [
        (merged(start, until, is_known & is_pipeline), Part.BUBBLE),
        (merged(start, until, is_known & ~is_pipeline), Part.WAIT),
        (merged(start, end, ~is_known), Part.COMMUNICATION_UNSPLIT),
        (merged(until, end, is_known), Part.TRANSFER),
    ]
    edges = [times for intervals, _ in claims for times in intervals]
    points = distinct(np.concatenate([segments.start_ns, segments.end_ns, *edges]))
    at = points[:-1]
    if len(at) == 0:
        return segments
    part = segments.part[np.searchsorted(segments.start_ns, at, side="right") - 1]
    exposed = part == Part.COMMUNICATION_UNSPLIT
    for intervals, claimed in claims:
        part[exposed & covers(*intervals, at)] = claimed
    return merged_segments(points, part)


def exposed_ns(segments: Segments, start: Times, end: Times, part: Part) -> Times:
    """Return the nanoseconds of `part` in each interval, in order of start.

    An overlap counts for the earlier interval.
    """
    if len(start) == 0:
        return np.zeros(0, dtype=np.int64)
    end = np.maximum(end, start)
    begin = np.maximum(start, np.append(start[0], np.maximum.accumulate(end)[:-1]))
    at = segments.cumulative_part_ns(part, np.concatenate([begin, np.maximum(end, begin)]))
    return at[len(start) :] - at[: len(start)]


def pipelines(timelines: Sequence[RankTimeline], matches: Sequence[Match]) -> list[Pipeline]:
    """Return the chains of ranks that send to each other, with the number of microbatches per step."""
    num_steps = max((len(t.steps) for t in timelines), default=0) or 1
    num_sent: dict[tuple[int, int], int] = defaultdict(int)
    for match in matches:
        if match.is_pipeline and match.source is not None and match.members:
            source, target = match.members
            num_sent[source, target] += 1
    neighbours: dict[int, set[int]] = defaultdict(set)
    for source, target in num_sent:
        neighbours[source].add(target)
        neighbours[target].add(source)
    chains = []
    remaining = set(neighbours)
    while remaining:
        stages = _connected(min(remaining), neighbours)
        remaining -= stages
        most_sent = max(count for (source, _), count in num_sent.items() if source in stages)
        num_microbatches = max(1, round(most_sent / num_steps))
        chains.append(Pipeline(stages=tuple(sorted(stages)), num_microbatches=num_microbatches))
    return chains


def _connected(start: int, neighbours: dict[int, set[int]]) -> set[int]:
    reached, to_visit = {start}, [start]
    while to_visit:
        for rank in neighbours[to_visit.pop()] - reached:
            reached.add(rank)
            to_visit.append(rank)
    return reached


def cap_bubbles(timeline: RankTimeline, segments: Segments, pipeline: Pipeline | None) -> Segments:
    """Reclassify pipeline waiting that exceeds the idle share of an ideal schedule of that shape from bubble to wait.

    In each step, the first nanoseconds of pipeline waiting stay bubble, up to that share of the step.
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
    excesses = []  # from the time at which a span's bubbles reach the allowed share, to the span's end
    for start, end in spans:
        allowed_ns = round((end - start) * pipeline.ideal_bubble_share)
        excesses.append((_spent_at(segments, start, end, allowed_ns), end))
    edges = [time for excess in excesses for time in excess]
    points = distinct(np.concatenate([segments.start_ns, segments.end_ns, edges]))
    points = points[(points >= segments.start_ns[0]) & (points <= segments.end_ns[-1])].astype(np.int64)
    at = points[:-1]
    part = segments.part[np.searchsorted(segments.start_ns, at, side="right") - 1]
    for start, end in excesses:
        part[(part == Part.BUBBLE) & (at >= start) & (at < end)] = Part.WAIT
    return merged_segments(points, part)


def _spent_at(segments: Segments, start: int, end: int, allowed: int) -> int:
    """Return the time at which the bubbles in [start, end) sum to `allowed`, or `end` if they do not."""
    inside = np.minimum(segments.end_ns, end) - np.maximum(segments.start_ns, start)
    lengths = np.where(segments.part == Part.BUBBLE, inside.clip(min=0), 0)
    total = np.cumsum(lengths)
    at = int(np.searchsorted(total, allowed, side="right"))
    if at >= len(total):
        return end
    before = int(total[at] - lengths[at])
    return int(max(segments.start_ns[at], start)) + allowed - before
