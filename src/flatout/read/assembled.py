"""Build an event table from the columns of a reader that is not Kineto's.

In: the columns that a source has, in any order of events, with its dictionaries. Out: a checked `EventTable`; columns
that the source lacks are `NULL`. Events whose times cannot be used are skipped and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.errors import InputError
from flatout.read.decoded import Columns, Decoded, Dictionaries
from flatout.read.metadata import FileMetadata
from flatout.read.table import build_table
from flatout.records.events import COLUMNS, NULL, CollectiveArgs, EventTable, Quality, TraceFormat

_LATEST_NS = 1 << 62  # a start and a duration below it have a sum that fits 64 bits
_LONGEST_NS = 1 << 61


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What a table is built from, besides its columns."""

    path: str  # as shown to the user
    format: TraceFormat
    metadata: FileMetadata
    names: Sequence[str]
    threads: Sequence[tuple[str, str]]  # (process, thread); one process
    collectives: Sequence[CollectiveArgs] = ()
    quality: tuple[Quality, ...] = ()
    dropped: Mapping[str, int] = {}  # events that no analysis needs, by what they are
    knows_host: bool = True  # as in TraceMeta
    runs_beside_host: bool = False  # operators run while the thread that marks the steps does something else


def assemble(columns: Columns, source: Source) -> EventTable:
    """Return the table of the columns. Raises InputError if no event is left."""
    start_ns, duration_ns = columns["start_ns"], columns["duration_ns"]
    is_placed = (start_ns >= 0) & (start_ns < _LATEST_NS) & (duration_ns < _LONGEST_NS)
    num_events = int(is_placed.sum())
    placed = slice(None) if num_events == len(is_placed) else is_placed
    if not num_events:
        raise InputError(f"{source.path} has no events of an operator, a launch or a kernel", hint="record it again")
    filled: dict[str, NDArray[Any]] = {}
    for column, dtype in COLUMNS.items():
        values = columns.get(column)
        filled[column] = (
            np.full(num_events, NULL, dtype) if values is None else values[placed].astype(dtype, copy=False)
        )
    dictionaries = Dictionaries(
        names=list(source.names),
        threads=list(source.threads),
        shapes=[],
        collectives=list(source.collectives),
        dropped=Counter(source.dropped),
        damage=Counter({"no time": len(is_placed) - num_events}),
        unknown_categories=set(),
    )
    decoded = Decoded(pieces=[filled], decoder_of_piece=[0], decoders=[dictionaries])
    table = build_table(decoded, source.metadata, source.path, source.quality)
    meta = msgspec.structs.replace(
        table.meta, format=source.format, runs_beside_host=source.runs_beside_host, knows_host=source.knows_host
    )
    table = msgspec.structs.replace(table, meta=meta)
    table.check()
    return table
