"""Find the reader of a trace by its content.

In: a `TraceSource`. Out: the function that reads it; None for a trace of Kineto, which `trace` reads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flatout.errors import InputError
from flatout.read.recognise import format_of_head
from flatout.read.sources import TraceSource
from flatout.read.stream import ByteStream
from flatout.records.events import EventTable, TraceFormat

_HEAD_BYTES = 1 << 16

# Most traces are Kineto's: the readers of other formats are imported when they are needed.


def _xplane(source: TraceSource) -> EventTable:
    from flatout.read.xplane import read_xplane

    return read_xplane(source)


def _jax_trace(source: TraceSource) -> EventTable:
    from flatout.read.jax_trace import read_jax_trace

    return read_jax_trace(source)


def _sqlite(source: TraceSource) -> EventTable:
    from flatout.read.database import Database
    from flatout.read.nsys import read_nsys
    from flatout.read.rocpd import read_rocpd

    with Database(Path(source.path), source.name) as database:
        is_rocpd = any(table.startswith("rocpd_") for table in database.tables)
        is_nsys = any(table.startswith(("CUPTI_", "NVTX_", "TARGET_INFO_")) for table in database.tables)
    if not is_rocpd and not is_nsys:
        raise InputError(
            f"{source.name} is an SQLite file, but has no table of Nsight Systems or of rocprofv3",
            hint="pass what `nsys export --type sqlite` or rocprofv3 wrote",
        )
    return read_rocpd(source) if is_rocpd else read_nsys(source)


def _horovod(source: TraceSource) -> EventTable:
    from flatout.read.horovod import read_horovod

    return read_horovod(source)


def _rocprof(source: TraceSource) -> EventTable:
    from flatout.read.rocprof import read_rocprof

    return read_rocprof(source)


_READERS: dict[TraceFormat, Callable[[TraceSource], EventTable]] = {
    TraceFormat.XPLANE: _xplane,
    TraceFormat.JAX_TRACE: _jax_trace,
    TraceFormat.NSYS: _sqlite,
    TraceFormat.HOROVOD: _horovod,
    TraceFormat.ROCPROF: _rocprof,
}


def other_reader(source: TraceSource) -> Callable[[TraceSource], EventTable] | None:
    """Return the reader of a file in a format other than Kineto's; None for Kineto's."""
    with ByteStream(Path(source.path), source.name) as stream:
        return _READERS.get(format_of_head(stream.read(_HEAD_BYTES)))
