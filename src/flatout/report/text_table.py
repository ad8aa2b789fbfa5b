"""Print a table on a terminal; columns that do not fit are wrapped within their own width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from flatout.report.terminal import TextStyle

GAP = 2
SMALLEST_WIDTH = 12  # no column is narrowed below this


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, style: TextStyle, flexible: Sequence[int]
) -> list[str]:
    """Return the lines of the table. The columns in `flexible` are narrowed, widest first, until the table fits."""
    cells = [[style.clean(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    while sum(widths) + GAP * (len(widths) - 1) > style.width:
        widest = max(flexible, key=lambda column: widths[column])
        if widths[widest] <= SMALLEST_WIDTH:
            break
        widths[widest] -= 1
    lines = [style.dim(line) for line in _row(header, widths)]
    for row in cells:
        lines += _row(row, widths)
    return lines


def _row(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    wrapped = [
        textwrap.wrap(cell, width, subsequent_indent="" if number else "  ", break_on_hyphens=False) or [""]
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    columns = [[f"{line:<{width}}" for line in lines] for lines, width in zip(wrapped, widths, strict=True)]
    blank = [" " * width for width in widths]
    return [(" " * GAP).join(line).rstrip() for line in _filled(columns, blank)]


def _filled(columns: Sequence[Sequence[str]], blank: Sequence[str]) -> Iterator[list[str]]:
    for line in range(max(map(len, columns))):
        yield [column[line] if line < len(column) else empty for column, empty in zip(columns, blank, strict=True)]
