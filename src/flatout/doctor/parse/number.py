"""Read a number from a text that may not contain one."""

from __future__ import annotations

import re

_MOST_DIGITS = 20  # 2^64


def count_in(text: str | None) -> int | None:
    """Return the text as a non-negative integer; None if it is anything else, or longer than any count."""
    if text is None or not text.isdecimal() or len(text) > _MOST_DIGITS:
        return None
    return int(text)


def number_at_start(text: str | None) -> float | None:
    """Return the number at the start of a text: 16.0 for `16.0 GT/s`; None if there is none."""
    match = re.match(r"-?\d+(?:\.\d+)?", text or "")
    return float(match[0]) if match else None
