"""The metrics of this host's storage. In: the kernel's counters of NFS mounts and disks. Out: samples on a page.

Counts and seconds of requests are counters, so their ratio over any time is the latency then: the rate of
`flatout_storage_read_seconds_total` divided by that of `flatout_storage_reads_total`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from flatout.input_files import read_text
from flatout.storage.counts import Counts
from flatout.storage.disks import read_diskstats
from flatout.storage.nfs import read_mountstats
from flatout.watch.exporter.page import MetricPage

_MOST = 32  # mounts and disks: a node with more has a file system per container, and none of them is the data's
_NO_DATA = ("loop", "ram", "zram", "sr", "fd")
_METRICS = {
    "num_reads": ("flatout_storage_reads", "Reads that the mount's server or the disk has answered."),
    "read_bytes": ("flatout_storage_read_bytes", "Bytes read from the mount's server or the disk."),
    "read_s": ("flatout_storage_read_seconds", "Time from asking for reads to their answers, summed over reads."),
    "num_metadata": ("flatout_storage_metadata_requests", "Requests for names, attributes and opens."),
    "metadata_s": ("flatout_storage_metadata_seconds", "Time to the answers of such requests, summed over them."),
    "num_resent": ("flatout_storage_resent", "Requests that were sent again."),
}


def read_storage(root: Path = Path("/proc")) -> dict[str, Counts]:
    """Return the counters of NFS mounts by folder, and of whole disks by name; empty if they cannot be read."""
    counts: dict[str, Counts] = {}
    with suppress(OSError, ValueError):
        counts |= read_mountstats(read_text(root / "self" / "mountstats", errors="replace"))
    with suppress(OSError, ValueError):
        disks = read_diskstats(read_text(root / "diskstats", errors="replace"))
        for name, number in disks.numbers.items():
            is_whole = disks.disk_of(number) == number
            is_used = bool(disks.counts[number].num_reads)
            if is_whole and is_used and not name.startswith(_NO_DATA):
                counts[name] = disks.counts[number]
    return dict(list(counts.items())[:_MOST])


def add_storage(page: MetricPage, storage: Mapping[str, Counts]) -> None:
    """Add the counters; one that a client does not keep has no sample."""
    for mount, counts in storage.items():
        has_metadata = counts.metadata_s is not None  # disks have none
        for field, (name, text) in _METRICS.items():
            value = getattr(counts, field)
            if value is not None and (has_metadata or "metadata" not in field):
                page.counter(name, text, value, mount=mount)
