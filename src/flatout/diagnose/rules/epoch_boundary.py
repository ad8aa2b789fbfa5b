"""The training waits at each start of an epoch.

What it means
    At the end of an epoch the loader stops its workers; at the start of the next it starts new ones, each of which
    imports the script, opens the data set again and prepares its first batches. No batch comes until the first worker
    is done. Before that, the sampler gives the first indices: some compute the order of the whole epoch for them.

Why it costs
    The stall is short in a step log of a long epoch, but it returns with every epoch, on every rank. A trace of a few
    steps misses it.

Evidence
    Which steps are an epoch's first (a loader ran out of batches), the time that the recorder measured in making the
    loader's iterator and waiting for its first batch, and what else of these steps exceeds the regular step. `steps`
    are examples; `total_s` is the time of all of them. For workers that are spawned, how many bytes are pickled for
    each of them, which is mostly the data set, and how long that takes. `sampler_s` is the time until the sampler's
    first indices of an epoch, in the training process.

Change to try
    `DataLoader(persistent_workers=True)` keeps the workers and what they have prepared. Workers that are spawned start
    fast from a fork server: `DataLoader(multiprocessing_context="forkserver")`. Ranks that
    `torch.multiprocessing.spawn` started spawn theirs, too. A data set that is large when pickled is pickled for each
    worker unless it is forked: keep its data in a memory-mapped file, or open it in the worker. If the sampler takes
    the time, let it compute its order once, with arrays instead of a loop, or in the background. Otherwise make the
    data set's first access cheap, or use longer epochs.

When this is wrong
    A data set that must be opened again for each epoch, e.g. because its files change, cannot keep its workers. A data
    set that keeps state or draws random numbers in its workers gives other samples with persistent workers.
"""

from __future__ import annotations

from typing import Any

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.loader_advice import is_stateful, keep_workers, pickle_less, start_workers_fast
from flatout.diagnose.stalls import Stalls, ends_an_epoch, stall_finding, stalls_of
from flatout.records.change import JobFacts
from flatout.records.diagnosis import Finding
from flatout.records.job_log import StallCause
from flatout.units import percent, seconds

CODE = "F17"
NAME = "epoch-boundary"
MIN_SAMPLER_SHARE = 0.2  # of the start of an epoch; a smaller one is not reported
CAUSES = (StallCause.LOADER_START, StallCause.LOADER, StallCause.UNKNOWN)


def find(context: DiagnosisContext) -> list[Finding]:
    if context.log is None:
        return []
    stalls = stalls_of(context, *CAUSES, where=ends_an_epoch(context.log))
    if stalls is None:
        return []
    facts = context.job_facts
    sampler_share = _sampler_share(stalls, facts)
    starts_faster = (*_sample_faster(facts, sampler_share), *pickle_less(facts), *start_workers_fast(facts))
    return stall_finding(
        stalls,
        code=CODE,
        name=NAME,
        what=_what(sampler_share),
        evidence=_pickled(facts) | _sampled(facts),
        changes=(
            *starts_faster,
            *keep_workers(facts),
            *_time_sampler(facts),
            "make the first access of the data set cheap: open files and indices lazily or memory-mapped",
            "longer epochs",
        ),
        safety="semantic" if is_stateful(facts) and not starts_faster else "exact",
    )


def _sampler_share(stalls: Stalls, loader: JobFacts) -> float:
    """Return the share of these starts in which the sampler makes its first indices; 0 if it is small or unknown."""
    start_s = sum(stall.excess_s for stall in stalls.stalls) / len(stalls.steps)
    if loader.loader_sampler_s is None or start_s <= 0:
        return 0.0
    share = min(loader.loader_sampler_s / start_s, 1.0)
    return share if share >= MIN_SAMPLER_SHARE else 0.0


def _what(sampler_share: float) -> str:
    what = "the training waits for its loader at the start of an epoch"
    return f"{what}, {percent(sampler_share)} of that for its sampler" if sampler_share else what


def _sample_faster(loader: JobFacts, sampler_share: float) -> tuple[str, ...]:
    """Return the advice to make the sampler faster, if it takes much of the start."""
    if not sampler_share or loader.loader_sampler_s is None:
        return ()
    takes = f"its first indices of an epoch take {seconds(loader.loader_sampler_s)}"
    return (f"compute the sampler's order with arrays instead of a loop, or in the background: {takes}",)


def _time_sampler(loader: JobFacts) -> tuple[str, ...]:
    """Return the advice to time the sampler, if the recording does not say how long it takes."""
    if loader.loader_sampler_s is not None:
        return ()
    return ("time the sampler: one that computes the order of each epoch at its start is part of this time",)


def _sampled(loader: JobFacts) -> dict[str, Any]:
    return {} if loader.loader_sampler_s is None else {"sampler_s": loader.loader_sampler_s}


def _pickled(loader: JobFacts) -> dict[str, Any]:
    """Return what is pickled for each worker, as evidence; empty if workers are forked."""
    if loader.loader_pickled_bytes is None:
        return {}
    return {"pickled_per_worker_bytes": loader.loader_pickled_bytes, "pickled_per_worker_s": loader.loader_pickled_s}
