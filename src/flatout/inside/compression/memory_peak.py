"""Measure the most memory that was in use since a moment: torch's on GPUs, the process's resident memory on a CPU."""

from __future__ import annotations

import re

import torch

from flatout.inside.protocol import GPU_PEAK, RESIDENT_PEAK, RESIDENT_PEAK_WITH_START

_RESET_PEAK = "5"  # proc(5): of /proc/self/clear_refs
_PEAK = re.compile(r"^VmHWM:\s*(\d+) kB$", re.MULTILINE)


def wait_for(device: str) -> None:
    """Wait until the GPU has done what it was asked for, which Python does not wait for."""
    if device == "cuda":
        torch.cuda.synchronize()


class MemoryPeak:
    """It begins when it is made. `kind` says what is measured."""

    def __init__(self, device: str) -> None:
        self.kind = GPU_PEAK if device == "cuda" else _begin_resident()
        if device == "cuda":
            for index in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(index)

    def num_bytes(self) -> int | None:
        """Return the peak, over all GPUs; None if it is unknown."""
        if self.kind == GPU_PEAK:
            return sum(int(torch.cuda.max_memory_allocated(index)) for index in range(torch.cuda.device_count()))
        return _resident_peak()


def _begin_resident() -> str:
    """Forget the peak of the process so far; where the kernel does not allow that, the peak includes it."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write(_RESET_PEAK)
    except OSError:
        return RESIDENT_PEAK_WITH_START
    return RESIDENT_PEAK


def _resident_peak() -> int | None:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            found = _PEAK.search(file.read())
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1024
