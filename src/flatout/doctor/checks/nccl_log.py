"""What a log of NCCL_DEBUG=INFO says of a job: transports, GPUDirect, interfaces, and what went wrong."""

from __future__ import annotations

import re
from collections import Counter

from flatout.doctor.check import Outcome, check, fail, info, named, need, ok, warn, with_missing
from flatout.doctor.machine import NCCL_GRAPH, Machine
from flatout.doctor.parse.cpu_list import cpu_list_text, parse_cpu_mask
from flatout.doctor.peers import minority
from flatout.doctor.unknown import NotHereError, NotReadError

_READ = "NCCL log (NCCL_DEBUG=INFO): "
_NCCL = "NCCL documentation, troubleshooting and environment variables"
# ibv_wc_status of libibverbs: what the network says; 5 is a consequence, of a connection that had failed already.
_STATUS = {
    1: "local length error",
    4: "local protection error: memory that is not registered (any more)",
    5: "flushed: a consequence of an error before",
    9: "remote invalid request",
    10: "remote access error",
    11: "remote operation error",
    12: "no answer after all retries: a link, a cable, flow control (PFC), or the other side ended",
    13: "the receiver was not ready after all retries",
}
_SOCKETS = frozenset({"Socket", "FastSocket"})
_PLUGIN = re.compile(r"NET/(?:OFI|Plugin|FasTrak|gIB|GPUDirectTCPX)")


def _none(machine: Machine) -> Outcome:
    """Nothing bad in the log: `ok` only where it reaches past NCCL's start."""
    log = machine.nccl_log
    if not log.num_started:
        raise NotReadError(
            f"none in {log.num_lines} lines, but they do not reach the end of NCCL's start (Init COMPLETE)"
        )
    missing = max(0, (log.num_ranks or 0) - log.num_started)
    return with_missing(ok(f"none in {log.num_lines:,} lines"), missing, f"of {log.num_ranks} ranks do not start in it")


@check(
    "nccl-log-network",
    "network",
    title="NCCL uses RDMA between hosts",
    read=_READ + "`Using network`, NET/IB, NET/Socket",
    expected="IB (also for RoCE) or the vendor's plugin, on every host",
    source=_NCCL,
    cost="sockets: a fraction of the bandwidth, and CPU time for each byte",
    fix="look above for why NET/IB was not used: no device, NCCL_IB_DISABLE, no plugin, no /dev/infiniband",
    when_wrong="jobs on one host use no network; clouds without RDMA have none",
)
def network(machine: Machine) -> Outcome:
    log = machine.nccl_log
    used: dict[str, set[str]] = {host: set(names) for host, names in log.networks.items()}
    if not used:
        for channel in log.channels:
            if channel.network:
                used.setdefault(channel.host or "", set()).add(channel.network)
    if not used:
        if log.rdma_devices and not log.socket_interfaces:
            return info("devices of NET/IB are named, but not which network is used")
        if log.socket_interfaces and not log.rdma_devices:
            names = sorted({name for found in log.socket_interfaces.values() for name in found})
            return warn(f"sockets over {named(names)}")
        raise NotReadError("no line says which network is used")
    over_sockets = [host or "?" for host, names in used.items() if names & _SOCKETS]
    others = sorted({name for names in used.values() for name in names - _SOCKETS})
    if not over_sockets:
        return ok(named(others))
    if others:
        return fail(f"sockets for ranks on {named(over_sockets)}, but {named(others)} for others")
    lines = [c for c in log.channels if c.transport == "NET"]
    if len(log.hosts) <= 1 and log.channels and not lines:
        return info("sockets, but the ranks are on one host and no channel uses the network")
    if log.rdma_devices:
        devices = sorted({device for found in log.rdma_devices.values() for device in found})
        return fail(f"sockets, though devices for RDMA are named: {named(devices)}")
    if failed := [warning.text for warning in log.warnings if _PLUGIN.search(warning.text)]:
        return fail(f"sockets on {named(over_sockets)}, after the plugin failed: {failed[0][:140]}")
    return warn(f"sockets on {named(over_sockets)}")


@check(
    "nccl-log-transport",
    "gpu",
    title="channels within a host use peer-to-peer",
    read=_READ + "`Channel 00 : 0[0] -> 1[1] via ...`",
    expected="P2P for all pairs of one host; SHM is through memory of the host",
    source=_NCCL,
    cost="SHM: half the bandwidth of PCIe or less; NET within a host: less still",
    fix="look at gpu-peer-to-peer, nccl-peer-to-peer and pci-iommu",
    when_wrong="GPUs without peer-to-peer (GeForce), or across sockets, where NCCL prefers SHM",
)
def transport(machine: Machine) -> Outcome:
    log = machine.nccl_log
    need(log.channels, "no line says what a channel uses")
    kinds = Counter(channel.transport for channel in log.channels)
    shown = named(f"{kind}: {count}" for kind, count in kinds.most_common())
    if log.p2p_off:
        return warn(f"{len(log.p2p_off)} connected pairs have peer-to-peer turned off; channels: {shown}")
    if kinds["SHM"]:
        return warn(f"through memory of the host; channels: {shown}")
    if kinds["NET"] and not kinds["P2P"] and len(log.hosts) == 1 and _is_whole(machine):
        return warn(f"over the network within one host; channels: {shown}")
    return ok(f"channels: {shown}") if kinds["P2P"] else info(f"channels: {shown}")


