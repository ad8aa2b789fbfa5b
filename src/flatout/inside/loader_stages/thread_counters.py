"""What the kernel counts for the thread that makes batches: waiting for a core, bytes and calls that read.

In: the thread that asks. Out: its numbers so far. The files of /proc stay open, because to open them for each batch
takes longer than to read them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from threading import get_ident

_MAX_BYTES = 1024  # of a file


class ThreadCounters:
    """The counters of the calling thread; those that the kernel does not give are 0."""

    def __init__(self) -> None:
        self._schedstat: int | None = None
        self._io: int | None = None
        self._thread: int | None = None  # whose files are open

    def _open(self) -> None:
        self.close()
        self._thread = get_ident()
        self._schedstat = _opened("/proc/thread-self/schedstat")
        self._io = _opened("/proc/thread-self/io")

    def close(self) -> None:
        for file in (self._schedstat, self._io):
            if file is not None:
                with suppress(OSError):
                    os.close(file)
        self._schedstat = self._io = self._thread = None

    def read(self) -> tuple[float, int, int, int]:
        """Return seconds in the queue for a core, bytes read, bytes read from a device, and calls that read."""
        if self._thread != get_ident():
            self._open()
        queued_s = 0.0
        numbers: dict[bytes, int] = {}
        with suppress(OSError, ValueError, IndexError):
            if self._schedstat is not None:
                queued_s = int(os.pread(self._schedstat, _MAX_BYTES, 0).split()[1]) / 1e9
            if self._io is not None:
                lines = os.pread(self._io, _MAX_BYTES, 0).splitlines()
                numbers = {name: int(value) for name, value in (line.split(b": ") for line in lines)}
        return queued_s, numbers.get(b"rchar", 0), numbers.get(b"read_bytes", 0), numbers.get(b"syscr", 0)


def _opened(path: str) -> int | None:
    with suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None
