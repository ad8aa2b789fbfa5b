"""Convert one synthetic event, as `TraceBuilder` collects it, to the Kineto JSON of a `traceEvents` list."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from flatout.records.events import NULL, CollectiveArgs, Kind

_CATEGORIES = {
    Kind.CPU_OP: "cpu_op",
    Kind.USER_ANNOTATION: "user_annotation",
    Kind.GPU_ANNOTATION: "gpu_user_annotation",
    Kind.RUNTIME: "cuda_runtime",
    Kind.KERNEL: "kernel",
    Kind.MEMCPY: "gpu_memcpy",
    Kind.MEMSET: "gpu_memset",
    Kind.SYNC: "cuda_sync",
    Kind.PYTHON: "python_function",
    Kind.OVERHEAD: "overhead",
}


class BuiltEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a synthetic trace; times are integer ns, without the file's base time."""

    kind: Kind
    name: str
    start_ns: int
    duration_ns: int
    thread: tuple[str, str]
    device: int = NULL
    stream: int = NULL
    correlation: int = NULL
    external_id: int = NULL
    num_bytes: int = NULL
    shape: str | None = None
    collective: CollectiveArgs | None = None
    sequence: int = NULL


def json_events(event: BuiltEvent) -> list[dict[str, Any]]:
    """Return the event itself and, if it has one, its end of the arrow from launch to GPU work."""
    category = _CATEGORIES[event.kind]
    if event.kind is Kind.RUNTIME and event.name.startswith("cu") and not event.name.startswith("cuda"):
        category = "cuda_driver"
    pid, tid = (int(number) for number in event.thread)
    start_us, duration_us = event.start_ns / 1000, event.duration_ns / 1000  # exact ns: printed with <= 3 decimals
    whole = {"ph": "X", "cat": category, "name": event.name, "pid": pid, "tid": tid, "ts": start_us, "dur": duration_us}
    lines = [whole | {"args": _json_args(event)}]
    if event.correlation != NULL:
        at = {"id": event.correlation, "pid": pid, "tid": tid, "ts": start_us, "cat": "ac2g", "name": "ac2g"}
        lines.append({"ph": "s"} | at if event.kind is Kind.RUNTIME else {"ph": "f"} | at | {"bp": "e"})
    return lines


def _json_args(event: BuiltEvent) -> dict[str, Any]:
    args: dict[str, Any] = {}
    numbers = (
        ("External id", event.external_id),
        ("device", event.device),
        ("stream", event.stream),
        ("correlation", event.correlation),
        ("bytes", event.num_bytes),
        ("Seq", event.sequence),
    )
    args |= {key: number for key, number in numbers if number != NULL}
    if event.shape is not None:
        args["Input Dims"] = json.loads(event.shape)
    collective = event.collective
    if collective is not None:
        recorded = {
            "Collective name": collective.operation,
            "In msg nelems": collective.num_input_elements,
            "Out msg nelems": collective.num_output_elements,
            "Group size": collective.group_size,
            "dtype": collective.dtype,
            "Process Group Name": collective.group_name,
            "Process Group Description": collective.group_description,
            "Process Group Ranks": json.dumps(collective.group_ranks),
            "Src Rank": collective.src_rank,
            "Dst Rank": collective.dst_rank,
        }
        args |= {key: value for key, value in recorded.items() if value is not None}
    return args
