"""The training waits for the next batch.

What it means
    The GPU is idle while a training thread is inside the DataLoader's `__next__`. Without worker processes the batch is
    prepared there; with workers, the loop waits for them.

Why it costs
    The GPU does nothing during this time, and with several ranks the slowest loader sets the pace of all.

Evidence
    Idle seconds per step in each rank's loader, how long the other ranks wait for the slowest one, and the type of the
    loader: `_SingleProcessDataLoaderIter` has no worker processes, `_MultiProcessingDataLoaderIter` has at least one. A
    recording also has the CPU time of making a batch, as a share of its time: a small share means waiting for storage
    or for a network. Its stage with most of the work on a sample is named; `flatout data show DIR` lists all of them. A
    recording has every step's wait for its batch (`wait_in_all_steps_s`). Where that is longer than in the traced
    steps, it counts: the recorder prolongs the rest of a traced step, and batches are ready in time. With workers that
    deliver together, one step waits long and the next ones not at all; their mean counts.

Change to try
    Set `num_workers`: up to the cores that this process may use if workers compute, and more if they wait. Each worker
    of an `IterableDataset` yields all samples, so they repeat, unless the data set divides them. Set
    `pin_memory=True` (on a GPU), `prefetch_factor` and `persistent_workers=True`. Then make decoding cheaper and
    storage faster.

When this is wrong
    The first batch of an epoch is slow because it starts the workers: a recording that begins there overestimates the
    cost. The recorder also slows Python code in the training process, though not in the workers.
"""

from __future__ import annotations

from typing import Any

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import MOST_RANKS_LISTED, cost_words, finding, rank_words, seconds_by_rank
from flatout.diagnose.host_evidence import busy_cores, busy_disk
from flatout.diagnose.loader_advice import keep_new_workers, more_workers, pin_memory, prefetch_more
from flatout.diagnose.logged_wait import logged_wait_s
from flatout.records.change import JobFacts
from flatout.records.diagnosis import PART_NAMES, Finding, Part
from flatout.units import percent

CODE = "F01"
NAME = "data-loading"
HOST_EVIDENCE = (busy_cores, busy_disk)
CHEAPER = "cheaper decoding or augmentation, data on faster storage"
EACH_ITS_OWN = "let each rank read its own part of the data, e.g. accelerate with dispatch_batches=False"


def find(context: DiagnosisContext) -> list[Finding]:
    cost = context.claim(Part.DATA_LOADING, context.available(Part.DATA_LOADING))
    logged_s = logged_wait_s(context)
    if logged_s is not None:
        cost += context.claim_idle(context.in_trace(logged_s) - cost)
    if cost <= 0:
        return []
    ranks = context.ranks_with_most(Part.DATA_LOADING) or tuple(t.rank for t in context.ranks)
    slowest = context.busiest_rank(Part.DATA_LOADING)
    facts = context.facts(slowest)
    has_no_workers = "SingleProcess" in (facts.loader_name or "")
    others = [t.rank for t in context.ranks if t.rank != slowest]
    # A rank that asks its own loader for batches reads its own part, even if no batch came late in the trace.
    is_one_for_all = bool(others) and not any(context.facts(rank).loader.count for rank in others)
    changes = _changes(context.job_facts, single=has_no_workers, has_gpu=context.has_gpu, is_one_for_all=is_one_for_all)
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=_title(context, ranks, cost, has_no_workers=has_no_workers),
        ranks=ranks,
        cost_s=cost,
        evidence=_evidence(context, slowest, logged_s, has_no_workers=has_no_workers),
        changes=changes,
        safety="exact",
    )


def _evidence(
    context: DiagnosisContext, slowest: int, logged_s: float | None, *, has_no_workers: bool
) -> dict[str, Any]:
    """Return what is known of the loader of the rank that waits longest, and of the wait in all recorded steps."""
    facts, loader = context.facts(slowest), context.job_facts
    idle_s = seconds_by_rank(context, Part.DATA_LOADING)
    mean_idle_s = float(context.own[:, Part.DATA_LOADING].mean())
    evidence: dict[str, Any] = {
        "idle_in_loader_s": idle_s if len(idle_s) <= MOST_RANKS_LISTED else mean_idle_s,
        "loader": facts.loader_name,
        "num_batches_per_step": context.per_step(facts.loader.count),
        "has_workers": not has_no_workers if "DataLoader" in (facts.loader_name or "") else None,
        "loader_cpu_share": loader.loader_cpu_share,
        "is_iterable_dataset": loader.loader_is_iterable,
    }
    if loader.loader_cause is not None:
        evidence["loader_cause"] = loader.loader_cause
    if loader.loader_stage is not None:
        evidence["largest_stage"] = loader.loader_stage
        evidence["largest_stage_share"] = loader.loader_stage_share
    if logged_s is not None:
        evidence["wait_in_all_steps_s"] = logged_s
    late = _last_rank(context)
    if late is not None:
        evidence["last_rank"] = late
        evidence["last_rank_late_by_s"] = context.lateness_causes(late)
    return evidence


def _title(context: DiagnosisContext, ranks: tuple[int, ...], cost_s: float, *, has_no_workers: bool) -> str:
    where = f" on {rank_words(ranks, len(context.ranks))}" if len(context.ranks) > 1 else ""
    title = f"the training waits for data{where}: {cost_words(context, cost_s)}"
    if has_no_workers:
        title += "; the loader has no worker processes"
    loader = context.job_facts
    if loader.loader_waits:
        share = percent(loader.loader_cpu_share or 0.0)
        title += f"; making a batch is waiting rather than computing: {share} of its time is CPU time"
    if loader.loader_stage is not None:
        title += f"; most of the work on a sample is its stage {loader.loader_stage}"
    return title


def _changes(loader: JobFacts, *, single: bool, has_gpu: bool, is_one_for_all: bool) -> tuple[str, ...]:
    return (
        *((EACH_ITS_OWN,) if is_one_for_all else ()),
        _more_workers(loader, single=single),
        *pin_memory(loader, has_gpu=has_gpu),
        prefetch_more(loader),
        *keep_new_workers(loader),
        "faster storage, or more requests to it at once" if loader.loader_waits else CHEAPER,
    )


def _more_workers(loader: JobFacts, *, single: bool) -> str:
    if loader.loader_waits:
        text = "DataLoader(num_workers=N), N above the number of cores: workers that wait need few of them"
    elif single:
        text = "DataLoader(num_workers=N), N up to the number of cores that this process can use"
    else:
        text = "more workers, up to the number of cores that this process can use"
    return more_workers(loader, text)


def _last_rank(context: DiagnosisContext) -> int | None:
    """Return the rank whose data loading the others wait for longest, if any."""
    part = PART_NAMES[Part.DATA_LOADING]
    waits: dict[int, float] = {}
    for (_, late, name), s in context.blamed.items():
        if name == part:
            waits[late] = waits.get(late, 0.0) + s
    return max(waits, key=lambda rank: waits[rank]) if waits else None
