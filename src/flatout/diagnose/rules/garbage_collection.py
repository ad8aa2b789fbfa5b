"""Python's garbage collector stops the training.

What it means
    The collector examines the objects of a process while nothing else of its Python code runs. With millions of
    long-lived objects (a data set's lists, a compiled model, caches) a full collection takes a large part of a second.

Why it costs
    Each rank collects at different times, and all other ranks wait for it at the next collective. With many ranks,
    one of them is collecting in almost every step.

Evidence
    The recorder's hook of `gc.callbacks` measures each collection of more than 0.1 ms: its time in each step and rank,
    how often the collection was a full one, and which ranks waited. A plain trace does not name collections. There, a
    collection is the likeliest cause of long pauses of the host that hit a few steps of each rank, and never two ranks
    at once (`pause_s`: how much longer the GPU of each rank is idle there).

Change to try
    `gc.disable()` and `gc.collect()` at the same step on all ranks, every few hundred steps; or `gc.freeze()` once the
    data and the model exist, which takes them out of later collections. Remove calls of `gc.collect()` from the loop.

When this is wrong
    In a plain trace, anything else that stops one rank's Python now and then looks the same: a lock, a log that is
    flushed, another process on the same core. A script that creates reference cycles with tensors in them needs
    collections, or its memory grows: collect less often instead of never.
"""

from __future__ import annotations

import numpy as np

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import cost_words, finding, rank_words
from flatout.diagnose.stalls import ranks_in_words, stall_finding, stalls_of
from flatout.records.diagnosis import PART_NAMES, Finding, Part
from flatout.records.job_log import StallCause
from flatout.records.timeline import RankTimeline
from flatout.units import seconds

CODE = "F18"
NAME = "garbage-collection"
# A pause in a trace is at least this long, and hits at most this share of a rank's steps.
MIN_PAUSE_S = 0.010
MIN_SHARE_OF_STEP = 0.1
MOST_PAUSED = 0.5
MIN_STEPS, MIN_RANKS = 4, 2


CHANGES = (
    "gc.disable(), and gc.collect() at the same step on all ranks, every few hundred steps",
    "gc.freeze() once the data and the model exist",
    "remove gc.collect() from the loop",
)
# The advice for a script that has disabled the collector and calls it explicitly.
CHANGES_OF_ITS_COLLECTIONS = (
    "remove gc.collect() from the loop",
    "gc.freeze() once the data and the model exist",
    "call gc.collect() at the same step on all ranks, and less often",
)


def find(context: DiagnosisContext) -> list[Finding]:
    if context.log is None:
        return _of_the_trace(context)
    stalls = stalls_of(context, StallCause.GARBAGE_COLLECTION)
    if stalls is None:
        return []
    wait = " while others wait" if stalls.waiting_ranks else ""
    return stall_finding(
        stalls,
        code=CODE,
        name=NAME,
        what=f"Python's garbage collector stops {ranks_in_words(stalls)}{wait}",
        changes=CHANGES_OF_ITS_COLLECTIONS if context.job_facts.collects_automatically is False else CHANGES,
        evidence={"num_full_collections": stalls.log.num_full_collections},
    )


def _of_the_trace(context: DiagnosisContext) -> list[Finding]:
    """Find pauses that hit a few steps of several ranks, each rank in different steps."""
    pauses = {t.rank: found for t in context.ranks if (found := _pauses_s(context, t))}
    steps = [step for found in pauses.values() for step in found]
    if len(pauses) < MIN_RANKS or len(set(steps)) < len(steps):
        return []
    own_s = context.per_step(sum(sum(found.values()) for found in pauses.values())) / len(context.ranks)
    waited_s = context.per_step(
        sum(
            piece.wait_ns / 1e9
            for piece in context.job.slices
            if piece.part == PART_NAMES[Part.HOST_LAUNCH] and piece.step in pauses.get(piece.blamed_rank, {})
        )
    ) / len(context.ranks)
    cost = context.claim(Part.HOST_LAUNCH, own_s + waited_s)
    ranks = tuple(sorted(pauses))
    longest = max(max(found.values()) for found in pauses.values())
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"the host pauses on {rank_words(ranks, len(context.ranks))}, each in different steps, for up to"
            f" {seconds(longest)}, which looks like Python's garbage collection: {cost_words(context, cost)}"
        ),
        ranks=ranks,
        cost_s=cost,
        evidence={
            "cause": str(StallCause.GARBAGE_COLLECTION),
            "num_stalled_steps": len(steps),
            "pause_s": {str(rank): sum(found.values()) / len(found) for rank, found in pauses.items()},
            "steps": sorted(steps),
        },
        changes=CHANGES,
        safety="exact",
        confidence="medium",
    )


def _pauses_s(context: DiagnosisContext, timeline: RankTimeline) -> dict[int, float]:
    """Return the steps in which the GPU of a rank waits much longer for its host than usual, with how much longer."""
    if len(timeline.steps) < MIN_STEPS:
        return {}
    segments = context.job.segments[timeline.rank]
    idle_s = {s.number: segments.between_ns(s.start_ns, s.end_ns)[Part.HOST_LAUNCH] / 1e9 for s in timeline.steps}
    usual_s = float(np.median(list(idle_s.values())))
    shortest_s = max(MIN_PAUSE_S, MIN_SHARE_OF_STEP * context.step_s)
    pauses = {step: float(idle - usual_s) for step, idle in idle_s.items() if idle - usual_s >= shortest_s}
    return pauses if len(pauses) <= MOST_PAUSED * len(idle_s) else {}
