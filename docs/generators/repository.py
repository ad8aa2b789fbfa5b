"""Texts that stand elsewhere in the repository."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from generators.markdown import table

ROOT = Path(__file__).parents[2]


def changelog() -> str:
    """Return the repository's CHANGELOG.md."""
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def security() -> str:
    """Return the repository's SECURITY.md."""
    return (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def words() -> str:
    """Return the table of old words and the standard ones."""
    entries = tomllib.loads((ROOT / "docs/words.toml").read_text())["word"]
    return table(["Old word", "Standard word"], ([entry["old"], entry["use"]] for entry in entries))


GENERATORS: Mapping[str, Callable[[], str]] = {
    "changelog": changelog,
    "security": security,
    "words": words,
}
