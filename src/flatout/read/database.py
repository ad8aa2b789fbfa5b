"""Read tables of an untrusted SQLite file as numpy arrays.

In: a path. Out: columns of the tables that exist, as integers; a column that a table lacks, and a value that is absent,
is `NULL`. Only tables are read, never views, so that no query in the file runs. Of a damaged file, the rows before the
damage are kept.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from flatout.errors import InputError
from flatout.input_files import open_file
from flatout.records.events import NULL, Quality

MAGIC = b"SQLite format 3\x00"
_JOURNALS = ("-wal", "-journal")  # of a file that is being written, or whose writer was killed
_MAX_TEXT = 4096
_IDENTIFIER_QUOTE = '"'


class Database:
    """An SQLite file, opened to read. Use: `with Database(path, name) as database: ...`."""

    def __init__(self, path: Path, name: str) -> None:
        self.damage: str | None = None
        self._name = name
        self._has_journal = any(_has_content(path.with_name(path.name + suffix)) for suffix in _JOURNALS)
        with open_file(path) as file:  # refuses anything but a regular file
            is_packed = file.read(len(MAGIC)) != MAGIC
        if is_packed:
            raise InputError(f"{name} must not be compressed to be read as SQLite", hint="unpack it first: gunzip FILE")
        # Immutable: no lock, no journal, and nothing is written to the folder.
        self._connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._connection.execute("PRAGMA cell_size_check = ON")
            listed = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            self.tables = {str(row[0]) for row in listed}
        except (sqlite3.Error, ValueError) as error:
            self._connection.close()
            raise InputError(f"{name} is a damaged SQLite file: {error}", hint="copy or export it again") from error

    def __enter__(self) -> Database:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def columns_of(self, table: str) -> set[str]:
        """Return the names of a table's columns; empty if there is no such table."""
        if table not in self.tables:
            return set()
        return {str(row[1]) for row in self._rows(f"PRAGMA table_info({_quoted(table)})")}

    def integers(
        self, table: str, columns: Sequence[str], where: str = "", values: Sequence[int] = ()
    ) -> dict[str, NDArray[np.int64]]:
        """Return columns of a table, in the order of its rows; of no length if there is no such table.

        `where` is a condition on the rows, with a `?` for each of `values`.
        """
        known = self.columns_of(table)
        present = [name for name in columns if known and name in known | {"rowid"}]
        flat = self._flat(table, present, f" WHERE {where}" if where else "", values)
        rows = flat.reshape(-1, len(present)) if present else flat.reshape(0, 1)
        of_name = {name: np.ascontiguousarray(rows[:, place]) for place, name in enumerate(present)}
        absent = np.full(len(rows), NULL, np.int64)
        return {name: of_name.get(name, absent) for name in columns}

    def texts(self, table: str, key: str, text: str, where: str = "", values: Sequence[int] = ()) -> dict[int, str]:
        """Return the texts of a table by their integer keys, without those that are empty."""
        if not {key, text} <= self.columns_of(table) | {"rowid"}:
            return {}
        condition = f"{_quoted(text)} != ''" + (f" AND ({where})" if where else "")
        query = (
            f"SELECT {_quoted(key)}, substr({_quoted(text)}, 1, {_MAX_TEXT}) FROM {_quoted(table)} WHERE {condition}"
        )
        return {row[0]: str(row[1]) for row in self._rows(query, values) if isinstance(row[0], int)}

    def rows(self, table: str, columns: Sequence[str], limit: int = 1000) -> list[tuple[Any, ...]]:
        """Return the first rows of a small table; empty if it lacks one of the columns."""
        if not set(columns) <= self.columns_of(table):
            return []
        query = f"SELECT {', '.join(map(_quoted, columns))} FROM {_quoted(table)} LIMIT {limit}"
        return list(self._rows(query))

    def quality(self) -> tuple[Quality, ...]:
        """Return the notes on damage, and on a file that is not complete."""
        notes = []
        if self.damage is not None:
            notes.append(
                Quality(
                    problem=f"the file is damaged: {self.damage}",
                    effect="events after the damage are missing, and show as idle time",
                    max_confidence="inconclusive",
                )
            )
        if self._has_journal:
            notes.append(
                Quality(
                    problem="the file has a journal: it is still being written, or its writer was killed",
                    effect="what the journal holds is missing: open the file with sqlite3 once, and diagnose it again",
                    max_confidence="inconclusive",
                )
            )
        return tuple(notes)

    def _flat(self, table: str, columns: Sequence[str], where: str, values: Sequence[int]) -> NDArray[np.int64]:
        """Return the integers of all rows, one row after the other. A conversion costs time that few tables need."""
        for value in ("coalesce({}, {})", "coalesce(CAST({} AS INTEGER), {})"):
            selected = ", ".join(value.format(_quoted(name), NULL) for name in columns)
            query = f"SELECT {selected} FROM {_quoted(table)}{where}"
            rows = self._rows(query, values) if columns else ()
            with suppress(TypeError, ValueError, OverflowError):
                return np.fromiter(chain.from_iterable(rows), np.int64)
        raise AssertionError("a CAST gives integers")

    def _rows(self, query: str, values: Sequence[int] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query, up to the damage of the file."""
        try:
            yield from self._connection.execute(query, values)
        except (sqlite3.Error, ValueError, OverflowError) as error:
            self.damage = str(error)


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _quoted(name: str) -> str:
    return _IDENTIFIER_QUOTE + name.replace(_IDENTIFIER_QUOTE, 2 * _IDENTIFIER_QUOTE) + _IDENTIFIER_QUOTE
