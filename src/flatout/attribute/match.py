"""Match the communication kernels of all ranks: find which of them belong to the same collective.

In: timelines of all ranks. Out: a `Match` for each collective, and notes on unmatched communication. Collectives are
matched by process group, then by sequence number if all ranks recorded one, else by their launch order within the
recording; kernels launched before the recording are matched from the end. External ids and times are not used: ids
differ between ranks, and times can only be aligned after matching.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flatout.records.events import Quality
from flatout.records.job import Match
from flatout.records.timeline import BEFORE_RECORDING, CommunicationCall, RankTimeline

NAMELESS = "?"  # the group of kernels without a recorded group
MIN_COMMON_ENDS = 8  # number of common ends needed to recognise groups
MAX_GROUPS_SHOWN = 4
MAX_END_SPREAD_NS = 50_000  # spread of the ends of one collective: 10-42 us on one host

SIZED = {"all_reduce", "all_gather", "reduce_scatter"}  # all ranks pass the same number of elements


class _Queued(NamedTuple):
    """A call of one rank with its position: 0, 1, ... if launched in the recording, -1, -2, ... if before it."""

    position: int
    call: CommunicationCall


class _QueueKey(NamedTuple):
    group: str
    pair: tuple[int, int] | None  # the sending and the receiving rank; None: collectives of the group


_Queues = dict[int, list[_Queued]]  # by rank
_CallOfRank = dict[int, CommunicationCall]  # the calls of one collective, by rank


def match_kernels(timelines: Sequence[RankTimeline]) -> tuple[list[Match], list[Quality]]:
    """Match the communication of all ranks; communication that cannot be matched is excluded and noted."""
    if len(timelines) < 2:
        return _single(timelines), []
    present = {t.rank for t in timelines}
    world = world_size_of(timelines)
    queues: dict[_QueueKey, _Queues] = defaultdict(dict)
    for timeline in timelines:
        for key, queue in _queues_of(timeline).items():
            queues[key][timeline.rank] = queue
    matches: list[Match] = []
    quality: list[Quality] = []
    for (group, pair), by_rank in queues.items():
        if pair is not None:
            matches += _match_pair(group, pair, by_rank)
            continue
        is_guessed = group == NAMELESS and len(by_rank) > 2
        parts = _groups_by_ends(by_rank, timelines) if is_guessed else [by_rank]
        for part in parts:
            size = len(part) if len(parts) > 1 else world
            part_matches, notes = _match_group(group, part, present, size, timelines)
            matches += part_matches
            quality += notes
        if is_guessed:
            quality.append(_nameless_note([tuple(sorted(part)) for part in parts]))
    return matches, quality


def world_size_of(timelines: Sequence[RankTimeline]) -> int | None:
    """Return the world size from the metadata, or else the size that the largest recorded group implies.

    A process that drives several GPUs and records neither is a complete job: its collectives are among its GPUs.
    """
    recorded = [t.meta.world_size for t in timelines if t.meta.world_size]
    if recorded:
        return max(recorded)
    groups = {(call.group_size, call.ranks) for t in timelines for call in t.communication.calls}
    implied = [max(size or 0, max(ranks or (0,)) + 1) for size, ranks in groups if size or ranks]
    if not implied and len(timelines) == 1 and timelines[0].devices:
        return 1
    return max(implied, default=None)


def _single(timelines: Sequence[RankTimeline]) -> list[Match]:
    """Return one match per kernel of a single rank; only collectives in groups of one rank are complete."""
    matches = []
    for timeline in timelines:
        for call in timeline.communication.calls:
            is_alone = call.group_size == 1 or (call.ranks is not None and len(call.ranks) == 1)
            matches.append(
                Match(
                    operation=call.operation,
                    group=call.group or "unknown",
                    kernels={timeline.rank: call.kernel},
                    members=call.ranks,
                    root=call.root,
                    num_bytes=call.num_bytes,
                    is_complete=is_alone,
                    is_pipeline=call.operation in ("send", "recv"),
                )
            )
    return matches


def _queues_of(timeline: RankTimeline) -> dict[_QueueKey, list[_Queued]]:
    """Return the rank's calls in launch order, by the key within which they must be matched."""
    kernels = timeline.communication
    groups_of_stream: dict[int, set[tuple[str, tuple[int, ...] | None]]] = defaultdict(set)
    for call in kernels.calls:
        if call.group is not None:
            groups_of_stream[int(kernels.stream[call.kernel])].add((call.group, call.ranks))
    # By key: whether the call was launched in the recording, its launch time, and the call.
    launches: dict[_QueueKey, list[tuple[bool, int, CommunicationCall]]] = defaultdict(list)
    for call in kernels.calls:
        if call.operation == "send_recv":
            continue  # a send or receive whose peer was not recorded
        group, ranks = call.group, call.ranks
        stream_groups = groups_of_stream[int(kernels.stream[call.kernel])]
        if group is None and len(stream_groups) == 1:
            # A kernel without arguments belongs to the group of the other kernels on its stream, if they all name the
            # same group.
            group, ranks = next(iter(stream_groups))
        key = _QueueKey(_group_key(group, ranks), _pair_of(call, timeline.rank))
        launched_ns = int(kernels.launched_ns[call.kernel])
        if launched_ns == BEFORE_RECORDING:
            launches[key].append((False, int(kernels.start_ns[call.kernel]), call))
        else:
            launches[key].append((True, launched_ns, call))
    queues = {}
    for key, of_key in launches.items():
        of_key.sort(key=lambda launch: launch[:2])
        num_before = sum(not is_in_recording for is_in_recording, _, _ in of_key)
        queues[key] = [_Queued(index - num_before, call) for index, (_, _, call) in enumerate(of_key)]
    return queues


