"""Turn the events of rocprofv3, from its JSON or its SQLite file, into the event table of one GPU.

In: a `RocmTrace`. Out: an `EventTable`. ROCTX ranges are steps if their names say so. The times count from the start of
the machine: the clocks of several hosts are aligned where they share collectives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from flatout.read import xla_names
from flatout.read.assembled import Source, assemble
from flatout.read.decoded import Codes, Columns
from flatout.read.host_ranges import STEP_NAME, step_numbers
from flatout.read.metadata import FileMetadata
from flatout.read.processes import RankPart
from flatout.read.sources import TraceSource
from flatout.records.events import NULL, EventTable, Kind, Quality, TraceFormat

MIN_SHARE = 0.01  # of the kernels, of a GPU that the process drives
_MOST_DEVICES = 1 << 16
_UNKNOWN_START = Quality(
    problem="the times count from the start of the machine, not from 1970",
    effect="the clocks of several hosts can only be aligned where they share collectives",
)


class RocmEvent(NamedTuple):
    kind: Kind
    name: str
    start_ns: int
    duration_ns: int
    thread: int
    correlation: int = NULL
    device: int = NULL
    stream: int = NULL
    num_bytes: int = NULL


class RocmTrace(msgspec.Struct, frozen=True, kw_only=True):
    events: list[RocmEvent]
    process: str
    hostname: str | None
    device_names: dict[int, str]
    quality: tuple[Quality, ...] = ()


def parts_of(trace: RocmTrace, process: str | None = None) -> tuple[RankPart, ...]:
    """Return the GPUs of a process that have a share of the kernels, if they are several."""
    counts = Counter(event.device for event in trace.events if event.kind == Kind.KERNEL and event.device >= 0)
    driven = sorted(device for device, count in counts.items() if count >= MIN_SHARE * counts.total())
    if len(driven) < 2:
        return ()
    return tuple(RankPart(rank=None, process=process, device=device) for device in driven)


def rocm_table(trace: RocmTrace, source: TraceSource, file_format: TraceFormat) -> EventTable:
    """Return the table of a trace, or of the GPU that the source's part names."""
    device = source.part.device if source.part is not None else None
    events = trace.events if device is None else _events_of(trace.events, device)
    names: Codes[str] = Codes()
    threads: Codes[tuple[str, str]] = Codes()
    shown = _names(events)
    columns: Columns = {
        "kind": np.array([event.kind for event in events], np.int64),
        "name": np.array([names[name] for name in shown], np.int64),
        "start_ns": np.array([_fits(event.start_ns) for event in events], np.int64),
        "duration_ns": np.array([_fits(event.duration_ns) for event in events], np.int64),
        "thread": np.array([threads[trace.process, _thread(event)] for event in events], np.int64),
        "correlation": np.array([_fits(event.correlation) for event in events], np.int64),
        "device": np.array([event.device if event.device < _MOST_DEVICES else NULL for event in events], np.int64),
        "stream": np.array([_fits(event.stream) for event in events], np.int64),
        "num_bytes": np.array([_fits(event.num_bytes) for event in events], np.int64),
    }
    rank = source.rank_hint if source.part is None else source.part.rank
    return assemble(
        columns,
        Source(
            path=source.name,
            format=file_format,
            metadata=FileMetadata(rank=rank, hostname=trace.hostname, device_names=trace.device_names),
            names=list(names),
            threads=list(threads),
            quality=(*trace.quality, _UNKNOWN_START),
        ),
    )


def _events_of(events: Sequence[RocmEvent], device: int) -> list[RocmEvent]:
    """Return the events of one GPU and its host's; of the calls, those of this GPU: others would count as lost."""
    of_host_or_device = [event for event in events if event.device in (device, NULL)]
    launched = {event.correlation for event in of_host_or_device if event.device == device}

    def belongs(event: RocmEvent) -> bool:
        is_launch = event.kind == Kind.RUNTIME and _launches(event)
        return not is_launch or event.correlation in launched

    return [event for event in of_host_or_device if belongs(event)]


def _names(events: Sequence[RocmEvent]) -> list[str]:
    """Return the name of each event in the table; ranges of steps and loaders get the names that `attribute` knows."""
    shown = []
    for event in events:
        meaning = xla_names.meaning(event.name) if event.kind == Kind.USER_ANNOTATION else None
        shown.append(f"{meaning} ({event.name})" if meaning is not None else event.name)
    places = [place for place, event in enumerate(events) if event.kind == Kind.USER_ANNOTATION]
    places.sort(key=lambda place: events[place].start_ns)
    for position, number in step_numbers([shown[place] for place in places]).items():
        shown[places[position]] = f"{STEP_NAME}{number}"
    return shown


def _thread(event: RocmEvent) -> str:
    return (
        str(event.thread)
        if event.kind in (Kind.RUNTIME, Kind.USER_ANNOTATION)
        else f"GPU {event.device} {event.stream}"
    )


def _launches(event: RocmEvent) -> bool:
    return "Launch" in event.name


def _fits(number: int) -> int:
    """Return a number that fits 64 bits, or NULL."""
    return number if -(1 << 63) <= number < 1 << 63 else NULL
