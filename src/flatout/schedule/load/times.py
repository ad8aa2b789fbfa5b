"""Times of day in job histories as seconds since 1970, in the file's own clock."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from flatout.errors import InputError


def time_s(path: Path, line: int, column: str, text: str) -> float:
    """Return a date and time in seconds since 1970.

    A time without a time zone is read as UTC, because only differences matter.
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"{path}, line {line}: {column} must be a time such as 2017-10-09 07:01:55, but is {text[:60]!r}"
        ) from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return parsed.timestamp()
