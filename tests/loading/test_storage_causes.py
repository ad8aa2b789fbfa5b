"""The counters of file systems refine a wait for files, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.loading.test_speed import a_loader, a_stage

from flatout.loading.causes import find_causes
from flatout.loading.storage_causes import mounts_of, with_storage
from flatout.records.loading import LoadingProfile, RankLoading
from flatout.records.storage import HostStorage, StorageFinding, StorageReason, StorageVerdict

GIB = 1 << 30


def a_verdict(finding: StorageFinding, reason: StorageReason | None = None, hostname: str = "node1") -> StorageVerdict:
    return StorageVerdict(finding=finding, hostname=hostname, folder="/data", kind="lustre", reason=reason)


def causes(loading: RankLoading, *verdicts: StorageVerdict, host: HostStorage | None = None) -> list[str]:

    profile = LoadingProfile(
        recording="r", ranks=(loading,), slowest_rank=0, is_waiting=True, causes=find_causes(loading)
    )
    hosts = [] if host is None else [host]
    return [cause.name.value for cause in with_storage(profile, verdicts, hosts).causes]


WAITING = a_stage("read", waiting_s=0.004)


@pytest.mark.parametrize("finding", [each for each in StorageFinding if each != StorageFinding.UNKNOWN])
def test_a_wait_for_files_is_named_by_the_counters(finding: StorageFinding) -> None:
    assert causes(a_loader(WAITING), a_verdict(finding)) == [finding.value]
    assert causes(a_loader(a_stage("code", waiting_s=0.004)), a_verdict(finding)) == [finding.value]


def test_a_wait_stays_as_it_is_where_the_counters_are_unknown_or_of_another_host() -> None:
    unknown = a_verdict(StorageFinding.UNKNOWN, StorageReason.NO_COUNTERS)
    assert causes(a_loader(WAITING), unknown) == ["storage-latency"]
    assert causes(a_loader(WAITING), a_verdict(StorageFinding.METADATA, hostname="node2")) == ["storage-latency"]
    assert causes(a_loader(WAITING), unknown, a_verdict(StorageFinding.METADATA)) == ["metadata-latency"]


def test_lustre_is_not_blamed_where_srun_gave_the_workers_one_core() -> None:
    """As in nasa/pytorch-caney#44: 0.19 batches a second with one core, 2.47 with all."""
    workers: dict[str, Any] = {"num_workers": 8, "cores_allowed": 1, "busy_share": 1.0}
    on_one_core = a_loader(a_stage("decode", cpu_s=0.004, queued_s=0.028), a_stage("read", waiting_s=0.001), **workers)
    assert causes(on_one_core, a_verdict(StorageFinding.METADATA))[0] == "worker-oversubscription"


def test_nvme_is_not_blamed_where_decoding_keeps_all_processes_busy() -> None:
    """As in mlcommons/storage#330: 0.8 MB/s from NVMe, and eight processes at 100 % in decoding Parquet."""
    workers: dict[str, Any] = {"num_workers": 8, "cores_allowed": 32, "busy_share": 1.0}
    decoding = a_loader(a_stage("decode", cpu_s=0.050, waiting_s=0.0005), **workers)
    assert causes(decoding, a_verdict(StorageFinding.LATENCY)) == ["decode-bound"]


def test_workers_whose_own_memory_is_half_of_the_limit_are_short_of_it() -> None:
    def host(stalled: float) -> HostStorage:
        return HostStorage(hostname="node1", mounts=(), memory_limit_bytes=8 * GIB, memory_stalled_share=stalled)

    large, small = a_loader(WAITING, own_bytes=4.0 * GIB), a_loader(WAITING, own_bytes=3.9 * GIB)
    assert causes(large, host=host(0.05)) == ["loader-memory", "storage-latency"]
    assert causes(large, host=host(0.04)) == ["storage-latency"]
    assert causes(small, host=host(0.05)) == ["storage-latency"]
    assert causes(a_loader(WAITING, own_bytes=1.0 * GIB, ranks_on_host=4), host=host(0.05))[0] == "loader-memory"


@pytest.mark.parametrize(("used", "workers", "is_full"), [(0.9, 4, True), (0.89, 4, False), (0.95, 0, False)])
def test_shared_memory_that_is_nine_tenths_full(used: float, workers: int, is_full: bool) -> None:
    loading = a_loader(WAITING, num_workers=workers, shm_used_share=used)
    assert (causes(loading)[0] == "loader-memory") is is_full


def test_shards_come_before_the_stages() -> None:
    iterable: dict[str, Any] = {"num_workers": 4, "is_iterable": True}
    assert causes(a_loader(WAITING, num_idle_workers=1, **iterable)) == ["too-few-shards", "storage-latency"]
    assert causes(a_loader(WAITING, shard_spread=1.25, **iterable)) == ["uneven-shards", "storage-latency"]
    assert causes(a_loader(WAITING, shard_spread=1.24, **iterable)) == ["storage-latency"]


def test_a_mount_counts_from_a_tenth_of_the_files() -> None:
    def profile(home: int) -> LoadingProfile:
        loading = a_loader(mounts={"/data": 90, "/home": home})
        return LoadingProfile(recording="r", ranks=(loading,), slowest_rank=0, is_waiting=True)

    assert mounts_of(profile(10), "node1") == ["/data", "/home"]
    assert mounts_of(profile(9), "node1") == ["/data"]
    assert mounts_of(profile(10), "node2") == []


@pytest.mark.parametrize(
    ("limits", "samples_per_s"),
    [
        ({"max_bytes_per_s": 20e6}, 200),
        ({"max_requests_per_s": 300.0, "bytes_per_read": 50e3}, 150),
        ({"finding": StorageFinding.BANDWIDTH, "peak_bytes_per_s": 25e6}, 250),
        ({"peak_bytes_per_s": 25e6}, None),
    ],
)
def test_more_workers_get_no_more_than_the_storage_delivers(
    limits: dict[str, Any], samples_per_s: float | None
) -> None:
    """Samples of 100 kB that wait 20 ms: 16 workers would make 800 a second."""
    values = {"finding": StorageFinding.LATENCY, "hostname": "node1", "folder": "/data", "kind": "ext4"} | limits
    slow: dict[str, Any] = {"device_bytes": 100e3, "step_s": 0.17, "loader_wait_s": 0.16}
    loading = a_loader(a_stage("read", waiting_s=0.02), **slow)
    profile = LoadingProfile(recording="r", ranks=(loading,), slowest_rank=0, is_waiting=True)
    (limited,) = with_storage(profile, [StorageVerdict(**values)], []).ranks
    assert limited.storage_samples_per_s == samples_per_s
    if samples_per_s is not None:
        fastest = max(limited.speeds, key=lambda speed: speed.num_workers)
        assert (fastest.samples_per_s, fastest.limit) == (pytest.approx(samples_per_s), "storage")
