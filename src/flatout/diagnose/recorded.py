"""What a recording knows beyond its traces, added to the diagnosis: rates, MFU, memory, and what held the host up.

The findings stay those of the traces. A recording shows why: a loader behind busy cores, a disk or network at work,
a GPU whose clocks were throttled.
"""

from __future__ import annotations

from typing import Any

import msgspec

from flatout.records.diagnosis import Diagnosis, Finding
from flatout.records.events import Quality
from flatout.records.recording import GpuUse, HostUse, Recording
from flatout.units import bytes_per_s, percent

BUSY_CORES = 0.9  # of those that the process may use
BUSY_DISK = 0.9  # of the time
MIN_THROTTLED = 0.05  # of the samples


def with_recording(diagnosis: Diagnosis, recording: Recording) -> Diagnosis:
    """The same diagnosis with the recording's numbers, causes behind its findings, and problems."""
    measured = recording.measured
    job = msgspec.structs.replace(
        diagnosis.job,
        samples_per_s=measured.samples_per_s,
        tokens_per_s=measured.tokens_per_s,
        mfu=measured.mfu,
        mfu_against=measured.mfu_against,
        peak_memory_bytes=measured.peak_memory_bytes,
        reasons=measured.reasons,
    )
    return msgspec.structs.replace(
        diagnosis,
        job=job,
        findings=tuple(_explained(finding, recording) for finding in diagnosis.findings),
        data_quality=(*diagnosis.data_quality, *recording.problems, *_throttled(recording)),
    )


def _explained(finding: Finding, recording: Recording) -> Finding:
    """The finding with what its hosts were doing."""
    hosts = _hosts_of(finding.ranks, recording)
    if not hosts or finding.name not in ("data-loading", "host-bound", "straggler", "exposed-communication"):
        return finding
    evidence: dict[str, Any] = {}
    title = finding.title
    if finding.name in ("data-loading", "host-bound"):
        cores, reason = _cores(hosts)
        evidence |= cores
        title += reason
    if finding.name == "data-loading":
        storage, reason = _storage(hosts)
        evidence |= storage
        title += reason
    if finding.name == "exposed-communication":
        rates = [host.network_sent_bytes_per_s for host in hosts if host.network_sent_bytes_per_s is not None]
        if rates:
            evidence["network_sent_bytes_per_s"] = max(rates)
    if finding.name == "straggler":
        reasons = _throttle_of(finding.ranks, recording)
        if reasons:
            evidence["throttled_share"] = reasons
            title += f"; its clocks were throttled ({', '.join(reasons)})"
    return msgspec.structs.replace(finding, title=title, evidence=finding.evidence | evidence)


def _hosts_of(ranks: tuple[int, ...], recording: Recording) -> list[HostUse]:
    names = {rank.hostname for rank in recording.ranks if rank.rank in ranks}
    return [host for host in recording.hosts if host.hostname in names]


def _cores(hosts: list[HostUse]) -> tuple[dict[str, float], str]:
    """Cores allowed and busy on the busiest host, and the words where they are all in use."""
    known = [host for host in hosts if host.cores_busy is not None]
    if not known:
        return {}, ""
    busiest = max(known, key=lambda host: (host.cores_busy or 0.0) / host.cores_allowed)
    busy = busiest.cores_busy or 0.0
    evidence = {"cores_allowed": busiest.cores_allowed, "cores_busy": busy}
    if busiest.throttled_s_per_s:
        evidence["throttled_s_per_s"] = busiest.throttled_s_per_s
    if busy >= BUSY_CORES * busiest.cores_allowed:
        return evidence, f"; all {busiest.cores_allowed:g} cores that the job may use are busy"
    return evidence, ""


def _storage(hosts: list[HostUse]) -> tuple[dict[str, float], str]:
    known = [host for host in hosts if host.disk_read_bytes_per_s is not None]
    if not known:
        return {}, ""
    busiest = max(known, key=lambda host: host.disk_busy_share or 0.0)
    rate = busiest.disk_read_bytes_per_s or 0.0
    evidence = {"disk_read_bytes_per_s": rate}
    if busiest.disk_busy_share is not None:
        evidence["disk_busy_share"] = busiest.disk_busy_share
        if busiest.disk_busy_share >= BUSY_DISK:
            return evidence, f"; the disk is at its limit, {bytes_per_s(rate)}"
    return evidence, ""


def _throttle_of(ranks: tuple[int, ...], recording: Recording) -> dict[str, float]:
    found: dict[str, float] = {}
    for rank in recording.ranks:
        if rank.rank in ranks and rank.device is not None:
            for host in recording.hosts:
                if host.hostname == rank.hostname:
                    for gpu in host.gpus:
                        if gpu.uuid == rank.device.uuid or (gpu.uuid is None and gpu.index == rank.device.index):
                            found |= _often(gpu)
    return found


def _often(gpu: GpuUse) -> dict[str, float]:
    return {reason: share for reason, share in gpu.throttle_share.items() if share >= MIN_THROTTLED}


def _throttled(recording: Recording) -> list[Quality]:
    return [
        Quality(
            problem=f"the clocks of GPU {gpu.index} on {host.hostname} were throttled"
            f" ({', '.join(f'{reason} {percent(share)} of the time' for reason, share in often.items())})",
            effect="its compute took longer than that GPU needs at its full clocks",
        )
        for host in recording.hosts
        for gpu in host.gpus
        if (often := _often(gpu))
    ]
