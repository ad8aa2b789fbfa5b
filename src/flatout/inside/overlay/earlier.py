"""Notice that a trial reads a file which an earlier trial has written, so that it does other work than that trial did.

In: the file FLATOUT_EARLIER, which names the files that earlier trials left, and the folders in which nothing may have
changed since the tuning began. Out: the name of the trial that wrote a file, for the report of the overlay. Files of
this trial and of caches are not its business; nor is what other programs and compiled libraries read.
"""

from __future__ import annotations

import json
import os
import stat

from flatout.inside.protocol import UNKNOWN_WRITER, Variable

_real_stat = os.stat


class EarlierFiles:
    """The files that earlier trials of the same tuning have written."""

    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns  # this trial's beginning
        self._since_ns = 0
        self._folders: tuple[str, ...] = ()
        self._files: dict[str, tuple[int, str]] = {}  # time of the last change, and the trial, by absolute path
        self._is_watching = False
        path = os.environ.get(Variable.EARLIER)
        if path:
            self._read(path)

    def _read(self, path: str) -> None:
        try:
            with open(path, encoding="utf-8") as file:
                earlier = json.load(file)
        except (OSError, ValueError):
            return  # another node that does not see the folder of the tuning
        self._since_ns = earlier["since_ns"]
        self._folders = tuple(folder + os.sep for folder in earlier["folders"])
        self._files = {name: (changed_ns, writer) for name, (changed_ns, writer) in earlier["files"].items()}
        self._is_watching = True

    def writer_of(self, absolute: str) -> str | None:
        """Return the earlier trial that last wrote this file, UNKNOWN_WRITER, or None if no earlier trial did."""
        if not self._is_watching:
            return None
        try:
            status = _real_stat(absolute)
        except (OSError, ValueError):
            return None
        changed_ns = status.st_ctime_ns
        if not stat.S_ISREG(status.st_mode) or changed_ns >= self._began_ns:
            return None
        known_ns, writer = self._files.get(absolute, (None, UNKNOWN_WRITER))
        if known_ns == changed_ns:
            return writer
        is_recent = changed_ns >= self._since_ns and "/.git/" not in absolute  # a user may commit meanwhile
        return UNKNOWN_WRITER if is_recent and absolute.startswith(self._folders) else None