def _pair_of(call: CommunicationCall, rank: int) -> tuple[int, int] | None:
    if call.peer is None:
        return None
    if call.operation == "send":
        return rank, call.peer
    if call.operation == "recv":
        return call.peer, rank
    return None


@functools.cache
def _group_key(group: str | None, ranks: tuple[int, ...] | None) -> str:
    """Return the group's name with its ranks, because disjoint groups of the same kind share a name."""
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
    counts = {rank: sum(position >= 0 for position, _ in queue) for rank, queue in by_rank.items()}
    if len(set(counts.values())) > 1:
        by_rank = _aligned(by_rank, counts, {t.rank: t.communication.end_ns for t in timelines})
        quality.append(
            Quality(
                problem=f"ranks launched different numbers of collectives in group {group}: {_range(counts)}",
                effect="the time of the extra collectives stays unsplit",
            )
        )
    are_all_present = members is not None and set(members) <= present
    matches: list[Match] = []
    num_disagree = 0
    for calls in _side_by_side(by_rank):
        operations = {call.operation for call in calls.values()} - {"unknown"}
        if not _agree(calls, operations):
            num_disagree += 1
            continue
        first = next(iter(calls.values()))
        matches.append(
            Match(
                operation=next(iter(operations), "unknown"),
                group=group,
                kernels={rank: call.kernel for rank, call in calls.items()},
                members=members,
                root=first.root,
                num_bytes=first.num_bytes,
                is_complete=are_all_present and members is not None and set(members) <= set(calls),
                is_pipeline=False,
            )
        )
    if num_disagree:
        quality.append(
            Quality(
                problem=f"{num_disagree} collectives of group {group} differ in kind or size between ranks",
                effect="their time stays unsplit",
            )
        )
    return matches, quality


def _agree(calls: _CallOfRank, operations: set[str]) -> bool:
    """Whether the calls can belong to one collective, by their kind and size."""
    if len(operations) > 1:
        return False
    sizes = {call.num_elements for call in calls.values()} - {None}
    return len(sizes) <= 1 or operations.isdisjoint(SIZED)


def _aligned(by_rank: _Queues, counts: dict[int, int], ends: dict[int, NDArray[np.int64]]) -> _Queues:
    """Align recordings of different length at the front or at the back, whichever makes the ends agree better."""
    longest = max(counts, key=lambda rank: counts[rank])
    reference_ends = {position: int(ends[longest][call.kernel]) for position, call in by_rank[longest]}
    aligned = {}
    for rank, queue in by_rank.items():
        own_ends = {position: int(ends[rank][call.kernel]) for position, call in queue}
        from_the_back = counts[longest] - counts[rank]
        shift = min((0, from_the_back), key=functools.partial(_disagreement, own_ends, reference_ends))
        aligned[rank] = [_Queued(position + shift, call) for position, call in queue]
    return aligned


def _disagreement(own_ends: Mapping[int, int], reference_ends: Mapping[int, int], shift: int) -> float:
    """Return the spread of the differences between common ends if this rank's positions are shifted by `shift`.

    The difference itself depends on the clocks; if it is constant, the match is right.
    """
    common = [position for position in own_ends if position + shift in reference_ends]
    if not common:
        return np.inf
    distances = np.array([reference_ends[position + shift] - own_ends[position] for position in common])
    return float(np.median(np.abs(distances - np.median(distances))))


