"""Machine -> Topology: one graph of CPUs, PCIe ports and switches, GPUs, NICs and disks.

The tree of PCIe comes from sysfs, else from `lspci -vvv`, else from NCCL's XML: the first that has GPUs or NICs. How
each pair of devices is connected comes from `nvidia-smi topo -m`, else it follows from the tree, as the driver does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from flatout.doctor.machine import Machine, natural
from flatout.doctor.parse.nccl_topology import NcclTopology
from flatout.doctor.parse.topology_matrix import TopologyMatrix
from flatout.doctor.unknown import NotReadError
from flatout.records.doctor import NodeKind, PcieLink, Topology, TopologyNode, TopologyPair

GB = 1e9
# Bytes/s of one lane and direction after line coding (8b/10b to 5 GT/s, 128b/130b to 32, FLIT beyond; PCI-SIG base
# specifications 2.0 to 6.0), before packet headers.
LANE_BYTES_PER_S: Mapping[float, float] = {2.5: 0.25e9, 5: 0.5e9, 8: 0.985e9, 16: 1.969e9, 32: 3.938e9, 64: 7.563e9}
_BRIDGE = ("switch", "bridge", "root_port", "chipset_port")
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def link_bytes_per_s(speed: float | None, width: int | None) -> float | None:
    """What a link carries in one direction; None where speed or width is unknown."""
    if speed is None or width is None:
        return None
    lane = LANE_BYTES_PER_S.get(speed)
    return None if lane is None else lane * width


def topology_of(machine: Machine) -> Topology | None:
    """None where no source says anything."""
    problems: list[str] = []
    sources: list[str] = []
    nodes: list[TopologyNode] = []
    for name, read in (("sysfs", _from_sysfs), ("lspci", _from_lspci), ("NCCL topology XML", _from_nccl)):
        try:
            found, said = read(machine)
        except NotReadError:
            continue
        if any(node.kind in ("gpu", "nic") for node in found):
            nodes, sources = found, [name]
            problems += said
            break
    pairs: list[TopologyPair] = []
    try:
        matrix = machine.matrix
    except NotReadError:
        pairs = _pairs_of_tree(nodes)
        if sources == ["NCCL topology XML"]:
            pairs = _with_links(pairs, machine.nccl_topology)
    else:
        sources.append("nvidia-smi topo -m")
        problems += matrix.problems
        pairs = [
            TopologyPair(a=a, b=b, relation=r) for (a, b), r in matrix.cells.items() if _before(matrix.devices, a, b)
        ]
        if not nodes:
            nodes = _from_matrix(machine)
    if not nodes:
        return None
    return Topology(sources=tuple(sources), nodes=tuple(nodes), pairs=tuple(pairs), problems=tuple(problems))


def _before(devices: tuple[str, ...], a: str, b: str) -> bool:
    return devices.index(a) < devices.index(b)


def children(topology: Topology, parent: str | None) -> list[TopologyNode]:
    return [node for node in topology.nodes if node.parent == parent]


def path_up(nodes: Mapping[str, TopologyNode], node: TopologyNode) -> list[TopologyNode]:
    """The nodes above, nearest first, up to the CPU."""
    found: list[TopologyNode] = []
    while node.parent is not None and node.parent in nodes and len(found) < len(nodes):
        node = nodes[node.parent]
        found.append(node)
    return found


def relation(nodes: Mapping[str, TopologyNode], a: TopologyNode, b: TopologyNode) -> str | None:
    """PIX, PXB, PHB, NODE or SYS as `nvidia-smi topo -m` defines them; None where NUMA nodes are needed and unknown."""
    above_a, above_b = path_up(nodes, a), path_up(nodes, b)
    ids_b = {node.id for node in above_b}
    common = next((node for node in above_a if node.id in ids_b), None)
    if common is not None and common.kind in _BRIDGE:
        between = [
            n for n in (*above_a, *above_b) if n.kind == "switch" and common.id in {p.id for p in path_up(nodes, n)}
        ]
        # A switch is one port up and one down for each device; more bridges than these are PXB.
        return "PIX" if len(between) <= 2 else "PXB"
    if common is not None and common.kind == "cpu" and len(_roots(above_a) | _roots(above_b)) == 1:
        return "PHB"
    if a.numa_node is None or b.numa_node is None:
        return None
    return "NODE" if a.numa_node == b.numa_node else "SYS"


def _roots(above: list[TopologyNode]) -> set[str]:
    """The PCI domain and bus of the host bridge."""
    ports = [node.id for node in above if _ADDRESS.fullmatch(node.id)]
    return {ports[-1][:7]} if ports else set()


def _pairs_of_tree(nodes: list[TopologyNode]) -> list[TopologyPair]:
    by_id = {node.id: node for node in nodes}
    # Where a NIC without an address is plugged in is not known.
    devices = [node for node in nodes if node.kind in ("gpu", "nic") and _ADDRESS.fullmatch(node.id)]
    return [
        TopologyPair(a=a.id, b=b.id, relation=how)
        for number, a in enumerate(devices)
        for b in devices[number + 1 :]
        if "gpu" in (a.kind, b.kind) and (how := relation(by_id, a, b)) is not None
    ]


def _with_links(pairs: list[TopologyPair], topology: NcclTopology) -> list[TopologyPair]:
    """NVLink goes before PCIe: NV# of the links between two GPUs or, through NVSwitches, of those that both have.

    XGMI is AMD's link between two GPUs; `nvidia-smi` has no word for it.
    """
    gpus = {node.id for node in topology.nodes if node.kind == "gpu"}
    direct: dict[frozenset[str], tuple[str, int]] = {}
    to_switches: dict[str, int] = {}
    for link in topology.links:
        if link.target in gpus:
            direct[frozenset((link.gpu, link.target))] = (link.kind, link.count)
        else:
            to_switches[link.gpu] = to_switches.get(link.gpu, 0) + link.count

    def relation_of(pair: TopologyPair) -> str:
        kind, count = direct.get(frozenset((pair.a, pair.b)), ("nvlink", 0))
        if kind == "xgmi":
            return "XGMI"
        if not count and {pair.a, pair.b} <= set(to_switches):
            count = min(to_switches[pair.a], to_switches[pair.b])
        return f"NV{count}" if count else pair.relation

    found = [TopologyPair(a=pair.a, b=pair.b, relation=relation_of(pair)) for pair in pairs]
    # A pair whose PCIe path is not known may be linked all the same.
    known = {frozenset((pair.a, pair.b)) for pair in pairs}
    found += [
        TopologyPair(a=min(ends), b=max(ends), relation="XGMI" if kind == "xgmi" else f"NV{count}")
        for ends, (kind, count) in direct.items()
        if ends not in known and len(ends) == 2
    ]
    return found


def _from_sysfs(machine: Machine) -> tuple[list[TopologyNode], list[str]]:
    if not machine.pci_addresses:
        raise NotReadError("no device of /sys/bus/pci/devices was read")
    wanted: dict[str, str | None] = {}  # address -> the one above
    numa: dict[str, int | None] = {}
    problems = []
    for address in machine.pci_addresses:
        if pci_kind(machine, address) not in ("gpu", "nic", "storage", "nvswitch"):
            continue
        end = machine.snapshot.links.get(f"/sys/bus/pci/devices/{address}", "")
        above = _ADDRESS.findall(end)
        if not above or above[-1] != address:
            problems.append(f"where {address} is plugged in was not read")
            above = [address]
        for upper, lower in zip([None, *above], above, strict=False):
            wanted.setdefault(lower, upper)
    for address in wanted:
        text = machine.optional(f"/sys/bus/pci/devices/{address}/numa_node")
        numa[address] = int(text) if text and text.lstrip("-").isdecimal() and int(text) >= 0 else None
    nodes = _cpu_nodes(set(numa.values()))
    for address, upper in wanted.items():
        kind = pci_kind(machine, address)
        if kind == "bridge":
            kind = "root_port" if upper is None else "switch"
            if _is_chipset(machine, address) and (upper is None or not _is_chipset(machine, upper)):
                kind = "chipset_port"
        nodes.append(
            TopologyNode(
                id=address,
                kind=kind,
                name=_name(machine, address, kind),
                parent=upper or _cpu_id(numa[address]),
                numa_node=numa[address],
                link=sysfs_link(machine, address),
            )
        )
    return nodes, problems


def _cpu_id(numa: int | None) -> str:
    return "NUMA node unknown" if numa is None else f"NUMA {numa}"


def _cpu_nodes(numbers: set[int | None]) -> list[TopologyNode]:
    ordered = sorted(numbers, key=lambda number: (number is None, number or 0))
    return [TopologyNode(id=_cpu_id(number), kind="cpu", name=_cpu_id(number), numa_node=number) for number in ordered]


def pci_kind(machine: Machine, address: str) -> NodeKind:
    number = machine.pci_class(address)
    vendor = machine.optional(f"/sys/bus/pci/devices/{address}/vendor") or ""
    if (number.startswith("0x03") and vendor in ("0x10de", "0x1002")) or (
        number.startswith("0x12") and vendor == "0x1002"
    ):
        return "gpu"
    if number.startswith("0x0680") and vendor == "0x10de":
        return "nvswitch"
    if number.startswith("0x02"):
        return "nic"
    if number.startswith("0x0108"):
        return "storage"
    return "bridge" if number.startswith("0x0604") else "other"


def _is_chipset(machine: Machine, address: str) -> bool:
    """Ports of a chipset share its one narrow link to the CPU.

    Intel's root ports are devices 1b to 1d on bus 0. AMD's chipset is a switch below a root port of the CPU: 43xx are
    the 300 to 600 series, 57ad is X570 (https://pci-ids.ucw.cz, vendor 1022, 2024).
    """
    base = f"/sys/bus/pci/devices/{address}"
    vendor, device = machine.optional(f"{base}/vendor"), machine.optional(f"{base}/device") or ""
    if vendor == "0x8086":
        return re.fullmatch(r"0000:00:1[bcd]\.[0-7]", address) is not None
    return vendor == "0x1022" and re.fullmatch(r"0x(?:43[0-9a-f]{2}|57ad)", device) is not None


def _name(machine: Machine, address: str, kind: str) -> str:
    base = f"/sys/bus/pci/devices/{address}"
    if kind == "nic":
        rdma = [
            path.rpartition("/")[2]
            for path, end in machine.snapshot.links.items()
            if path.startswith("/sys/class/infiniband/") and path.count("/") == 4 and f"/{address}/" in end
        ]
        nets = [
            path.rpartition("/")[2]
            for path, end in machine.snapshot.links.items()
            if path.startswith("/sys/class/net/") and path.count("/") == 4 and f"/{address}/" in end
        ]
        return " ".join([*rdma, *nets]) or "network controller"
    vendor, device = machine.optional(f"{base}/vendor") or "?", machine.optional(f"{base}/device") or "?"
    return f"{vendor.removeprefix('0x')}:{device.removeprefix('0x')}"


def sysfs_link(machine: Machine, address: str) -> PcieLink | None:
    base = f"/sys/bus/pci/devices/{address}"

    def speed(name: str) -> float | None:
        match = re.match(r"([\d.]+) GT/s", machine.optional(f"{base}/{name}") or "")
        return float(match[1]) if match else None

    def width(name: str) -> int | None:
        text = machine.optional(f"{base}/{name}") or ""
        return int(text) if text.isdecimal() and 0 < int(text) <= 32 else None

    link = PcieLink(
        speed_gt_per_s=speed("current_link_speed"),
        width=width("current_link_width"),
        max_speed_gt_per_s=speed("max_link_speed"),
        max_width=width("max_link_width"),
    )
    return None if link == PcieLink() else link


def _from_lspci(machine: Machine) -> tuple[list[TopologyNode], list[str]]:
    devices = machine.lspci
    above = {device.secondary_bus: device.address for device in devices if device.secondary_bus}
    by_address = {device.address: device for device in devices}
    wanted: dict[str, str | None] = {}
    for device in devices:
        if lspci_kind(device.kind, device.name) in ("gpu", "nic", "storage", "nvswitch"):
            address: str | None = device.address
            while address is not None and address not in wanted:
                upper = above.get(address[:7])
                wanted[address] = upper if upper != address else None
                address = wanted[address]
    nodes = _cpu_nodes({by_address[a].numa_node for a, upper in wanted.items() if upper is None})
    for address, upper in wanted.items():
        device = by_address[address]
        kind = lspci_kind(device.kind, device.name)
        if kind == "bridge":
            kind = "root_port" if device.is_root_port else "switch" if upper else "bridge"
        nodes.append(
            TopologyNode(
                id=address,
                kind=kind,
                name=device.name,
                parent=upper or _cpu_id(device.numa_node),
                numa_node=device.numa_node,
                link=device.link,
            )
        )
    problems = [] if above else ["lspci shows no bridge's buses (it needs -vvv): what is behind which is unknown"]
    return nodes, problems


def lspci_kind(kind: str, name: str) -> NodeKind:
    if kind in ("3D controller", "VGA compatible controller", "Display controller", "Processing accelerators"):
        return "gpu" if re.search(r"NVIDIA|AMD|Advanced Micro", name) else "other"
    if kind == "Bridge" and "NVIDIA" in name:
        return "nvswitch"
    if kind in ("Ethernet controller", "Infiniband controller", "Network controller"):
        return "nic"
    if kind == "Non-Volatile memory controller":
        return "storage"
    return "bridge" if kind == "PCI bridge" else "other"


def _from_nccl(machine: Machine) -> tuple[list[TopologyNode], list[str]]:
    topology = machine.nccl_topology
    return list(topology.nodes), list(topology.problems)


def _from_matrix(machine: Machine) -> list[TopologyNode]:
    matrix = machine.matrix
    above = {device: _cpu_of(matrix, device) for device in matrix.devices}
    nodes = [
        TopologyNode(id=name, kind="cpu", name=name, numa_node=_single(name.removeprefix("NUMA ")))
        for name in sorted(set(above.values()), key=natural)
    ]
    for device in matrix.devices:
        kind: NodeKind = "gpu" if device.startswith("GPU") else "nic"
        nodes.append(
            TopologyNode(
                id=device,
                kind=kind,
                name=matrix.names.get(device, device),
                parent=above[device],
                numa_node=_single(above[device].removeprefix("NUMA ")),
            )
        )
    return nodes


def _cpu_of(matrix: TopologyMatrix, device: str) -> str:
    """`NUMA 1`, or of a list of nodes `NUMA 0,3-9`.

    The row of a NIC says nothing: it is where the GPUs are that are at NODE or nearer, if these agree.
    """
    said = matrix.numa.get(device)
    if said is None and not device.startswith("GPU"):
        near = {
            matrix.numa.get(gpu)
            for gpu in matrix.gpus
            if matrix.cells.get((gpu, device)) in ("PIX", "PXB", "PHB", "NODE")
        }
        said = next(iter(near)) if len(near) == 1 else None
    return _cpu_id(None) if said is None else f"NUMA {said}"


def _single(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
