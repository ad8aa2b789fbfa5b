"""Print what was copied to the disk of a node."""

from __future__ import annotations

from flatout.records.staging import StageResult
from flatout.report.terminal import TextStyle
from flatout.units import num_bytes


def staged_text(result: StageResult, style: TextStyle) -> str:
    """Return how many files are in the copy, and how many of them were missing."""
    checks = " and with the checksums of the pack" if result.is_checked_by_pack else ""
    lines = style.wrapped(
        f"{result.folder} holds all {result.num_files:,} files of {result.source}, {num_bytes(result.num_bytes)}."
    )
    if result.num_copied:
        lines += style.wrapped(
            f"{result.num_copied:,} files, {num_bytes(result.copied_bytes)}, were copied, and compared with their"
            f" source{checks}."
        )
    else:
        lines += style.wrapped("Nothing was missing.")
    return "\n".join(lines)
