"""Read the JSON of rocprofv3 (`--output-format json`): kernels, copies, calls of HIP, ROCTX ranges of one process.

In: a `TraceSource`. Out: an `EventTable` of its only GPU, or of the one that `source.part` names: a file with several
raises SeveralRanksError. What was not traced is unknown: launches need `--hip-trace`, ranges `--marker-trace`.
Format: rocprofiler-sdk, `rocprofiler-sdk-tool` in source/lib/output/generateJSON.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import GenericAlias
from typing import Any, TypeVar

import msgspec

from flatout.errors import InputError
from flatout.read.decoded import Codes, Columns
from flatout.read.event_text import BLOCK_BYTES
from flatout.read.processes import SeveralRanksError
from flatout.read.rocm_events import NO_CALLS, RocmTrace, columns_of, copy_name, joined, parts_of, rocm_table
from flatout.read.schema import UNREADABLE
from flatout.read.sources import TraceSource
from flatout.read.stream import ByteStream
from flatout.records.events import NULL, EventTable, Kind, Quality, TraceFormat

MAX_BYTES = 8 << 30
_GPU = 2  # the type of an agent
_NOT_A_FILE = "pass the JSON that rocprofv3 wrote"


_EMPTY = msgspec.Raw(b"[]")
# Between two records of a list: the first key of each is "size".
_BOUNDARY = re.compile(rb"\}\s*,\s*(?=\{\s*\"size\"\s*:)")


class _Handle(msgspec.Struct, gc=False, frozen=True):
    handle: int = 0


class _Link(msgspec.Struct, gc=False, frozen=True):
    internal: int = NULL


class _Timed(msgspec.Struct, gc=False):
    start_timestamp: int = -1
    end_timestamp: int = -1
    correlation_id: _Link = _Link()


_Record = TypeVar("_Record", bound=_Timed)


class _Call(_Timed, gc=False):
    """A call of HIP or RCCL, or a ROCTX range."""

    thread_id: int = 0
    kind: int = -1
    operation: int = -1


class _Copy(_Timed, gc=False):
    kind: int = -1
    operation: int = -1
    stream_id: _Handle = _Handle()
    dst_agent_id: _Handle = _Handle()
    src_agent_id: _Handle = _Handle()
    bytes: int = NULL


class _Dispatch(msgspec.Struct, gc=False, frozen=True):
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    kernel_id: int = 0


class _Launched(_Timed, gc=False):
    """A kernel."""

    dispatch_info: _Dispatch = _Dispatch()
    stream_id: _Handle = _Handle()


class _Buffers(msgspec.Struct, frozen=True):
    """The lists of records, as they are in the file: they are decoded in blocks that stay in the processor's cache."""

    kernel_dispatch: msgspec.Raw = _EMPTY
    memory_copy: msgspec.Raw = _EMPTY
    hip_api: msgspec.Raw = _EMPTY
    rccl_api: msgspec.Raw = _EMPTY
    marker_api: msgspec.Raw = _EMPTY


class _Kernel(msgspec.Struct, gc=False):
    kernel_id: int = 0
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _Agent(msgspec.Struct):
    id: _Handle = _Handle()
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
    status = Path(source.path).stat()
    trace = _trace_of(source.path, source.whole_name, status.st_size, status.st_mtime_ns)
    if source.part is None:
        parts = parts_of(trace)
        if parts:
            raise SeveralRanksError(f"{source.name} has the events of {len(parts)} GPUs", parts)
    return rocm_table(trace, source, TraceFormat.ROCPROF)


@lru_cache(maxsize=1)
def _trace_of(path: str, name: str, size: int, mtime_ns: int) -> RocmTrace:
    """Return the events of a file, which is parsed once for all of its GPUs."""
    with ByteStream(Path(path), name) as stream:
        data = stream.read_all(MAX_BYTES, "record a shorter time")
        problem = stream.problem
    try:
        processes = msgspec.json.decode(data, type=_File).processes
        traces = [_trace(process) for process in processes]
    except UNREADABLE as error:
        why = problem or str(error)
        raise InputError(f"{name} is damaged JSON of rocprofv3: {why}", hint="copy or record it again") from error
    if len(traces) != 1:
        raise InputError(f"{name} must have one process of rocprofv3, but has {len(traces)}", hint=_NOT_A_FILE)
    return traces[0]


def _trace(process: _Process) -> RocmTrace:
    gpus = {agent.id.handle: agent for agent in process.agents if agent.type == _GPU}
    names: Codes[str] = Codes()
    buffers, kinds = process.buffer_records, process.strings.buffer_records
    calls, copies = _Operations(kinds, names), _Operations(kinds, names, copy_name)
    kernels = _KernelNames(process.kernel_symbols, names)
    markers = _markers(process.strings.marker_api)
    pieces = {
        "kernels": [_kernels(block, gpus, kernels) for block in _blocks(buffers.kernel_dispatch, _Launched)],
        "copies": [_copies(block, gpus, copies) for block in _blocks(buffers.memory_copy, _Copy)],
        "HIP": [_calls(block, calls) for block in _blocks(buffers.hip_api, _Call)],
        "RCCL": [_calls(block, calls) for block in _blocks(buffers.rccl_api, _Call)],
        "ranges": [_ranges(block, markers, names) for block in _blocks(buffers.marker_api, _Call)],
    }
    return RocmTrace(
        columns=joined([*chain.from_iterable(pieces.values()), _calls([], calls)]),
        names=list(names),
        process=str(process.metadata.pid),
        hostname=process.metadata.node.hostname or None,
        device_names={agent.logical_node_type_id: agent.product_name for agent in gpus.values()},
        quality=_lacks(has_calls=bool(pieces["HIP"]), has_copies=bool(pieces["copies"])),
    )


