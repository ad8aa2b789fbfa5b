"""How devices are placed: what shares a link, what is far from what, and which CPUs are near."""

from __future__ import annotations

import re

from flatout.doctor.check import CheckOutcome, check, info, named, need, ok, warn, with_missing
from flatout.doctor.graph import GB, children, link_bytes_per_s, path_up, topology_of
from flatout.doctor.machine import Machine, natural
from flatout.doctor.parse.cpu_list import cpu_list_text, parse_cpu_list
from flatout.doctor.unknown import NotReadError
from flatout.records.doctor import Topology, TopologyNode

_READ = "PCIe tree of sysfs, else `lspci -vvv`, else NCCL's topology XML"
_MATRIX = "`nvidia-smi topo -m`, else the PCIe tree"
_ORDER = ("PIX", "PXB", "PHB", "NODE", "SYS")


def _tree(machine: Machine) -> Topology:
    """The topology, where it has bridges; raises NotReadError else."""
    topology = topology_of(machine)
    if topology is None or not any(
        node.kind in ("root_port", "chipset_port", "switch", "bridge") for node in topology.nodes
    ):
        try:
            hidden = machine.is_virtual
        except NotReadError:
            hidden = False
        raise NotReadError(
            "this virtual machine shows no PCIe bridges" if hidden else "no PCIe tree with bridges is in what was read"
        )
    return topology


def _gpus(topology: Topology) -> list[TopologyNode]:
    found = [node for node in topology.nodes if node.kind == "gpu"]
    if not found:
        raise NotReadError("no GPU is in what was read")
    return found


def _gb(node: TopologyNode) -> str:
    link = node.link
    # An idle link is slow: what it can is what counts here, but only the lanes that it has.
    rate = link_bytes_per_s(link.max_speed_gt_per_s or link.speed_gt_per_s, link.width) if link else None
    return "of unknown bandwidth" if rate is None else f"of {rate / GB:.0f} GB/s"


@check(
    "topology-shared-uplink",
    "gpu",
    title="no two GPUs share one PCIe link to the CPU",
    read=_READ,
    expected="one root port a GPU; behind a switch, GPUs share the switch's uplink",
    source="PCI-SIG base specification: bandwidth of a link by generation and lanes",
    cost="GPUs that copy to or from the host at once each get their share of the uplink",
    fix="with free slots, move cards; else let the GPUs' ranks load their batches at different times, or prefetch",
    when_wrong="traffic between GPUs and NICs behind the same switch does not pass the uplink, as servers intend",
)
def shared_uplink(machine: Machine) -> CheckOutcome:
    topology = _tree(machine)
    by_id = {node.id: node for node in topology.nodes}
    uplinks: dict[str, list[str]] = {}
    for gpu in _gpus(topology):
        above = [node for node in path_up(by_id, gpu) if node.kind in ("root_port", "chipset_port")]
        if above:
            uplinks.setdefault(above[-1].id, []).append(gpu.id)
    need(list(uplinks), "no GPU's root port is in what was read")
    shared = {port: gpus for port, gpus in uplinks.items() if len(gpus) > 1}
    if not shared:
        missing = len(_gpus(topology)) - len(uplinks)
        return with_missing(
            ok(f"{len(uplinks)} GPUs, each behind a root port of its own"),
            missing,
            "GPUs have no root port in what was read",
        )
    parts = [f"{', '.join(gpus)} behind {port}, {_gb(by_id[port])}" for port, gpus in shared.items()]
    return info(f"shared: {'; '.join(parts[:4])}{'; ...' if len(parts) > 4 else ''}")


