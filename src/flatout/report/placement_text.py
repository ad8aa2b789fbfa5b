"""Print a placement on a terminal: what each kind of group costs in both orders, the busiest links, and the order."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.records.placed_job import PlacedJob
from flatout.records.placement import LinkKind, LinkLoad, Placement
from flatout.report.phrases import counted
from flatout.report.plan_text import layout_text
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import num_bytes, percent, rank_ranges, seconds

_MOST_NODES = 16
_LINK_ORDER = (LinkKind.CORE, LinkKind.CABLE, LinkKind.ADAPTER, LinkKind.HOST, LinkKind.NVLINK)
_SUMS = {
    LinkKind.CORE: "leaf uplinks",
    LinkKind.CABLE: "cables",
    LinkKind.ADAPTER: "adapters",
    LinkKind.HOST: "PCIe",
    LinkKind.NVLINK: "NVLink",
}
EXCHANGES = {
    "tensor": "tensor (TP)",
    "context": "context (CP)",
    "data": "data (DP)",
    "data_shards": "DP within shard groups",
    "data_copies": "DP between shard groups",
    "expert": "expert (EP)",
    "expert_data": "DP of experts",
    "pipeline": "pipeline (PP)",
}


def placement_text(job: PlacedJob, *, style: TextStyle, next_command: str) -> str:
    """Return the text."""
    placement = job.placement
    lines = [
        *style.wrapped(f"{job.workload} on {job.cluster}, {layout_text(job.layout)}"),
        *style.wrapped(verdict_sentence(placement)),
    ]
    if placement.exchanges:
        lines += ["", *_exchange_lines(placement, style), "", *_link_lines(placement, style)]
    if placement.is_changed:
        lines += ["", *_order_lines(placement, style)]
    lines += ["", f"next: {next_command}"]
    return "\n".join(lines)


def verdict_sentence(placement: Placement) -> str:
    """Say what the best order saves, or that the given order is as good."""
    network = f"{counted(placement.num_ranks, 'rank')} on a network of the kind {placement.fabric}"
    if not placement.exchanges:
        return f"{network}: no rank sends anything to another, so every order is as good."
    before, after = seconds(placement.seconds_before), seconds(placement.seconds_after)
    if not placement.is_changed:
        return f"{network}: no order found is better than the given one, with {before} of communication per step."
    if placement.seconds_after >= placement.seconds_before * (1 - 1e-9):
        return f"{network}: another order takes as long, {before} per step, but puts fewer bytes on shared links."
    saved = percent(1 - placement.seconds_after / placement.seconds_before)
    sentence = (
        f"{network}: the best order found communicates for {after} per step, the given one for {before}: {saved} less."
    )
    if placement.keeps_nodes_whole:
        return f"{sentence} Each node has consecutive ranks, so an order of nodes is enough."
    return (
        f"{sentence} It needs a launcher that puts single ranks on nodes (Slurm); where each node has consecutive "
        f"ranks, as with torchrun and pods, the best is {seconds(placement.seconds_with_node_order)}."
    )


def _exchange_lines(placement: Placement, style: TextStyle) -> list[str]:
    rows = [
        [
            EXCHANGES.get(exchange.name, exchange.name),
            f"{exchange.num_groups:,} x {exchange.group_size:,}",
            f"{exchange.groups_across_nodes_before:,} -> {exchange.groups_across_nodes_after:,}",
            f"{seconds(exchange.seconds_before)} ({exchange.busiest_before})",
            f"{seconds(exchange.seconds_after)} ({exchange.busiest_after})",
        ]
        for exchange in placement.exchanges
    ]
    header = ["exchange", "groups", "across nodes", "before (busiest link)", "after"]
    legend = (
        "Times are those of the busiest link at its full rate, for the bytes of one step; what compute hides is not "
        "subtracted. NCCL orders the rings within a group itself."
    )
    return [*text_table(header, rows, style=style, flexible=[0]), *style.wrapped(legend)]


def _link_lines(placement: Placement, style: TextStyle) -> list[str]:
    rows = []
    for kind in _LINK_ORDER:
        links = [link for link in placement.links if link.kind == kind]
        if links:
            rows.append([_SUMS[kind], *_sums(links)])
    header = ["links", "busiest before", "busiest after", "sum before", "sum after"]
    return [style.bold("Bytes of a step, by kind of link"), *text_table(header, rows, style=style, flexible=[0])]


def _sums(links: Sequence[LinkLoad]) -> list[str]:
    before, after = [link.bytes_before for link in links], [link.bytes_after for link in links]
    return [num_bytes(value) for value in (max(before), max(after), sum(before), sum(after))]


def _order_lines(placement: Placement, style: TextStyle) -> list[str]:
    lines = [style.bold("Ranks of each node, in the order of its GPUs")]
    shown = list(placement.ranks_of_nodes.items())[:_MOST_NODES]
    lines += [f"  {node}: {rank_ranges(ranks)}" for node, ranks in shown]
    num_more = len(placement.ranks_of_nodes) - len(shown)
    if num_more:
        lines.append(f"  and {counted(num_more, 'more node')}: --json has all")
    return lines
