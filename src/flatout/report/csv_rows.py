"""A record's table as CSV, for spreadsheets: a row for each entry, and a column for each key of the JSON contract.

In: records of one type. Out: text. A record in a record, or a dictionary, becomes columns such as `total.hours`. Values
are as in JSON, without rounding; an unknown one is empty. Lists inside an entry are only in `--json`. A text that a
spreadsheet would take for a formula gets an apostrophe before it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(records: Sequence[msgspec.Struct]) -> str:
    """Return the records as CSV with a header; columns that only some of them have are empty in the others."""
    rows = [_flat(msgspec.to_builtins(record)) for record in records]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    output = io.StringIO()
    writer = csv.DictWriter(output, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return output.getvalue()


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            row |= _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, list | tuple):
            row[prefix + name] = value
    return row


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value
