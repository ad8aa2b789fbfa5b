"""Look up how training frameworks behave in a step, from the text of a row of measured runs (`frameworks.toml`).

In: the row's columns, as text. Out: the entries that apply. `plan` combines them into the description of the software.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import msgspec

_FILE = Path(__file__).with_name("frameworks.toml")
Columns = Mapping[str, str]  # text of a row by column, in lower case


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    software: dict[str, bool | float]  # fields of `Software`
    source: str
    date: str


class Framework(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[framework]]` entry of the file."""

    words: tuple[str, ...] = ()
    except_words: tuple[str, ...] = ()
    most_chunks: int | None = None
    usual_zero: int | None = None

    def is_named(self, framework: str) -> bool:
        """Whether the framework has one of these names."""
        if _contains_any(framework, self.except_words):
            return False
        return not self.words or _contains_any(framework, self.words)


class Release(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A version such as `26.06.01`, in a column right before its product's name, and the lowest one that counts."""

    column: str
    product: str
    at_least: str

    def is_named(self, columns: Columns) -> bool:
        match = re.search(rf"\b(\d\d\.\d\d)\b[.\d]* {re.escape(self.product)}", columns.get(self.column, ""))
        return match is not None and match[1] >= self.at_least


class Dated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A month such as `2025-06` or `202506` in a column, and the first one that counts."""

    column: str
    at_least: str

    def is_named(self, columns: Columns) -> bool:
        months = re.findall(r"(?<!\d)(20\d\d)-?(0[1-9]|1[0-2])(?!\d)", columns.get(self.column, ""))
        return any(f"{year}-{month}" >= self.at_least for year, month in months)


class Option(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An `[[option]]` entry of the file."""

    frameworks: tuple[str, ...] = ()
    has: dict[str, tuple[str, ...]] = {}
    lacks: dict[str, tuple[str, ...]] = {}
    equals: dict[str, str] = {}
    release: Release | None = None
    dated: Dated | None = None

    def holds(self, columns: Columns, frameworks: Iterable[str]) -> bool:
        """Whether the row has the option; `frameworks` are the names of the frameworks that apply to the row."""
        return (
            set(self.frameworks) <= set(frameworks)
            and all(_contains_any(columns.get(column, ""), words) for column, words in self.has.items())
            and not any(_contains_any(columns.get(column, ""), words) for column, words in self.lacks.items())
            and all(columns.get(column, "") == text for column, text in self.equals.items())
            and (self.release is None or self.release.is_named(columns))
            and (self.dated is None or self.dated.is_named(columns))
        )


class _Frameworks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file."""

    framework: tuple[Framework, ...]
    option: tuple[Option, ...]


def frameworks_named(framework: str) -> list[Framework]:
    """Return the entries for a framework's name, in the order of the file."""
    return [entry for entry in _read().framework if entry.is_named(framework.lower())]


def options_of(columns: Columns) -> list[Option]:
    """Return the options that a row has, in the order of the file."""
    names = [entry.name for entry in frameworks_named(columns.get("framework", ""))]
    return [option for option in _read().option if option.holds(columns, names)]


@cache
def _read() -> _Frameworks:
    return msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8")), _Frameworks)


def _contains_any(text: str, words: Iterable[str]) -> bool:
    return any(word in text for word in words)
