"""What the ports and the storage of this host did in a block of steps. In: their counters. Out: errors and latencies.

The counters are those of the whole host: they say what else happened while the job was slow, and name a cause only
together with the job's own waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flatout.probe.port_counters import PortCounters, read_port_counters
from flatout.storage.counts import Counts
from flatout.watch.exporter.storage_metrics import read_storage

_ERRORS = (
    "flatout_port_receive_errors",
    "flatout_port_transmit_errors",
    "flatout_port_symbol_errors",
    "flatout_port_link_downs",
    "flatout_port_link_recoveries",
    "flatout_port_packet_sequence_errors",
    "flatout_port_ack_timeouts",
    "flatout_port_retransmissions",
)
LEAST_READS = 5  # in a block, for a latency


class HostCountersOfBlock:
    """Reads the counters of this host again and again."""

    def __init__(
        self,
        ports: Callable[[], Sequence[PortCounters]] = read_port_counters,
        storage: Callable[[], Mapping[str, Counts]] = read_storage,
    ) -> None:
        self._ports = ports
        self._storage = storage
        self._errors: float | None = None
        self._reads: Mapping[str, Counts] = {}

    def port_errors(self) -> float | None:
        """Return the errors at all ports since the last call; None at the first call, or without ports."""
        found = [port.values[name] for port in self._ports() for name in _ERRORS if name in port.values]
        before, self._errors = self._errors, sum(found) if found else None
        if before is None or self._errors is None:
            return None
        return max(self._errors - before, 0.0)

    def read_latencies_s(self) -> dict[str, float]:
        """Return the mean latency of reads since the last call, by mount or disk with enough of them."""
        before, self._reads = self._reads, self._storage()
        latencies = {}
        for name, now in self._reads.items():
            earlier = before.get(name)
            if earlier is None or None in (now.num_reads, now.read_s, earlier.num_reads, earlier.read_s):
                continue
            num_reads = (now.num_reads or 0) - (earlier.num_reads or 0)
            if num_reads >= LEAST_READS:
                latencies[name] = ((now.read_s or 0.0) - (earlier.read_s or 0.0)) / num_reads
        return latencies
