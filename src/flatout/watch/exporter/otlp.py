"""Push the metrics of a job by OpenTelemetry. In: the families of a scrape. Out: OTLP, by the same names and labels.

A counter keeps its name without Prometheus' `_total`, which OpenTelemetry's own exporters to Prometheus add again.
Samples of dcgm-exporter's names stay gauges. `opentelemetry-sdk` is an extra: `pip install 'flatout[otel]'`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from flatout.errors import FlatoutError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData

INTERVAL_S = 15.0
_NS_PER_S = 1_000_000_000
_MISSING = "OpenTelemetry needs the extra packages of `pip install 'flatout[otel]'`"


def otlp_exporter(address: str) -> MetricExporter:
    """Return the SDK's exporter to a collector. Raise FlatoutError if the extra is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError as error:
        raise FlatoutError(_MISSING) from error
    return OTLPMetricExporter(endpoint=address)


class Pusher:
    """Pushes the metrics at intervals, on a thread, until it is stopped."""

    def __init__(
        self, families: Callable[[], Iterable[Any]], exporter: MetricExporter, interval_s: float = INTERVAL_S
    ) -> None:
        self._families = families
        self._exporter = exporter
        self._interval_s = interval_s
        self._began_ns = time.time_ns()
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Push once more, and end."""
        self._stops.set()
        self._thread.join(self._interval_s)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._stops.wait(self._interval_s):
            self._push()
        self._push()

    def _push(self) -> None:
        data = metrics_data(self._families(), self._began_ns, time.time_ns())
        self._exporter.export(data)  # a collector that does not answer is logged by the SDK, and tried again later


def metrics_data(families: Iterable[Any], began_ns: int, now_ns: int) -> MetricsData:
    """Return the families in the SDK's form. Counters and histograms are cumulative since `began_ns`."""
    try:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    except ImportError as error:
        raise FlatoutError(_MISSING) from error
    metrics = [_metric(family, began_ns, now_ns) for family in families]
    scope = ScopeMetrics(scope=InstrumentationScope("flatout"), metrics=metrics, schema_url="")
    resource = ResourceMetrics(resource=Resource({"service.name": "flatout"}), scope_metrics=[scope], schema_url="")
    return MetricsData(resource_metrics=[resource])


def _metric(family: Any, began_ns: int, now_ns: int) -> Any:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        Metric,
        NumberDataPoint,
        Sum,
    )

    temporality = AggregationTemporality.CUMULATIVE
    if family.type == "histogram":
        points = list(_histograms(family.samples, began_ns, now_ns))
        data: Any = Histogram(data_points=points, aggregation_temporality=temporality)
    else:
        numbers = [
            NumberDataPoint(
                attributes=dict(sample.labels),
                start_time_unix_nano=began_ns,
                time_unix_nano=now_ns,
                value=float(sample.value),
            )
            for sample in family.samples
        ]
        data = Gauge(data_points=numbers)
        if family.type == "counter":
            data = Sum(data_points=numbers, aggregation_temporality=temporality, is_monotonic=True)
    return Metric(name=family.name, description=family.documentation, unit="", data=data)


def _histograms(samples: Iterable[Any], began_ns: int, now_ns: int) -> Iterator[Any]:
    """Yield one data point per set of labels; Prometheus' buckets are cumulative, and those of OTLP are not."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    of_labels: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        point = of_labels.setdefault(labels, {"buckets": [], "sum": 0.0})
        if sample.name.endswith("_bucket"):
            point["buckets"].append((sample.labels["le"], sample.value))
        elif sample.name.endswith("_sum"):
            point["sum"] = sample.value
    for labels, point in of_labels.items():
        counts = [count for _, count in point["buckets"]]
        each = [int(count - before) for before, count in zip([0, *counts], counts, strict=False)]
        yield HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=began_ns,
            time_unix_nano=now_ns,
            count=int(counts[-1]),
            sum=float(point["sum"]),
            bucket_counts=each,
            explicit_bounds=[float(bound) for bound, _ in point["buckets"] if bound != "+Inf"],
            min=float("nan"),
            max=float("nan"),
        )
