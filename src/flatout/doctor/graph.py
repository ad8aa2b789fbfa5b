"""Build the Topology of a Machine: one graph of CPUs, PCIe ports and switches, GPUs, NICs and disks.

The PCIe tree comes from the first source that has GPUs or NICs: sysfs, `lspci -vvv`, or NCCL's XML. The relation of
each pair of devices comes from `nvidia-smi topo -m`; without it, it is derived from the tree, as the driver does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations

import msgspec

from flatout.doctor.machine import AMD, AMD_CHIPSET, INTEL, NCCL_TOPOLOGY, NVIDIA, SMI_TOPOLOGY, Machine, natural
from flatout.doctor.parse.nccl_topology import NcclTopology
from flatout.doctor.parse.number import count_in, number_at_start
from flatout.doctor.parse.topology_matrix import TopologyMatrix
from flatout.doctor.unknown import NotReadError
from flatout.records.doctor import NodeKind, PcieLink, Topology, TopologyNode, TopologyPair

GB = 1e9
# Bytes/s of one lane and direction after line coding (8b/10b to 5 GT/s, 128b/130b to 32, FLIT beyond; PCI-SIG base
# specifications 2.0 to 6.0), before packet headers.
LANE_BYTES_PER_S: Mapping[float, float] = {2.5: 0.25e9, 5: 0.5e9, 8: 0.985e9, 16: 1.969e9, 32: 3.938e9, 64: 7.563e9}
_MOST_DEVICES = 256  # paths are compared for each pair
_DEVICES = ("gpu", "nic", "storage", "nvswitch")
_BRIDGES = ("switch", "bridge", "root_port", "chipset_port")
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# PCI class, vendors (none: any), and the kind of node.
_PCI_KINDS: tuple[tuple[str, tuple[str, ...], NodeKind], ...] = (
    ("0x03", (NVIDIA, AMD), "gpu"),
    ("0x12", (AMD,), "gpu"),
    ("0x0680", (NVIDIA,), "nvswitch"),
    ("0x02", (), "nic"),
    ("0x0108", (), "storage"),
    ("0x0604", (), "bridge"),
)
_LSPCI_KINDS: Mapping[str, NodeKind] = {
    "Ethernet controller": "nic",
    "Infiniband controller": "nic",
    "Network controller": "nic",
    "Non-Volatile memory controller": "storage",
    "PCI bridge": "bridge",
}
_LSPCI_GPUS = ("3D controller", "VGA compatible controller", "Display controller", "Processing accelerators")


def link_bytes_per_s(speed: float | None, width: int | None) -> float | None:
    """Return a link's rate in one direction; None if speed or width is unknown."""
    if speed is None or width is None:
        return None
    lane = LANE_BYTES_PER_S.get(speed)
    return None if lane is None else lane * width


def topology_of(machine: Machine) -> Topology | None:
    """Return the topology; None if no source shows any part of it."""
    source, nodes, problems = _tree(machine)
    nodes, cycles = _without_cycles(nodes)
    problems = [*problems, *cycles]
    sources = [source] if source else []
    try:
        matrix = machine.matrix
    except NotReadError:
        pairs, too_many = _pairs_of_tree(nodes)
        problems += too_many
        if source == NCCL_TOPOLOGY:
            pairs = _with_links(pairs, machine.nccl_topology)
    else:
        sources.append(SMI_TOPOLOGY)
        problems += matrix.problems
        pairs = _pairs_of_matrix(matrix)
        nodes = nodes or _from_matrix(matrix)
    if not nodes:
        return None
    return Topology(sources=tuple(sources), nodes=tuple(nodes), pairs=tuple(pairs), problems=tuple(problems))


def _tree(machine: Machine) -> tuple[str | None, list[TopologyNode], list[str]]:
    """Return the nodes and problems of the first source that has GPUs or NICs, and its name."""
    for source, read in (("sysfs", _from_sysfs), ("lspci", _from_lspci), (NCCL_TOPOLOGY, _from_nccl)):
        try:
            nodes, problems = read(machine)
        except NotReadError:
            continue
        if any(node.kind in ("gpu", "nic") for node in nodes):
            return source, nodes, problems
    return None, [], []


def children(topology: Topology, parent: str | None) -> list[TopologyNode]:
    return [node for node in topology.nodes if node.parent == parent]


def path_up(nodes: Mapping[str, TopologyNode], node: TopologyNode) -> list[TopologyNode]:
    """Return the nodes above a node, nearest first, up to the CPU."""
    path: list[TopologyNode] = []
    while node.parent is not None and node.parent in nodes and len(path) < len(nodes):
        node = nodes[node.parent]
        path.append(node)
    return path


