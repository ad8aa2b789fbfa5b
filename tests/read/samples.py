"""Small traces, built event by event as Kineto writes them, and what a table of them must hold."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np

from flatout.records.events import COLUMNS, EventTable

Event = dict[str, Any]

BASE_NS = 1_790_857_026_000_000_000
START_US = 4_959_906_370_831.761


def event(cat: str, name: str, ts: float, dur: float, *, pid: int = 100, tid: int | str = 100, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name: str, ts: float, dur: float, *, stream: int = 7, correlation: int = 1, **args: Any) -> Event:
    arguments = {"device": 0, "stream": stream, "correlation": correlation, **args}
    return event("kernel", name, ts, dur, pid=0, tid=stream, **arguments)


COLLECTIVE = {
    "Collective name": "allreduce",
    "In msg nelems": 1024,
    "Out msg nelems": 1024,
    "Group size": 4,
    "dtype": "Float",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1, 2, 3]",
    "Seq": 12,
    "Comms Id": 18_446_744_073_709_551_557,
}


def small_events(num_steps: int = 2) -> list[Event]:
    """One operator, launch, kernel, copy and collective a step, with the flows and metadata around them."""
    events: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "ts": 0, "args": {"name": "python"}}
    ]
    for step in range(num_steps):
        ts = round(START_US + 1000 * step, 3)
        corr = 10 * step + 1
        events += [
            event("user_annotation", f"ProfilerStep#{step + 1}", ts, 900.5, **{"External id": corr}),
            event(
                "cpu_op",
                "aten::mm",
                round(ts + 10.001, 3),
                50.25,
                **{
                    "External id": corr + 1,
                    "Sequence number": 4,
                    "Input Dims": [[8, 1024], []],
                    "Input type": ["float", "Scalar"],
                },
            ),
            event(
                "cuda_runtime",
                "cudaLaunchKernel",
                round(ts + 20.002, 3),
                5.0,
                cbid=211,
                correlation=corr,
                **{"External id": corr + 1},
            ),
            {"ph": "s", "id": corr, "pid": 100, "tid": 100, "ts": round(ts + 20.002, 3), "cat": "ac2g", "name": "ac2g"},
            kernel(
                "gemm", round(ts + 30.003, 3), 100.123, correlation=corr, **{"External id": corr + 1, "grid": [1, 1, 1]}
            ),
            {"ph": "f", "id": corr, "pid": 0, "tid": 7, "ts": ts, "cat": "ac2g", "name": "ac2g", "bp": "e"},
            event(
                "gpu_memcpy",
                "Memcpy HtoD (Pageable -> Device)",
                round(ts + 140.004, 3),
                8.0,
                pid=0,
                tid=7,
                device=0,
                stream=7,
                correlation=corr + 2,
                bytes=4096,
            ),
            kernel(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                round(ts + 150.005, 3),
                200.0,
                stream=20,
                correlation=corr + 3,
                **COLLECTIVE,
            ),
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100, "tid": 100, "ts": ts},
        ]
    return events


def small_trace(events: list[Event] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}, {"id": 1, "name": "NVIDIA H100"}],
        "distributedInfo": {
            "backend": "nccl",
            "rank": 3,
            "world_size": 4,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]}],
        },
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": small_events() if events is None else events,
        "traceName": "trace.json",
        **metadata,
    }


NUM_SMALL_X = 12  # complete events of `small_events()`


def to_ns(us: Any) -> int:
    return round(Decimal(str(us)) * 1000)


def assert_same_table(one: EventTable, other: EventTable) -> None:
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column), err_msg=column)
    for dictionary in ("names", "threads", "shapes", "collectives", "dropped"):
        assert getattr(one, dictionary) == getattr(other, dictionary), dictionary


def problems(table: EventTable) -> str:
    return "\n".join(note.problem for note in table.quality)
