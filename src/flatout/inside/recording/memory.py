"""Read the counters of the CUDA caching allocator, as the script would read them, without ever resetting them.

A reading takes about 20 us, so the counters are read at most twice per second; steps in between have None.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_MIN_INTERVAL_NS = 500_000_000


@dataclass(frozen=True, slots=True)
class MemoryCounts:
    peak_bytes: int
    num_retries: int  # allocations since the process started that had to empty the cache first


class MemoryReader:
    def __init__(self) -> None:
        self._next_ns = 0

    def read(self, now_ns: int, *, is_forced: bool = False) -> MemoryCounts | None:
        """Return the counters; None if the last reading is too recent, or if the process uses no GPU."""
        if now_ns < self._next_ns and not is_forced:
            return None
        self._next_ns = now_ns + _MIN_INTERVAL_NS
        if not torch.cuda.is_initialized():
            return None
        stats = torch.cuda.memory_stats_as_nested_dict()
        if not stats:
            return None
        return MemoryCounts(stats["allocated_bytes"]["all"]["peak"], stats["num_alloc_retries"])
