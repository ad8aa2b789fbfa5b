"""Read a large file of each format but Kineto's: XPlane, Nsight Systems SQLite, Horovod, rocprofv3, rocpd, JAX's JSON.

    python benchmarks/read_traces.py                        # about a million events each
    python benchmarks/read_traces.py --events 100000 --only nsys

Each file is a small one of the tests, of known content, whose events are repeated, each time later. Each is read into
an event table, which includes sorting and classifying, in a fresh process, ROUNDS times. The seconds are those of the
processor, after the imports: other work does not count. Events are those of the file, each once, however many ranks it
is read for: rows of its tables (of rocpd without those of `rocpd_event`, which belong to other rows), records of its
lists, lines of its timeline, complete events of JAX. The XPlane is that of `read_xplane.py`, which compares with JAX's
own reader.

Beside it stands what decoding alone takes, `bare`: the rows of SQLite's tables fetched by Python's `sqlite3`, or the
JSON decoded by `msgspec` into the reader's structs, and nothing else done with it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import read_xplane
from measure import machine, repository

sys.path.insert(0, str(repository()))
from tests.read import rocprof_files, sqlite_files

READ = """
import sys, time
from pathlib import Path
from flatout.read import SeveralRanksError, TraceSource, horovod, jax_trace, nsys, read_trace, rocpd, rocprof, xla_table
path = Path(sys.argv[1])
source = TraceSource(path=str(path), name=path.name, size_bytes=path.stat().st_size)
begin = time.process_time()
try:
    tables = [read_trace(source)]
except SeveralRanksError as error:
    tables = [read_trace(part) for part in source.split(error.parts)]
print(time.process_time() - begin, sum(table.num_events for table in tables))
"""
BARE_SQLITE = """
import sqlite3, sys, time
from collections import deque
connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro&immutable=1", uri=True)
tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
begin = time.process_time()
for table, in tables:
    deque(connection.execute(f'SELECT * FROM "{table}"'), maxlen=0)
print(time.process_time() - begin)
"""
BARE_EVENTS = """
import sys, time
from collections import Counter
from pathlib import Path
from flatout.read import {reader}
from flatout.read.event_text import EventText
from flatout.read.stream import ByteStream
begin = time.process_time()
with ByteStream(Path(sys.argv[1]), "trace") as stream:
    for block in EventText(stream, "trace").blocks():
        {reader}._DECODER.events(block, Counter())
print(time.process_time() - begin)
"""
BARE_ROCPROF = """
import sys, time
from pathlib import Path
import msgspec
from flatout.read import rocprof
kinds = {"kernel_dispatch": rocprof._Launched, "memory_copy": rocprof._Copy, "hip_api": rocprof._Call}
begin = time.process_time()
for process in msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=rocprof._File).processes:
    for name, kind in kinds.items():
        for records in rocprof._blocks(getattr(process.buffer_records, name), kind):
            pass
print(time.process_time() - begin)
"""
STEP_NS = 100 * sqlite_files.MS
COMPACT = (",", ":")  # as rocprofv3 and XLA write JSON


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=FILES, help="read one format alone")
    parser.add_argument("--out", type=Path, default=repository() / "benchmarks/results/read_traces.json")
    options = parser.parse_args()
    formats = {name: measured(name, options.events, options.rounds) for name in FILES if options.only in (None, name)}
    options.out.write_text(json.dumps({"machine": machine(), "formats": formats}, indent=1) + "\n")
    print(json.dumps({name: each["events_per_s"] for name, each in formats.items()}))


def measured(name: str, num_events: int, rounds: int) -> dict[str, Any]:
    """Write the file and read it `rounds` times; return the seconds and the events."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.trace.json"
        in_file = FILES[name](path, num_events)
        size = path.stat().st_size
        outputs = [output_of(READ, path) for _ in range(rounds)]
        bare = [float(output_of(BARE[name], path)) for _ in range(rounds)] if name in BARE else []
    seconds = [float(output.split()[0]) for output in outputs]
    result = {
        "events": in_file,
        "events_of_table": int(outputs[0].split()[1]),
        "bytes": size,
        "seconds": seconds,
        "events_per_s": round(in_file / statistics.median(seconds)),
    }
    if bare:
        result |= {"bare_seconds": bare, "bare_events_per_s": round(in_file / statistics.median(bare))}
    return result


