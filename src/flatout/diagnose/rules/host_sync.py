"""The host waits for the GPU, and then the GPU waits for the host.

What it means
    A synchronising call (`.item()`, a copy to the host, `torch.cuda.synchronize()`) drained the GPU's queue. The GPU is
    idle until the host has launched new work.

Why it costs
    The time inside the call is not the cost, since the GPU works meanwhile. The cost is the lead over the GPU that the
    host loses: without the calls, a fast enough host would always be ahead.

Evidence
    Calls per step by the operator that makes them, host time inside them, idle time after they drained the queue, and
    the host-bound idle time that would be hidden without them, provided the host is otherwise fast enough.

Change to try
    Fetch the loss every N steps, or keep it on the device; replace `.item()` on gradients by tensor arithmetic; use
    `non_blocking=True` with pinned memory.

When this is wrong
    If the host is slower than the GPU anyway, removing the calls gains little. Such a job is `host-bound`, and only the
    idle time right after the calls is counted here.
"""

from __future__ import annotations

from flatout.diagnose.context import HOST_PARTS, DiagnosisContext
from flatout.diagnose.finding import cost_time, finding, rank_words, share_words
from flatout.records.diagnosis import Finding, Part

CODE = "F06"
NAME = "host-sync"
MIN_CALLS = 2  # per step: a single call, at its end, costs the lead only once


def find(context: DiagnosisContext) -> list[Finding]:
    if context.available(Part.HOST_SYNC) <= 0:
        return []
    ranks = context.ranks_with_most(Part.HOST_SYNC)
    rank = context.busiest_rank(*HOST_PARTS, among=ranks)
    calls = context.facts(rank).sync_calls
    num_calls = context.per_step(sum(c.count for c in calls.values()))
    idle = context.claim(Part.HOST_SYNC, context.available(Part.HOST_SYNC))
    calls_s = context.per_step(sum(c.host_s for c in calls.values()))
    lost_lead = context.claim_lost_lead(rank, blocked_s=calls_s) if num_calls >= MIN_CALLS else 0.0
    cost = idle + lost_lead
    most = sorted(calls.items(), key=lambda item: -item[1].count)[:4]
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"{num_calls:.0f} synchronising calls {context.period} on {rank_words(ranks, len(context.ranks))}"
            f" ({', '.join(name for name, _ in most[:2])}) drain the GPU's queue: {cost_time(context, cost)},"
            f" {share_words(context, cost)}"
        ),
        ranks=ranks,
        cost_s=cost,
        evidence={
            "calls_per_step": {name: context.per_step(c.count) for name, c in most},
            "call_s": calls_s,
            "idle_after_calls_s": float(context.own[:, Part.HOST_SYNC].max()),
            "lost_lead_s": lost_lead,
            **context.recorder.evidence(),
            "recorder_cost_source": context.recorder.source,
        },
        changes=(
            "fetch the loss every N steps instead of every step",
            "keep values on the device: tensor arithmetic instead of .item()",
            "pinned memory and non_blocking=True for copies",
        ),
        safety="exact",
        confidence="medium",
    )
