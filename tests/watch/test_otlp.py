"""OpenTelemetry gets the same names, labels and values as Prometheus, through the real SDK's exporters."""

from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.keep.beating import Clock, Rank

from flatout.records.watch import ExporterRequest, JobLabels
from flatout.watch.exporter.collector import Collector, HostSources
from flatout.watch.exporter.host_metrics import XidCounts
from flatout.watch.exporter.otlp import Pusher, metrics_data, otlp_exporter

pytest.importorskip("opentelemetry.sdk.metrics", reason="the extra `otel` is not installed")
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

MS = 10**6


@pytest.fixture
def collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Collector:
    clock = Clock()
    rank = Rank(tmp_path / "attempt-0", 0, 1, clock, monkeypatch)
    for step in range(1, 31):
        rank.spends("compute", (100 if step % 10 else 200) * MS)
        rank.steps()
    sources = HostSources(gpus=list, ports=list, xids=XidCounts(list))
    labels = JobLabels(job="train", job_id="7", host="n1")
    return Collector(
        ExporterRequest(ledger="/dev/null", state=str(tmp_path), address="", port=0, labels=labels), sources
    )


def exported(collector: Collector) -> dict[str, Any]:
    """Return what the SDK's console exporter prints, by metric."""
    printed = io.StringIO()
    ConsoleMetricExporter(out=printed).export(metrics_data(collector.collect(), 1, 2))
    (resource,) = json.loads(printed.getvalue())["resource_metrics"]
    (scope,) = resource["scope_metrics"]
    return {metric["name"]: metric["data"] for metric in scope["metrics"]}


def test_the_names_labels_and_values_are_those_of_the_scrape(collector: Collector) -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)  # type: ignore[arg-type, unused-ignore]
    scraped = {
        (family.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        if family.type != "histogram"
        for sample in family.samples
    }
    data = exported(collector)
    numbers = {
        (name, tuple(sorted(point["attributes"].items()))): point["value"]
        for name, metric in data.items()
        for point in metric["data_points"]
        if "value" in point
    }
    moving = {"flatout_scrape_seconds", "flatout_last_step_age_seconds", "flatout_rank_resident_bytes"}
    assert numbers.keys() == scraped.keys() and len(numbers) > 20
    assert {key: value for key, value in numbers.items() if key[0] not in moving} == {
        key: value for key, value in scraped.items() if key[0] not in moving
    }
    assert data["flatout_attempts"]["is_monotonic"] is True
    assert "is_monotonic" not in data["flatout_world_size"]


def test_buckets_are_counts_of_their_own_and_sum_to_all_steps(collector: Collector) -> None:
    (point,) = exported(collector)["flatout_step_seconds"]["data_points"]
    assert point["count"] == sum(point["bucket_counts"]) == 29
    assert len(point["bucket_counts"]) == len(point["explicit_bounds"]) + 1
    near = [
        count
        for bound, count in zip(point["explicit_bounds"], point["bucket_counts"], strict=False)
        if 0.1 <= bound <= 0.1 * 1.06
    ]
    assert sum(near) == 26 and point["sum"] == pytest.approx(26 * 0.1 + 3 * 0.2)


def test_a_collector_on_the_loopback_gets_otlp(collector: Collector) -> None:
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    exporter = otlp_exporter(f"http://127.0.0.1:{server.server_port}/v1/metrics")
    pusher = Pusher(collector.collect, exporter, interval_s=5.0)
    pusher.start()
    pusher.stop()
    server.shutdown()
    server.server_close()
    ((path, body),) = got
    assert path == "/v1/metrics"
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    request = ExportMetricsServiceRequest.FromString(body)
    names = {metric.name for metric in request.resource_metrics[0].scope_metrics[0].metrics}
    assert {"flatout_step_seconds", "flatout_rank_steps", "flatout_world_size"} <= names
