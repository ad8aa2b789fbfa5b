"""Fit text to the terminal: its width, colour and Unicode; and make text safe to print (control characters)."""

from __future__ import annotations

import os
import shutil
import textwrap
import unicodedata
from collections.abc import Mapping
from typing import TextIO

import msgspec

BOLD, DIM, RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"


class TextStyle(msgspec.Struct, frozen=True, kw_only=True):
    width: int = 80
    has_color: bool = False
    has_unicode: bool = True

    def bold(self, text: str) -> str:
        return f"{BOLD}{text}{RESET}" if self.has_color else text

    def dim(self, text: str) -> str:
        return f"{DIM}{text}{RESET}" if self.has_color else text

    def bar(self, share: float, width: int) -> str:
        """Draw a fraction as a bar of `width` characters."""
        filled = min(width, max(0, round(share * width)))
        full, empty = ("█", "░") if self.has_unicode else ("#", ".")
        return full * filled + empty * (width - filled)

    def clean(self, text: str) -> str:
        """Return text from a trace on one line, with control characters escaped so that none reaches the terminal."""
        text = visible(text)
        if self.has_unicode:
            return text
        return text.encode("ascii", "backslashreplace").decode("ascii")

    def wrapped(self, text: str, *, indent: str = "", label: str = "") -> list[str]:
        """Wrap the cleaned text to `width`; the first line has the label, the others are indented by its length."""
        return textwrap.wrap(
            self.clean(text),
            width=self.width,
            initial_indent=indent + label,
            subsequent_indent=indent + " " * len(label),
            break_on_hyphens=False,
        ) or [(indent + label).rstrip()]


def style_of(stream: TextIO, environment: Mapping[str, str] = os.environ) -> TextStyle:
    """Return the style for a stream: colour only on a terminal and without `NO_COLOR`, at most 100 columns."""
    is_terminal = stream.isatty()
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "").replace("_", "")
    width = 80
    if is_terminal:
        width = max(60, min(100, shutil.get_terminal_size((80, 24)).columns))
    return TextStyle(
        width=width,
        has_color=is_terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb",
        has_unicode=encoding.startswith("utf"),
    )


def visible(text: str, most_characters: int = 2000) -> str:
    """Return text from a file on one line, truncated, with control and bidirectional characters escaped."""
    if len(text) > most_characters:
        text = text[:most_characters] + "..."
    return "".join(_visible(character) for character in " ".join(text.split()))


def _visible(character: str) -> str:
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character.encode("unicode_escape", "backslashreplace").decode("ascii")
    return character
