"""More planted counters: other versions, mounts that change while a job runs, limits, and loads of our own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.storage.planted import DATA, MIB, MOUNTINFO, Files, Op, disk, judged, lustre, nfs, recorded
from tests.storage.test_cases import (
    LLITE,
    MOUNTSTATS,
    ON_A_DISK,
    ON_JUICEFS,
    ON_LUSTRE,
    READS,
    four,
    large_reads,
    nfs_times,
    small_files,
)

from flatout.storage.verdict import JobReads

NFS_3 = (
    "device nas:/e mounted on /mnt/data with fstype nfs statvers=1.0\n\topts:\trw,vers=3\n\tage:\t{age}\n"
    "\tRPC iostats version: 1.0  p/v: 100003/3 (nfs)\n\txprt:\tudp 800 1 100 90 2 0 64\n\tper-op statistics\n"
    "\t        READ: {reads} {reads} 0 1 1 0 {reads} {reads}\n"
    "\t      LOOKUP: {lookups} {lookups} 0 1 1 0 {ms} {ms}\n"
)


def nfs_3(number: int) -> Files:
    """A read of 1 ms, and two requests of 2 ms for a name."""
    files = 500 * number
    return {MOUNTSTATS: NFS_3.format(age=100 + 10 * number, reads=files, lookups=2 * files, ms=4 * files)}


def remounted(number: int) -> Files:
    """Mounted again after the third time: its counters begin again."""
    since = number if number < 4 else number - 3
    age = 9000 + 10 * number if number < 4 else 10 * since
    return {MOUNTSTATS: nfs(DATA, small_files(since), server_bytes=5000 * since * 20_000, age=age)}


def wrapped(number: int) -> Files:
    """Bytes in 32 bits."""
    size = ((1 << 32) - 500 * MIB + 1000 * number * MIB) % (1 << 32)
    return {MOUNTSTATS: nfs(DATA, {"READ": large_reads(number)["READ"]}, server_bytes=size, age=100 + 10 * number)}


def with_labels(number: int) -> Files:
    """100 requests of 4 MB a second to the object store, each 60 ms."""
    gets = "juicefs_object_request_durations_histogram_seconds"
    return {
        f"{DATA}/.stats": f'juicefs_object_request_data_bytes{{method="GET",mp="/jfs"}} {number * 4e9}\n'
        f'{gets}_sum{{method="GET",mp="/jfs"}} {number * 60}\n{gets}_count{{method="GET",mp="/jfs"}} {number * 1000}\n'
        f'juicefs_uptime{{mp="/jfs"}} {10 * number + 5}\n'
    }


def large_on_lustre(number: int) -> Files:
    reads = 1000 * number
    return {LLITE: lustre(read=(reads, 100_000 * reads, MIB * reads), opens=(number, 1000 * number), getattr_=(0, 0))}


def metadata_of_others(number: int) -> dict[str, Op]:
    calm, busy = min(number, 5), max(number - 5, 0)
    ms = 1000 * (calm + 5 * busy)
    return {"READ": Op(100 * number, 0, 100 * number, 100 * number), "GETATTR": Op(1000 * number, 0, ms, ms)}


def our_own_load(number: int) -> dict[str, Op]:
    """More requests each time, and slower answers."""
    reads = sum(200 * (1 + past) for past in range(number))
    ms = sum(600 * (1 + past) ** 2 for past in range(number))
    return {"READ": Op(reads, 0, ms, ms)}


def fast_link(number: int) -> Files:
    """9.4 Gbit/s of 10."""
    text = nfs(
        DATA,
        {"READ": Op(11_800 * number, 0, 118_000 * number, 118_000 * number)},
        server_bytes=11_750_000_000 * number,
        age=number,
    )
    return {MOUNTSTATS: text, "/sys/class/net/eth0/speed": "10000\n", "/sys/class/net/eth0/operstate": "up\n"}


def throttled_requests(number: int) -> Files:
    """190 requests/s of 200 allowed, in the files of version 1."""
    return {
        "/proc/diskstats": disk(1900 * number, 1900 * number * 65_536, 30 * number),
        "/sys/fs/cgroup/blkio/job/blkio.throttle.read_iops_device": "8:16 200\n",
    }


CASES: dict[str, tuple[str, list[Files], str]] = {
    "no list of mounts": ("metadata-latency", nfs_times(small_files, read_bytes=lambda n: 5000 * n * 20_000), ""),
    "nfs 3, two times only": ("metadata-latency", [nfs_3(1), nfs_3(20)], MOUNTINFO),
    "mounted again meanwhile": ("metadata-latency", [remounted(number) for number in range(8)], MOUNTINFO),
    "bytes that wrap": ("storage-bandwidth", four(wrapped), MOUNTINFO),
    "juicefs with labels": ("storage-bandwidth", four(with_labels), ON_JUICEFS),
    "lustre, large reads": ("storage-bandwidth", four(large_on_lustre), ON_LUSTRE),
    "a server that others ask for names": (
        "shared-storage-contention",
        nfs_times(metadata_of_others, 11, read_bytes=lambda n: 100 * n * 4096),
        MOUNTINFO,
    ),
    "our own load": (
        "storage-latency",
        nfs_times(our_own_load, 9, read_bytes=lambda n: our_own_load(n)["READ"].count * 20_000),
        MOUNTINFO,
    ),
    "a link of the host": ("storage-bandwidth", four(fast_link), MOUNTINFO),
    "requests that a control group limits": ("storage-bandwidth", four(throttled_requests), ON_A_DISK),
    "damaged texts": ("unknown", [{MOUNTSTATS: "\0 nonsense READ: a b"}, {MOUNTSTATS: "device"}], MOUNTINFO),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_planted_is_found(name: str, tmp_path: Path) -> None:
    finding, times, mountinfo = CASES[name]
    host = recorded(tmp_path, times, mountinfo=mountinfo)
    reads = JobReads(waiting_s=10.0) if name.endswith("names") else READS
    assert judged(host, reads=reads).finding.value == finding
