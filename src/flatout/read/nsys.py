"""Read an export of Nsight Systems (`nsys export --type sqlite`): kernels, copies, launches, NVTX ranges.

In: a `TraceSource`. Out: an `EventTable` of one process. A file with several processes raises SeveralRanksError. Tables
and columns differ between versions of Nsight Systems: what a file lacks is unknown. Operators of PyTorch are known
where `torch.autograd.profiler.emit_nvtx` wrote them; steps where a range names them.
Schema: https://docs.nvidia.com/nsight-systems/UserGuide/index.html, "SQLite Schema Reference".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flatout.errors import InputError
from flatout.read import xla_names
from flatout.read.assembled import Source, assemble
from flatout.read.database import Database, Where
from flatout.read.decoded import Codes, Columns
from flatout.read.host_ranges import STEP_NAME, steps_among
from flatout.read.lookups import distinct, looked_up
from flatout.read.metadata import FileMetadata
from flatout.read.processes import RankPart, SeveralRanksError
from flatout.read.sources import TraceSource
from flatout.records.events import NULL, EventTable, Kind, Quality, TraceFormat

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_RANGES = "NVTX_EVENTS"
_COPY_KINDS = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 9: "Memcpy HtoH", 10: "Memcpy PtoP"}
_GPU_TABLES = {
    KERNELS: (Kind.KERNEL, "demangledName", "kernel"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (Kind.MEMCPY, "copyKind", "Memcpy"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (Kind.MEMSET, None, "Memset"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (Kind.KERNEL, None, "CUDA graph"),
}
_GPU_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes")
_HOST_TABLES = {"CUPTI_ACTIVITY_KIND_RUNTIME": Kind.RUNTIME, "CUPTI_ACTIVITY_KIND_OVERHEAD": Kind.OVERHEAD}
_VERSION = re.compile(r"_v\d+$")  # of an API: cudaLaunchKernel_v7000
_TABLE_VERSION = re.compile(r"_V(\d{1,4})")  # which some versions append to a table's name: NVTX_EVENTS_V2
_OPERATOR = re.compile(r"^(?P<name>[\w:.]+), (?:op_id|seq) = ")
_PUSH_POP, _START_END = 59, 60  # NVTX ranges of a thread, and of a process
_PROCESS_MASK = 0xFFFFFF
MIN_SHARE = 0.1  # of the kernels, of a process that is a rank
_MOST_NOTES = 3
_WARNING = 2  # of DIAGNOSTIC_EVENT


def read_nsys(source: TraceSource) -> EventTable:
    """Read the file. Raises InputError if it has no events of CUDA, SeveralRanksError if it has several processes."""
    with Database(Path(source.path), source.name) as database:
        reader = _Reader(database)
        part = source.part
        if part is None:
            parts = reader.parts()
            if len(parts) > 1:
                raise SeveralRanksError(f"{source.name} has the events of {len(parts)} processes", parts)
            process = int(parts[0].process or 0) if parts else None
        else:
            process = int(part.process or 0)
        columns = reader.columns(process)
        if not len(columns["start_ns"]):
            raise InputError(
                f"{source.name} is an export of Nsight Systems without events of CUDA or NVTX",
                hint="record with: nsys profile --trace=cuda,nvtx,osrt, then nsys export --type sqlite",
            )
        rank = source.rank_hint if part is None else part.rank
        return assemble(columns, reader.source(source.name, rank))


class _Reader:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.names: Codes[str] = Codes()
        self.threads: Codes[tuple[str, str]] = Codes()
        self.strings = database.texts("StringIds", "id", "value")
        self.notes: list[Quality] = []
        self.dropped: dict[str, int] = {}
        self.offset_ns = self._offset_ns()

    def parts(self) -> tuple[RankPart, ...]:
        """Return the processes that have a share of the kernels, with the GPU that each uses most."""
        kernels = self.database.integers(self._newest(KERNELS), ("globalPid", "deviceId"))
        process = _process_of(kernels["globalPid"])
        numbers, counts = np.unique(process[process != NULL], return_counts=True)
        ranks = numbers[counts >= MIN_SHARE * counts.sum()].tolist() if len(numbers) else []
        parts = []
        for number in ranks:
            devices = kernels["deviceId"][process == number]
            devices = devices[(devices >= 0) & (devices < 1 << 20)]
            device = int(np.bincount(devices).argmax()) if len(devices) else None
            parts.append(RankPart(rank=None, process=str(number), device=device))
        parts.sort(key=lambda part: (part.device or 0, int(part.process or 0)))
        return tuple(parts)

    def columns(self, process: int | None) -> Columns:
        """Return the columns of a process, or of all events if none is given."""
        self.process = process
        self.pid = str(process) if process is not None else "0"
        pieces = [self._gpu_rows(table, *how) for table, how in _GPU_TABLES.items()]
        pieces += [self._host_rows(table, kind) for table, kind in _HOST_TABLES.items()]
        ranges = self._ranges()
        pieces.append(ranges)
        joined = {
            column: np.concatenate([piece.get(column, np.full(len(piece["start_ns"]), NULL)) for piece in pieces])
            for column in dict.fromkeys(column for piece in pieces for column in piece)
        }
        is_here = np.ones(len(joined["start_ns"]), np.bool_) if process is None else joined["process"] == process
        is_here &= joined["duration_ns"] >= 0
        del joined["process"]
        chosen = {column: values[is_here] for column, values in joined.items()}
        chosen["thread"] = self._threads(chosen.pop("global_thread"))
        return chosen

    def source(self, name: str, rank: int | None) -> Source:
        devices = self.database.texts("TARGET_INFO_GPU", "id", "name")
        hosts = dict(self.database.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")))
        hostname = hosts.get("Hostname")
        return Source(
            path=name,
            format=TraceFormat.NSYS,
            metadata=FileMetadata(rank=rank, hostname=str(hostname) if hostname else None, device_names=devices),
            names=list(self.names),
            threads=list(self.threads),
            quality=(*self.database.quality(), *self.notes, *self._diagnostics(), *self._lacks()),
            dropped=self.dropped,
        )

    def _offset_ns(self) -> int:
        """Return what turns the times of the file into unix times; 0, with a note, if that is not recorded."""
        session = self.database.integers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs", "systemClockNs"))
        start = self.database.integers("ANALYSIS_DETAILS", ("startTime",))["startTime"]
        if not len(session["utcEpochNs"]) or int(session["utcEpochNs"][0]) <= 0:
            self.notes.append(
                Quality(
                    problem="the file does not say when its times begin",
                    effect="the clocks of several hosts can only be aligned where they share collectives",
                )
            )
            return 0
        epoch_ns = int(session["utcEpochNs"][0])
        clock_ns = int(start[0]) if len(start) else int(session["systemClockNs"][0])
        return epoch_ns - max(clock_ns, 0)

    def _times(self, rows: dict[str, NDArray[np.int64]]) -> Columns:
        return {"start_ns": rows["start"] + self.offset_ns, "duration_ns": rows["end"] - rows["start"]}

    def _newest(self, table: str) -> str:
        """Return the table of that name, with the highest version if the names have versions."""
        versions = {
            int(match[1]): name
            for name in self.database.tables
            if name.startswith(table) and (match := _TABLE_VERSION.fullmatch(name, len(table)))
        }
        return versions[max(versions)] if versions else table

    def _rows_of_process(self, table: str, columns: Sequence[str], serialized: str) -> dict[str, NDArray[np.int64]]:
        """Return the rows of the chosen process, whose id is in a column, or of all."""
        name = self._newest(table)
        return self.database.integers(name, columns, self._of_process(name, serialized))

    def _of_process(self, table: str, serialized: str) -> Where | None:
        process = self.process
        if process is None or serialized not in self.database.columns_of(table):
            return None
        return Where(serialized, lambda ids: _process_of(ids) == process)

    def _gpu_rows(self, table: str, kind: Kind, name_column: str | None, plain_name: str) -> Columns:
        rows = self._rows_of_process(table, (*_GPU_COLUMNS, name_column or "start"), "globalPid")
        count = len(rows["start"])
        codes = np.full(count, self.names[plain_name], np.int64)
        if name_column is not None:
            codes = self._codes(rows[name_column], _COPY_KINDS if kind == Kind.MEMCPY else self.strings, plain_name)
        if table.endswith("GRAPH_TRACE") and count:
            self.notes.append(
                Quality(
                    problem=f"{count:,} CUDA graphs were recorded as a whole, without their kernels",
                    effect="they count as compute, whatever is in them: record with --cuda-graph-trace=node",
                    max_confidence="medium",
                )
            )
        return {
            **self._times(rows),
            "kind": np.full(count, kind, np.int64),
            "name": codes,
            "device": rows["deviceId"],
            "stream": rows["streamId"],
            "correlation": rows["correlationId"],
            "num_bytes": rows["bytes"],
            "process": _process_of(rows["globalPid"]),
            "global_thread": NULL - 2 - (rows["deviceId"] << 32) - rows["streamId"],
        }

    def _host_rows(self, table: str, kind: Kind) -> Columns:
        rows = self._rows_of_process(table, ("start", "end", "correlationId", "globalTid", "nameId"), "globalTid")
        return {
            **self._times(rows),
            "kind": np.full(len(rows["start"]), kind, np.int64),
            "name": self._codes(rows["nameId"], self.strings, "call"),
            "correlation": rows["correlationId"] if kind == Kind.RUNTIME else np.full(len(rows["start"]), NULL),
            "process": _process_of(rows["globalTid"]),
            "global_thread": rows["globalTid"],
        }

    def _ranges(self) -> Columns:
        """Return the NVTX ranges: operators of PyTorch, steps, and annotations."""
        columns = ("start", "end", "eventType", "globalTid", "textId", "rowid")
        rows = self._rows_of_process(_RANGES, columns, "globalTid")
        is_range = np.isin(rows["eventType"], (_PUSH_POP, _START_END)) & (rows["end"] != NULL)
        self.dropped["NVTX marks"] = int((~is_range).sum())
        rows = {column: values[is_range] for column, values in rows.items()}
        texts: Codes[str] = Codes()
        codes = self._texts_of_ranges(rows, texts)
        kinds, names = _classified(list(texts))
        shown = np.array([self.names[name] for name in names], np.int64)[codes]
        steps, numbers = steps_among(codes, names, rows["start"])
        shown[steps] = [self.names[f"{STEP_NAME}{number}"] for number in numbers]
        return {
            **self._times(rows),
            "kind": np.array(kinds, np.int64)[codes],
            "name": shown,
            "process": _process_of(rows["globalTid"]),
            "global_thread": rows["globalTid"],
        }

    def _texts_of_ranges(self, rows: dict[str, NDArray[np.int64]], texts: Codes[str]) -> NDArray[np.int64]:
        """Return the text of each range as an index into `texts`: one that is registered, or else its own."""
        table = self._newest(_RANGES)
        numbers, places = distinct(rows["textId"])
        registered = [self.strings.get(each, "") for each in numbers.tolist()]
        codes = np.array([texts[text or "range"] for text in registered], np.int64)[places]
        lacks = np.array([not text for text in registered], np.bool_)[places]
        if lacks.any():
            own = self.database.coded_texts(table, "rowid", "text", self._of_process(table, "globalTid"))
            code_of_own = np.array([*(texts[text] for text in own.texts), texts["range"]], np.int64)
            codes[lacks] = code_of_own[looked_up(own.keys, own.codes, rows["rowid"][lacks])]
        return codes

    def _codes(self, ids: NDArray[np.int64], texts: dict[int, str], plain_name: str) -> NDArray[np.int64]:
        numbers, places = distinct(ids)
        codes = [self.names[_VERSION.sub("", texts.get(each, plain_name))] for each in numbers.tolist()]
        return np.array(codes, np.int64)[places]

    def _threads(self, global_thread: NDArray[np.int64]) -> NDArray[np.int64]:
        numbers, places = distinct(global_thread)
        codes = [self.threads[self.pid, _thread_name(each)] for each in numbers.tolist()]
        return np.array(codes, np.int64)[places]

    def _diagnostics(self) -> list[Quality]:
        """Return what the profiler itself warns of."""
        warnings = [
            str(text)
            for severity, text in self.database.rows("DIAGNOSTIC_EVENT", ("severity", "text"))
            if isinstance(severity, int) and severity >= _WARNING and text
        ]
        return [
            Quality(problem=f"Nsight Systems warns: {text[:200]}", effect="events may be missing")
            for text in list(dict.fromkeys(warnings))[:_MOST_NOTES]
        ]

    def _lacks(self) -> list[Quality]:
        return [
            Quality(
                problem="exports of Nsight Systems have neither the sizes nor the groups of collectives",
                effect="bandwidth is unknown, and all ranks are taken for one group",
            )
        ]


def _classified(names: list[str]) -> tuple[list[int], list[str]]:
    """Return the kind of ranges of each name, and the name as `attribute` knows it."""
    kinds, shown = [], []
    for name in names:
        operator = _OPERATOR.match(name)
        meaning = xla_names.meaning(name)
        kinds.append(int(Kind.CPU_OP if operator is not None else Kind.USER_ANNOTATION))
        if operator is not None:
            name = operator["name"]
        elif meaning is not None:
            name = f"{meaning} ({name})"
        shown.append(name)
    return kinds, shown


def _process_of(serialized: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the process in a serialized id of a process or a thread: 24 bits for each of both."""
    return np.where(serialized < 0, NULL, serialized >> 24 & _PROCESS_MASK)


def _thread_name(serialized: int) -> str:
    if serialized < NULL:
        device, stream = divmod(NULL - 2 - serialized, 1 << 32)
        return f"device {device} stream {stream}"
    return str(serialized & 0xFFFFFF)
