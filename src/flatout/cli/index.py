"""`flatout index`: one page that lists the results in a folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.output import print_json, typed_command
from flatout.cli.paths import given_path
from flatout.errors import printable

PAGE = "index.html"
_MOST_NOTES = 10  # files that could not be read, each a line; the page has more


def index(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", parser=given_path, help="Folder with results: JSON and pages, also in folders."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", readable=False, help="Page to write.  [default: DIR/index.html]", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing page.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the index as JSON, and write no page.")] = False,
) -> None:
    """Write a page that lists the results in a folder, the newest first, with what each says and a link to it.

    Example: flatout index flatout-out
    """
    from flatout.index_pipeline import index_folder
    from flatout.report.files import check_new, write_new
    from flatout.report.paths import relative_path
    from flatout.report.phrases import counted
    from flatout.report.tables_html import index_html

    page = out or folder / PAGE
    if not json and folder.is_dir():
        check_new(page, force=force)
    found = index_folder(folder, without=page)
    if json:
        print_json("flatout/index", found)
        return
    base = os.path.relpath(folder, page.parent)
    write_new(page, index_html(found, typed_command(), base="" if base == os.curdir else base), force=force)
    print(f"wrote {relative_path(page)}: {counted(len(found.results), 'result')}", file=sys.stderr)
    for each in found.unreadable[:_MOST_NOTES]:
        print(f"could not be read: {printable(each)}", file=sys.stderr)
