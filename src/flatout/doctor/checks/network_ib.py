"""RDMA ports: InfiniBand, RoCE and EFA."""

from __future__ import annotations

import re

from flatout.doctor.check import CheckOutcome, check, fail, info, named, need, ok, warn, with_missing
from flatout.doctor.machine import Machine
from flatout.doctor.peers import MIN_PEERS, minority, outliers
from flatout.doctor.unknown import NotReadError

_BASE = "/sys/class/infiniband"
_SYSFS = "Linux kernel documentation, ABI/stable/sysfs-class-infiniband"
_SINCE = "counters are since the port was started; growth while a job runs is what matters"


def _ports(machine: Machine, name: str) -> dict[str, str]:
    """`mlx5_0/1` -> the text of a file of that port."""
    machine.rdma_devices  # noqa: B018 - says where there is none
    found = {}
    for path, text in machine.matching(f"{_BASE}/*/ports/*/{name}").items():
        parts = path.removeprefix(_BASE + "/").split("/")
        if len(parts) == 3 + name.count("/") + 1 and parts[1] == "ports":
            found[f"{parts[0]}/{parts[2]}"] = text
    return found


def _silent(machine: Machine, *found: dict[str, str] | dict[str, int]) -> int:
    """Ports that are missing in one of these."""
    ports = {f"{device}/{n}" for device in machine.rdma_devices for n in machine.names(f"{_BASE}/{device}/ports")}
    return sum(any(port not in values for values in found) for port in ports)


def _count(machine: Machine, name: str) -> dict[str, int]:
    return {port: int(text) for port, text in _ports(machine, name).items() if text.isdecimal()}


@check(
    "rdma-port-state",
    "network",
    title="every RDMA port is up",
    read=f"{_BASE}/*/ports/*/state and phys_state",
    expected="ACTIVE and LinkUp",
    source=_SYSFS,
    cost="NCCL leaves the port out: that host has less bandwidth than the others, which wait for it",
    fix="look at the cable, the switch's port and the subnet manager",
    when_wrong="ports that are not wired on purpose, then on all hosts alike",
)
def port_state(machine: Machine) -> CheckOutcome:
    states, physical = _ports(machine, "state"), _ports(machine, "phys_state")
    need(list(states), "no port's state was read")
    down = {port: f"{state}, {physical.get(port, '?')}" for port, state in states.items() if "ACTIVE" not in state}
    down |= {port: state for port, state in physical.items() if "LinkUp" not in state and port not in down}
    if not down:
        missing = _silent(machine, states, physical)
        return with_missing(ok(f"{len(states)} ports are active"), missing, "ports did not say")
    shown = named(f"{port} ({state})" for port, state in down.items())
    return fail(f"not up: {shown}") if len(down) < len(states) else warn(f"none is up: {shown}")


@check(
    "rdma-rate",
    "network",
    title="all ports of the fabric run at the same rate",
    read=f"{_BASE}/*/ports/*/rate, of ports of one link layer",
    expected="the usual rate of the host's ports",
    source="peers",
    cost="rings and trees are as fast as their slowest port",
    fix="look at the cable and the switch's port: a lane that is lost halves or quarters the rate",
    when_wrong="ports for management or storage that are slower by design; bonds are left out",
)
def rate(machine: Machine) -> CheckOutcome:
    rates, layers = _ports(machine, "rate"), _ports(machine, "link_layer")
    states = _ports(machine, "state")
    groups: dict[str, dict[str, str]] = {}
    for port, text in rates.items():
        match = re.match(r"([\d.]+) Gb/sec", text)
        if match and "DOWN" not in states.get(port, "") and "bond" not in port:
            groups.setdefault(layers.get(port, "?"), {})[port] = match[1]
    need(list(groups), "no port's rate was read")
    odd, shown = [], []
    for layer, ports in groups.items():
        if len(set(ports.values())) == 1:
            shown.append(f"{len(ports)} ports of {layer} at {next(iter(ports.values()))} Gb/s")
        elif (usual := minority(ports)) is not None and len(ports) >= MIN_PEERS:
            odd += [
                f"{port} at {ports[port]} of {usual[0]} Gb/s"
                for port in usual[1]
                if float(ports[port]) < float(usual[0])
            ]
            shown.append(f"most ports of {layer} at {usual[0]} Gb/s")
        else:
            return info(f"several rates: {named(f'{port}: {value} Gb/s' for port, value in ports.items())}")
    if odd:
        return fail(f"slower than the others: {named(odd)}")
    return with_missing(ok("; ".join(shown)), _silent(machine, rates, layers), "ports did not say")


