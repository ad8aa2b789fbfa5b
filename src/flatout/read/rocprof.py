"""Read the JSON of rocprofv3 (`--output-format json`): kernels, copies, calls of HIP, ROCTX ranges of one process.

In: a `TraceSource`. Out: an `EventTable` of its only GPU, or of the one that `source.part` names: a file with several
raises SeveralRanksError. What was not traced is unknown: launches need `--hip-trace`, ranges `--marker-trace`.
Format: rocprofiler-sdk, `rocprofiler-sdk-tool` in source/lib/output/generateJSON.cpp.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import InputError
from flatout.read.processes import SeveralRanksError
from flatout.read.rocm_events import RocmEvent, RocmTrace, parts_of, rocm_table
from flatout.read.schema import UNREADABLE
from flatout.read.sources import TraceSource
from flatout.read.stream import ByteStream
from flatout.records.events import NULL, EventTable, Kind, Quality, TraceFormat

MAX_BYTES = 8 << 30
_GPU = 2  # the type of an agent
_NOT_A_FILE = "pass the JSON that rocprofv3 wrote"


class _Id(msgspec.Struct, gc=False, frozen=True):
    handle: int = 0
    internal: int = NULL


class _Dispatch(msgspec.Struct, gc=False, frozen=True):
    agent_id: _Id = _Id()
    queue_id: _Id = _Id()
    kernel_id: int = 0


class _Record(msgspec.Struct, gc=False):
    """A record of any buffer; each kind has some of these."""

    start_timestamp: int = -1
    end_timestamp: int = -1
    thread_id: int = 0
    kind: int = -1
    operation: int = -1
    correlation_id: _Id = _Id()
    dispatch_info: _Dispatch = _Dispatch()
    stream_id: _Id = _Id()
    dst_agent_id: _Id = _Id()
    src_agent_id: _Id = _Id()
    bytes: int = NULL


class _Buffers(msgspec.Struct, frozen=True):
    kernel_dispatch: list[_Record] = []
    memory_copy: list[_Record] = []
    hip_api: list[_Record] = []
    rccl_api: list[_Record] = []
    marker_api: list[_Record] = []


class _Kernel(msgspec.Struct, gc=False):
    kernel_id: int = 0
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _Agent(msgspec.Struct):
    id: _Id = _Id()
    type: int = 0
    product_name: str = ""
    logical_node_type_id: int = 0


class _Kind(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Strings(msgspec.Struct, frozen=True):
    buffer_records: list[_Kind] = []
    marker_api: Any = None  # by correlation id; differs between versions


class _Node(msgspec.Struct, frozen=True):
    hostname: str = ""


class _Metadata(msgspec.Struct, frozen=True):
    pid: int = 0
    node: _Node = _Node()


class _Process(msgspec.Struct):
    metadata: _Metadata = _Metadata()
    agents: list[_Agent] = []
    kernel_symbols: list[_Kernel] = []
    strings: _Strings = _Strings()
    buffer_records: _Buffers = _Buffers()


class _File(msgspec.Struct):
    processes: list[_Process] = msgspec.field(name="rocprofiler-sdk-tool", default=[])


def read_rocprof(source: TraceSource) -> EventTable:
    """Read the file. Raises InputError if it is damaged or has no events, SeveralRanksError if it has several GPUs."""
    with ByteStream(Path(source.path), source.name) as stream:
        data = stream.read_all(MAX_BYTES, "record a shorter time")
        problem = stream.problem
    try:
        processes = msgspec.json.decode(data, type=_File).processes
    except UNREADABLE as error:
        why = problem or str(error)
        raise InputError(
            f"{source.name} is damaged JSON of rocprofv3: {why}", hint="copy or record it again"
        ) from error
    if len(processes) != 1:
        raise InputError(
            f"{source.name} must have one process of rocprofv3, but has {len(processes)}", hint=_NOT_A_FILE
        )
    trace = _trace(processes[0])
    if source.part is None:
        parts = parts_of(trace)
        if parts:
            raise SeveralRanksError(f"{source.name} has the events of {len(parts)} GPUs", parts)
    return rocm_table(trace, source, TraceFormat.ROCPROF)


def _trace(process: _Process) -> RocmTrace:
    gpus = {agent.id.handle: agent for agent in process.agents if agent.type == _GPU}
    number_of = {handle: agent.logical_node_type_id for handle, agent in gpus.items()}
    kernel_names = {
        kernel.kernel_id: kernel.formatted_kernel_name or kernel.kernel_name for kernel in process.kernel_symbols
    }
    operations = [kind.operations for kind in process.strings.buffer_records]
    markers = _markers(process.strings.marker_api)
    buffers = process.buffer_records
    events = [
        _event(record, Kind.KERNEL, kernel_names.get(record.dispatch_info.kernel_id, "kernel"))._replace(
            device=number_of.get(record.dispatch_info.agent_id.handle, NULL),
            stream=record.stream_id.handle or record.dispatch_info.queue_id.handle,
        )
        for record in buffers.kernel_dispatch
    ]
    for record in buffers.memory_copy:
        agent = record.dst_agent_id.handle if record.dst_agent_id.handle in gpus else record.src_agent_id.handle
        copy = _event(record, Kind.MEMCPY, _copy_name(_operation(operations, record)))
        events.append(
            copy._replace(device=number_of.get(agent, NULL), stream=record.stream_id.handle, num_bytes=record.bytes)
        )
    for records in (buffers.hip_api, buffers.rccl_api):
        events += [_event(record, Kind.RUNTIME, _operation(operations, record)) for record in records]
    for record in buffers.marker_api:
        events.append(_event(record, Kind.USER_ANNOTATION, markers.get(record.correlation_id.internal, "range")))
    return RocmTrace(
        events=events,
        process=str(process.metadata.pid),
        hostname=process.metadata.node.hostname or None,
        device_names={agent.logical_node_type_id: agent.product_name for agent in gpus.values()},
        quality=_lacks(buffers),
    )


def _markers(texts: Any) -> dict[int, str]:
    """Return the texts of ROCTX ranges by their correlation ids."""
    entries = texts if isinstance(texts, list) else []
    pairs = [(each.get("key"), each.get("value")) for each in entries if isinstance(each, dict)]
    return {key: text for key, text in pairs if isinstance(key, int) and isinstance(text, str)}


def _event(record: _Record, kind: Kind, name: str) -> RocmEvent:
    return RocmEvent(
        kind=kind,
        name=name,
        start_ns=record.start_timestamp,
        duration_ns=record.end_timestamp - record.start_timestamp,
        thread=record.thread_id,
        correlation=record.correlation_id.internal,
    )


def _operation(operations: list[list[str]], record: _Record) -> str:
    """Return the name of a call or a copy, which the file has once for each kind of record."""
    of_kind = operations[record.kind] if 0 <= record.kind < len(operations) else []
    return of_kind[record.operation] if 0 <= record.operation < len(of_kind) else "call"


def _copy_name(operation: str) -> str:
    directions = {
        "HOST_TO_DEVICE": "HtoD",
        "DEVICE_TO_HOST": "DtoH",
        "DEVICE_TO_DEVICE": "DtoD",
        "HOST_TO_HOST": "HtoH",
    }
    direction = next((short for long, short in directions.items() if operation.endswith(long)), "")
    return f"Memcpy {direction}".strip()


def _lacks(buffers: Any) -> tuple[Quality, ...]:
    notes = []
    if not buffers.hip_api:
        notes.append(
            Quality(
                problem="calls of HIP were not traced",
                effect="idle time cannot be split into host work and launch latency: record with --hip-trace",
            )
        )
    if not buffers.memory_copy:
        notes.append(
            Quality(problem="the file has no copies", effect="if any were made, they show as idle: --memory-copy-trace")
        )
    return tuple(notes)
