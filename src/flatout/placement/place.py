"""Place the ranks of a layout: compare the given order with the best one found, link by link."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout.placement.cost import SAME, costs
from flatout.placement.loads import link_bytes
from flatout.placement.network import Array, Network, Slots
from flatout.placement.search import best_node_order, best_order, keeps_nodes_whole, quick_node_order, quick_order
from flatout.records.placement import ExchangeTime, Fabric, GroupExchange, LinkKind, LinkLoad, Placement


def place(
    fabric: Fabric, exchanges: Sequence[GroupExchange], degrees: Sequence[int], *, is_quick: bool = False
) -> Placement:
    """Return the best order of ranks found. `degrees`: of the layout, in the order in which ranks are numbered.

    The order is the given one if no other takes less time, or as much with fewer bytes on shared links. A quick search
    compares few orders, and takes some tenths of a second where the other takes up to half a minute.
    """
    network = Network(fabric)
    given = np.arange(fabric.num_gpus)
    found, by_nodes = given, given
    if exchanges and is_quick:
        found = quick_order(network, exchanges, degrees)
        by_nodes = quick_node_order(network, exchanges, found)
    elif exchanges:
        found = best_order(network, exchanges, degrees)
        by_nodes = best_node_order(network, exchanges, found)
    seconds = costs(network, exchanges, np.stack([given, found, by_nodes])).seconds if exchanges else np.zeros(3)
    is_changed = not np.array_equal(found, given)
    order = found if is_changed else given
    rank_at = np.argsort(order).reshape(-1, fabric.gpus_per_node)
    first_slots = by_nodes[:: fabric.gpus_per_node]
    return Placement(
        fabric=fabric.kind,
        num_ranks=fabric.num_gpus,
        gpus_per_node=fabric.gpus_per_node,
        ranks_of_nodes={node: tuple(ranks) for node, ranks in zip(fabric.nodes, rank_at.tolist(), strict=True)},
        is_changed=is_changed,
        keeps_nodes_whole=keeps_nodes_whole(network, order),
        node_order=tuple(fabric.nodes[network.node[slot]] for slot in first_slots),
        seconds_before=float(seconds[0]),
        seconds_after=float(seconds[1]),
        seconds_with_node_order=float(seconds[2]),
        exchanges=tuple(_exchange_time(network, exchange, given, order) for exchange in exchanges),
        links=_links(network, exchanges, given, order),
    )


def gain(placement: Placement) -> float:
    """Return the share of the communication's time that the order saves; 0 for one that takes as long."""
    if placement.seconds_before <= 0:
        return 0.0
    saved = 1.0 - placement.seconds_after / placement.seconds_before
    return saved if saved > SAME else 0.0


def _exchange_time(network: Network, exchange: GroupExchange, given: Slots, order: Slots) -> ExchangeTime:
    before, after = link_bytes(network, exchange, np.stack([given, order]))
    members = np.array(exchange.groups)
    return ExchangeTime(
        name=exchange.name,
        seconds_before=float((before / network.rates).max()),
        seconds_after=float((after / network.rates).max()),
        busiest_before=_busiest(network, before),
        busiest_after=_busiest(network, after),
        num_groups=len(members),
        group_size=members.shape[1],
        groups_across_nodes_before=_num_across(network.box[given[members]]),
        groups_across_nodes_after=_num_across(network.box[order[members]]),
    )


def _num_across(boxes: Slots) -> int:
    return int(np.sum(boxes.min(axis=1) != boxes.max(axis=1)))


def _busiest(network: Network, loads: Array) -> LinkKind:
    busiest = int((loads / network.rates).argmax())
    return next(links.kind for links in network.ranges.values() if links.first <= busiest < links.first + links.size)


def _links(network: Network, exchanges: Sequence[GroupExchange], given: Slots, order: Slots) -> tuple[LinkLoad, ...]:
    """Return the links that carry bytes in one of the two orders."""
    both = np.stack([given, order])
    loads = np.sum([link_bytes(network, exchange, both) for exchange in exchanges], axis=0)
    found: list[LinkLoad] = []
    for name, kind, directions in network.names() if exchanges else ():
        before, after = loads[:, list(directions)].max(axis=1)
        if before or after:
            found.append(LinkLoad(link=name, kind=kind, bytes_before=float(before), bytes_after=float(after)))
    return tuple(found)
