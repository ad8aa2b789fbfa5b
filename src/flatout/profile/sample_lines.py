"""`host-<hostname>.samples.jsonl` -> `HostUse`: what a host did while the job trained.

In: the sampler's file and the time in question. Out: means and highest values. A counter that the host lacks is None.
Xids are those of the whole file: a GPU that had an error while the job warmed up is not well later.
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
    """Samples between the two times, or all where there are none in between; None where the file has no header."""
    lines = list(_objects(path))
    if not lines or "cores_allowed" not in lines[0]:
        return None
    header, samples = lines[0], lines[1:]
    xids = _xids(samples, header["hostname"])
    inside = [
        sample
        for sample in samples
        if (from_unix_s is None or sample["unix_s"] >= from_unix_s)
        and (to_unix_s is None or sample["unix_s"] <= to_unix_s)
    ]
    samples = inside or samples
    allowed = header["cores_allowed_ids"]
    busy = [
        sum(sample["cores_busy_percent"][core] for core in allowed if core < len(sample["cores_busy_percent"])) / 100
        for sample in samples
        if "cores_busy_percent" in sample
    ]
    return HostUse(
        hostname=header["hostname"],
        num_samples=len(samples),
        cores_allowed=header["cores_allowed"],
        cores_busy=fmean(busy) if busy else None,
        max_cores_busy=max(busy, default=None),
        memory_used_bytes=_of(samples, "memory_used_bytes", max),
        memory_limit_bytes=header["memory_limit_bytes"] or header["memory_bytes"],
        disk_busy_share=_of(samples, "disk_busy_s_per_s", fmean),
        gpus=tuple(_gpu(facts, position, samples) for position, facts in enumerate(header["gpus"])),
        xids=xids,
        **{name: _of(samples, name, fmean) for name in _HOST_MEANS},
    )


def _objects(path: Path) -> Iterable[dict[str, Any]]:
    """Whole lines; the last may be cut short."""
    with path.open("rb") as file:
        for line in file:
            try:
                value = _decode(line)
            except msgspec.DecodeError:
                continue
            if isinstance(value, dict) and ("unix_s" in value or "schema" in value):
                yield value


def _xids(samples: list[dict[str, Any]], hostname: str) -> tuple[Xid, ...] | None:
    """Each GPU and number once: two sources tell the same. None where there are samples that cannot say."""
    known = [entry for sample in samples for entry in sample.get("xids", ())]
    if not known and not (samples and all("xids" in sample for sample in samples)):
        return None
    found = {
        (entry["number"], entry.get("gpu"), None if "gpu" in entry else entry.get("address")): None for entry in known
    }
    return tuple(Xid(number=number, gpu=gpu, address=address, hostname=hostname) for number, gpu, address in found)


def _gpu(facts: dict[str, Any], position: int, samples: list[dict[str, Any]]) -> GpuUse:
    mine = [sample["gpus"][position] for sample in samples if len(sample.get("gpus", ())) > position]
    busy = _of(mine, "busy_percent", fmean)
    known = [one["throttle"] for one in mine if "throttle" in one]
    reasons = sorted({reason for one in known for reason in one})
    return GpuUse(
        index=facts["index"],
        name=facts.get("name"),
        uuid=facts.get("uuid"),
        power_limit_w=facts.get("power_limit_w"),
        max_sm_clock_hz=facts.get("max_sm_clock_hz"),
        busy_share=None if busy is None else busy / 100,
        temperature_c=_of(mine, "temperature_c", max),
        memory_used_bytes=_of(mine, "memory_used_bytes", max),
        throttle_share={reason: sum(reason in one for one in known) / len(known) for reason in reasons},
        **{name: _of(mine, name, fmean) for name in _GPU_MEANS},
    )


def _of(entries: list[dict[str, Any]], name: str, choose: Callable[[list[float]], float]) -> float | None:
    values = [entry[name] for entry in entries if name in entry]
    return choose(values) if values else None
