"""What the targets for frameworks share: each change is set, or it is said that the framework has no setting for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flatout.records.change import Change
from flatout.records.tuning import Tuning

Setter = Callable[[Change, dict[str, Any]], str | None]  # sets it, and may return what must be known of it


def settings(tuning: Tuning, setters: dict[str, Setter], framework: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The settings, and a note for each change without one."""
    found: dict[str, Any] = {}
    notes = []
    for change in tuning.changes.changes:
        setter = setters.get(change.knob.name)
        if setter is not None:
            note = setter(change, found)
            if note:
                notes.append(f"{change.name}: {note}")
        elif change.environment:
            notes.append(f"{change.name}: by the environment, see tuned.env")
        else:
            notes.append(f"{change.name}: {framework} has no setting for it; use `flatout run` or the snippet")
    return found, tuple(notes)
