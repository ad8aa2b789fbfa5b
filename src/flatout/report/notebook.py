"""A report as HTML in a notebook: the text of the terminal, in a box that scrolls sideways.

In: the text. Out: a fragment of HTML without style sheets, scripts or external references, so that it looks the same in
JupyterLab, in an exported page and where a notebook's styles are removed. All text is escaped.
"""

from __future__ import annotations

from html import escape

_STYLE = (
    "font-family: ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; font-size: 0.85em; line-height: 1.35; "
    "white-space: pre; overflow-x: auto; max-height: 40em"
)


def notebook_html(text: str, label: str) -> str:
    """Return the report as one element that the keyboard can scroll; `label` names it for screen readers."""
    content = escape(text.rstrip("\n"))
    return f'<pre role="region" tabindex="0" aria-label="{escape(label)}" style="{_STYLE}">{content}</pre>'
