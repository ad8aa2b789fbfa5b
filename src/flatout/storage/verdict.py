"""What limits the reads from a mount, from the counters of its client.

In: a mount of a host, and what is known of the job's reads. Out: a `StorageVerdict`, which is unknown, with the reason,
if the counters do not say. The order of the rules is the order of their certainty: a rate at a known limit and requests
that were sent again are facts; that reading again was not necessary follows from sizes; that others use the server,
from answers that become slower while our own load does not grow; the rest is the larger part of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

import msgspec

from flatout.records.storage import HostStorage, Mount, MountUse, StorageFinding, StorageReason, StorageVerdict
from flatout.storage.counts import added

MIN_REQUESTS = 20
AT_LIMIT = 0.8  # of a known limit
MIN_RESENT = 0.01  # of all requests
FEW_RESENT = 0.001  # enough if most of the time is spent before the last sending
MIN_QUEUED = 0.5  # of the time of requests
MIN_TIMES_READ = 1.5  # of the data set, from the storage
MAX_OF_MEMORY = 0.8  # of the available memory, for a data set that fits
MIN_SLOWER = 2.0  # slow answers over fast ones
MAX_LOAD = 1.25  # our own load while answers are slow, over that while they are fast
MIN_PERIODS = 4
SLOW = 1.5  # times the fast answers
MIN_SLOW_PERIODS = 0.2
MIN_PERIOD_REQUESTS = 10
MAX_SIZE_RATIO = 1.5  # of the bytes per read: larger reads take longer
MIN_METADATA = 0.5  # of the time of requests
LARGE_READ_BYTES = 65536
MIN_IN_FLIGHT = 2.0
MAX_SPREAD = 0.25  # of the bytes per second from time to time, for a steady rate
MIN_OWN_READS = 0.5  # of a server's bytes, that these processes asked for: else others read, or files are mapped
MIN_OF_DISK = 0.001  # of the bytes read from a local disk: below it, its requests are those of other processes
MIN_EXPLAINED = 0.25  # of the time in which the loader's processes wait


class JobReads(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a job's reads on one host."""

    waiting_s: float | None = None  # of all processes that make batches
    data_bytes: float | None = None  # of the data set
    read_bytes: float | None = None  # from files, by these processes
    device_bytes: float | None = None  # read by these processes, of a disk that others use too


def storage_verdict(host: HostStorage, mount: Mount, reads: JobReads) -> StorageVerdict:
    """Return what limits the reads from the mount."""
    total = added(mount.uses)
    undecided = _undecided(host, mount, total, reads)
    if not mount.has_counters:
        return _unknown(undecided, StorageReason.NO_COUNTERS, mount.problem)
    not_the_jobs = _reason_against_counts(mount, total, reads)
    if not_the_jobs is not None:
        return _unknown(undecided, not_the_jobs)
    if _is_at_limit(mount, total):
        return _decided(undecided, StorageFinding.BANDWIDTH)
    if _explains_little(mount, total, reads):
        return _unknown(undecided, StorageReason.LITTLE_TIME)
    if _are_resent(total):
        return _decided(undecided, StorageFinding.RETRANSMITS)
    if _was_cache_missed(undecided):
        return _decided(undecided, StorageFinding.CACHE_MISSED)
    slower = _slower(mount.uses, by_reads=_reads_take_most(total))
    if slower is not None:
        return msgspec.structs.replace(undecided, finding=StorageFinding.CONTENTION, **slower)
    if _lacks_times(total):
        return _unknown(undecided, StorageReason.NO_TIMES)
    if undecided.metadata_share is not None and undecided.metadata_share >= MIN_METADATA:
        return _decided(undecided, StorageFinding.METADATA)
    return _of_reads(mount, total, undecided)


def _reason_against_counts(mount: Mount, total: MountUse, reads: JobReads) -> StorageReason | None:
    """Return why the counters say nothing of this job; None if they do."""
    if not mount.uses:
        return StorageReason.ONE_SAMPLE
    if total.num_reads + total.num_metadata < MIN_REQUESTS:
        return StorageReason.FEW_REQUESTS
    if _is_read_by_others(mount, total, reads):
        return StorageReason.OTHERS_READ
    return None


