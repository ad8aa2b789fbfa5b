"""Keep the end of what this process writes to `sys.stderr`, where others can read it after any end of the process.

In: texts, from `exit_text`. Out: `stderr-<host>-<pid>` in the folder for heartbeats, a small memory-mapped ring that
survives `os._exit` and SIGKILL. What native code writes to file descriptor 2 is not seen.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from flatout.inside.protocol import STDERR_BYTES, STDERR_COUNT_BYTES, File, process_name

_RING_BYTES = STDERR_BYTES - STDERR_COUNT_BYTES


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)  # what the job says can hold secrets; `keep.exits` masks what it shows


class StderrTail:
    def __init__(self, folder: Path) -> None:
        path = folder / File.STDERR.of(process_name(os.uname().nodename, os.getpid()))
        with open(path, "w+b", opener=_private) as file:
            file.truncate(STDERR_BYTES)
            self._map = mmap.mmap(file.fileno(), STDERR_BYTES)
        self._num_written = 0

    def add(self, text: str) -> None:
        data = text.encode(errors="replace")
        self._num_written += len(data)
        data = data[-_RING_BYTES:]
        begin = (self._num_written - len(data)) % _RING_BYTES
        first = data[: _RING_BYTES - begin]
        self._map[STDERR_COUNT_BYTES + begin : STDERR_COUNT_BYTES + begin + len(first)] = first
        rest = data[len(first) :]
        self._map[STDERR_COUNT_BYTES : STDERR_COUNT_BYTES + len(rest)] = rest
        self._map[:STDERR_COUNT_BYTES] = self._num_written.to_bytes(STDERR_COUNT_BYTES, "little")
