"""The sizes of networks: how many nodes a leaf switch serves."""

from __future__ import annotations

SWITCH_PORTS = 64  # of current InfiniBand and Ethernet switches at the rate of one adapter: QM9700, SN5600
FABRICS = ("fat-tree", "rail", "ring", "torus")


def ports_down(oversubscription: float) -> int:
    """Return the ports of a leaf switch to nodes; the others lead up, `oversubscription` times fewer."""
    return int(SWITCH_PORTS * oversubscription / (1.0 + oversubscription))


def nodes_per_leaf(fabric: str, oversubscription: float, adapters_per_node: int) -> int:
    """Return the nodes below a leaf switch, or with rails below each switch of a group of leaf switches."""
    adapters_per_switch = 1 if fabric == "rail" else adapters_per_node
    return max(ports_down(oversubscription) // adapters_per_switch, 1)
