"""Checks of the topology file for NCCL: whether it is consistent, fits the machine, or is missing."""

from __future__ import annotations

from flatout.doctor.check import check, info, named, ok, warn
from flatout.doctor.graph import GB, link_bytes_per_s
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.parse.cpu_list import cpu_list_text, parse_cpu_list
from flatout.doctor.parse.nccl_topology import NcclTopology
from flatout.doctor.unknown import NotReadError
from flatout.records.doctor import TopologyNode

_STANDARD_FILE = "/var/run/nvidia-topologyd/virtualTopology.xml"


@check(
    "topology-nccl-file",
    "software",
    topic="NCCL topology file",
    read="the XML of NCCL_TOPO_FILE, or the one given, compared with sysfs cpulist of each NUMA node",
    expected="a separate CPU mask per NUMA node, equal to the kernel's; no switch with a slower link than those below",
    source="known defects of published files: equal or swapped masks, links of virtual bridges",
    cost="NCCL binds its threads to CPUs of the wrong socket, or plans with a bandwidth that does not exist",
    fix="use the vendor's current file, or correct `affinity`, `link_speed` and `link_width`",
    when_wrong="the file is meant for another machine",
    traffic="gpus",
)
def nccl_file(machine: Machine) -> CheckOutcome:
    topology = machine.nccl_topology
    if not topology.is_whole:
        raise NotReadError(topology.problems[0])
    cpus = {name: mask for name, mask in topology.affinity.items() if mask}
    problems = [*_shared_cpus(cpus), *_other_cpus(machine, cpus), *_narrow_uplinks(topology)]
    if problems:
        return warn(f"the NCCL topology file is wrong: {'; '.join(problems[:4])}")
    if topology.problems:
        first, *others = topology.problems
        more = f" (and {len(others)} more)" if others else ""
        return info(f"{first}{more}")
    return ok(f"{len(cpus)} NUMA nodes, each with separate CPUs")


def _shared_cpus(cpus: dict[str, frozenset[int]]) -> list[str]:
    """Return the first NUMA node that shares CPUs with later ones."""
    names = list(cpus)
    for number, name in enumerate(names):
        sharing = [other for other in names[number + 1 :] if cpus[other] & cpus[name]]
        if sharing:
            return [f"{name} shares CPUs with {named(sharing)}"]
    return []


def _other_cpus(machine: Machine, cpus: dict[str, frozenset[int]]) -> list[str]:
    """Return the NUMA nodes whose CPUs differ from those that the kernel reports."""
    problems = []
    for name, mask in cpus.items():
        kernel_list = machine.optional(f"/sys/devices/system/node/node{name.removeprefix('NUMA ')}/cpulist")
        if kernel_list and parse_cpu_list(kernel_list) != mask:
            problems.append(f"{name} has CPUs {cpu_list_text(mask)}, but in the kernel {kernel_list}")
    return problems


def _narrow_uplinks(topology: NcclTopology) -> list[str]:
    """Return switches whose uplink is slower than a link below, as virtual bridges have: NCCL trusts the file."""
    by_id = {node.id: node for node in topology.nodes}
    problems = []
    for device in topology.nodes:
        switch = by_id.get(device.parent or "")
        if device.kind not in ("gpu", "nic") or switch is None or switch.kind != "switch":
            continue
        uplink_rate = _link_bytes_per_s(switch)
        device_rate = _link_bytes_per_s(device, least_width=1)
        if uplink_rate is None or device_rate is None or uplink_rate >= device_rate:
            continue
        assert switch.link is not None
        problems.append(
            f"the link of {switch.id} is {switch.link.speed_gt_per_s:g} GT/s x{switch.link.width} "
            f"({uplink_rate / GB:.2g} GB/s), for {device.id} below"
        )
    return problems


def _link_bytes_per_s(node: TopologyNode, *, least_width: int | None = None) -> float | None:
    if node.link is None:
        return None
    return link_bytes_per_s(node.link.speed_gt_per_s, node.link.width or least_width)


@check(
    "topology-nccl-file-missing",
    "software",
    topic="NCCL topology file in a virtual machine",
    read="NCCL_TOPO_FILE; /var/run/nvidia-topologyd/virtualTopology.xml; whether this is a virtual machine",
    expected="a topology file, if a virtual machine has 4 or more GPUs and RDMA NICs",
    source="Azure and AWS image documentation; nccl issues (51 to 365 GB/s with the file)",
    cost="NCCL pairs GPUs with distant NICs and builds rings across sockets, with a fraction of the bandwidth",
    fix="set NCCL_TOPO_FILE to the vendor's file for this machine type",
    when_wrong="the vendor's network plugin brings a separate file (aws-ofi-nccl)",
    traffic="gpus",
)
def nccl_file_missing(machine: Machine) -> CheckOutcome:
    if not machine.is_virtual:
        return info("this is not a virtual machine")
    path = machine.environment.get("NCCL_TOPO_FILE")
    if path:
        return _given_file(machine, path)
    if machine.optional(_STANDARD_FILE):
        return ok(_STANDARD_FILE)
    num_gpus = machine.num_gpus
    if num_gpus < 4:
        return info(f"{num_gpus} GPUs do not need a topology file")
    machine.need_rdma_device()
    return warn(f"this virtual machine has {num_gpus} GPUs and RDMA devices, and no topology file")


def _given_file(machine: Machine, path: str) -> CheckOutcome:
    if machine.is_absent(path):
        return warn(f"NCCL_TOPO_FILE={path}, but there is no such file")
    if not machine.file(path):
        return warn(f"NCCL_TOPO_FILE={path} is empty")
    return ok(f"NCCL_TOPO_FILE={path}")
