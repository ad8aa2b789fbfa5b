"""Estimate the offsets between the ranks' clocks, and drop matches that are impossible on the common clock.

In: timelines of all ranks and their matched communication. Out: nanoseconds to add to the times of each rank. A
collective that no rank can leave before all have arrived ends at the same moment on all ranks, so the difference
between its recorded ends is the clock offset. Ranks that only send to each other share no such moment, but no message
is received before it was sent. Ranks of one host share a clock and are never shifted against each other.
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
    shifts = _from_collectives(timelines, matches)
    together = ranks_that_share_a_clock(timelines, shifts)
    quality = [_disagreement_note(pair, shifts[pair]) for pair in sorted(together) if shifts[pair]]
    by_collectives = _edges(shifts | dict.fromkeys(together, 0))
    messages = _from_messages(timelines, matches)
    by_messages = _edges(messages | dict.fromkeys(ranks_that_share_a_clock(timelines, messages), 0))
    offsets = _offsets((t.rank for t in timelines), by_collectives, by_messages)
    lowest = min(offsets, default=0)
    for rank, offset in offsets.items():
        if offset == 0:
            continue
        effect = "times were aligned so that no message arrives before it is sent; small clock differences stay unknown"
        if by_collectives[rank]:
            effect = "times were aligned at the common ends of collectives"
        problem = f"the clock differs by {offset / 1e3:+.1f} us from that of rank {lowest}"
        quality.append(Quality(rank=rank, problem=problem, effect=effect))
    return offsets, quality


def ranks_that_share_a_clock(
    timelines: Sequence[RankTimeline], pairs: Iterable[tuple[int, int]]
) -> set[tuple[int, int]]:
    """Return the pairs of ranks that are known to be on one host."""
    metas = {t.rank: t.meta for t in timelines}
    is_one_host = _is_job_of_one_host(timelines)
    return {
        (rank, other)
        for rank, other in pairs
        if is_one_host or (metas[rank].hostname is not None and metas[rank].hostname == metas[other].hostname)
    }


def _is_job_of_one_host(timelines: Sequence[RankTimeline]) -> bool:
    """Whether the ranks use GPUs of one host, judged by GPU indices, which start at 0 again on a second host."""
    if not timelines or len({t.meta.hostname for t in timelines} - {None}) > 1:
        return False
    world_size = max(t.meta.world_size or len(timelines) for t in timelines)
    if world_size > min(t.meta.num_devices for t in timelines):
        return False
    devices = [t.meta.device for t in timelines]
    is_every_rank_here = len(timelines) == world_size and None not in devices and len(set(devices)) == world_size
    return is_every_rank_here or all(t.meta.device == t.rank for t in timelines)


def _disagreement_note(pair: tuple[int, int], shift_ns: int) -> Quality:
    return Quality(
        rank=pair[1],
        problem=f"collectives end {abs(shift_ns) / 1e3:.1f} us apart from those of rank {pair[0]}, on the same host",
        effect="the clock is the same, so nothing was shifted; waiting between the two ranks is uncertain by as much",
        max_confidence="medium",
    )


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
    """Return the median difference between common ends, or 0 if it is within their spread.

    A rank on the CPU leaves a collective whenever its process gets to run. So without a GPU, a clock shift is assumed
    only if a rank would otherwise leave a collective before another rank enters it.
    """
    kernels_of = {t.rank: t.communication for t in timelines}
    on_cpu = {t.rank for t in timelines if not t.has_gpu}
    differences: dict[tuple[int, int], list[int]] = defaultdict(list)
    bounds: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for match in matches:
        if match.operation not in ENDS_TOGETHER or len(match.kernels) < 2:
            continue
        first = min(match.kernels)
        start_ns, end_ns = _span(kernels_of[first], match.kernels[first])
        for rank, kernel in match.kernels.items():
            if rank != first:
                own_start_ns, own_end_ns = _span(kernels_of[rank], kernel)
                differences[first, rank].append(own_end_ns - end_ns)
                bounds[first, rank].append((start_ns - own_end_ns, end_ns - own_start_ns))
    return {
        pair: 0 if on_cpu & set(pair) and _needs_no_shift(bounds[pair]) else _shift_of_ends(np.asarray(of_pair))
        for pair, of_pair in differences.items()
    }


def _span(kernels: CommunicationKernels, kernel: int) -> tuple[int, int]:
    return int(kernels.start_ns[kernel]), int(kernels.end_ns[kernel])


def _needs_no_shift(bounds: Sequence[tuple[int, int]]) -> bool:
    """Whether, in 90 % of the collectives, neither rank leaves before the other rank enters."""
    least = -_surely_above([-least for least, _ in bounds])
    most = _surely_above([most for _, most in bounds])
    return least <= MIN_CLOCK_SHIFT_NS and most >= -MIN_CLOCK_SHIFT_NS


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
    # By (source, target): the time from the send's start to the receive's end, and from the send's end to it.
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
    """Return the minimum of the values, ignoring the lowest 10 %, which may come from wrong matches."""
    return int(np.quantile(values, 0.1, method="lower"))


def without_impossible(
    timelines: Sequence[RankTimeline], matches: Sequence[Match]
) -> tuple[list[Match], list[Quality]]:
    """Return the matches that are possible on the common clock, and a note about the others.

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
        problem=f"{num_impossible:,} of {len(matches):,} matched collectives end on a rank before another begins them",
        effect="they are not the same collective, and their time stays unsplit",
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
