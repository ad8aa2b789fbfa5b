"""The collector that `prometheus_client` calls at each scrape: everything that the exporter knows about one job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.keep.heartbeats import HeartbeatReader, HeartbeatSample, ranks_of
from flatout.probe.gpu_counters import GpuCounters
from flatout.probe.port_counters import PortCounters
from flatout.records.ceilings import CollectiveFit
from flatout.records.watch import ExporterRequest
from flatout.storage.counts import Counts
from flatout.watch.exporter.host_metrics import XidCounts, add_gpus, add_ports
from flatout.watch.exporter.ledger_tail import LedgerTail, add_ledger
from flatout.watch.exporter.network_latency import add_latencies
from flatout.watch.exporter.page import MetricPage
from flatout.watch.exporter.rank_metrics import add_mfu, add_ranks
from flatout.watch.exporter.storage_metrics import add_storage


class HostSources(msgspec.Struct, frozen=True, kw_only=True):
    """Where the counters of the host come from."""

    gpus: Callable[[], Sequence[GpuCounters]]
    ports: Callable[[], Sequence[PortCounters]]
    xids: XidCounts
    storage: Callable[[], Mapping[str, Counts]] = dict
    latencies: Sequence[CollectiveFit] = ()  # of the network, as measured before


class Collector:
    def __init__(self, request: ExporterRequest, sources: HostSources) -> None:
        self._request = request
        self._sources = sources
        self._ledger = LedgerTail(Path(request.ledger))
        self._heartbeats = LatestHeartbeats(Path(request.state))
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Any]:
        with self._lock:
            return self._page().families()

    def _page(self) -> MetricPage:
        request = self._request
        page = MetricPage(msgspec.to_builtins(request.labels))
        began_s = time.monotonic()
        ranks = self._heartbeats.read()
        add_ledger(page, self._ledger.totals())
        add_ranks(page, ranks, time.monotonic())
        add_mfu(page, ranks, request.peak_time)
        self._sources.xids.look()
        gpus = self._sources.gpus()
        add_gpus(page, gpus, self._sources.xids, ranks)
        ports = self._sources.ports()
        add_ports(page, ports)
        storage = self._sources.storage()
        add_storage(page, storage)
        add_latencies(page, self._sources.latencies)
        if request.promised_step_s is not None:
            text = "Step time that the tuning of this job measured."
            page.gauge("flatout_step_seconds_promised", text, request.promised_step_s)
        is_readable = {
            "heartbeats": bool(ranks),
            "gpus": bool(gpus),
            "xids": self._sources.xids.is_readable,
            "ports": bool(ports),
            "storage": bool(storage),
        }
        for source, is_up in is_readable.items():
            page.gauge("flatout_source_up", "Whether this source gave anything.", int(is_up), source=source)
        page.counter("flatout_exporter_restarts", "Times that the exporter was restarted.", request.num_starts)
        page.gauge("flatout_scrape_seconds", "Time that this scrape took.", time.monotonic() - began_s)
        return page


class LatestHeartbeats:
    """Reads the ranks of the latest attempt of a run."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._folder: Path | None = None
        self._reader: HeartbeatReader | None = None

    def read(self) -> list[HeartbeatSample]:
        folder = self.latest_attempt()
        if folder is None:
            return []
        if folder != self._folder or self._reader is None:
            self.close()
            self._folder, self._reader = folder, HeartbeatReader(folder)
        return ranks_of(self._reader.read())

    def latest_attempt(self) -> Path | None:
        """Return the folder of the latest attempt; None before the first."""
        try:
            return max(self._state.glob("attempt-*"), key=lambda path: int(path.name.rpartition("-")[2]), default=None)
        except ValueError:  # another file with such a name
            return None

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