def _members(by_rank: _Queues, world: int | None, group: str) -> tuple[int, ...] | None:
    """Return the group's ranks as recorded.

    Otherwise all ranks, if the group has the world's size or no size is known.
    """
    for call in _calls(by_rank):
        if call.ranks and call.group_size in (None, len(call.ranks)):
            return call.ranks
    size = max((call.group_size for call in _calls(by_rank) if call.group_size is not None), default=world)
    if size is None:
        return tuple(sorted(by_rank)) if group == NAMELESS else None
    if size == len(by_rank):
        return tuple(sorted(by_rank))
    return tuple(range(size)) if size == world else None


def _calls(by_rank: _Queues) -> Iterator[CommunicationCall]:
    for queue in by_rank.values():
        for _, call in queue:
            yield call


def _side_by_side(by_rank: _Queues) -> list[_CallOfRank]:
    """Group calls by sequence number, if the ranks number all calls that the recordings launch; else by position."""
    collectives: dict[object, _CallOfRank] = defaultdict(dict)
    has_numbers = all(_is_numbered(queue) for queue in by_rank.values()) and _share_numbers(by_rank)
    for rank, queue in by_rank.items():
        for position, call in queue:
            # Calls launched before the recording have no number, and their position is right only if all recordings
            # begin alike.
            key = ("sequence", call.sequence) if has_numbers and position >= 0 else ("position", position)
            collectives[key][rank] = call
    return list(collectives.values())


def _share_numbers(by_rank: _Queues) -> bool:
    """Whether some collective has the same number on all ranks: numbers that a rank chose itself say nothing."""
    numbers = [{call.sequence for position, call in queue if position >= 0} for queue in by_rank.values()]
    launched = [each for each in numbers if each]
    return not launched or bool(set.intersection(*launched))


def _is_numbered(queue: Sequence[_Queued]) -> bool:
    numbers = [call.sequence for position, call in queue if position >= 0]
    return None not in numbers and len(set(numbers)) == len(numbers)


def _match_pair(group: str, pair: tuple[int, int], by_rank: _Queues) -> Iterator[Match]:
    for calls in _side_by_side(by_rank):
        yield Match(
            operation="send_recv",
            group=group,
            kernels={rank: call.kernel for rank, call in calls.items()},
            members=pair,
            root=None,
            num_bytes=next(iter(calls.values())).num_bytes,
            is_complete=set(pair) <= set(calls),
            is_pipeline=True,
            source=pair[0],
        )


def _groups_by_ends(by_rank: _Queues, timelines: Sequence[RankTimeline]) -> list[_Queues]:
    """Group ranks whose nameless collectives end together; return one group of all if the ends show no groups."""
    ends = {t.rank: t.communication.end_ns for t in timelines}
    common = set.intersection(*({position for position, _ in queue} for queue in by_rank.values()))
    if len(common) < MIN_COMMON_ENDS:
        return [by_rank]
    common_ends = {
        rank: np.array([ends[rank][call.kernel] for position, call in queue if position in common])
        for rank, queue in sorted(by_rank.items())
    }
    groups: list[list[int]] = []
    for rank, own_ends in common_ends.items():
        group = next((group for group in groups if _end_together(own_ends, common_ends[group[0]])), None)
        if group is None:
            groups.append([rank])
        else:
            group.append(rank)
    if min(map(len, groups)) < 2:
        return [by_rank]
    return [{rank: by_rank[rank] for rank in group} for group in groups]


def _end_together(ends: NDArray[np.int64], other_ends: NDArray[np.int64]) -> bool:
    """Whether the differences between all ends are equal, which is so if only the clocks differ."""
    distances = ends - other_ends
    return bool(np.median(np.abs(distances - np.median(distances))) <= MAX_END_SPREAD_NS)


def _nameless_note(groups: Sequence[tuple[int, ...]]) -> Quality:
    effect = "all ranks were taken for one group; if there are several groups, waiting across them is an artefact"
    if len(groups) > 1:
        shown = [", ".join(map(str, group)) for group in groups[:MAX_GROUPS_SHOWN]]
        if len(groups) > MAX_GROUPS_SHOWN:
            shown.append(f"and {len(groups) - MAX_GROUPS_SHOWN} more")
        effect = f"ranks whose collectives end together were taken for one group: {'; '.join(shown)}"
    return Quality(problem="the traces do not say which ranks take part in a collective", effect=effect)


def _range(counts: dict[int, int]) -> str:
    return f"{min(counts.values())} to {max(counts.values())}"
