"""Read a rocpd database (`rocprofv3 --output-format rocpd`, its default): kernels, copies, calls and ranges.

In: a `TraceSource`. Out: an `EventTable` of one process and GPU; a file with several raises SeveralRanksError. The
names of tables end with an id of the recording. This reader was written from the published schema and from the code
that writes it (rocprofiler-sdk, source/share/rocprofiler-sdk-rocpd/rocpd_tables.sql, source/lib/output/
generateRocpd.cpp): no recorded file was to be had. RPD files of rocmProfileData, which have other tables, are refused.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.errors import InputError
from flatout.read.database import Database, Where
from flatout.read.decoded import Codes, Columns
from flatout.read.lookups import distinct, looked_up, mapped
from flatout.read.processes import RankPart, SeveralRanksError
from flatout.read.rocm_events import (
    NO_CALLS,
    RocmTrace,
    columns_of,
    copy_name,
    joined,
    kernel_devices,
    parts_of,
    rocm_table,
)
from flatout.read.schema import UNREADABLE
from flatout.read.sources import TraceSource
from flatout.records.events import NULL, EventTable, Kind, Quality, TraceFormat

_FROM_SCHEMA = Quality(
    problem="rocpd files are read by their published schema, which was not compared with a recorded file",
    effect="names or links of events may be missing: compare with the JSON of rocprofv3",
    max_confidence="medium",
)
_GPU = "GPU"
_OF_RPD = {"rocpd_op", "rocpd_api", "rocpd_api_ops"}
# What a region is, by the category of its event, or by its own name if the event has none.
_CALLS = ("hip", "__hip", "rccl", "nccl", "HIP", "RCCL")
_LOW_LEVEL_CALLS = ("hsa_", "HSA_")  # which HIP makes: 22 of 24 million regions of a published recording
_MARKERS = ("roctx", "MARKER")


class _Extra(msgspec.Struct):
    """What an event has besides its columns."""

    message: str = ""  # the text of a ROCTX range


_decode_extra = msgspec.json.Decoder(_Extra).decode


def read_rocpd(source: TraceSource) -> EventTable:
    """Read the file. Raises InputError if it has no kernels, SeveralRanksError if it has several processes or GPUs."""
    status = Path(source.path).stat()
    traces, quality = _traces(source.path, source.whole_name, status.st_size, status.st_mtime_ns)
    if not traces:
        raise InputError(f"{source.name} is a rocpd database without kernels", hint="record with --kernel-trace")
    part = source.part
    if part is None:
        parts = _parts(traces)
        if len(parts) > 1:
            raise SeveralRanksError(f"{source.name} has the events of {len(parts)} processes or GPUs", parts)
    pid = int(part.process) if part is not None and part.process is not None else next(iter(traces))
    trace = msgspec.structs.replace(traces[pid], quality=(*traces[pid].quality, *quality))
    return rocm_table(trace, source, TraceFormat.ROCPD)


@lru_cache(maxsize=1)
def _traces(path: str, name: str, size: int, mtime_ns: int) -> tuple[dict[int, RocmTrace], tuple[Quality, ...]]:
    """Return the traces of the processes in a file, which is read once for all of its ranks, and what it lacks."""
    with Database(Path(path), name) as database:
        _refuse_rpd(database, name)
        reader = _Reader(database)
        traces = {pid: reader.trace(pid) for pid in reader.processes()}
        return traces, (*database.quality(), _FROM_SCHEMA)


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
        devices, counts = np.unique(kernel_devices(trace), return_counts=True)
        device = int(devices[counts.argmax()]) if len(devices) else None
        parts += parts_of(trace, str(pid)) or (RankPart(rank=None, process=str(pid), device=device),)
    return tuple(parts)


class _Reader:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.names: Codes[str] = Codes()
        self.strings = database.texts(self._table("string"), "id", "string")
        self.kernel_names = database.texts(self._table("info_kernel_symbol"), "id", "display_name")
        self.tids = self._numbers("info_thread", "tid")
        self.pids = self._numbers("info_process", "pid")
        self.events = database.integers(
            self._table("event"),
            ("id", "stack_id", "category_id"),
            where=self._without_low_level("event", "category_id"),
        )
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

    def _strings_of(self, beginnings: tuple[str, ...]) -> list[int]:
        return [number for number, text in self.strings.items() if text.startswith(beginnings)]

    def _without_low_level(self, table: str, column: str) -> Where | None:
        """Return the condition for rows other than calls of HSA, by the column with their category or name."""
        if column not in self.database.columns_of(self._table(table)):
            return None
        low_level = self._strings_of(_LOW_LEVEL_CALLS)
        return Where(column, lambda numbers: ~np.isin(numbers, low_level))

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
        regions = self._regions(pid)
        columns = joined([self._kernels(pid), self._copies(pid), *regions])
        has_calls = bool(len(regions[0]["kind"]))
        return RocmTrace(
            columns=columns,
            names=list(self.names),
            process=str(self.pids.get(pid, pid)),
            hostname=self.hostname,
            device_names=self.device_names,
            quality=() if has_calls else (NO_CALLS,),
        )

    def _kernels(self, pid: int) -> Columns:
        columns = ("start", "end", "event_id", "pid", "agent_id", "stream_id", "queue_id", "kernel_id")
        rows = self._rows("kernel_dispatch", columns, pid)
        stream = rows["stream_id"]
        return columns_of(
            Kind.KERNEL,
            self._codes(rows["kernel_id"], self.kernel_names, "kernel"),
            rows["start"],
            rows["end"],
            correlation=self._of_event(rows["event_id"], "stack_id"),
            device=mapped(rows["agent_id"], self.device_of),
            stream=np.where(stream != NULL, stream, rows["queue_id"]),
        )

    def _copies(self, pid: int) -> Columns:
        columns = ("start", "end", "event_id", "pid", "dst_agent_id", "src_agent_id", "stream_id", "name_id", "size")
        rows = self._rows("memory_copy", columns, pid)
        target = mapped(rows["dst_agent_id"], self.device_of)
        copies = {number: copy_name(text) for number, text in self.strings.items()}
        return columns_of(
            Kind.MEMCPY,
            self._codes(rows["name_id"], copies, "Memcpy"),
            rows["start"],
            rows["end"],
            correlation=self._of_event(rows["event_id"], "stack_id"),
            device=np.where(target != NULL, target, mapped(rows["src_agent_id"], self.device_of)),
            stream=rows["stream_id"],
            num_bytes=rows["size"],
        )

    def _regions(self, pid: int) -> tuple[Columns, Columns]:
        """Return the calls of HIP and RCCL, and the ranges."""
        columns = ("start", "end", "tid", "event_id", "pid", "name_id")
        rows = self._rows("region", columns, pid, self._without_low_level("region", "name_id"))
        category = self._of_event(rows["event_id"], "category_id")
        is_marker = np.isin(category, self._strings_of(_MARKERS))
        is_call = np.isin(category, self._strings_of(_CALLS))
        is_call |= ~is_marker & np.isin(rows["name_id"], self._strings_of(_CALLS))
        names = self._codes(rows["name_id"], self.strings, "range")
        messages = self._messages(rows["event_id"][is_marker])
        names[is_marker] = np.where(messages != NULL, messages, names[is_marker])
        calls, ranges = (
            columns_of(
                kind,
                names[chosen],
                rows["start"][chosen],
                rows["end"][chosen],
                tid=mapped(rows["tid"][chosen], self.tids, keep=True),
                correlation=self._of_event(rows["event_id"][chosen], "stack_id"),
            )
            for kind, chosen in ((Kind.RUNTIME, is_call), (Kind.USER_ANNOTATION, ~is_call))
        )
        return calls, ranges

    def _messages(self, events: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the texts of ROCTX ranges as names, by their events: such a region is named after the call."""
        if not len(events):
            return events
        markers = self._strings_of(_MARKERS)
        of_markers = Where("category_id", lambda categories: np.isin(categories, markers))
        extras = self.database.coded_texts(self._table("event"), "id", "extdata", of_markers)
        messages = [_message(text) for text in extras.texts]
        names = np.array([*(self.names[text] if text else NULL for text in messages), NULL], np.int64)
        return np.asarray(names[looked_up(extras.keys, extras.codes, events)])

    def _of_event(self, events: NDArray[np.int64], column: str) -> NDArray[np.int64]:
        return looked_up(self.events["id"], self.events[column], events)

    def _codes(self, ids: NDArray[np.int64], texts: dict[int, str], unknown: str) -> NDArray[np.int64]:
        numbers, places = distinct(ids)
        return np.array([self.names[texts.get(each, unknown)] for each in numbers.tolist()], np.int64)[places]

    def _rows(
        self, table: str, columns: tuple[str, ...], pid: int, where: Where | None = None
    ) -> dict[str, NDArray[np.int64]]:
        """Return the rows of a process."""
        rows = self._resolved(table, columns, where)
        is_here = rows["pid"] == pid
        return {column: rows[column][is_here] for column in columns}

    def _resolved(
        self, table: str, columns: tuple[str, ...], where: Where | None = None
    ) -> dict[str, NDArray[np.int64]]:
        """Return columns of a table. In newer files, times and places are in tables that it refers to."""
        own = self.database.columns_of(self._table(table))
        rows = self.database.integers(self._table(table), (*columns, "start_id", "end_id", "track_id"), where)
        for column in columns:
            if column in own:
                continue
            if column in ("start", "end"):
                rows[column] = self._referred("timestamp", "value", rows[f"{column}_id"])
            elif "track_id" in own:
                rows[column] = self._referred("track", column, rows["track_id"])
        return rows

    def _referred(self, table: str, column: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = self.database.integers(self._table(table), ("id", column))
        return looked_up(rows["id"], rows[column], ids)


def _message(extra: str) -> str:
    try:
        return _decode_extra(extra).message
    except UNREADABLE:
        return ""


def _is_named(table: str, name: str) -> bool:
    """Whether a table has the name, alone or followed by the id of a recording: hexadecimal digits and underscores."""
    rest = table.removeprefix(name)
    return table.startswith(name) and not rest.strip("_0123456789abcdefABCDEF-")
