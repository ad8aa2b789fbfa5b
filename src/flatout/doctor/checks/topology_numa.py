"""Checks of the NUMA node of each GPU, and of the CPUs near it that a process may use."""

from __future__ import annotations

import re

from flatout.doctor.check import check, named, need, ok, warn, with_missing
from flatout.doctor.checks.topology import gpus_of, known_topology
from flatout.doctor.machine import NCCL_TOPOLOGY, SMI_TOPOLOGY, Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.parse.cpu_list import cpu_list_text, parse_cpu_list
from flatout.doctor.unknown import NotReadError
from flatout.records.doctor import Topology, TopologyNode


@check(
    "topology-numa-known",
    "host",
    topic="NUMA nodes of the GPUs",
    read="sysfs numa_node of each GPU (-1: unknown), else `nvidia-smi topo -m`, NUMA Affinity",
    expected="a NUMA node for each GPU",
    source="Linux kernel documentation, sysfs-bus-pci",
    cost="ranks cannot be bound near their GPUs, so copies cross sockets by chance",
    fix="pass the topology through to the virtual machine, or turn on NUMA in the firmware",
    when_wrong="a machine with one NUMA node does not need it",
)
def numa_known(machine: Machine) -> CheckOutcome:
    topology = known_topology(machine)
    gpus = gpus_of(topology)
    without_node = [gpu for gpu in gpus if gpu.numa_node is None]
    if not without_node:
        if missing := _missing_gpus(machine, topology):
            raise NotReadError(f"known for {len(gpus)} GPUs, and others may be missing: {missing}")
        numbers = {str(gpu.numa_node) for gpu in gpus}
        return ok(f"{len(gpus)} GPUs on NUMA nodes {named(sorted(numbers))}")
    node_lists = [nodes for gpu in without_node if (nodes := _numa_node_list(gpu))]
    distinct_lists = sorted(set(node_lists))
    if len(node_lists) == len(without_node) and len(distinct_lists) > 1:
        # For example on Grace, where GPU memory is a NUMA node too, the GPUs have different lists.
        return ok(f"{len(gpus)} GPUs on NUMA nodes {named(distinct_lists)}")
    num_nodes = sum(name.startswith("node") for name in machine.names("/sys/devices/system/node"))
    if num_nodes == 1:
        return ok("there is only one NUMA node")
    unknown = named(gpu.id for gpu in without_node)
    if num_nodes:
        return warn(f"the NUMA node is unknown for {unknown} on a machine with {num_nodes} NUMA nodes")
    if node_lists:
        raise NotReadError(f"it is unknown which of the NUMA nodes {named(distinct_lists)} the GPUs are on")
    raise NotReadError(f"unknown for {unknown}, and the number of NUMA nodes is unknown")


def _numa_node_list(gpu: TopologyNode) -> str | None:
    """Return the list of NUMA nodes of a GPU that is on several nodes, e.g. `0,3-9`, or else None."""
    parent = str(gpu.parent)
    if "NUMA " not in parent:
        return None
    nodes = parent.removeprefix("NUMA ")
    return nodes if re.fullmatch(r"[\d,-]+", nodes) else None


def _missing_gpus(machine: Machine, topology: Topology) -> str | None:
    """Return why GPUs may be missing from the topology; None if all are present."""
    if NCCL_TOPOLOGY in topology.sources and not machine.nccl_topology.is_whole:
        return machine.nccl_topology.problems[0]
    if topology.sources != (SMI_TOPOLOGY,) or not machine.matrix.may_lack_gpus:
        return None
    if not machine.matrix.has_header:
        return "the header is missing"
    return f"rows are missing: {', '.join(machine.matrix.missing_rows)}"


def _cpus_near(machine: Machine) -> dict[str, frozenset[int]]:
    """Return the CPUs of each GPU's NUMA node; the GPUs are in the order of the driver's numbers."""
    try:
        gpus = [gpu.address for gpu in machine.gpus]
    except NotReadError:
        gpus = []
    lists = {gpu: machine.pci_file(gpu, "local_cpulist") for gpu in gpus}
    cpus = {gpu: parse_cpu_list(text) for gpu, text in lists.items() if text}
    if cpus:
        return cpus
    matrix = machine.matrix
    return {gpu: parse_cpu_list(matrix.cpus[gpu]) for gpu in matrix.gpus if gpu in matrix.cpus}


@check(
    "topology-cpu-binding",
    "host",
    topic="CPUs near the GPUs",
    read="/proc/self/status Cpus_allowed_list, against sysfs local_cpulist or `nvidia-smi topo -m`, CPU Affinity",
    expected="this process can use a CPU in each GPU's NUMA node; a process with LOCAL_RANK, in its own GPU's node",
    source="NCCL and PyTorch tuning guides: bind ranks near their GPU",
    cost="each copy to the GPU and each kernel launch crosses sockets",
    fix="`numactl --cpunodebind=N --membind=N`, `torchrun --numa-binding=node`, or `srun --cpu-bind`",
    when_wrong="in a container, the driver's CPU Affinity is narrowed to the cpuset, so a wrong cpuset looks right",
)
def cpu_binding(machine: Machine) -> CheckOutcome:
    allowed = machine.cpus_allowed
    near = _cpus_near(machine)
    need(list(near), "the input does not show which CPUs are near which GPU")
    own_gpu = _own_gpu(machine, list(near))
    shown = cpu_list_text(allowed)
    if own_gpu is not None:
        if allowed & near[own_gpu]:
            return ok(f"some of {shown} are near its GPU {own_gpu}")
        return warn(f"this rank can use {shown}, but its GPU {own_gpu} is near {cpu_list_text(near[own_gpu])}")
    far = [gpu for gpu, cpus in near.items() if not allowed & cpus]
    if far:
        return warn(f"none of the allowed CPUs {shown} is near {named(far)}")
    try:
        num_gpus = len(machine.gpus)
    except NotReadError:
        num_gpus = len(machine.matrix.gpus)
    outcome = ok(f"some of {shown} are near each of {len(near)} GPUs")
    return with_missing(outcome, num_gpus - len(near), "GPUs did not report their nearest CPUs")


def _own_gpu(machine: Machine, gpus: list[str]) -> str | None:
    """Return this rank's GPU; None if this process is not a rank, or if CUDA_VISIBLE_DEVICES renumbers the GPUs."""
    rank = machine.environment.get("LOCAL_RANK", "")
    if not rank.isdecimal() or machine.environment.get("CUDA_VISIBLE_DEVICES"):
        return None
    return gpus[int(rank)] if int(rank) < len(gpus) else None
