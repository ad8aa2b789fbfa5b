"""Copies between host and device, or on the device, block all other work.

What it means
    Only copies run on the GPU: no kernel computes or communicates meanwhile.

Why it costs
    A copy from pageable memory goes through a staging buffer at a fraction of the link's rate. It blocks the host until
    it is done, so the host also loses its lead over the GPU.

Evidence
    Exposed seconds per step, bytes by direction, pageable bytes, the host time inside those calls, and the idle time
    caused by the lead that the host loses in them.

Change to try
    Use `pin_memory=True` in the DataLoader and `.to(device, non_blocking=True)`; keep data that is used again on the
    device.

When this is wrong
    Copies that are part of a checkpoint are reported as `checkpoint-stall`. A copy that overlaps with compute costs
    little and is not counted; whether an exposed copy could overlap depends on the data being available earlier. The
    lost lead excludes the cost of the recorder, which is only an estimate if the untraced step time is unknown.
"""

from __future__ import annotations

from flatout.diagnose.context import HOST_PARTS, DiagnosisContext
from flatout.diagnose.finding import cost_words, finding, is_reportable, rank_words
from flatout.records.diagnosis import Finding, Part
from flatout.units import num_bytes, seconds

CODE = "F13"
NAME = "memory-copy"


def find(context: DiagnosisContext) -> list[Finding]:
    copies_s = context.claim(Part.MEMORY_COPY, context.available(Part.MEMORY_COPY))
    if not is_reportable(context, copies_s):
        return []
    ranks = context.ranks_with_most(Part.MEMORY_COPY)
    # The rank that the others wait for, among those that copy: on the waiting ranks the calls also include the wait.
    rank = context.busiest_rank(*HOST_PARTS, Part.MEMORY_COPY, among=ranks)
    facts = context.facts(rank)
    pageable = context.per_step(facts.pageable_bytes)
    blocked_s = context.per_step(facts.pageable_copy.host_s)
    own_copies_s = float(context.own[context.row[rank], Part.MEMORY_COPY])
    lost_lead = context.claim_lost_lead(rank, blocked_s=blocked_s - own_copies_s) if pageable else 0.0
    cost = copies_s + lost_lead
    title = f"copies block the GPU on {rank_words(ranks, len(context.ranks))}: {cost_words(context, cost)}"
    if pageable:
        title += f"; {num_bytes(pageable)} {context.period} are pageable and block the host for {seconds(blocked_s)}"
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=title,
        ranks=ranks,
        cost_s=cost,
        evidence={
            "exposed_copy_s": float(context.own[:, Part.MEMORY_COPY].max()),
            "bytes_per_step": {k: context.per_step(v) for k, v in sorted(facts.copy_bytes.items())},
            "pageable_bytes_per_step": pageable,
            "host_blocked_s": blocked_s,
            "lost_lead_s": lost_lead,
            **context.recorder.evidence(),
        },
        changes=(
            "DataLoader(pin_memory=True) and tensor.to(device, non_blocking=True)",
            "keep data that is used again on the device",
        ),
        safety="exact",
        confidence="medium" if lost_lead and context.recorder.source == "assumed" else "high",
    )
