"""Read one trace file into one event table.

In: a `TraceSource`. Out: an `EventTable` that passes `check()`; the notes in `TraceSource.quality` are not repeated in
it. Raises InputError if nothing can be read.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flatout import units
from flatout.errors import InputError
from flatout.read import metadata
from flatout.read.columns import BlockDecoder
from flatout.read.decoded import Decoded
from flatout.read.event_text import EXPORT_HINT, EventText
from flatout.read.formats import other_reader
from flatout.read.ranks import rank_in_name
from flatout.read.sources import TraceSource
from flatout.read.stream import ByteStream
from flatout.read.table import build_table
from flatout.records.events import EventTable, Quality

# Below this, starting processes costs more than they save.
_MIN_PARALLEL_BYTES = 96 << 20
_BRACKET_BYTES = 4  # of a list that was opened, and perhaps closed
_NO_OPERATION_HINT = (
    "the job ended before its profiler wrote an event: a timeline of Horovod begins with the first operation"
)
_TYPICAL_RATIO = 12  # size of a trace over that of its gzip file


def read_trace(source: TraceSource, *, num_workers: int = 1) -> EventTable:
    """Read a trace of any format; with `num_workers` above 1, that number of processes decode a large file."""
    with input_errors(source.name):
        read_other = other_reader(source)
        if read_other is not None:
            with _no_garbage_collection():
                return read_other(source)
    if num_workers > 1 and _is_large(source):
        from flatout.read import workers  # the imports cost more than a small file

        if workers.can_fork():
            with suppress(workers.WorkerLostError):
                return _read(source, lambda blocks: workers.decode_in_processes(blocks, num_workers))
    return _read(source, _decode_here)


def _read(source: TraceSource, decode: Callable[[Iterator[bytes]], Decoded]) -> EventTable:
    with _no_garbage_collection(), input_errors(source.name):
        with ByteStream(Path(source.path), source.name) as stream:
            text = EventText(stream, source.name)
            decoded = decode(text.blocks())
            quality = (*_cut_short(text, stream), *_trailing_comma(text))
        file_metadata = metadata.parse(text.head, text.tail)
        if source.part is not None:  # the metadata are those of one of the merged files
            file_metadata.rank, file_metadata.hostname = source.part.rank, None
        elif file_metadata.rank is None:
            file_metadata.rank = rank_in_name(source.name)
        table = build_table(decoded, file_metadata, source.name, quality, source.part)
    if not table.num_events:
        raise _no_events(source, table)
    table.check()
    return table


def _decode_here(blocks: Iterator[bytes]) -> Decoded:
    decoder = BlockDecoder()
    pieces = [decoder.decode(block) for block in blocks]
    return Decoded(pieces=pieces, decoder_of_piece=[0] * len(pieces), decoders=[decoder.finish()])


def _is_large(source: TraceSource) -> bool:
    ratio = _TYPICAL_RATIO if source.path.endswith(".gz") else 1
    return source.size_bytes * ratio >= _MIN_PARALLEL_BYTES


def _cut_short(text: EventText, stream: ByteStream) -> tuple[Quality, ...]:
    if text.is_cut_short:
        return (_truncated(text, stream),)
    if stream.problem is not None:
        problem = f"after the last event, {stream.problem}"
        return (Quality(problem=problem, effect="no event is missing, but some may hold wrong values"),)
    return ()


def _truncated(text: EventText, stream: ByteStream) -> Quality:
    why = stream.problem or "the file ends inside the list of events"
    problem = f"the trace is truncated after {units.num_bytes(text.num_bytes)}: {why}"
    is_bare_list = not text.head
    if is_bare_list and stream.problem is None:
        return Quality(
            problem=problem, effect="later events may be missing; a bare list may also end without its bracket"
        )
    effect = (
        "later events are missing, and so is any metadata after the events; profilers do not write events in order of"
        " time, so work of any step can be missing, and shows as idle"
    )
    return Quality(problem=problem, effect=effect, max_confidence="inconclusive")


def _trailing_comma(text: EventText) -> tuple[Quality, ...]:
    if not text.has_trailing_comma:
        return ()
    return (
        Quality(
            problem="a comma follows the last event, which JSON does not allow",
            effect="none, unless the file was put together by hand and lacks events there",
        ),
    )


def _no_events(source: TraceSource, table: EventTable) -> InputError:
    num_dropped = sum(count for _, count in table.dropped)
    found = "no events" if not num_dropped else f"{num_dropped:,} events, but none of an operator, a launch or a kernel"
    is_only_a_bracket = not num_dropped and source.size_bytes <= _BRACKET_BYTES
    hint = _NO_OPERATION_HINT if is_only_a_bracket else EXPORT_HINT
    return InputError(f"{source.name} has {found}", hint=hint)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: decoding creates many objects and no cycles, and collections double its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def input_errors(name: str) -> Iterator[None]:
    """Convert a file's OSError into a one-line InputError."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{name} does not exist", hint="check the path") from error
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}", hint="check its permissions") from error
