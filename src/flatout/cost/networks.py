"""Count the switches and links of a network between nodes, and what they cost to buy.

In: a cluster with its fabric. Out: a `NetworkBill`. Each GPU has one adapter. Leaf switches have `pod_gpus` below them
(with rails, one adapter of each node), and as many uplinks as the oversubscription leaves; spines have as many ports as
there are uplinks, and where the leaves are more than a spine has ports, a third level of switches has as many again. A
ring or torus has no switch, and a cable for every two adapters. What this will not do: count adapters, racks, power, or
the networks for storage and management, which are alike in all of them.
"""

from __future__ import annotations

from math import ceil

from flatout.catalog.fabrics import SWITCH_PORTS, network_prices
from flatout.records.network import NetworkBill
from flatout.records.plan import ClusterSpec
from flatout.units import percent

_CABLED = ("ring", "torus")
SAME_RATE = 0.1  # an adapter whose rate differs by more than this from the priced switch has another price


def network_bill(cluster: ClusterSpec) -> NetworkBill:
    """Return the parts of the cluster's network and their price."""
    num_switches, num_links = _parts(cluster)
    prices = network_prices()
    switch, link = prices.switch[0], prices.link[0]
    usd = {
        name: num_switches * getattr(switch, name) + num_links * getattr(link, name)
        for name in ("low", "typical", "high")
    }
    return NetworkBill(
        num_switches=num_switches,
        num_links=num_links,
        low_usd=usd["low"],
        typical_usd=usd["typical"],
        high_usd=usd["high"],
        note=_rate_note(cluster, switch.gbit_per_s),
        sources=(switch.source, link.source),
        date=max(switch.date, link.date),
    )


def _rate_note(cluster: ClusterSpec, gbit_per_s: float) -> str:
    """Say that the prices are of other parts, if the adapters' rate is not that of the priced parts."""
    rate = cluster.nic_bytes_per_s * 8 / 1e9
    if abs(rate / gbit_per_s - 1.0) <= SAME_RATE:
        return ""
    share = percent(rate / gbit_per_s)
    return f"prices are those of {gbit_per_s:g} Gbit/s, but an adapter here has {rate:g} Gbit/s, {share} of it"


def _parts(cluster: ClusterSpec) -> tuple[int, int]:
    """Return the number of switches and of links."""
    num_adapters = cluster.num_gpus
    num_nodes = ceil(cluster.num_gpus / cluster.gpus_per_node)
    if num_nodes == 1:
        return 0, 0
    if cluster.fabric in _CABLED:
        return 0, num_adapters // 2
    nodes_below = max(cluster.pod_gpus // cluster.gpus_per_node, 1)
    num_groups = ceil(num_nodes / nodes_below)
    num_leaves = num_groups * (cluster.gpus_per_node if cluster.fabric == "rail" else 1)
    if num_leaves == 1:
        return 1, num_adapters
    num_uplinks = ceil(num_adapters / cluster.oversubscription)
    if num_leaves <= SWITCH_PORTS:
        return num_leaves + ceil(num_uplinks / SWITCH_PORTS), num_adapters + num_uplinks
    # Half of a middle switch's ports lead up, to a third level whose switches have all ports down.
    num_middle, num_top = ceil(num_uplinks / (SWITCH_PORTS // 2)), ceil(num_uplinks / SWITCH_PORTS)
    return num_leaves + num_middle + num_top, num_adapters + 2 * num_uplinks