def relation(nodes: Mapping[str, TopologyNode], a: TopologyNode, b: TopologyNode) -> str | None:
    """Return PIX, PXB, PHB, NODE or SYS as `nvidia-smi topo -m` defines them.

    Return None if the relation depends on NUMA nodes that are unknown.
    """
    above_a, above_b = path_up(nodes, a), path_up(nodes, b)
    common = next((node for node in above_a if node in above_b), None)
    if common is None:
        return _relation_of_numa_nodes(a, b)
    if common.kind in _BRIDGES:
        switches = [node for node in (*above_a, *above_b) if node.kind == "switch"]
        num_below_common = sum(common in path_up(nodes, switch) for switch in switches)
        # A switch has one port up and one port down per device; a path with more bridges is PXB.
        return "PIX" if num_below_common <= 2 else "PXB"
    if common.kind == "cpu" and len(_host_bridges(above_a) | _host_bridges(above_b)) == 1:
        return "PHB"
    return _relation_of_numa_nodes(a, b)


def _relation_of_numa_nodes(a: TopologyNode, b: TopologyNode) -> str | None:
    if a.numa_node is None or b.numa_node is None:
        return None
    return "NODE" if a.numa_node == b.numa_node else "SYS"


def _host_bridges(above: list[TopologyNode]) -> set[str]:
    """Return the PCI domain and bus of the host bridge; empty if no port is above."""
    ports = [node.id for node in above if _ADDRESS.fullmatch(node.id)]
    return {port[:7] for port in ports[-1:]}


def _without_cycles(nodes: list[TopologyNode]) -> tuple[list[TopologyNode], list[str]]:
    """Return the nodes as a tree, and what was wrong: a node that is above itself gets no parent, and is used once."""
    by_id: dict[str, TopologyNode] = {}
    for node in nodes:
        by_id.setdefault(node.id, node)
    problems = []
    for node_id, node in by_id.items():
        if _is_above_itself(by_id, node):
            by_id[node_id] = msgspec.structs.replace(node, parent=None)
            problems.append(f"{node_id} is behind itself in this input, so it is unknown what it is behind")
    return list(by_id.values()), problems


def _is_above_itself(nodes: Mapping[str, TopologyNode], node: TopologyNode) -> bool:
    seen = set()
    parent = node.parent
    while parent is not None and parent in nodes and parent not in seen:
        if parent == node.id:
            return True
        seen.add(parent)
        parent = nodes[parent].parent
    return False


def _pairs_of_tree(nodes: list[TopologyNode]) -> tuple[list[TopologyPair], list[str]]:
    """Return the relation of each pair of GPUs and NICs, and why there are none, if that is the case."""
    by_id = {node.id: node for node in nodes}
    # A NIC without an address could be anywhere.
    devices = [node for node in nodes if node.kind in ("gpu", "nic") and _ADDRESS.fullmatch(node.id)]
    pairs: list[TopologyPair] = []
    if len(devices) > _MOST_DEVICES:
        problem = f"{len(devices):,} GPUs and NICs are more than the {_MOST_DEVICES} of a host: their paths are unknown"
        return pairs, [problem]
    for a, b in combinations(devices, 2):
        if a.kind != "gpu" and b.kind != "gpu":
            continue
        how = relation(by_id, a, b)
        if how is not None:
            pairs.append(TopologyPair(a=a.id, b=b.id, relation=how))
    return pairs, []


def _pairs_of_matrix(matrix: TopologyMatrix) -> list[TopologyPair]:
    order = matrix.devices.index
    return [TopologyPair(a=a, b=b, relation=cell) for (a, b), cell in matrix.cells.items() if order(a) < order(b)]


def _with_links(pairs: list[TopologyPair], topology: NcclTopology) -> list[TopologyPair]:
    """Replace PCIe relations by NVLink, which is faster, and add pairs whose PCIe path is unknown."""
    links = _GpuLinks(topology)
    linked = [
        TopologyPair(a=pair.a, b=pair.b, relation=links.relation(pair.a, pair.b) or pair.relation) for pair in pairs
    ]
    with_pcie_path = {frozenset((pair.a, pair.b)) for pair in pairs}
    for ends, how in links.direct.items():
        if ends not in with_pcie_path and len(ends) == 2:
            linked.append(TopologyPair(a=min(ends), b=max(ends), relation=how))
    return linked


