"""The GPU waits for the next batch.

What it means
    The GPU is idle while a training thread is inside the DataLoader's `__next__`. With no worker processes the batch
    is made there; with workers, the loop waits for them.

Why it costs
    All of that time the GPU does nothing, and with several ranks the slowest loader sets the pace of all.

Evidence
    Idle seconds a step in the loader of each rank, how long the others wait for the slowest one, and the loader's
    kind: `_SingleProcessDataLoaderIter` has no worker processes, `_MultiProcessingDataLoaderIter` has some.

Change to try
    `num_workers` (from the cores that this process may use), `pin_memory=True`, `prefetch_factor`,
    `persistent_workers=True`; then cheaper decoding and faster storage.

When this is wrong
    The first batch of an epoch starts the workers and is slow once: a recording that begins there shows more than the
    job pays. The recorder itself slows Python code in the training process, workers excepted.
"""

from __future__ import annotations

from flatout.diagnose.case import Case
from flatout.diagnose.finding import cost_words, finding, rank_words
from flatout.diagnose.host_evidence import busy_cores, busy_disk
from flatout.records.diagnosis import PART_NAMES, Finding, Part

CODE = "F01"
NAME = "data-loading"
HOST_EVIDENCE = (busy_cores, busy_disk)


def find(case: Case) -> list[Finding]:
    cost = case.claim(Part.DATA_LOADING, case.available(Part.DATA_LOADING))
    if cost <= 0:
        return []
    ranks = case.ranks_with_most(Part.DATA_LOADING)
    slowest = case.busiest_rank(Part.DATA_LOADING)
    facts = case.facts(slowest)
    single = "SingleProcess" in (facts.loader_name or "")
    late = _last_rank(case)
    where = f" on {rank_words(ranks, len(case.ranks))}" if len(case.ranks) > 1 else ""
    title = f"the training waits for data{where}: {cost_words(case, cost)}"
    if single:
        title += "; the loader has no worker processes"
    evidence = {
        "idle_in_loader_s": {str(t.rank): float(case.own[row, Part.DATA_LOADING]) for row, t in enumerate(case.ranks)}
        if len(case.ranks) <= 16
        else float(case.own[:, Part.DATA_LOADING].mean()),
        "loader": facts.loader_name,
        "num_batches_per_step": case.per_step(facts.loader.count),
        "has_workers": None if facts.loader_name is None else not single,
    }
    if late is not None:
        evidence["last_rank"] = late
        evidence["last_rank_late_by_s"] = case.lateness_causes(late)
    return finding(
        case,
        code=CODE,
        name=NAME,
        title=title,
        ranks=ranks,
        cost_s=cost,
        evidence=evidence,
        changes=(
            ("DataLoader(num_workers=N) with N from the cores this process may use" if single else "more workers"),
            "DataLoader(pin_memory=True, persistent_workers=True, prefetch_factor=4)",
            "cheaper decoding or augmentation, data on faster storage",
        ),
        safety="exact",
    )


def _last_rank(case: Case) -> int | None:
    """The rank that the others wait for by its loading, if any."""
    part = PART_NAMES[Part.DATA_LOADING]
    waits: dict[int, float] = {}
    for (_, late, name), s in case.blamed.items():
        if name == part:
            waits[late] = waits.get(late, 0.0) + s
    return max(waits, key=lambda rank: waits[rank]) if waits else None
