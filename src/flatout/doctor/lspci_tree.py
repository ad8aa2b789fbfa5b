"""Read the PCIe tree from `lspci -vvv`: its devices -> nodes of a Topology, and what it does not show."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flatout.doctor.cpu_nodes import DEVICES, cpu_id, cpu_nodes
from flatout.doctor.machine import Machine
from flatout.records.doctor import NodeKind, TopologyNode

_LSPCI_KINDS: Mapping[str, NodeKind] = {
    "Ethernet controller": "nic",
    "Infiniband controller": "nic",
    "Network controller": "nic",
    "Non-Volatile memory controller": "storage",
    "PCI bridge": "bridge",
}
_LSPCI_GPUS = ("3D controller", "VGA compatible controller", "Display controller", "Processing accelerators")


def from_lspci(machine: Machine) -> tuple[list[TopologyNode], list[str]]:
    devices = {device.address: device for device in machine.lspci}
    bridges = {device.secondary_bus: device.address for device in machine.lspci if device.secondary_bus}
    parents = _lspci_parents(machine, bridges)
    tops = [address for address, parent in parents.items() if parent is None]
    nodes = cpu_nodes(devices[address].numa_node for address in tops)
    for address, parent in parents.items():
        device = devices[address]
        kind = lspci_kind(device.kind, device.name)
        if kind == "bridge" and device.is_root_port:
            kind = "root_port"
        elif kind == "bridge" and parent:
            kind = "switch"
        nodes.append(
            TopologyNode(
                id=address,
                kind=kind,
                name=device.name,
                parent=parent or cpu_id(device.numa_node),
                numa_node=device.numa_node,
                link=device.link,
            )
        )
    if not bridges:
        return nodes, ["lspci shows no bridge's buses (use -vvv), so it is unknown which device is behind which bridge"]
    return nodes, []


def _lspci_parents(machine: Machine, bridges: Mapping[str, str]) -> dict[str, str | None]:
    """Return the bridge above each device and each bridge; `bridges` maps a bridge's secondary bus to its address."""
    parents: dict[str, str | None] = {}
    for device in machine.lspci:
        if lspci_kind(device.kind, device.name) not in DEVICES:
            continue
        address: str | None = device.address
        while address is not None and address not in parents:
            bridge = bridges.get(address[:7])
            parents[address] = None if bridge == address else bridge
            address = parents[address]
    return parents


def lspci_kind(kind: str, name: str) -> NodeKind:
    if kind in _LSPCI_GPUS:
        return "gpu" if re.search(r"NVIDIA|AMD|Advanced Micro", name) else "other"
    if kind == "Bridge" and "NVIDIA" in name:
        return "nvswitch"
    return _LSPCI_KINDS.get(kind, "other")
