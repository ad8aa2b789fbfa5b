"""Which communication kernels of the ranks are the same collective.

Collectives are matched by process group, then by sequence number where all ranks recorded one, else by the order in
which they were launched within the recording; kernels launched before it are matched from the back. External ids and
times play no part: ids differ between ranks, and times need the match to be aligned.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.records.events import Quality
from flatout.records.job import Match
from flatout.records.timeline import BEFORE_RECORDING, CommunicationCall, RankTimeline

NAMELESS = "?"  # the group of kernels of which no group was recorded
MIN_COMMON_ENDS = 8  # to tell groups by them
MAX_GROUPS_TOLD = 4
MAX_END_SPREAD_NS = 50_000  # of the ends of one collective: 10-42 us on one host

_Queues = dict[int, list[tuple[int, CommunicationCall]]]  # rank -> its calls, each with its place


def match_kernels(timelines: Sequence[RankTimeline]) -> tuple[list[Match], list[Quality]]:
    """Match the communication of all ranks; what cannot be matched is left out and told."""
    if len(timelines) < 2:
        return _single(timelines), []
    present = {t.rank for t in timelines}
    world = world_size_of(timelines)
    queues: dict[tuple[str, str], _Queues] = defaultdict(dict)
    for timeline in timelines:
        for key, calls in _queues_of(timeline).items():
            queues[key][timeline.rank] = calls
    matches: list[Match] = []
    quality: list[Quality] = []
    for (group, kind), by_rank in queues.items():
        if kind != "collective":
            matches += _match_pair(group, kind, by_rank)
            continue
        parts = _groups_by_ends(by_rank, timelines) if group == NAMELESS and len(by_rank) > 2 else [by_rank]
        for part in parts:
            found, notes = _match_group(group, part, present, len(part) if len(parts) > 1 else world, timelines)
            matches += found
            quality += notes
        if group == NAMELESS and len(by_rank) > 2:
            quality.append(_nameless_note([tuple(sorted(part)) for part in parts]))
    return matches, quality


def world_size_of(timelines: Sequence[RankTimeline]) -> int | None:
    """What the metadata say, else what the largest recorded group implies."""
    sizes = [t.meta.world_size for t in timelines if t.meta.world_size]
    if not sizes:
        calls = {(call.group_size, call.ranks) for t in timelines for call in t.communication.calls}
        sizes = [max(size or 0, max(ranks or (0,)) + 1) for size, ranks in calls if size or ranks]
    return max(sizes) if sizes else None


def _single(timelines: Sequence[RankTimeline]) -> list[Match]:
    """A lone rank: each kernel stands for itself; only a group of one is complete."""
    matches = []
    for timeline in timelines:
        for call in timeline.communication.calls:
            alone = call.group_size == 1 or (call.ranks is not None and len(call.ranks) == 1)
            matches.append(
                Match(
                    operation=call.operation,
                    group=call.group or "unknown",
                    kernels={timeline.rank: call.kernel},
                    members=call.ranks,
                    root=call.root,
                    num_bytes=call.num_bytes,
                    is_complete=alone,
                    is_pipeline=call.operation in ("send", "recv"),
                )
            )
    return matches


def _queues_of(timeline: RankTimeline) -> dict[tuple[str, str], list[tuple[int, CommunicationCall]]]:
    """The rank's calls in launch order, by what they must be matched within.

    Each call has its place: 0, 1, ... for those launched in the recording, -1, -2, ... backward for those before.
    """
    kernels = timeline.communication
    # A kernel without arguments belongs to the group that the other kernels of its stream name.
    groups_of_stream: dict[int, set[tuple[str, tuple[int, ...] | None]]] = defaultdict(set)
    for call in kernels.calls:
        if call.group is not None:
            groups_of_stream[int(kernels.stream[call.kernel])].add((call.group, call.ranks))
    ordered: dict[tuple[str, str], list[tuple[bool, int, CommunicationCall]]] = defaultdict(list)
    for call in kernels.calls:
        group, ranks = call.group, call.ranks
        candidates = groups_of_stream[int(kernels.stream[call.kernel])]
        if group is None and len(candidates) == 1:
            group, ranks = next(iter(candidates))
        if call.operation in ("send", "recv") and call.peer is not None:
            source, target = (timeline.rank, call.peer) if call.operation == "send" else (call.peer, timeline.rank)
            key = (_group_key(group, ranks), f"{source}->{target}")
        else:
            key = (_group_key(group, ranks), "collective")
        if call.operation == "send_recv":
            continue  # a send or receive whose partner was not recorded
        launched = int(kernels.launched_ns[call.kernel])
        before = launched == BEFORE_RECORDING
        ordered[key].append((not before, int(kernels.start_ns[call.kernel]) if before else launched, call))
    result = {}
    for key, calls in ordered.items():
        calls.sort(key=lambda entry: entry[:2])
        num_before = sum(not in_recording for in_recording, _, _ in calls)
        result[key] = [(place - num_before, call) for place, (_, _, call) in enumerate(calls)]
    return result


@functools.cache
def _group_key(group: str | None, ranks: tuple[int, ...] | None) -> str:
    """Group names repeat between disjoint groups of the same kind, so the ranks are part of the key."""
    if group is None:
        return NAMELESS
    return f"{group}:{','.join(map(str, ranks))}" if ranks else group


def _match_group(
    group: str,
    by_rank: _Queues,
    present: set[int],
    world: int | None,
    timelines: Sequence[RankTimeline],
) -> tuple[list[Match], list[Quality]]:
    members = _members(by_rank, world, group)
    quality: list[Quality] = []
    counts = {rank: sum(place >= 0 for place, _ in calls) for rank, calls in by_rank.items()}
    if len(set(counts.values())) > 1:
        by_rank = _aligned(by_rank, counts, {t.rank: t.communication.end_ns for t in timelines})
        quality.append(
            Quality(
                problem=f"ranks launched different numbers of collectives in group {group}: {_range(counts)}",
                effect="those beyond the common ones stay unsplit",
            )
        )
    is_complete = members is not None and set(members) <= present
    found: list[Match] = []
    num_disagree = 0
    for calls in _places(by_rank).values():
        operations = {call.operation for call in calls.values()} - {"unknown"}
        sizes = {call.num_elements for call in calls.values()} - {None}
        if len(operations) > 1 or (len(sizes) > 1 and operations & {"all_reduce", "all_gather", "reduce_scatter"}):
            num_disagree += 1
            continue
        call = next(iter(calls.values()))
        found.append(
            Match(
                operation=next(iter(operations), "unknown"),
                group=group,
                kernels={rank: c.kernel for rank, c in calls.items()},
                members=members,
                root=call.root,
                num_bytes=call.num_bytes,
                is_complete=is_complete and members is not None and set(members) <= set(calls),
                is_pipeline=False,
            )
        )
    if num_disagree:
        quality.append(
            Quality(
                problem=f"{num_disagree} collectives of group {group} differ in kind or size between ranks",
                effect="they stay unsplit",
            )
        )
    return found, quality


def _aligned(by_rank: _Queues, counts: dict[int, int], ends: dict[int, NDArray[np.int64]]) -> _Queues:
    """Recordings of different length side by side: from the front or from the back, where the ends agree better."""
    longest = max(counts, key=lambda rank: counts[rank])
    reference = {place: int(ends[longest][call.kernel]) for place, call in by_rank[longest]}
    result = {}
    for rank, calls in by_rank.items():
        shift = counts[longest] - counts[rank]

        def disagreement(by: int, rank: int = rank, calls: list[tuple[int, CommunicationCall]] = calls) -> float:
            both = [(place + by, int(ends[rank][call.kernel])) for place, call in calls if place + by in reference]
            if not both:
                return np.inf
            # How far apart the ends are is the clocks' affair; that they are equally far apart shows the right match.
            differences = np.array([reference[place] - end for place, end in both])
            return float(np.median(np.abs(differences - np.median(differences))))

        by = min((0, shift), key=disagreement)
        result[rank] = [(place + by, call) for place, call in calls]
    return result


def _members(by_rank: _Queues, world: int | None, group: str) -> tuple[int, ...] | None:
    """The group's ranks: recorded, else all of the world where the group has its size or nothing else is known."""
    for calls in by_rank.values():
        for _, call in calls:
            if call.ranks and (call.group_size is None or call.group_size == len(call.ranks)):
                return call.ranks
    sizes = {call.group_size for calls in by_rank.values() for _, call in calls} - {None}
    size = max((s for s in sizes if s is not None), default=world)
    if size is not None and size == len(by_rank):
        return tuple(sorted(by_rank))
    if size is not None and world is not None and size == world:
        return tuple(range(world))
    return tuple(sorted(by_rank)) if size is None and group == NAMELESS else None


