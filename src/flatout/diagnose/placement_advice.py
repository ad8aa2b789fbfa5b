"""Advice on which ranks share a node: tensor groups that span nodes, data-parallel groups that change rails.

In: the attributed ranks with their hosts. Out: texts, with what another order of ranks saves at most; none where the
traces do not name the hosts. Nothing is changed: `flatout plan place` finds the order.
"""

from __future__ import annotations

from collections import defaultdict

from flatout.diagnose.by_group import purpose_by_name
from flatout.diagnose.context import DiagnosisContext
from flatout.records.diagnosis import GroupCommunication, GroupPurpose, GroupSpan
from flatout.units import percent, seconds

MIN_SHARE = 0.02  # of the step: what the groups cost at least for the advice
_NEAR = {
    GroupPurpose.TENSOR: "tensor-parallel",
    GroupPurpose.CONTEXT: "context-parallel",
    GroupPurpose.EXPERT: "expert-parallel",
}
COMMAND = "flatout plan place"


def placement_advice(context: DiagnosisContext, by_group: tuple[GroupCommunication, ...]) -> tuple[str, ...]:
    """Return the advice, that with the largest gain first."""
    ranks_of_host = _ranks_of_hosts(context)
    if len(ranks_of_host) < 2 or context.step_s <= 0:
        return ()
    most_ranks = max(map(len, ranks_of_host.values()))
    advice = []
    for each in by_group:
        name = _NEAR.get(each.purpose)
        fits = each.group_size is not None and each.group_size <= most_ranks
        cost_s = each.transfer_s + each.unsplit_s
        if name is None or each.span is not GroupSpan.BETWEEN_NODES or not fits or cost_s < MIN_SHARE * context.step_s:
            continue
        gain = f"{seconds(cost_s)} {context.period}, {percent(cost_s / context.step_s)}"
        advice.append(
            f"place the {each.group_size} ranks of each {name} group on one node ({COMMAND}): saves up to {gain}"
        )
    data_s = sum(
        each.transfer_s
        for each in by_group
        if each.purpose is GroupPurpose.DATA and each.span is GroupSpan.BETWEEN_NODES
    )
    if data_s >= MIN_SHARE * context.step_s and _changes_rails(context, ranks_of_host):
        advice.append(
            "on a rail-optimised network, keep each data-parallel group on equal local ranks, so that it stays on one"
            f" rail ({COMMAND} --fabric rail)"
        )
    return tuple(advice)


def _ranks_of_hosts(context: DiagnosisContext) -> dict[str, list[int]]:
    """Return the ranks of each host in ascending order; empty if a host is unknown."""
    found: dict[str, list[int]] = defaultdict(list)
    for timeline in context.ranks:
        if timeline.meta.hostname is None:
            return {}
        found[timeline.meta.hostname].append(timeline.rank)
    return {host: sorted(ranks) for host, ranks in found.items()}


def _changes_rails(context: DiagnosisContext, ranks_of_host: dict[str, list[int]]) -> bool:
    """Whether a data-parallel group has one rank on each of its hosts, but at different positions there."""
    place = {rank: (host, position) for host, ranks in ranks_of_host.items() for position, rank in enumerate(ranks)}
    groups = {
        call.ranks
        for timeline in context.ranks
        for call in timeline.communication.calls
        if call.ranks and purpose_by_name(call.group_description) is GroupPurpose.DATA
    }
    for group in groups:
        places = [place[rank] for rank in group if rank in place]
        has_one_per_host = len({host for host, _ in places}) == len(places)
        if has_one_per_host and len({position for _, position in places}) > 1:
            return True
    return False
