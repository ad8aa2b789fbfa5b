"""Checks of device placement: shared links, and the distances between GPUs and NICs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from flatout.doctor.check import check, info, named, need, ok, warn, with_missing
from flatout.doctor.graph import GB, children, link_bytes_per_s, path_up, topology_of
from flatout.doctor.machine import AMD_CHIPSET, INTEL, NCCL_TOPOLOGY, Machine, natural
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.unknown import NotReadError
from flatout.records.doctor import PcieLink, Topology, TopologyNode

_READ = "PCIe tree of sysfs, else `lspci -vvv`, else NCCL's topology XML"
_MATRIX = "`nvidia-smi topo -m`, else the PCIe tree"
_BRIDGES = ("root_port", "chipset_port", "switch", "bridge")
_RELATIONS = ("PIX", "PXB", "PHB", "NODE", "SYS")  # the nearest first
_BELOW_ONE_SWITCH = ("PIX", "PXB")
_RDMA_NAME = re.compile(r"mlx|bnxt_re|irdma|efa|rdma|Mellanox|Infiniband")
_CHIPSET_VENDORS = {INTEL, AMD_CHIPSET}  # vendors whose chipsets can be recognized

Nearness = Mapping[str, Mapping[str, str]]  # GPU -> NIC -> relation


def known_topology(machine: Machine) -> Topology:
    """Return the topology. Raises NotReadError if the input has none."""
    topology = topology_of(machine)
    if topology is None:
        raise NotReadError("the input has no topology")
    return topology


def _tree(machine: Machine) -> Topology:
    """Return the topology. Raises NotReadError if it has no bridges."""
    topology = topology_of(machine)
    if topology is not None and any(node.kind in _BRIDGES for node in topology.nodes):
        return topology
    if machine.is_surely_virtual:
        raise NotReadError("this virtual machine shows no PCIe bridges")
    raise NotReadError("the input has no PCIe tree with bridges")


def gpus_of(topology: Topology) -> list[TopologyNode]:
    """Return its GPUs. Raises NotReadError if it has none."""
    gpus = [node for node in topology.nodes if node.kind == "gpu"]
    if not gpus:
        raise NotReadError("the input has no GPU")
    return gpus


@check(
    "topology-shared-uplink",
    "gpu",
    topic="PCIe uplinks shared by GPUs",
    read=_READ,
    expected="one root port per GPU; GPUs behind a switch share its uplink",
    source="PCI-SIG base specification: bandwidth of a link by generation and lanes",
    cost="GPUs that copy to or from the host at the same time each get a share of the uplink",
    fix="move cards if slots are free; otherwise load the ranks' batches at different times, or prefetch",
    when_wrong="servers are built this way: traffic between GPUs and NICs behind one switch does not use the uplink",
    traffic="pcie",
)
def shared_uplink(machine: Machine) -> CheckOutcome:
    topology = _tree(machine)
    by_id = {node.id: node for node in topology.nodes}
    gpus = gpus_of(topology)
    gpus_by_port: defaultdict[str, list[str]] = defaultdict(list)
    for gpu in gpus:
        ports = [node for node in path_up(by_id, gpu) if node.kind in ("root_port", "chipset_port")]
        if ports:
            gpus_by_port[ports[-1].id].append(gpu.id)
    need(list(gpus_by_port), "the input does not show the root port of any GPU")
    shared = {port: users for port, users in gpus_by_port.items() if len(users) > 1}
    if not shared:
        num_missing = len(gpus) - len(gpus_by_port)
        separate = ok(f"{len(gpus_by_port)} GPUs, each behind a separate root port")
        return with_missing(separate, num_missing, "GPUs have no root port in the input")
    parts = [f"{', '.join(users)} behind {port}, {_bandwidth(by_id[port].link)}" for port, users in shared.items()]
    more = "; ..." if len(parts) > 4 else ""
    return info(f"shared: {'; '.join(parts[:4])}{more}")


def _bandwidth(link: PcieLink | None) -> str:
    rate = None
    if link is not None:
        # An idle link is slow, so its maximum speed counts here, but only with the lanes that it uses.
        rate = link_bytes_per_s(link.max_speed_gt_per_s or link.speed_gt_per_s, link.width)
    return "of unknown bandwidth" if rate is None else f"of {rate / GB:.0f} GB/s"


@check(
    "topology-chipset",
    "host",
    topic="devices behind the chipset",
    read="sysfs: root ports at 0000:00:1b to 0000:00:1d of Intel, and switches 43xx and 57ad of AMD, are the chipset's",
    expected="GPUs, NICs of the fabric and NVMe disks are on the CPU's own ports",
    source="Intel chipset datasheets: the chipset's ports share one DMI link; https://pci-ids.ucw.cz for AMD's",
    cost="all devices behind the chipset share one link, often 4 to 8 GB/s, so each copy takes longer",
    fix="move the card to a slot that is wired to the CPU",
    when_wrong="a chipset that is newer than this list is mistaken for a switch on the board",
    traffic="pcie",
)
def chipset(machine: Machine) -> CheckOutcome:
    topology = _tree(machine)
    if "sysfs" not in topology.sources:
        raise NotReadError("only sysfs shows the vendor of a root port")
    by_id = {node.id: node for node in topology.nodes}
    behind: dict[str, list[str]] = {"gpu": [], "nic": [], "storage": []}
    for node in topology.nodes:
        is_behind = any(above.kind == "chipset_port" for above in path_up(by_id, node))
        if is_behind and node.kind in behind:
            behind[node.kind].append(node.id)
    if behind["gpu"]:
        return warn(f"GPUs behind the chipset: {named(behind['gpu'])}")
    others = behind["nic"] + behind["storage"]
    if others:
        return info(f"behind the chipset: {named(others)}")
    roots = [node.id for node in topology.nodes if node.kind == "root_port"]
    vendors = {machine.pci_file(root, "vendor") or "?" for root in roots}
    other_vendors = sorted(vendors - _CHIPSET_VENDORS)
    if other_vendors:
        raise NotReadError(f"the vendor of the root ports is {named(other_vendors)}, whose chipsets are unknown")
    return ok("no device that was found is behind a chipset")


@check(
    "topology-narrow-path",
    "host",
    topic="PCIe lanes between devices and the CPU",
    read=_READ + ": lanes of each link, current and maximum (speed is not judged: an idle link is slow)",
    expected="each link of a GPU or NIC, up to the CPU, has all the lanes that both of its ends support",
    source="vendor: what both ends of the link report as their maximum",
    cost="half the lanes mean half the bandwidth for everything below that link",
    fix="reseat the card, riser or cable; check bifurcation in the firmware",
    when_wrong="switch ports that are wired to fewer lanes by design",
    traffic="pcie",
)
def narrow_path(machine: Machine) -> CheckOutcome:
    topology = known_topology(machine)
    by_id = {node.id: node for node in topology.nodes}
    narrow: dict[str, str] = {}
    shares: list[float] = []  # of the lanes that each could have
    num_read = num_missing = 0
    for device in topology.nodes:
        if device.kind not in ("gpu", "nic"):
            continue
        lanes = _lanes(device)
        if lanes is None:
            num_missing += 1
            continue
        num_read += 1
        if lanes.now < lanes.most:
            narrow[device.id] = f"{device.id} ({device.kind}): x{lanes.now} of x{lanes.most}"
            shares.append(lanes.now / lanes.most)
        for switch in path_up(by_id, device):
            uplink = _lanes(switch) if _is_uplink(topology, switch) else None
            if uplink is not None and uplink.now < min(uplink.most, lanes.most):
                narrow[switch.id] = f"{switch.id} (switch): x{uplink.now} of x{uplink.most}"
                shares.append(uplink.now / min(uplink.most, lanes.most))
    if not num_read:
        raise NotReadError("no link of a GPU or NIC reports its current and maximum lanes")
    if narrow:
        return warn(f"PCIe lanes are missing: {named(narrow.values())}", bandwidth_share=min(shares))
    return with_missing(ok(f"{num_read} devices have all their lanes"), num_missing, "devices reported no value")


class _Lanes(NamedTuple):
    now: int
    most: int


def _lanes(node: TopologyNode) -> _Lanes | None:
    link = node.link
    if link is None or link.width is None or link.max_width is None:
        return None
    return _Lanes(link.width, link.max_width)


def _is_uplink(topology: Topology, node: TopologyNode) -> bool:
    """Whether this is a switch's port towards the CPU.

    The link between a port and a device is judged at the device.
    """
    return node.kind == "switch" and all(child.kind == "switch" for child in children(topology, node.id))


def _nearness(machine: Machine) -> Nearness:
    """Return how near each NIC of the fabric is to each GPU. Raises NotReadError if no pair is known."""
    topology = known_topology(machine)
    nodes = {node.id: node for node in topology.nodes}
    is_nccl = NCCL_TOPOLOGY in topology.sources
    if is_nccl and not machine.nccl_topology.is_whole:
        raise NotReadError(f"a nearer NIC may be missing: {machine.nccl_topology.problems[0]}")
    is_fabric_nic = _is_nic if is_nccl else _is_rdma  # NCCL's XML has no other NICs
    near: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for pair in topology.pairs:
        if pair.relation not in _RELATIONS:
            continue
        for gpu, nic in ((pair.a, pair.b), (pair.b, pair.a)):
            if _is_gpu(nodes, gpu) and is_fabric_nic(nodes, nic):
                near[gpu][nic] = pair.relation
    if not near:
        machine.need_rdma_device()
        raise NotReadError("the input has no pair of a GPU and an RDMA NIC")
    return near


def _is_gpu(nodes: Mapping[str, TopologyNode], name: str) -> bool:
    return nodes[name].kind == "gpu" if name in nodes else name.startswith("GPU")


def _is_nic(nodes: Mapping[str, TopologyNode], name: str) -> bool:
    if name in nodes and nodes[name].kind == "nic":
        return True
    return _is_rdma(nodes, name)


def _is_rdma(nodes: Mapping[str, TopologyNode], name: str) -> bool:
    if name not in nodes:
        return not name.startswith("GPU")
    node = nodes[name]
    has_rdma_name = ":" not in name or _RDMA_NAME.search(node.name) is not None
    return node.kind == "nic" and has_rdma_name


def _nearest(nics: Mapping[str, str]) -> str:
    return min(nics.values(), key=_RELATIONS.index)


def _incomplete(machine: Machine, near: Nearness) -> set[str]:
    """Return the GPUs for which not every NIC is known: their rows may be truncated."""
    most = max(len(nics) for nics in near.values())
    try:
        gpus = list(machine.matrix.gpus)
        most = max(most, len(machine.matrix.nics))
    except NotReadError:
        topology = topology_of(machine)
        nodes = topology.nodes if topology else ()
        gpus = [node.id for node in nodes if node.kind == "gpu"]
    return {gpu for gpu in gpus if len(near.get(gpu, ())) < most}


@check(
    "topology-nic-distance",
    "network",
    topic="distance between GPUs and NICs",
    read=_MATRIX,
    expected="PIX or PXB (behind one PCIe switch); SYS crosses the link between sockets",
    source="NCCL documentation: NCCL_NET_GDR_LEVEL and NCCL's path types",
    cost="with SYS, GPUDirect is off by default, and each message crosses two sockets and host memory",
    fix="move NICs or GPUs between slots; in a virtual machine, give NCCL the vendor's topology file",
    when_wrong="virtual machines hide switches, so every pair shows as PHB, NODE or SYS",
    traffic="network",
)
def nic_distance(machine: Machine) -> CheckOutcome:
    near = _nearness(machine)
    incomplete = _incomplete(machine, near)
    nearest = {gpu: _nearest(nics) for gpu, nics in near.items()}
    # A truncated row can lack a nearer NIC, unless no NIC can be nearer.
    for gpu in incomplete & nearest.keys():
        if nearest[gpu] not in _BELOW_ONE_SWITCH:
            del nearest[gpu]
    need(list(nearest), "no row of the matrix is complete")
    outcome = _distance(machine, nearest)
    return with_missing(outcome, len(incomplete - nearest.keys()), "GPUs are unknown")


def _distance(machine: Machine, nearest: Mapping[str, str]) -> CheckOutcome:
    across_sockets = [gpu for gpu, how in nearest.items() if how == "SYS"]
    through_cpu = [f"{gpu}: {how}" for gpu, how in nearest.items() if how in ("PHB", "NODE")]
    num_near = len(nearest) - len(across_sockets) - len(through_cpu)
    if num_near == len(nearest):
        return ok(f"{num_near} GPUs have a NIC at PIX or PXB")
    if not num_near and machine.is_surely_virtual:
        raise NotReadError("this virtual machine hides the switches, so no GPU and NIC appear to share one")
    if across_sockets and _are_numa_nodes(machine, across_sockets):
        raise NotReadError(
            f"SYS for {named(across_sockets)}: these GPUs are separate NUMA nodes (Grace), so SYS does not show "
            "whether the path crosses sockets"
        )
    if across_sockets:
        return warn(f"the nearest NIC is on another socket: {named(across_sockets)}")
    return info(f"through the CPU: {named(through_cpu)}")


def _are_numa_nodes(machine: Machine, gpus: list[str]) -> bool:
    """Whether the memory of each of these GPUs is a NUMA node, by `GPU NUMA ID`."""
    try:
        return all(gpu in machine.matrix.gpu_numa for gpu in gpus)
    except NotReadError:
        return False


@check(
    "topology-nic-share",
    "network",
    topic="GPUs per NIC",
    read=_MATRIX,
    expected="every NIC is nearest to the same number of GPUs",
    source="NCCL takes the nearest NIC of each GPU",
    cost="GPUs that share a NIC get half its bandwidth while another NIC idles",
    fix="set NCCL_CROSS_NIC or NCCL_IB_HCA with care, or move cards",
    when_wrong="NICs for storage or management are counted like NICs of the fabric",
    traffic="network",
)
def nic_share(machine: Machine) -> CheckOutcome:
    near = _nearness(machine)
    nics = sorted({nic for relations in near.values() for nic in relations}, key=natural)
    if len(nics) == 1:
        return info(f"one NIC for {len(near)} GPUs")
    num_incomplete = len(_incomplete(machine, near))
    is_all_far = all(set(relations.values()) == {"SYS"} for relations in near.values())
    if is_all_far and not num_incomplete:
        return info(f"none of {len(nics)} NICs is nearest to any GPU: all are at SYS")
    num_gpus = {nic: sum(_is_nearest(nic, relations) for relations in near.values()) for nic in nics}
    if len(set(num_gpus.values())) == 1:
        shown = f"{len(nics)} NICs, each nearest to {num_gpus[nics[0]]} GPUs"
        return with_missing(ok(shown), num_incomplete, "GPUs are unknown")
    if num_incomplete:
        raise NotReadError(f"the NICs of {num_incomplete} GPUs are unknown")
    shown = ", ".join(f"{nic}: {count}" for nic, count in num_gpus.items())
    return info(f"GPUs for which each NIC is nearest: {shown}")


def _is_nearest(nic: str, relations: Mapping[str, str]) -> bool:
    return relations.get(nic) == _nearest(relations)