@check(
    "rdma-link-downed",
    "network",
    title="no link has gone down again and again",
    read=f"{_BASE}/*/ports/*/counters/link_downed",
    expected="fewer than 5 more than the median of the ports",
    source="peers; the limit is a proposal of this project",
    cost="each is a pause of seconds, or the end of the job (completion status 12)",
    fix="reseat or replace the cable or transceiver",
    when_wrong=_SINCE,
)
def link_downed(machine: Machine) -> CheckOutcome:
    counts = _count(machine, "counters/link_downed")
    need(list(counts), "no port's link_downed was read")
    ordered = sorted(counts.values())
    middle = ordered[(len(ordered) - 1) // 2]
    bad = [
        f"{port}: {count}{' or more (the counter ends there)' if count == 255 else ''}"
        for port, count in counts.items()
        if count >= middle + 5
    ]
    if bad:
        return warn(f"often down: {named(bad)}")
    shown = f"at most {max(counts.values())} times on {len(counts)} ports"
    if max(counts.values()) >= 5:
        return info(shown)
    return with_missing(ok(shown), _silent(machine, counts), "ports did not say")


@check(
    "rdma-symbol-errors",
    "network",
    title="the links carry data without errors",
    read=f"{_BASE}/*/ports/*/counters: symbol_error, link_error_recovery, local_link_integrity_errors, port_rcv_errors",
    expected="0; some symbol errors over months are normal",
    source=_SYSFS,
    cost="data is sent again; bad cables end in links that go down",
    fix="clean or replace the cable or transceiver; `mlxlink` (as root) tells the error rate",
    when_wrong=_SINCE,
)
def symbol_errors(machine: Machine) -> CheckOutcome:
    names = ("symbol_error", "link_error_recovery", "local_link_integrity_errors", "port_rcv_errors")
    found = {name: _count(machine, f"counters/{name}") for name in names}
    need([1 for ports in found.values() if ports], "no error counter of a port was read")
    # Packets that were received with an error also come from the other end's restarts, alike on all ports.
    some = [f"{port} {name}: {count}" for name, ports in found.items() for port, count in ports.items() if count]
    grave = [
        f"{port} {name}: {count}"
        for name, ports in found.items()
        for port, count in ports.items()
        if count > 10 and (name != "port_rcv_errors" or port in outliers(ports, share=1.0))
    ]
    if grave:
        return warn(named(grave))
    if some:
        return info(named(some))
    known = [ports for ports in found.values() if ports]
    return with_missing(ok(f"0 on {max(map(len, known))} ports"), _silent(machine, *known), "ports did not say")


@check(
    "rdma-retransmission",
    "network",
    title="the transport need not send packets again",
    read=f"{_BASE}/*/ports/*/hw_counters: rnr_nak_retry_err, packet_seq_err, local_ack_timeout_err, out_of_sequence, "
    "roce_adp_retrans",
    expected="0 on InfiniBand; on RoCE no port far above the others",
    source="NVIDIA networking documentation, RDMA counters",
    cost="RoCE without working flow control loses packets: each loss stops a connection for milliseconds",
    fix="RoCE: PFC or ECN on hosts and every switch on the way; InfiniBand: cables",
    when_wrong=_SINCE,
)
def retransmission(machine: Machine) -> CheckOutcome:
    names = ("rnr_nak_retry_err", "packet_seq_err", "local_ack_timeout_err", "out_of_sequence", "roce_adp_retrans")
    sums: dict[str, int] = {}
    for name in names:
        for port, count in _count(machine, f"hw_counters/{name}").items():
            sums[port] = sums.get(port, 0) + count
    need(list(sums), "no hw_counters of a port were read")
    some = {port: count for port, count in sums.items() if count}
    if not some:
        return with_missing(ok(f"0 on {len(sums)} ports"), _silent(machine, sums), "ports did not say")
    high = [port for port, by in outliers(sums, share=1.0).items() if by > 0 and sums[port] > 1000]
    if high:
        return warn(f"far above the other ports: {named(f'{port}: {sums[port]:,}' for port in high)}")
    return info(named(f"{port}: {count:,}" for port, count in some.items()))


@check(
    "rdma-gid",
    "network",
    title="RoCE ports have an address of version 2",
    read=f"{_BASE}/*/ports/*/gid_attrs/types/* and gids/*",
    expected="a RoCE v2 GID with an IPv4 address (index 3 usually)",
    source="NCCL documentation, NCCL_IB_GID_INDEX",
    cost="NCCL cannot connect (`ibv_modify_qp` failed, Network is unreachable), or uses what no switch routes",
    fix="give the interface an IPv4 address; set NCCL_IB_GID_INDEX to the index of a v2 entry",
    when_wrong="fabrics with IPv6 only; EFA",
)
def gid(machine: Machine) -> CheckOutcome:
    ethernet = [port for port, layer in _ports(machine, "link_layer").items() if layer == "Ethernet"]
    if not ethernet:
        need(list(_ports(machine, "link_layer")), "no port's link layer was read")
        return info("no RoCE port")
    kinds = machine.matching(f"{_BASE}/*/ports/*/gid_attrs/types/*")
    if not kinds:
        raise NotReadError(f"the GID types of {len(ethernet)} RoCE ports were not read")
    lacking = []
    for port in ethernet:
        device, number = port.split("/")
        base = f"{_BASE}/{device}/ports/{number}"
        good = [
            path
            for path, kind in kinds.items()
            if path.startswith(f"{base}/gid_attrs/types/")
            and kind == "RoCE v2"
            and re.match(
                r"0000:0000:0000:0000:0000:ffff:", machine.optional(f"{base}/gids/{path.split('/')[-1]}") or ""
            )
        ]
        if not good:
            lacking.append(port)
    if lacking:
        return warn(f"no RoCE v2 address with IPv4: {named(lacking)}")
    return ok(f"on {len(ethernet)} ports")


@check(
    "rdma-firmware",
    "network",
    title="NICs of one kind have one firmware",
    read=f"{_BASE}/*/fw_ver, hca_type and board_id",
    expected="one version for each board",
    source="peers",
    cost="seldom any; faults that are mended in one version and not in the other are hard to find",
    fix="bring all to the newest version of the vendor's release",
    when_wrong="while firmware is rolled out",
)
def firmware(machine: Machine) -> CheckOutcome:
    boards: dict[str, dict[str, str]] = {}
    for device in machine.rdma_devices:
        version = machine.optional(f"{_BASE}/{device}/fw_ver")
        if version:
            board = (
                machine.optional(f"{_BASE}/{device}/board_id") or machine.optional(f"{_BASE}/{device}/hca_type") or "?"
            )
            boards.setdefault(board, {})[device] = version
    need(list(boards), "no firmware version was read")
    mixed = [
        f"{board}: {named(sorted(set(found.values())))}"
        for board, found in boards.items()
        if len(set(found.values())) > 1
    ]
    missing = len(machine.rdma_devices) - sum(len(found) for found in boards.values())
    if mixed:
        return warn(f"several versions on {'; '.join(mixed)}")
    return with_missing(ok(f"one on each of {len(boards)} kinds of board"), missing, "devices did not say")
