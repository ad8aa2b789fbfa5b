"""Checks of RDMA ports: InfiniBand, RoCE and EFA."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from flatout.doctor.check import check, fail, info, named, need, ok, warn, with_missing
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.peers import MIN_PEERS, minority, outliers
from flatout.doctor.unknown import NotReadError

_BASE = "/sys/class/infiniband"
_SYSFS = "Linux kernel documentation, ABI/stable/sysfs-class-infiniband"
_SINCE = "the counters start with the port; only growth while a job runs matters"
_MANY_FLAPS = 5
_LARGEST_COUNT = 255  # the counter link_downed stops there
_IPV4_GID = "0000:0000:0000:0000:0000:ffff:"


def _ports(machine: Machine, name: str) -> dict[str, str]:
    """Return port (`mlx5_0/1`) -> text of the file `name`. Raises NotHereError if there is no RDMA device."""
    machine.need_rdma_device()
    pattern = re.compile(rf"{_BASE}/([^/]+)/ports/([^/]+)/{name}")
    texts = {}
    for path, text in machine.matching(f"{_BASE}/*/ports/*/{name}").items():
        if match := pattern.fullmatch(path):
            texts[f"{match[1]}/{match[2]}"] = text
    return texts


def _num_missing(machine: Machine, *values: Mapping[str, object]) -> int:
    """Count the ports that are missing in at least one of the mappings."""
    missing = set()
    for device in machine.rdma_devices:
        for number in machine.names(f"{_BASE}/{device}/ports"):
            port = f"{device}/{number}"
            if any(port not in by_port for by_port in values):
                missing.add(port)
    return len(missing)


def _counts(machine: Machine, name: str) -> dict[str, int]:
    return {port: int(text) for port, text in _ports(machine, name).items() if text.isdecimal()}


@check(
    "rdma-port-state",
    "network",
    topic="state of the RDMA ports",
    read=f"{_BASE}/*/ports/*/state and phys_state",
    expected="ACTIVE and LinkUp",
    source=_SYSFS,
    cost="NCCL skips the port, so the host has less bandwidth and the other hosts wait for it",
    fix="check the cable, the switch's port and the subnet manager",
    when_wrong="ports that are deliberately left unwired, on all hosts alike",
    traffic="network",
)
def port_state(machine: Machine) -> CheckOutcome:
    states, physical = _ports(machine, "state"), _ports(machine, "phys_state")
    need(list(states), "the input has no RDMA port states")
    down = {port: f"{state}, {physical.get(port, '?')}" for port, state in states.items() if "ACTIVE" not in state}
    for port, state in physical.items():
        if "LinkUp" not in state:
            down.setdefault(port, state)
    if not down:
        outcome = ok(f"{len(states)} ports are active")
        return with_missing(outcome, _num_missing(machine, states, physical), "ports reported no value")
    shown = named(f"{port} ({state})" for port, state in down.items())
    if len(down) < len(states):
        share = 1 - len(down) / len(states)
        return fail(f"RDMA ports are not up: {shown}", bandwidth_share=share)
    return warn(f"no RDMA port is up: {shown}")


@check(
    "rdma-rate",
    "network",
    topic="rates of the RDMA ports",
    read=f"{_BASE}/*/ports/*/rate, of ports of one link layer",
    expected="the usual rate of the host's ports",
    source="peers",
    cost="rings and trees are as fast as their slowest port",
    fix="check the cable and the switch's port: a lost lane halves or quarters the rate",
    when_wrong="ports for management or storage are slower by design; bonds are skipped",
    traffic="network",
)
def rate(machine: Machine) -> CheckOutcome:
    layers = _ports(machine, "link_layer")
    rates = _rates(machine)
    by_layer: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for port, port_rate in rates.items():
        by_layer[layers.get(port, "?")][port] = port_rate
    need(list(by_layer), "the input has no RDMA port rates")
    slow, usual_rates = [], []
    lowest_share = 1.0
    for layer, ports in by_layer.items():
        if len(set(ports.values())) == 1:
            usual_rates.append(f"{len(ports)} ports of {layer} at {next(iter(ports.values()))} Gb/s")
            continue
        odd = minority(ports)
        if odd is None or len(ports) < MIN_PEERS:
            return info(f"several rates: {named(f'{port}: {port_rate} Gb/s' for port, port_rate in ports.items())}")
        usual, odd_ports = odd
        slower = [port for port in odd_ports if float(ports[port]) < float(usual)]
        slow += [f"{port} at {ports[port]} of {usual} Gb/s" for port in slower]
        lowest_share = min([lowest_share, *(float(ports[port]) / float(usual) for port in slower)])
        usual_rates.append(f"most ports of {layer} at {usual} Gb/s")
    if slow:
        return fail(f"RDMA ports are slower than the others: {named(slow)}", bandwidth_share=lowest_share)
    num_missing = _num_missing(machine, _ports(machine, "rate"), layers)
    return with_missing(ok("; ".join(usual_rates)), num_missing, "ports reported no value")


def _rates(machine: Machine) -> dict[str, str]:
    """Return the rate in Gb/s of each port that is not down and is not a bond."""
    states = _ports(machine, "state")
    rates = {}
    for port, text in _ports(machine, "rate").items():
        match = re.match(r"([\d.]+) Gb/sec", text)
        is_down = "DOWN" in states.get(port, "")
        if match and not is_down and "bond" not in port:
            rates[port] = match[1]
    return rates


@check(
    "rdma-link-downed",
    "network",
    topic="RDMA link flaps",
    read=f"{_BASE}/*/ports/*/counters/link_downed",
    expected="at most 4 more than the median of the ports",
    source="peers; the limit is proposed by Flatout",
    cost="each flap pauses the job for seconds, or ends it (completion status 12)",
    fix="reseat or replace the cable or transceiver",
    when_wrong=_SINCE,
    traffic="network",
)
def link_downed(machine: Machine) -> CheckOutcome:
    counts = _counts(machine, "counters/link_downed")
    need(list(counts), "the input has no link_downed counters")
    limit = statistics.median_low(counts.values()) + _MANY_FLAPS
    often = [f"{port}: {_flaps(count)}" for port, count in counts.items() if count >= limit]
    if often:
        return warn(f"RDMA links were often down: {named(often)}")
    most = max(counts.values())
    shown = f"at most {most} times on {len(counts)} ports"
    if most >= _MANY_FLAPS:
        return info(shown)
    return with_missing(ok(shown), _num_missing(machine, counts), "ports reported no count")


def _flaps(count: int) -> str:
    return f"{count} or more (the counter ends there)" if count == _LARGEST_COUNT else str(count)


@check(
    "rdma-symbol-errors",
    "network",
    topic="RDMA link errors",
    read=f"{_BASE}/*/ports/*/counters: symbol_error, link_error_recovery, local_link_integrity_errors, port_rcv_errors",
    expected="0; some symbol errors over months are normal",
    source=_SYSFS,
    cost="data is sent again; with bad cables, links eventually go down",
    fix="clean or replace the cable or transceiver; `mlxlink` (as root) shows the error rate",
    when_wrong=_SINCE,
    traffic="network",
)
def symbol_errors(machine: Machine) -> CheckOutcome:
    names = ("symbol_error", "link_error_recovery", "local_link_integrity_errors", "port_rcv_errors")
    all_counts = {name: _counts(machine, f"counters/{name}") for name in names}
    counts = {name: ports for name, ports in all_counts.items() if ports}
    need(list(counts), "the input has no RDMA port error counters")
    errors, grave_errors = [], []
    for name, ports in counts.items():
        # Restarts of the other end also cause packets received with an error, equally on all ports.
        ports_to_judge = outliers(ports, share=1.0) if name == "port_rcv_errors" else ports
        for port, count in ports.items():
            if not count:
                continue
            shown = f"{port} {name}: {count}"
            errors.append(shown)
            if count > 10 and port in ports_to_judge:
                grave_errors.append(shown)
    if grave_errors:
        return warn(f"RDMA link errors: {named(grave_errors)}")
    if errors:
        return info(named(errors))
    num_ports = max(map(len, counts.values()))
    return with_missing(
        ok(f"0 on {num_ports} ports"), _num_missing(machine, *counts.values()), "ports reported no count"
    )


@check(
    "rdma-retransmission",
    "network",
    topic="RDMA retransmissions",
    read=f"{_BASE}/*/ports/*/hw_counters: rnr_nak_retry_err, packet_seq_err, local_ack_timeout_err, out_of_sequence, "
    "roce_adp_retrans",
    expected="0 on InfiniBand; on RoCE, no port far above the others",
    source="NVIDIA networking documentation, RDMA counters",
    cost="RoCE without working flow control loses packets: each loss stops a connection for milliseconds",
    fix="RoCE: PFC or ECN on hosts and every switch on the way; InfiniBand: cables",
    when_wrong=_SINCE,
    traffic="network",
)
def retransmission(machine: Machine) -> CheckOutcome:
    names = ("rnr_nak_retry_err", "packet_seq_err", "local_ack_timeout_err", "out_of_sequence", "roce_adp_retrans")
    totals: Counter[str] = Counter()
    for name in names:
        totals.update(_counts(machine, f"hw_counters/{name}"))
    need(list(totals), "the input has no hw_counters of RDMA ports")
    if not any(totals.values()):
        return with_missing(ok(f"0 on {len(totals)} ports"), _num_missing(machine, totals), "ports reported no count")
    excess = outliers(totals, share=1.0)
    high = [port for port, by in excess.items() if by > 0 and totals[port] > 1000]
    if high:
        return warn(
            f"RDMA retransmissions far above the other ports: {named(f'{port}: {totals[port]:,}' for port in high)}"
        )
    return info(named(f"{port}: {count:,}" for port, count in totals.items() if count))


@check(
    "rdma-gid",
    "network",
    topic="RoCE v2 addresses",
    read=f"{_BASE}/*/ports/*/gid_attrs/types/* and gids/*",
    expected="a RoCE v2 GID with an IPv4 address on each RoCE port (index 3 usually)",
    source="NCCL documentation, NCCL_IB_GID_INDEX",
    cost="NCCL cannot connect (`ibv_modify_qp` failed, Network is unreachable), or uses an address that is not routed",
    fix="give the interface an IPv4 address; set NCCL_IB_GID_INDEX to the index of a v2 entry",
    when_wrong="fabrics that use only IPv6; EFA",
)
def gid(machine: Machine) -> CheckOutcome:
    layers = _ports(machine, "link_layer")
    need(list(layers), "the input has no RDMA port link layers")
    ethernet = [port for port, layer in layers.items() if layer == "Ethernet"]
    if not ethernet:
        return info("there is no RoCE port")
    kinds = machine.matching(f"{_BASE}/*/ports/*/gid_attrs/types/*")
    if not kinds:
        raise NotReadError(f"the GID types of {len(ethernet)} RoCE ports were not read")
    v2_entries = [path for path, kind in kinds.items() if kind == "RoCE v2"]
    lacking = [port for port in ethernet if not _has_ipv4_gid(machine, port, v2_entries)]
    if lacking:
        return warn(f"no RoCE v2 address with IPv4: {named(lacking)}")
    return ok(f"on {len(ethernet)} ports")


def _has_ipv4_gid(machine: Machine, port: str, entries: Iterable[str]) -> bool:
    device, number = port.split("/")
    base = f"{_BASE}/{device}/ports/{number}"
    for path in entries:
        index = path.removeprefix(f"{base}/gid_attrs/types/")
        address = machine.optional(f"{base}/gids/{index}") or ""
        if index != path and address.startswith(_IPV4_GID):
            return True
    return False


@check(
    "rdma-firmware",
    "network",
    topic="NIC firmware versions",
    read=f"{_BASE}/*/fw_ver, hca_type and board_id",
    expected="one version for each board",
    source="peers",
    cost="seldom anything, but a fault that only one version fixes is hard to find",
    fix="update all NICs to the newest version of the vendor's release",
    when_wrong="a firmware update is in progress",
)
def firmware(machine: Machine) -> CheckOutcome:
    versions: defaultdict[str, set[str]] = defaultdict(set)  # by board
    num_read = 0
    for device in machine.rdma_devices:
        version = machine.optional(f"{_BASE}/{device}/fw_ver")
        if version:
            versions[_board(machine, device)].add(version)
            num_read += 1
    need(list(versions), "the input has no firmware version")
    mixed = [f"{board}: {named(sorted(found))}" for board, found in versions.items() if len(found) > 1]
    if mixed:
        return warn(f"NIC firmware of several versions on {'; '.join(mixed)}")
    outcome = ok(f"one on each of {len(versions)} kinds of board")
    return with_missing(outcome, len(machine.rdma_devices) - num_read, "devices reported no value")


def _board(machine: Machine, device: str) -> str:
    for name in ("board_id", "hca_type"):
        if board := machine.optional(f"{_BASE}/{device}/{name}"):
            return board
    return "?"
