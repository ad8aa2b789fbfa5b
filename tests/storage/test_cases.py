"""Planted counters: what was planted is found, and what the counters do not say is unknown, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.storage.planted import (
    DATA,
    MIB,
    MOUNTINFO,
    Files,
    Op,
    disk,
    judged,
    juicefs,
    lustre,
    memory,
    nfs,
    recorded,
)

from flatout.records.storage import StorageFinding, StorageReason
from flatout.storage.verdict import JobReads

MOUNTSTATS = "/proc/self/mountstats"
ON_LUSTRE = "50 27 0:50 / /mnt/data - lustre 10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch"
ON_JUICEFS = "51 27 0:51 / /mnt/data - fuse.juicefs JuiceFS:images"
ON_A_DISK = "43 27 8:17 / /mnt/data - ext4 /dev/sdb1"
LLITE = "/sys/kernel/debug/lustre/llite/scratch-ffff9a3c5d6e7800/stats"
READS = JobReads(waiting_s=60.0)
LIBRARY = {"GETATTR": Op(90_000, 10, 900, 950), "LOOKUP": Op(80_000, 10, 800, 850)}  # of the months before


def nfs_times(
    each: Callable[[int], dict[str, Op]], num: int = 7, *, read_bytes: Callable[[int], int], start: int = 0
) -> list[Files]:
    """Return times at which the operations and bytes are those of `each` and `read_bytes`."""
    return [
        {MOUNTSTATS: nfs(DATA, each(number), server_bytes=start + read_bytes(number), age=90_000 + 10 * number)}
        for number in range(num)
    ]


def small_files(number: int) -> dict[str, Op]:
    """500 files a second: three requests of 1 ms for each, and a read of 20 KB in 1.2 ms."""
    files = 5000 * number
    metadata = {name: Op(files, 0, files, files) for name in ("OPEN", "GETATTR", "CLOSE")}
    return {"READ": Op(files, 0, int(files * 1.2), int(files * 1.2)), **metadata}


def large_reads(number: int) -> dict[str, Op]:
    """100 reads of 1 MiB a second, each 80 ms: 8 at once, 100 MiB/s."""
    reads = 1000 * number
    return {"READ": Op(reads, 0, reads * 80, reads * 80), "GETATTR": Op(10 * number, 0, 10 * number, 10 * number)}


def lossy(number: int) -> dict[str, Op]:
    reads = 1000 * number
    return {"READ": Op(reads, reads * 60, reads * 5, reads * 65, resent=20 * number), "GETATTR": Op(number)}


def lustre_files(number: int) -> Files:
    """90 files a second, each opened in 2 ms and read in a third of one."""
    files = 900 * number
    return {LLITE: lustre(read=(files, 333 * files, 30_000 * files), opens=(files, 2000 * files), getattr_=(0, 0))}


def old_lustre(number: int) -> Files:
    files = 900 * number
    return {
        LLITE: "snapshot_time             1500000000.123456 secs.usecs\n"
        f"read_bytes                {files} samples [bytes] 0 4096 {10 * files}\n"
        f"open                      {files} samples [regs]\n"
        f"close                     {files} samples [regs]\n"
        f"getattr                   {2 * files} samples [regs]\n"
    }


def failing_juicefs(number: int) -> Files:
    gets = (500 * number, 60.0 * number, 500 * number * 4 * MIB)
    return {f"{DATA}/.stats": juicefs(gets=gets, meta=(50 * number, 0.1 * number), errors=30 * number)}


def slow_metadata(number: int) -> Files:
    gets = (100 * number, 2.0 * number, 100 * number * 65_536)
    return {f"{DATA}/.stats": juicefs(gets=gets, meta=(4000 * number, 24.0 * number))}


def throttled(number: int) -> Files:
    """20 MiB/s of 20 allowed; the disk itself answers at once."""
    return {
        "/proc/diskstats": disk(1600 * number, 200 * number * MIB, 50 * number),
        "/sys/fs/cgroup/job/io.max": "8:16 rbps=20971520 wbps=max riops=max wiops=max\n",
    }


def contended(number: int) -> dict[str, Op]:
    """The same 200 reads of 64 KiB a second; in the second half each takes 12 ms in place of 3."""
    calm, busy = min(number, 5), max(number - 5, 0)
    reads_ms = 2000 * (calm * 3 + busy * 12)
    return {"READ": Op(2000 * number, 0, reads_ms, reads_ms), "GETATTR": Op(10 * number, 0, 10 * number, 10 * number)}


def four(files: Callable[[int], Files]) -> list[Files]:
    return [files(number) for number in range(4)]


CASES: dict[str, tuple[str, list[Files], str, JobReads]] = {
    "nfs, many small files": (
        "metadata-latency",
        nfs_times(small_files, read_bytes=lambda n: 5000 * n * 20_000),
        MOUNTINFO,
        READS,
    ),
    "nfs, large reads at a steady rate": (
        "storage-bandwidth",
        nfs_times(large_reads, read_bytes=lambda n: 1000 * n * MIB),
        MOUNTINFO,
        READS,
    ),
    "nfs, requests are lost": (
        "storage-retransmits",
        nfs_times(lossy, read_bytes=lambda n: 1000 * n * MIB),
        MOUNTINFO,
        READS,
    ),
    "nfs, others use the server": (
        "shared-storage-contention",
        nfs_times(contended, 11, read_bytes=lambda n: 2000 * n * 65_536),
        MOUNTINFO,
        READS,
    ),
    "nfs, read again although it would fit": (
        "cache-missed",
        [
            {**files, "/proc/meminfo": memory(200_000 * MIB)}
            for files in nfs_times(large_reads, read_bytes=lambda n: 1000 * n * MIB)
        ],
        MOUNTINFO,
        JobReads(waiting_s=60.0, data_bytes=2000 * MIB),
    ),
    "nfs, the workers hardly wait for it": (
        "unknown",
        nfs_times(lambda n: {"READ": Op(100 * n, 0, 50 * n, 50 * n)}, read_bytes=lambda n: 100 * n * 65_536),
        MOUNTINFO,
        READS,
    ),
    "lustre, many small files": (
        "metadata-latency",
        four(lustre_files),
        ON_LUSTRE,
        JobReads(waiting_s=20.0),
    ),
    "lustre of an old version, which counts without times": (
        "unknown",
        four(old_lustre),
        ON_LUSTRE,
        READS,
    ),
    "juicefs, failed requests to the object store": (
        "storage-retransmits",
        four(failing_juicefs),
        ON_JUICEFS,
        READS,
    ),
    "juicefs, a slow metadata engine": ("metadata-latency", four(slow_metadata), ON_JUICEFS, READS),
    "a disk at the limit of the control group": (
        "storage-bandwidth",
        four(throttled),
        ON_A_DISK,
        READS,
    ),
    "counters that may not be read": ("unknown", [{"/proc/meminfo": memory(MIB)}] * 3, ON_LUSTRE, READS),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_planted_is_found(name: str, tmp_path: Path) -> None:
    finding, times, mountinfo, reads = CASES[name]
    host = recorded(tmp_path, times, mountinfo=mountinfo)
    assert judged(host, reads=reads).finding.value == finding


@pytest.mark.parametrize(
    "name", ["nfs, many small files", "nfs, large reads at a steady rate", "nfs, requests are lost"]
)
def test_counters_of_the_months_before_do_not_count(name: str, tmp_path: Path) -> None:
    finding, times, _, reads = CASES[name]
    before = nfs(DATA, {"READ": Op(10**6, 5, 10, 10**8)} | LIBRARY, server_bytes=10**15, age=10**6)
    later = [{MOUNTSTATS: _plus(files[MOUNTSTATS], before)} for files in times]
    assert judged(recorded(tmp_path, later), reads=reads).finding.value == finding


def _plus(text: str, before: str) -> str:
    """Return the text with the numbers of the operations and bytes of `before` added, for the names that both have."""
    old = {line.split(":")[0].strip(): line for line in before.splitlines()}
    lines = []
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words, old_words = rest.split(), old.get(name.strip(), "").partition(":")[2].split()
        is_sum = name.strip() in ("bytes", "READ", "GETATTR", "LOOKUP") and len(words) == len(old_words)
        sums = [str(int(a) + int(b)) for a, b in zip(words, old_words, strict=True)] if is_sum else words
        lines.append(f"{name}: {' '.join(sums)}" if is_sum else line)
    return "\n".join(lines)


def test_only_the_mount_that_is_read_from_counts(tmp_path: Path) -> None:
    home = [nfs("/home", large_reads(n), server_bytes=1000 * n * MIB, age=n) for n in range(7)]
    data = [nfs(DATA, small_files(n), server_bytes=5000 * n * 20_000, age=n) for n in range(7)]
    host = recorded(tmp_path, [{MOUNTSTATS: f"{a}{b}"} for a, b in zip(home, data, strict=True)])
    assert judged(host, "/home").finding == StorageFinding.BANDWIDTH
    assert judged(host, DATA).finding == StorageFinding.METADATA


@pytest.mark.parametrize(
    ("reads", "finding"),
    [
        (JobReads(waiting_s=60.0, data_bytes=4000 * MIB, read_bytes=6000 * MIB), StorageFinding.CACHE_MISSED),
        (JobReads(waiting_s=60.0, data_bytes=4001 * MIB, read_bytes=6000 * MIB), StorageFinding.BANDWIDTH),
        (JobReads(waiting_s=60.0, data_bytes=4000 * MIB, read_bytes=3000 * MIB), StorageFinding.CACHE_MISSED),
        (JobReads(waiting_s=60.0, data_bytes=4000 * MIB, read_bytes=2999 * MIB), StorageFinding.BANDWIDTH),
    ],
)
def test_the_cache_was_missed_if_the_job_itself_read_its_data_one_and_a_half_times(
    reads: JobReads, finding: StorageFinding, tmp_path: Path
) -> None:
    times = nfs_times(large_reads, read_bytes=lambda n: 1000 * n * MIB)
    host = recorded(tmp_path, [{**files, "/proc/meminfo": memory(200_000 * MIB)} for files in times])
    assert judged(host, reads=reads).finding == finding


@pytest.mark.parametrize(
    ("reads", "finding"),
    [
        (JobReads(waiting_s=0.004, read_bytes=9e9, device_bytes=131_072), StorageFinding.LATENCY),
        (JobReads(waiting_s=1.0, read_bytes=9e9, device_bytes=131_071), StorageFinding.UNKNOWN),
        (JobReads(waiting_s=1.0, read_bytes=0, device_bytes=0), StorageFinding.LATENCY),  # its kernel counts neither
        (JobReads(waiting_s=1.0, read_bytes=9e9), StorageFinding.LATENCY),
    ],
)
def test_a_disk_of_which_the_job_reads_less_than_a_thousandth_is_not_what_it_waits_for(
    reads: JobReads, finding: StorageFinding, tmp_path: Path
) -> None:
    """2000 reads of 64 KiB in 20 s, each 1 ms."""
    times = [{"/proc/diskstats": disk(1000 * number, 65_536_000 * number, 1000 * number)} for number in range(3)]
    verdict = judged(recorded(tmp_path, times, mountinfo=ON_A_DISK), reads=reads)
    assert verdict.finding == finding
    assert (verdict.reason == StorageReason.OTHERS_READ) is (finding == StorageFinding.UNKNOWN)


@pytest.mark.parametrize(("waiting_s", "finding"), [(4.0, StorageFinding.LATENCY), (4.01, StorageFinding.UNKNOWN)])
def test_requests_of_other_processes_on_a_disk_do_not_explain_the_jobs_waits(
    waiting_s: float, finding: StorageFinding, tmp_path: Path
) -> None:
    """All reads took 2 s, and half of them are the job's: a quarter of 4 s."""
    times = [{"/proc/diskstats": disk(1000 * number, 65_536_000 * number, 1000 * number)} for number in range(3)]
    reads = JobReads(waiting_s=waiting_s, read_bytes=9e9, device_bytes=65_536_000)
    verdict = judged(recorded(tmp_path, times, mountinfo=ON_A_DISK), reads=reads)
    assert verdict.finding == finding
    assert (verdict.reason == StorageReason.LITTLE_TIME) is (finding == StorageFinding.UNKNOWN)


