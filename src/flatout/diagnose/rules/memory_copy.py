"""Copies between host and device, or on the device, hold up everything else.

What it means
    Only copies run on the GPU: no kernel computes or communicates meanwhile.

Why it costs
    A copy from pageable memory goes through a staging buffer at a fraction of the link's rate and blocks the host
    until it is done, so that the host also loses its lead over the GPU.

Evidence
    Exposed seconds a step, bytes by direction, how much of it is pageable, the host time inside those calls, and the
    idle time that comes from the lead which the host loses in them.

Change to try
    `pin_memory=True` in the DataLoader and `.to(device, non_blocking=True)`; keep on the device what is used again.

When this is wrong
    Copies that are part of a checkpoint are reported there. A copy that runs beside compute costs little and is not
    counted; whether it could be hidden depends on the data being there earlier. The lost lead is counted without what
    the recorder itself is likely to have cost; where the untraced step is not known, that is an estimate.
"""

from __future__ import annotations

from flatout.diagnose.case import HOST_PARTS, Case
from flatout.diagnose.finding import cost_words, finding, is_worth_telling, rank_words
from flatout.records.diagnosis import Finding, Part
from flatout.units import num_bytes, seconds

CODE = "F13"
NAME = "memory-copy"


def find(case: Case) -> list[Finding]:
    copies_s = case.claim(Part.MEMORY_COPY, case.available(Part.MEMORY_COPY))
    if not is_worth_telling(case, copies_s):
        return []
    ranks = case.ranks_with_most(Part.MEMORY_COPY)
    # Of those that copy, the rank that the others wait for: on these the calls also last as long as they wait.
    rank = case.busiest_rank(*HOST_PARTS, Part.MEMORY_COPY, among=ranks)
    facts = case.facts(rank)
    pageable = case.per_step(facts.pageable_bytes)
    blocked_s = case.per_step(facts.pageable_copy.host_s)
    own_copies_s = float(case.own[case.row[rank], Part.MEMORY_COPY])
    lost_lead = case.claim_lost_lead(rank, blocked_s=blocked_s - own_copies_s) if pageable else 0.0
    cost = copies_s + lost_lead
    title = f"copies hold up the GPU on {rank_words(ranks, len(case.ranks))}: {cost_words(case, cost)}"
    if pageable:
        title += f"; {num_bytes(pageable)} {case.period} are pageable and block the host for {seconds(blocked_s)}"
    return finding(
        case,
        code=CODE,
        name=NAME,
        title=title,
        ranks=ranks,
        cost_s=cost,
        evidence={
            "exposed_copy_s": float(case.own[:, Part.MEMORY_COPY].max()),
            "bytes_per_step": {k: case.per_step(v) for k, v in sorted(facts.copy_bytes.items())},
            "pageable_bytes_per_step": pageable,
            "host_blocked_s": blocked_s,
            "lost_lead_s": lost_lead,
            **case.recorder.evidence(),
        },
        changes=(
            "DataLoader(pin_memory=True) and tensor.to(device, non_blocking=True)",
            "keep on the device what is used again",
        ),
        safety="exact",
        confidence="medium" if lost_lead and case.recorder.source == "assumed" else "high",
    )
