"""Segments: the pieces of a window, each with one part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flatout.attribute.intervals import Times
from flatout.records.timeline import Segments


def merged_segments(points: Times, part: NDArray[np.uint8]) -> Segments:
    """Merge neighbouring pieces with the same part into one segment; `points` has one more entry than `part`."""
    if len(part) == 0:
        empty = np.zeros(0, dtype=np.int64)
        return Segments(start_ns=empty, end_ns=empty, part=np.zeros(0, dtype=np.uint8))
    first = np.flatnonzero(np.append(True, part[1:] != part[:-1]))
    start = points[:-1][first]
    return Segments(start_ns=start, end_ns=np.append(start[1:], points[-1]), part=part[first])
