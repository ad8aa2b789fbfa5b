"""A schema and its records -> the Markdown of the contract: the keys of its JSON, their types and meanings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from generators.contracts.records_as_tables import fields, summary
from generators.markdown import table


class Contract(NamedTuple):
    """A schema. Its first record has the keys beside those that every file has; the others are parts of the first."""

    schema: str
    records: Sequence[type[msgspec.Struct]]
    version: int


def contract(schema: str, *records: type[msgspec.Struct], version: int = 1) -> Contract:
    """Return the contract of a schema."""
    return Contract(schema, records, version)


def contract_text(contract: Contract) -> str:
    """Return the keys that every object of Flatout begins with, then the fields of each record."""
    envelope = table(
        ["Key", "Type", "Meaning"],
        [
            ["`schema`", "string", f"`{contract.schema}`"],
            ["`version`", "integer", str(contract.version)],
            ["`tool_version`", "string", "of Flatout"],
            ["`command`", "array of strings", "the command line; values that look like secrets are masked"],
        ],
    )
    other_keys = f"and the keys of `{contract.records[0].__name__}`:"
    return f"{envelope}\n\n{other_keys}\n\n{sections(contract.records)}"


def sections(records: Sequence[type[msgspec.Struct]]) -> str:
    """Return a section for each record, with a table of its fields."""
    return "\n\n".join(f"### {record.__name__}\n\n{summary(record)}{fields(record)}" for record in records)
