"""How a node-local cache of a job's files was used."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class CacheCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Reads of files that the cache covers, by whether a copy was read."""

    num_hits: Count = 0
    num_misses: Count = 0
    num_admitted: Count = 0  # of the misses: files that were copied
    hit_bytes: Count = 0  # sizes of the files that were read from copies
    missed_bytes: Count = 0


class CacheUse(msgspec.Struct, frozen=True, kw_only=True):
    """A cache: its copies, and all reads since it was made."""

    folder: str
    num_copies: int
    copied_bytes: int
    num_processes: int  # whose reads are counted
    counts: CacheCounts
    problems: tuple[str, ...] = ()

    @property
    def hit_rate(self) -> float | None:
        """Return the share of the reads that a copy served; None if nothing was read."""
        num_reads = self.counts.num_hits + self.counts.num_misses
        return self.counts.num_hits / num_reads if num_reads else None