class _GpuLinks:
    """The links between GPUs: NV# for NVLinks, and XGMI for AMD's links, which `nvidia-smi` does not name."""

    def __init__(self, topology: NcclTopology) -> None:
        gpus = {node.id for node in topology.nodes if node.kind == "gpu"}
        self.direct: dict[frozenset[str], str] = {}
        self._to_switches: Counter[str] = Counter()
        for link in topology.links:
            if link.target in gpus:
                ends = frozenset((link.gpu, link.target))
                self.direct[ends] = "XGMI" if link.kind == "xgmi" else f"NV{link.count}"
            else:
                self._to_switches[link.gpu] += link.count

    def relation(self, a: str, b: str) -> str | None:
        """Return the direct link, or else the number of NVLinks to the NVSwitches that both GPUs have."""
        direct = self.direct.get(frozenset((a, b)), "NV0")
        if direct != "NV0":
            return direct
        count = min(self._to_switches[a], self._to_switches[b])
        return f"NV{count}" if count else None


def _from_sysfs(machine: Machine) -> tuple[list[TopologyNode], list[str]]:
    if not machine.pci_addresses:
        raise NotReadError("the input has no device of /sys/bus/pci/devices")
    parents: dict[str, str | None] = {}  # parents of the devices, and of the bridges above them
    problems = []
    for address in machine.pci_addresses:
        if pci_kind(machine, address) not in _DEVICES:
            continue
        path = _ADDRESS.findall(machine.snapshot.links.get(f"/sys/bus/pci/devices/{address}", ""))
        if not path or path[-1] != address:
            problems.append(f"the bridges above {address} were not read")
            path = [address]
        for upper, lower in zip([None, *path], path, strict=False):
            parents.setdefault(lower, upper)
    numa_nodes = {address: _sysfs_numa_node(machine, address) for address in parents}
    nodes = _cpu_nodes(numa_nodes.values())
    for address, parent in parents.items():
        kind = _sysfs_kind(machine, address, parent)
        nodes.append(
            TopologyNode(
                id=address,
                kind=kind,
                name=_name(machine, address, kind),
                parent=parent or _cpu_id(numa_nodes[address]),
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


def _cpu_id(numa_node: int | None) -> str:
    return "NUMA node unknown" if numa_node is None else f"NUMA {numa_node}"


def _cpu_nodes(numa_nodes: Iterable[int | None]) -> list[TopologyNode]:
    """Return a node for each distinct number, in order, the unknown one last."""
    distinct = set(numa_nodes)
    ordered: list[int | None] = [*sorted(number for number in distinct if number is not None)]
    if None in distinct:
        ordered.append(None)
    return [TopologyNode(id=_cpu_id(number), kind="cpu", name=_cpu_id(number), numa_node=number) for number in ordered]


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


def _from_lspci(machine: Machine) -> tuple[list[TopologyNode], list[str]]:
    devices = {device.address: device for device in machine.lspci}
    bridges = {device.secondary_bus: device.address for device in machine.lspci if device.secondary_bus}
    parents = _lspci_parents(machine, bridges)
    tops = [address for address, parent in parents.items() if parent is None]
    nodes = _cpu_nodes(devices[address].numa_node for address in tops)
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
                parent=parent or _cpu_id(device.numa_node),
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
        if lspci_kind(device.kind, device.name) not in _DEVICES:
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


def _from_nccl(machine: Machine) -> tuple[list[TopologyNode], list[str]]:
    topology = machine.nccl_topology
    return list(topology.nodes), list(topology.problems)


def _from_matrix(matrix: TopologyMatrix) -> list[TopologyNode]:
    cpus = {device: _cpu_of(matrix, device) for device in matrix.devices}
    numa_nodes = {cpu: count_in(cpu.removeprefix("NUMA ")) for cpu in sorted(set(cpus.values()), key=natural)}
    nodes = [TopologyNode(id=cpu, kind="cpu", name=cpu, numa_node=numa_node) for cpu, numa_node in numa_nodes.items()]
    for device in matrix.devices:
        cpu = cpus[device]
        nodes.append(
            TopologyNode(
                id=device,
                kind="gpu" if device.startswith("GPU") else "nic",
                name=matrix.names.get(device, device),
                parent=cpu,
                numa_node=numa_nodes[cpu],
            )
        )
    return nodes


def _cpu_of(matrix: TopologyMatrix, device: str) -> str:
    """Return `NUMA 1`, or `NUMA 0,3-9` for a list of nodes.

    The row of a NIC has no node: the NIC takes that of the GPUs at NODE or nearer, if these agree.
    """
    node = matrix.numa.get(device)
    if node is None and not device.startswith("GPU"):
        near_gpus = [gpu for gpu in matrix.gpus if matrix.cells.get((gpu, device)) in ("PIX", "PXB", "PHB", "NODE")]
        nodes = {matrix.numa.get(gpu) for gpu in near_gpus}
        node = nodes.pop() if len(nodes) == 1 else None
    return _cpu_id(None) if node is None else f"NUMA {node}"
