"""Rows of a CSV with a line number, and the values in them, or an error of one line that says where and what."""

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

LARGEST = 1e11
_LONGEST_SHOWN = 60


def header(path: Path) -> list[str]:
    """The first row: the names of the columns."""
    for _, row in _lines(path):
        return row
    raise InputError(f"{path}: the file is empty", hint="a job history begins with a row of column names")


def rows(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[tuple[int, list[str]]]:
    """Line number and the values of `columns` then `optional` ("" where the file lacks one), whatever their order."""
    names: list[str] | None = None
    picked: list[int] = []
    for line, row in _lines(path):
        if names is None:
            names = [name.strip() for name in row]
            missing = [name for name in columns if name not in names]
            if missing:
                raise InputError(
                    f"{path}: the columns must include {', '.join(columns)}, but `{missing[0]}` isn't there",
                    hint=f"the first row is: {','.join(names)[:200]}",
                )
            twice = [name for name in (*columns, *optional) if names.count(name) > 1]
            if twice:
                raise InputError(f"{path}: each column must be there once, but `{twice[0]}` is there twice")
            picked = [names.index(name) if name in names else -1 for name in (*columns, *optional)]
            continue
        if not row:
            continue
        if len(row) != len(names):
            raise InputError(
                f"{path}, line {line}: a row must have {len(names)} values, but has {len(row)}",
                hint="mend or remove the line; a text with a comma in it must be in double quotes",
            )
        yield line, [row[place] if place >= 0 else "" for place in picked]
    if names is None:
        raise InputError(f"{path}: the file is empty", hint="a job history begins with a row of column names")


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as opened:
            file = io.TextIOWrapper(cast(IO[bytes], opened), encoding="utf-8-sig", newline="")
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
    """A finite number, of 3,000 years in seconds at the most."""
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
    """A whole number."""
    value = number(path, line, column, text)
    if value != int(value):
        raise InputError(f"{path}, line {line}: {column} must be a whole number, but is {text[:_LONGEST_SHOWN]!r}")
    return int(value)


def left_out(counts: dict[str, int], why: str) -> None:
    counts[why] = counts.get(why, 0) + 1