@check(
    "topology-chipset",
    "host",
    title="GPUs, NICs of the fabric and NVMe disks are on the CPU's own ports",
    read="sysfs: root ports at 0000:00:1b to 0000:00:1d of Intel, and switches 43xx and 57ad of AMD, are the chipset's",
    expected="no GPU behind the chipset",
    source="Intel chipset datasheets: the chipset's ports share one DMI link; https://pci-ids.ucw.cz for AMD's",
    cost="all devices of the chipset share its one link, often 4 to 8 GB/s, and each copy takes longer",
    fix="move the card to a slot of the CPU",
    when_wrong="a chipset newer than this list is taken for a switch of the board",
)
def chipset(machine: Machine) -> CheckOutcome:
    topology = _tree(machine)
    if "sysfs" not in topology.sources:
        raise NotReadError("only sysfs tells the vendor of a root port")
    by_id = {node.id: node for node in topology.nodes}
    behind: dict[str, list[str]] = {"gpu": [], "nic": [], "storage": []}
    for node in topology.nodes:
        if node.kind in behind and any(above.kind == "chipset_port" for above in path_up(by_id, node)):
            behind[node.kind].append(node.id)
    if behind["gpu"]:
        return warn(f"GPUs behind the chipset: {named(behind['gpu'])}")
    others = behind["nic"] + behind["storage"]
    if others:
        return info(f"behind the chipset: {named(others)}")
    roots = {node.id for node in topology.nodes if node.kind == "root_port"}
    vendors = {machine.optional(f"/sys/bus/pci/devices/{root}/vendor") or "?" for root in roots}
    if strange := sorted(vendors - {"0x8086", "0x1022"}):
        raise NotReadError(f"the root ports are of {named(strange)}: whether of a chipset is not known")
    return ok("none that was found is behind a chipset")


@check(
    "topology-narrow-path",
    "host",
    title="no link on the way from a GPU or NIC to the CPU has fewer lanes than it could have",
    read=_READ + ": lanes of each link, now and at most (speed is not judged: an idle link is slow)",
    expected="a link has all the lanes that the device below has",
    source="vendor: what both ends of the link say they can",
    cost="half the lanes are half the bandwidth, for everything below that link",
    fix="reseat the card, riser or cable; look at bifurcation in the firmware",
    when_wrong="ports of switches that are wired to fewer lanes by design",
)
def narrow_path(machine: Machine) -> CheckOutcome:
    topology = topology_of(machine)
    if topology is None:
        raise NotReadError("no topology is in what was read")
    by_id = {node.id: node for node in topology.nodes}
    narrow: dict[str, str] = {}
    num_read = num_missing = 0
    for node in topology.nodes:
        if node.kind not in ("gpu", "nic"):
            continue
        link = node.link
        if link is None or link.width is None or link.max_width is None:
            num_missing += 1
            continue
        num_read += 1
        if link.width < link.max_width:
            narrow[node.id] = f"{node.id} ({node.kind}): x{link.width} of x{link.max_width}"
        for above in path_up(by_id, node):
            # The link of a port is the same wire as that of the device below, seen from its other end.
            upper = above.link
            if above.kind != "switch" or upper is None or upper.width is None or upper.max_width is None:
                continue
            if upper.width < min(upper.max_width, link.max_width) and not _is_downstream(topology, above):
                narrow[above.id] = f"{above.id} (switch): x{upper.width} of x{upper.max_width}"
    if not num_read:
        raise NotReadError("no link of a GPU or NIC gives its lanes now and at most")
    if narrow:
        return warn(named(narrow.values()))
    return with_missing(ok(f"{num_read} devices have all their lanes"), num_missing, "devices did not say")


def _is_downstream(topology: Topology, node: TopologyNode) -> bool:
    """True for a switch's port to a device: its link was judged at the device."""
    return any(child.kind != "switch" for child in children(topology, node.id))