def test_of_a_server_only_the_mounts_own_requests_are_counted(tmp_path: Path) -> None:
    times = nfs_times(small_files, read_bytes=lambda n: 5000 * n * 20_000)
    reads = JobReads(waiting_s=60.0, read_bytes=9e9, device_bytes=0)
    assert judged(recorded(tmp_path, times), reads=reads).finding == StorageFinding.METADATA


@pytest.mark.parametrize(("available", "is_missed"), [(5000, True), (4990, False)])
def test_data_that_takes_more_than_four_fifths_of_the_memory_does_not_fit(
    available: int, is_missed: bool, tmp_path: Path
) -> None:
    times = nfs_times(large_reads, read_bytes=lambda n: 1000 * n * MIB)
    host = recorded(tmp_path, [{**files, "/proc/meminfo": memory(available * MIB)} for files in times])
    verdict = judged(host, reads=JobReads(data_bytes=4000 * MIB))
    assert (verdict.finding == StorageFinding.CACHE_MISSED) is is_missed


def finding_of(folder: Path, each: Callable[[int], dict[str, Op]], num: int, size: int) -> str:
    times = nfs_times(each, num, read_bytes=lambda n: each(n)["READ"].count * size)
    return judged(recorded(folder, times)).finding.value


@pytest.mark.parametrize(("resent", "finding"), [(10, "storage-retransmits"), (9, "storage-bandwidth")])
def test_one_request_of_a_hundred_that_is_sent_again_is_many(resent: int, finding: str, tmp_path: Path) -> None:
    def each(number: int) -> dict[str, Op]:
        return {"READ": Op(1000 * number, 0, 0, 80_000 * number, resent * number)}

    assert finding_of(tmp_path, each, 3, MIB) == finding


