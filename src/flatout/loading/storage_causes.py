"""Say which part of the storage a loader waits for, from the counters of the file systems that it reads from.

In: a `LoadingProfile` and the verdicts on its mounts. Out: the profile with the verdicts; a cause that is a wait for
files is replaced by what the counters say. What the workers compute is left as it is: a slow file system that they
hardly wait for is not a cause.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.loading.causes import advised_workers
from flatout.loading.speed import loader_speeds
from flatout.records.loading import FoundCause, LoaderFinding, LoadingProfile, RankLoading
from flatout.records.storage import HostStorage, StorageFinding, StorageVerdict

# Causes that are waits, of which the stages alone do not say what in the storage takes the time.
_WAITS = {LoaderFinding.STORAGE, LoaderFinding.OPENING, LoaderFinding.CODE_WAITS, LoaderFinding.UNKNOWN}
_OF_FILES = {LoaderFinding.STORAGE, LoaderFinding.OPENING}
MIN_FILES = 0.1  # of the files that a rank read, for a mount that counts
MIN_OWN_MEMORY = 0.5  # of the memory limit, that workers share with no file
MIN_MEMORY_STALLED = 0.05  # of the time
MIN_AVAILABLE = 0.05  # of the memory limit


def mounts_of(profile: LoadingProfile, hostname: str) -> list[str]:
    """Return the folders of the mounts that the ranks of a host read most of their files from, most files first."""
    counts: dict[str, int] = {}
    for loading in profile.ranks:
        if loading.hostname == hostname:
            for folder, count in loading.mounts.items():
                counts[folder] = counts.get(folder, 0) + count
    total = sum(counts.values())
    large = [folder for folder, count in counts.items() if count >= MIN_FILES * total]
    return sorted(large, key=lambda folder: -counts[folder])


def waiting_s(profile: LoadingProfile, hostname: str) -> float:
    """Return the time that the processes of a host which make batches waited, in all of their stages."""
    return sum(
        sum(stage.waiting_s for stage in loading.stages) * loading.num_batches * loading.batch_size
        for loading in profile.ranks
        if loading.hostname == hostname
    )


def data_bytes(profile: LoadingProfile) -> float | None:
    """Return the size of the data set; None if it is unknown."""
    return max((loading.data_bytes for loading in profile.ranks if loading.data_bytes is not None), default=None)


def device_bytes(profile: LoadingProfile, hostname: str) -> float | None:
    """Return the bytes that the processes of a host which make batches read from devices, as the kernel counts it."""
    return _of_host(profile, hostname, "device_bytes")


def read_bytes(profile: LoadingProfile, hostname: str) -> float | None:
    """Return the bytes that these processes read from files; what is mapped into memory is not counted."""
    return _of_host(profile, hostname, "read_bytes")


def _of_host(profile: LoadingProfile, hostname: str, name: str) -> float | None:
    sizes = [
        getattr(loading, name) * loading.num_batches * loading.batch_size
        for loading in profile.ranks
        if loading.hostname == hostname and getattr(loading, name) is not None
    ]
    return sum(sizes) if sizes else None


def with_storage(
    profile: LoadingProfile, verdicts: Sequence[StorageVerdict], hosts: Sequence[HostStorage]
) -> LoadingProfile:
    """Return the profile with what the counters say."""
    loading = next((each for each in profile.ranks if each.rank == profile.slowest_rank), None)
    if loading is None:
        return msgspec.structs.replace(profile, storage=tuple(verdicts))
    profile = msgspec.structs.replace(profile, ranks=tuple(_with_ceiling(each, verdicts) for each in profile.ranks))
    loading = next(each for each in profile.ranks if each.rank == loading.rank)
    verdict = _decisive([each for each in verdicts if each.hostname == loading.hostname])
    causes = [_refined(_with_workers(cause, loading), verdict) for cause in profile.causes]
    host = next((each for each in hosts if each.hostname == loading.hostname), None)
    if causes and host is not None and _is_memory_short(loading, host):
        causes.insert(0, msgspec.structs.replace(causes[0], name=LoaderFinding.MEMORY, stage=None))
    return msgspec.structs.replace(profile, storage=tuple(verdicts), causes=tuple(causes))


def _with_ceiling(loading: RankLoading, verdicts: Sequence[StorageVerdict]) -> RankLoading:
    """Return the loader with what the storage can deliver to it, and the speeds that follow."""
    bytes_per_sample = loading.device_bytes or loading.read_bytes
    if not bytes_per_sample:
        return loading
    rates = [_ceiling_bytes_per_s(each) for each in verdicts if each.hostname == loading.hostname]
    known = [rate for rate in rates if rate is not None]
    if not known:
        return loading
    samples_per_s = min(known) / bytes_per_sample / loading.ranks_on_host
    limited = msgspec.structs.replace(loading, storage_samples_per_s=samples_per_s)
    return msgspec.structs.replace(limited, speeds=loader_speeds(limited))


def _ceiling_bytes_per_s(verdict: StorageVerdict) -> float | None:
    """Return the bytes per second that a mount can deliver, in reads of the present size; None if unknown."""
    rates = [] if verdict.max_bytes_per_s is None else [verdict.max_bytes_per_s]
    if verdict.max_requests_per_s is not None and verdict.bytes_per_read is not None:
        rates.append(verdict.max_requests_per_s * verdict.bytes_per_read)
    if not rates and verdict.finding == StorageFinding.BANDWIDTH and verdict.peak_bytes_per_s:
        rates.append(verdict.peak_bytes_per_s)
    return min(rates, default=None)


def _with_workers(cause: FoundCause, loading: RankLoading) -> FoundCause:
    """Return the cause with the number of workers that is best where the storage has a ceiling."""
    workers, gain = advised_workers(loading)
    return msgspec.structs.replace(cause, workers=workers, gain=gain)


def _decisive(verdicts: Sequence[StorageVerdict]) -> StorageVerdict | None:
    """Return the first verdict that says something, else the first one: its reason is why nothing is known."""
    known = [verdict for verdict in verdicts if verdict.finding != StorageFinding.UNKNOWN]
    return next(iter(known or verdicts), None)


def _refined(cause: FoundCause, verdict: StorageVerdict | None) -> FoundCause:
    if cause.name not in _WAITS or verdict is None:
        return cause
    if verdict.finding == StorageFinding.UNKNOWN and cause.name not in _OF_FILES:
        return cause
    if verdict.finding == StorageFinding.UNKNOWN:
        return msgspec.structs.replace(cause, storage=verdict)
    return msgspec.structs.replace(cause, name=LoaderFinding(verdict.finding.value), storage=verdict)


def _is_memory_short(loading: RankLoading, host: HostStorage) -> bool:
    """Whether the workers' own memory is most of what is allowed, and processes wait for memory."""
    limit = host.memory_limit_bytes
    if limit is None or loading.own_bytes is None:
        return False
    takes_most = loading.own_bytes * loading.ranks_on_host >= MIN_OWN_MEMORY * limit
    is_stalled = (host.memory_stalled_share or 0.0) >= MIN_MEMORY_STALLED
    return takes_most and (is_stalled or bool(host.num_limit_hits))
