"""The metrics of the GPUs and network ports of this host. In: their counters. Out: samples on a page.

GPU counters have dcgm-exporter's names and labels, and the rank that uses the GPU. The counters of Xids exist at 0 from
the start: Prometheus sees no increase of a counter that is born at 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flatout.catalog.xids import XID_CLASSES, xid_class
from flatout.keep.heartbeats import HeartbeatSample
from flatout.probe.gpu_counters import COUNTERS, GpuCounters
from flatout.probe.port_counters import HELP, PortCounters
from flatout.watch.exporter.page import MetricPage


class XidCounts:
    """Counts Xids by GPU and class, from the start of the exporter."""

    def __init__(self, read: Callable[[], Sequence[Mapping[str, Any]] | None]) -> None:
        self._read = read
        self.counts: Counter[tuple[int, str]] = Counter()
        self.last: dict[int, int] = {}  # by GPU
        self.is_readable = False

    def look(self) -> None:
        """Count the Xids since the last call."""
        xids = self._read()
        self.is_readable = xids is not None
        for xid in xids or ():
            if "gpu" in xid:
                self.counts[xid["gpu"], xid_class(xid["number"])] += 1
                self.last[xid["gpu"]] = xid["number"]


def add_gpus(page: MetricPage, gpus: Sequence[GpuCounters], xids: XidCounts, ranks: Sequence[HeartbeatSample]) -> None:
    """Add the counters of all GPUs."""
    rank_of_gpu = {pulse.gpu: str(pulse.rank) for pulse in ranks if pulse.gpu is not None}
    for gpu in gpus:
        labels = {
            "gpu": str(gpu.gpu),
            "UUID": gpu.uuid,
            "pci_bus_id": gpu.pci_bus_id,
            "device": gpu.device,
            "modelName": gpu.model,
            "hostname": page.host,
            "rank": rank_of_gpu.get(gpu.uuid, ""),
        }
        for counter in COUNTERS:
            if counter.name in gpu.values:
                page.foreign(counter.name, counter.help, counter.kind, gpu.values[counter.name], **labels)
        if xids.is_readable:
            last = xids.last.get(gpu.gpu, 0)
            page.foreign("DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered.", "gauge", last, **labels)
            for name in XID_CLASSES:
                count = xids.counts[gpu.gpu, name]
                text = "Xids of the GPU by whose they are: the job's, the machine's, or without effect."
                page.counter("flatout_xid_errors", text, count, **{**labels, "class": name})


def add_ports(page: MetricPage, ports: Sequence[PortCounters]) -> None:
    """Add the counters of all network ports."""
    for port in ports:
        for name, value in port.values.items():
            page.counter(name, HELP[name], value, device=port.device, port=port.port)
