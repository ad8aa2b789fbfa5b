"""Texts of counters in the formats of real clients, with planted numbers, and a host's file made of them.

The layouts are those of Linux 6 (`net/sunrpc/stats.c`, `fs/nfs/super.c`), Lustre 2.15 (`lprocfs_status.c`), JuiceFS 1.x
(`pkg/vfs/internal.go`, and the sample in Fluid's tests) and of the kernel's documents on block devices and PSI.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flatout.records.storage import HostStorage, StorageVerdict
from flatout.storage.snapshots import read_snapshots
from flatout.storage.use import host_storage
from flatout.storage.verdict import JobReads, storage_verdict

MIB = 1 << 20
DATA = "/mnt/data"
MOUNTINFO = (
    "27 1 8:1 / / - ext4 /dev/sda1\n41 27 0:44 / /mnt/data - nfs4 nas:/export/data\n"
    "42 27 0:45 / /home - nfs4 nas:/export/home\n43 27 8:17 / /scratch - ext4 /dev/sdb1"
)


class Op(NamedTuple):
    """An operation of NFS so far; times in milliseconds, in all."""

    count: int = 0
    queue_ms: int = 0
    rtt_ms: int = 0
    execute_ms: int = 0
    resent: int = 0


def nfs(folder: str, ops: Mapping[str, Op], *, server_bytes: int, age: int) -> str:
    lines = [
        f"device nas:/export/data mounted on {folder} with fstype nfs4 statvers=1.1",
        "\topts:\trw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp,timeo=600,retrans=2,sec=sys",
        f"\tage:\t{age}",
        "\timpl_id:\tname='',domain='',date='0,0'",
        "\tcaps:\tcaps=0x3fff7,wtmult=512,dtsize=32768,bsize=0,namlen=255",
        "\tsec:\tflavor=1,pseudoflavor=1",
        "\tevents:\t52472 472680 16671 57552 2104 9565 749555 9568641 168 24103 1 267134 3350 20097 0 0 0 0 0 0",
        f"\tbytes:\t{server_bytes} 0 0 0 {server_bytes} 0 {server_bytes >> 12} 0 ",
        "\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)",
        "\txprt:\ttcp 940 0 2 0 1 938505 938504 0 12756069 0 32 254729 10823602",
        "\tper-op statistics",
        "\t        NULL: 1 1 0 44 24 0 0 0 0",
    ]
    for name, op in ops.items():
        numbers = (op.count, op.count + op.resent, 0, op.count * 200, op.count * 300)
        lines.append(f"\t{name:>12}: {' '.join(map(str, numbers))} {op.queue_ms} {op.rtt_ms} {op.execute_ms} 0")
    return "\n".join(lines) + "\n"


def lustre(*, read: tuple[int, int, int], opens: tuple[int, int], getattr_: tuple[int, int]) -> str:
    """Return `stats` of llite: reads with their microseconds and bytes, opens and getattrs with their microseconds."""
    num_reads, read_us, read_bytes = read
    return (
        "snapshot_time             1700000000.123456789 secs.nsecs\n"
        f"read_bytes                {num_reads} samples [bytes] 4096 4194304 {read_bytes} 19203812093\n"
        f"read                      {num_reads} samples [usec] 12 90000 {read_us} 8818239\n"
        f"open                      {opens[0]} samples [usec] 40 9000 {opens[1]} 123456\n"
        f"close                     {opens[0]} samples [usec] 20 700 {opens[0] * 20} 9876\n"
        f"getattr                   {getattr_[0]} samples [usec] 2 800 {getattr_[1]} 4567\n"
    )


def juicefs(*, gets: tuple[int, float, int], meta: tuple[int, float], errors: int = 0, uptime: int = 5000) -> str:
    """Return `.stats`: requests to the object store with their seconds and bytes, and metadata with its seconds."""
    count, seconds, size = gets
    return (
        f"juicefs_blockcache_hits 0\njuicefs_blockcache_miss {count}\njuicefs_blockcache_miss_bytes {size}\n"
        f"juicefs_fuse_ops_durations_histogram_seconds_total {meta[0] + count}\n"
        f"juicefs_fuse_ops_durations_histogram_seconds_sum {seconds + meta[1]}\n"
        f"juicefs_fuse_read_size_bytes_sum {size}\n"
        f"juicefs_meta_ops_durations_histogram_seconds_total {meta[0]}\n"
        f"juicefs_meta_ops_durations_histogram_seconds_sum {meta[1]}\n"
        f"juicefs_object_request_data_bytes_GET {size}\n"
        f"juicefs_object_request_durations_histogram_seconds_GET_total {count}\n"
        f"juicefs_object_request_durations_histogram_seconds_GET_sum {seconds}\n"
        f"juicefs_object_request_errors {errors}\njuicefs_uptime {uptime}\n"
    )


def disk(reads: int, read_bytes: int, read_ms: int) -> str:
    return (
        "   8       0 sda 100 0 800 10 0 0 0 0 0 10 10 0 0 0 0 0 0\n"
        f"   8      16 sdb {reads} 0 {read_bytes // 512} {read_ms} 0 0 0 0 0 {read_ms} {read_ms} 0 0 0 0 0 0\n"
        f"   8      17 sdb1 {reads} 0 {read_bytes // 512} {read_ms} 0 0 0 0 0 {read_ms} {read_ms} 0 0 0 0 0 0\n"
    )


def memory(available_bytes: int) -> str:
    return f"MemTotal:       263859000 kB\nMemFree:         1000000 kB\nMemAvailable:   {available_bytes >> 10} kB\n"


Files = Mapping[str, str]


def recorded(
    folder: Path, times: Sequence[Files], *, every_s: float = 10.0, mountinfo: str = MOUNTINFO, **problems: str
) -> HostStorage:
    """Write a host's file with these texts, and return what is read from it."""
    path = folder / "host-node1.storage.jsonl"
    lines: list[dict[str, object]] = [{"unix_s": 1000.0, "files": {"/proc/self/mountinfo": mountinfo}}]
    for number, files in enumerate(times):
        lines.append({"unix_s": 1000.0 + number * every_s, "files": dict(files), "problems": problems})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return host_storage(read_snapshots(path, "node1"))


def judged(host: HostStorage, folder: str = DATA, reads: JobReads | None = None) -> StorageVerdict:
    mount = next(mount for mount in host.mounts if mount.folder == folder)
    return storage_verdict(host, mount, reads or JobReads())
