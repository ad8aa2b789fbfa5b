"""Read tables of an untrusted SQLite file as numpy arrays.

In: a path. Out: columns of the tables that exist, as integers; a column that a table lacks, and a value that is absent,
is `NULL`. Only tables are read, never views, so that no query in the file runs. Tables whose rows are plain are read
from their pages, all others by SQLite. Of a damaged file, the rows before the damage are kept.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from flatout.errors import InputError
from flatout.input_files import open_file
from flatout.read.decoded import Codes
from flatout.read.sqlite_pages import NotPlainError, RowBlock, blocks, pages_of
from flatout.records.events import NULL, Quality

MAGIC = b"SQLite format 3\x00"
_JOURNALS = ("-wal", "-journal")  # of a file that is being written, or whose writer was killed
_MAX_TEXT = 4096
_IDENTIFIER_QUOTE = '"'
_ROWID = "rowid"
_DESCENDING = re.compile(r"\bDESC\b", re.IGNORECASE)


class Where(NamedTuple):
    """The rows whose integer in a column passes a test."""

    column: str
    passes: Callable[[NDArray[np.int64]], NDArray[np.bool_]]


class CodedTexts(NamedTuple):
    """The texts of rows: the integer that each row is known by, and its text as an index into `texts`."""

    keys: NDArray[np.int64]
    codes: NDArray[np.int64]
    texts: list[str]


class _Layout(NamedTuple):
    """Where the columns of a table are in its rows."""

    places: dict[str, int]
    root: int | None  # the table's first page; None if only SQLite can read it
    key: str | None  # the column that stands for the number of the row, and is not stored

    def stores(self, name: str) -> bool:
        return name in self.places and name != self.key


class _TextCodes(dict[bytes, int]):
    """The code of each text, in the order of first use; `NULL` for an empty one."""

    def __init__(self) -> None:
        super().__init__({b"": NULL})
        self.texts: list[str] = []

    def __missing__(self, raw: bytes) -> int:
        if b"\0" in raw:  # at which SQLite ends it
            raise NotPlainError
        self.texts.append(raw.decode("utf-8", "replace")[:_MAX_TEXT])
        code = self[raw] = len(self.texts) - 1
        return code


class Database:
    """An SQLite file, opened to read. Use: `with Database(path, name) as database: ...`."""

    def __init__(self, path: Path, name: str) -> None:
        self.damage: str | None = None
        self._name = name
        self._has_journal = any(_has_content(path.with_name(path.name + suffix)) for suffix in _JOURNALS)
        self._layouts: dict[str, _Layout] = {}
        self._file = open_file(path)  # refuses anything but a regular file
        if self._file.read(len(MAGIC)) != MAGIC:
            self._file.close()
            raise InputError(f"{name} must not be compressed to be read as SQLite", hint="unpack it first: gunzip FILE")
        self._pages = pages_of(self._file)
        # Immutable: no lock, no journal, and nothing is written to the folder.
        self._connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._connection.execute("PRAGMA cell_size_check = ON")
            listed = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            self.tables = {str(row[0]) for row in listed}
        except (sqlite3.Error, ValueError) as error:
            self.close()
            raise InputError(f"{name} is a damaged SQLite file: {error}", hint="copy or export it again") from error

    def __enter__(self) -> Database:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()
        self._file.close()

    def columns_of(self, table: str) -> set[str]:
        """Return the names of a table's columns; empty if there is no such table."""
        return set(self._layout(table).places) if table in self.tables else set()

    def integers(self, table: str, columns: Sequence[str], where: Where | None = None) -> dict[str, NDArray[np.int64]]:
        """Return columns of the rows that pass `where`, in the order of the table; of no length without the table."""
        known = self.columns_of(table)
        present = [name for name in columns if known and name in known | {_ROWID}]
        names = list(dict.fromkeys([*present, where.column])) if where is not None else present
        try:
            pieces = [rows for rows, _ in self._blocks(table, names, where)] if present else []
            of_name = {name: np.concatenate([piece[name] for piece in pieces]) for name in present} if pieces else {}
        except NotPlainError:
            of_name = self._of_sqlite(table, names, where)
        num_rows = len(of_name[present[0]]) if of_name else 0
        absent = np.full(num_rows, NULL, np.int64)
        return {name: of_name.get(name, absent) for name in columns}

    def coded_texts(self, table: str, key: str, text: str, where: Where | None = None) -> CodedTexts:
        """Return the texts of the rows that pass `where`, without those that are empty, by an integer column."""
        known = self.columns_of(table) | {_ROWID}
        if not {key, text} <= known:
            return CodedTexts(np.zeros(0, np.int64), np.zeros(0, np.int64), [])
        try:
            return self._texts_of_pages(table, key, text, where)
        except NotPlainError:
            return self._texts_of_sqlite(table, key, text, where)

    def texts(self, table: str, key: str, text: str, where: Where | None = None) -> dict[int, str]:
        """Return the texts of a table by their integer keys, without those that are empty."""
        keys, codes, texts = self.coded_texts(table, key, text, where)
        return {key: texts[code] for key, code in zip(keys.tolist(), codes.tolist(), strict=True)}

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

    def _layout(self, table: str) -> _Layout:
        layout = self._layouts.get(table)
        if layout is None:
            layout = self._layouts[table] = self._layout_of(table)
        return layout

    def _layout_of(self, table: str) -> _Layout:
        described = list(self._rows(f"PRAGMA table_xinfo({_quoted(table)})"))
        found = list(self._rows("SELECT rootpage, sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)))
        root, statement = found[0] if found else (None, "")
        keys = [str(name) for _, name, kind, _, _, key, _ in described if key and str(kind).upper() == "INTEGER"]
        has_one_key = sum(bool(row[5]) for row in described) == 1
        key = keys[0] if keys and has_one_key else None
        is_hidden = any(row[6] for row in described)  # hidden or generated columns are not stored as others
        # An integer key in descending order is a column like any other.
        may_differ = key is not None and _DESCENDING.search(str(statement)) is not None
        is_plain = isinstance(root, int) and not is_hidden and not may_differ
        return _Layout(
            places={str(row[1]): place for place, row in enumerate(described) if not row[6]},
            root=root if is_plain else None,
            key=key,
        )

    def _blocks(
        self, table: str, names: Sequence[str], where: Where | None, text: str | None = None
    ) -> Iterator[tuple[dict[str, NDArray[np.int64]], list[bytes]]]:
        """Yield integer columns of a table and a column of texts. Raises NotPlainError if SQLite must read them."""
        layout = self._layout(table)
        if layout.root is None or self._pages is None:
            raise NotPlainError
        if text is not None and not (self._pages.has_utf_8 and layout.stores(text)):
            raise NotPlainError
        condition = where.column if where is not None else None
        stored = [name for name in (*names, condition, text) if name is not None and layout.stores(name)]
        last = max((layout.places[name] for name in stored), default=0)
        for block in blocks(self._pages, layout.root, last + 1):
            if where is not None:
                block.keep(where.passes(_column(block, layout, where.column)))
            rows = {name: _column(block, layout, name) for name in names}
            yield rows, block.texts(layout.places[text], 4 * _MAX_TEXT) if text is not None else []

    def _of_sqlite(self, table: str, names: Sequence[str], where: Where | None) -> dict[str, NDArray[np.int64]]:
        rows = self._flat(table, names).reshape(-1, len(names))
        chosen = slice(None) if where is None else where.passes(rows[:, names.index(where.column)])
        return {name: np.ascontiguousarray(rows[chosen, place]) for place, name in enumerate(names)}

    def _texts_of_pages(self, table: str, key: str, text: str, where: Where | None) -> CodedTexts:
        code_of, keys, codes = _TextCodes(), [], []
        for rows, texts in self._blocks(table, [key], where, text):
            of_rows = np.array([code_of[each] for each in texts], np.int64)
            has_both = (of_rows != NULL) & (rows[key] != NULL)
            keys.append(rows[key][has_both])
            codes.append(of_rows[has_both])
        return CodedTexts(np.concatenate(keys), np.concatenate(codes), code_of.texts)

    def _texts_of_sqlite(self, table: str, key: str, text: str, where: Where | None) -> CodedTexts:
        columns = f"{_quoted(key)}, substr({_quoted(text)}, 1, {_MAX_TEXT})"
        condition = f"coalesce(CAST({_quoted(where.column)} AS INTEGER), {NULL})" if where is not None else "0"
        query = f"SELECT {columns}, {condition} FROM {_quoted(table)} WHERE {_quoted(text)} != ''"
        rows = [row for row in self._rows(query) if isinstance(row[0], int) and row[0] != NULL]
        if where is not None:
            passes = where.passes(np.array([row[2] for row in rows], np.int64)).tolist()
            rows = [row for row, is_chosen in zip(rows, passes, strict=True) if is_chosen]
        codes: Codes[str] = Codes()
        of_rows = [codes[str(row[1])] for row in rows]
        return CodedTexts(np.array([row[0] for row in rows], np.int64), np.array(of_rows, np.int64), list(codes))

    def _flat(self, table: str, columns: Sequence[str]) -> NDArray[np.int64]:
        """Return the integers of all rows, one row after the other. A conversion costs time that few tables need."""
        for value in ("coalesce({}, {})", "coalesce(CAST({} AS INTEGER), {})"):
            selected = ", ".join(value.format(_quoted(name), NULL) for name in columns)
            rows = self._rows(f"SELECT {selected} FROM {_quoted(table)}")
            with suppress(TypeError, ValueError, OverflowError):
                return np.fromiter(chain.from_iterable(rows), np.int64)
        raise AssertionError("a CAST gives integers")

    def _rows(self, query: str, values: Sequence[str] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query, up to the damage of the file."""
        try:
            yield from self._connection.execute(query, values)
        except (sqlite3.Error, ValueError, OverflowError) as error:
            self.damage = str(error)


def _column(block: RowBlock, layout: _Layout, name: str) -> NDArray[np.int64]:
    return block.integers(layout.places[name]) if layout.stores(name) else block.rowid


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _quoted(name: str) -> str:
    return _IDENTIFIER_QUOTE + name.replace(_IDENTIFIER_QUOTE, 2 * _IDENTIFIER_QUOTE) + _IDENTIFIER_QUOTE
