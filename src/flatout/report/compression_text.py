"""The result of a compression as text for a terminal."""

from __future__ import annotations

from pathlib import Path

from flatout.records.compression import Compression
from flatout.report.compression_phrases import cells, details, facts, header, headline, next_command, untouched_cells
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table


def compression_text(result: Compression, folder: Path, *, style: TextStyle) -> str:
    """Return the recommendation, the conditions, the table, what was found about each variant, and what to do next."""
    lines = [*style.wrapped(headline(result)), ""]
    for fact in facts(result):
        lines += style.wrapped(fact)
    rows = [untouched_cells(result), *(cells(variant, result) for variant in result.variants)]
    names = header(result)
    lines += ["", *text_table(names, rows, style=style, flexible=range(len(names))), ""]
    for variant in result.variants:
        for detail in details(variant, result):
            lines += style.wrapped(detail, label=f"{variant.name}: ")
    for unoffered in result.unoffered:
        lines += style.wrapped(unoffered.reason, label=f"{unoffered.name} is not offered: ")
    for note in result.notes:
        lines += style.wrapped(note, label="note: ")
    if result.recommended:
        lines += ["", *style.wrapped(f"all numbers: less {folder / 'compress.json'}")]
        lines += style.wrapped(f"run it, or your own command, with the variant: {next_command(result, folder)}")
    else:
        lines += ["", *style.wrapped(f"all numbers: {next_command(result, folder)}")]
    return "\n".join(lines)
