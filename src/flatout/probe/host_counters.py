"""Cores, memory, disks and networks of this host, as rates between two calls. Unreadable values are absent, not 0.

In: psutil. Out: plain dictionaries for the sampler's lines; each key ends in its unit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

from flatout.probe import limits

_VIRTUAL_NETWORKS = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "cali", "tunl", "dummy")
_VIRTUAL_DISKS = ("loop", "ram", "zram", "dm-", "md")


class HostCounters:
    """Rates between two calls of `read`; the first call returns no rates."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._last_s = 0.0

    def read(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        busy = psutil.cpu_percent(percpu=True)  # since the last call; the first call has no earlier value
        if self._last_s:
            values["cores_busy_percent"] = busy
        _add(values, "memory_used_bytes", lambda: limits.memory_used_bytes() or psutil.virtual_memory().used)
        _add(values, "memory_available_bytes", lambda: psutil.virtual_memory().available)
        counters: dict[str, float] = {}
        _add(counters, "throttled_s_per_s", limits.throttled_s)
        for source in (_disk, _network):
            try:
                counters |= source()
            except (OSError, RuntimeError, NotImplementedError):
                continue
        now = time.monotonic()
        if self._last_s:
            elapsed = now - self._last_s
            for name, value in counters.items():
                if name in self._last and value >= self._last[name]:  # the sum falls when a device is removed
                    values[name] = round((value - self._last[name]) / elapsed, 6)
        self._last, self._last_s = counters, now
        return values


def _add(values: dict[str, Any], name: str, read: Callable[[], Any]) -> None:
    try:
        value = read()
    except (OSError, RuntimeError, NotImplementedError):
        return
    if value is not None:
        values[name] = value


def _disk() -> dict[str, float]:
    """Return the rates of physical disks only: partitions and layers above would count twice."""
    disks = psutil.disk_io_counters(perdisk=True, nowrap=True) or {}
    whole = [
        counters
        for name, counters in disks.items()
        if not name.startswith(_VIRTUAL_DISKS) and not _is_partition(name, disks)
    ]
    if not whole:
        return {}
    return {
        "disk_read_bytes_per_s": sum(one.read_bytes for one in whole),
        "disk_write_bytes_per_s": sum(one.write_bytes for one in whole),
        "disk_busy_s_per_s": max(getattr(one, "busy_time", 0) for one in whole) / 1e3,
    }


def _is_partition(name: str, disks: dict[str, Any]) -> bool:
    stem = name.rstrip("0123456789")
    return stem != name and (stem in disks or (stem.endswith("p") and stem[:-1] in disks))


def _network() -> dict[str, float]:
    interfaces = {
        name: counters
        for name, counters in psutil.net_io_counters(pernic=True, nowrap=True).items()
        if not name.startswith(_VIRTUAL_NETWORKS)
    }
    if not interfaces:
        return {}
    return {
        "network_received_bytes_per_s": sum(one.bytes_recv for one in interfaces.values()),
        "network_sent_bytes_per_s": sum(one.bytes_sent for one in interfaces.values()),
    }
