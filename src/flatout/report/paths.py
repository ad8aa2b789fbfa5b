"""Paths as a report shows them."""

from __future__ import annotations

from pathlib import Path


def relative_path(path: Path) -> str:
    """Return the path relative to the working folder if it is inside that folder, else unchanged."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
