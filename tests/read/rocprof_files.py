"""Small JSON files of rocprofv3, timelines of Horovod and JSON traces of JAX, of known content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MS = 1_000_000
Event = dict[str, Any]


def rocprof(gpus: Sequence[int] = (0,), *, with_calls: bool = True) -> dict[str, Any]:
    """Return 3 steps on each GPU: a kernel, a collective and a copy, with the calls that launched them."""
    kernels, copies, calls = [], [], []
    for gpu in gpus:
        for step in range(3):
            at, number = step * 100 * MS, 1000 * gpu + 10 * step
            for place, (start, end) in enumerate(((20, 50), (50, 70))):
                dispatch = {"agent_id": {"handle": 100 + gpu}, "queue_id": {"handle": 5}, "kernel_id": place + 1}
                kernels.append({**times(at, start, end), **linked(number + place), "dispatch_info": dispatch})
            agents = {"dst_agent_id": {"handle": 100 + gpu}, "src_agent_id": {"handle": 99}}
            copies.append(
                {**times(at, 70, 75), **linked(number + 2), **agents, "kind": 2, "operation": 1, "bytes": 4096}
            )
            for place in range(3):
                operation = {"kind": 1, "operation": min(place, 1)}
                calls.append({**times(at, 11 + place, 12 + place), **linked(number + place), **operation})
    agents = [{"id": {"handle": 99}, "type": 1, "product_name": "EPYC"}]
    agents += [
        {"id": {"handle": 100 + gpu}, "type": 2, "product_name": "MI300X", "logical_node_type_id": gpu} for gpu in gpus
    ]
    process = {
        "metadata": {"pid": 908, "node": {"hostname": "node"}},
        "agents": agents,
        "kernel_symbols": [
            {"kernel_id": 1, "formatted_kernel_name": "gemm"},
            {"kernel_id": 2, "formatted_kernel_name": "ncclDevKernel_AllReduce"},
        ],
        "strings": {
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel", "hipMemcpyAsync"]},
                {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
            ]
        },
        "buffer_records": {"kernel_dispatch": kernels, "memory_copy": copies, "hip_api": calls if with_calls else []},
    }
    return {"rocprofiler-sdk-tool": [process]}


def times(at_ns: int, start_ms: int, end_ms: int) -> dict[str, int]:
    times_ns = {"start_timestamp": at_ns + start_ms * MS, "end_timestamp": at_ns + end_ms * MS}
    return {"size": 184, "thread_id": 908, **times_ns}  # the size comes first in each record


def linked(number: int) -> dict[str, Any]:
    return {"correlation_id": {"internal": number, "external": 0}}


def horovod(late_rank: int = 1, *, late_ms: int = 30, cached_from: int | None = None) -> list[Event]:
    """Return a timeline of 3 ranks that reduce two tensors in each of 4 steps; one of them is ready late.

    From the step `cached_from` on, the answers are cached, so that no rank is negotiated with.
    """
    events: list[Event] = [
        {
            "name": "process_name",
            "ph": "M",
            "pid": 0,
            "args": {"start_time_since_epoch_in_micros": 1_700_000_000_000_000},
        }
    ]
    for step in range(4):
        for tensor in (1, 2):
            begin = 100_000 * step + 40_000 + 1000 * tensor
            ready = {rank: begin + 1000 * rank for rank in range(3)} | {late_rank: begin + 1000 * late_ms}
            agreed = max(ready.values()) + 100
            if cached_from is None or step < cached_from:
                events.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": begin, "pid": tensor})
                events += [
                    {"ph": "X", "name": str(rank), "ts": ts, "pid": tensor, "dur": 0} for rank, ts in ready.items()
                ]
                events.append({"ph": "E", "ts": agreed, "pid": tensor})
            events.append({"ph": "B", "name": "ALLREDUCE", "ts": agreed + 100, "pid": tensor})
            events.append({"ph": "B", "name": "NCCL_ALLREDUCE", "ts": agreed + 200, "pid": tensor})
            events.append({"ph": "E", "ts": agreed + 2900, "pid": tensor})
            events.append({"ph": "E", "ts": agreed + 3000, "pid": tensor, "args": {"dtype": "float32"}})
    return events


def jax_trace(ordinal: int = 0) -> dict[str, Any]:
    """Return the JSON of a JAX process on a CPU: 3 steps with a product and an all-reduce. Times in us."""
    events: list[Event] = [
        {"ph": "M", "pid": 701, "name": "process_name", "args": {"name": "/host:CPU"}},
        {"ph": "M", "pid": 701, "tid": 1, "name": "thread_name", "args": {"name": "python"}},
        {"ph": "M", "pid": 701, "tid": 2, "name": "thread_name", "args": {"name": "tf_XLAPjRtCpuClient/1"}},
    ]
    for step in range(3):
        at = 50_000.0 * step
        of_run = {"run_id": str(-100 - step), "device_ordinal": str(ordinal)}
        events += [
            call(1, "train", at, 40_000, {"step_num": str(step)}),
            call(1, "$loader.py:3 __next__", at + 1000, 8000.5),
            call(2, "dot.1", at + 10_000, 16_000.25, {"hlo_op": "dot.1", **of_run}),
            call(2, "all-reduce.9", at + 26_000.25, 4000, {"hlo_op": "all-reduce.9", **of_run}),
        ]
    return {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": [*events, {}]}


def call(thread: int, name: str, start_us: float, duration_us: float, args: dict[str, str] | None = None) -> Event:
    event: Event = {"ph": "X", "pid": 701, "tid": thread, "ts": start_us, "dur": duration_us, "name": name}
    return event if args is None else {**event, "args": args}
