"""Interfaces of the network, and TCP."""

from __future__ import annotations

import re

from flatout.doctor.check import CheckOutcome, check, info, named, need, none_in_log, ok, warn, with_missing
from flatout.doctor.machine import Machine
from flatout.doctor.unknown import NotReadError

_VIRTUAL = re.compile(
    r"(?:lo|docker.*|virbr.*|br-.*|veth.*|cni.*|flannel.*|cali.*|tun.*|tap.*|kube-.*|dummy.*|sit.*|bonding_masters)"
)


def _interfaces(machine: Machine) -> list[str]:
    """Interfaces that are not of containers, and not down."""
    names = [name for name in machine.names("/sys/class/net") if not _VIRTUAL.fullmatch(name)]
    if not machine.names("/sys/class/net"):
        raise NotReadError("no interface (`/sys/class/net`) was read")
    return [name for name in names if machine.optional(f"/sys/class/net/{name}/operstate") != "down"]


@check(
    "net-mtu",
    "network",
    title="fast interfaces of one kind have one MTU",
    read="/sys/class/net/*/mtu, speed and operstate",
    expected="one value for interfaces whose names differ in a number only; 9000 where speed is 100 Gb/s or more",
    source="peers; NVIDIA networking documentation, RoCE",
    cost="small packets cost CPU time and bandwidth; unequal MTUs lose packets or hang connections",
    fix="the same MTU on all hosts and on the switches between them",
    when_wrong="interfaces for storage or management that happen to have such names",
)
def mtu(machine: Machine) -> CheckOutcome:
    mtus = {}
    for name in _interfaces(machine):
        text = machine.optional(f"/sys/class/net/{name}/mtu")
        if text and text.isdecimal():
            mtus[name] = int(text)
    need(list(mtus), "no MTU was read")
    kinds: dict[str, dict[str, int]] = {}
    for name, value in mtus.items():
        kinds.setdefault(re.sub(r"\d+", "#", name), {})[name] = value
    mixed = [found for found in kinds.values() if len(set(found.values())) > 1]
    if mixed:
        return warn("; ".join(named(f"{name}: {value}" for name, value in found.items()) for found in mixed))
    small, num_unsure = [], 0
    for name, value in mtus.items():
        speed = machine.optional(f"/sys/class/net/{name}/speed") or ""
        is_ip_over_ib = name.startswith("ib")  # its MTU is not that of RDMA
        if speed.isdecimal() and int(speed) >= 100_000 and value < 4200 and not is_ip_over_ib:
            small.append(f"{name}: {value} at {int(speed) // 1000} Gb/s")
        num_unsure += value < 4200 and not is_ip_over_ib and not speed.isdecimal()
    if small:
        return warn(f"small for their speed: {named(small)}")
    shown = ok(named(f"{name}: {value}" for name, value in mtus.items()))
    return with_missing(shown, num_unsure, "of these do not say how fast they are")


@check(
    "net-default-interface",
    "network",
    title="NCCL and gloo have one obvious interface to start over",
    read="names of /sys/class/net that are up, and NCCL_SOCKET_IFNAME",
    expected="one, or NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) set on machines with several",
    source="NCCL documentation, NCCL_SOCKET_IFNAME",
    cost="ranks that choose networks which cannot reach each other hang at start-up; sockets over a slow one crawl",
    fix="set NCCL_SOCKET_IFNAME to the interface that reaches the other hosts",
    when_wrong="jobs on one host",
)
def default_interface(machine: Machine) -> CheckOutcome:
    names = _interfaces(machine)
    chosen = machine.environment.get("NCCL_SOCKET_IFNAME")
    if chosen:
        return ok(f"NCCL_SOCKET_IFNAME={chosen}")
    if not names:
        return info("none is up besides loopback and those of containers")
    return ok(names[0]) if len(names) == 1 else info(f"{len(names)} could be chosen: {named(names)}")


@check(
    "net-carrier-losses",
    "network",
    title="no interface has lost its carrier often",
    read="/sys/class/net/*/carrier_down_count; kernel log: `lost carrier`, `Link is Down` and faults of cables",
    expected="at most 5 times",
    source="gpud and Imbue's published checks; the limit is a proposal of this project",
    cost="each is a pause of seconds, or the end of the job",
    fix="reseat or replace the cable or transceiver",
    when_wrong="counted since the host started; planned work on switches counts too",
)
def carrier_losses(machine: Machine) -> CheckOutcome:
    counts = {
        path.split("/")[4]: int(text)
        for path, text in machine.matching("/sys/class/net/*/carrier_down_count").items()
        if text.isdecimal() and not _VIRTUAL.fullmatch(path.split("/")[4])
    }
    try:
        log = machine.kernel_log
    except NotReadError:
        need(list(counts), "neither carrier counts nor a kernel log was read")
    else:
        for name, count in log.link_losses.items():
            counts[name] = max(count, counts.get(name, 0))
        if cables := log.lines["cable"]:
            return warn(f"{len(cables)} faults of cables or transceivers, the last: {cables[-1][:140]}")
    bad = [f"{name}: {count}" for name, count in counts.items() if count > 5]
    if bad:
        return warn(f"carrier lost: {named(bad)}")
    some = [f"{name}: {count}" for name, count in counts.items() if count]
    if some:
        return info(f"carrier lost: {named(some)}")
    if not counts:
        return none_in_log(machine)
    names = {name for name in machine.names("/sys/class/net") if not _VIRTUAL.fullmatch(name)}
    return with_missing(ok(f"0 on {len(counts)} interfaces"), len(names - set(counts)), "interfaces did not say")


@check(
    "net-tcp-buffers",
    "network",
    title="TCP may keep enough data in flight",
    read="/proc/sys/net/core/rmem_max and wmem_max, /proc/sys/net/ipv4/tcp_rmem and tcp_wmem",
    expected="at least 4 MiB",
    source="ESnet, host tuning, https://fasterdata.es.net/host-tuning/linux/",
    cost="sockets of gloo, of NCCL without RDMA and of object stores stay below the link's bandwidth",
    fix="an administrator raises them with sysctl",
    when_wrong="RDMA does not use them",
)
def tcp_buffers(machine: Machine) -> CheckOutcome:
    most = {}
    for name in ("tcp_rmem", "tcp_wmem"):
        most[name] = int(machine.file(f"/proc/sys/net/ipv4/{name}").split()[2])
    small = [f"{name}: {value >> 10:,} KiB" for name, value in most.items() if value < 4 << 20]
    return info(named(small)) if small else ok(named(f"{name}: {value >> 20} MiB" for name, value in most.items()))


@check(
    "net-port-range",
    "network",
    title="there are enough ports for outgoing connections",
    read="/proc/sys/net/ipv4/ip_local_port_range",
    expected="at least 20,000 ports",
    source="NCCL documentation, troubleshooting",
    cost="large jobs cannot connect: `Cannot assign requested address`",
    fix="an administrator sets `sysctl net.ipv4.ip_local_port_range='10000 65000'`",
    when_wrong="small jobs need few",
)
def port_range(machine: Machine) -> CheckOutcome:
    first, last = (int(word) for word in machine.file("/proc/sys/net/ipv4/ip_local_port_range").split())
    count = last - first + 1
    return ok(f"{count:,}") if count >= 20_000 else warn(f"{count:,} ({first} to {last})")
