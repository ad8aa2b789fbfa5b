"""Count the bytes of a file, or of the files in a folder: the sizes that `du --apparent-size` adds up."""

from __future__ import annotations

from pathlib import Path


def bytes_on_disk(path: Path) -> int | None:
    """Return the bytes; None if there is nothing."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.is_file() else None
