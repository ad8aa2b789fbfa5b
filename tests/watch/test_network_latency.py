"""The latency of the network is exported where it was measured, and has no sample elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from flatout.probe.ceilings.saved import SCHEMA, VERSION, saved_path
from flatout.records.ceilings import Ceilings, CollectiveFit
from flatout.watch.exporter.network_latency import add_latencies, measured_latencies
from flatout.watch.exporter.page import MetricPage


def fit(name: str, group: str, latency_s: float) -> CollectiveFit:
    return CollectiveFit(
        name=name, group=group, ranks=(0, 1), latency_s=latency_s, bandwidth_bytes_per_s=1e9, median_error=0.1,
        num_sizes=9, backend="gloo",
    )  # fmt: skip


def test_measured_latencies_are_samples_by_collective_and_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert measured_latencies() == ()
    host = os.uname().nodename
    fits = (fit("all_reduce", "all", 3e-5), fit("all_reduce", "pairs", 2e-5), fit("all_reduce", "pairs", 9e-5))
    ceilings = Ceilings(
        host=host, taken_at="2026-01-01T00:00:00Z", took_s=1, device="CPU", num_devices=1, is_gpu=False,
        backend="gloo", software="", measurements=(), fits=fits,
    )  # fmt: skip
    path = saved_path(host)
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode({"schema": SCHEMA, "version": VERSION} | msgspec.to_builtins(ceilings)))
    page = MetricPage({"job": "demo"})
    add_latencies(page, measured_latencies())
    (family,) = page.families()
    assert family.name == "flatout_network_latency_seconds"
    found = {(sample.labels["collective"], sample.labels["group"]): sample.value for sample in family.samples}
    assert found == {("all_reduce", "all"): 3e-5, ("all_reduce", "pairs"): 2e-5}
