"""What the file systems of a host did, from the texts of counters at several times.

In: `Snapshots`. Out: `HostStorage`: each mount that is not the kernel's own, with its use from time to time. A mount
without known counters says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

import msgspec

from flatout.records.storage import HostStorage, Mount, MountUse
from flatout.storage.counts import Counts, difference
from flatout.storage.disks import DiskLimits, Disks, read_diskstats, read_limits
from flatout.storage.groups import available_bytes, field, number, stalled_s
from flatout.storage.juicefs import read_stats
from flatout.storage.lustre import read_lustre
from flatout.storage.nfs import read_mountstats, unescaped
from flatout.storage.snapshots import Snapshots, StorageSnapshot

_OF_KERNEL = {
    *("proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "debugfs", "tracefs", "securityfs"),
    *("pstore", "bpf", "configfs", "fusectl", "hugetlbfs", "autofs", "rpc_pipefs", "binfmt_misc", "efivarfs", "nsfs"),
    *("tmpfs", "ramfs", "squashfs", "selinuxfs", "rootfs"),
}
_BITS_PER_BYTE = 8
_MEGA = 1e6


class _Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A mount of the kernel's list."""

    folder: str
    kind: str
    source: str
    device: str  # its number


def host_storage(content: Snapshots) -> HostStorage:
    """Return the use of a host's mounts between the first and the last time."""
    snapshots = content.snapshots
    counted = [snapshot for snapshot in snapshots if _has_counters(snapshot)]
    listed = _listed(snapshots)
    problems = content.problems
    elapsed_s, disks, limits = 0.0, read_diskstats(""), read_limits("", "", "")
    if counted:
        first, last = counted[0], counted[-1]
        elapsed_s, limits = last.unix_s - first.unix_s, _limits(last)
        disks = read_diskstats(last.text("/proc/diskstats"))
    by_time = [_counts(snapshot, listed) for snapshot in counted]
    counted_folders = {folder: None for counts in by_time for folder in counts}
    mounts = []
    for folder in listed | counted_folders:
        mount = listed.get(folder) or _unlisted(folder, counted)
        uses, num_resets = _uses([counts.get(folder) for counts in by_time], [each.unix_s for each in counted])
        with_counters = folder in counted_folders
        mounts.append(
            Mount(
                folder=folder,
                kind=mount.kind,
                source=mount.source,
                uses=uses,
                max_bytes_per_s=_max_bytes_per_s(mount, disks, limits, snapshots),
                max_requests_per_s=_limit(mount, disks, limits.requests_per_s),
                has_counters=with_counters,
                num_resets=num_resets,
                problem=None if with_counters else _problem(mount, problems),
            )
        )
    return HostStorage(
        hostname=content.hostname,
        mounts=tuple(mounts),
        elapsed_s=elapsed_s,
        **_of_host(counted, elapsed_s),
        problems=tuple(f"{path}: {problem}" for path, problem in problems.items()),
    )


def _has_counters(snapshot: StorageSnapshot) -> bool:
    return any(not path.startswith(("/sys/class/net", "/proc/self/mountinfo")) for path in snapshot.files)


def _listed(snapshots: tuple[StorageSnapshot, ...]) -> dict[str, _Listed]:
    """Return the mounts by their folders; one that is mounted over another replaces it."""
    listed: dict[str, _Listed] = {}
    for snapshot in snapshots:
        for line in snapshot.text("/proc/self/mountinfo").splitlines():
            before, separator, after = line.partition(" - ")
            words, rest = before.split(), after.split()
            if not separator or len(words) < 5 or len(rest) < 2:
                continue
            folder = unescaped(words[4])
            listed.pop(folder, None)
            if rest[0] not in _OF_KERNEL:
                listed[folder] = _Listed(folder=folder, kind=rest[0], source=rest[1], device=words[2])
    return listed


def _unlisted(folder: str, snapshots: list[StorageSnapshot]) -> _Listed:
    """Return a mount that only counters name: copies of /proc can lack the kernel's list."""
    text = "".join(snapshot.text("/proc/self/mountstats") for snapshot in snapshots)
    device = re.search(rf"device (\S+) mounted on {re.escape(folder)} with fstype (\S+)", text)
    if device is not None:
        return _Listed(folder=folder, kind=device[2], source=device[1], device="")
    is_juicefs = any(f"{folder}/.stats" in snapshot.files for snapshot in snapshots)
    kind = "fuse.juicefs" if is_juicefs else "lustre"
    return _Listed(folder=folder, kind=kind, source=folder, device="")


def _counts(snapshot: StorageSnapshot, listed: dict[str, _Listed]) -> dict[str, Counts]:
    """Return the counters of all mounts at one time, by folder."""
    counts = read_mountstats(snapshot.text("/proc/self/mountstats"))
    for path, text in snapshot.files.items():
        if path.endswith("/.stats"):
            stats = read_stats(text)
            if stats is not None:
                counts[path.removesuffix("/.stats")] = stats
    of_lustre = read_lustre(snapshot.files)
    for system, of_system in of_lustre.items():
        folders = [mount.folder for mount in listed.values() if _is_of_lustre(mount, system)]
        for folder in folders or [system]:
            counts[folder] = of_system
    disks = read_diskstats(snapshot.text("/proc/diskstats"))
    for mount in listed.values():
        device = disks.number_of(mount.device, mount.source)
        if device is not None and mount.folder not in counts:
            counts[mount.folder] = disks.counts[device]
    return counts


