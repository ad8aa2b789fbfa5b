"""Read `host-<hostname>.samples.jsonl` into a `HostUse`: a host's activity while the job trained.

In: the sampler's file and a time range. Out: means and maxima. A counter that the host lacks is None. Xids are taken
from the complete file: a GPU that had an error during the warm-up may still be faulty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from flatout.records.machine import Xid
from flatout.records.recording import GpuUse, HostUse

_decode = msgspec.json.Decoder().decode
_GPU_MEANS = (
    "power_w",
    "sm_clock_hz",
    "pcie_sent_bytes_per_s",
    "pcie_received_bytes_per_s",
    "nvlink_sent_bytes_per_s",
    "nvlink_received_bytes_per_s",
)
_HOST_MEANS = (
    "cores_busy_by_others",
    "throttled_s_per_s",
    "disk_read_bytes_per_s",
    "disk_write_bytes_per_s",
    "network_received_bytes_per_s",
    "network_sent_bytes_per_s",
)


def read_host(path: Path, from_unix_s: float | None, to_unix_s: float | None) -> HostUse | None:
    """Read the samples between two times, or all if there are none in between; None if the file has no header."""
    lines = list(_objects(path))
    if not lines or "cores_allowed" not in lines[0]:
        return None
    header, all_samples = lines[0], lines[1:]
    start = float("-inf") if from_unix_s is None else from_unix_s
    end = float("inf") if to_unix_s is None else to_unix_s
    samples = [sample for sample in all_samples if start <= sample["unix_s"] <= end] or all_samples
    allowed = header["cores_allowed_ids"]
    busy_percents = [sample["cores_busy_percent"] for sample in samples if "cores_busy_percent" in sample]
    busy = [sum(percents[core] for core in allowed if core < len(percents)) / 100 for percents in busy_percents]
    return HostUse(
        hostname=header["hostname"],
        num_samples=len(samples),
        cores_allowed=header["cores_allowed"],
        cores_busy=fmean(busy) if busy else None,
        max_cores_busy=max(busy, default=None),
        memory_used_bytes=_reduce(samples, "memory_used_bytes", max),
        memory_limit_bytes=header["memory_limit_bytes"] or header["memory_bytes"],
        disk_busy_share=_reduce(samples, "disk_busy_s_per_s", fmean),
        gpus=tuple(_gpu(facts, position, samples) for position, facts in enumerate(header["gpus"])),
        xids=_xids(all_samples, header["hostname"]),
        **{name: _reduce(samples, name, fmean) for name in _HOST_MEANS},
    )


def _objects(path: Path) -> Iterable[dict[str, Any]]:
    """Yield the complete lines; the last may be truncated."""
    with path.open("rb") as file:
        for line in file:
            try:
                value = _decode(line)
            except msgspec.DecodeError:
                continue
            if isinstance(value, dict) and ("unix_s" in value or "schema" in value):
                yield value


def _xids(samples: list[dict[str, Any]], hostname: str) -> tuple[Xid, ...] | None:
    """Return each pair of GPU and Xid once, since two sources report them; None if the samples have no such data."""
    entries = [entry for sample in samples for entry in sample.get("xids", ())]
    is_watched = bool(samples) and all("xids" in sample for sample in samples)
    if not entries and not is_watched:
        return None
    xids: dict[Xid, None] = {}
    for entry in entries:
        address = None if "gpu" in entry else entry.get("address")
        xids[Xid(number=entry["number"], gpu=entry.get("gpu"), address=address, hostname=hostname)] = None
    return tuple(xids)


def _gpu(facts: dict[str, Any], position: int, samples: list[dict[str, Any]]) -> GpuUse:
    mine = [sample["gpus"][position] for sample in samples if len(sample.get("gpus", ())) > position]
    busy = _reduce(mine, "busy_percent", fmean)
    throttled = [entry["throttle"] for entry in mine if "throttle" in entry]
    reasons = sorted({reason for active in throttled for reason in active})
    return GpuUse(
        index=facts["index"],
        name=facts.get("name"),
        uuid=facts.get("uuid"),
        power_limit_w=facts.get("power_limit_w"),
        max_sm_clock_hz=facts.get("max_sm_clock_hz"),
        busy_share=None if busy is None else busy / 100,
        temperature_c=_reduce(mine, "temperature_c", max),
        memory_used_bytes=_reduce(mine, "memory_used_bytes", max),
        throttle_share={reason: fmean(reason in active for active in throttled) for reason in reasons},
        **{name: _reduce(mine, name, fmean) for name in _GPU_MEANS},
    )


def _reduce(entries: list[dict[str, Any]], name: str, choose: Callable[[list[float]], float]) -> float | None:
    """Reduce the values of a counter to one; None if no entry has it."""
    values = [entry[name] for entry in entries if name in entry]
    return choose(values) if values else None