@pytest.mark.parametrize(("queue_ms", "finding"), [(40_000, "storage-retransmits"), (39_900, "storage-bandwidth")])
def test_one_of_a_thousand_is_many_if_half_of_the_time_is_spent_before_the_last_sending(
    queue_ms: int, finding: str, tmp_path: Path
) -> None:
    def each(number: int) -> dict[str, Op]:
        return {"READ": Op(1000 * number, queue_ms * number, 0, 80_000 * number, number)}

    assert finding_of(tmp_path, each, 3, MIB) == finding


@pytest.mark.parametrize(("metadata_ms", "finding"), [(3000, "metadata-latency"), (2990, "storage-latency")])
def test_metadata_is_the_cause_from_half_of_the_time(metadata_ms: int, finding: str, tmp_path: Path) -> None:
    def each(number: int) -> dict[str, Op]:
        read = Op(1000 * number, 0, 0, 3000 * number)
        return {"READ": read, "GETATTR": Op(1000 * number, 0, 0, metadata_ms * number)}

    assert finding_of(tmp_path, each, 3, 4096) == finding


@pytest.mark.parametrize(
    ("size", "ms", "finding"),
    [(65_536, 20, "storage-bandwidth"), (65_535, 20, "storage-latency"), (65_536, 19, "storage-latency")],
)
def test_bandwidth_needs_large_reads_two_at_once(size: int, ms: int, finding: str, tmp_path: Path) -> None:
    # 1,000 reads in 10 s: with 20 ms each, two are on their way at any time.
    assert finding_of(tmp_path, lambda n: {"READ": Op(1000 * n, 0, 0, 1000 * ms * n)}, 3, size) == finding


