"""Ranks get unequal amounts of data, so some compute longer than others.

What it means
    Within a step, the ranks' inputs differ in size (e.g. in sequence length), and the ranks with more data compute
    longer.

Why it costs
    All ranks wait for the one with the most work. Which rank that is changes from step to step, so no rank looks slow
    on average.

Evidence
    Input elements of each rank and step (from the recorded shapes), compute seconds of each, and how often the rank
    with the most data was also the slowest. The cost is the compute time of the slowest rank in excess of the mean.

Change to try
    Sample batches by length (bucketing), pack sequences, or balance by tokens instead of samples.

When this is wrong
    The finding needs shapes in the trace (`record_shapes=True`). Work that grows faster than the input (attention) is
    less balanced than the input sizes suggest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import cost_words, finding
from flatout.records.diagnosis import Finding, Part

CODE = "F14"
NAME = "unbalanced-data"
MIN_RATIO = 1.05
MIN_AGREEMENT = 0.6


def find(context: DiagnosisContext) -> list[Finding]:
    elements = _elements(context)
    if elements is None:
        return []
    ratio = elements.max(axis=0) / np.maximum(elements.min(axis=0), 1)
    uneven = ratio > MIN_RATIO
    if not uneven.any():
        return []
    compute = _compute(context)
    heaviest = elements.argmax(axis=0)
    slowest = compute.argmax(axis=0)
    agreement = float((heaviest == slowest)[uneven].mean())
    if agreement < MIN_AGREEMENT:
        return []
    # Equal work also differs between ranks, because overlapping communication slows it: only uneven steps count.
    cost = float(np.where(uneven, compute.max(axis=0) - compute.mean(axis=0), 0).mean())
    _claim(context, cost, float(np.where(uneven, np.ptp(compute, axis=0), 0).mean()))
    ranks = tuple(context.ranks[i].rank for i in sorted(set(heaviest[uneven].tolist())))
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"ranks get unequal work: up to {float(ratio.max()):.1f} times as much input in the same step;"
            f" balancing saves {cost_words(context, cost)}"
        ),
        ranks=ranks,
        cost_s=cost,
        evidence={
            "input_elements": {str(t.rank): elements[i].astype(int).tolist() for i, t in enumerate(context.ranks)}
            if len(context.ranks) <= 16
            else None,
            "compute_s": {str(t.rank): compute[i].tolist() for i, t in enumerate(context.ranks)}
            if len(context.ranks) <= 16
            else None,
            "heaviest_rank_by_step": [context.ranks[i].rank for i in heaviest.tolist()],
            "heavier_is_slower_share": agreement,
        },
        changes=(
            "sample batches by length (bucketing), or pack sequences",
            "balance by tokens instead of samples",
        ),
        safety="semantic",
        confidence="high" if agreement == 1 and context.num_steps > 1 else "medium",
    )


def _claim(context: DiagnosisContext, cost_s: float, spread_s: float) -> None:
    """Claim all lateness that the uneven work explains, although balancing saves only `cost_s`."""
    left = spread_s
    for rank in context.late_ranks():
        left -= context.claim_lateness(rank, left)
    context.claim(Part.COMPUTE, cost_s - (spread_s - left))


def _elements(context: DiagnosisContext) -> NDArray[np.float64] | None:
    """Return the input elements by rank and step; None if any is missing from the recording."""
    if len(context.ranks) < 2 or not context.num_steps:
        return None
    rows = []
    for timeline in context.ranks:
        found = timeline.facts.input_elements if timeline.facts else ()
        if len(found) != context.num_steps or any(not n for n in found):
            return None
        rows.append([float(n or 0) for n in found])
    return np.array(rows)


def _compute(context: DiagnosisContext) -> NDArray[np.float64]:
    """Return the compute seconds by rank and step."""
    return np.array(
        [
            [context.job.segments[t.rank].between_ns(s.start_ns, s.end_ns)[Part.COMPUTE] / 1e9 for s in t.steps]
            for t in context.ranks
        ]
    )
