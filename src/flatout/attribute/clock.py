"""Estimate the offsets between the ranks' clocks, and drop matches that are impossible on the common clock.

In: timelines of all ranks and their matched communication. Out: nanoseconds to add to the times of each rank. A
collective that no rank can leave before all have arrived ends at the same moment on all ranks, so the difference
between its recorded ends is the clock offset. Ranks that only send to each other share no such moment, but no message
is received before it was sent.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.records.events import Quality
from flatout.records.job import Match
from flatout.records.timeline import CommunicationKernels, RankTimeline

# Collectives that no rank can leave before all have arrived.
ENDS_TOGETHER = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}

MIN_CLOCK_SHIFT_NS = 100_000  # ends of matched all-reduces on one host agree within 10-42 us
NORMAL_SD_PER_MAD = 1.4826  # standard deviation of a normal distribution over its median absolute deviation

Shifts = dict[tuple[int, int], int]  # (one rank, another) -> ns to add to the other's times
_Edges = dict[int, list[tuple[int, int]]]  # rank -> its neighbours, each with the shift against the rank


def clock_offsets(timelines: Sequence[RankTimeline], matches: Sequence[Match]) -> tuple[dict[int, int], list[Quality]]:
    """Return the nanoseconds to add to each rank's times so that common collectives end together, and notes.

    An offset is the sum of the shifts between neighbours along a spanning tree from the lowest rank. Ranks that share
    no collective are joined by the messages that they send to each other.
    """
    by_collectives = _edges(_from_collectives(timelines, matches))
    by_messages = _edges(_from_messages(timelines, matches))
    offsets = _offsets((t.rank for t in timelines), by_collectives, by_messages)
    lowest = min(offsets, default=0)
    quality = []
    for rank, offset in offsets.items():
        if offset == 0:
            continue
        effect = "times were aligned so that nothing is received before it was sent; small differences stay unknown"
        if by_collectives[rank]:
            effect = "times were aligned on the common ends of collectives"
        problem = f"the clock differs by {offset / 1e3:+.1f} us from that of rank {lowest}"
        quality.append(Quality(rank=rank, problem=problem, effect=effect))
    return offsets, quality


def _edges(shifts: Shifts) -> _Edges:
    edges: _Edges = defaultdict(list)
    for (rank, other), shift in shifts.items():
        edges[rank].append((other, shift))
        edges[other].append((rank, -shift))
    return edges


def _offsets(ranks: Iterable[int], by_collectives: _Edges, by_messages: _Edges) -> dict[int, int]:
    """Sum the shifts from the lowest rank of each connected part, breadth first, along collectives where possible."""
    offsets: dict[int, int] = {}
    for root in sorted(ranks):
        if root in offsets:
            continue
        offsets[root] = 0
        to_visit, to_visit_by_message = deque([root]), deque([root])
        while to_visit or to_visit_by_message:
            if to_visit:
                rank = to_visit.popleft()
                neighbours = by_collectives[rank]
            else:
                rank = to_visit_by_message.popleft()
                neighbours = by_messages[rank]
            for neighbour, shift in neighbours:
                if neighbour not in offsets:
                    offsets[neighbour] = offsets[rank] + shift
                    to_visit.append(neighbour)
                    to_visit_by_message.append(neighbour)
    return offsets


def _from_collectives(timelines: Sequence[RankTimeline], matches: Sequence[Match]) -> Shifts:
    """Return the median difference of common ends; 0 if within their spread, as ranks of one host share a clock."""
    kernels_of = {t.rank: t.communication for t in timelines}
    differences: dict[tuple[int, int], list[int]] = defaultdict(list)
    for match in matches:
        if match.operation not in ENDS_TOGETHER or len(match.kernels) < 2:
            continue
        first = min(match.kernels)
        reference_ns = int(kernels_of[first].end_ns[match.kernels[first]])
        for rank, kernel in match.kernels.items():
            if rank != first:
                differences[first, rank].append(int(kernels_of[rank].end_ns[kernel]) - reference_ns)
    return {pair: _shift_of_ends(np.asarray(of_pair)) for pair, of_pair in differences.items()}


def _shift_of_ends(differences_ns: NDArray[np.int64]) -> int:
    median = float(np.median(differences_ns))
    spread = float(np.median(np.abs(differences_ns - median))) * NORMAL_SD_PER_MAD
    if abs(median) <= max(MIN_CLOCK_SHIFT_NS, 3 * spread):
        return 0
    return -round(median)


def _from_messages(timelines: Sequence[RankTimeline], matches: Sequence[Match]) -> Shifts:
    """Return the clock shift for each pair of ranks that exchange messages.

    A receive cannot end before its send began, so the messages in each direction bound the shift from one side.
    """
    kernels_of = {t.rank: t.communication for t in timelines}
    # By (source, target): time from the send's start, and from its end, to the receive's end.
    lengths: dict[tuple[int, int], list[int]] = defaultdict(list)
    delays: dict[tuple[int, int], list[int]] = defaultdict(list)
    for match in matches:
        if match.source is None or len(match.kernels) != 2:
            continue
        source = match.source
        target = next(rank for rank in match.kernels if rank != source)
        send = match.kernels[source]
        received_ns = int(kernels_of[target].end_ns[match.kernels[target]])
        lengths[source, target].append(received_ns - int(kernels_of[source].start_ns[send]))
        delays[source, target].append(received_ns - int(kernels_of[source].end_ns[send]))
    shifts = {}
    for rank, other in {(min(pair), max(pair)) for pair in lengths}:
        there, back = lengths.get((rank, other)), lengths.get((other, rank))
        if there and back:
            halfway = float(np.median(delays[other, rank]) - np.median(delays[rank, other])) / 2
            shifts[rank, other] = _shift_between(-_surely_above(there), _surely_above(back), halfway)
        elif there:
            shifts[rank, other] = _shift_above(-_surely_above(there))
        elif back:
            shifts[rank, other] = -_shift_above(-_surely_above(back))
    return shifts


def _shift_between(least: int, most: int, halfway: float) -> int:
    """Return 0 if no message ends before it was sent; otherwise halfway between the two delays, as NTP does."""
    if least <= MIN_CLOCK_SHIFT_NS and most >= -MIN_CLOCK_SHIFT_NS:
        return 0
    if least > most:
        return round((least + most) / 2)
    return round(min(max(halfway, least), most))


def _shift_above(least: int) -> int:
    """Return the smallest shift that satisfies the bound from messages in one direction."""
    return least if least > MIN_CLOCK_SHIFT_NS else 0


def _surely_above(values: Sequence[int]) -> int:
    """Return the minimum of the values without their lowest tenth, which may come from wrong matches."""
    return int(np.quantile(values, 0.1, method="lower"))


def without_impossible(
    timelines: Sequence[RankTimeline], matches: Sequence[Match]
) -> tuple[list[Match], list[Quality]]:
    """Return the matches that are possible on the common clock, and a note on the others.

    In a possible match, no kernel ended before another began: no rank can leave such a collective before all have
    arrived, and no message is received before it was sent. If the times contradict that, the kernels do not belong to
    the same collective.
    """
    kernels_of = {t.rank: t.communication for t in timelines}
    possible = [match for match in matches if len(match.kernels) < 2 or not _is_impossible(match, kernels_of)]
    num_impossible = len(matches) - len(possible)
    if not num_impossible:
        return possible, []
    note = Quality(
        problem=f"{num_impossible:,} of {len(matches):,} matched collectives end on one rank before another begins",
        effect="they are not the same collective, and stay unsplit",
    )
    return possible, [note]


def _is_impossible(match: Match, kernels_of: Mapping[int, CommunicationKernels]) -> bool:
    starts = {rank: int(kernels_of[rank].start_ns[kernel]) for rank, kernel in match.kernels.items()}
    ends = {rank: int(kernels_of[rank].end_ns[kernel]) for rank, kernel in match.kernels.items()}
    if match.source in starts:
        first_received = min(end for rank, end in ends.items() if rank != match.source)
        return starts[match.source] - first_received > MIN_CLOCK_SHIFT_NS
    if match.operation not in ENDS_TOGETHER:
        return False
    return max(starts.values()) - min(ends.values()) > MIN_CLOCK_SHIFT_NS
