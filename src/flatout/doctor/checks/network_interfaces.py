"""Checks of the network interfaces, and of TCP."""

from __future__ import annotations

import re
from collections import defaultdict

from flatout.doctor.check import check, info, named, need, none_in_log, ok, warn, with_missing
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.parse.number import count_in
from flatout.doctor.unknown import NotReadError

_NET = "/sys/class/net"
_VIRTUAL = re.compile(
    r"(?:lo|docker.*|virbr.*|br-.*|veth.*|cni.*|flannel.*|cali.*|tun.*|tap.*|kube-.*|dummy.*|sit.*|bonding_masters)"
)
_SMALL_MTU = 4200  # less than the largest InfiniBand or RoCE packet: 4096 bytes and headers
_FAST_MBIT_PER_S = 100_000
_MANY_CARRIER_LOSSES = 5


def physical_interfaces(machine: Machine) -> list[str]:
    """Return the interfaces that are not a container's."""
    return [name for name in machine.names(_NET) if not _VIRTUAL.fullmatch(name)]


def _interfaces(machine: Machine) -> list[str]:
    """Return the interfaces that are neither a container's nor down."""
    if not machine.names(_NET):
        raise NotReadError(f"the input has no interface (`{_NET}`)")
    return [name for name in physical_interfaces(machine) if machine.optional(f"{_NET}/{name}/operstate") != "down"]


def _number(machine: Machine, path: str) -> int | None:
    return count_in(machine.optional(path))


@check(
    "net-mtu",
    "network",
    topic="MTU of the network interfaces",
    read="/sys/class/net/*/mtu, speed and operstate",
    expected="the same for interfaces whose names differ only in a number; 9000 at 100 Gb/s or more",
    source="peers; NVIDIA networking documentation, RoCE",
    cost="small packets cost CPU time and bandwidth; with unequal MTUs, packets are lost or connections hang",
    fix="set the same MTU on all hosts and on the switches between them",
    when_wrong="interfaces for storage or management that happen to have similar names",
    traffic="network",
)
def mtu(machine: Machine) -> CheckOutcome:
    mtus = {name: size for name in _interfaces(machine) if (size := _number(machine, f"{_NET}/{name}/mtu")) is not None}
    need(list(mtus), "the input has no MTU")
    by_kind: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, size in mtus.items():
        by_kind[re.sub(r"\d+", "#", name)][name] = size
    mixed = [_sizes(sizes) for sizes in by_kind.values() if len(set(sizes.values())) > 1]
    if mixed:
        return warn(f"unequal MTUs: {'; '.join(mixed)}")
    small = []
    num_unknown_speeds = 0
    for name, size in mtus.items():
        if size >= _SMALL_MTU or name.startswith("ib"):  # the MTU of IP over InfiniBand is not that of RDMA
            continue
        speed = _number(machine, f"{_NET}/{name}/speed")
        if speed is None:
            num_unknown_speeds += 1
        elif speed >= _FAST_MBIT_PER_S:
            small.append(f"{name}: {size} at {speed // 1000} Gb/s")
    if small:
        return warn(f"MTUs are small for the speed: {named(small)}")
    return with_missing(ok(_sizes(mtus)), num_unknown_speeds, "of these do not report their speed")


def _sizes(mtus: dict[str, int]) -> str:
    return named(f"{name}: {size}" for name, size in mtus.items())


@check(
    "net-default-interface",
    "network",
    topic="choice of the network interface",
    read="names of /sys/class/net that are up, and NCCL_SOCKET_IFNAME",
    expected="one, or NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) set on machines with several",
    source="NCCL documentation, NCCL_SOCKET_IFNAME",
    cost="ranks that choose networks without a route between them hang at start-up; sockets over a slow network crawl",
    fix="set NCCL_SOCKET_IFNAME to the interface that reaches the other hosts",
    when_wrong="jobs on one host",
)
def default_interface(machine: Machine) -> CheckOutcome:
    names = _interfaces(machine)
    chosen = machine.environment.get("NCCL_SOCKET_IFNAME")
    if chosen:
        return ok(f"NCCL_SOCKET_IFNAME={chosen}")
    if not names:
        return info("none is up other than loopback and containers' interfaces")
    if len(names) == 1:
        return ok(names[0])
    return info(f"{len(names)} could be chosen: {named(names)}")


