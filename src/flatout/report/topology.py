"""The parts of a topology report that the text and the page share: the tree, the devices' names and relations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from flatout.records.doctor import Topology, TopologyNode


def nodes_below(topology: Topology) -> Mapping[str | None, list[TopologyNode]]:
    """Return the nodes below each node; below None, those without a parent in the topology."""
    ids = {node.id for node in topology.nodes}
    below: defaultdict[str | None, list[TopologyNode]] = defaultdict(list)
    for node in topology.nodes:
        below[node.parent if node.parent in ids else None].append(node)
    return below


def paired_devices(topology: Topology) -> list[str]:
    """Return the devices of all pairs, in order, each once."""
    return list(dict.fromkeys(device for pair in topology.pairs for device in (pair.a, pair.b)))


def relations(topology: Topology) -> dict[tuple[str, str], str]:
    """Return the relation of each pair, in both directions."""
    one_way = {(pair.a, pair.b): pair.relation for pair in topology.pairs}
    return one_way | {(b, a): relation for (a, b), relation in one_way.items()}


def has_missing_lanes(node: TopologyNode) -> bool:
    link = node.link
    if link is None or not link.width or not link.max_width:
        return False
    return link.width < link.max_width


def own_name(node: TopologyNode) -> str:
    """Return the node's name, or an empty text if it only repeats the id or the kind."""
    return "" if node.name in (node.id, node.kind) else node.name
