"""Small profiles of XLA as bytes: a writer of protocol buffers that shares no code with the reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flatout.read import TraceSource

PS = 1000  # per ns
BASE_NS = 1_700_000_000_000_000_000
MS = 1_000_000
Stats = Mapping[str, int | str]
Event = tuple[str, int, int, Stats]  # name, start and duration in ns, stats


def varint(value: int) -> bytes:
    value %= 1 << 64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, data: bytes | str) -> bytes:
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def plane(name: str, lines: Mapping[str, Sequence[Event]], stats: Stats | None = None) -> bytes:
    """Return an XPlane; numbers are written as int64, texts as references to names."""
    names: dict[str, int] = {}
    stat_names: dict[str, int] = {}

    def stat(key: str, value: int | str) -> bytes:
        reference = number(1, stat_names.setdefault(key, len(stat_names) + 1))
        if isinstance(value, int):
            return reference + number(4, value)
        return reference + number(7, stat_names.setdefault(value, len(stat_names) + 1))

    body = message(2, name)
    for line, events in lines.items():
        text = message(2, line) + number(3, 0)
        for event, start_ns, duration_ns, of_event in events:
            fields = number(1, names.setdefault(event, len(names) + 1))
            fields += number(2, start_ns * PS) + number(3, duration_ns * PS)
            fields += b"".join(message(4, stat(key, value)) for key, value in of_event.items())
            text += message(4, fields)
        body += message(3, text)
    body += b"".join(message(6, stat(key, value)) for key, value in (stats or {}).items())
    for field, known in ((4, names), (5, stat_names)):
        for text, code in known.items():
            body += message(field, number(1, code) + message(2, number(1, code) + message(2, text)))
    return body


def xspace(*planes: bytes, hostname: str = "node") -> bytes:
    return b"".join(message(1, each) for each in planes) + message(4, hostname)


def write(folder: Path, data: bytes, name: str = "host.xplane.pb") -> TraceSource:
    path = folder / name
    path.write_bytes(data)
    return TraceSource(path=str(path), name=name, size_bytes=len(data))


def gpu_planes(device: int = 0) -> list[bytes]:
    """Return the planes of 2 steps on a GPU: a kernel, an all-reduce and a copy each, launched by the main thread."""
    kernels: list[Event] = []
    copies: list[Event] = []
    host: list[Event] = []
    calls: list[Event] = []
    for step in range(2):
        at = step * 100 * MS
        kernels.append(("fusion", at + 20 * MS, 30 * MS, {"correlation_id": 10 * step + 1, "hlo_op": "fusion.3"}))
        reduce = {"correlation_id": 10 * step + 2, "hlo_op": "all-reduce-start.1"}
        kernels.append(("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 50 * MS, 20 * MS, reduce))
        details = {"correlation_id": 10 * step + 3, "memcpy_details": "kind_src:pageable size:4096 dest:0"}
        copies.append(("MemcpyH2D", at + 70 * MS, 5 * MS, details))
        host.append(("train", at, 90 * MS, {"step_num": 7 + step}))
        host.append(("$loader.py:3 __next__", at + 1 * MS, 10 * MS, {}))
        for number in (1, 2, 3):
            launch = {"correlation_id": 10 * step + number}
            calls.append(("cuLaunchKernel", at + (11 + number) * MS, MS // 2, launch))
    streams = {"Stream #13(Kernel)": kernels, "Stream #14(MemcpyH2D)": copies, "XLA Ops": kernels}
    return [
        plane(f"/device:GPU:{device}", streams, {"device_vendor": "Nvidia"}),
        plane("/host:CPU", {"python": host, "Host Threads/42": calls}),
        plane("Task Environment", {}, {"profile_start_time": BASE_NS}),
    ]


def cpu_plane(ordinal: int, *, marked: bool = True, run: int = 5) -> bytes:
    """Return a process of a CPU job: 3 steps with a loop of two products, and an all-reduce on another thread."""
    host: list[Event] = []
    pool: list[Event] = []
    other: list[Event] = []
    for step in range(3):
        at = step * 50 * MS
        of_run: dict[str, int | str] = {"run_id": run + step, "device_ordinal": ordinal}
        if marked:
            host.append(("train", at, 40 * MS, {"step_num": step}))
        host.append(("PjitFunction(update)", at + MS, 2 * MS, {}))
        host.append(("$contextlib.py:130 __enter__", at + 4 * MS, 4 * MS, {}))
        host.append(("$builtins next", at + 5 * MS, 3 * MS, {}))
        host.append(("$api.py:20 block_until_ready", at + 10 * MS, 30 * MS, {}))
        pool.append(("ThunkExecutor::Execute", at + 10 * MS, 20 * MS, {}))
        pool.append(("while.4", at + 10 * MS, 20 * MS, {"hlo_op": "while.4", **of_run}))
        pool.append(("dot.1", at + 10 * MS, 8 * MS, {"hlo_op": "dot.1", **of_run}))
        pool.append(("dot.2", at + 18 * MS, 8 * MS, {"hlo_op": "dot.2", **of_run}))
        other.append(("all-reduce.9", at + 26 * MS, 4 * MS, {"hlo_op": "all-reduce.9", **of_run}))
    return plane("/host:CPU", {"python": host, "tf_XLAPjRtCpuClient/1": pool, "tf_XLAEigen/2": other})
