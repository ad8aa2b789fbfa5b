"""Tokens per second, MFU and the latency of storage: known where something shows them, else no sample."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry
from tests.keep.beating import Clock, Rank

from flatout.inside.liveness import heartbeat
from flatout.keep.heartbeats import HeartbeatReader, ranks_of
from flatout.probe.port_counters import PortCounters
from flatout.records.watch import ExporterRequest, JobLabels, PeakTime
from flatout.watch.exporter.collector import Collector, HostSources
from flatout.watch.exporter.host_metrics import XidCounts
from flatout.watch.exporter.rank_metrics import mfu_of
from flatout.watch.exporter.storage_metrics import read_storage

MS = 10**6
LABELS = JobLabels(job="train", job_id="", host="n1")


def ranks(folder: Path, patch: pytest.MonkeyPatch, tokens: int | None) -> None:
    """Make two ranks with 30 steps of 100 ms, each with 4 samples."""
    clock = Clock()
    for number in range(2):
        rank = Rank(folder / "attempt-0", number, 2, clock, patch)
        for _ in range(30):
            rank.spends("compute", 100 * MS)
            rank.beat.loaded(4, tokens, tokens or 4)
            rank.steps()


def scraped(folder: Path, **facts: Any) -> dict[tuple[str, str], float]:
    ports: list[PortCounters] = []
    sources = HostSources(
        gpus=list, ports=lambda: ports, xids=XidCounts(list), storage=lambda: read_storage(folder / "proc")
    )
    request = ExporterRequest(ledger="/dev/null", state=str(folder), address="", port=0, labels=LABELS, **facts)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(request, sources))  # type: ignore[arg-type, unused-ignore]
    samples = [sample for family in registry.collect() for sample in family.samples]
    return {
        (sample.name, sample.labels.get("rank") or sample.labels.get("mount", "")): sample.value for sample in samples
    }


def test_tokens_and_mfu_are_those_of_the_last_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks(tmp_path, monkeypatch, tokens=4096)
    found = scraped(tmp_path, peak_time=PeakTime(step_s=0.04, num_ranks=2))
    assert found["flatout_tokens_per_second", "1"] == pytest.approx(40_960)
    assert found["flatout_samples_per_second", "0"] == pytest.approx(40)
    assert found["flatout_mfu_ratio", ""] == pytest.approx(0.4)


def test_what_batches_do_not_show_has_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks(tmp_path, monkeypatch, tokens=None)
    names = {name for name, _ in scraped(tmp_path)}
    assert "flatout_samples_per_second" in names
    assert not {"flatout_tokens_per_second", "flatout_mfu_ratio"} & names
    (sample, _) = ranks_of(HeartbeatReader(tmp_path / "attempt-0").read())
    assert (sample.num_samples, sample.num_tokens) == (120, None)


def test_mfu_is_unknown_on_other_ranks_than_were_recorded() -> None:
    peak = PeakTime(step_s=0.04, num_ranks=2)
    assert mfu_of([0.1, 0.1], 2, peak) == pytest.approx(0.4)
    assert mfu_of([0.1, 0.1], 4, peak) is None
    assert mfu_of([None], 2, peak) is None and mfu_of([0.1], 2, None) is None


MOUNTSTATS = """\
device server:/data mounted on /data with fstype nfs4 statvers=1.1
  opts:	rw
  age:	1000
  bytes:	10 20 30 40 5000 60 70 80
  per-op statistics
        READ: 100 101 0 1000 5000 7 250 300 0
     GETATTR: 40 40 0 100 100 1 80 90 0
"""
DISKSTATS = """\
 259       0 nvme0n1 2000 0 4000 1500 10 0 80 5 0 100 1505
 259       1 nvme0n1p1 1900 0 3900 1400 10 0 80 5 0 100 1405
   7       0 loop0 5 0 10 1 0 0 0 0 0 1 1
   8       0 sda 0 0 0 0 0 0 0 0 0 0 0
"""


def test_the_latency_of_storage_is_of_mounts_and_whole_disks(tmp_path: Path) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mountstats").write_text(MOUNTSTATS)
    (tmp_path / "proc" / "diskstats").write_text(DISKSTATS)
    found = scraped(tmp_path)
    assert {mount for name, mount in found if name.startswith("flatout_storage")} == {"/data", "nvme0n1"}
    assert found["flatout_storage_reads_total", "/data"] == 100
    assert found["flatout_storage_read_seconds_total", "/data"] == pytest.approx(0.3)
    assert found["flatout_storage_metadata_seconds_total", "/data"] == pytest.approx(0.09)
    assert found["flatout_storage_read_seconds_total", "nvme0n1"] == pytest.approx(1.5)
    assert ("flatout_storage_metadata_requests_total", "nvme0n1") not in found
    assert read_storage(tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("batch", "counts"),
    [
        ([torch.zeros(4, 3, 8, 8), torch.zeros(4)], (4, None, 768)),
        ({"input_ids": torch.zeros(2, 16, dtype=torch.int64)}, (2, 32, 32)),
    ],
)
def test_a_heartbeat_counts_what_a_training_batch_holds(batch: object, counts: tuple[int | None, ...]) -> None:
    """By the values, larger images are seen."""
    seen: list[tuple[int | None, ...]] = []
    heartbeat._count_batch(SimpleNamespace(loaded=lambda *of_batch: seen.append(of_batch)), batch)  # type: ignore[arg-type]
    assert seen == [counts]
