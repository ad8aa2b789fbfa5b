"""Read the counters of this host's network ports: physical interfaces, and the ports of InfiniBand and RoCE adapters.

In: `/sys/class/net` and `/sys/class/infiniband`. Out: one `PortCounters` per port. A counter that the kernel does not
give, or that cannot be read, is absent. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from flatout.records.gpu_health import PortHealth

_SYS = Path("/sys/class")
_WORD_BYTES = 4  # InfiniBand counts its data in words of four bytes
# Metric -> file below `statistics/`.
_INTERFACE = {
    "flatout_port_received_bytes": "rx_bytes",
    "flatout_port_transmitted_bytes": "tx_bytes",
    "flatout_port_receive_errors": "rx_errors",
    "flatout_port_transmit_errors": "tx_errors",
    "flatout_port_receive_drops": "rx_dropped",
    "flatout_port_transmit_drops": "tx_dropped",
}
# Metric -> file below `ports/N/`, and the bytes of its unit.
_ADAPTER = {
    "flatout_port_received_bytes": ("counters/port_rcv_data", _WORD_BYTES),
    "flatout_port_transmitted_bytes": ("counters/port_xmit_data", _WORD_BYTES),
    "flatout_port_receive_errors": ("counters/port_rcv_errors", 1),
    "flatout_port_transmit_drops": ("counters/port_xmit_discards", 1),
    "flatout_port_symbol_errors": ("counters/symbol_error", 1),
    "flatout_port_link_downs": ("counters/link_downed", 1),
    "flatout_port_link_recoveries": ("counters/link_error_recovery", 1),
    "flatout_port_out_of_sequence": ("hw_counters/out_of_sequence", 1),
    "flatout_port_packet_sequence_errors": ("hw_counters/packet_seq_err", 1),
    "flatout_port_ack_timeouts": ("hw_counters/local_ack_timeout_err", 1),
    "flatout_port_retransmissions": ("hw_counters/roce_adp_retrans", 1),
}
HELP = {
    "flatout_port_received_bytes": "Bytes that the port has received.",
    "flatout_port_transmitted_bytes": "Bytes that the port has sent.",
    "flatout_port_receive_errors": "Packets received with errors.",
    "flatout_port_transmit_errors": "Packets that could not be sent because of errors.",
    "flatout_port_receive_drops": "Packets received and dropped.",
    "flatout_port_transmit_drops": "Packets dropped instead of sent.",
    "flatout_port_symbol_errors": "Symbol errors on the link.",
    "flatout_port_link_downs": "Times that the link went down.",
    "flatout_port_link_recoveries": "Times that the link recovered from errors.",
    "flatout_port_out_of_sequence": "Packets that arrived out of sequence.",
    "flatout_port_packet_sequence_errors": "Packets that the other side reported as missing.",
    "flatout_port_ack_timeouts": "Packets whose acknowledgement timed out.",
    "flatout_port_retransmissions": "Adaptive retransmissions of RoCE.",
}


class PortCounters(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of one port, by metric."""

    device: str
    port: str
    values: Mapping[str, float]


def read_port_counters(sys_class: Path = _SYS) -> list[PortCounters]:
    """Return the counters of all ports of this host."""
    return [*_interfaces(sys_class / "net"), *_adapters(sys_class / "infiniband")]


def read_port_health(sys_class: Path = _SYS) -> tuple[PortHealth, ...]:
    """Return what says how well the ports of InfiniBand and RoCE adapters are."""
    return tuple(
        PortHealth(
            device=counters.device,
            port=counters.port,
            symbol_errors=counters.values.get("flatout_port_symbol_errors"),
            link_recoveries=counters.values.get("flatout_port_link_recoveries"),
            link_downs=counters.values.get("flatout_port_link_downs"),
        )
        for counters in _adapters(sys_class / "infiniband")
    )


def _interfaces(folder: Path) -> Iterator[PortCounters]:
    for interface in _entries(folder):
        if not (interface / "device").exists():  # a bridge, a tunnel, the loopback
            continue
        values = {}
        for metric, name in _INTERFACE.items():
            value = _number(interface / "statistics" / name)
            if value is not None:
                values[metric] = value
        yield PortCounters(device=interface.name, port="", values=values)


def _adapters(folder: Path) -> Iterator[PortCounters]:
    for adapter in _entries(folder):
        for port in _entries(adapter / "ports"):
            values = {}
            for metric, (name, unit_bytes) in _ADAPTER.items():
                value = _number(port / name)
                if value is not None:
                    values[metric] = value * unit_bytes
            yield PortCounters(device=adapter.name, port=port.name, values=values)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _number(path: Path) -> float | None:
    try:
        return float(int(path.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return None
