"""Rows that are read from the pages of an SQLite file are those that SQLite returns, and damage is left to SQLite."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.read import sqlite_files

from flatout.errors import InputError
from flatout.read.database import Database, Where
from flatout.read.sqlite_pages import NotPlainError
from flatout.records.events import NULL

INTEGERS = [0, 1, -1, 2, 127, -128, 128, 32767, -32768, 1 << 23, -(1 << 23) - 1, 1 << 31, 1 << 47, -(1 << 47), 1 << 62]
INTEGERS += [(1 << 63) - 1, -(1 << 63)]
TEXTS = [None, "", "a", "Ägypten", "x" * 57, "y" * 58, "z" * 120]


def written(
    path: Path, statements: Sequence[str], rows: Sequence[Sequence[object]] = (), page_bytes: int = 4096
) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page_bytes}")
        creating, *later = statements
        connection.execute(creating)
        if rows:
            connection.executemany(f"INSERT INTO T VALUES ({', '.join('?' * len(rows[0]))})", rows)
        for statement in later:
            connection.execute(statement)
        connection.commit()
    return path


def selected(path: Path, columns: str, condition: str = "1") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT {columns} FROM T WHERE {condition}").fetchall()


def read(path: Path, names: Sequence[str], where: Where | None = None) -> list[tuple[int, ...]]:
    with Database(path, path.name) as database:
        columns = database.integers("T", names, where)
    return list(zip(*(columns[name].tolist() for name in names), strict=True))


@pytest.fixture
def without_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if SQLite itself reads rows."""

    def refuse(*arguments: object) -> None:
        raise AssertionError("the rows were read by SQLite")

    monkeypatch.setattr(Database, "_flat", refuse)
    monkeypatch.setattr(Database, "_texts_of_sqlite", refuse)


def some_rows(count: int) -> list[tuple[object, ...]]:
    choose = random.Random(7).choice
    return [(choose(INTEGERS), choose(TEXTS), choose([*INTEGERS, None]), choose(INTEGERS)) for _ in range(count)]


@pytest.mark.usefixtures("without_sqlite")
@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
def test_integers_of_every_size_are_those_of_sqlite(tmp_path: Path, page_bytes: int) -> None:
    """Of 5,000 rows, pages of 512 bytes make a tree of three levels; deleted ones leave gaps in pages and numbers."""
    deleting = "DELETE FROM T WHERE rowid % 7 = 3 OR rowid BETWEEN 900 AND 1400"
    path = written(tmp_path / "f.db", ["CREATE TABLE T (a, t, b, c)", deleting], some_rows(5000), page_bytes)
    values = "a, coalesce(b, -1), c"
    assert read(path, ("a", "b", "c", "rowid")) == selected(path, f"{values}, rowid")
    where = Where("b", lambda numbers: numbers > 100)
    assert read(path, ("c", "a"), where) == selected(path, "c, a", "b > 100")


@pytest.mark.usefixtures("without_sqlite")
def test_an_integer_key_is_the_number_of_its_row(tmp_path: Path) -> None:
    rows = [(7 * number, number) for number in range(100)]
    path = written(tmp_path / "f.db", ["CREATE TABLE T (id INTEGER PRIMARY KEY, a INT)"], rows)
    assert read(path, ("id", "a")) == rows
    empty = written(tmp_path / "empty.db", ["CREATE TABLE T (id INTEGER PRIMARY KEY, a INT)"])
    assert read(empty, ("id", "a")) == []


@pytest.mark.usefixtures("without_sqlite")
def test_texts_are_those_of_sqlite(tmp_path: Path) -> None:
    path = written(tmp_path / "f.db", ["CREATE TABLE T (a, t, b, c)"], some_rows(2000))
    expected = {key: text[:4096] for key, text in selected(path, "rowid, t", "t != '' AND c > 5")}
    with Database(path, "f.db") as database:
        assert database.texts("T", "rowid", "t", Where("c", lambda numbers: numbers > 5)) == expected
        assert database.texts("T", "b", "missing") == {}


