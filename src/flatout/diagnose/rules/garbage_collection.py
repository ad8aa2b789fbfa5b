"""Python's garbage collector stops the training.

What it means
    The collector examines the objects of a process while nothing else of its Python code runs. With millions of
    long-lived objects (a data set's lists, a compiled model, caches) a full collection takes a large part of a second.

Why it costs
    Each rank collects at times of its own, and all other ranks wait for it at the next collective. With many ranks,
    one of them is collecting in almost every step.

Evidence
    The recorder's hook of `gc.callbacks` measures each collection of more than 0.1 ms: its time in each step and rank,
    how often the collection was a full one, and which ranks waited.

Change to try
    `gc.disable()` and `gc.collect()` at the same step on all ranks, every few hundred steps; or `gc.freeze()` once the
    data and the model exist, which takes them out of later collections. Remove calls of `gc.collect()` from the loop.

When this is wrong
    A script that creates reference cycles with tensors in them needs collections, or its memory grows: collect less
    often instead of never.
"""

from __future__ import annotations

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.stalls import ranks_in_words, stall_finding, stalls_of
from flatout.records.diagnosis import Finding
from flatout.records.job_log import StallCause

CODE = "F18"
NAME = "garbage-collection"


def find(context: DiagnosisContext) -> list[Finding]:
    stalls = stalls_of(context, StallCause.GARBAGE_COLLECTION)
    if stalls is None:
        return []
    wait = " while others wait" if stalls.waiting_ranks else ""
    return stall_finding(
        stalls,
        code=CODE,
        name=NAME,
        what=f"Python's garbage collector stops {ranks_in_words(stalls)}{wait}",
        changes=(
            "gc.disable(), and gc.collect() at the same step on all ranks, every few hundred steps",
            "gc.freeze() once the data and the model exist",
            "remove gc.collect() from the training loop",
        ),
        evidence={"num_full_collections": stalls.log.num_full_collections},
    )