def _explains_little(mount: Mount, total: MountUse, reads: JobReads) -> bool:
    """Whether the job's own requests took a small share of the time in which its loader waits."""
    own_requests_s = _own_requests_s(mount, total, reads)
    if own_requests_s is None or not reads.waiting_s:
        return False
    return own_requests_s < MIN_EXPLAINED * reads.waiting_s


def _lacks_times(total: MountUse) -> bool:
    """Whether the client counted requests, but not how long they took."""
    if total.requests_s is None or (total.read_s is None and total.num_reads):
        return True
    return _lacks_metadata_times(total)


def _decided(undecided: StorageVerdict, finding: StorageFinding) -> StorageVerdict:
    return msgspec.structs.replace(undecided, finding=finding)


def _unknown(undecided: StorageVerdict, reason: StorageReason, detail: str | None = None) -> StorageVerdict:
    return msgspec.structs.replace(undecided, reason=reason, detail=detail)


def _of_reads(mount: Mount, total: MountUse, undecided: StorageVerdict) -> StorageVerdict:
    """Return what limits reads that take most of the time: bytes, if many large ones run at once at a steady rate."""
    is_large = total.num_reads > 0 and total.read_bytes >= LARGE_READ_BYTES * total.num_reads
    are_at_once = (undecided.requests_in_flight or 0.0) >= MIN_IN_FLIGHT
    if not (is_large and are_at_once):
        return _decided(undecided, StorageFinding.LATENCY)
    if _is_steady(mount.uses):
        return _decided(undecided, StorageFinding.BANDWIDTH)
    return _unknown(undecided, StorageReason.NO_CEILING)


def _undecided(host: HostStorage, mount: Mount, total: MountUse, reads: JobReads) -> StorageVerdict:
    """Return the evidence that all findings share, without a finding."""
    num_requests = total.num_requests or total.num_reads + total.num_metadata
    data_bytes = _data_bytes(total, reads)
    metadata_share = None
    if total.requests_s and total.metadata_s is not None:
        metadata_share = total.metadata_s / total.requests_s
    return StorageVerdict(
        finding=StorageFinding.UNKNOWN,
        hostname=host.hostname,
        folder=mount.folder,
        kind=mount.kind,
        bytes_per_s=_ratio(total.read_bytes, total.elapsed_s),
        peak_bytes_per_s=max((use.bytes_per_s for use in mount.uses), default=None),
        max_bytes_per_s=mount.max_bytes_per_s,
        requests_per_s=_ratio(total.num_reads + total.num_metadata, total.elapsed_s),
        max_requests_per_s=mount.max_requests_per_s,
        read_latency_s=_ratio(total.read_s, total.num_reads),
        metadata_latency_s=_ratio(total.metadata_s, total.num_metadata),
        metadata_share=metadata_share,
        bytes_per_read=_ratio(total.read_bytes, total.num_reads),
        requests_in_flight=_ratio(total.requests_s, total.elapsed_s),
        resent_share=_ratio(total.num_resent, num_requests),
        data_bytes=data_bytes,
        available_bytes=host.available_bytes,
        times_read=_ratio(_own_bytes(mount, total, reads), data_bytes),
    )


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _is_at_limit(mount: Mount, total: MountUse) -> bool:
    """Whether the rate is near a limit; one that is exceeded is not the limit, e.g. if there are two links."""
    rates = (
        (total.bytes_per_s, mount.max_bytes_per_s),
        (total.num_reads / total.elapsed_s if total.elapsed_s > 0 else 0.0, mount.max_requests_per_s),
    )
    return any(limit is not None and AT_LIMIT * limit <= rate <= limit / AT_LIMIT for rate, limit in rates)


def _are_resent(total: MountUse) -> bool:
    num_requests = total.num_requests or total.num_reads + total.num_metadata
    if total.num_resent is None or not num_requests:
        return False
    share = total.num_resent / num_requests
    waits_to_be_sent = bool(total.requests_s) and (total.queued_s or 0.0) >= MIN_QUEUED * (total.requests_s or 0.0)
    return share >= MIN_RESENT or (share >= FEW_RESENT and waits_to_be_sent)


def _was_cache_missed(undecided: StorageVerdict) -> bool:
    """Whether the data was read again from the storage although it fits into the memory."""
    if undecided.data_bytes is None or undecided.available_bytes is None or undecided.times_read is None:
        return False
    fits = undecided.data_bytes <= MAX_OF_MEMORY * undecided.available_bytes
    return fits and undecided.times_read >= MIN_TIMES_READ


