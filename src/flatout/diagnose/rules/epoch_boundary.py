"""The training waits at each start of an epoch.

What it means
    At the end of an epoch the loader stops its workers; at the start of the next it starts new ones, each of which
    imports the script, opens the data set again and prepares its first batches. No batch comes until the first worker
    is done.

Why it costs
    The stall is short in a step log of a long epoch, but it returns with every epoch, on every rank. A trace of a few
    steps misses it.

Evidence
    Which steps are an epoch's first (a loader ran out of batches), the time that the recorder measured in making the
    loader's iterator and waiting for its first batch, and what else of these steps exceeds the regular step. `steps`
    are examples; `total_s` is the time of all of them. For workers that are spawned, how many bytes are pickled for
    each of them, which is mostly the data set, and how long that takes.

Change to try
    `DataLoader(persistent_workers=True)` keeps the workers and what they have prepared. Workers that are spawned start
    fast from a fork server: `DataLoader(multiprocessing_context="forkserver")`. Ranks that
    `torch.multiprocessing.spawn` started spawn theirs, too. A data set that is large when pickled is pickled for each
    worker unless it is forked: keep its data in a memory-mapped file, or open it in the worker. Otherwise make the data
    set's first access cheap, or use longer epochs.

When this is wrong
    A data set that must be opened again for each epoch, e.g. because its files change, cannot keep its workers. A data
    set that keeps state or draws random numbers in its workers gives other samples with persistent workers.
"""

from __future__ import annotations

from typing import Any

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.loader_advice import is_stateful, keep_workers, pickle_less, start_workers_fast
from flatout.diagnose.stalls import ends_an_epoch, stall_finding, stalls_of
from flatout.records.change import JobFacts
from flatout.records.diagnosis import Finding
from flatout.records.job_log import StallCause

CODE = "F17"
NAME = "epoch-boundary"
CAUSES = (StallCause.LOADER_START, StallCause.LOADER, StallCause.UNKNOWN)


def find(context: DiagnosisContext) -> list[Finding]:
    if context.log is None:
        return []
    stalls = stalls_of(context, *CAUSES, where=ends_an_epoch(context.log))
    if stalls is None:
        return []
    starts_faster = (*pickle_less(context.job_facts), *start_workers_fast(context.job_facts))
    return stall_finding(
        stalls,
        code=CODE,
        name=NAME,
        what="the training waits for its loader at the start of an epoch",
        evidence=_pickled(context.job_facts),
        changes=(
            *starts_faster,
            *keep_workers(context.job_facts),
            "make the first access of the data set cheap: open files and indices lazily or memory-mapped",
            "longer epochs",
        ),
        safety="semantic" if is_stateful(context.job_facts) and not starts_faster else "exact",
    )


def _pickled(loader: JobFacts) -> dict[str, Any]:
    """Return what is pickled for each worker, as evidence; empty if workers are forked."""
    if loader.loader_pickled_bytes is None:
        return {}
    return {"pickled_per_worker_bytes": loader.loader_pickled_bytes, "pickled_per_worker_s": loader.loader_pickled_s}
