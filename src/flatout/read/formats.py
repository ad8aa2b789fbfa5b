"""Find the reader of a trace by its content.

In: a `TraceSource`. Out: the function that reads it; None for a trace of Kineto, which `trace` reads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flatout.read.recognise import format_of_head
from flatout.read.sources import TraceSource
from flatout.read.stream import ByteStream
from flatout.records.events import EventTable, TraceFormat

_HEAD_BYTES = 1 << 16

# Most traces are Kineto's: the readers of other formats are imported when they are needed.


def _xplane(source: TraceSource) -> EventTable:
    from flatout.read.xplane import read_xplane

    return read_xplane(source)


def _nsys(source: TraceSource) -> EventTable:
    from flatout.read.nsys import read_nsys

    return read_nsys(source)


def _horovod(source: TraceSource) -> EventTable:
    from flatout.read.horovod import read_horovod

    return read_horovod(source)


_READERS: dict[TraceFormat, Callable[[TraceSource], EventTable]] = {
    TraceFormat.XPLANE: _xplane,
    TraceFormat.NSYS: _nsys,
    TraceFormat.HOROVOD: _horovod,
}


def other_reader(source: TraceSource) -> Callable[[TraceSource], EventTable] | None:
    """Return the reader of a file in a format other than Kineto's; None for Kineto's."""
    with ByteStream(Path(source.path), source.name) as stream:
        return _READERS.get(format_of_head(stream.read(_HEAD_BYTES)))
