"""The parts of the docs that are made from the code when the site is built, so that they cannot drift from it.

A page holds `<!-- generated: NAME -->` on a separate line; `on_page_markdown`, which MkDocs calls for each page, puts
the Markdown of `GENERATORS[NAME]` there. The generators are in `generators/`, one module for each kind of page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from generators import command_line, contracts, facts, python_api, repository, rules, stored_results

MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)

GENERATORS: Mapping[str, Callable[[], str]] = {
    **command_line.GENERATORS,
    **python_api.GENERATORS,
    **contracts.GENERATORS,
    **rules.GENERATORS,
    **facts.GENERATORS,
    **stored_results.GENERATORS,
    **repository.GENERATORS,
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs' hook: the page with its marks replaced. An unknown mark is a KeyError, which stops the build."""
    return MARK.sub(lambda match: GENERATORS[match[1]](), markdown)
