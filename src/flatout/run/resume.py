"""The command of a restart, with the script's own resume flag once there is a checkpoint to resume from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from flatout.change.arguments import with_arguments
from flatout.checkpoint.scripted import latest_good
from flatout.keep.resume import can_resume
from flatout.records.change import Argument
from flatout.run.messages import say


def resuming(command: Sequence[str], resume_arguments: Sequence[str], checkpoint: Path | None) -> Sequence[str]:
    """Return `command` with `resume_arguments` if a complete checkpoint is at `checkpoint`; else unchanged."""
    if checkpoint is None or not resume_arguments:
        return command
    is_there, problem = can_resume(checkpoint, latest_good)
    if problem:
        say(f"the checkpoint: {problem}")
    if not is_there:
        say(f"no checkpoint at {checkpoint} yet: the job starts from scratch")
        return command
    words = tuple(tuple(shlex.split(argument)) for argument in resume_arguments)
    return with_arguments(command, [Argument(words=words)])
