"""How far the ranks' clocks are apart, and which matches cannot be true on the common clock.

Collectives that no rank can leave before all have arrived end together: the difference of their ends shows the clocks'.
Ranks that only send to each other have no such common moment, but nothing is received before it was sent.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

import numpy as np

from flatout.records.events import Quality
from flatout.records.job import Match
from flatout.records.timeline import CommunicationKernels, RankTimeline

# Collectives that no rank can leave before all have arrived.
ENDS_TOGETHER = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}

MIN_CLOCK_SHIFT_NS = 100_000  # ends of matched all-reduces on one host agree within 10-42 us

Shifts = dict[tuple[int, int], int]  # (one rank, another) -> ns to add to the other's times


def clock_offsets(timelines: Sequence[RankTimeline], matches: Sequence[Match]) -> tuple[dict[int, int], list[Quality]]:
    """Nanoseconds to add to each rank's times so that common collectives end together.

    The shift against a neighbour, summed along a spanning tree from the lowest rank; ranks that share no collective are
    joined by what they send to each other.
    """
    near: dict[int, list[tuple[int, int]]] = defaultdict(list)
    far: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for edges, shifts in ((near, _from_collectives(timelines, matches)), (far, _from_messages(timelines, matches))):
        for (one, other), shift in shifts.items():
            edges[one].append((other, shift))
            edges[other].append((one, -shift))
    offsets: dict[int, int] = {}
    for root in sorted(t.rank for t in timelines):
        if root in offsets:
            continue
        offsets[root] = 0
        by_collectives, by_messages = deque([root]), deque([root])
        while by_collectives or by_messages:
            edges, at = (near, by_collectives.popleft()) if by_collectives else (far, by_messages.popleft())
            for rank, shift in edges[at]:
                if rank not in offsets:
                    offsets[rank] = offsets[at] + shift
                    by_collectives.append(rank)
                    by_messages.append(rank)
    lowest = min(offsets, default=0)
    quality = [
        Quality(
            rank=rank,
            problem=f"the clock differs by {offset / 1e3:+.1f} us from that of rank {lowest}",
            effect="times were aligned on the common ends of collectives"
            if near[rank]
            else "times were aligned so that nothing is received before it was sent; small differences stay unknown",
        )
        for rank, offset in offsets.items()
        if offset
    ]
    return offsets, quality


def _from_collectives(timelines: Sequence[RankTimeline], matches: Sequence[Match]) -> Shifts:
    """The median difference of common ends. One within their spread is none: one host's ranks share a clock."""
    by_rank = {t.rank: t for t in timelines}
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for match in matches:
        if match.operation not in ENDS_TOGETHER or len(match.kernels) < 2:
            continue
        first = min(match.kernels)
        reference = int(by_rank[first].communication.end_ns[match.kernels[first]])
        for rank, kernel in match.kernels.items():
            if rank != first:
                ends[first, rank].append(int(by_rank[rank].communication.end_ns[kernel]) - reference)
    shifts = {}
    for pair, differences in ends.items():
        median = float(np.median(differences))
        spread = float(np.median(np.abs(np.asarray(differences) - median))) * 1.4826
        shifts[pair] = 0 if abs(median) <= max(MIN_CLOCK_SHIFT_NS, 3 * spread) else -round(median)
    return shifts


def _from_messages(timelines: Sequence[RankTimeline], matches: Sequence[Match]) -> Shifts:
    """None where every message ends after it was sent; else half way between the two directions' delays, as NTP does.

    A receive cannot end before its send began, so each direction bounds the shift from one side. With messages in one
    direction only, the smallest shift that obeys the bound.
    """
    by_rank = {t.rank: t.communication for t in timelines}
    bounds: dict[tuple[int, int], list[int]] = defaultdict(list)  # (source, target) -> receive's end - send's start
    delays: dict[tuple[int, int], list[int]] = defaultdict(list)  # receive's end - send's end
    for match in matches:
        if match.source is None or len(match.kernels) != 2:
            continue
        source = match.source
        target = next(rank for rank in match.kernels if rank != source)
        sent, received = match.kernels[source], match.kernels[target]
        end = int(by_rank[target].end_ns[received])
        bounds[source, target].append(end - int(by_rank[source].start_ns[sent]))
        delays[source, target].append(end - int(by_rank[source].end_ns[sent]))
    shifts = {}
    for one, other in {(min(pair), max(pair)) for pair in bounds}:
        there, back = bounds.get((one, other)), bounds.get((other, one))
        least = -_surely_above(there) if there else None
        most = _surely_above(back) if back else None
        if (least is None or least <= MIN_CLOCK_SHIFT_NS) and (most is None or most >= -MIN_CLOCK_SHIFT_NS):
            shifts[one, other] = 0
        elif least is not None and most is not None:
            halfway = float(np.median(delays[other, one]) - np.median(delays[one, other])) / 2
            shifts[one, other] = round(min(max(halfway, least), most) if least <= most else (least + most) / 2)
        else:
            shifts[one, other] = least if least is not None else most if most is not None else 0
    return shifts


def _surely_above(values: Sequence[int]) -> int:
    """Their lowest tenth apart, which may be of wrong matches."""
    return int(np.quantile(values, 0.1, method="lower"))


def without_impossible(
    timelines: Sequence[RankTimeline], matches: Sequence[Match]
) -> tuple[list[Match], list[Quality]]:
    """The matches of which no kernel ended before another began, on the common clock; what else was found is told.

    No rank can leave such a collective before all have arrived, and nothing is received before it was sent: where the
    times say so, the kernels are not of the same collective.
    """
    by_rank = {t.rank: t.communication for t in timelines}
    kept, num_impossible = [], 0
    for match in matches:
        if len(match.kernels) > 1 and _is_impossible(match, by_rank):
            num_impossible += 1
        else:
            kept.append(match)
    if not num_impossible:
        return kept, []
    return kept, [
        Quality(
            problem=f"{num_impossible:,} of {len(matches):,} matched collectives end on one rank before another begins",
            effect="they are not the same collective, and stay unsplit",
        )
    ]


def _is_impossible(match: Match, by_rank: Mapping[int, CommunicationKernels]) -> bool:
    starts = {rank: int(by_rank[rank].start_ns[kernel]) for rank, kernel in match.kernels.items()}
    ends = {rank: int(by_rank[rank].end_ns[kernel]) for rank, kernel in match.kernels.items()}
    if match.source in starts:
        first_end = min(end for rank, end in ends.items() if rank != match.source)
        return starts[match.source] - first_end > MIN_CLOCK_SHIFT_NS
    return match.operation in ENDS_TOGETHER and max(starts.values()) - min(ends.values()) > MIN_CLOCK_SHIFT_NS
