"""Topology files that NCCL is given: whether they fit themselves and the machine, and whether one is missing."""

from __future__ import annotations

from flatout.doctor.check import CheckOutcome, check, info, named, ok, warn
from flatout.doctor.graph import GB, link_bytes_per_s
from flatout.doctor.machine import Machine
from flatout.doctor.parse.cpu_list import cpu_list_text, parse_cpu_list
from flatout.doctor.parse.nccl_topology import NcclTopology
from flatout.doctor.unknown import NotReadError


@check(
    "topology-nccl-file",
    "software",
    title="the topology file for NCCL fits itself and this machine",
    read="the XML of NCCL_TOPO_FILE, or the one given, against sysfs cpulist of each NUMA node",
    expected="another CPU mask on each NUMA node, as the kernel has it; no switch with a link slower than those below",
    source="known defects of published files: equal or swapped masks, links of virtual bridges",
    cost="NCCL binds its threads to CPUs of the wrong socket, or plans with a bandwidth that is not there",
    fix="take the vendor's current file, or correct `affinity`, `link_speed` and `link_width`",
    when_wrong="a file that is meant for another machine than this one",
)
def nccl_file(machine: Machine) -> CheckOutcome:
    topology = machine.nccl_topology
    if not topology.is_whole:
        raise NotReadError(topology.problems[0])
    problems = []
    known = {name: cpus for name, cpus in topology.affinity.items() if cpus}
    names = list(known)
    for number, name in enumerate(names):
        if same := [other for other in names[number + 1 :] if known[other] & known[name]]:
            problems.append(f"{name} shares CPUs with {named(same)}")
            break
    for name, cpus in known.items():
        text = machine.optional(f"/sys/devices/system/node/node{name.removeprefix('NUMA ')}/cpulist")
        if text and parse_cpu_list(text) != cpus:
            problems.append(f"{name} has CPUs {cpu_list_text(cpus)}, but the kernel says {text}")
    problems += _narrow_uplinks(topology)
    if problems:
        return warn("; ".join(problems[:4]))
    if topology.problems:
        return info(
            f"{topology.problems[0]}{f' (and {len(topology.problems) - 1} more)' if topology.problems[1:] else ''}"
        )
    return ok(f"{len(known)} NUMA nodes, each with CPUs of its own")


def _narrow_uplinks(topology: NcclTopology) -> list[str]:
    """Switches whose link carries less than one link below, as of virtual bridges: NCCL plans with what it reads."""
    by_id = {node.id: node for node in topology.nodes}
    slow = []
    for node in topology.nodes:
        upper = by_id.get(node.parent or "")
        if (
            node.kind not in ("gpu", "nic")
            or upper is None
            or upper.kind != "switch"
            or not node.link
            or not upper.link
        ):
            continue
        above = link_bytes_per_s(upper.link.speed_gt_per_s, upper.link.width)
        below = link_bytes_per_s(node.link.speed_gt_per_s, node.link.width or 1)
        if above is not None and below is not None and above < below:
            slow.append(
                f"the link of {upper.id} is {upper.link.speed_gt_per_s:g} GT/s x{upper.link.width} "
                f"({above / GB:.2g} GB/s), for {node.id} below"
            )
    return slow


@check(
    "topology-nccl-file-missing",
    "software",
    title="in a virtual machine with several GPUs, NCCL is told the topology that is hidden",
    read="NCCL_TOPO_FILE; /var/run/nvidia-topologyd/virtualTopology.xml; whether this is a virtual machine",
    expected="a topology file in a virtual machine with 4 or more GPUs and RDMA NICs",
    source="Azure and AWS image documentation; nccl issues (51 to 365 GB/s with the file)",
    cost="NCCL pairs GPUs with far NICs and lays rings across sockets: a fraction of the bandwidth",
    fix="set NCCL_TOPO_FILE to the vendor's file for this machine type",
    when_wrong="the vendor's network plugin brings its own file (aws-ofi-nccl)",
)
def nccl_file_missing(machine: Machine) -> CheckOutcome:
    if not machine.is_virtual:
        return info("this is no virtual machine")
    path = machine.environment.get("NCCL_TOPO_FILE")
    if path:
        if machine.is_absent(path):
            return warn(f"NCCL_TOPO_FILE={path}, but there is no such file")
        return ok(f"NCCL_TOPO_FILE={path}") if machine.file(path) else warn(f"NCCL_TOPO_FILE={path} is empty")
    standard = "/var/run/nvidia-topologyd/virtualTopology.xml"
    if machine.optional(standard):
        return ok(standard)
    num_gpus = machine.num_gpus
    if num_gpus < 4:
        return info(f"{num_gpus} GPUs need none")
    if not machine.rdma_devices:
        return info("no RDMA device")
    return warn(f"this virtual machine has {num_gpus} GPUs and RDMA devices, and no topology file")