def _own_bytes(mount: Mount, total: MountUse, reads: JobReads) -> float:
    """Return the bytes that the job read from a mount: of a local disk only its own, since all processes use it."""
    if _is_local(mount) and reads.device_bytes is not None:
        return reads.device_bytes
    return total.read_bytes


def _own_requests_s(mount: Mount, total: MountUse, reads: JobReads) -> float | None:
    """Return the time of the job's requests: of a local disk its share by bytes, since all processes use it."""
    if total.requests_s is None or not (_is_local(mount) and reads.read_bytes) or reads.device_bytes is None:
        return total.requests_s
    share = min(reads.device_bytes / total.read_bytes, 1.0) if total.read_bytes else 1.0
    return share * total.requests_s


def _is_local(mount: Mount) -> bool:
    return mount.source.startswith("/dev/")


def _is_read_by_others(mount: Mount, total: MountUse, reads: JobReads) -> bool:
    """Whether hardly a read of a local disk is the job's, whose files are then in the page cache."""
    if not (_is_local(mount) and reads.read_bytes):  # a kernel that counts no bytes of a process counts no reads either
        return False
    return reads.device_bytes is not None and reads.device_bytes < MIN_OF_DISK * total.read_bytes


def _data_bytes(total: MountUse, reads: JobReads) -> float | None:
    """Return the size of the data set; None if what these processes read does not explain what the mount delivered."""
    is_partly = reads.read_bytes is not None and reads.read_bytes < MIN_OWN_READS * total.read_bytes
    return None if is_partly else reads.data_bytes


def _reads_take_most(total: MountUse) -> bool:
    return (total.read_s or 0.0) >= (total.metadata_s or 0.0)


def _slower(uses: Sequence[MountUse], *, by_reads: bool) -> dict[str, float | None] | None:
    """Return how much slower answers became while our own load did not grow; None if they did not."""
    periods = [period for use in uses if (period := _period(use, by_reads=by_reads)) is not None]
    if len(periods) < MIN_PERIODS:
        return None
    periods.sort(key=lambda period: period.latency_s)
    quarter = max(len(periods) // 4, 1)
    calm, busy = periods[:quarter], periods[-quarter:]
    calm_s, busy_s = (fmean(period.latency_s for period in part) for part in (calm, busy))
    load_ratio = fmean(period.per_s for period in busy) / fmean(period.per_s for period in calm)
    size_ratio = fmean(period.size for period in busy) / max(fmean(period.size for period in calm), 1.0)
    num_slow = sum(period.latency_s >= SLOW * calm_s for period in periods)
    is_slower = busy_s >= MIN_SLOWER * calm_s and num_slow >= MIN_SLOW_PERIODS * len(periods)
    is_ours = load_ratio > MAX_LOAD or size_ratio > MAX_SIZE_RATIO
    if not is_slower or is_ours:
        return None
    return {"calm_latency_s": calm_s, "busy_latency_s": busy_s, "load_ratio": load_ratio}


class _Period(msgspec.Struct, frozen=True):
    latency_s: float
    per_s: float
    size: float


def _period(use: MountUse, *, by_reads: bool) -> _Period | None:
    """Return the answers of one period; None if it had few requests."""
    count, seconds = (use.num_reads, use.read_s) if by_reads else (use.num_metadata, use.metadata_s)
    if count < MIN_PERIOD_REQUESTS or not seconds or use.elapsed_s <= 0:
        return None
    size = use.read_bytes / count if by_reads else 1.0
    return _Period(seconds / count, count / use.elapsed_s, size)


def _lacks_metadata_times(total: MountUse) -> bool:
    """Whether many requests for metadata were counted without their times, so that the larger part is unknown."""
    return total.metadata_s is None and total.num_metadata > total.num_reads


def _is_steady(uses: Sequence[MountUse]) -> bool:
    rates = [use.bytes_per_s for use in uses if use.num_reads >= MIN_PERIOD_REQUESTS]
    if len(rates) < MIN_PERIODS:
        return True
    return pstdev(rates) <= MAX_SPREAD * fmean(rates)
