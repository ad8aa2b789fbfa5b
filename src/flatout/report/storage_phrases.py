"""Word what the counters of a file system say about the reads of a job.

In: a `StorageVerdict`. Out: one sentence each, with the numbers that it rests on.
"""

from __future__ import annotations

from flatout.records.storage import StorageFinding, StorageReason, StorageVerdict
from flatout.units import num_bytes, number, percent, seconds

_WHY_UNKNOWN = {
    StorageReason.NO_COUNTERS: "its counters were not read",
    StorageReason.ONE_SAMPLE: "its counters were read only once",
    StorageReason.FEW_REQUESTS: "it had too few requests to judge",
    StorageReason.NO_TIMES: "its client counts requests, but not the time that they take",
    StorageReason.LITTLE_TIME: "its requests took only a small part of the time in which the loader waits",
    StorageReason.OTHERS_READ: "nearly all that was read from it was read by other processes",
    StorageReason.NO_CEILING: "its rate is not steady, and the most that it can deliver is unknown",
    StorageReason.NO_MOUNT: "the host's list of mounts does not have it",
}


def storage_sentence(verdict: StorageVerdict) -> str:
    """Say what limits the reads from a mount, or why that is unknown."""
    where = f"{verdict.folder} ({verdict.kind})"
    if verdict.finding == StorageFinding.UNKNOWN:
        assert verdict.reason is not None
        detail = f": {verdict.detail}" if verdict.detail else ""
        return f"what in {where} takes the time is unknown, because {_WHY_UNKNOWN[verdict.reason]}{detail}"
    return f"{where}: {_EVIDENCE[verdict.finding](verdict)}"


def numbers_sentence(verdict: StorageVerdict) -> str | None:
    """Say what the client counted; None if it counted nothing."""
    parts = []
    if verdict.bytes_per_s is not None:
        parts.append(f"{num_bytes(verdict.bytes_per_s)}/s")
    if verdict.read_latency_s is not None:
        size = f" of {num_bytes(verdict.bytes_per_read)}" if verdict.bytes_per_read else ""
        parts.append(f"{seconds(verdict.read_latency_s)} per read{size}")
    if verdict.metadata_latency_s is not None:
        parts.append(f"{seconds(verdict.metadata_latency_s)} per request for metadata")
    if verdict.requests_in_flight is not None:
        parts.append(f"{verdict.requests_in_flight:.1f} requests at once")
    if not parts:
        return None
    return f"{verdict.folder} ({verdict.kind}): {', '.join(parts)}"


def _metadata(verdict: StorageVerdict) -> str:
    assert verdict.metadata_share is not None
    latency = seconds(verdict.metadata_latency_s or 0.0)
    return (
        f"requests for names, attributes and opens take {percent(verdict.metadata_share)} of the time of all requests, "
        f"{latency} each"
    )


def _bandwidth(verdict: StorageVerdict) -> str:
    rate = f"{num_bytes(verdict.bytes_per_s or 0.0)}/s"
    if verdict.max_requests_per_s is not None and verdict.requests_per_s is not None:
        allowed = number(round(verdict.max_requests_per_s))
        return f"{number(round(verdict.requests_per_s))} requests/s of {allowed} allowed"
    if verdict.max_bytes_per_s is not None and (verdict.bytes_per_s or 0.0) >= verdict.max_bytes_per_s / 2:
        return f"{rate} of at most {num_bytes(verdict.max_bytes_per_s)}/s"
    return f"{rate}, steadily, with {verdict.requests_in_flight or 0.0:.1f} large requests at once"


def _resent(verdict: StorageVerdict) -> str:
    return f"{percent(verdict.resent_share or 0.0)} of the requests were sent again or failed"


def _cache_missed(verdict: StorageVerdict) -> str:
    return (
        f"{verdict.times_read or 0.0:.1f} times the data set's {num_bytes(verdict.data_bytes or 0.0)} were read from "
        f"it, while {num_bytes(verdict.available_bytes or 0.0)} of memory were free for files"
    )


def _contention(verdict: StorageVerdict) -> str:
    slow, calm = seconds(verdict.busy_latency_s or 0.0), seconds(verdict.calm_latency_s or 0.0)
    return (
        f"it answers in {slow} in the slowest quarter of the time and in {calm} in the fastest, while this host sends "
        f"{verdict.load_ratio or 0.0:.2f}x the requests"
    )


def _latency(verdict: StorageVerdict) -> str:
    size = num_bytes(verdict.bytes_per_read or 0.0)
    in_flight = f"{verdict.requests_in_flight or 0.0:.1f} requests at once"
    return f"a read of {size} takes {seconds(verdict.read_latency_s or 0.0)}, with {in_flight}"


_EVIDENCE = {
    StorageFinding.METADATA: _metadata,
    StorageFinding.BANDWIDTH: _bandwidth,
    StorageFinding.RETRANSMITS: _resent,
    StorageFinding.CACHE_MISSED: _cache_missed,
    StorageFinding.CONTENTION: _contention,
    StorageFinding.LATENCY: _latency,
}
