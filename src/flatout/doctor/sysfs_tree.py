"""Read the PCIe tree from sysfs: /sys/bus/pci/devices -> nodes of a Topology, and what was not read."""

from __future__ import annotations

import re

from flatout.doctor.cpu_nodes import DEVICES, cpu_id, cpu_nodes
from flatout.doctor.machine import AMD, AMD_CHIPSET, INTEL, NVIDIA, Machine
from flatout.doctor.parse.number import count_in, number_at_start
from flatout.doctor.unknown import NotReadError
from flatout.records.doctor import NodeKind, PcieLink, TopologyNode

ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# PCI class, vendors (none: any), and the kind of node.
_PCI_KINDS: tuple[tuple[str, tuple[str, ...], NodeKind], ...] = (
    ("0x03", (NVIDIA, AMD), "gpu"),
    ("0x12", (AMD,), "gpu"),
    ("0x0680", (NVIDIA,), "nvswitch"),
    ("0x02", (), "nic"),
    ("0x0108", (), "storage"),
    ("0x0604", (), "bridge"),
)


def from_sysfs(machine: Machine) -> tuple[list[TopologyNode], list[str]]:
    if not machine.pci_addresses:
        raise NotReadError("the input has no device of /sys/bus/pci/devices")
    parents: dict[str, str | None] = {}  # parents of the devices, and of the bridges above them
    problems = []
    for address in machine.pci_addresses:
        if pci_kind(machine, address) not in DEVICES:
            continue
        path = ADDRESS.findall(machine.snapshot.links.get(f"/sys/bus/pci/devices/{address}", ""))
        if not path or path[-1] != address:
            problems.append(f"the bridges above {address} were not read")
            path = [address]
        for upper, lower in zip([None, *path], path, strict=False):
            parents.setdefault(lower, upper)
    numa_nodes = {address: _sysfs_numa_node(machine, address) for address in parents}
    nodes = cpu_nodes(numa_nodes.values())
    for address, parent in parents.items():
        kind = _sysfs_kind(machine, address, parent)
        nodes.append(
            TopologyNode(
                id=address,
                kind=kind,
                name=_name(machine, address, kind),
                parent=parent or cpu_id(numa_nodes[address]),
                numa_node=numa_nodes[address],
                link=sysfs_link(machine, address),
            )
        )
    return nodes, problems


def _sysfs_numa_node(machine: Machine, address: str) -> int | None:
    """Return the NUMA node; None if it was not read, or is -1 (unknown to the firmware)."""
    return count_in(machine.pci_file(address, "numa_node"))


def _sysfs_kind(machine: Machine, address: str, parent: str | None) -> NodeKind:
    kind = pci_kind(machine, address)
    if kind != "bridge":
        return kind
    is_below_chipset = parent is not None and _is_chipset(machine, parent)
    if _is_chipset(machine, address) and not is_below_chipset:
        return "chipset_port"
    return "root_port" if parent is None else "switch"


def pci_kind(machine: Machine, address: str) -> NodeKind:
    pci_class, vendor = machine.pci_file(address, "class"), machine.pci_file(address, "vendor")
    for prefix, vendors, kind in _PCI_KINDS:
        if pci_class.startswith(prefix) and (not vendors or vendor in vendors):
            return kind
    return "other"


def _is_chipset(machine: Machine, address: str) -> bool:
    """Whether this is a port of the chipset; all such ports share the chipset's one narrow link to the CPU.

    Intel's root ports are devices 1b to 1d on bus 0. AMD's chipset is a switch below a root port of the CPU: 43xx are
    the 300 to 600 series, 57ad is X570 (https://pci-ids.ucw.cz, vendor 1022, 2024).
    """
    vendor, device = machine.pci_file(address, "vendor"), machine.pci_file(address, "device")
    if vendor == INTEL:
        return re.fullmatch(r"0000:00:1[bcd]\.[0-7]", address) is not None
    return vendor == AMD_CHIPSET and re.fullmatch(r"0x(?:43[0-9a-f]{2}|57ad)", device) is not None


def _name(machine: Machine, address: str, kind: str) -> str:
    if kind == "nic":
        names = [*_class_devices(machine, "infiniband", address), *_class_devices(machine, "net", address)]
        return " ".join(names) or "network controller"
    numbers = [machine.pci_file(address, name).removeprefix("0x") for name in ("vendor", "device")]
    return ":".join(number or "?" for number in numbers)


def _class_devices(machine: Machine, class_name: str, address: str) -> list[str]:
    """Return the names of a PCI device in a class: mlx5_0 in `infiniband`, ib0 in `net`."""
    prefix = f"/sys/class/{class_name}/"
    names = []
    for path, target in machine.snapshot.links.items():
        name = path.removeprefix(prefix)
        is_device = path.startswith(prefix) and "/" not in name
        if is_device and f"/{address}/" in target:
            names.append(name)
    return names


def sysfs_link(machine: Machine, address: str) -> PcieLink | None:
    """Return the link of a device; None if no value of it was read."""
    link = PcieLink(
        speed_gt_per_s=_speed_gt_per_s(machine.pci_file(address, "current_link_speed")),
        width=_width(machine.pci_file(address, "current_link_width")),
        max_speed_gt_per_s=_speed_gt_per_s(machine.pci_file(address, "max_link_speed")),
        max_width=_width(machine.pci_file(address, "max_link_width")),
    )
    return None if link == PcieLink() else link


def _speed_gt_per_s(text: str) -> float | None:
    return number_at_start(text) if " GT/s" in text else None


def _width(text: str) -> int | None:
    """Return the number of lanes; None for 0 or 255, which are reported by a link that is down."""
    lanes = count_in(text)
    return lanes if lanes in range(1, 33) else None
