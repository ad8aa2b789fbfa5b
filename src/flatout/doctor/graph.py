"""Build the Topology of a Machine: one graph of CPUs, PCIe ports and switches, GPUs, NICs and disks.

The PCIe tree comes from the first source that has GPUs or NICs: sysfs, `lspci -vvv`, or NCCL's XML. The relation of
each pair of devices comes from `nvidia-smi topo -m`; without it, it is derived from the tree, as the driver does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations

import msgspec

from flatout.doctor.cpu_nodes import cpu_id
from flatout.doctor.lspci_tree import from_lspci
from flatout.doctor.machine import NCCL_TOPOLOGY, SMI_TOPOLOGY, Machine, natural
from flatout.doctor.parse.nccl_topology import NcclTopology
from flatout.doctor.parse.number import count_in
from flatout.doctor.parse.topology_matrix import TopologyMatrix
from flatout.doctor.sysfs_tree import ADDRESS, from_sysfs
from flatout.doctor.unknown import NotReadError
from flatout.records.doctor import Topology, TopologyNode, TopologyPair

GB = 1e9
# Bytes/s of one lane and direction after line coding (8b/10b to 5 GT/s, 128b/130b to 32, FLIT beyond; PCI-SIG base
# specifications 2.0 to 6.0), before packet headers.
LANE_BYTES_PER_S: Mapping[float, float] = {2.5: 0.25e9, 5: 0.5e9, 8: 0.985e9, 16: 1.969e9, 32: 3.938e9, 64: 7.563e9}
_MOST_DEVICES = 256  # paths are compared for each pair
_BRIDGES = ("switch", "bridge", "root_port", "chipset_port")


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
    for source, read in (("sysfs", from_sysfs), ("lspci", from_lspci), (NCCL_TOPOLOGY, _from_nccl)):
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
    ports = [node.id for node in above if ADDRESS.fullmatch(node.id)]
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
    devices = [node for node in nodes if node.kind in ("gpu", "nic") and ADDRESS.fullmatch(node.id)]
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
    return cpu_id(None) if node is None else f"NUMA {node}"
