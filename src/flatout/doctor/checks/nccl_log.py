"""Checks of an NCCL_DEBUG=INFO log: transports, GPUDirect, interfaces, paths. See `nccl_log_errors` for failures."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from flatout.doctor.by_host import distinct, host_name, values_by_host
from flatout.doctor.check import check, fail, info, named, need, ok, warn, with_missing
from flatout.doctor.machine import NCCL_GRAPH, Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.parse.cpu_list import cpu_list_text, parse_cpu_mask
from flatout.doctor.parse.nccl_log import ChannelLayout, NcclLog
from flatout.doctor.peers import minority
from flatout.doctor.unknown import NotHereError, NotReadError

_READ = "NCCL log (NCCL_DEBUG=INFO): "
_NCCL = "NCCL documentation, troubleshooting and environment variables"
_SOCKETS = frozenset({"Socket", "FastSocket"})
_PLUGIN = re.compile(r"NET/(?:OFI|Plugin|FasTrak|gIB|GPUDirectTCPX)")
_CONTAINER_INTERFACE = re.compile(r"docker|virbr|br-|veth|cni|flannel|cali")
_RING = 4  # NCCL's number for the ring pattern
# Kinds of paths (NCCL source, graph/topo.h) that do not pass through a CPU, and those that do or leave the host.
_NEAR_INSIDE = ("NVL", "NVB", "PIX", "LOC", "C2C")
_NEAR_NETWORK = ("LOC", "NVL", "C2C", "PIX", "PXB", "PXN", "P2C")
_FAR_INSIDE = ("SYS", "PHB", "NET")


@check(
    "nccl-log-network",
    "network",
    topic="NCCL's network between hosts",
    read=_READ + "`Using network`, NET/IB, NET/Socket",
    expected="IB (also for RoCE) or the vendor's plugin, on every host",
    source=_NCCL,
    cost="sockets: a fraction of the bandwidth, and CPU time for each byte",
    fix="find why NET/IB was not used: no device, NCCL_IB_DISABLE, no plugin, no /dev/infiniband",
    when_wrong="a job on one host uses no network; some clouds do not offer RDMA",
    traffic="network",
)
def network(machine: Machine) -> CheckOutcome:
    log = machine.nccl_log
    networks = _networks(log)
    if not networks:
        return _network_by_devices(log)
    over_sockets = [host_name(host) for host, names in networks.items() if names & _SOCKETS]
    others = [name for name in distinct(networks) if name not in _SOCKETS]
    if not over_sockets:
        return ok(named(others))
    if others:
        return fail(f"NCCL uses sockets for ranks on {named(over_sockets)}, but {named(others)} for others")
    return _only_sockets(log, over_sockets)


def _networks(log: NcclLog) -> dict[str, set[str]]:
    """Return the networks of each host: from its `Using network` lines, or else from its channels."""
    if log.networks:
        return {host: set(names) for host, names in log.networks.items()}
    networks: defaultdict[str, set[str]] = defaultdict(set)
    for channel in log.channels:
        if channel.network:
            networks[channel.host or ""].add(channel.network)
    return networks


def _network_by_devices(log: NcclLog) -> CheckOutcome:
    """Judge a log in which no line names the network that is used."""
    if log.rdma_devices and not log.socket_interfaces:
        return info("the log lists devices of NET/IB, but not which network is used")
    if log.socket_interfaces and not log.rdma_devices:
        return _sockets(log, f"NCCL uses sockets over {named(distinct(log.socket_interfaces))}")
    raise NotReadError("no line shows which network is used")


def _only_sockets(log: NcclLog, hosts: list[str]) -> CheckOutcome:
    if log.needs_network is False:
        return info("the network is not used: all ranks are on one host")
    if log.rdma_devices:
        return fail(f"NCCL uses sockets, although the log lists RDMA devices: {named(distinct(log.rdma_devices))}")
    return _sockets(log, f"NCCL uses sockets on {named(hosts)}")


def _sockets(log: NcclLog, what: str) -> CheckOutcome:
    """Say that sockets are used, and why, where the log shows that."""
    for warning in log.warnings:
        if _PLUGIN.search(warning.text):
            return fail(f"{what}, after the plugin failed: {warning.text[:140]}")
    if not log.without_rdma:
        return warn(what)
    wanted = log.settings.get("NCCL_IB_HCA")
    if wanted:
        return fail(f"{what}: NET/IB found no device, although NCCL_IB_HCA names {named(wanted)}")
    return warn(f"{what}: NET/IB found no device")


@check(
    "nccl-log-transport",
    "gpu",
    topic="NCCL's transport within a host",
    read=_READ + "`Channel 00 : 0[0] -> 1[1] via ...`",
    expected="P2P for all pairs of one host; SHM goes through host memory",
    source=_NCCL,
    cost="with SHM, half of PCIe's bandwidth or less; with NET within a host, even less",
    fix="see gpu-peer-to-peer, nccl-peer-to-peer and pci-iommu",
    when_wrong="GPUs without peer-to-peer (GeForce), or pairs across CPU sockets, for which NCCL prefers SHM",
    traffic="gpus",
)
def transport(machine: Machine) -> CheckOutcome:
    log = machine.nccl_log
    need(log.channels or log.p2p_off, "no line shows which transport a channel uses")
    transports = Counter(channel.transport for channel in log.channels)
    shown = named(f"{transport}: {count}" for transport, count in transports.most_common()) or "none in the log"
    if log.p2p_off:
        pairs = named(f"{first}-{second}" for first, second in log.p2p_off)
        return warn(f"peer-to-peer is turned off between connected GPUs: {pairs}; channels: {shown}")
    if transports["SHM"]:
        return warn(f"NCCL communicates through host memory within a host; channels: {shown}")
    if transports["P2P"]:
        return ok(f"channels: {shown}")
    if transports["NET"] and len(log.hosts) == 1 and _has_all_ranks(log):
        return warn(f"NCCL uses the network within one host; channels: {shown}")
    return info(f"channels: {shown}")


def _has_all_ranks(log: NcclLog) -> bool:
    """Whether the log shows channels of every rank."""
    ranks = {channel.sender for channel in log.channels}
    return log.num_ranks is not None and len(ranks) >= log.num_ranks


@check(
    "nccl-log-gpu-direct",
    "network",
    topic="GPUDirect RDMA in NCCL's channels",
    read=_READ + "`via NET/IB/0/GDRDMA` of [send] and [receive]; `GPU Direct RDMA Disabled for HCA`",
    expected="GDRDMA for sending and for receiving, on every host",
    source=f"{_NCCL}; NVIDIA/nccl#1676",
    cost="each message in that direction is copied through host memory; one such host slows down all hosts",
    fix=(
        "load the module nvidia_peermem on that host (nic-gpu-direct); NCCL before 2.23 looks only for its older name"
        " nv_peer_mem, so with nvidia_peermem use NCCL 2.23 or newer; in a virtual machine see also"
        " topology-nccl-file-missing (NCCL_NET_GDR_LEVEL)"
    ),
    when_wrong="for reads over PCIe NCCL may deliberately prefer a copy (NCCL_NET_GDR_READ)",
    traffic="network",
)
def gpu_direct(machine: Machine) -> CheckOutcome:
    log = machine.nccl_log
    if log.gpu_direct_off:
        return fail(f"GPUDirect RDMA is turned off for {values_by_host(log.gpu_direct_off)}")
    is_direct = _gpu_direct_by_direction(log)
    if not is_direct:
        return _gpu_direct_without_channels(log)
    without = [f"{host} [{direction}]" for (host, direction), all_direct in is_direct.items() if not all_direct]
    if len(without) == len(is_direct):
        return warn(f"GPUDirect RDMA is not used by any channel in the log: {named(without)}")
    if without:
        return fail(f"GPUDirect RDMA is not used on {named(without)}, but is used elsewhere")
    hosts = {host for host, _ in is_direct}
    directions = sorted({direction for _, direction in is_direct})
    outcome = ok(f"GDRDMA for {', '.join(directions)} on {len(hosts)} hosts")
    both = {(host, direction) for host in hosts for direction in ("send", "receive") if (host, "?") not in is_direct}
    return with_missing(outcome, len(both - is_direct.keys()), "of their directions are not in the log")


def _gpu_direct_by_direction(log: NcclLog) -> dict[tuple[str, str], bool]:
    """Return whether all RDMA channels of a host and direction use GPUDirect; `?` is an unknown direction."""
    is_direct: dict[tuple[str, str], bool] = {}
    for channel in log.channels:
        if channel.transport != "NET" or re.search(r"NET/(?:Fast)?Socket", channel.via):
            continue
        key = (host_name(channel.host), channel.direction or "?")
        is_direct.setdefault(key, True)
        if not channel.is_gpu_direct:
            is_direct[key] = False
    return is_direct


def _gpu_direct_without_channels(log: NcclLog) -> CheckOutcome:
    if log.ring_gpu_direct:
        return info("GDR 1 for rings" if all(log.ring_gpu_direct) else "GDR 0 for some rings")
    if log.gpu_direct_on:
        return info(f"turned on for {named(distinct(log.gpu_direct_on))}; the log shows no channel")
    raise NotHereError("no channel over RDMA is in the log")


@check(
    "nccl-log-interface",
    "network",
    topic="network interfaces that NCCL uses",
    read=_READ + "`Bootstrap : Using`, `NET/Socket : Using`, `OOB`",
    expected="neither loopback nor a container's interface; the same name on all hosts",
    source=_NCCL,
    cost="the job hangs at start-up, or data moves over a slow network",
    fix="set NCCL_SOCKET_IFNAME",
    when_wrong="a job on one host can use loopback",
    traffic="network",
)
def interface(machine: Machine) -> CheckOutcome:
    log = machine.nccl_log
    names = sorted({*log.bootstrap.values(), *distinct(log.socket_interfaces)})
    need(names, "no line names a network interface")
    of_containers = [name for name in names if _CONTAINER_INTERFACE.match(name)]
    if of_containers:
        return warn(f"NCCL uses interfaces of containers: {named(of_containers)}")
    if "lo" in names and log.needs_network:
        return warn("NCCL uses loopback, with several hosts")
    odd = minority(log.bootstrap)
    if odd is not None:
        usual, odd_hosts = odd
        return info(f"most hosts start over {usual}, but not {named(map(host_name, odd_hosts))}")
    over_ib = [name for name in distinct(log.socket_interfaces) if name.startswith("ib")]
    if over_ib:
        instead = "on some ranks; others use RDMA" if log.rdma_devices else "instead of RDMA"
        return warn(f"TCP over InfiniBand (IPoIB) {instead}: {named(over_ib)}")
    return ok(named(names))


@check(
    "nccl-log-version",
    "software",
    topic="NCCL versions of the ranks",
    read=_READ + "`NCCL version`",
    expected="one",
    source=_NCCL,
    cost="hangs or wrong results, at the first collective whose protocol differs between the versions",
    fix="use the same environment on all hosts; see nccl-library-override",
    when_wrong="logs of several jobs in one file",
)
def version(machine: Machine) -> CheckOutcome:
    versions = machine.nccl_log.versions
    need(versions, "no line states the version")
    return ok(versions[0]) if len(versions) == 1 else fail(f"several NCCL versions: {named(versions)}")


@check(
    "nccl-log-paths",
    "gpu",
    topic="NCCL's paths for rings and trees",
    read=_READ + "`Pattern 4, ..., nChannels 2, bw 24.0/24.0, type NVL/PIX`; else a graph XML (NCCL_GRAPH_DUMP_FILE)",
    expected="NVL or PIX within the host, at most PXB (PXN) to the NIC",
    source="NCCL source, graph/topo.h: path types",
    cost="PHB and SYS cross the CPU; the line gives the bandwidth that NCCL plans with",
    fix="see the topology checks; in a virtual machine, set NCCL_TOPO_FILE",
    when_wrong="a host without NVLink has no better path",
    traffic="gpus",
)
def paths(machine: Machine) -> CheckOutcome:
    patterns, has_network = _patterns(machine)
    rings = [pattern for pattern in patterns if pattern.number == _RING] or patterns
    worst = min(rings, key=lambda pattern: pattern.channel_gb_per_s * pattern.num_channels)
    if not worst.num_channels:
        return warn("NCCL found no path for a ring: 0 channels")
    channels = "1 channel" if worst.num_channels == 1 else f"{worst.num_channels} channels"
    shown = (
        f"{channels} x {worst.channel_gb_per_s:g} GB/s, {worst.inside} within the host, {worst.between} to the network"
    )
    is_far_from_network = has_network and worst.between == "SYS"
    if worst.inside in _FAR_INSIDE or is_far_from_network:
        return warn(f"NCCL's rings cross the CPU: {shown}")
    is_near_network = not has_network or worst.between in _NEAR_NETWORK
    if worst.inside in _NEAR_INSIDE and is_near_network:
        return ok(shown)
    return info(shown)


def _patterns(machine: Machine) -> tuple[list[ChannelLayout], bool]:
    """Return the patterns in the log, or else those in a graph XML, and whether they use a network."""
    try:
        log = machine.nccl_log
    except NotReadError:
        if NCCL_GRAPH not in machine.snapshot.outputs:
            raise
        graphs = machine.nccl_graphs
        need(graphs, "the graph XML contains no graph")
        patterns = [
            ChannelLayout(graph.pattern, graph.num_channels, graph.inside_gb_per_s, graph.inside, graph.between)
            for graph in graphs
        ]
        return patterns, any(graph.has_network for graph in graphs)
    if not log.patterns:
        raise NotReadError("no `ChannelLayout` line: NCCL_DEBUG_SUBSYS needs GRAPH")
    return list(log.patterns), log.needs_network is not False


@check(
    "nccl-log-choices",
    "software",
    topic="NCCL's algorithms and protocols",
    read=_READ + "`N Bytes -> Algo 1 proto 2` (NCCL_DEBUG_SUBSYS=TUNING)",
    expected="any",
    source="NCCL source, include/nccl_common.h",
    cost="none",
    fix="none needed",
    when_wrong="no known case",
)
def choices(machine: Machine) -> CheckOutcome:
    log = machine.nccl_log
    if not log.choices:
        raise NotReadError("no such line: NCCL_DEBUG_SUBSYS needs TUNING")
    counts = Counter(f"{choice.algorithm}/{choice.protocol}" for choice in log.choices)
    return info(named(f"{name}: {count}" for name, count in counts.most_common()))


@check(
    "nccl-log-fabric",
    "gpu",
    topic="membership of GPUs in a multi-node NVLink fabric",
    read=_READ + "MNNVL: fabric UUID, state and health mask",
    expected="state 3 (completed), one UUID and clique, for GPUs that have a fabric",
    source="NVML, nvmlGpuFabricInfo",
    cost="NVLink between hosts is not used",
    fix="check the fabric manager and `nvidia-imex-ctl`",
    when_wrong="GPUs without NVSwitch have UUID 0",
    traffic="gpus",
)
def fabric(machine: Machine) -> CheckOutcome:
    fabrics = machine.nccl_log.fabrics
    if not fabrics:
        raise NotHereError("no line of MNNVL")
    members = [gpu for gpu in fabrics if gpu.uuid not in ("0.0", "0")]
    if not members:
        return info("these GPUs are not on a fabric between hosts")
    incomplete = [gpu.bus for gpu in members if gpu.state != 3]
    if incomplete:
        return fail(f"GPUs have not joined the NVLink fabric (state 3, completed): {named(incomplete)}")
    num_gpus = len({gpu.bus for gpu in members})
    num_cliques = len({(gpu.uuid, gpu.clique) for gpu in members})
    return ok(f"{num_gpus} GPUs in {num_cliques} clique{'s' if num_cliques > 1 else ''}")


@check(
    "nccl-log-affinity",
    "host",
    topic="CPU affinity that NCCL sets for the ranks",
    read=_READ + "`Setting affinity for GPU 0 to ffff`",
    expected="several CPUs for each GPU",
    source=_NCCL,
    cost="a rank and all its threads share one core: launches and proxies wait for each other",
    fix="do not bind ranks to single cores (`--cpu-bind`), or set NCCL_IGNORE_CPU_AFFINITY=1",
    when_wrong="the machine has only one core per rank",
)
def affinity(machine: Machine) -> CheckOutcome:
    masks = machine.nccl_log.affinities
    if not masks:
        raise NotReadError("no line shows an affinity")
    gpu_cpus = [(gpu, parse_cpu_mask(mask)) for (_, gpu), mask in masks.items()]
    single = [f"GPU {gpu}: {cpu_list_text(cpus)}" for gpu, cpus in gpu_cpus if len(cpus) == 1]
    if single:
        return warn(f"ranks are bound to one CPU: {named(single)}")
    return ok(named(f"GPU {gpu}: {cpu_list_text(cpus)}" for gpu, cpus in gpu_cpus))
