"""Build the trace of one rank event by event, as the table that analyses take or the Kineto JSON that readers take.

In: calls such as `.step(1, 0, 100).launch("gemm", 10, 5, 20, 30)`, in any order, each returning the builder.
Out: `to_table()`, `to_json()` or a file. Times are given in microseconds (or fractions) and kept as integer
nanoseconds. The builder does not check that a trace is plausible: a kernel can start before its launch.

    trace = TraceBuilder(rank=0, world_size=2)
    trace.step(1, 0, 100)
    trace.data_loading(0, 30)
    trace.launch("gemm", launch_at=30, launch_duration=5, start=40, duration=50)
    table = trace.to_table()
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from flatout.inside.protocol import File
from flatout.records.events import COLUMNS, NULL, CollectiveArgs, EventTable, Kind, TraceMeta
from flatout.testing.trace_json import BuiltEvent, json_events

MAIN_THREAD = 1  # the host thread that runs the training loop
AUTOGRAD_THREAD = 2  # the host thread that runs the backward pass
COMPUTE_STREAM = 7
COMMUNICATION_STREAM = 19

T = TypeVar("T")

_ON_DEVICE = (Kind.GPU_ANNOTATION, Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC)
_NCCL_NAMES = {  # operation as recorded: (host annotation, kernel)
    "allreduce": ("nccl:all_reduce", "AllReduce_Sum_f32_RING_LL"),
    "barrier": ("nccl:all_reduce_barrier", "AllReduce_Sum_f32_RING_LL"),
    "_allgather_base": ("nccl:_all_gather_base", "AllGather_RING_LL"),
    "_reduce_scatter_base": ("nccl:_reduce_scatter_base", "ReduceScatter_Sum_f32_RING_LL"),
    "broadcast": ("nccl:broadcast", "Broadcast_RING_LL"),
    "reduce": ("nccl:reduce", "Reduce_Sum_f32_RING_LL"),
    "all_to_all": ("nccl:all_to_all", "SendRecv"),
    "send": ("nccl:send", "SendRecv"),
    "recv": ("nccl:recv", "SendRecv"),
}
_MEMORY = {"HtoD": ("{host}", "Device"), "DtoH": ("Device", "{host}"), "DtoD": ("Device", "Device")}


class TraceBuilder:
    """The synthetic trace of one rank. Each method adds events and returns the builder; all times are in us.

    `thread` is a host thread's number, `stream` a stream of its GPU; `on_device` adds other GPUs. A method without
    a parameter `correlation` numbers its launches itself.
    """

    def __init__(
        self, rank: int = 0, world_size: int = 2, *, device_name: str = "NVIDIA H200", base_ns: int = 0
    ) -> None:
        """Begin an empty trace.

        `base_ns` (`baseTimeNanoseconds` of the file) is added to the table's times, but not to those in the JSON.
        """
        self.rank = rank
        self.world_size = world_size
        self.base_ns = base_ns
        self._device_name = device_name
        self._device = rank
        self._events: list[BuiltEvent] = []
        self._last_id = 0

    def on_device(self, number: int) -> Self:
        """Place the GPU work that is added next on another GPU of the process."""
        self._device = number
        return self

    # --- the host

    def step(self, number: int, start: float, duration: float, *, thread: int = MAIN_THREAD) -> Self:
        """Add the profiler's mark of one step: `ProfilerStep#number`."""
        return self.annotation(f"ProfilerStep#{number}", start, duration, thread=thread)

    def op(
        self,
        name: str,
        start: float,
        duration: float,
        *,
        thread: int = MAIN_THREAD,
        shapes: Sequence[Sequence[int]] | None = None,
    ) -> Self:
        """Add an operator, optionally with the shapes of its inputs."""
        self._add(
            Kind.CPU_OP,
            name,
            start,
            duration,
            self._host(thread),
            external_id=self._next_id(),
            shape=None if shapes is None else _compact(shapes),
        )
        return self

    def annotation(self, name: str, start: float, duration: float, *, thread: int = MAIN_THREAD) -> Self:
        """Add a `record_function` range on the host."""
        self._add(Kind.USER_ANNOTATION, name, start, duration, self._host(thread), external_id=self._next_id())
        return self

    def data_loading(self, start: float, duration: float, *, thread: int = MAIN_THREAD) -> Self:
        """Add a wait for the DataLoader's next batch."""
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        return self.annotation(name, start, duration, thread=thread)

    def python(self, name: str, start: float, duration: float, *, thread: int = MAIN_THREAD) -> Self:
        """Add a Python function, such as `torch/serialization.py(943): save`."""
        self._add(Kind.PYTHON, name, start, duration, self._host(thread))
        return self

    def runtime(
        self, name: str, start: float, duration: float, *, thread: int = MAIN_THREAD, correlation: int | None = None
    ) -> Self:
        """Add a GPU runtime or driver call, which starts the GPU work with the same `correlation`, or none."""
        number = self._next_id() if correlation is None else correlation
        self._add(Kind.RUNTIME, name, start, duration, self._host(thread), correlation=number)
        return self

    def sync(self, name: str, start: float, duration: float, *, thread: int = MAIN_THREAD) -> Self:
        """Add a synchronising host call, such as `cudaStreamSynchronize`."""
        return self.runtime(name, start, duration, thread=thread)

    def malloc(self, start: float, duration: float, *, thread: int = MAIN_THREAD) -> Self:
        """Add an allocation of device memory, `cudaMalloc`."""
        return self.runtime("cudaMalloc", start, duration, thread=thread)

    def free(self, start: float, duration: float, *, thread: int = MAIN_THREAD) -> Self:
        """Add a release of device memory, `cudaFree`."""
        return self.runtime("cudaFree", start, duration, thread=thread)

    def overhead(self, start: float, duration: float, *, name: str = "Command Buffer Full") -> Self:
        """Add overhead of the profiler itself, or of a full launch queue."""
        self._add(Kind.OVERHEAD, name, start, duration, ("-1", "0"))
        return self

    # --- the host and the device

    def launch(
        self,
        kernel_name: str,
        launch_at: float,
        launch_duration: float,
        start: float,
        duration: float,
        *,
        stream: int = COMPUTE_STREAM,
        thread: int = MAIN_THREAD,
        op: str | None = None,
        shapes: Sequence[Sequence[int]] | None = None,
    ) -> Self:
        """Add a kernel, the `cudaLaunchKernel` that starts it, and, if named, the operator `op` of equal span."""
        if op is not None:
            self.op(op, launch_at, launch_duration, thread=thread, shapes=shapes)
        fields: dict[str, Any] = {
            "correlation": self._next_id(),
            "external_id": NULL if op is None else self._last_id - 1,
        }
        self._add(Kind.RUNTIME, "cudaLaunchKernel", launch_at, launch_duration, self._host(thread), **fields)
        return self._work(Kind.KERNEL, kernel_name, start, duration, stream, **fields)

    def graph_launch(
        self,
        launch_at: float,
        launch_duration: float,
        kernels: Iterable[tuple[str, float, float]],
        *,
        stream: int = COMPUTE_STREAM,
        thread: int = MAIN_THREAD,
    ) -> Self:
        """Add one `cudaGraphLaunch` and the kernels that it starts, each as (name, start, duration)."""
        correlation = self._next_id()
        self.runtime("cudaGraphLaunch", launch_at, launch_duration, thread=thread, correlation=correlation)
        for name, start, duration in kernels:
            self.kernel(name, start, duration, stream=stream, correlation=correlation)
        return self

    def copy(
        self,
        direction: str,
        *,
        num_bytes: int,
        launch_at: float,
        start: float,
        duration: float,
        launch_duration: float = 1,
        pageable: bool = False,
        call: str = "cudaMemcpyAsync",
        stream: int = COMPUTE_STREAM,
        thread: int = MAIN_THREAD,
    ) -> Self:
        """Add a copy, with `direction` "HtoD", "DtoH" or "DtoD", and the call that starts it."""
        correlation = self._next_id()
        self.runtime(call, launch_at, launch_duration, thread=thread, correlation=correlation)
        source, target = (end.format(host="Pageable" if pageable else "Pinned") for end in _MEMORY[direction])
        name = f"Memcpy {direction} ({source} -> {target})"
        return self._work(Kind.MEMCPY, name, start, duration, stream, correlation=correlation, num_bytes=num_bytes)

    def memset(
        self,
        *,
        num_bytes: int,
        launch_at: float,
        start: float,
        duration: float,
        launch_duration: float = 1,
        stream: int = COMPUTE_STREAM,
        thread: int = MAIN_THREAD,
    ) -> Self:
        """Add a memory set and the `cudaMemsetAsync` that starts it."""
        correlation = self._next_id()
        self.runtime("cudaMemsetAsync", launch_at, launch_duration, thread=thread, correlation=correlation)
        name = "Memset (Device)"
        return self._work(Kind.MEMSET, name, start, duration, stream, correlation=correlation, num_bytes=num_bytes)

    def collective(
        self,
        operation: str,
        launch_at: float,
        start: float,
        duration: float,
        *,
        launch_duration: float = 1,
        num_elements: int = 1024,
        group: str = "0",
        group_ranks: tuple[int, ...] | None = None,
        group_description: str | None = None,
        dtype: str = "Float",
        root: int | None = None,
        sequence: int | None = None,
        kernel_name: str | None = None,
        stream: int = COMMUNICATION_STREAM,
        thread: int = MAIN_THREAD,
    ) -> Self:
        """Add an NCCL collective: its operator, annotation and launch on the host (of equal span), and its kernel.

        `operation` is named as PyTorch records it: allreduce, _allgather_base, _reduce_scatter_base, broadcast, reduce,
        barrier, all_to_all, send, recv. `root` is the root of a broadcast or reduce, or the peer of a send or receive.
        Without `group_ranks`, all ranks take part; without `kernel_name`, the kernel is NCCL's for the operation.
        `num_elements` is the number of input elements; an all-gather's output has more.
        """
        annotation, kernel = _NCCL_NAMES[operation]
        ranks = tuple(range(self.world_size)) if group_ranks is None else group_ranks
        num_outputs = {"_allgather_base": num_elements * len(ranks), "_reduce_scatter_base": num_elements // len(ranks)}
        args = CollectiveArgs(
            operation=operation,
            group_name=group,
            group_description=group_description or ("default_pg" if group == "0" else f"group_{group}"),
            group_ranks=ranks,
            group_size=len(ranks),
            dtype=dtype,
            num_input_elements=num_elements,
            num_output_elements=num_outputs.get(operation, num_elements),
            src_rank=root if operation in ("broadcast", "recv") else None,
            dst_rank=root if operation in ("reduce", "send") else None,
        )
        number, external_id, correlation = NULL if sequence is None else sequence, self._next_id(), self._next_id()
        of_call: dict[str, Any] = {"external_id": external_id, "collective": args, "sequence": number}
        of_launch: dict[str, Any] = {"external_id": external_id, "correlation": correlation}
        span = (launch_at, launch_duration, self._host(thread))
        self._add(Kind.CPU_OP, "record_param_comms", *span, **of_call)
        self.annotation(annotation, launch_at, launch_duration, thread=thread)
        self._add(Kind.RUNTIME, "cudaLaunchKernelExC", *span, **of_launch)
        name = kernel_name or f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)"
        return self._work(Kind.KERNEL, name, start, duration, stream, correlation=correlation, **of_call)

    # --- the device

    def kernel(
        self,
        name: str,
        start: float,
        duration: float,
        *,
        stream: int = COMPUTE_STREAM,
        correlation: int | None = None,
    ) -> Self:
        """Add a kernel alone: without `correlation`, its launch is not in the trace."""
        number = NULL if correlation is None else correlation
        return self._work(Kind.KERNEL, name, start, duration, stream, correlation=number)

    def gpu_annotation(self, name: str, start: float, duration: float, *, stream: int = COMPUTE_STREAM) -> Self:
        """Add the copy of a host annotation on the device's timeline; it is not work."""
        return self._work(Kind.GPU_ANNOTATION, name, start, duration, stream)

    def gpu_sync(self, start: float, duration: float, *, stream: int = COMPUTE_STREAM) -> Self:
        """Add a synchronisation shown on the device's timeline; it is not work."""
        return self._work(Kind.SYNC, "Stream Sync", start, duration, stream)

    # --- output

    def to_table(self) -> EventTable:
        """Return the events as a reader returns them, checked against the schema."""
        events = sorted(self._events, key=lambda event: (event.start_ns, -event.duration_ns))
        names, name = _encode([event.name for event in events])
        threads, thread = _encode([event.thread for event in events])
        shapes, shape = _encode([event.shape for event in events])
        collectives, collective = _encode([event.collective for event in events])
        columns: dict[str, list[int]] = {
            "start_ns": [event.start_ns + self.base_ns for event in events],
            "name": name,
            "thread": thread,
            "shape": shape,
            "collective": collective,
        }
        for column in COLUMNS.keys() - columns.keys():
            columns[column] = [int(getattr(event, column)) for event in events]
        arrays: dict[str, Any] = {key: np.array(values, dtype=COLUMNS[key]) for key, values in columns.items()}
        table = EventTable(
            meta=self._meta(),
            names=names,
            threads=threads,
            shapes=shapes,
            collectives=collectives,
            **arrays,
        )
        table.check()
        return table

    def to_json(self) -> dict[str, Any]:
        """Return the trace as the PyTorch profiler exports it: Kineto JSON, as a dict."""
        meta = self._meta()
        devices = [] if meta.device_name is None else [{"id": self.rank, "name": meta.device_name}]
        groups = [
            {"pg_name": args.group_name, "pg_desc": args.group_description, "backend_config": f"cuda:{meta.backend}",
             "pg_size": len(args.group_ranks or ()), "ranks": list(args.group_ranks or ())}
            for args in {e.collective.group_name: e.collective for e in self._events if e.collective}.values()
            if args.group_name is not None
        ]  # fmt: skip
        return {
            "schemaVersion": 1,
            "deviceProperties": devices,
            "distributedInfo": {
                "backend": meta.backend,
                "rank": self.rank,
                "world_size": self.world_size,
                "pg_count": len(groups),
                "pg_config": groups,
            },
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": self.base_ns,
            "traceEvents": [line for event in self._events for line in json_events(event)],
            "traceName": meta.path,
        }

    def write(self, path: Path | str) -> Path:
        """Write the JSON to `path`, replacing any existing file, and return the path."""
        path = Path(path)
        path.write_text(json.dumps(self.to_json()), encoding="utf-8")
        return path

    # --- internal

    def _meta(self) -> TraceMeta:
        on_device = any(event.kind in _ON_DEVICE for event in self._events)
        return TraceMeta(
            path=File.TRACE.of(self.rank),
            rank=self.rank,
            world_size=self.world_size,
            backend="nccl" if on_device else "gloo",
            device_name=self._device_name if on_device else None,
            base_ns=self.base_ns,
        )

    def _work(self, kind: Kind, name: str, start: float, duration: float, stream: int, **fields: Any) -> Self:
        thread = (str(self._device), str(stream))
        self._add(kind, name, start, duration, thread, device=self._device, stream=stream, **fields)
        return self

    def _add(
        self, kind: Kind, name: str, start: float, duration: float, thread: tuple[str, str], **fields: Any
    ) -> None:
        start_ns, duration_ns = round(start * 1000), round(duration * 1000)
        event = BuiltEvent(kind=kind, name=name, start_ns=start_ns, duration_ns=duration_ns, thread=thread, **fields)
        self._events.append(event)

    def _host(self, thread: int) -> tuple[str, str]:
        return str(5000 + self.rank), str(thread)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


def write_traces(traces: Iterable[TraceBuilder], folder: Path | str) -> list[Path]:
    """Write the traces of a job's ranks as `rank0.json`, `rank1.json`, ... into an existing folder."""
    return [trace.write(Path(folder) / File.TRACE.of(trace.rank)) for trace in traces]


def _encode(values: Sequence[T | None]) -> tuple[tuple[T, ...], list[int]]:
    numbers: dict[T, int] = {}
    codes = [NULL if value is None else numbers.setdefault(value, len(numbers)) for value in values]
    return tuple(numbers), codes


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
