"""Render tables as one self-contained page: the index of a folder, and the charges of teams.

In: a `ResultIndex` or a `Chargeback`, and the command line. Out: HTML without a script. Texts are untrusted: the
template escapes them, and a content policy in the page forbids scripts and external references.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from flatout import __version__
from flatout.records.chargeback import Chargeback
from flatout.records.index import IndexedResult, ResultIndex
from flatout.report.command import command_line
from flatout.report.cost_text import basis_lines, budget_texts, money, team_rows, when
from flatout.report.phrases import counted
from flatout.report.template import rendered
from flatout.report.terminal import TextStyle

_MOST_NOTES = 50
_WIDE = TextStyle(width=10_000)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    link: str | None = None
    is_number: bool = False


class HtmlTable(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    empty: str  # what stands in the place of a table without rows


def index_html(index: ResultIndex, command: Sequence[str], *, base: str = "") -> str:
    """Return the page: a row for each result, the newest first, with a link to its page.

    `base` leads from the page's folder to that of the results.
    """
    table = HtmlTable(
        title="Results, the newest first",
        header=("Result", "Kind", "What it says", "Written"),
        rows=[_index_row(result, base) for result in index.results],
        empty="No result was found: save what a command prints with --json, or its page.",
    )
    notes = [f"could not be read: {each}" for each in index.unreadable[:_MOST_NOTES]]
    if index.num_not_listed:
        notes.append(f"{counted(index.num_not_listed, 'older result')} not listed")
    headline = f"{counted(len(index.results), 'result')} in {index.folder}"
    return _page("index", headline, (), (table,), notes, command)


def _index_row(result: IndexedResult, base: str) -> list[Cell]:
    written = datetime.fromtimestamp(result.written_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    name = Cell(text=result.path, link=quote(os.path.join(base, result.page or result.path)))
    return [name, Cell(text=result.kind), Cell(text=result.headline or "-"), Cell(text=written)]


def chargeback_html(result: Chargeback, command: Sequence[str]) -> str:
    """Return the page: the lines of each team, budgets, and what is unknown."""
    total = result.total
    rows = [
        [_cost_cell(text, place) for place, text in enumerate(row)] for team in result.teams for row in team_rows(team)
    ]
    if len(result.teams) != 1:
        rows += [[_cost_cell(text, place) for place, text in enumerate(row)] for row in team_rows(total, name="all")]
    tables = [
        HtmlTable(
            title="Teams and projects",
            header=("team / project", "line", "GPU-hours", "share", "USD", "kWh", "kg CO2"),
            rows=rows,
            empty="No GPU time was used.",
        )
    ]
    if result.budgets:
        budgets = [[Cell(text=text)] for text in budget_texts(result)]
        tables.append(HtmlTable(title="Budgets", header=("state",), rows=budgets, empty=""))
    notes = [*basis_lines(result, _WIDE), *result.notes]
    notes += [f"line {row.line} was skipped: {row.reason}" for row in result.left_out[:_MOST_NOTES]]
    headline = f"{money(total.total.gpu_ms / 3.6e6)} GPU-hours in {counted(total.num_attempts, 'attempt')}"
    facts = [f"{counted(total.num_jobs, 'job')}{when(result)}", f"prices: {result.terms}", *result.sources]
    return _page("costs", headline, facts, tables, notes, command)


def _cost_cell(text: str, place: int) -> Cell:
    return Cell(text=text, is_number=place >= 2)  # after the names of the team and of the line


def _page(
    what: str,
    headline: str,
    facts: Sequence[str],
    tables: Sequence[HtmlTable],
    notes: Sequence[str],
    command: Sequence[str],
) -> str:
    content = {
        "tool_version": __version__,
        "command": command_line(command),
        "what": what,
        "headline": headline,
        "facts": facts,
        "tables": tables,
        "notes": notes,
    }
    return rendered("tables.html.j2", content)
