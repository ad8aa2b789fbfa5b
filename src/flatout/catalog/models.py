"""Look up a model's published shape by its name, in `models.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec

from flatout.records.plan import Workload

_FILE = Path(__file__).with_name("models.toml")


@cache
def all_models() -> dict[str, Workload]:
    """Return every named model, in the order of the file."""
    entries = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {name: msgspec.convert({"name": name, **entry}, Workload) for name, entry in entries.items()}
