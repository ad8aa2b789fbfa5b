"""Find files that changed while a trial ran, whatever changed them.

In: folders. Out: the paths of files whose content or name changed between two readings of the folders, which shows what
other programs and compiled libraries write: they report nothing. Caches and very large folders are not read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

MAX_FILES = 50_000
MAX_READ_S = 2.0  # on a network file system each entry can take a millisecond
_NOT_READ = frozenset({"__pycache__", ".git", ".venv", "node_modules", "site-packages"})


def times_of_change(folders: Collection[str], but: Collection[str] = ()) -> dict[str, int] | None:
    """Return when each file in the folders last changed, in nanoseconds; None if they are too large to be read.

    `but` are folders within these that are not read.
    """
    times: dict[str, int] = {}
    deadline = time.monotonic() + MAX_READ_S
    for folder in folders:
        for root, inner, names in os.walk(folder):
            inner[:] = [name for name in inner if name not in _NOT_READ and os.path.join(root, name) not in but]
            for path in (os.path.join(root, name) for name in names):
                with suppress(OSError):  # it has just been removed
                    times[path] = os.lstat(path).st_ctime_ns
            if len(times) > MAX_FILES or time.monotonic() > deadline:
                return None
    return times


def changed_files(before: Mapping[str, int], after: Mapping[str, int]) -> set[str]:
    """Return the files that are new or changed after the first look."""
    return {path for path, time_ns in after.items() if before.get(path) != time_ns}