def _near(machine: Machine) -> dict[str, dict[str, str]]:
    """GPU -> NIC -> relation. NICs of the tree count only where they have an RDMA device."""
    topology = topology_of(machine)
    if topology is None:
        raise NotReadError("no topology is in what was read")
    kinds = {node.id: node for node in topology.nodes}
    is_nccl = "NCCL topology XML" in topology.sources  # it holds no other NICs
    if is_nccl and not machine.nccl_topology.is_whole:
        raise NotReadError(f"a nearer NIC may be missing: {machine.nccl_topology.problems[0]}")
    found: dict[str, dict[str, str]] = {}
    for pair in topology.pairs:
        for gpu, nic in ((pair.a, pair.b), (pair.b, pair.a)):
            if (
                _is_gpu(kinds, gpu)
                and (_is_rdma(kinds, nic) or (is_nccl and _is_nic(kinds, nic)))
                and pair.relation in _ORDER
            ):
                found.setdefault(gpu, {})[nic] = pair.relation
    if not found:
        machine.rdma_devices  # noqa: B018 - says where there is none
        raise NotReadError("no pair of a GPU and an RDMA NIC is in what was read")
    return found


def _unpaired(machine: Machine, near: dict[str, dict[str, str]]) -> set[str]:
    """GPUs of which no NIC, or not every NIC, is known: their rows may be cut off."""
    topology = topology_of(machine)
    nodes = topology.nodes if topology else ()
    most = max(len(nics) for nics in near.values())
    try:
        gpus = list(machine.matrix.gpus)
        most = max(most, len(machine.matrix.nics))
    except NotReadError:
        gpus = [node.id for node in nodes if node.kind == "gpu"]
    return {gpu for gpu in gpus if len(near.get(gpu, ())) < most}


def _is_gpu(nodes: dict[str, TopologyNode], name: str) -> bool:
    return nodes[name].kind == "gpu" if name in nodes else name.startswith("GPU")


def _is_nic(nodes: dict[str, TopologyNode], name: str) -> bool:
    return name in nodes and nodes[name].kind == "nic"


def _is_rdma(nodes: dict[str, TopologyNode], name: str) -> bool:
    if name not in nodes:
        return not name.startswith("GPU")
    node = nodes[name]
    is_named = any(word in node.name for word in ("mlx", "bnxt_re", "irdma", "efa", "rdma", "Mellanox", "Infiniband"))
    return node.kind == "nic" and (is_named or ":" not in name)


@check(
    "topology-nic-distance",
    "network",
    title="each GPU has a NIC of the fabric behind the same PCIe switch",
    read=_MATRIX,
    expected="PIX or PXB; a nearest NIC at SYS is across the link between sockets",
    source="NCCL documentation: NCCL_NET_GDR_LEVEL and NCCL's path types",
    cost="SYS: GPUDirect is not used by default, and each message crosses two sockets and memory of the host",
    fix="move NICs or GPUs between slots; in a virtual machine, give NCCL the vendor's topology file",
    when_wrong="virtual machines hide switches: everything reads PHB, NODE or SYS then",
)
def nic_distance(machine: Machine) -> CheckOutcome:
    near = _near(machine)
    unpaired = _unpaired(machine, near)
    nearest = {gpu: min(nics.values(), key=_ORDER.index) for gpu, nics in near.items()}
    # Of a row that is cut off, a nearer NIC may be missing.
    nearest = {gpu: how for gpu, how in nearest.items() if gpu not in unpaired or how in ("PIX", "PXB")}
    num_missing = len(unpaired - set(nearest))
    need(list(nearest), "no row of the matrix is whole")
    far = [gpu for gpu, how in nearest.items() if how == "SYS"]
    middle = [f"{gpu}: {how}" for gpu, how in nearest.items() if how in ("PHB", "NODE")]
    if not far and not middle:
        return with_missing(ok(f"{len(nearest)} GPUs have one at PIX or PXB"), num_missing, "GPUs are not known")
    if not any(how in ("PIX", "PXB") for how in nearest.values()):
        try:
            is_virtual = machine.is_virtual
        except NotReadError:
            is_virtual = False
        if is_virtual:
            raise NotReadError("this virtual machine hides the switches: no GPU and NIC seem to share one")
    if far and _have_own_nodes(machine, far):
        raise NotReadError(
            f"SYS for {named(far)}: these GPUs are NUMA nodes of their own (Grace), so that SYS does not tell whether "
            "sockets are between"
        )
    if far:
        return with_missing(warn(f"nearest NIC across sockets: {named(far)}"), num_missing, "GPUs are not known")
    return with_missing(info(f"through the CPU: {named(middle)}"), num_missing, "GPUs are not known")


