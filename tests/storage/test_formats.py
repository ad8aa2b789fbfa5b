"""The formats of the clients' counters, in texts of real clients of several versions."""

from __future__ import annotations

import pytest

from flatout.storage.counts import Counts, added, difference
from flatout.storage.disks import read_diskstats, read_limits
from flatout.storage.groups import available_bytes, field, stalled_s
from flatout.storage.juicefs import read_stats
from flatout.storage.lustre import read_lustre
from flatout.storage.nfs import read_mountstats

# NFS 4.1 on Linux 5.15, from an issue on a media server's volumes; operations without effect here are left out.
NFS_41 = r"""device /dev/sda2 mounted on / with fstype ext4
device nas:/volume4/apps mounted on /var/lib/my\040pods with fstype nfs4 statvers=1.1
	opts:   rw,vers=4.1,rsize=131072,wsize=131072,hard,proto=tcp,timeo=600,retrans=2,sec=sys,local_lock=none
	age:    83520
	caps:   caps=0x3fff7,wtmult=512,dtsize=32768,bsize=0,namlen=255
	events: 52472 472680 16671 57552 2104 9565 749555 9568641 168 24103 1 267134 3350 20097 116581 18214 0 0 0 0 0 0
	bytes:  2021340783 39056395530 0 0 1788561151 39087991255 442605 9557343
	RPC iostats version: 1.1  p/v: 100003/4 (nfs)
	xprt:   tcp 940 0 2 0 1 938505 938504 0 12756069 0 32 254729 10823602
	xprt:   tcp 941 0 2 0 1 8505 8504 0 2756069 0 32 254729 823602
	per-op statistics
	NULL: 1 1 0 44 24 0 0 0 0
	READ: 34096 34096 0 7103096 1792122744 2272 464840 467945 0
	WRITE: 322308 322308 0 39161277084 56725504 401718334 10139998 411864389 0
	OPEN: 12637 12637 0 3923256 4659940 871 57185 58251 394
	OPEN_NOATTR: 98741 98741 0 25656212 31630800 3366 77710 82693 0
	CLOSE: 87075 87075 0 18778608 15308496 2026 49131 52399 116
device tmpfs mounted on /run with fstype tmpfs
"""
# The eight numbers of an operation before Linux 5.3, over UDP, and with requests that were sent again.
NFS_3 = """device nfs-srv:/export/iso mounted on /mnt/iso with fstype nfs statvers=1.0
\topts:\trw,vers=3
\tRPC iostats version: 1.0  p/v: 100003/3 (nfs)
\txprt:\tudp 800 1 100 90 2 0 64
\tper-op statistics
\t        READ: 1000 1050 3 100000 900000 20 500 700
\t     GETATTR: 50 50 0 1000 2000 1 10 12
"""
LLITE_215 = """snapshot_time             1700000000.123456789 secs.nsecs
read_bytes                1025 samples [bytes] 0 1048576 1073741824 112589999072870
read                      1025 samples [usec] 3 9000 2050000 99
open                      400 samples [usec] 50 9000 300000 55
"""
LLITE_OLD = """snapshot_time             1534770326.579119 secs.usecs
read_bytes                1025 samples [bytes] 0 1048576 1073741824
osc_read                  1029 samples [bytes] 4096 1048576 1073762304
open                      726 samples [regs]
"""
OSC = """snapshot_time             1637627183.394337 secs.usecs
req_waittime              393905757 samples [usec] 31 17820911 483362372205 28824671200467887
read_bytes                1029 samples [bytes] 4096 1048576 1073762304 -3193831078871982772
ost_read                  1029 samples [usec] 1391 595570 347839127 120942246579015
"""
# JuiceFS 1.0, from the tests of Fluid.
JUICEFS = """juicefs_blockcache_hits 9709
juicefs_blockcache_miss_bytes 1048576
juicefs_fuse_ops_durations_histogram_seconds_total 395082
juicefs_fuse_ops_durations_histogram_seconds_sum 438.98124123499315
juicefs_fuse_read_size_bytes_sum 40717671794
juicefs_meta_ops_durations_histogram_seconds_total 85488
juicefs_meta_ops_durations_histogram_seconds_sum 26.298036121000194
juicefs_object_request_errors 0
juicefs_uptime 4096.290097335
"""
JUICEFS_LABELS = """# TYPE juicefs_object_request_data_bytes counter
juicefs_object_request_data_bytes{method="GET",mp="/jfs",vol_name="minio"} 3.454749e+06
juicefs_object_request_data_bytes{method="PUT",mp="/jfs",vol_name="minio"} 7
juicefs_object_request_durations_histogram_seconds_sum{method="GET",mp="/jfs",vol_name="minio"} 2.5
juicefs_object_request_durations_histogram_seconds_count{method="GET",mp="/jfs",vol_name="minio"} 100
juicefs_meta_ops_durations_histogram_seconds_sum{method="Lookup",mp="/jfs",vol_name="minio"} 0.25
juicefs_meta_ops_durations_histogram_seconds_count{method="Lookup",mp="/jfs",vol_name="minio"} 10
juicefs_meta_ops_durations_histogram_seconds_sum{method="GetAttr",mp="/jfs",vol_name="minio"} 0.75
juicefs_meta_ops_durations_histogram_seconds_count{method="GetAttr",mp="/jfs",vol_name="minio"} 30
juicefs_uptime{mp="/jfs",vol_name="minio"} 12
"""
JUICEFS_COMMERCIAL = """blockcache.missBytes: 4096
fuse_ops.getattr: 163391
fuse_ops.read: 310652
fuse_ops: 474158
get_bytes: 8192
meta.usec_ping: [1799]
metaDuration: 2306443
metaRequest: 1258
object.error: 3
object.get: 12
objectDuration.get: 500000
read_bytes: 40717671794
uptime: 487
"""