def _is_whole(machine: Machine) -> bool:
    """True where the log has lines of every rank's channels."""
    log = machine.nccl_log
    ranks = {channel.sender for channel in log.channels}
    return log.num_ranks is not None and len(ranks) >= log.num_ranks


@check(
    "nccl-log-gpu-direct",
    "network",
    title="GPUDirect RDMA is used in both directions on every host",
    read=_READ + "`via NET/IB/0/GDRDMA` of [send] and [receive]; `GPU Direct RDMA Disabled for HCA`",
    expected="GDRDMA for sending and for receiving",
    source=_NCCL,
    cost="a copy through memory of the host for each message, in that direction; one host holds back all",
    fix="see nic-gpu-direct on that host; in a virtual machine also topology-nccl-file-missing (NCCL_NET_GDR_LEVEL)",
    when_wrong="for reads over PCIe NCCL may prefer a copy on purpose (NCCL_NET_GDR_READ)",
)
def gpu_direct(machine: Machine) -> Outcome:
    log = machine.nccl_log
    if log.gpu_direct_off:
        off = named(f"{host or '?'}: {', '.join(names)}" for host, names in log.gpu_direct_off.items())
        return fail(f"turned off for {off}")
    ways: dict[tuple[str, str], Counter[bool]] = {}
    for channel in log.channels:
        if channel.transport == "NET" and not re.search(r"NET/(?:Fast)?Socket", channel.via):
            ways.setdefault((channel.host or "?", channel.direction or "?"), Counter())[channel.is_gpu_direct] += 1
    if not ways:
        if log.ring_gpu_direct:
            return info("GDR 1 for rings" if all(log.ring_gpu_direct) else "GDR 0 for some rings")
        if log.gpu_direct_on:
            devices = sorted({device for found in log.gpu_direct_on.values() for device in found})
            return info(f"turned on for {named(devices)}; no channel is shown")
        raise NotHereError("no channel over RDMA is in the log")
    without = [f"{host} [{way}]" for (host, way), counts in ways.items() if counts[False]]
    if not without:
        hosts = {host for host, _ in ways}
        shown = ok(f"GDRDMA for {', '.join(sorted({way for _, way in ways}))} on {len(hosts)} hosts")
        halves = sum(
            (host, way) not in ways for host in hosts for way in ("send", "receive") if (host, "?") not in ways
        )
        return with_missing(shown, halves, "of their directions are not in the log")
    if len(without) == len(ways):
        return warn(f"on no host and in no direction: {named(without)}")
    return fail(f"not for {named(without)}")


@check(
    "nccl-log-interface",
    "network",
    title="NCCL starts over, and sends over, the right interfaces",
    read=_READ + "`Bootstrap : Using`, `NET/Socket : Using`, `OOB`",
    expected="no loopback, no interface of containers; one name on all hosts",
    source=_NCCL,
    cost="a hang at start-up, or data over a slow network",
    fix="set NCCL_SOCKET_IFNAME",
    when_wrong="jobs on one host may use loopback",
)
def interface(machine: Machine) -> Outcome:
    log = machine.nccl_log
    used = {(host, name) for host, name in log.bootstrap.items()}
    used |= {(host, name) for host, names in log.socket_interfaces.items() for name in names}
    need(list(used), "no line names an interface")
    hosts = {host for host, _ in used}
    bad = sorted({name for _, name in used if re.match(r"docker|virbr|br-|veth|cni|flannel|cali", name)})
    if bad:
        return warn(f"interfaces of containers: {named(bad)}")
    if any(name == "lo" for _, name in used) and len(hosts) > 1:
        return warn("loopback, with several hosts")
    odd = minority(log.bootstrap)
    if odd is not None:
        return info(f"most hosts start over {odd[0]}, but not {named(host or '?' for host in odd[1])}")
    over_ib = sorted({name for names in log.socket_interfaces.values() for name in names if name.startswith("ib")})
    if over_ib:
        is_mixed = bool(log.rdma_devices)
        also = " on some ranks; others use RDMA" if is_mixed else " instead of RDMA"
        return warn(f"TCP over InfiniBand (IPoIB){also}: {named(over_ib)}")
    return ok(named(sorted({name for _, name in used})))


