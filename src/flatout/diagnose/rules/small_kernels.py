"""Many small kernels do the work of a few, typically in an optimizer that updates one tensor at a time.

What it means
    The optimizer launches several kernels for each parameter tensor, or there are long runs of kernels that take a few
    microseconds each.

Why it costs
    Each launch takes the host microseconds, and each kernel reads and writes memory that a fused kernel would access
    once. For the same model on one H200, an unfused AdamW took 4.9 ms of GPU time and a fused one 1.7 ms.

Evidence
    Launches per step inside the optimizer with their GPU and host time, and short kernels in dense runs.

Change to try
    Set `fused=True` (or `foreach=True`) in the optimizer; use `torch.compile` for the rest (rounding).

When this is wrong
    The optimizer may have no fused implementation. Savings are estimated from AdamW; other optimizers may save less. On
    a host-bound job, recording makes each launch look more expensive than it is: the estimated cost of the recorder is
    subtracted from the host time.
"""

from __future__ import annotations

import numpy as np

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import cost_time, finding, share_words
from flatout.records.diagnosis import Finding, Part

CODE = "F11"
NAME = "small-kernels"
MIN_LAUNCHES_PER_OPTIMIZER_STEP = 100
GPU_SAVING = 0.6  # of an unfused optimizer's GPU time: 4.9 -> 1.7 ms measured
HOST_SAVING = 0.9  # of its launch work


def find(context: DiagnosisContext) -> list[Finding]:
    gpu, host, launches = [], [], []
    for timeline in context.ranks:
        facts = context.facts(timeline.rank)
        per_update = facts.num_optimizer_launches / max(facts.num_optimizer_steps, 1)
        unfused = per_update >= MIN_LAUNCHES_PER_OPTIMIZER_STEP
        dense = context.per_step(facts.short_kernel_saving_s)
        gpu.append(max(GPU_SAVING * context.per_step(facts.optimizer_gpu_s) if unfused else 0.0, dense))
        host.append(HOST_SAVING * context.per_step(facts.optimizer_s) if unfused else 0.0)
        launches.append(context.per_step(facts.num_optimizer_launches))
    if not gpu:
        return []
    # On a host-bound job, its share of the idle time is saved; otherwise GPU time is. Never both.
    traced = context.host_traced_s
    kept = context.available(Part.HOST_LAUNCH) / traced if traced > 0 else 0.0
    from_host = float(np.mean(host)) * kept
    if context.available(Part.HOST_LAUNCH) > float(np.mean(gpu)):
        cost = context.claim(Part.HOST_LAUNCH, min(from_host, context.available(Part.HOST_LAUNCH)))
    else:
        cost = context.claim(Part.COMPUTE, float(np.mean(gpu)))
    total = sum(context.facts(t.rank).num_kernels for t in context.ranks) / len(context.ranks)
    short = sum(context.facts(t.rank).num_short_kernels for t in context.ranks) / len(context.ranks)
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"{context.per_step(short):,.0f} of {context.per_step(total):,.0f} kernels {context.period} are short,"
            f" {float(np.mean(launches)):,.0f} of them launched by the optimizer:"
            f" fusing saves about {cost_time(context, cost)},"
            f" {share_words(context, cost)}"
        ),
        ranks=tuple(t.rank for t in context.ranks),
        cost_s=cost,
        evidence={
            "num_kernels_per_step": context.per_step(total),
            "num_short_kernels_per_step": context.per_step(short),
            "num_optimizer_launches_per_step": float(np.mean(launches)),
            "optimizer_gpu_s": context.per_step(
                float(np.mean([context.facts(t.rank).optimizer_gpu_s for t in context.ranks]))
            ),
            **context.recorder.evidence(),
            "optimizer_host_s": context.per_step(
                float(np.mean([context.facts(t.rank).optimizer_s for t in context.ranks]))
            ),
        },
        changes=("the optimizer's fused=True (or foreach=True)", "torch.compile (rounding)"),
        safety="exact",
        confidence="medium",
    )
