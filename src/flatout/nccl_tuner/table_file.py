"""The file of a `CollectiveTable`: a heading, then one row per line with eight columns.

    flatout-collective-table 1
    # collective   min_bytes  max_bytes  ranks  nodes  algorithm  protocol  channels
    all_reduce     0          65536      8      1      tree       ll        *
    all_gather     65537      *          *      *      *          *         8

`*` stands for any (ranks, nodes), without limit (max_bytes) and the library's own choice (the last three). The plugin
in C reads the same text by the same rules; what either refuses, both refuse. A table that is wrong anywhere is refused
as a whole, because rows that are missing on some ranks only would make them wait for each other.
"""

from __future__ import annotations

import heapq
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from flatout.errors import InputError
from flatout.input_files import read_bytes
from flatout.records.collective_table import (
    ALGORITHMS,
    COLLECTIVES,
    MAX_BYTES,
    MAX_CHANNELS,
    MIN_CHANNELS,
    PROTOCOLS,
    CollectiveTable,
    TableRow,
)

HEADING = "flatout-collective-table 1"
COLUMNS = ("collective", "min_bytes", "max_bytes", "ranks", "nodes", "algorithm", "protocol", "channels")
ANY = "*"
MAX_ROWS = 100_000
MAX_LINE = 255
MAX_FILE_BYTES = 16 << 20
_MAX_COUNT = (1 << 31) - 1
_NUMBER = re.compile(r"[0-9]{1,20}")
_WHITE_SPACE = re.compile("[ \t]+")


class _BadRowError(Exception):
    """A line that is not a row, with the reason."""


def read_table(path: Path) -> CollectiveTable:
    """Read a table. Raises InputError, whose line names the file, the line and what is wrong there."""
    try:
        text = read_bytes(path, max_bytes=MAX_FILE_BYTES).decode("utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a table of collectives: it is not a text") from error
    return parse_table(text, str(path))


def parse_table(text: str, name: str) -> CollectiveTable:
    """Return the table in a text; `name` is that of its file, for errors. Raises InputError."""
    if "\0" in text:
        raise InputError(f"{name} is not a table of collectives: it is not a text")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if lines[0] != HEADING:
        raise InputError(
            f"{name} is not a table of collectives: its first line is not `{HEADING}`",
            hint="flatout tune nccl writes such a table",
        )
    rows: list[TableRow] = []
    numbers: list[int] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            row = _row(line)
        except _BadRowError as error:
            raise InputError(f"{name}, line {number}: {error}") from None
        if row is not None:
            rows.append(row)
            numbers.append(number)
    if len(rows) > MAX_ROWS:
        raise InputError(f"{name} has more than {MAX_ROWS:,} rows")
    _check_overlaps(rows, numbers, name)
    return CollectiveTable(rows=tuple(rows))


