"""Whether a script that saves to its own file can resume from it: whether it is complete, and what to report.

Checkpoints of scripts are verified and kept by `flatout.checkpoint`, whose function the caller gives; without it, a
file that is there and not empty counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def can_resume(path: Path, latest_good: Callable[[Path], tuple[Path | None, str]] | None = None) -> tuple[bool, str]:
    """`latest_good`: finds the last checkpoint at `path` that is whole, and says why it is not the last one written."""
    if path.is_dir():
        return any(path.iterdir()), ""
    if latest_good is not None:
        found, why = latest_good(path)
        return found == path, why
    return path.is_file() and os.path.getsize(path) > 0, ""
