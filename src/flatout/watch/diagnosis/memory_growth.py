"""Find ranks whose host memory grows with the steps.

In: their memory at each block of steps. Out: those that gain some.

The memory of a training fills caches in its first minutes, and moves up and down later. A leak gains some in almost
every block, for a long time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise

NUM_BLOCKS = 30
LEAST_GROWING = 0.8  # share of the blocks in which the memory grew
LEAST_GROWTH_BYTES = 64 << 20


class MemoryGrowth:
    def __init__(self) -> None:
        self._of_rank: dict[int, deque[int]] = {}

    def add(self, memory_bytes: Mapping[int, int]) -> None:
        """Add the memory of each rank at the end of a block."""
        for rank, value in memory_bytes.items():
            self._of_rank.setdefault(rank, deque(maxlen=NUM_BLOCKS + 1)).append(value)

    def growing(self) -> dict[int, float]:
        """Return the bytes per block that each growing rank gained over the last blocks."""
        return {rank: gained for rank, values in self._of_rank.items() if (gained := _gained(values)) is not None}


def _gained(values: deque[int]) -> float | None:
    if len(values) <= NUM_BLOCKS:
        return None
    num_growing = sum(after > before for before, after in pairwise(values))
    growth = values[-1] - values[0]
    is_steady = num_growing >= LEAST_GROWING * NUM_BLOCKS
    return growth / NUM_BLOCKS if is_steady and growth >= LEAST_GROWTH_BYTES else None
