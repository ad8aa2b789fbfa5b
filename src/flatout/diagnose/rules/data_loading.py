"""The GPU waits for the next batch.

What it means
    The GPU is idle while a training thread is inside the DataLoader's `__next__`. Without worker processes the batch is
    prepared there; with workers, the loop waits for them.

Why it costs
    The GPU does nothing during this time, and with several ranks the slowest loader sets the pace of all.

Evidence
    Idle seconds per step in each rank's loader, how long the other ranks wait for the slowest one, and the type of the
    loader: `_SingleProcessDataLoaderIter` has no worker processes, `_MultiProcessingDataLoaderIter` has at least one.

Change to try
    Set `num_workers` (up to the cores that this process may use), `pin_memory=True`, `prefetch_factor` and
    `persistent_workers=True`. Then make decoding cheaper and storage faster.

When this is wrong
    The first batch of an epoch is slow because it starts the workers: a recording that begins there overestimates the
    cost. The recorder also slows Python code in the training process, though not in the workers.
"""

from __future__ import annotations

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import cost_words, finding, rank_words
from flatout.diagnose.host_evidence import busy_cores, busy_disk
from flatout.records.diagnosis import PART_NAMES, Finding, Part

CODE = "F01"
NAME = "data-loading"
HOST_EVIDENCE = (busy_cores, busy_disk)


def find(context: DiagnosisContext) -> list[Finding]:
    cost = context.claim(Part.DATA_LOADING, context.available(Part.DATA_LOADING))
    if cost <= 0:
        return []
    ranks = context.ranks_with_most(Part.DATA_LOADING)
    slowest = context.busiest_rank(Part.DATA_LOADING)
    facts = context.facts(slowest)
    single = "SingleProcess" in (facts.loader_name or "")
    late = _last_rank(context)
    where = f" on {rank_words(ranks, len(context.ranks))}" if len(context.ranks) > 1 else ""
    title = f"the training waits for data{where}: {cost_words(context, cost)}"
    if single:
        title += "; the loader has no worker processes"
    evidence = {
        "idle_in_loader_s": {
            str(t.rank): float(context.own[row, Part.DATA_LOADING]) for row, t in enumerate(context.ranks)
        }
        if len(context.ranks) <= 16
        else float(context.own[:, Part.DATA_LOADING].mean()),
        "loader": facts.loader_name,
        "num_batches_per_step": context.per_step(facts.loader.count),
        "has_workers": None if facts.loader_name is None else not single,
    }
    if late is not None:
        evidence["last_rank"] = late
        evidence["last_rank_late_by_s"] = context.lateness_causes(late)
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=title,
        ranks=ranks,
        cost_s=cost,
        evidence=evidence,
        changes=(
            ("DataLoader(num_workers=N), N up to the cores this process may use" if single else "more workers"),
            "DataLoader(pin_memory=True, persistent_workers=True, prefetch_factor=4)",
            "cheaper decoding or augmentation, data on faster storage",
        ),
        safety="exact",
    )


def _last_rank(context: DiagnosisContext) -> int | None:
    """Return the rank whose data loading the others wait for longest, if any."""
    part = PART_NAMES[Part.DATA_LOADING]
    waits: dict[int, float] = {}
    for (_, late, name), s in context.blamed.items():
        if name == part:
            waits[late] = waits.get(late, 0.0) + s
    return max(waits, key=lambda rank: waits[rank]) if waits else None
