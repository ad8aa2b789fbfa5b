"""Paths in arguments and options."""

from __future__ import annotations

from pathlib import Path

from flatout.errors import UsageError


def given_path(text: str) -> Path:
    """Return a path to read, as the user gave it. Raises UsageError if it is empty, as Path("") is the working folder.

    Whether the path exists and can be read is checked when it is read.
    """
    if not text:
        raise UsageError("a path must not be empty", hint="pass a file, folder or archive; . is the current folder")
    return Path(text)