def _blocks(records: msgspec.Raw, kind: type[_Record]) -> Iterator[list[_Record]]:
    """Yield the records of a list, about `BLOCK_BYTES` at a time."""
    decode = msgspec.json.Decoder(GenericAlias(list, (kind,))).decode
    text = memoryview(records)
    begin, end = 1, len(text) - 1  # without the brackets
    while begin < end:
        boundary = _BOUNDARY.search(text, begin + BLOCK_BYTES, end)
        block = text[begin : end if boundary is None else boundary.start() + 1]
        decoded = decode(b"".join((b"[", block, b"]")))
        if decoded:
            yield decoded
        begin = end if boundary is None else boundary.end()


class _Operations(dict[tuple[int, int], int]):
    """The code of the name of a call or a copy, by its kind and operation, which the file names once."""

    def __init__(self, kinds: list[_Kind], names: Codes[str], shown: Callable[[str], str] = str) -> None:
        super().__init__()
        self._operations = [kind.operations for kind in kinds]
        self._names = names
        self._shown = shown

    def __missing__(self, key: tuple[int, int]) -> int:
        kind, operation = key
        of_kind = self._operations[kind] if 0 <= kind < len(self._operations) else []
        name = of_kind[operation] if 0 <= operation < len(of_kind) else "call"
        code = self[key] = self._names[self._shown(name)]
        return code


class _KernelNames(dict[int, int]):
    """The code of the name of a kernel, by its number."""

    def __init__(self, kernels: list[_Kernel], names: Codes[str]) -> None:
        super().__init__()
        self._kernels = {kernel.kernel_id: kernel.formatted_kernel_name or kernel.kernel_name for kernel in kernels}
        self._names = names

    def __missing__(self, number: int) -> int:
        code = self[number] = self._names[self._kernels.get(number, "kernel")]
        return code


def _kernels(records: list[_Launched], gpus: dict[int, _Agent], names: _KernelNames) -> Columns:
    number_of = {handle: agent.logical_node_type_id for handle, agent in gpus.items()}
    dispatches = [record.dispatch_info for record in records]
    return columns_of(
        Kind.KERNEL,
        [names[dispatch.kernel_id] for dispatch in dispatches],
        *_times(records),
        correlation=[record.correlation_id.internal for record in records],
        device=[number_of.get(dispatch.agent_id.handle, NULL) for dispatch in dispatches],
        stream=[record.stream_id.handle or record.dispatch_info.queue_id.handle for record in records],
    )


def _copies(records: list[_Copy], gpus: dict[int, _Agent], operations: _Operations) -> Columns:
    agents = [
        record.dst_agent_id.handle if record.dst_agent_id.handle in gpus else record.src_agent_id.handle
        for record in records
    ]
    return columns_of(
        Kind.MEMCPY,
        [operations[record.kind, record.operation] for record in records],
        *_times(records),
        correlation=[record.correlation_id.internal for record in records],
        device=[gpus[agent].logical_node_type_id if agent in gpus else NULL for agent in agents],
        stream=[record.stream_id.handle for record in records],
        num_bytes=[record.bytes for record in records],
    )


def _calls(records: list[_Call], operations: _Operations) -> Columns:
    return columns_of(
        Kind.RUNTIME,
        [operations[record.kind, record.operation] for record in records],
        *_times(records),
        tid=[record.thread_id for record in records],
        correlation=[record.correlation_id.internal for record in records],
    )


def _ranges(records: list[_Call], texts: dict[int, str], names: Codes[str]) -> Columns:
    correlations = [record.correlation_id.internal for record in records]
    return columns_of(
        Kind.USER_ANNOTATION,
        [names[texts.get(correlation, "range")] for correlation in correlations],
        *_times(records),
        tid=[record.thread_id for record in records],
        correlation=correlations,
    )


def _times(records: Sequence[_Timed]) -> tuple[list[int], list[int]]:
    return [record.start_timestamp for record in records], [record.end_timestamp for record in records]


def _markers(texts: Any) -> dict[int, str]:
    """Return the texts of ROCTX ranges by their correlation ids."""
    entries = texts if isinstance(texts, list) else []
    pairs = [(each.get("key"), each.get("value")) for each in entries if isinstance(each, dict)]
    return {key: text for key, text in pairs if isinstance(key, int) and isinstance(text, str)}


def _lacks(*, has_calls: bool, has_copies: bool) -> tuple[Quality, ...]:
    notes = []
    if not has_calls:
        notes.append(NO_CALLS)
    if not has_copies:
        notes.append(
            Quality(problem="the file has no copies", effect="if any were made, they show as idle: --memory-copy-trace")
        )
    return tuple(notes)
