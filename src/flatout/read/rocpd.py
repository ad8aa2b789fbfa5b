"""Read a rocpd database (`rocprofv3 --output-format rocpd`, its default): kernels, copies, calls and ranges.

In: a `TraceSource`. Out: an `EventTable` of one process and GPU; a file with several raises SeveralRanksError. The
names of tables end with an id of the recording. This reader was written from the published schema
(rocprofiler-sdk, source/share/rocprofiler-sdk-rocpd/rocpd_tables.sql): no recorded file was to be had. RPD files of
rocmProfileData, which have other tables, are refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flatout.errors import InputError
from flatout.read.database import Database
from flatout.read.processes import RankPart, SeveralRanksError
from flatout.read.rocm_events import RocmEvent, RocmTrace, parts_of, rocm_table
from flatout.read.sources import TraceSource
from flatout.records.events import NULL, EventTable, Kind, Quality, TraceFormat

_FROM_SCHEMA = Quality(
    problem="rocpd files are read by their published schema, which was not compared with a recorded file",
    effect="names or links of events may be missing: compare with the JSON of rocprofv3",
    max_confidence="medium",
)
_GPU = "GPU"
_OF_RPD = {"rocpd_op", "rocpd_api", "rocpd_api_ops"}
_CALLS = ("hip", "hsa", "rccl", "nccl")


def read_rocpd(source: TraceSource) -> EventTable:
    """Read the file. Raises InputError if it has no kernels, SeveralRanksError if it has several processes or GPUs."""
    with Database(Path(source.path), source.name) as database:
        _refuse_rpd(database, source.name)
        reader = _Reader(database)
        traces = {pid: reader.trace(pid) for pid in reader.processes()}
        quality = (*database.quality(), _FROM_SCHEMA)
    if not traces:
        raise InputError(f"{source.name} is a rocpd database without kernels", hint="record with --kernel-trace")
    part = source.part
    if part is None:
        parts = _parts(traces)
        if len(parts) > 1:
            raise SeveralRanksError(f"{source.name} has the events of {len(parts)} processes or GPUs", parts)
    pid = int(part.process) if part is not None and part.process is not None else next(iter(traces))
    trace = traces[pid]
    whole = RocmTrace(
        events=trace.events,
        process=trace.process,
        hostname=trace.hostname,
        device_names=trace.device_names,
        quality=quality,
    )
    return rocm_table(whole, source, TraceFormat.ROCPD)


def _refuse_rpd(database: Database, name: str) -> None:
    """Raise InputError for a file of rocmProfileData, an older tool whose tables begin with the same word."""
    if database.tables.issuperset(_OF_RPD):
        raise InputError(
            f"{name} is an RPD file of rocmProfileData, which is not read",
            hint="record with rocprofv3 --kernel-trace --hip-trace --output-format json, or with PyTorch's profiler",
        )


def _parts(traces: dict[int, RocmTrace]) -> tuple[RankPart, ...]:
    parts: list[RankPart] = []
    for pid, trace in traces.items():
        devices = [event.device for event in trace.events if event.kind == Kind.KERNEL and event.device >= 0]
        device = max(set(devices), key=devices.count) if devices else None
        parts += parts_of(trace, str(pid)) or (RankPart(rank=None, process=str(pid), device=device),)
    return tuple(parts)


class _Reader:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.strings = database.texts(self._table("string"), "id", "string")
        self.kernel_names = database.texts(self._table("info_kernel_symbol"), "id", "display_name")
        self.tids = self._numbers("info_thread", "tid")
        self.pids = self._numbers("info_process", "pid")
        self.correlations = self._numbers("event", "stack_id")
        self.device_names: dict[int, str] = {}
        self.device_of: dict[int, int] = {}
        self._add_agents()
        hosts = database.rows(self._table("info_node"), ("hostname",), limit=1)
        self.hostname = str(hosts[0][0]) if hosts and hosts[0][0] else None

    def _table(self, name: str) -> str:
        """Return the table of that name, with the id that ends it; "" if there is none."""
        return min((table for table in self.database.tables if _is_named(table, f"rocpd_{name}")), default="")

    def _numbers(self, table: str, column: str) -> dict[int, int]:
        rows = self.database.integers(self._table(table), ("id", column))
        return dict(zip(rows["id"].tolist(), rows[column].tolist(), strict=True))

    def _add_agents(self) -> None:
        columns = ("id", "type", "type_index", "product_name")
        for agent, kind, index, name in self.database.rows(self._table("info_agent"), columns):
            if kind == _GPU and isinstance(index, int) and isinstance(agent, int):
                self.device_of[agent] = index
                self.device_names[index] = str(name)

    def processes(self) -> list[int]:
        """Return the processes with kernels, by their ids in the file."""
        return [int(pid) for pid in np.unique(self._resolved("kernel_dispatch", ("pid",))["pid"])]

    def trace(self, pid: int) -> RocmTrace:
        events = [*self._kernels(pid), *self._copies(pid), *self._regions(pid)]
        process = str(self.pids.get(pid, pid))
        return RocmTrace(events=events, process=process, hostname=self.hostname, device_names=self.device_names)

    def _kernels(self, pid: int) -> list[RocmEvent]:
        columns = ("start", "end", "tid", "event_id", "pid", "agent_id", "stream_id", "queue_id", "kernel_id")
        return [
            RocmEvent(
                kind=Kind.KERNEL,
                name=self.kernel_names.get(kernel, "kernel"),
                start_ns=start,
                duration_ns=end - start,
                thread=self.tids.get(tid, tid),
                correlation=self.correlations.get(event, NULL),
                device=self.device_of.get(agent, NULL),
                stream=stream if stream != NULL else queue,
            )
            for start, end, tid, event, agent, stream, queue, kernel in self._rows("kernel_dispatch", columns, pid)
        ]

    def _copies(self, pid: int) -> list[RocmEvent]:
        columns = (
            "start",
            "end",
            "tid",
            "event_id",
            "pid",
            "dst_agent_id",
            "src_agent_id",
            "stream_id",
            "name_id",
            "size",
        )
        return [
            RocmEvent(
                kind=Kind.MEMCPY,
                name=_copy_name(self.strings.get(name, "")),
                start_ns=start,
                duration_ns=end - start,
                thread=self.tids.get(tid, tid),
                correlation=self.correlations.get(event, NULL),
                device=self.device_of.get(target, self.device_of.get(origin, NULL)),
                stream=stream,
                num_bytes=size,
            )
            for start, end, tid, event, target, origin, stream, name, size in self._rows("memory_copy", columns, pid)
        ]

    def _regions(self, pid: int) -> list[RocmEvent]:
        events = []
        for start, end, tid, event, name_id in self._rows(
            "region", ("start", "end", "tid", "event_id", "pid", "name_id"), pid
        ):
            name = self.strings.get(name_id, "range")
            kind = Kind.RUNTIME if name.startswith(_CALLS) else Kind.USER_ANNOTATION
            correlation = self.correlations.get(event, NULL)
            thread = self.tids.get(tid, tid)
            events.append(RocmEvent(kind, name, start, end - start, thread, correlation))
        return events

    def _rows(self, table: str, columns: tuple[str, ...], pid: int) -> list[tuple[int, ...]]:
        """Return the rows of a process, without the column of the process."""
        rows = self._resolved(table, columns)
        is_here = rows["pid"] == pid
        return list(zip(*(rows[column][is_here].tolist() for column in columns if column != "pid"), strict=True))

    def _resolved(self, table: str, columns: tuple[str, ...]) -> dict[str, NDArray[np.int64]]:
        """Return columns of a table. From schema 3 on, times and places are in tables that it refers to."""
        own = self.database.columns_of(self._table(table))
        rows = self.database.integers(self._table(table), (*columns, "start_id", "end_id", "track_id"))
        for column in columns:
            if column in own:
                continue
            if column in ("start", "end"):
                rows[column] = _looked_up(self._numbers("timestamp", "value"), rows[f"{column}_id"])
            elif "track_id" in own:
                rows[column] = _looked_up(self._numbers("track", column), rows["track_id"])
        return rows


def _looked_up(values: dict[int, int], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array([values.get(key, NULL) for key in keys.tolist()], np.int64)


def _is_named(table: str, name: str) -> bool:
    """Whether a table has the name, alone or followed by the id of a recording: hexadecimal digits and underscores."""
    rest = table.removeprefix(name)
    return table.startswith(name) and not rest.strip("_0123456789abcdefABCDEF-")


def _copy_name(name: str) -> str:
    directions = {
        "HOST_TO_DEVICE": "HtoD",
        "DEVICE_TO_HOST": "DtoH",
        "DEVICE_TO_DEVICE": "DtoD",
        "HOST_TO_HOST": "HtoH",
    }
    direction = next((short for long, short in directions.items() if name.upper().endswith(long)), "")
    return f"Memcpy {direction}".strip()
