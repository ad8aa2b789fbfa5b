"""Parse a trace's metadata, which is before and after its events.

In: the text around the events. Out: `FileMetadata` (rank, process groups, devices, base time) and the losses that the
profiler's own log reports. Damaged metadata never causes events to be lost: if it cannot be parsed, each key is
searched for separately.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from flatout.read.collectives import as_integer, as_ranks
from flatout.read.schema import UNREADABLE
from flatout.records.events import Quality

_MAX_RANKS = 1 << 20  # far above any job; tables with a row per rank are allocated from rank numbers


class FileMetadata(msgspec.Struct, kw_only=True):
    """The metadata that is used, checked and converted."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    group_ranks: dict[str, tuple[int, ...]] = {}  # by name of the process group
    base_ns: int = 0
    hostname: str | None = None
    device_names: dict[int, str] = {}
    quality: tuple[Quality, ...] = ()


class _Raw(msgspec.Struct, rename={"base_ns": "baseTimeNanoseconds", "warning": "WARNING", "error": "ERROR"}):
    distributed_info: Any = msgspec.field(default=None, name="distributedInfo")
    device_properties: Any = msgspec.field(default=None, name="deviceProperties")
    base_ns: Any = None
    hostname: Any = None
    host_name: Any = None
    info: Any = msgspec.field(default=None, name="INFO")
    warning: Any = None
    error: Any = None


def parse(head: bytes, tail: bytes) -> FileMetadata:
    """Parse `head`, which ends with the bracket that opens the events, and `tail`, which follows the closing one."""
    if not head:
        return FileMetadata(quality=(_NO_METADATA,))
    quality: list[Quality] = []
    try:
        raw = _decode(head + b"]" + (tail.strip() or b"}"))
    except UNREADABLE:
        raw = _look_up(head, tail)
        quality.append(
            Quality(
                problem="the metadata around the events is damaged",
                effect="rank, process groups and device name are taken from its readable part",
            )
        )
    quality += _log_quality(raw)
    info = raw.distributed_info if isinstance(raw.distributed_info, dict) else {}
    return FileMetadata(
        rank=_bounded(info, "rank", 0, _MAX_RANKS - 1, quality),
        world_size=_bounded(info, "world_size", 1, _MAX_RANKS, quality),
        backend=_text(info.get("backend")),
        group_ranks=_group_ranks(info.get("pg_config")),
        base_ns=as_integer(raw.base_ns) or 0,
        hostname=_text(raw.hostname) or _text(raw.host_name),
        device_names=_device_names(raw.device_properties),
        quality=tuple(quality),
    )


_NO_METADATA = Quality(
    problem="the file is a bare list of events, without the metadata that profilers write around it",
    effect="world size, process groups and device name are unknown, and the rank is taken from the file name",
)


def _bounded(info: dict[str, Any], key: str, least: int, most: int, quality: list[Quality]) -> int | None:
    """Return a number from `distributedInfo`; a number that no job can have is noted and counts as absent."""
    value = as_integer(info.get(key))
    if value is None or value < least:
        return None
    if value > most:
        shown = str(value) if value < 1 << 63 else "a number of more than 63 bits"
        quality.append(
            Quality(
                problem=f"`distributedInfo.{key}` must be at most {most:,}, but is {shown}",
                effect="it counts as absent",
            )
        )
        return None
    return value


def _decode(text: bytes) -> _Raw:
    return msgspec.json.decode(text, type=_Raw)


def _look_up(head: bytes, tail: bytes) -> _Raw:
    """Look up each key separately: its value is the shortest prefix after `"key":` that is valid JSON."""
    raw = _Raw()
    for field, key in zip(_Raw.__struct_fields__, _Raw.__struct_encode_fields__, strict=True):
        for text in (head, tail):
            match = re.search(rb'"' + key.encode() + rb'"\s*:\s*', text)
            if match is not None:
                setattr(raw, field, _first_value(text[match.end() :]))
                break
    return raw


def _first_value(text: bytes) -> Any:
    ends = [match.end() for match in re.finditer(rb"[}\]]|(?<=[\w\"])(?=\s*[,}])", text[: 1 << 20])]
    for end in ends[:1000]:
        try:
            return msgspec.json.decode(text[:end])
        except UNREADABLE:
            continue
    return None


def _group_ranks(configs: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(configs, list):
        return {}
    named = [(config.get("pg_name"), as_ranks(config.get("ranks"))) for config in configs if isinstance(config, dict)]
    return {str(name): ranks for name, ranks in named if name is not None and ranks}


def _device_names(properties: Any) -> dict[int, str]:
    if isinstance(properties, dict):
        properties = list(properties.values()) if "name" not in properties else [properties]
    if not isinstance(properties, list):
        return {}
    names = {}
    for position, device in enumerate(properties):
        if isinstance(device, dict) and device.get("name"):
            number = as_integer(device.get("id"))
            names[position if number is None else number] = str(device["name"])
    return names


def _text(value: Any) -> str | None:
    return str(value) if value not in (None, "") else None


_OUT_OF_RANGE = re.compile(r"Out-of-range = (\d{1,18})(?!\d)")
_DROPPED = re.compile(r"[Dd]ropped (\d{1,18}) (?:activity )?records")
_STOPPED_EARLY = re.compile(r"stopped early\? = 1|[Ss]topped early(?!\? = 0)|[Bb]uffer.*(?:exceeded|limit reached)")


def _log_quality(raw: _Raw) -> list[Quality]:
    lines = [
        line
        for log in (raw.info, raw.warning, raw.error)
        for line in (log if isinstance(log, list) else [log])
        if isinstance(line, str)
    ]
    quality = []
    out_of_range = max((int(match[1]) for line in lines if (match := _OUT_OF_RANGE.search(line))), default=0)
    if out_of_range:
        quality.append(
            Quality(
                problem=f"the profiler excluded {out_of_range:,} events outside its recording window",
                effect="work at the edges of the window may lack its launch or its kernel",
            )
        )
    dropped = sum(int(match[1]) for line in lines if (match := _DROPPED.search(line)))
    if dropped:
        quality.append(
            Quality(
                problem=f"the profiler dropped {dropped:,} GPU records for lack of buffers",
                effect="GPU work is missing, so idle time is overstated",
            )
        )
    if any(_STOPPED_EARLY.search(line) for line in lines):
        quality.append(
            Quality(
                problem="the profiler stopped recording the GPU early: its buffers were full",
                effect="GPU work after that is missing, so idle time is overstated",
            )
        )
    return quality