def _have_own_nodes(machine: Machine, gpus: list[str]) -> bool:
    """True where `GPU NUMA ID` says that the memory of these GPUs is a NUMA node."""
    try:
        return all(gpu in machine.matrix.gpu_numa for gpu in gpus)
    except NotReadError:
        return False


@check(
    "topology-nic-share",
    "network",
    title="the GPUs spread evenly over the NICs",
    read=_MATRIX,
    expected="each NIC is nearest to as many GPUs as the others are",
    source="NCCL takes the nearest NIC of each GPU",
    cost="GPUs that share a NIC get half its bandwidth while another NIC idles",
    fix="set NCCL_CROSS_NIC or NCCL_IB_HCA with care, or move cards",
    when_wrong="NICs of storage or of management are counted as if they were of the fabric",
)
def nic_share(machine: Machine) -> CheckOutcome:
    near = _near(machine)
    users: dict[str, int] = dict.fromkeys(sorted({nic for nics in near.values() for nic in nics}, key=natural), 0)
    for nics in near.values():
        best = min(nics.values(), key=_ORDER.index)
        for nic, how in nics.items():
            users[nic] += how == best
    if len(users) == 1:
        return info(f"one NIC for {len(near)} GPUs")
    unpaired = _unpaired(machine, near)
    if not unpaired and all(set(nics.values()) == {"SYS"} for nics in near.values()):
        return info(f"none of {len(users)} NICs is nearest to any GPU: all are at SYS")
    if len(set(users.values())) == 1:
        shown = f"{len(users)} NICs, each nearest to {next(iter(users.values()))} GPUs"
        return with_missing(ok(shown), len(unpaired), "GPUs are not known")
    if unpaired:
        raise NotReadError(f"the NICs of {len(unpaired)} GPUs are not known")
    return info(f"GPUs for which each NIC is nearest: {', '.join(f'{nic}: {count}' for nic, count in users.items())}")


@check(
    "topology-numa-known",
    "host",
    title="the machine says which NUMA node each GPU is on",
    read="sysfs numa_node of each GPU (-1: not said), else `nvidia-smi topo -m`, NUMA Affinity",
    expected="a number",
    source="Linux kernel documentation, sysfs-bus-pci",
    cost="ranks cannot be bound near their GPU: copies cross sockets by chance",
    fix="pass the topology through to the virtual machine, or turn on NUMA in the firmware",
    when_wrong="a machine with one NUMA node needs none",
)
def numa_known(machine: Machine) -> CheckOutcome:
    topology = topology_of(machine)
    if topology is None:
        raise NotReadError("no topology is in what was read")
    gpus = _gpus(topology)
    unsaid = [gpu.id for gpu in gpus if gpu.numa_node is None]
    lists = {
        gpu.id: str(gpu.parent).removeprefix("NUMA ") for gpu in gpus if gpu.id in unsaid and "NUMA " in str(gpu.parent)
    }
    lists = {gpu: text for gpu, text in lists.items() if re.fullmatch(r"[\d,-]+", text)}
    if len(lists) == len(unsaid) > 0 and len(set(lists.values())) > 1:
        # As on Grace, where memory of GPUs is a NUMA node too: what tells the GPUs apart is said.
        return ok(f"{len(gpus)} GPUs on NUMA nodes {named(sorted(set(lists.values())))}")
    nodes = [name for name in machine.names("/sys/devices/system/node") if name.startswith("node")]
    if not unsaid and "NCCL topology XML" in topology.sources and not machine.nccl_topology.is_whole:
        raise NotReadError(f"said for {len(gpus)} GPUs, and others may be missing: {machine.nccl_topology.problems[0]}")
    if not unsaid and topology.sources == ("nvidia-smi topo -m",) and machine.matrix.may_lack_gpus:
        why = f"rows of {named(machine.matrix.missing_rows)}" if machine.matrix.has_header else "the header"
        raise NotReadError(f"said for {len(gpus)} GPUs, and others may be missing: the text lacks {why}")
    if not unsaid:
        return ok(f"{len(gpus)} GPUs on NUMA nodes {named(sorted({str(gpu.numa_node) for gpu in gpus}))}")
    if len(nodes) == 1:
        return ok("there is one NUMA node")
    if not nodes and lists:
        raise NotReadError(f"of the NUMA nodes {named(sorted(set(lists.values())))} it is not said which is the GPUs'")
    if not nodes:
        raise NotReadError(f"not said for {named(unsaid)}, and how many NUMA nodes there are was not read")
    return warn(f"not said for {named(unsaid)} on a machine with {len(nodes)} NUMA nodes")


