"""Device memory is allocated and freed in every step.

What it means
    After the first steps, the training loop still calls `cudaMalloc` and `cudaFree` or similar functions. PyTorch's
    caching allocator should need them only in the first steps.

Why it costs
    Freeing device memory waits until the GPU has finished its work, and each call takes milliseconds. The host loses
    its lead, and the GPU runs out of work until the host is ahead again.

Evidence
    Calls and host time per step, the idle time inside the calls, and the lost lead: the host-bound idle time that would
    be hidden without the calls, provided the host is otherwise fast enough.

Change to try
    Remove `torch.cuda.empty_cache()` from the loop. If memory is fragmented, set
    `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. If the allocator frees cached blocks because memory is full,
    reduce peak memory.

When this is wrong
    A recording of the first steps shows the allocator filling its pool, which stops after a few steps.
"""

from __future__ import annotations

from flatout.diagnose.context import HOST_PARTS, DiagnosisContext
from flatout.diagnose.finding import cost_time, finding, rank_words, share_words
from flatout.records.diagnosis import Finding, Part

CODE = "F12"
NAME = "allocator-churn"


def find(context: DiagnosisContext) -> list[Finding]:
    if context.available(Part.ALLOCATOR) <= 0:
        return []
    ranks = context.ranks_with_most(Part.ALLOCATOR, share=0.3)
    rank = context.busiest_rank(Part.ALLOCATOR, *HOST_PARTS, among=ranks)
    calls = context.facts(rank).allocator_calls
    calls_s = context.per_step(sum(c.host_s for c in calls.values()))
    idle = context.claim(Part.ALLOCATOR, context.available(Part.ALLOCATOR))
    own_idle = float(context.own[context.row[rank], Part.ALLOCATOR])
    lost_lead = context.claim_lost_lead(rank, blocked_s=calls_s - own_idle, freed_s=calls_s)
    cost = idle + lost_lead
    num_calls = context.per_step(sum(c.count for c in calls.values()))
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"device memory is repeatedly allocated and freed on {rank_words(ranks, len(context.ranks))}:"
            f" {num_calls:.0f} calls {context.period} cost {cost_time(context, cost)}, {share_words(context, cost)}"
        ),
        ranks=ranks,
        cost_s=cost,
        evidence={
            "calls_per_step": {name: context.per_step(c.count) for name, c in sorted(calls.items())},
            "call_s": calls_s,
            "idle_in_calls_s": idle,
            "lost_lead_s": lost_lead,
            **context.recorder.evidence(),
        },
        changes=(
            "remove torch.cuda.empty_cache() from the training loop",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ),
        safety="exact",
        confidence="medium" if lost_lead > idle or (lost_lead and context.recorder.source == "assumed") else "high",
    )
