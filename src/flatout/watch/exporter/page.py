"""Collect the samples of one scrape by metric. In: names, labels and values. Out: families for `prometheus_client`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SUFFIX_OF_COUNTERS = "_total"


class MetricPage:
    """One page of metrics. `constant` are labels that each sample gets."""

    def __init__(self, constant: Mapping[str, str]) -> None:
        self._constant = dict(constant)
        self._families: dict[str, Any] = {}

    @property
    def host(self) -> str:
        return self._constant.get("host", "")

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        self._family(name, text, "gauge").add_sample(name, self._labels(labels), value)

    def counter(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a sample of the counter `name`, which is exported as `name_total`."""
        family = self._family(name, text, "counter")
        family.add_sample(name + _SUFFIX_OF_COUNTERS, self._labels(labels), value)

    def foreign(self, name: str, text: str, kind: str, value: float, **labels: str) -> None:
        """Add a sample under another exporter's name, unchanged; its counters have no suffix, so they are untyped."""
        family = self._family(name, text, "gauge" if kind == "gauge" else "unknown")
        family.add_sample(name, self._labels(labels), value)

    def histogram(
        self, name: str, text: str, buckets: Sequence[tuple[str, float]], sum_value: float, **labels: str
    ) -> None:
        """Add a histogram. `buckets` are cumulative, and the last one is `+Inf`."""
        family = self._family(name, text, "histogram")
        for bound, count in buckets:
            family.add_sample(f"{name}_bucket", self._labels({**labels, "le": bound}), count)
        family.add_sample(f"{name}_count", self._labels(labels), buckets[-1][1])
        family.add_sample(f"{name}_sum", self._labels(labels), sum_value)

    def families(self) -> Iterator[Any]:
        yield from self._families.values()

    def _family(self, name: str, text: str, kind: str) -> Any:
        from prometheus_client.core import Metric

        if name not in self._families:
            self._families[name] = Metric(name, text, kind)
        return self._families[name]

    def _labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {**self._constant, **labels}