def _local_cpus(machine: Machine) -> dict[str, frozenset[int]]:
    """GPU -> the CPUs of its NUMA node, in the order of the driver's numbers."""
    try:
        gpus = [gpu.address for gpu in machine.gpus]
    except NotReadError:
        gpus = []
    local = {}
    for gpu in gpus:
        text = machine.optional(f"/sys/bus/pci/devices/{gpu}/local_cpulist")
        if text:
            local[gpu] = parse_cpu_list(text)
    if local:
        return local
    matrix = machine.matrix
    return {gpu: parse_cpu_list(matrix.cpus[gpu]) for gpu in matrix.gpus if gpu in matrix.cpus}


@check(
    "topology-cpu-binding",
    "host",
    title="the CPUs that this process may use include some near each GPU",
    read="/proc/self/status Cpus_allowed_list, against sysfs local_cpulist or `nvidia-smi topo -m`, CPU Affinity",
    expected="some CPU of each GPU's NUMA node; of a rank (LOCAL_RANK is set), of its own GPU's",
    source="NCCL and PyTorch tuning guides: bind ranks near their GPU",
    cost="each copy to the GPU and each kernel launch crosses sockets",
    fix="`numactl --cpunodebind=N --membind=N`, `torchrun --numa-binding=node`, or `srun --cpu-bind`",
    when_wrong="in a container the driver's CPU Affinity is narrowed to the cpuset, so that a wrong cpuset looks right",
)
def cpu_binding(machine: Machine) -> CheckOutcome:
    allowed = machine.cpus_allowed
    local = _local_cpus(machine)
    need(list(local), "which CPUs are near which GPU was not read")
    rank = machine.environment.get("LOCAL_RANK")
    visible = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if rank is not None and rank.isdecimal() and not visible and int(rank) < len(local):
        gpu = list(local)[int(rank)]
        if not allowed & local[gpu]:
            return warn(
                f"this rank may use {cpu_list_text(allowed)}, but its GPU {gpu} is near {cpu_list_text(local[gpu])}"
            )
        return ok(f"some of {cpu_list_text(allowed)} are near its GPU {gpu}")
    far = [gpu for gpu, cpus in local.items() if not allowed & cpus]
    if far:
        return warn(f"none of the allowed CPUs {cpu_list_text(allowed)} is near {named(far)}")
    try:
        total = len(machine.gpus)
    except NotReadError:
        total = len(machine.matrix.gpus)
    near = ok(f"some of {cpu_list_text(allowed)} are near each of {len(local)} GPUs")
    return with_missing(near, total - len(local), "GPUs did not say which CPUs are near")
