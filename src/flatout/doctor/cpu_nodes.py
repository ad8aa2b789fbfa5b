"""The CPUs at the top of a Topology, one for each NUMA node, and the kinds of devices that are shown below them."""

from __future__ import annotations

from collections.abc import Iterable

from flatout.records.doctor import TopologyNode

DEVICES = ("gpu", "nic", "storage", "nvswitch")


def cpu_id(numa_node: int | None) -> str:
    return "NUMA node unknown" if numa_node is None else f"NUMA {numa_node}"


def cpu_nodes(numa_nodes: Iterable[int | None]) -> list[TopologyNode]:
    """Return a node for each distinct number, in order, the unknown one last."""
    distinct = set(numa_nodes)
    ordered: list[int | None] = [*sorted(number for number in distinct if number is not None)]
    if None in distinct:
        ordered.append(None)
    return [TopologyNode(id=cpu_id(number), kind="cpu", name=cpu_id(number), numa_node=number) for number in ordered]
