"""Trace files to event tables: `open_sources` finds the files, `read_trace` reads one, `assign_ranks` says whose."""

from __future__ import annotations

from flatout.read.ranks import RankAssignment, assign_ranks
from flatout.read.sources import TraceSource, open_sources
from flatout.read.trace import read_trace

__all__ = ["RankAssignment", "TraceSource", "assign_ranks", "open_sources", "read_trace"]
