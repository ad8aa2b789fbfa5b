"""Choose how many units FSDP2 gathers ahead, from the time of a gather and the compute of one unit.

In: a traced job. Out: the number of units whose compute is as long as one gather, from 1 to 4. Where a gather takes
longer than the compute of 4 units, the link is the limit and no depth hides it; more units ahead only take memory.
"""

from __future__ import annotations

import math

import numpy as np

from flatout.predict.situation import Situation
from flatout.records.track import GpuWorkKind

DEEPEST = 4


def best_prefetch_depth(situation: Situation) -> int | None:
    """Return the depth; None if the trace has no gathers or no compute."""
    ratios = [ratio for rank in situation.tracks if (ratio := _gather_per_unit(situation, rank)) is not None]
    if not ratios:
        return None
    depth = math.ceil(float(np.median(ratios)))
    return min(max(depth, 1), DEEPEST) if depth <= DEEPEST else 1


def _gather_per_unit(situation: Situation, rank: int) -> float | None:
    """Return a gather's time over the compute of a unit, which is that between two gathers."""
    track = situation.tracks[rank]
    rows = np.array([row for row, _ in situation.calls(rank, "all_gather")], dtype=np.int64)
    own = (track.work != GpuWorkKind.COMMUNICATION) & (track.launched_by >= 0)
    compute_ns = float((track.end_ns - track.start_ns)[own].sum())
    if len(rows) == 0 or compute_ns <= 0:
        return None
    gather_ns = float(np.median(situation.edits()[rank].duration_ns[rows]))
    return gather_ns / (compute_ns / len(rows))