@check(
    "nccl-log-completion-error",
    "network",
    title="no RDMA operation failed",
    read=_READ + "`Got completion ... with error` or `status=`: the first that is no consequence (5)",
    expected="none",
    source="libibverbs, enum ibv_wc_status",
    cost="the job ends",
    fix="12: look at links, cables, PFC and routes of both hosts (rdma-* checks); NCCL_IB_TIMEOUT is a stopgap",
    when_wrong="the other side crashed first: look for the earliest error of all ranks",
)
def completion_error(machine: Machine) -> Outcome:
    log = machine.nccl_log
    if not log.completion_errors:
        return _none(machine)
    first = next((error for error in log.completion_errors if error.status != 5), log.completion_errors[0])
    said = {"on": first.host, "at": first.device, "with": first.peer}
    where = "".join(f", {word} {name}" for word, name in said.items() if name)
    meaning = _STATUS.get(first.status, "see ibv_wc_status")
    return fail(f"status {first.status}: {meaning}{where} ({len(log.completion_errors)} in all)")


@check(
    "nccl-log-warnings",
    "software",
    title="NCCL warned of nothing",
    read=_READ + "lines of WARN; `Call to connect returned ..., retrying`",
    expected="none",
    source=_NCCL,
    cost="most end the job; some are a fallback that is slow",
    fix="start with the first",
    when_wrong="`No plugin found` and the like are normal",
)
def warnings(machine: Machine) -> Outcome:
    log = machine.nccl_log
    if not log.warnings:
        if log.retries and not log.num_started:
            why = named(f"{host or '?'}: {', '.join(reasons)}" for host, reasons in log.retries.items())
            return warn(f"connections are tried again ({why}), and no rank's start is complete")
        return _none(machine)
    if log.no_connection:
        hosts = named(f"{host or '?'}: {', '.join(why)}" for host, why in log.no_connection.items())
        over = sorted(set(log.bootstrap.values()) | {n for names in log.socket_interfaces.values() for n in names})
        through = f", over {named(over)}: set NCCL_SOCKET_IFNAME to the one that reaches them" if over else ""
        return fail(f"ranks cannot reach others ({hosts}){through}")
    text = " ".join(warning.text for warning in log.warnings)
    if "posix_fallocate" in text or re.search(r"/dev/shm|shared memory.*(?:fail|extend)", text):
        return fail(f"/dev/shm is too small: {log.warnings[0].text[:140]}")
    if re.search(r"ibv_modify_qp.*(?:unreachable|error 101)|Network is unreachable", text, re.IGNORECASE):
        return fail(f"RDMA connections cannot be made; wrong GID or route: {log.warnings[0].text[:140]}")
    if any("Cuda failure 802" in warning.text for warning in log.warnings):
        return fail("CUDA is not ready (802, system not yet initialized): look at gpu-fabric and fabric-manager")
    if any("nvls" in (warning.place or "") and "Cuda failure" in warning.text for warning in log.warnings):
        return fail(
            "NVLink SHARP cannot be set up: reset the GPUs after a restart of the fabric manager; "
            "NCCL_NVLS_ENABLE=0 does without"
        )
    if all("libibverbs" in warning.text for warning in log.warnings):
        return warn("libibverbs is not installed here: NCCL cannot use RDMA (NET/IB)")
    first = next(warning for warning in log.warnings if "libibverbs" not in warning.text)
    at = f" on {first.host}" if first.host else ""
    place = f" ({first.place})" if first.place else ""
    return warn(f"{len(log.warnings)}, the first{at}: {first.text[:160]}{place}")


@check(
    "nccl-log-version",
    "software",
    title="all ranks have one version of NCCL",
    read=_READ + "`NCCL version`",
    expected="one",
    source=_NCCL,
    cost="hangs, or wrong results, at the first collective whose protocol changed between them",
    fix="the same environment on all hosts; see nccl-library-override",
    when_wrong="logs of several jobs in one file",
)
def version(machine: Machine) -> Outcome:
    versions = machine.nccl_log.versions
    need(versions, "no line tells the version")
    return ok(versions[0]) if len(versions) == 1 else fail(f"several: {named(versions)}")


