"""The variants that are tried, and why others are not offered.

Each row has the name, how it is applied, and a sentence on what it is. Rows of patches are files of the same name in
`inside/compression/`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.compress.backend import Variant
from flatout.errors import UsageError
from flatout.records.compression import AppliedBy


class VariantRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    summary: str
    applied_by: AppliedBy = "patch"


ROWS: tuple[VariantRow, ...] = (
    VariantRow(name="bf16", summary="weights and computing in bfloat16"),
    VariantRow(name="int8-dynamic", summary="linear layers in int8; the scale of their inputs is found at each call"),
)
_BY_NAME = {row.name: row for row in ROWS}


def chosen_rows(names: Sequence[str]) -> tuple[VariantRow, ...]:
    """Return the rows of these names; all without any. Raises UsageError for an unknown name."""
    if not names:
        return ROWS
    unknown = [name for name in names if name not in _BY_NAME]
    if unknown:
        raise UsageError(f"`--variants` must be of {', '.join(_BY_NAME)}, but got {unknown[0]}")
    return tuple(_BY_NAME[name] for name in dict.fromkeys(names))


def variant_of(row: VariantRow) -> Variant:
    return Variant(name=row.name, applied_by=row.applied_by, kind=row.name if row.applied_by == "patch" else None)
