"""Rows of an XLA profile as columns: choose some, join them, and number collectives that repeat.

In and out: columns by name, one value for each row. A column that some rows lack is NULL there.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.read.decoded import Columns
from flatout.read.xla_lines import XlaLine
from flatout.read.xla_steps import outermost
from flatout.records.events import NULL

Rows = dict[str, NDArray[Any]]


def is_within_another(line: XlaLine, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which of the rows are within another of them."""
    result = rows.copy()
    result[outermost(line, np.flatnonzero(rows))] = False
    return result


def times_of(line: XlaLine) -> Rows:
    return {"start_ns": line.start_ns, "duration_ns": line.duration_ns}


def kept(rows: Rows, is_kept: NDArray[np.bool_]) -> Rows | None:
    if not is_kept.any():
        return None
    return {column: values[is_kept] for column, values in rows.items()}


def all_of(pieces: Sequence[Rows], column: str) -> NDArray[np.int64]:
    values = np.concatenate([piece[column] for piece in pieces]) if pieces else np.zeros(0, np.int64)
    return np.asarray(values[values != NULL])


def concatenated(pieces: Sequence[Rows]) -> Columns:
    """Join pieces; a column that a piece lacks is NULL there."""
    columns: Columns = {"start_ns": np.zeros(0, np.int64), "duration_ns": np.zeros(0, np.int64)}
    for column in dict.fromkeys(column for piece in pieces for column in piece):
        columns[column] = np.concatenate([piece.get(column, np.full(len(piece["start_ns"]), NULL)) for piece in pieces])
    return columns


def number_repetitions(sequence: NDArray[np.int64], start_ns: NDArray[np.int64]) -> None:
    """Change the numbers of collectives that run several times within one run, in the order in which they begin."""
    rows = np.flatnonzero(sequence != NULL)
    rows = rows[np.lexsort((start_ns[rows], sequence[rows]))]
    numbers = sequence[rows]
    is_repeated = np.zeros(len(rows), np.bool_)
    is_repeated[1:] = numbers[1:] == numbers[:-1]
    place = np.arange(len(rows))
    repetitions = place - np.maximum.accumulate(np.where(is_repeated, 0, place))
    chosen = np.flatnonzero(is_repeated)
    for row, number, repetition in zip(
        rows[chosen].tolist(), numbers[chosen].tolist(), repetitions[chosen].tolist(), strict=True
    ):
        sequence[row] = number & ~0xFFFFFFFF | zlib.crc32(b"%d %d" % (number, repetition))
