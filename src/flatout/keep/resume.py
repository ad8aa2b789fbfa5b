"""Decide whether a script that saves to its own file can resume from that file, and what to report.

`flatout.checkpoint` verifies and keeps scripts' checkpoints; the caller passes its function. Without that function, any
existing file that is not empty counts as complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def can_resume(path: Path, latest_good: Callable[[Path], tuple[Path | None, str]] | None = None) -> tuple[bool, str]:
    """Return whether the file can be resumed from, and the message for the user.

    `latest_good` finds the last complete checkpoint at `path`, and says why it is not the last one that was written.
    """
    if path.is_dir():
        return any(path.iterdir()), ""
    if latest_good is not None:
        found, why = latest_good(path)
        return found == path, why
    return path.is_file() and os.path.getsize(path) > 0, ""
