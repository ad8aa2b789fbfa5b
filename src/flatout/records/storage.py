"""What the file systems of a host did for a job, from the counters of their clients, and what limited them.

Times are seconds, summed over requests that can run at the same time. A number that a client does not count is None.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class StorageFinding(StrEnum):
    """What in the storage takes the time."""

    METADATA = "metadata-latency"
    BANDWIDTH = "storage-bandwidth"
    RETRANSMITS = "storage-retransmits"
    CACHE_MISSED = "cache-missed"
    CONTENTION = "shared-storage-contention"
    LATENCY = "storage-latency"  # small requests, or one at a time
    UNKNOWN = "unknown"


class StorageReason(StrEnum):
    """Why a finding is unknown."""

    NO_COUNTERS = "no counters"
    ONE_SAMPLE = "one sample"
    FEW_REQUESTS = "few requests"
    NO_TIMES = "no times"
    LITTLE_TIME = "little time"
    OTHERS_READ = "others read"
    NO_CEILING = "no ceiling"
    NO_MOUNT = "no mount"


class MountUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a client did on one mount in some time."""

    elapsed_s: float
    num_reads: float = 0.0
    read_bytes: float = 0.0  # from the server or device
    read_s: float | None = None  # from asking to the answer
    num_metadata: float = 0.0  # requests for names, attributes and opens
    metadata_s: float | None = None
    queued_s: float | None = None  # part of both, before a request was sent for the last time
    num_requests: float = 0.0  # of all kinds
    num_resent: float | None = None
    asked_bytes: float | None = None  # by programs, from the mount or from the page cache

    @property
    def bytes_per_s(self) -> float:
        return self.read_bytes / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def requests_s(self) -> float | None:
        """Return the time of all requests that a reader waits for; None if none of it is counted."""
        known = [value for value in (self.read_s, self.metadata_s) if value is not None]
        return sum(known) if known else None


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A file system and its use, from sample to sample."""

    folder: str
    kind: str  # nfs4, lustre, fuse.juicefs, ext4, ...
    source: str
    uses: tuple[MountUse, ...] = ()
    max_bytes_per_s: float | None = None  # allowed by the control group, or by the network's link
    max_requests_per_s: float | None = None  # allowed by the control group
    has_counters: bool = False
    num_resets: int = 0  # times that the counters began again, e.g. because it was mounted again
    problem: str | None = None  # why there are no counters


class HostStorage(msgspec.Struct, frozen=True, kw_only=True):
    """The file systems of a host while a job ran."""

    hostname: str
    mounts: tuple[Mount, ...]
    elapsed_s: float = 0.0
    available_bytes: float | None = None  # memory that the job could use for files, at the beginning
    memory_limit_bytes: float | None = None
    least_available_bytes: float | None = None
    io_stalled_share: float | None = None  # of the time in which some process waited for storage
    memory_stalled_share: float | None = None
    cpu_stalled_share: float | None = None
    num_major_faults: float | None = None
    num_limit_hits: float | None = None  # times that the control group's memory limit was reached
    problems: tuple[str, ...] = ()


class StorageVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What limits the reads from one mount."""

    finding: StorageFinding
    hostname: str
    folder: str
    kind: str
    reason: StorageReason | None = None  # if unknown
    detail: str | None = None  # the system's own words for it
    # Evidence
    bytes_per_s: float | None = None
    peak_bytes_per_s: float | None = None  # from sample to sample
    max_bytes_per_s: float | None = None
    read_latency_s: float | None = None
    metadata_latency_s: float | None = None
    metadata_share: float | None = None  # of the time of requests
    bytes_per_read: float | None = None
    requests_in_flight: float | None = None
    resent_share: float | None = None
    requests_per_s: float | None = None
    max_requests_per_s: float | None = None
    calm_latency_s: float | None = None  # in the quarter of the time with the fastest answers
    busy_latency_s: float | None = None  # in the quarter with the slowest
    load_ratio: float | None = None  # our own requests per second: slowest quarter over fastest
    data_bytes: float | None = None  # of the data set
    available_bytes: float | None = None
    times_read: float | None = None  # bytes from the storage / bytes of the data set
