"""Read the rows of a user's CSV that must have certain columns, with one line for whatever is wrong with it.

In: a path and the names of the columns. Out: the rows as dictionaries, each with the number of its line. Names of
columns are stripped; a mark at the beginning of the file that says UTF-8 is skipped.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flatout.errors import InputError
from flatout.input_files import open_csv

Row = dict[str, str | None]  # a row that is too long has its other cells under None


@contextmanager
def csv_table(path: Path) -> Iterator[csv.DictReader[str]]:
    """Open a table, which has the names of its columns in `fieldnames`. Raises InputError (one line)."""
    try:
        with open_csv(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            yield reader
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` is not valid CSV: {error}") from None


def csv_rows(path: Path, columns: Sequence[str], *, hint: str = "") -> Iterator[tuple[int, Row]]:
    """Yield each row with its line number. Raises InputError (one line); `hint` is for a file that lacks a column."""
    with csv_table(path) as reader:
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(
                f"`{path}` must have the columns {', '.join(columns)}, but has no {', '.join(missing)}", hint=hint
            )
        for row in reader:
            yield reader.line_num, row