def table_text(table: CollectiveTable, comments: Sequence[str] = ()) -> str:
    """Return the text of a table, with comments between its heading and its rows."""
    cells = [COLUMNS, *(_cells(row) for row in table.rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    aligned = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    ]
    notes = [f"# {line}"[:MAX_LINE] for line in comments]
    return "\n".join([HEADING, *notes, f"# {aligned[0]}", *(f"  {line}" for line in aligned[1:])]) + "\n"


def checksum(content: bytes) -> str:
    """Return the checksum by which the plugin knows the table that the ranks have compared."""
    return f"{zlib.crc32(content):08x}"


def _row(line: str) -> TableRow | None:
    """Return the row in a line; None for an empty line or a comment."""
    if len(line.encode()) > MAX_LINE:
        raise _BadRowError(f"it has more than {MAX_LINE} characters")
    if line.startswith("#"):
        return None
    cells = [cell for cell in _WHITE_SPACE.split(line) if cell]
    if not cells:
        return None
    if len(cells) != len(COLUMNS):
        raise _BadRowError(f"it must have {len(COLUMNS)} columns, but has {len(cells)}")
    cell = dict(zip(COLUMNS, cells, strict=True))
    if cell["collective"] not in COLLECTIVES:
        raise _BadRowError(f"`{cell['collective']}` is not a collective: {', '.join(COLLECTIVES)}")
    min_bytes = _number(cell["min_bytes"], "bytes", 0, MAX_BYTES)
    max_bytes = _optional(cell["max_bytes"], "bytes", 0, MAX_BYTES)
    if max_bytes is not None and max_bytes < min_bytes:
        raise _BadRowError(f"the smallest size is above the largest: {min_bytes} and {max_bytes}")
    return TableRow(
        collective=cell["collective"],
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        num_ranks=_optional(cell["ranks"], "ranks", 1, _MAX_COUNT),
        num_nodes=_optional(cell["nodes"], "nodes", 1, _MAX_COUNT),
        algorithm=_choice(cell, "algorithm", ALGORITHMS),
        protocol=_choice(cell, "protocol", PROTOCOLS),
        max_channels=_optional(cell["channels"], "channels", MIN_CHANNELS, MAX_CHANNELS),
    )


def _number(text: str, what: str, least: int, most: int) -> int:
    if _NUMBER.fullmatch(text) and least <= int(text) <= most:
        return int(text)
    limits = f" from {least} to {most}" if what == "channels" else ""
    raise _BadRowError(f"`{text}` is not a number of {what}{limits}")


def _optional(text: str, what: str, least: int, most: int) -> int | None:
    return None if text == ANY else _number(text, what, least, most)


def _choice(cell: Mapping[str, str], column: str, names: Sequence[str]) -> str | None:
    text = cell[column]
    if text == ANY:
        return None
    if text not in names:
        raise _BadRowError(f"`{text}` is not {'an' if column == 'algorithm' else 'a'} {column}: {', '.join(names)}")
    return text


def _check_overlaps(rows: Sequence[TableRow], numbers: Sequence[int], name: str) -> None:
    """Raise InputError if two rows can apply to one call, since the order of rows decides nothing."""
    places = sorted(range(len(rows)), key=lambda place: (rows[place].collective, rows[place].min_bytes))
    open_rows = _OpenRows(rows)
    collective = ""
    for place in places:
        row = rows[place]
        if row.collective != collective:
            collective, open_rows = row.collective, _OpenRows(rows)
        open_rows.close_before(row.min_bytes)
        other = open_rows.overlapping(row)
        if other is not None:
            first, second = sorted((numbers[other], numbers[place]))
            raise InputError(
                f"{name}: lines {first} and {second} overlap: both would apply to {row.collective} of"
                f" {row.min_bytes} bytes"
            )
        open_rows.add(place)


class _OpenRows:
    """The rows of a collective that reach the current size, by their groups, so that 100,000 rows take a second."""

    def __init__(self, rows: Sequence[TableRow]) -> None:
        self._rows = rows
        self._ends: list[tuple[int, int]] = []  # a heap of last bytes and places
        self._by_ranks: dict[int | None, dict[int | None, int]] = {}  # ranks -> nodes -> place
        self._by_nodes: dict[int | None, dict[int | None, int]] = {}  # nodes -> ranks -> place

    def add(self, place: int) -> None:
        row = self._rows[place]
        heapq.heappush(self._ends, (row.last_byte, place))
        self._by_ranks.setdefault(row.num_ranks, {})[row.num_nodes] = place
        self._by_nodes.setdefault(row.num_nodes, {})[row.num_ranks] = place

    def close_before(self, num_bytes: int) -> None:
        while self._ends and self._ends[0][0] < num_bytes:
            row = self._rows[heapq.heappop(self._ends)[1]]
            del self._by_ranks[row.num_ranks][row.num_nodes]
            del self._by_nodes[row.num_nodes][row.num_ranks]

    def overlapping(self, row: TableRow) -> int | None:
        """Return the place of an open row for the same group or for one that can be the same; None if there is none."""
        if row.num_ranks is None and row.num_nodes is None:
            return self._ends[0][1] if self._ends else None
        if row.num_ranks is None:
            found = (*self._by_nodes.get(row.num_nodes, {}).values(), *self._by_nodes.get(None, {}).values())
            return found[0] if found else None
        if row.num_nodes is None:
            found = (*self._by_ranks.get(row.num_ranks, {}).values(), *self._by_ranks.get(None, {}).values())
            return found[0] if found else None
        for ranks in (row.num_ranks, None):
            for nodes in (row.num_nodes, None):
                place = self._by_ranks.get(ranks, {}).get(nodes)
                if place is not None:
                    return place
        return None


def _cells(row: TableRow) -> tuple[str, ...]:
    values = (
        *(row.collective, row.min_bytes, row.max_bytes, row.num_ranks, row.num_nodes),
        *(row.algorithm, row.protocol, row.max_channels),
    )
    return tuple(ANY if value is None else str(value) for value in values)