CASES: dict[str, tuple[Sequence[str], Sequence[Sequence[object]]]] = {
    "a real number": (["CREATE TABLE T (a, b)"], [(1, 2.0), (3, 4)]),
    "a text": (["CREATE TABLE T (a, b)"], [(1, "2"), (3, 4)]),
    "a value after a long text": (["CREATE TABLE T (t, a, b)"], [("x" * 9000, 1, 2), ("y", 3, 4)]),
    "a column added later": (
        ["CREATE TABLE T (a)", "ALTER TABLE T ADD COLUMN b DEFAULT 5", "INSERT INTO T VALUES (8, 9)"],
        [(1,), (3,)],
    ),
    "rows by their key": (["CREATE TABLE T (a PRIMARY KEY, b) WITHOUT ROWID"], [(1, 2), (3, 4)]),
    "a key in descending order": (["CREATE TABLE T (a INTEGER PRIMARY KEY DESC, b)"], [(9, 2), (3, 4)]),
    "a generated column": (["CREATE TABLE T (g AS (a + 1), a, b)"], [(1, 2), (3, 4)]),
    "numbers of rows below 0": (["CREATE TABLE T (a INTEGER PRIMARY KEY, b)"], [(-5, 2), (3, 4)]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_plain_is_read_by_sqlite(tmp_path: Path, case: str) -> None:
    statements, rows = CASES[case]
    path = written(tmp_path / "f.db", statements, rows)
    assert read(path, ("a", "b")) == selected(path, "CAST(a AS INTEGER), CAST(b AS INTEGER)")
    with Database(path, "f.db") as database, pytest.raises(NotPlainError):
        list(database._blocks("T", ("a", "b"), None))


@pytest.mark.parametrize("text", ["x" * 9000, "é" * 5000, "a\0b", "16 bit"])
def test_texts_that_are_not_plain_are_those_of_sqlite(tmp_path: Path, text: str) -> None:
    encoding = ["PRAGMA encoding = 'UTF-16'"] if text == "16 bit" else []
    path = tmp_path / "f.db"
    with closing(sqlite3.connect(path)) as connection:
        for statement in (*encoding, "CREATE TABLE T (id, t)"):
            connection.execute(statement)
        connection.executemany("INSERT INTO T VALUES (?, ?)", [(1, text), (2, "short")])
        connection.commit()
    rows = selected(path, "id, substr(t, 1, 4096)")
    expected = {row[0]: row[1] for row in rows}
    with Database(path, "f.db") as database:
        assert database.texts("T", "id", "t") == expected


def test_a_key_can_be_read_as_a_text(tmp_path: Path) -> None:
    path = written(tmp_path / "f.db", ["CREATE TABLE T (id INTEGER PRIMARY KEY, a)"], [(7, 1), (9, 2)])
    with Database(path, "f.db") as database:
        assert database.texts("T", "a", "id") == {1: "7", 2: "9"}


def test_of_a_damaged_file_the_rows_and_the_damage_are_those_of_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = written(tmp_path / "f.db", ["CREATE TABLE T (a, t, b, c)"], some_rows(400), 512).read_bytes()
    chance = random.Random(3)
    outcomes: Counter[bool] = Counter()
    for _ in range(120):
        changed = bytearray(raw)
        for _ in range(chance.choice((1, 3, 20))):
            changed[chance.randrange(100, len(raw))] = chance.choice((0, 1, 5, 13, 127, 128, 255))
        path = tmp_path / "damaged.db"
        path.write_bytes(changed)
        of_pages = contents(path)
        with monkeypatch.context() as patched:
            patched.setattr(Database, "_blocks", not_plain)
            assert contents(path) == of_pages
        outcomes[of_pages[2] is None] += 1
    assert min(outcomes[True], outcomes[False]) > 20


def contents(path: Path) -> tuple[list[tuple[int, ...]], dict[int, str], str | None]:
    """Return the rows, the texts, and the damage."""
    try:
        with Database(path, path.name) as database:
            columns = database.integers("T", ("a", "b", "c"))
            texts = database.texts("T", "rowid", "t")
            return list(zip(*(values.tolist() for values in columns.values()), strict=True)), texts, database.damage
    except InputError as error:
        return [], {}, str(error)


def not_plain(*arguments: object) -> None:
    raise NotPlainError


def test_pages_that_refer_to_each_other_end(tmp_path: Path) -> None:
    raw = bytearray(written(tmp_path / "f.db", ["CREATE TABLE T (a, t, b, c)"], some_rows(400), 512).read_bytes())
    root = 512  # the second page: its last child becomes itself
    assert raw[root] == 5
    raw[root + 8 : root + 12] = (2).to_bytes(4, "big")
    (tmp_path / "loop.db").write_bytes(raw)
    with Database(tmp_path / "loop.db", "loop.db") as database:
        assert len(database.integers("T", ("a",))["a"]) > 0
        assert database.damage is not None


@pytest.mark.usefixtures("without_sqlite")
def test_profilers_files_are_read_from_their_pages(tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    path.write_bytes(sqlite_files.database(sqlite_files.nsys_tables()))
    with Database(path, "trace.sqlite") as database:
        starts = database.integers("CUPTI_ACTIVITY_KIND_KERNEL", ("start", "unknown"))
        own = database.coded_texts("NVTX_EVENTS", "rowid", "text")
    assert np.all(starts["unknown"] == NULL) and len(starts["start"]) == 6
    assert sorted(own.texts) == ["a mark", "aten::mm, op_id = 3", "data loading"]
