"""Render a page from its template. All texts are escaped, and no control character from a job reaches the page.

In: a template in this folder and its content. Out: HTML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from flatout.report.terminal import visible

if TYPE_CHECKING:
    import jinja2

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[num]?s|[KMGT]?i?B|[KMGT]?FLOP)\b|%)")
_LONG_WORD = re.compile(r"[\w.(=/:-]{30,}")  # longer than a line on a phone
_RANGE = re.compile(r"\(?\b\d[\d.]*-\d[\d.]*\)?")
_JOINT = re.compile(r"(?<=\w)([.(/]+)(?=\w)")


def rendered(template: str, content: Mapping[str, object]) -> str:
    """Render the template with the content. A name that the content lacks is an error."""
    return _environment().get_template(template).render(content)


@cache
def _environment() -> jinja2.Environment:
    """Return what renders the templates; it compiles each of them once, which takes longer than to render a page."""
    import jinja2
    import markupsafe

    def whole(text: str) -> markupsafe.Markup:
        """Escape text so that lines break between words or at the joints of a long name, never before a unit."""
        escaped = str(markupsafe.escape(_BEFORE_UNIT.sub("\u00a0", visible(text))))
        return markupsafe.Markup(_LONG_WORD.sub(lambda word: _JOINT.sub(r"\1<wbr>", word[0]), escaped))

    def spaced(piece: str) -> markupsafe.Markup:
        """Escape a piece of a longer text and keep the spaces at its ends."""
        before, after = " " * piece[:1].isspace(), " " * piece[-1:].isspace()
        return markupsafe.Markup(f"{before}{whole(piece)}{after}" if piece.strip() else before)

    def code(text: str) -> markupsafe.Markup:
        """Escape text in which backticks enclose code."""
        pieces = [spaced(piece) for piece in text.split("`")]
        if len(pieces) % 2 == 0:
            return markupsafe.Markup("`").join(pieces)
        return markupsafe.Markup("").join(
            markupsafe.Markup("<code>{}</code>").format(piece) if index % 2 else piece
            for index, piece in enumerate(pieces)
        )

    def figures(text: str) -> markupsafe.Markup:
        """Escape text as `whole` does, without line breaks inside a range such as `(1.79-1.87)`."""
        return markupsafe.Markup(_RANGE.sub(r'<span class="figure">\g<0></span>', str(whole(text))))

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (files("flatout.report") / name).read_text(encoding="utf-8")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters |= {"code": code, "figures": figures, "whole": whole}
    return environment
