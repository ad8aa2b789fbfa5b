"""Markdown tables and the cells in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def number(value: float | None, unit: float = 1) -> str:
    return "-" if value is None else f"{value / unit:,.6g}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.1f} %"


def linked(source: str) -> str:
    title, _, address = source.rpartition(", ")
    return f"[{title}]({address})" if title and address.startswith("http") else source
