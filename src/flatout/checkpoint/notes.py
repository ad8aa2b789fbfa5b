"""Record the fate of each checkpoint for `flatout run`, which reports the newest one and all failures at the end.

In: the folder that `flatout run` names in the environment; without it, nothing is noted. Out: a file for each process,
with a line for each event: a checkpoint was resumed from, begun, committed, or has failed. A note that cannot be
written is dropped.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from flatout.inside.protocol import File, Variable, process_name
from flatout.secrets import masked_text, open_private

Event = Literal["resumed", "begun", "committed", "failed"]


class SaveNotes:
    """The notes of this process."""

    def __init__(self) -> None:
        folder = os.environ.get(Variable.SAVES)
        name = File.SAVES.of(process_name(os.uname().nodename, os.getpid()))
        self._path = Path(folder, name) if folder else None

    def add(self, event: Event, *, folder: Path, is_local: bool, step: int, reason: str = "") -> None:
        if self._path is None:
            return
        note = {
            "event": event,
            "folder": str(folder.absolute()),
            "is_local": is_local,
            "step": step,
            "reason": masked_text(reason),
            "unix_s": time.time(),
        }
        with suppress(OSError), open_private(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(note) + "\n")
