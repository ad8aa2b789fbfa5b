"""Small SQLite files of profilers as bytes, written with Python's sqlite3."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Tables = Mapping[str, tuple[Sequence[str], Sequence[Sequence[Any]]]]  # columns and rows by table
MS = 1_000_000
EPOCH_NS = 1_700_000_000_000_000_000
SESSION_START_NS = 5_000_000_000  # on the clock of the events
PID = 4711
ROCPD_ID = "_0199a7_b3"  # of a recording, which ends the names of its tables


def database(tables: Tables) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.sqlite"
        connection = sqlite3.connect(path)
        for table, (columns, rows) in tables.items():
            connection.execute(f'CREATE TABLE "{table}" ({", ".join(columns)})')
            places = ", ".join("?" * len(columns))
            connection.executemany(f'INSERT INTO "{table}" VALUES ({places})', rows)
        connection.commit()
        connection.close()
        return path.read_bytes()


def nsys_tables(pids: Sequence[int] = (PID,)) -> dict[str, tuple[Sequence[str], list[Sequence[Any]]]]:
    """Return an export of 2 steps in each process: a kernel, an all-reduce and a copy, their launches and ranges."""
    strings = {
        1: "gemm",
        2: "ncclDevKernel_AllReduce",
        3: "cudaLaunchKernel_v7000",
        4: "cudaMemcpyAsync_v3020",
        5: "step",
    }
    kernels: list[Sequence[Any]] = []
    copies: list[Sequence[Any]] = []
    calls: list[Sequence[Any]] = []
    ranges: list[Sequence[Any]] = []
    for device, pid in enumerate(pids):
        process, thread = pid << 24, pid << 24 | pid
        for step in range(3):
            at, number = SESSION_START_NS + step * 100 * MS, 1000 * pid + 10 * step
            kernels.append((at + 20 * MS, at + 50 * MS, device, 7, number, process, 1))
            kernels.append((at + 50 * MS, at + 70 * MS, device, 8, number + 1, process, 2))
            copies.append((at + 70 * MS, at + 75 * MS, device, 7, number + 2, process, 4096, 1))
            for place, name in ((0, 3), (1, 3), (2, 4)):
                calls.append((at + (11 + place) * MS, at + (11 + place) * MS + MS // 2, number + place, thread, name))
            ranges.append((at, at + 90 * MS, 59, "", thread, 5))
            ranges.append((at + MS, at + 10 * MS, 59, "data loading", thread, None))
            ranges.append((at + 11 * MS, at + 13 * MS, 59, "aten::mm, op_id = 3", thread, None))
            ranges.append((at + 11 * MS, None, 34, "a mark", thread, None))
    gpu = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
    return {
        "StringIds": (("id", "value"), list(strings.items())),
        "CUPTI_ACTIVITY_KIND_KERNEL": ((*gpu, "demangledName"), kernels),
        "CUPTI_ACTIVITY_KIND_MEMCPY": ((*gpu, "bytes", "copyKind"), copies),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (("start", "end", "correlationId", "globalTid", "nameId"), calls),
        "NVTX_EVENTS": (("start", "end", "eventType", "text", "globalTid", "textId"), ranges),
        "TARGET_INFO_SESSION_START_TIME": (("utcEpochNs",), [(EPOCH_NS,)]),
        "ANALYSIS_DETAILS": (("startTime",), [(SESSION_START_NS,)]),
        "TARGET_INFO_GPU": (("id", "name"), [(0, "H100"), (1, "H100")]),
        "TARGET_INFO_SYSTEM_ENV": (("name", "value"), [("Hostname", "node")]),
        "DIAGNOSTIC_EVENT": (("severity", "text"), [(1, "fine"), (2, "12 events were lost")]),
    }


def rocpd_tables(*, has_tracks: bool = False) -> dict[str, tuple[Sequence[str], list[Sequence[Any]]]]:
    """Return a rocpd database of 3 steps on a GPU, as rocprofv3 writes it, or with times and places in other tables.

    The name of a ROCTX range is that of the call; its text is in its event.
    """
    kernels: list[Sequence[Any]] = []
    copies: list[Sequence[Any]] = []
    regions: list[Sequence[Any]] = []
    stamps: list[Sequence[Any]] = []

    def times(start: int, end: int) -> tuple[int, int]:
        if not has_tracks:
            return start, end
        stamps.extend(((len(stamps) + 1, start), (len(stamps) + 2, end)))
        return len(stamps) - 1, len(stamps)

    place = (1,) if has_tracks else (1, 1, 2, 1)
    for step in range(3):
        at = step * 100 * MS
        kernels.append((*times(at + 20 * MS, at + 50 * MS), *place, 10 * step + 1, 5))
        copies.append((*times(at + 70 * MS, at + 75 * MS), *place, 10 * step + 2, 2, 1, 3, 4096))
        for event, name, start in ((1, 1, 11), (2, 2, 12), (3, 5, 13), (4, 6, 14)):
            regions.append((*times(at + start * MS, at + (start + 1) * MS), *place, 10 * step + event, name))
        regions.append((*times(at, at + 90 * MS), *place, 10 * step + 5, 4))
    stamp = (
        ("start_id", "end_id", "track_id") if has_tracks else ("start", "end", "pid", "tid", "agent_id", "stream_id")
    )
    strings = [
        *((1, "hipLaunchKernel"), (2, "hipMemcpyAsync"), (3, "MEMORY_COPY_HOST_TO_DEVICE"), (4, "roctxThreadRangeA")),
        *((5, "hsa_signal_wait_scacquire"), (6, "__hipRegisterFunction")),
        *((7, "HIP_RUNTIME_API_EXT"), (8, "HSA_CORE_API"), (9, "HIP_COMPILER_API_EXT"), (10, "MARKER_CORE_RANGE_API")),
    ]
    categories = {1: 7, 2: 7, 3: 8, 4: 9, 5: 10}  # of events, by their places in a step
    events = [
        (10 * step + place, 100 * step + place, category, '{"message":"iteration"}' if place == 5 else "{}")
        for step in range(3)
        for place, category in categories.items()
    ]
    tables: dict[str, tuple[Sequence[str], list[Sequence[Any]]]] = {
        "rocpd_string": (("id", "string"), list(strings)),
        "rocpd_info_kernel_symbol": (("id", "display_name"), [(5, "gemm")]),
        "rocpd_info_agent": (
            ("id", "type", "type_index", "product_name"),
            [(1, "CPU", 0, "EPYC"), (2, "GPU", 3, "MI300X")],
        ),
        "rocpd_info_process": (("id", "pid"), [(1, PID)]),
        "rocpd_info_thread": (("id", "tid"), [(1, PID + 1)]),
        "rocpd_info_node": (("hostname",), [("node",)]),
        "rocpd_event": (("id", "stack_id", "category_id", "extdata"), list(events)),
        "rocpd_kernel_dispatch": ((*stamp, "event_id", "kernel_id"), kernels),
        "rocpd_memory_copy": ((*stamp, "event_id", "dst_agent_id", "src_agent_id", "name_id", "size"), copies),
        "rocpd_region": ((*stamp, "event_id", "name_id"), regions),
    }
    if has_tracks:
        tables["rocpd_track"] = (("id", "pid", "tid", "agent_id", "stream_id"), [(1, 1, 1, 2, 1)])
        tables["rocpd_timestamp"] = (("id", "value"), list(stamps))
    return {f"{table}{ROCPD_ID}": value for table, value in tables.items()}