@pytest.mark.parametrize(
    ("slow_ms", "load", "finding"),
    [(6, 2000, "shared-storage-contention"), (5, 2000, "storage-latency"), (6, 2501, "storage-latency")],
)
def test_contention_is_twice_the_time_at_no_more_than_five_quarters_of_our_load(
    slow_ms: int, load: int, finding: str, tmp_path: Path
) -> None:
    def each(number: int) -> dict[str, Op]:
        calm, busy = min(number, 4), max(number - 4, 0)
        return {"READ": Op(2000 * calm + load * busy, 0, 0, 2000 * calm * 3 + load * busy * slow_ms)}

    assert finding_of(tmp_path, each, 9, 4096) == finding


def unknown(host_times: Sequence[Files], folder: Path, mountinfo: str = MOUNTINFO, **problems: str) -> StorageReason:
    verdict = judged(recorded(folder, host_times, mountinfo=mountinfo, **problems), reads=READS)
    assert verdict.finding == StorageFinding.UNKNOWN and verdict.reason is not None
    return verdict.reason


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    once = nfs_times(small_files, 1, read_bytes=lambda n: 0)
    idle = nfs_times(lambda n: {"READ": Op(), "GETATTR": Op(n)}, read_bytes=lambda n: 0)
    assert unknown(once, tmp_path) == StorageReason.ONE_SAMPLE
    assert unknown(idle, tmp_path) == StorageReason.FEW_REQUESTS
    assert unknown([{"/proc/meminfo": memory(MIB)}] * 2, tmp_path, ON_LUSTRE) == StorageReason.NO_COUNTERS
    host = recorded(tmp_path, [{"/proc/meminfo": memory(MIB)}] * 2, mountinfo=ON_LUSTRE, lctl="permission denied")
    assert judged(host).detail == "permission denied"
    ceph = "52 27 0:52 / /mnt/data - ceph 10.0.0.1:/"
    host = recorded(tmp_path, [{"/proc/meminfo": memory(MIB)}] * 2, mountinfo=ceph)
    assert judged(host).detail == "no counters are known for ceph"
