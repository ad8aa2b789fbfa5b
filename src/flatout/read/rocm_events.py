"""Turn the events of rocprofv3, from its JSON or its SQLite file, into the event table of one GPU.

In: a `RocmTrace`. Out: an `EventTable`. ROCTX ranges are steps if their names say so. The times count from the start of
the machine: the clocks of several hosts are aligned where they share collectives.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatout.read import xla_names
from flatout.read.assembled import Source, assemble
from flatout.read.decoded import Codes, Columns
from flatout.read.host_ranges import STEP_NAME, steps_among
from flatout.read.lookups import distinct, integers, is_among
from flatout.read.metadata import FileMetadata
from flatout.read.processes import RankPart
from flatout.read.schema import is_kind
from flatout.read.sources import TraceSource
from flatout.records.events import NULL, EventTable, Kind, Quality, TraceFormat

MIN_SHARE = 0.01  # of the kernels, of a GPU that the process drives
_MOST_DEVICES = 1 << 16
_HOST_KINDS = (Kind.RUNTIME, Kind.USER_ANNOTATION)
_COLUMNS = ("start_ns", "duration_ns", "tid", "correlation", "device", "stream", "num_bytes")
_DIRECTIONS = {
    "HOST_TO_DEVICE": "HtoD",
    "DEVICE_TO_HOST": "DtoH",
    "DEVICE_TO_DEVICE": "DtoD",
    "HOST_TO_HOST": "HtoH",
}
NO_CALLS = Quality(
    problem="calls of HIP were not traced",
    effect="idle time cannot be split into host work and launch latency: record with --hip-trace",
)
_UNKNOWN_START = Quality(
    problem="the times count from the start of the machine, not from 1970",
    effect="the clocks of several hosts can only be aligned where they share collectives",
)


class RocmTrace(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    columns: Columns  # of all events, as `columns_of` returns them
    names: Sequence[str]  # which the column `name` refers to
    process: str
    hostname: str | None
    device_names: dict[int, str]
    quality: tuple[Quality, ...] = ()
    dropped: dict[str, int] = {}  # events that no analysis needs, by what they are


def columns_of(kind: Kind, name: ArrayLike, start_ns: ArrayLike, end_ns: ArrayLike, **others: ArrayLike) -> Columns:
    """Return the columns of events of a kind: those given, and `NULL` for what the events do not have."""
    starts = integers(start_ns)
    count = len(starts)
    given = {"start_ns": starts, "duration_ns": integers(end_ns) - starts}
    given |= {column: integers(values) for column, values in others.items()}
    columns = {column: given.get(column, np.full(count, NULL, np.int64)) for column in _COLUMNS}
    return {"kind": np.full(count, kind, np.uint8), "name": integers(name), **columns}


def joined(pieces: Sequence[Columns]) -> Columns:
    """Return the columns of several kinds of events together."""
    return {column: np.concatenate([piece[column] for piece in pieces]) for column in pieces[0]}


def copy_name(operation: str) -> str:
    """Return `Memcpy` with the direction that the name of a copy ends with, if it does."""
    direction = next((short for long, short in _DIRECTIONS.items() if operation.upper().endswith(long)), "")
    return f"Memcpy {direction}".strip()


def parts_of(trace: RocmTrace, process: str | None = None) -> tuple[RankPart, ...]:
    """Return the GPUs of a process that have a share of the kernels, if they are several."""
    devices, counts = np.unique(kernel_devices(trace), return_counts=True)
    driven = devices[counts >= MIN_SHARE * counts.sum()].tolist()
    if len(driven) < 2:
        return ()
    return tuple(RankPart(rank=None, process=process, device=device) for device in driven)


def kernel_devices(trace: RocmTrace) -> NDArray[np.int64]:
    """Return the GPU of each kernel whose GPU is known."""
    devices = trace.columns["device"][trace.columns["kind"] == Kind.KERNEL]
    known: NDArray[np.int64] = devices[devices >= 0]
    return known


def rocm_table(trace: RocmTrace, source: TraceSource, file_format: TraceFormat) -> EventTable:
    """Return the table of a trace, or of the GPU that the source's part names."""
    device = source.part.device if source.part is not None else None
    columns = dict(trace.columns)
    if device is not None:
        chosen = _is_of_device(columns, trace.names, device)
        columns = {column: values[chosen] for column, values in columns.items()}
    names, columns["name"] = _shown(columns, trace.names)
    columns["device"] = np.where(columns["device"] < _MOST_DEVICES, columns["device"], NULL)
    threads, columns["thread"] = _threads(columns, trace.process)
    del columns["tid"]
    rank = source.rank_hint if source.part is None else source.part.rank
    return assemble(
        columns,
        Source(
            path=source.name,
            format=file_format,
            metadata=FileMetadata(rank=rank, hostname=trace.hostname, device_names=trace.device_names),
            names=names,
            threads=threads,
            quality=(*trace.quality, _UNKNOWN_START),
            dropped=trace.dropped,
        ),
    )


def _is_of_device(columns: Columns, names: Sequence[str], device: int) -> NDArray[np.bool_]:
    """Return which events are of one GPU and its host. Launches for other GPUs are not: they would count as lost."""
    is_of_device = columns["device"] == device
    is_chosen = is_of_device | (columns["device"] == NULL)
    launches = np.array(["Launch" in name for name in names], np.bool_)[columns["name"]]
    rows = np.flatnonzero(launches & (columns["kind"] == Kind.RUNTIME) & is_chosen)
    launched = columns["correlation"][is_of_device]
    is_chosen[rows] = is_among(columns["correlation"][rows], launched)
    return np.asarray(is_chosen)


def _shown(columns: Columns, names: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names, and their codes; ranges of steps and loaders get the names that `attribute` knows."""
    shown: Codes[str] = Codes()
    as_event = np.array([shown[name] for name in names], np.int64)
    meanings = [xla_names.meaning(name) for name in names]
    ranges = [f"{meaning} ({name})" if meaning else name for name, meaning in zip(names, meanings, strict=True)]
    as_range = np.array([shown[name] for name in ranges], np.int64)
    is_range = columns["kind"] == Kind.USER_ANNOTATION
    codes = np.where(is_range, as_range[columns["name"]], as_event[columns["name"]])
    rows = np.flatnonzero(is_range)
    steps, numbers = steps_among(columns["name"][rows], ranges, columns["start_ns"][rows])
    codes[rows[steps]] = [shown[f"{STEP_NAME}{number}"] for number in numbers]
    return list(shown), codes


def _threads(columns: Columns, process: str) -> tuple[list[tuple[str, str]], NDArray[np.int64]]:
    """Return the threads: those of the host, and the streams of the GPUs; and the thread of each event."""
    on_host = is_kind(columns["kind"], *_HOST_KINDS)
    codes = np.zeros(len(on_host), np.int64)
    tids, codes[on_host] = distinct(columns["tid"][on_host])
    device, stream = columns["device"][~on_host], columns["stream"][~on_host]
    streams, of_stream = distinct(stream)
    places, of_place = distinct(device * len(streams) + of_stream)
    codes[~on_host] = len(tids) + of_place
    threads = [(process, str(tid)) for tid in tids.tolist()]
    for place in places.tolist():
        gpu, number = divmod(place, len(streams))
        threads.append((process, f"GPU {gpu} {streams[number]}"))
    return threads, codes
