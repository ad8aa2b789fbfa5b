"""Read the resources of this machine that the job can use: cores and memory allowed by affinity and control groups.

In: /proc and /sys/fs/cgroup (versions 1 and 2). Out: numbers, or None if no limit is set or readable.
"""

from __future__ import annotations

import os
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_UNLIMITED_BYTES = 1 << 60  # version 1 writes a number near 2^63 for "no limit"


def allowed_cores() -> float:
    """Return the lesser of the cores that this process can run on and its quota, which may be a fraction."""
    cores = float(len(os.sched_getaffinity(0)))
    quota = cpu_quota()
    return cores if quota is None else min(cores, quota)


def cpu_quota() -> float | None:
    """Return the number of cores whose time the control groups allow: the lowest quota of all levels."""
    quotas = []
    for folder in control_groups("cpu"):
        match _words(folder / "cpu.max"):
            case [quota, period] if quota != "max":
                quotas.append(int(quota) / int(period))
        old_quota, old_period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
        if old_quota and old_period and int(old_quota[0]) > 0:
            quotas.append(int(old_quota[0]) / int(old_period[0]))
    return min(quotas, default=None)


def memory_limit_bytes() -> int | None:
    """Return the lowest memory limit across all levels of the control-group hierarchy."""
    limits = []
    for folder in control_groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(folder / name)
            if words and words[0] != "max" and int(words[0]) < _UNLIMITED_BYTES:
                limits.append(int(words[0]))
    return min(limits, default=None)


def free_bytes() -> float:
    """Return the free memory of the machine, or half of the memory limit if that is less."""
    import psutil

    free = float(psutil.virtual_memory().available)
    limit = memory_limit_bytes()
    return free if limit is None else min(free, limit / 2)


def memory_used_bytes() -> int | None:
    """Return the memory of this process's control group, without droppable cache; None outside of one."""
    for folder in control_groups("memory"):
        used = _words(folder / "memory.current") or _words(folder / "memory.usage_in_bytes")
        if used:
            return max(int(used[0]) - (_field(folder / "memory.stat", "inactive_file") or 0), 0)
    return None


def throttled_s() -> float | None:
    """Return the seconds since the group began in which the quota throttled it; None without a quota."""
    if cpu_quota() is None:
        return None
    for folder in control_groups("cpu"):
        microseconds = _field(folder / "cpu.stat", "throttled_usec")
        if microseconds is not None:
            return microseconds / 1e6
        nanoseconds = _field(folder / "cpu.stat", "throttled_time")
        if nanoseconds is not None:
            return nanoseconds / 1e9
    return None


def control_groups(controller: str) -> list[Path]:
    """Return the folders of this process's group, innermost first; in a container the mount is the group."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        is_version_1 = bool(controllers)  # version 2 has one tree for all controllers
        if is_version_1 and controller not in controllers.split(","):
            continue
        root = _MOUNT / controllers
        if is_version_1 and not root.is_dir():
            root = _MOUNT / controller
        inner = root / group.lstrip("/")
        folders = [folder for folder in (inner, *inner.parents) if folder == root or root in folder.parents]
        existing = [folder for folder in folders if folder.is_dir()]
        if is_version_1 or any((folder / "cgroup.controllers").exists() for folder in existing):
            return existing
    return []


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _field(path: Path, name: str) -> int | None:
    """Return the value of a line `name value`."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), None)