@check(
    "nccl-log-paths",
    "gpu",
    title="NCCL found a path of high bandwidth for its rings and trees",
    read=_READ + "`Pattern 4, ..., nChannels 2, bw 24.0/24.0, type NVL/PIX`; else a graph XML (NCCL_GRAPH_DUMP_FILE)",
    expected="NVL or PIX within the host, at most PXB (PXN) to the NIC",
    source="NCCL source, graph/topo.h: path types",
    cost="PHB and SYS cross the CPU; the bandwidth that NCCL plans with is in the line",
    fix="look at the topology checks; in a virtual machine, NCCL_TOPO_FILE",
    when_wrong="hosts without NVLink have no better path",
)
def paths(machine: Machine) -> Outcome:
    patterns, has_network = _patterns(machine)
    rings = [pattern for pattern in patterns if pattern[0] == 4] or patterns
    worst = min(rings, key=lambda pattern: pattern[2] * pattern[1])
    shown = f"{worst[1]} channels x {worst[2]:g} GB/s, {worst[3]} within the host, {worst[4]} to the network"
    if not worst[1]:
        return warn("no path was found for a ring: 0 channels")
    if worst[3] in ("SYS", "PHB", "NET") or (worst[4] == "SYS" and has_network):
        return warn(shown)
    is_near = worst[4] in ("LOC", "NVL", "C2C", "PIX", "PXB", "PXN", "P2C") or not has_network
    return ok(shown) if worst[3] in ("NVL", "NVB", "PIX", "LOC", "C2C") and is_near else info(shown)


def _patterns(machine: Machine) -> tuple[list[tuple[int, int, float, str, str]], bool]:
    """Pattern, channels, GB/s, types within and between hosts: of a log, else of a graph XML. And whether hosts are."""
    try:
        log = machine.nccl_log
    except NotReadError as error:
        if NCCL_GRAPH not in machine.snapshot.outputs:
            raise error
        graphs = machine.nccl_graphs
        need(graphs, "the graph XML holds no graph")
        found = [(g.pattern, g.num_channels, g.inside_gb_per_s, g.inside, g.between) for g in graphs]
        return found, any(g.has_network for g in graphs)
    if not log.patterns:
        raise NotReadError("no `Pattern` line: NCCL_DEBUG_SUBSYS needs GRAPH")
    return list(log.patterns), len(log.hosts) > 1


@check(
    "nccl-log-choices",
    "software",
    title="which algorithms and protocols NCCL chose",
    read=_READ + "`N Bytes -> Algo 1 proto 2` (NCCL_DEBUG_SUBSYS=TUNING)",
    expected="either",
    source="NCCL source, include/nccl_common.h",
    cost="none of itself",
    fix="none needed",
    when_wrong="never seen to be",
)
def choices(machine: Machine) -> Outcome:
    log = machine.nccl_log
    if not log.choices:
        raise NotReadError("no such line: NCCL_DEBUG_SUBSYS needs TUNING")
    counts = Counter(f"{algorithm}/{protocol}" for _, algorithm, protocol in log.choices)
    return info(named(f"{name}: {count}" for name, count in counts.most_common()))


@check(
    "nccl-log-fabric",
    "gpu",
    title="GPUs on a multi-node NVLink fabric have joined it",
    read=_READ + "MNNVL: fabric UUID, state and health mask",
    expected="state 3 (completed), one UUID and clique, for GPUs that have a fabric",
    source="NVML, nvmlGpuFabricInfo",
    cost="NVLink between hosts is not used",
    fix="look at the fabric manager and at `nvidia-imex-ctl`",
    when_wrong="GPUs without NVSwitch have UUID 0",
)
def fabric(machine: Machine) -> Outcome:
    fabrics = machine.nccl_log.fabrics
    if not fabrics:
        raise NotHereError("no line of MNNVL")
    joined = [entry for entry in fabrics if entry[1] not in ("0.0", "0")]
    if not joined:
        return info("these GPUs are on no fabric between hosts")
    bad = [bus for bus, _, _, state, _ in joined if state != 3]
    if bad:
        return fail(f"state is not 3 (completed) for {named(bad)}")
    groups = {(uuid, clique) for _, uuid, clique, _, _ in joined}
    return ok(f"{len({e[0] for e in joined})} GPUs in {len(groups)} clique{'s' if len(groups) > 1 else ''}")


@check(
    "nccl-log-affinity",
    "host",
    title="NCCL binds the ranks to several CPUs, near their GPU",
    read=_READ + "`Setting affinity for GPU 0 to ffff`",
    expected="a set of CPUs for each GPU",
    source=_NCCL,
    cost="one core for a rank and all its threads: launches and proxies wait for each other",
    fix="do not bind ranks to single cores (`--cpu-bind`), or give NCCL_IGNORE_CPU_AFFINITY=1",
    when_wrong="a machine with one core for each rank",
)
def affinity(machine: Machine) -> Outcome:
    log = machine.nccl_log
    if not log.affinities:
        raise NotReadError("no line sets an affinity")
    sizes = {key: parse_cpu_mask(mask) for key, mask in log.affinities.items()}
    single = [f"GPU {gpu}: {cpu_list_text(cpus)}" for (_, gpu), cpus in sizes.items() if len(cpus) == 1]
    if single:
        return warn(f"bound to one CPU: {named(single)}")
    return ok(named(f"GPU {gpu}: {cpu_list_text(cpus)}" for (_, gpu), cpus in sizes.items()))