def _is_of_lustre(mount: _Listed, system: str) -> bool:
    """Whether a mount is of this file system: its source is `SERVER@NETWORK:/scratch`, or a folder in it."""
    in_system = mount.source.partition(":/")[2].split("/")[0]
    return mount.kind.startswith("lustre") and in_system == system


def _uses(counts: list[Counts | None], times: list[float]) -> tuple[tuple[MountUse, ...], int]:
    """Return the use between each two times at which the mount was counted, and how often its counters began again."""
    counted = [(time, each) for time, each in zip(times, counts, strict=True) if each is not None]
    differences = [difference(old, new, after - before) for (before, old), (after, new) in pairwise(counted)]
    return tuple(each.use for each in differences), sum(each.was_reset for each in differences)


def _limits(snapshot: StorageSnapshot) -> DiskLimits:
    return read_limits(
        snapshot.ending("io.max"),
        snapshot.ending("blkio.throttle.read_bps_device"),
        snapshot.ending("blkio.throttle.read_iops_device"),
    )


def _limit(mount: _Listed, disks: Disks, limits: dict[str, float]) -> float | None:
    device = disks.number_of(mount.device, mount.source)
    if device is None:
        return None
    return limits.get(device, limits.get(disks.disk_of(device)))


def _max_bytes_per_s(
    mount: _Listed, disks: Disks, limits: DiskLimits, snapshots: tuple[StorageSnapshot, ...]
) -> float | None:
    """Return what the control group allows of a disk, or the fastest link of the host for a server's mount."""
    if mount.kind.startswith("nfs") or "juicefs" in mount.kind:
        return _link_bytes_per_s(snapshots)
    return _limit(mount, disks, limits.bytes_per_s)


def _link_bytes_per_s(snapshots: tuple[StorageSnapshot, ...]) -> float | None:
    speeds = []
    for snapshot in snapshots:
        for path, text in snapshot.files.items():
            is_up = snapshot.text(path.replace("/speed", "/operstate")).strip() in ("", "up", "unknown")
            if path.startswith("/sys/class/net/") and path.endswith("/speed") and is_up:
                speed = number(text)
                if speed:
                    speeds.append(speed * _MEGA / _BITS_PER_BYTE)
    return max(speeds, default=None)


def _problem(mount: _Listed, problems: Mapping[str, str]) -> str:
    """Return why a mount has no counters: they could not be read, or none are known for its kind."""
    if mount.kind.startswith("lustre"):
        refused = [problem for path, problem in problems.items() if "lustre" in path or path == "lctl"]
        return refused[0] if refused else "there were no counters of Lustre"
    if "juicefs" in mount.kind:
        return problems.get(f"{mount.folder}/.stats", "there was no .stats")
    if mount.kind.startswith("nfs"):
        return problems.get("/proc/self/mountstats", "mountstats did not have it")
    return f"no counters are known for {mount.kind}"


def _of_host(snapshots: list[StorageSnapshot], elapsed_s: float) -> dict[str, float | None]:
    """Return the memory and the pressure; that of the control group before that of the host."""
    if not snapshots:
        return {}
    first, last = snapshots[0], snapshots[-1]
    available = [value for each in snapshots if (value := available_bytes(each.text("/proc/meminfo"))) is not None]
    limit = number(last.ending("memory.max"))
    used = number(first.ending("memory.current"))
    free = available[0] if available else None
    if limit is not None and used is not None:
        file_bytes = field(first.ending("memory.stat"), "file") or 0.0
        room = max(limit - used + file_bytes, 0.0)
        free = room if free is None else min(free, room)
    return {
        "available_bytes": free,
        "least_available_bytes": min(available, default=None),
        "memory_limit_bytes": limit,
        "io_stalled_share": _stalled_share(first, last, "io", elapsed_s),
        "memory_stalled_share": _stalled_share(first, last, "memory", elapsed_s),
        "cpu_stalled_share": _stalled_share(first, last, "cpu", elapsed_s),
        "num_major_faults": _more(first, last, "/proc/vmstat", "pgmajfault"),
        "num_limit_hits": _more_in_group(first, last, "memory.events", "max"),
    }


def _stalled_share(first: StorageSnapshot, last: StorageSnapshot, resource: str, elapsed_s: float) -> float | None:
    for name in (f"{resource}.pressure", f"pressure/{resource}"):
        before, after = stalled_s(first.ending(name)), stalled_s(last.ending(name))
        if before is not None and after is not None and after >= before and elapsed_s > 0:
            return min((after - before) / elapsed_s, 1.0)
    return None


def _more(first: StorageSnapshot, last: StorageSnapshot, path: str, name: str) -> float | None:
    return _grown(field(first.text(path), name), field(last.text(path), name))


def _more_in_group(first: StorageSnapshot, last: StorageSnapshot, file: str, name: str) -> float | None:
    return _grown(field(first.ending(file), name), field(last.ending(file), name))


def _grown(before: float | None, after: float | None) -> float | None:
    return after - before if before is not None and after is not None and after >= before else None
