"""Word where a plan puts its ranks.

In: a `PlannedPlacement`. Out: sentences for the text and the page, and the order.
"""

from __future__ import annotations

from flatout.records.placement import LinkKind, PlannedPlacement, SlowLinks
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle
from flatout.units import num_bytes, percent, rank_ranges, seconds

MOST_NODES = 8  # whose ranks are listed
AS_LONG = 1e-9  # relative difference below which two orders take equally long
_NAMES = {
    LinkKind.CORE: "Links above leaf switches",
    LinkKind.CABLE: "Cables between nodes",
    LinkKind.ADAPTER: "Network adapters",
}


def placement_lines(placement: PlannedPlacement, style: TextStyle) -> list[str]:
    """Return the placement for a terminal."""
    lines = [style.bold("Ranks on nodes")]
    for sentence in placement_sentences(placement):
        lines += style.wrapped(sentence, indent="  ", label="")
    if placement.is_changed:
        lines += [f"  {node}: {ranks}" for node, ranks in first_nodes(placement)]
    return lines


def placement_sentences(placement: PlannedPlacement) -> list[str]:
    """Return what the order saves, what it needs, and the bytes on slow links in both orders."""
    sentences = [_order(placement), *(_bytes(links) for links in placement.slow_links)]
    if not placement.slow_links:
        sentences.append("No bytes leave a node.")
    if placement.is_changed:
        sentences.append(
            "The step time above is that of the given order. `flatout plan place` searches longer, and writes the order"
            " for your launcher."
        )
    return sentences


def first_nodes(placement: PlannedPlacement) -> list[tuple[str, str]]:
    """Return the first nodes with their ranks, and in one more row how many more there are."""
    nodes = list(placement.ranks_of_nodes.items())
    rows = [(node, f"ranks {rank_ranges(ranks)}") for node, ranks in nodes[:MOST_NODES]]
    num_more = len(nodes) - MOST_NODES
    if num_more > 0:
        rows.append((f"and {counted(num_more, 'more node')}", "--json has all"))
    return rows


def _order(placement: PlannedPlacement) -> str:
    before, after = placement.seconds_before, placement.seconds_after
    if not placement.is_changed:
        return (
            "Keep the ranks in their given order, node by node: no order tried is better. Its exchanges take"
            f" {seconds(before)} per step, one after the other at the links' full rates."
        )
    if after >= before * (1 - AS_LONG):
        saved = (
            "Another order of ranks puts fewer bytes on slow links; the exchanges of a step take as long,"
            f" {seconds(before)}"
        )
    else:
        saved = (
            f"In another order of ranks, the exchanges of a step take {seconds(after)} in place of {seconds(before)},"
            f" {percent(1 - after / before)} less"
        )
    return f"{saved}, one after the other at the links' full rates. {_launcher(placement)}"


def _launcher(placement: PlannedPlacement) -> str:
    """Say what a launcher must be able to do."""
    if placement.keeps_nodes_whole:
        return "Each node has consecutive ranks, so an order of nodes is enough."
    return (
        "It needs a launcher that puts single ranks on nodes (Slurm); with consecutive ranks on each node, the best"
        f" order found takes {seconds(placement.seconds_with_node_order)}."
    )


def _bytes(links: SlowLinks) -> str:
    name = _NAMES[links.kind]
    if links.sum_before == links.sum_after and links.busiest_before == links.busiest_after:
        return f"{name} carry {num_bytes(links.sum_after)} per step, the busiest {num_bytes(links.busiest_after)}."
    return (
        f"{name} carry {num_bytes(links.sum_after)} per step (given order: {num_bytes(links.sum_before)}), the busiest"
        f" {num_bytes(links.busiest_after)} ({num_bytes(links.busiest_before)})."
    )
