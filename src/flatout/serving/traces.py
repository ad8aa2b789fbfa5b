"""Read public traces of requests: when each came, and how many tokens its prompt and its answer had.

In: a CSV with a header, or JSON lines. Out: `TraceRow`s in the order of time, from 0.

    Azure's LLM traces     TIMESTAMP,ContextTokens,GeneratedTokens      (2023 and 2024; times of day)
    your own CSV           timestamp,prompt_tokens,output_tokens        (seconds, or times of day)
    Mooncake               {"timestamp": ms, "input_length": .., "output_length": .., "hash_ids": [..]}

Mooncake's `hash_ids` name blocks of 512 tokens: prompts with the same first ids begin alike, which a replay keeps.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_json, open_csv

BLOCK_TOKENS = 512  # of Mooncake's hash_ids
MOST_ROWS = 2_000_000
_NAMES = (
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("timestamp", "prompt_tokens", "output_tokens"),
)
_HINT = "a CSV begins with TIMESTAMP,ContextTokens,GeneratedTokens or timestamp,prompt_tokens,output_tokens"
_JSON_HINT = 'a line is such as {"timestamp": 27, "input_length": 300, "output_length": 20}, with milliseconds'
_MOST_TOKENS = 10_000_000


class TraceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a trace; `blocks` are those that its prompt consists of, () if unknown."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    input_length: Annotated[int, msgspec.Meta(ge=0, le=_MOST_TOKENS)]
    output_length: Annotated[int, msgspec.Meta(ge=0, le=_MOST_TOKENS)]
    hash_ids: tuple[Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)], ...] = ()


def read_trace(path: Path) -> tuple[TraceRow, ...]:
    """Return the rows, in the order of time. Raise InputError that names the line if one has another form."""
    try:
        rows = list(_of_jsonl(path) if path.suffix == ".jsonl" else _of_csv(path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"`{path}` cannot be read as a trace: {_reason(error)}", hint=_HINT) from None
    if not rows:
        raise InputError(f"`{path}` has no request", hint=_HINT)
    rows.sort(key=lambda row: row.at_s)
    first_s = rows[0].at_s
    return tuple(msgspec.structs.replace(row, at_s=row.at_s - first_s) for row in rows)


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.lower()


def _of_csv(path: Path) -> Iterator[TraceRow]:
    with open_csv(path, encoding="utf-8-sig", newline="") as file:
        table = csv.reader(file)
        header = tuple(name.strip() for name in next(table, []))
        columns = _columns(path, header)
        for number, cells in enumerate(table, 2):
            if not any(cell.strip() for cell in cells):
                continue
            _check_rows(path, number)
            yield _row(path, number, cells, columns)


def _columns(path: Path, header: Sequence[str]) -> tuple[int, int, int]:
    for names in _NAMES:
        if all(name in header for name in names):
            at, prompt, output = (header.index(name) for name in names)
            return at, prompt, output
    shown = ",".join(header)[:80]
    raise InputError(f"`{path}` has the columns {shown}, which are those of no known trace", hint=_HINT)


def _row(path: Path, number: int, cells: Sequence[str], columns: tuple[int, int, int]) -> TraceRow:
    try:
        at, prompt, output = (cells[column].strip() for column in columns)
        row = TraceRow(at_s=_time_s(at), prompt_tokens=int(prompt), output_tokens=int(output))
    except (ValueError, IndexError, OverflowError):
        raise InputError(f"line {number} of `{path}` is not a time and two numbers of tokens", hint=_HINT) from None
    if not (0 <= row.prompt_tokens <= _MOST_TOKENS and 0 <= row.output_tokens <= _MOST_TOKENS):
        raise InputError(f"line {number} of `{path}` must have from 0 to {_MOST_TOKENS:,} tokens")
    return row


def _time_s(text: str) -> float:
    """Return a number of seconds, or a date and time of day as seconds; NaN and infinity are ValueErrors."""
    try:
        value = float(text)
    except ValueError:
        return datetime.fromisoformat(text).timestamp()
    if not abs(value) < 1e15:
        raise ValueError(text)
    return value


def _of_jsonl(path: Path) -> Iterator[TraceRow]:
    with open_csv(path) as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            _check_rows(path, number)
            try:
                line = decode_json(text.encode(), type=_Line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise InputError(f"line {number} of `{path}` is not a request: {error}", hint=_JSON_HINT) from None
            yield TraceRow(
                at_s=line.timestamp / 1000,
                prompt_tokens=line.input_length,
                output_tokens=line.output_length,
                blocks=line.hash_ids,
            )


def _check_rows(path: Path, number: int) -> None:
    if number > MOST_ROWS:
        raise InputError(f"`{path}` must have at most {MOST_ROWS:,} requests", hint="cut it: head -n 10000 trace.csv")
