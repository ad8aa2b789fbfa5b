"""Host measurements that can explain a finding: busy cores, other processes, disk, network, and throttled clocks.

In: the recording and the ranks of a finding. Out: `HostEvidence`. A rule lists in `HOST_EVIDENCE` the functions
that are relevant to its cause; `recorded.py` adds their results to the finding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from flatout.records.cores import FOREIGN_CORES
from flatout.records.recording import GpuUse, HostUse, Recording
from flatout.units import bytes_per_s

BUSY_CORES = 0.9  # share of the cores that the process may use
FOREIGN_FIRST = 0.25  # from this share on, to end those processes comes before what the rule advises
BUSY_DISK = 0.9  # share of the time
MIN_THROTTLED = 0.05  # share of the samples


class HostEvidence(msgspec.Struct, frozen=True, kw_only=True):
    evidence: dict[str, Any] = {}
    cause: str | None = None  # a clause for the finding's title, if the numbers show a cause
    changes: tuple[str, ...] = ()  # to try before those of the rule, because the numbers show a cause
    later_changes: tuple[str, ...] = ()  # to try after those of the rule: the cause is too small to explain much


NO_EVIDENCE = HostEvidence()


class RankHosts(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a finding and their hosts."""

    ranks: tuple[int, ...]
    hosts: tuple[HostUse, ...]
    recording: Recording


HostEvidenceOf = Callable[[RankHosts], HostEvidence]


def hosts_of(ranks: tuple[int, ...], recording: Recording) -> RankHosts:
    names = {rank.hostname for rank in recording.ranks if rank.rank in ranks}
    hosts = tuple(host for host in recording.hosts if host.hostname in names)
    return RankHosts(ranks=ranks, hosts=hosts, recording=recording)


def busy_cores(on: RankHosts) -> HostEvidence:
    """Return the allowed and the busy cores of the busiest host, and whether other processes keep them busy."""
    measured = [host for host in on.hosts if host.cores_busy is not None]
    if not measured:
        return foreign_load(on)
    busiest = max(measured, key=lambda host: (host.cores_busy or 0.0) / host.cores_allowed)
    busy = busiest.cores_busy or 0.0
    evidence = {"cores_allowed": busiest.cores_allowed, "cores_busy": busy}
    if busiest.throttled_s_per_s:
        evidence["throttled_s_per_s"] = busiest.throttled_s_per_s
    foreign = foreign_load(on)
    evidence |= foreign.evidence
    if foreign.cause is not None or busy < BUSY_CORES * busiest.cores_allowed:
        return msgspec.structs.replace(foreign, evidence=evidence)
    cause = f"all {busiest.cores_allowed:g} cores that the job can use are busy"
    return HostEvidence(evidence=evidence, cause=cause)


def foreign_load(on: RankHosts) -> HostEvidence:
    """Return how many of the job's cores other processes keep busy, on the host with most of them."""
    measured = [host for host in on.hosts if host.cores_busy_by_others is not None]
    if not measured:
        return NO_EVIDENCE
    most = max(measured, key=foreign_share)
    evidence = {"cores_busy_by_others": most.cores_busy_by_others or 0.0}
    if foreign_share(most) < FOREIGN_CORES:
        return HostEvidence(evidence=evidence)
    cause = foreign_words(most)
    change = f"keep other processes off the job's cores on {most.hostname}"
    if foreign_share(most) < FOREIGN_FIRST:
        return HostEvidence(evidence=evidence, cause=cause, later_changes=(change,))
    return HostEvidence(evidence=evidence, cause=cause, changes=(change,))


def foreign_share(host: HostUse) -> float:
    """Return the share of the job's cores that other processes keep busy."""
    return (host.cores_busy_by_others or 0.0) / host.cores_allowed


def foreign_words(host: HostUse) -> str:
    return (
        f"other processes keep {host.cores_busy_by_others or 0.0:.1f} of the {host.cores_allowed:g} cores busy that the"
        " job can use"
    )


def busy_disk(on: RankHosts) -> HostEvidence:
    """Return the disk read rate of the host with the busiest disk."""
    measured = [host for host in on.hosts if host.disk_read_bytes_per_s is not None]
    if not measured:
        return NO_EVIDENCE
    busiest = max(measured, key=lambda host: host.disk_busy_share or 0.0)
    rate = busiest.disk_read_bytes_per_s or 0.0
    evidence = {"disk_read_bytes_per_s": rate}
    if busiest.disk_busy_share is None:
        return HostEvidence(evidence=evidence)
    evidence["disk_busy_share"] = busiest.disk_busy_share
    if busiest.disk_busy_share < BUSY_DISK:
        return HostEvidence(evidence=evidence)
    return HostEvidence(evidence=evidence, cause=f"the disk is at its limit, {bytes_per_s(rate)}")


def network_rate(on: RankHosts) -> HostEvidence:
    rates = [host.network_sent_bytes_per_s for host in on.hosts if host.network_sent_bytes_per_s is not None]
    return HostEvidence(evidence={"network_sent_bytes_per_s": max(rates)}) if rates else NO_EVIDENCE


def throttled_clocks(on: RankHosts) -> HostEvidence:
    """Return the throttling reasons of the ranks' GPUs, each with its share of the samples."""
    shares: dict[str, float] = {}
    for gpu in _gpus_of(on):
        shares |= often_throttled(gpu)
    if not shares:
        return NO_EVIDENCE
    return HostEvidence(evidence={"throttled_share": shares}, cause=f"its clocks were throttled ({', '.join(shares)})")


def often_throttled(gpu: GpuUse) -> dict[str, float]:
    return {reason: share for reason, share in gpu.throttle_share.items() if share >= MIN_THROTTLED}


def _gpus_of(on: RankHosts) -> list[GpuUse]:
    gpus = {host.hostname: host.gpus for host in on.recording.hosts}
    devices = [(rank.hostname, rank.device) for rank in on.recording.ranks if rank.rank in on.ranks]
    return [
        gpu
        for hostname, device in devices
        if device is not None
        for gpu in gpus.get(hostname, ())
        if gpu.uuid == device.uuid or (gpu.uuid is None and gpu.index == device.index)
    ]
