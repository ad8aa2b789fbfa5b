"""Rows of a CSV with their line numbers, and the values in them.

In: a file, gzipped or not. Out: texts by column, numbers. A damaged file or value is a one-line InputError that names
the file, the line and the value.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

from flatout.errors import InputError
from flatout.input_files import open_file

LARGEST = 1e11
LONGEST_JOB_S = 10 * 365 * 86_400.0
SHORTEST_JOB_S = 0.001  # waiting is compared with the duration, and the ratio must be a number
_LONGEST_SHOWN = 60


_EMPTY_HINT = "a job history begins with a row of column names"


class Skipped:
    """Counts, by reason, the rows that were not read as jobs."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, reason: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1


def header(path: Path) -> list[str]:
    """Return the first row: the names of the columns."""
    for _, row in _lines(path):
        return row
    raise InputError(f"{path}: the file is empty", hint=_EMPTY_HINT)


def rows(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's line number, and its values of `columns` then `optional` ("" if the file lacks the column)."""
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise InputError(f"{path}: the file is empty", hint=_EMPTY_HINT)
    _, header_row = first
    names = [name.strip() for name in header_row]
    _check_columns(path, names, columns, optional)
    positions = [names.index(name) if name in names else None for name in (*columns, *optional)]
    for line, row in lines:
        if not row:
            continue
        if len(row) != len(names):
            raise InputError(
                f"{path}, line {line}: a row must have {len(names)} values, but has {len(row)}",
                hint="fix or remove the line; text that contains a comma must be in double quotes",
            )
        yield line, ["" if position is None else row[position] for position in positions]


def _check_columns(path: Path, names: Sequence[str], columns: Sequence[str], optional: Sequence[str]) -> None:
    missing = [name for name in columns if name not in names]
    if missing:
        raise InputError(
            f"{path}: the columns must include {', '.join(columns)}, but `{missing[0]}` is missing",
            hint=f"the first row is: {','.join(names)[:200]}",
        )
    repeated = [name for name in (*columns, *optional) if names.count(name) > 1]
    if repeated:
        raise InputError(f"{path}: each column must appear once, but `{repeated[0]}` appears more than once")


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        with open_file(path) as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
        with open_file(path) as raw:
            opened = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if is_gzip else raw
            file = io.TextIOWrapper(opened, encoding="utf-8-sig", newline="")
            reader = csv.reader(file, strict=True)
            for row in reader:
                yield reader.line_num, row
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}: {error.object[error.start]:#04x})") from None
    except csv.Error as error:
        raise InputError(f"{path}: not a CSV file: {error}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: the gzip file is damaged: {error}", hint="copy it again") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def number(path: Path, line: int, column: str, text: str) -> float:
    """Return the finite number in `text`, at most 3,000 years in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{path}, line {line}: {column} must be a number, but is {text[:_LONGEST_SHOWN]!r}")
    if abs(value) > LARGEST:
        raise InputError(
            f"{path}, line {line}: {column} must be at most {LARGEST:g}, but is {text[:_LONGEST_SHOWN]!r}",
            hint="times are in seconds",
        )
    return value


def whole(path: Path, line: int, column: str, text: str) -> int:
    """Return the whole number in `text`."""
    value = number(path, line, column, text)
    if value != int(value):
        raise InputError(f"{path}, line {line}: {column} must be a whole number, but is {text[:_LONGEST_SHOWN]!r}")
    return int(value)