@check(
    "net-carrier-losses",
    "network",
    topic="carrier losses of the network interfaces",
    read="/sys/class/net/*/carrier_down_count; kernel log: `lost carrier`, `Link is Down` and cable faults",
    expected="at most 5 times",
    source="gpud and Imbue's published checks; the limit is proposed by Flatout",
    cost="each loss pauses the job for seconds, or ends it",
    fix="reseat or replace the cable or transceiver",
    when_wrong="the counters start with the host, and planned work on switches is counted, too",
    traffic="network",
)
def carrier_losses(machine: Machine) -> CheckOutcome:
    counts = _carrier_down_counts(machine)
    try:
        log = machine.kernel_log
    except NotReadError:
        need(list(counts), "neither carrier counts nor a kernel log was read")
    else:
        cables = log.lines["cable"]
        if cables:
            return warn(f"{len(cables)} cable or transceiver faults, the last: {cables[-1][:140]}")
        for name, num_losses in log.link_losses.items():
            counts[name] = max(num_losses, counts.get(name, 0))
    many = [f"{name}: {count}" for name, count in counts.items() if count > _MANY_CARRIER_LOSSES]
    if many:
        return warn(f"interfaces lost their carrier: {named(many)}")
    lost = [f"{name}: {count}" for name, count in counts.items() if count]
    if lost:
        return info(f"carrier lost: {named(lost)}")
    if not counts:
        return none_in_log(machine)
    num_missing = len(set(physical_interfaces(machine)) - counts.keys())
    return with_missing(ok(f"0 on {len(counts)} interfaces"), num_missing, "interfaces reported no count")


def _carrier_down_counts(machine: Machine) -> dict[str, int]:
    counts = {}
    for path, text in machine.matching(f"{_NET}/*/carrier_down_count").items():
        name = path.split("/")[4]
        if text.isdecimal() and not _VIRTUAL.fullmatch(name):
            counts[name] = int(text)
    return counts


@check(
    "net-tcp-buffers",
    "network",
    topic="TCP buffer sizes",
    read="/proc/sys/net/core/rmem_max and wmem_max, /proc/sys/net/ipv4/tcp_rmem and tcp_wmem",
    expected="at least 4 MiB",
    source="ESnet, host tuning, https://fasterdata.es.net/host-tuning/linux/",
    cost="gloo, NCCL without RDMA and object stores, which use sockets, stay below the link's bandwidth",
    fix="ask an administrator to raise them with sysctl",
    when_wrong="RDMA does not use them",
)
def tcp_buffers(machine: Machine) -> CheckOutcome:
    most = {}
    for name in ("tcp_rmem", "tcp_wmem"):
        most[name] = int(machine.file(f"/proc/sys/net/ipv4/{name}").split()[2])
    small = [f"{name}: {size >> 10:,} KiB" for name, size in most.items() if size < 4 << 20]
    if small:
        return info(named(small))
    return ok(named(f"{name}: {size >> 20} MiB" for name, size in most.items()))


@check(
    "net-port-range",
    "network",
    topic="ports for outgoing connections",
    read="/proc/sys/net/ipv4/ip_local_port_range",
    expected="at least 20,000 ports",
    source="NCCL documentation, troubleshooting",
    cost="large jobs cannot connect: `Cannot assign requested address`",
    fix="ask an administrator to run `sysctl net.ipv4.ip_local_port_range='10000 65000'`",
    when_wrong="small jobs need fewer",
)
def port_range(machine: Machine) -> CheckOutcome:
    first, last = (int(word) for word in machine.file("/proc/sys/net/ipv4/ip_local_port_range").split())
    num_ports = last - first + 1
    if num_ports >= 20_000:
        return ok(f"{num_ports:,}")
    return warn(f"too few ports for outgoing connections: {num_ports:,} ({first} to {last})")
