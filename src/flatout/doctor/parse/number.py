"""Read a number from a text that may hold none."""

from __future__ import annotations

import re


def count_in(text: str | None) -> int | None:
    """Return the number that the whole text is; None if it is another text, or a negative number."""
    return int(text) if text is not None and text.isdecimal() else None


def number_at_start(text: str | None) -> float | None:
    """Return the number that a text begins with: 16.0 of `16.0 GT/s`; None if it begins with none."""
    match = re.match(r"-?\d+(?:\.\d+)?", text or "")
    return float(match[0]) if match else None
