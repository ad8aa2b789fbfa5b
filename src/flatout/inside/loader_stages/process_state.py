"""The memory of this process while it makes batches, and how often it waited for a page of a file.

In: the kernel's counters, each time that a report is written. Out: numbers for the report. What cannot be read is
absent.
"""

from __future__ import annotations

import os
import resource
from typing import Any

_KIB = 1024
_SHARED_MEMORY = "/dev/shm"  # through which workers send tensors


class ProcessState:
    def __init__(self) -> None:
        self._first_faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        self._values: dict[str, Any] = {}

    def look(self) -> None:
        """Read the counters again."""
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        self._values["num_major_faults"] = max(faults - self._first_faults, 0)
        own_bytes = _own_bytes()
        if own_bytes is not None:
            self._values.setdefault("first_own_bytes", own_bytes)
            self._values["own_bytes"] = max(own_bytes, self._values.get("own_bytes", 0))
        try:
            shared = os.statvfs(_SHARED_MEMORY)
        except OSError:
            return
        used = (shared.f_blocks - shared.f_bfree) * shared.f_frsize
        self._values["shm_bytes"] = shared.f_blocks * shared.f_frsize
        self._values["shm_used_bytes"] = max(used, self._values.get("shm_used_bytes", 0))

    def report(self) -> dict[str, Any]:
        return self._values


def _own_bytes() -> int | None:
    """Return the memory that this process shares with no file: what it has copied or made since it was forked."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * _KIB
    except (OSError, ValueError, IndexError):
        return None
    return None