def _places(
    by_rank: _Queues,
) -> dict[object, dict[int, CommunicationCall]]:
    """Calls side by side: by sequence number where every call launched in the recordings has its own, else by place."""
    launched = {rank: [call.sequence for place, call in calls if place >= 0] for rank, calls in by_rank.items()}
    by_sequence = all(None not in s and len(set(s)) == len(s) for s in launched.values())
    placed: dict[object, dict[int, CommunicationCall]] = defaultdict(dict)
    for rank, calls in by_rank.items():
        for place, call in calls:
            # Those launched before the recording have no number, and their place only where all begin alike.
            key = ("sequence", call.sequence) if by_sequence and place >= 0 else ("place", place)
            placed[key][rank] = call
    return placed


def _match_pair(group: str, pair: str, by_rank: _Queues) -> Iterator[Match]:
    source, target = (int(rank) for rank in pair.split("->"))
    for calls in _places(by_rank).values():
        yield Match(
            operation="send_recv",
            group=group,
            kernels={rank: call.kernel for rank, call in calls.items()},
            members=(source, target),
            root=None,
            num_bytes=next(iter(calls.values())).num_bytes,
            is_complete={source, target} <= set(calls),
            is_pipeline=True,
            source=source,
        )


def _groups_by_ends(by_rank: _Queues, timelines: Sequence[RankTimeline]) -> list[_Queues]:
    """Ranks whose nameless collectives end together, apart from those that do not: who ends together is one group.

    One group of all where the ends do not show clear groups of two ranks or more.
    """
    ends = {t.rank: t.communication.end_ns for t in timelines}
    places = set.intersection(*({place for place, _ in calls} for calls in by_rank.values()))
    if len(places) < MIN_COMMON_ENDS:
        return [by_rank]
    at = {
        rank: np.array([ends[rank][call.kernel] for place, call in calls if place in places])
        for rank, calls in sorted(by_rank.items())
    }
    groups: list[list[int]] = []
    for rank in at:
        for group in groups:
            apart = at[rank] - at[group[0]]  # all by as much where only the clocks differ
            if np.median(np.abs(apart - np.median(apart))) <= MAX_END_SPREAD_NS:
                group.append(rank)
                break
        else:
            groups.append([rank])
    if min(map(len, groups)) < 2:
        return [by_rank]
    return [{rank: by_rank[rank] for rank in group} for group in groups]


def _nameless_note(groups: Sequence[tuple[int, ...]]) -> Quality:
    if len(groups) == 1:
        taken = "all were taken for one group; where there are several, waiting across them is not real"
    else:
        shown = "; ".join(", ".join(map(str, group)) for group in groups[:MAX_GROUPS_TOLD])
        more = f"; and {len(groups) - MAX_GROUPS_TOLD} more" if len(groups) > MAX_GROUPS_TOLD else ""
        taken = f"those whose collectives end together were taken for a group: {shown}{more}"
    return Quality(problem="the traces do not say which ranks take part in a collective", effect=taken)


def _range(counts: dict[int, int]) -> str:
    return f"{min(counts.values())} to {max(counts.values())}"
