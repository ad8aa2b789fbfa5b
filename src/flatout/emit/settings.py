"""Shared by the targets for frameworks: each change becomes a setting, or a note that the framework has none for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flatout.records.change import Change
from flatout.records.tuning import Tuning

Settings = dict[str, Any]
Setter = Callable[[Change, Settings], str | None]  # sets the change, and can return a note on it


def settings(tuning: Tuning, setters: dict[str, Setter], framework: str) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings, and a note for each change without one."""
    values: Settings = {}
    notes = []
    for change in tuning.changes.changes:
        setter = setters.get(change.knob.name)
        if setter is not None:
            note = setter(change, values)
        elif change.environment:
            note = "by the environment, see tuned.env"
        else:
            note = f"{framework} has no setting for it; use `flatout run` or the snippet"
        if note:
            notes.append(f"{change.name}: {note}")
    return values, tuple(notes)
