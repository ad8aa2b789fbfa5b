"""Results on standard output: one JSON object, or text in the style of the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from flatout.cli.settings import with_used_words

if TYPE_CHECKING:
    import msgspec

    from flatout.report.terminal import TextStyle


def typed_command() -> list[str]:
    """Return the command that is running, as it was typed, with the options that stand in `flatout.toml`."""
    return ["flatout", *with_used_words(sys.argv[1:])]


def print_json(schema: str, record: msgspec.Struct, *, version: int = 1, pretty: bool = True) -> None:
    """Print the record as one JSON object of the contract `schema`."""
    from flatout.report.json import enveloped_json

    sys.stdout.write(enveloped_json(schema, version, typed_command(), record, pretty=pretty).decode())
    if not pretty:
        sys.stdout.write("\n")


def text_style() -> TextStyle:
    """Return the style for text on standard output: its width, and colour on a terminal."""
    from flatout.report.terminal import style_of

    return style_of(sys.stdout)
