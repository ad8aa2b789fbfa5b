"""Choose the bucket size of DistributedDataParallel from when gradients become ready and what an all-reduce costs.

In: a traced job. Out: the size that ends the last all-reduce of a step first, in MiB. The trace's own buckets show how
many bytes of gradients were ready at which time, in the order of the layers; between two of them, gradients are assumed
to become ready evenly. The all-reduces of a step follow each other on the link, each of `latency + bytes / rate` as
fitted to the trace. The first bucket has the same limit as the others, as in torch when a size is set, or one of its
own.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.predict.collective_cost import CollectiveCost, fitted
from flatout.predict.situation import Situation

MIB = 1 << 20
SIZES_MIB = (1, 2, 3, 5, 8, 12, 18, 25, 35, 50, 75, 100, 150, 200, 300, 400)
MIN_SAVED = 0.01  # of the exchange's end: less does not choose another size
Floats = NDArray[np.float64]


class Readiness(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Bytes of gradients that are ready by a time of the backward pass, in one step of one rank."""

    at_ns: Floats
    num_bytes: Floats  # cumulative

    @property
    def first_bucket(self) -> float:
        """Return the bytes of the trace's first bucket."""
        return float(self.num_bytes[1])

    @property
    def largest_bucket(self) -> float:
        return float(np.diff(self.num_bytes).max())

    def ready_ns(self, num_bytes: Floats) -> Floats:
        return np.asarray(np.interp(num_bytes, self.num_bytes, self.at_ns), dtype=np.float64)


def best_bucket_mib(situation: Situation) -> int | None:
    """Return the size that the model prefers; None if the trace does not show how gradients become ready."""
    cost = fitted(situation, "all_reduce")
    steps = [step for rank in situation.tracks for step in readiness(situation, rank)]
    if cost is None or not steps:
        return None
    ends_ns = {size: float(np.mean([end_ns(step, size * MIB, cost) for step in steps])) for size in SIZES_MIB}
    least_ns = min(ends_ns.values())
    # Of sizes that are as good, the one with the fewest messages.
    return max(size for size, at in ends_ns.items() if at <= least_ns * (1 + MIN_SAVED))


def best_first_bucket_mib(situation: Situation) -> int | None:
    """Return the size of the first bucket that the model prefers, where the others stay as large as in the trace.

    None if the trace does not show how gradients become ready.
    """
    cost = fitted(situation, "all_reduce")
    steps = [step for rank in situation.tracks for step in readiness(situation, rank)]
    if cost is None or not steps:
        return None
    largest = max(step.largest_bucket for step in steps)
    sizes = [size for size in SIZES_MIB if size * MIB <= largest] or [SIZES_MIB[0]]
    ends_ns = {size: _mean_end_ns(steps, size * MIB, cost) for size in sizes}
    least_ns = min(ends_ns.values())
    return max(size for size, at in ends_ns.items() if at <= least_ns * (1 + MIN_SAVED))


def _mean_end_ns(steps: Sequence[Readiness], first_bytes: float, cost: CollectiveCost) -> float:
    return float(np.mean([end_ns(step, step.largest_bucket, cost, first_bytes) for step in steps]))


def end_ns(step: Readiness, bucket_bytes: float, cost: CollectiveCost, first_bytes: float | None = None) -> float:
    """Return when the last all-reduce ends, from the time at which the first gradient is ready.

    The last bucket is taken as full: how much of it the layers fill is unknown, and it delays the step most. With
    `first_bytes`, the first bucket has this size.
    """
    total = float(step.num_bytes[-1])
    limits = np.sort(np.arange(total, 0.0, -bucket_bytes))
    if first_bytes is not None and first_bytes < total:
        limits = np.append(first_bytes, limits[limits > first_bytes])
    sizes = np.diff(limits, prepend=0.0)
    free_ns = 0.0
    for size, ready in zip(sizes.tolist(), step.ready_ns(limits).tolist(), strict=True):
        free_ns = max(free_ns, ready) + cost.transfer_ns(size)
    return free_ns


def readiness(situation: Situation, rank: int) -> list[Readiness]:
    """Return how the gradients of each step's last pass become ready, from the launches of its buckets."""
    track, facts = situation.tracks[rank], situation.timelines[rank].facts
    rows = np.array([row for row, call in situation.calls(rank, "all_reduce") if call.num_bytes], dtype=np.int64)
    sizes = np.array([call.num_bytes for _, call in situation.calls(rank, "all_reduce") if call.num_bytes], dtype=float)
    if len(rows) < 2:
        return []
    steps = situation.steps_of(rank, rows)
    passes = facts.communication_pass[track.communication[rows]] if facts is not None else np.zeros(len(rows))
    ready = _ready_ns(situation, rank, rows)
    found = []
    for step in np.unique(steps).tolist():
        in_step = steps == step
        last = in_step & (passes == passes[in_step].max())
        if last.sum() >= 2:
            found.append(_with_begin(ready[last], sizes[last]))
    return found


def _ready_ns(situation: Situation, rank: int, rows: NDArray[np.int64]) -> Floats:
    """Return when each bucket's gradients were complete: its launch, or the end of the work that it had to follow."""
    track = situation.tracks[rank]
    launched = track.node_ns[track.launched_by[rows]].astype(float)
    after = track.after[rows]
    followed = np.where(after >= 0, track.end_ns[np.maximum(after, 0)], 0).astype(float)
    ready: Floats = np.maximum(launched, followed)
    return ready


def _with_begin(ready_ns: Sequence[float] | Floats, sizes: Floats) -> Readiness:
    """Return the readiness with its begin, in which the first bucket fills at the pace of the others."""
    at = np.maximum.accumulate(np.asarray(ready_ns, dtype=float))
    pace_ns = (at[-1] - at[0]) / max(float(sizes[1:].sum()), 1.0)
    begin = at[0] - pace_ns * sizes[0]
    return Readiness(at_ns=np.append(0.0, at - begin), num_bytes=np.append(0.0, np.cumsum(sizes)))