def output_of(script: str, path: Path) -> str:
    command = [sys.executable, "-c", script, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def write_xplane(path: Path, num_events: int) -> int:
    """Write a recorded profile whose events are repeated to about a million, whatever the number."""
    return read_xplane.write_large(path)


def write_nsys(path: Path, num_events: int) -> int:
    """Write an export of two processes."""
    tables = sqlite_files.nsys_tables((sqlite_files.PID, sqlite_files.PID + 1))
    events = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
    return write_tables(path, tables, events, num_events, links=("correlationId",))


def write_rocpd(path: Path, num_events: int) -> int:
    """Write a database whose rows have their own times, as rocprofv3 writes it."""
    tables = sqlite_files.rocpd_tables()
    names = {name.removesuffix(sqlite_files.ROCPD_ID): name for name in tables}
    timed = [names[name] for name in ("rocpd_kernel_dispatch", "rocpd_memory_copy", "rocpd_region")]
    linked = (*timed, names["rocpd_event"])
    count = write_tables(path, tables, linked, num_events, links=("event_id", "id", "stack_id"))
    return count - count * len(tables[names["rocpd_event"]][1]) // sum(len(tables[name][1]) for name in linked)


def write_tables(
    path: Path, tables: dict[str, Any], events: tuple[str, ...], num_events: int, *, links: tuple[str, ...]
) -> int:
    """Write a database with the rows of `events` repeated, their times later and the numbers in `links` higher."""
    repetitions = max(1, num_events // sum(len(tables[name][1]) for name in events))
    large = dict(tables)
    for name in events:
        columns, rows = tables[name]
        shifts = [3 * STEP_NS * (column in ("start", "end")) + 10**6 * (column in links) for column in columns]
        large[name] = (
            columns,
            [
                tuple(
                    value + number * shift if shift and value is not None else value
                    for value, shift in zip(row, shifts, strict=True)
                )
                for number in range(repetitions)
                for row in rows
            ],
        )
    path.write_bytes(sqlite_files.database(large))
    return repetitions * sum(len(tables[name][1]) for name in events)


def write_rocprof(path: Path, num_events: int) -> int:
    trace = rocprof_files.rocprof((0, 1))
    buffers = trace["rocprofiler-sdk-tool"][0]["buffer_records"]
    repetitions = max(1, num_events // sum(map(len, buffers.values())))
    for kind, records in buffers.items():
        buffers[kind] = [later_record(record, number) for number in range(repetitions) for record in records]
    path.write_text(json.dumps(trace, separators=COMPACT))
    return sum(map(len, buffers.values()))


def later_record(record: dict[str, Any], number: int) -> dict[str, Any]:
    shift_ns = number * 3 * STEP_NS
    link = {"internal": record["correlation_id"]["internal"] + 10**6 * number, "external": 0}
    times = {name: record[name] + shift_ns for name in ("start_timestamp", "end_timestamp")}
    return {**record, **times, "correlation_id": link}


def write_horovod(path: Path, num_events: int) -> int:
    """Write a timeline of three ranks."""
    first, *events = rocprof_files.horovod()
    repetitions = max(1, num_events // len(events))
    repeated = [{**event, "ts": event["ts"] + number * 400_000} for number in range(repetitions) for event in events]
    path.write_text(json.dumps([first, *repeated]))
    return len(repeated)


def write_jax(path: Path, num_events: int) -> int:
    trace = rocprof_files.jax_trace()
    events = trace["traceEvents"]
    marks = [event for event in events if event.get("ph") == "M"]
    calls = [event for event in events if event.get("ph") == "X"]
    repetitions = max(1, num_events // len(calls))
    trace["traceEvents"] = marks + [later_call(call, number) for number in range(repetitions) for call in calls]
    path.write_text(json.dumps(trace, separators=COMPACT))
    return repetitions * len(calls)


def later_call(call: dict[str, Any], number: int) -> dict[str, Any]:
    arguments = dict(call.get("args", {}))
    for name in ("step_num", "run_id"):
        if name in arguments:
            arguments[name] = str(int(arguments[name]) + 3 * number)
    return {**call, "ts": call["ts"] + 150_000.0 * number, **({"args": arguments} if arguments else {})}


FILES: dict[str, Callable[[Path, int], int]] = {
    "xplane": write_xplane,
    "nsys": write_nsys,
    "rocpd": write_rocpd,
    "rocprof": write_rocprof,
    "horovod": write_horovod,
    "jax_trace": write_jax,
}
BARE = {
    "nsys": BARE_SQLITE,
    "rocpd": BARE_SQLITE,
    "rocprof": BARE_ROCPROF,
    "horovod": BARE_EVENTS.format(reader="horovod"),
    "jax_trace": BARE_EVENTS.format(reader="jax_trace"),
}


if __name__ == "__main__":
    main()
