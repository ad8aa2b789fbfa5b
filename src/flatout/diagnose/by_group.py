"""Split a job's exposed communication by what its process groups are for, and within against between nodes.

In: the attributed ranks. Out: one `GroupCommunication` per purpose, place and size of the groups, the longest first.
Together they have all of the ranks' exposed communication: what no recorded call covers is a separate line. A group's
purpose follows from its name (Megatron's, DeviceMesh's), else from what it carries (`traffic.py`). Where two groups
communicate at once, the time counts for the one that began first, as in the findings. Whether a group spans nodes
follows from the host names in the traces; for sends and receives, from the hosts of the two ranks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.traffic import CallKinds, TrafficKind, wrapper_of
from flatout.records.diagnosis import GroupCommunication, GroupPurpose, GroupSpan, Part
from flatout.records.timeline import CommunicationCall, RankTimeline, Segments

Times = NDArray[np.int64]
MOST_NAMES = 8
PARTS = (Part.TRANSFER, Part.WAIT, Part.BUBBLE, Part.COMMUNICATION_UNSPLIT)
# The words in the names of groups, as Megatron and DeviceMesh give them; the first match counts. A group of experts'
# data parallelism carries gradients, and a group of tensor and data parallelism sums numbers such as norms.
_WORD = r"(?:^|[^a-z])(?:{})(?:$|[^a-z])"
_BY_NAME = {
    purpose: re.compile(_WORD.format(words), re.IGNORECASE)
    for purpose, words in {
        GroupPurpose.DATA: "dp|ddp|data|fsdp|hsdp|shard|replicate|dp_shard|dp_replicate",
        GroupPurpose.PIPELINE: "pp|pipeline|pipe",
        GroupPurpose.EXPERT: "ep|etp|expert|experts|moe",
        GroupPurpose.CONTEXT: "cp|context",
        GroupPurpose.TENSOR: "tp|tensor|sp|sequence",
    }.items()
}
_BY_KIND = {
    TrafficKind.GRADIENTS: GroupPurpose.DATA,
    TrafficKind.GRADIENT_SHARDS: GroupPurpose.DATA,
    TrafficKind.WEIGHT_SHARDS: GroupPurpose.DATA,
    TrafficKind.UPDATED_WEIGHTS: GroupPurpose.DATA,
    TrafficKind.ACTIVATIONS: GroupPurpose.TENSOR,
    TrafficKind.EXPERT_TOKENS: GroupPurpose.EXPERT,
    TrafficKind.PIPELINE: GroupPurpose.PIPELINE,
}


class _Key(NamedTuple):
    purpose: GroupPurpose
    span: GroupSpan
    group_size: int | None


_NO_CALL = _Key(GroupPurpose.UNKNOWN, GroupSpan.UNKNOWN, None)


def communication_by_group(context: DiagnosisContext) -> tuple[GroupCommunication, ...]:
    """Return the exposed communication by group; empty if no rank communicates."""
    seconds: dict[_Key, dict[Part, float]] = defaultdict(lambda: dict.fromkeys(PARTS, 0.0))
    names: dict[_Key, set[str]] = defaultdict(set)
    groups: dict[_Key, set[object]] = defaultdict(set)
    describe = _Describer(context)
    for timeline in context.ranks:
        keys = describe.kernels(timeline)
        for call, key in zip(timeline.communication.calls, describe.calls(timeline), strict=True):
            if call.group is not None:
                names[key].add(call.group_description or call.group)
                groups[key].add(call.ranks or call.group)
        for part, shares in _shares(context, timeline, keys).items():
            own_s = float(context.own[context.row[timeline.rank], part])
            for key, share in shares.items():
                seconds[key][part] += own_s * share / len(context.ranks)
    found = [
        GroupCommunication(
            purpose=key.purpose,
            span=key.span,
            group_size=key.group_size,
            num_groups=len(groups[key]),
            names=tuple(sorted(names[key])[:MOST_NAMES]),
            transfer_s=parts[Part.TRANSFER],
            wait_s=parts[Part.WAIT],
            bubble_s=parts[Part.BUBBLE],
            unsplit_s=parts[Part.COMMUNICATION_UNSPLIT],
        )
        for key, parts in seconds.items()
    ]
    return tuple(sorted((each for each in found if each.exposed_s > 0), key=lambda each: -each.exposed_s))


class _Describer:
    """Say of each call what its group is for, and where it is."""

    def __init__(self, context: DiagnosisContext) -> None:
        self._context = context
        self._wrapper = wrapper_of(context)
        self._hosts = {timeline.rank: timeline.meta.hostname for timeline in context.ranks}
        self._calls: dict[int, list[_Key]] = {}

    def calls(self, timeline: RankTimeline) -> list[_Key]:
        """Return the key of each call of the rank."""
        if timeline.rank not in self._calls:
            kinds = CallKinds(self._context, timeline, self._wrapper)
            self._calls[timeline.rank] = [self._key(timeline, call, kinds) for call in timeline.communication.calls]
        return self._calls[timeline.rank]

    def kernels(self, timeline: RankTimeline) -> list[_Key]:
        """Return the key of each communication kernel: that of its first call."""
        keys = [_NO_CALL] * timeline.communication.num_kernels
        for call, key in zip(reversed(timeline.communication.calls), reversed(self.calls(timeline)), strict=True):
            keys[call.kernel] = key
        return keys

    def _key(self, timeline: RankTimeline, call: CommunicationCall, kinds: CallKinds) -> _Key:
        purpose = purpose_by_name(call.group_description or call.group)
        if purpose is None:
            purpose = _BY_KIND.get(kinds.of(call), GroupPurpose.OTHER)
        size = call.group_size or (len(call.ranks) if call.ranks else None)
        return _Key(purpose, self._span(timeline, call), size)

    def _span(self, timeline: RankTimeline, call: CommunicationCall) -> GroupSpan:
        ranks = (timeline.rank, call.peer) if call.peer is not None else call.ranks
        if ranks is None and call.group_size == self._context.job.world_size:
            ranks = tuple(range(call.group_size or 0))
        if not ranks:
            return GroupSpan.UNKNOWN
        hosts = {self._hosts.get(rank) for rank in ranks}
        if len(hosts - {None}) > 1:
            return GroupSpan.BETWEEN_NODES
        return GroupSpan.UNKNOWN if None in hosts else GroupSpan.WITHIN_NODE


def purpose_by_name(name: str | None) -> GroupPurpose | None:
    """Return what a group is for by its name; None if the name does not say."""
    if name is None:
        return None
    return next((purpose for purpose, pattern in _BY_NAME.items() if pattern.search(name)), None)


def _shares(context: DiagnosisContext, timeline: RankTimeline, keys: list[_Key]) -> Mapping[Part, Mapping[_Key, float]]:
    """Return the share of each key in each exposed part of the rank's steps; the shares of a part sum to 1."""
    kernels, arrival = timeline.communication, context.job.arrivals[timeline.rank]
    segments = context.job.segments[timeline.rank]
    waits_until = np.where(arrival.is_known, arrival.until_ns, kernels.start_ns)
    intervals: dict[Part, tuple[Times, Times]] = {
        Part.TRANSFER: (waits_until, np.where(arrival.is_known, kernels.end_ns, waits_until)),
        Part.WAIT: (kernels.start_ns, waits_until),
        Part.BUBBLE: (kernels.start_ns, waits_until),
        Part.COMMUNICATION_UNSPLIT: (
            kernels.start_ns,
            np.where(arrival.is_known, kernels.start_ns, kernels.end_ns),
        ),
    }
    total = segments.between_ns(timeline.first_step_ns, timeline.window_end_ns)
    shares: dict[Part, Mapping[_Key, float]] = {}
    for part in PARTS:
        if total[part] > 0:
            exposed = _exposed(segments, *intervals[part], part, timeline.first_step_ns)
            shares[part] = _shares_of(float(total[part]), keys, exposed)
    return shares


def _shares_of(total: float, keys: list[_Key], exposed: Times) -> dict[_Key, float]:
    sums: dict[_Key, float] = defaultdict(float)
    for key, spent in zip(keys, exposed.tolist(), strict=True):
        sums[key] += spent
    sums[_NO_CALL] += total - sum(sums.values())
    return {key: spent / total for key, spent in sums.items() if spent > 0}


def _exposed(segments: Segments, start: Times, end: Times, part: Part, first_step_ns: int) -> Times:
    """Return the nanoseconds of the part in each interval within steps; an overlap counts for the earlier interval."""
    order = np.argsort(start, kind="stable")
    start = np.maximum(start[order], first_step_ns)
    end = np.maximum(end[order], start)
    covered_until = np.maximum.accumulate(np.append(first_step_ns, end))[:-1]
    begin = np.maximum(start, covered_until)
    at = segments.cumulative_part_ns(part, np.concatenate([begin, np.maximum(end, begin)]))
    spent = np.empty(len(order), dtype=np.int64)
    spent[order] = at[len(order) :] - at[: len(order)]
    return spent
