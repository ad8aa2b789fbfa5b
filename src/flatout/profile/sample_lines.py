"""Read `host-<hostname>.samples.jsonl`, and reduce it to a `HostUse`: a host's activity while the job trained.

In: the sampler's file and a time range. Out: means and maxima. A counter that the host lacks is None. Xids are taken
from the complete file: a GPU that had an error during the warm-up may still be faulty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from flatout.errors import InputError
from flatout.input_files import BadLine, read_lines
from flatout.profile.sample_records import (
    GpuSample,
    HostSample,
    SampledGpu,
    SampledHost,
    decode_host,
    decode_sample,
)
from flatout.records.machine import Xid
from flatout.records.recording import GpuUse, HostUse

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


class HostSamples(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a sampler's file. `bad`: lines that cannot be read, except the last, which may be truncated."""

    host: SampledHost
    samples: tuple[HostSample, ...]
    bad: tuple[BadLine, ...]


def read_samples(path: Path) -> HostSamples | None:
    """Read a sampler's file; None if it is empty. Raise InputError, with the field, if its first line is not valid."""
    host: SampledHost | None = None
    samples: list[HostSample] = []
    bad: list[BadLine] = []
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            if host is None:
                host = decode_host(line)
            else:
                samples.append(decode_sample(line))
        except msgspec.DecodeError as error:
            bad_line = BadLine(file=path.name, number=number, problem=str(error))
            if host is None:
                raise InputError(str(bad_line), hint="record the job again") from None
            bad.append(bad_line)
    if host is None:
        return None
    return HostSamples(host=host, samples=tuple(samples), bad=tuple(line for line in bad if line.number < number))


def host_use(content: HostSamples, from_unix_s: float | None, to_unix_s: float | None) -> HostUse:
    """Return a host's activity from the samples between two times, or from all if there are none in between."""
    host, all_samples = content.host, content.samples
    start = float("-inf") if from_unix_s is None else from_unix_s
    end = float("inf") if to_unix_s is None else to_unix_s
    samples = [sample for sample in all_samples if start <= sample.unix_s <= end] or all_samples
    busy_percents = [sample.cores_busy_percent for sample in samples if sample.cores_busy_percent is not None]
    allowed = host.cores_allowed_ids
    busy = [sum(percents[core] for core in allowed if core < len(percents)) / 100 for percents in busy_percents]
    return HostUse(
        hostname=host.hostname,
        num_samples=len(samples),
        cores_allowed=host.cores_allowed,
        cores_busy=fmean(busy) if busy else None,
        max_cores_busy=max(busy, default=None),
        memory_used_bytes=_reduce(samples, "memory_used_bytes", max),
        memory_limit_bytes=host.memory_limit_bytes or host.memory_bytes,
        disk_busy_share=_reduce(samples, "disk_busy_s_per_s", fmean),
        gpus=tuple(_gpu(facts, position, samples) for position, facts in enumerate(host.gpus)),
        xids=_xids(all_samples, host.hostname),
        **{name: _reduce(samples, name, fmean) for name in _HOST_MEANS},
    )


def _xids(samples: Sequence[HostSample], hostname: str) -> tuple[Xid, ...] | None:
    """Return each pair of GPU and Xid once, since two sources report them; None if the samples have no such data."""
    entries = [entry for sample in samples for entry in sample.xids or ()]
    is_watched = bool(samples) and all(sample.xids is not None for sample in samples)
    if not entries and not is_watched:
        return None
    xids: dict[Xid, None] = {}
    for entry in entries:
        address = None if entry.gpu is not None else entry.address
        xids[Xid(number=entry.number, gpu=entry.gpu, address=address, hostname=hostname)] = None
    return tuple(xids)


def _gpu(facts: SampledGpu, position: int, samples: Sequence[HostSample]) -> GpuUse:
    mine = [sample.gpus[position] for sample in samples if len(sample.gpus) > position]
    busy = _reduce(mine, "busy_percent", fmean)
    throttled = [entry.throttle for entry in mine if entry.throttle is not None]
    reasons = sorted({reason for active in throttled for reason in active})
    return GpuUse(
        index=facts.index,
        name=facts.name,
        uuid=facts.uuid,
        power_limit_w=facts.power_limit_w,
        max_sm_clock_hz=facts.max_sm_clock_hz,
        peer_path=facts.peer_path,
        busy_share=None if busy is None else busy / 100,
        temperature_c=_reduce(mine, "temperature_c", max),
        memory_used_bytes=_reduce(mine, "memory_used_bytes", max),
        throttle_share={reason: fmean(reason in active for active in throttled) for reason in reasons},
        **{name: _reduce(mine, name, fmean) for name in _GPU_MEANS},
    )


def _reduce(
    entries: Sequence[HostSample | GpuSample], name: str, choose: Callable[[list[float]], float]
) -> float | None:
    """Reduce the values of a counter to one; None if no entry has it."""
    values = [value for entry in entries if (value := getattr(entry, name)) is not None]
    return choose(values) if values else None