def test_nfs_4_of_linux_5_3_and_later() -> None:
    (folder,), (counts,) = zip(*read_mountstats(NFS_41).items(), strict=True)
    assert folder == "/var/lib/my pods"
    assert (counts.age_s, counts.num_reads, counts.read_s) == (83520, 34096, pytest.approx(467.945))
    assert counts.num_metadata == 12637 + 98741 + 87075
    assert counts.metadata_s == pytest.approx((58251 + 82693 + 52399) / 1000)
    assert (counts.read_bytes, counts.asked_bytes) == (1788561151, 2021340783)
    assert counts.num_resent == 0


def test_nfs_3_of_earlier_kernels_without_bytes_and_age() -> None:
    counts = read_mountstats(NFS_3)["/mnt/iso"]
    assert (counts.num_reads, counts.read_s, counts.queued_s) == (1000, 0.7, pytest.approx(0.021))
    assert (counts.num_requests, counts.num_resent) == (1050, 50)
    assert (counts.read_bytes, counts.asked_bytes, counts.age_s) == (900000, None, None)


@pytest.mark.parametrize("text", ["", "device a mounted on /b with fstype nfs4\n", "READ: 1 2 3\n", NFS_41[:500]])
def test_a_text_without_operations_has_no_counters(text: str) -> None:
    assert read_mountstats(text) == {}


def test_lustre_with_times() -> None:
    counts = read_lustre({"/proc/fs/lustre/llite/scratch-ffff8803/stats": LLITE_215})["scratch"]
    assert (counts.num_reads, counts.read_s, counts.read_bytes) == (1025, 2.05, 1073741824)
    assert (counts.num_metadata, counts.metadata_s) == (400, 0.3)


def test_lustre_without_times_has_unknown_times() -> None:
    counts = read_lustre({"/proc/fs/lustre/llite/scratch-ffff8803/stats": LLITE_OLD})["scratch"]
    assert (counts.read_s, counts.metadata_s) == (None, None)
    assert (counts.read_bytes, counts.asked_bytes, counts.num_metadata) == (1073762304, 1073741824, 726)


def test_lustre_takes_the_times_of_requests_where_they_are_counted() -> None:
    files = {
        "/sys/kernel/debug/lustre/llite/scratch-ffff8803abcd/stats": LLITE_215,
        "/sys/kernel/debug/lustre/osc/scratch-OST0000-osc-ffff8803abcd/stats": OSC,
        "/sys/kernel/debug/lustre/osc/scratch-OST0001-osc-ffff8803abcd/stats": OSC,
    }
    counts = read_lustre(files)["scratch"]
    assert (counts.num_reads, counts.read_s) == (2058, pytest.approx(2 * 347.839127))


