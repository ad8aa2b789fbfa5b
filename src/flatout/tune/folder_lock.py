"""Lock the folder of a tuning or a comparison, so that two of them never run trials in it at the same time."""

from __future__ import annotations

import atexit
import fcntl
import os
from pathlib import Path

from flatout.checkpoint.lock import Lock
from flatout.checkpoint.problems import LockedError
from flatout.errors import OutputError

_LOCKED: set[tuple[int, int]] = set()  # device and number of each folder that this process has locked


def lock_folder(folder: Path, kind: str) -> None:
    """Lock the folder until this process ends. Raises OutputError if another process holds the lock.

    `kind` names what runs there: `tuning`, `comparison`. A notebook that resumes its own tuning has the lock already.
    """
    descriptor = os.open(folder, os.O_RDONLY)  # open until the process ends
    status = os.fstat(descriptor)
    place = (status.st_dev, status.st_ino)
    if place in _LOCKED:
        os.close(descriptor)
        return
    _lock(descriptor, folder, kind)
    _LOCKED.add(place)


def _lock(descriptor: int, folder: Path, kind: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise OutputError(
            f"another {kind} is running in {folder}", hint="wait for it, or pass another --out"
        ) from error
    except OSError:  # file systems without locks, and NFS, which has none of folders
        os.close(descriptor)
        _lock_by_file(folder, kind)


def _lock_by_file(folder: Path, kind: str) -> None:
    """Lock the folder by a file that names its owner, who renews it: also against processes of other hosts."""
    try:
        lock = Lock(folder)
    except LockedError as error:
        raise OutputError(
            f"another {kind} is running in {folder}: {error.args[0]}", hint=error.hint or "pass another --out"
        ) from error
    atexit.register(lock.release)
