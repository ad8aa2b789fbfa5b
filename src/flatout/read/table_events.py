"""Write the events of a table as events of the Trace Event Format, to draw a trace whose file is in another format.

In: an `EventTable`. Out: its events, with what the table holds of them: kind, name, thread, times, sizes. What the
reader skipped is not drawn.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from flatout.records.events import NULL, EventTable, Kind, OriginalEvent

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


def events_of(table: EventTable) -> Iterator[OriginalEvent]:
    """Yield the events in the table's order."""
    encode = msgspec.json.Encoder().encode
    raw_name = [msgspec.Raw(encode(name)) for name in table.names]
    raw_category = {kind: msgspec.Raw(encode(category)) for kind, category in _CATEGORIES.items()}
    columns = (
        table.kind,
        table.name,
        table.start_ns,
        table.duration_ns,
        table.thread,
        table.correlation,
        table.num_bytes,
    )
    for kind, name, start_ns, duration_ns, thread, correlation, num_bytes in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        process, tid = table.threads[thread] if thread != NULL else ("0", "0")
        fields = {
            "ph": msgspec.Raw(b'"X"'),
            "cat": raw_category[Kind(kind)],
            "name": raw_name[name],
            "pid": msgspec.Raw(encode(process)),
            "tid": msgspec.Raw(encode(tid)),
            "ts": msgspec.Raw(b"0"),
            "dur": msgspec.Raw(b"0"),
        }
        known = {"correlation": correlation, "bytes": num_bytes}
        arguments = {key: value for key, value in known.items() if value != NULL}
        if arguments:
            fields["args"] = msgspec.Raw(encode(arguments))
        yield OriginalEvent(
            fields=fields,
            phase="X",
            process=process,
            thread=tid,
            kind=Kind(kind),
            start_ns=start_ns,
            duration_ns=duration_ns,
        )