def test_lustre_as_its_own_tool_prints_it() -> None:
    name = "llite.scratch-ffff8803abcd"
    printed = f"{name}.stats=\n{LLITE_215}{name}.read_ahead_stats=\nhits 4 samples [pages]\n"
    counts = read_lustre({"lctl get_param": printed})
    assert list(counts) == ["scratch"] and counts["scratch"].num_reads == 1025


def test_juicefs_of_the_community() -> None:
    counts = read_stats(JUICEFS)
    assert counts is not None
    assert (counts.age_s, counts.num_metadata, counts.metadata_s) == (4096.290097335, 85488, 26.298036121000194)
    assert (counts.read_bytes, counts.asked_bytes, counts.read_s) == (1048576, 40717671794, None)


def test_juicefs_with_labels() -> None:
    counts = read_stats(JUICEFS_LABELS)
    assert counts is not None
    assert (counts.num_reads, counts.read_s, counts.read_bytes) == (100, 2.5, 3454749)
    assert (counts.num_metadata, counts.metadata_s) == (40, 1.0)


def test_juicefs_of_the_commercial_edition() -> None:
    counts = read_stats(JUICEFS_COMMERCIAL)
    assert counts is not None
    assert (counts.num_reads, counts.read_s, counts.read_bytes, counts.num_resent) == (12, 0.5, 8192, 3)
    assert (counts.num_metadata, counts.metadata_s) == (1258, pytest.approx(2.306443))
    assert read_stats("nothing here\n") is None


def test_disks_partitions_and_limits() -> None:
    text = (
        "   8       0 sda 1000 5 2048 300 10 0 80 4 0 200 304 0 0 0 0 0 0\n"
        "   8       1 sda1 900 5 2000 290 10 0 80 4\n 259 1 nvme0n1p2 7 0 8 1 0 0 0 0 0 0 0\n"
        " 259 0 nvme0n1 7 0 8 1 0 0 0 0 0 0 0\n"
    )
    disks = read_diskstats(text)
    assert disks.counts["8:1"].num_reads == 900 and disks.counts["8:1"].read_bytes == 2000 * 512
    assert disks.counts["8:0"].read_s == 0.3
    assert (disks.disk_of("8:1"), disks.disk_of("259:1"), disks.disk_of("8:0")) == ("8:0", "259:0", "8:0")
    assert disks.number_of("0:31", "/dev/sda1") == "8:1"
    limits = read_limits("8:0 rbps=2097152 wbps=max riops=max wiops=120\n", "7:0 1048576\n", "7:0 200\n")
    assert limits.bytes_per_s == {"8:0": 2097152, "7:0": 1048576} and limits.requests_per_s == {"7:0": 200}


def test_pressure_and_memory() -> None:
    assert stalled_s("some avg10=0.17 avg60=1.13 avg300=2.37 total=921653205\nfull avg10=0 total=7\n") == 921.653205
    assert stalled_s("") is None
    assert available_bytes("MemFree: 1 kB\nMemAvailable:   2048 kB\n") == 2048 * 1024
    assert field("low 1\nmax 12\n", "max") == 12 and field("", "max") is None


def test_counters_that_wrapped_or_were_reset() -> None:
    before, after = Counts(num_reads=4294967000, read_s=10.0), Counts(num_reads=704, read_s=12.0)
    wrapped = difference(before, after, 5.0)
    assert (wrapped.use.num_reads, wrapped.use.read_s, wrapped.was_reset) == (1000, 2.0, False)
    reset = difference(Counts(num_reads=9000, age_s=500), Counts(num_reads=300, age_s=3), 5.0)
    assert (reset.use.num_reads, reset.use.elapsed_s, reset.was_reset) == (300, 3, True)
    # Mounted again, and already beyond the former numbers: only the age shows it.
    again = difference(Counts(num_reads=10, age_s=500), Counts(num_reads=300, age_s=4), 5.0)
    assert (again.use.num_reads, again.was_reset) == (300, True)
    fell = difference(Counts(num_reads=9000, read_s=4.0), Counts(num_reads=300, read_s=1.0), 5.0)
    assert (fell.use.num_reads, fell.use.read_s, fell.was_reset) == (300, 1.0, True)
    total = added((wrapped.use, fell.use))
    assert (total.num_reads, total.elapsed_s) == (1300, 10.0)
