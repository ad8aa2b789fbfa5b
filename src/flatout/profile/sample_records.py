"""The lines of `host-<hostname>.samples.jsonl` as typed records: the facts about a host, then its samples.

In: one line. Out: a record whose values have their types. A line that breaks this raises `msgspec.DecodeError`, whose
text names the field.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from flatout.input_files import decode_json

# More than any counter reaches, and little enough that sums and squares of them are numbers.
_MOST = 1e30
_MOST_UNIX_S = 1e11  # 3,000 years

Value = Annotated[float, msgspec.Meta(ge=-_MOST, le=_MOST)]
UnixTime = Annotated[float, msgspec.Meta(ge=0, le=_MOST_UNIX_S)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class SampledGpu(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change of a GPU."""

    index: Index
    name: str | None = None
    uuid: str | None = None
    power_limit_w: Value | None = None
    max_sm_clock_hz: Value | None = None
    peer_path: str | None = None


class SampledHost(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change of a host: the first line."""

    hostname: str
    cores_allowed: Value
    cores_allowed_ids: tuple[Index, ...]
    memory_bytes: Value
    memory_limit_bytes: Value | None = None
    gpus: tuple[SampledGpu, ...]


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU did; a counter that it lacks is None."""

    busy_percent: Value | None = None
    power_w: Value | None = None
    temperature_c: Value | None = None
    sm_clock_hz: Value | None = None
    memory_used_bytes: Value | None = None
    pcie_sent_bytes_per_s: Value | None = None
    pcie_received_bytes_per_s: Value | None = None
    nvlink_sent_bytes_per_s: Value | None = None
    nvlink_received_bytes_per_s: Value | None = None
    throttle: tuple[str, ...] | None = None


class SampledXid(msgspec.Struct, frozen=True, kw_only=True):
    number: Index
    gpu: Index | None = None
    address: str | None = None


class HostSample(msgspec.Struct, frozen=True, kw_only=True):
    """What a host did at one time; a counter that it lacks is None."""

    unix_s: UnixTime
    cores_busy_percent: tuple[Value, ...] | None = None
    cores_busy_by_others: Value | None = None
    throttled_s_per_s: Value | None = None
    memory_used_bytes: Value | None = None
    disk_read_bytes_per_s: Value | None = None
    disk_write_bytes_per_s: Value | None = None
    disk_busy_s_per_s: Value | None = None
    network_received_bytes_per_s: Value | None = None
    network_sent_bytes_per_s: Value | None = None
    gpus: tuple[GpuSample, ...] = ()
    xids: tuple[SampledXid, ...] | None = None


def decode_host(line: bytes) -> SampledHost:
    return decode_json(line, SampledHost)


def decode_sample(line: bytes) -> HostSample:
    return decode_json(line, HostSample)
