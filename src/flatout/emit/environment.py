"""Write the environment variables as a file for `source`."""

from __future__ import annotations

import shlex

from flatout.emit.command import argument_notes, patch_note
from flatout.emit.heading import commented
from flatout.records.tuning import Emitted, Tuning


def emit(tuning: Tuning) -> Emitted:
    changes = tuning.changes
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(changes.environment.items())]
    notes = [*patch_note(changes), *argument_notes(changes)]
    body = "".join(lines) or "# None of the changes is set by the environment.\n"
    return Emitted(path="tuned.env", text=commented(tuning) + body, notes=tuple(dict.fromkeys(notes)))
