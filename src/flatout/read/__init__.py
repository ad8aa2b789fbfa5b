"""Read trace files into event tables: `open_sources` finds them, `read_trace` reads each, `assign_ranks` adds ranks."""

from __future__ import annotations

from flatout.read.processes import RankPart, SeveralRanksError
from flatout.read.ranks import RankAssignment, assign_ranks
from flatout.read.sources import TraceSource, open_sources
from flatout.read.trace import read_trace

__all__ = [
    "RankAssignment",
    "RankPart",
    "SeveralRanksError",
    "TraceSource",
    "assign_ranks",
    "open_sources",
    "read_trace",
]
