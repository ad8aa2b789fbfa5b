"""Measure the work of a process and its descendants: CPU time and bytes read and written, from the kernel's counters.

These counters grow while a rank makes progress, whatever its script does, and stay constant while it hangs.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec
import psutil

_COUNTERS = ("read_chars", "write_chars", "read_bytes", "write_bytes")


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True):
    cpu_s: float
    moved_bytes: int | None  # None if the kernel does not report it

    def busy_cores(self, before: ProcessUsage, elapsed_s: float) -> float:
        return (self.cpu_s - before.cpu_s) / elapsed_s if elapsed_s > 0 else 0.0

    def moved_since(self, before: ProcessUsage) -> int:
        if self.moved_bytes is None or before.moved_bytes is None:
            return 0
        return self.moved_bytes - before.moved_bytes


def work_of(pid: int) -> ProcessUsage:
    cpu_s, moved, is_told = 0.0, 0, False
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                times = one.cpu_times()
                cpu_s += times.user + times.system
            with suppress(psutil.Error, AttributeError):
                counters = one.io_counters()
                # Bytes of system calls, and bytes of disk I/O: reads of a memory-mapped file are included only in disk
                # I/O.
                moved += int(sum(getattr(counters, name) for name in _COUNTERS))
                is_told = True
    return ProcessUsage(cpu_s=cpu_s, moved_bytes=moved if is_told else None)
