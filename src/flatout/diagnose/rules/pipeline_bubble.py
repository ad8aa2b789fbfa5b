"""Pipeline stages are idle while the pipeline fills and drains.

What it means
    A rank waits in a send or receive of the pipeline, for no longer than an ideal schedule with the same number of
    stages and microbatches would be idle. Any longer waiting is attributed to the stage that was late.

Why it costs
    With p stages and m microbatches per step, each stage is idle for (p - 1) / (m + p - 1) of the time in GPipe and in
    1F1B.

Evidence
    The number of stages and of microbatches, the theoretical idle share and the measured one.

Change to try
    Use more, smaller microbatches per step (the global batch stays the same), an interleaved or zero-bubble schedule,
    or fewer stages.

When this is wrong
    The number of microbatches is derived from the sends and receives. An interleaved schedule sends more often than it
    has microbatches, so its bubble is underestimated and the remainder is reported as waiting.
"""

from __future__ import annotations

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import cost_time, finding, share_words
from flatout.records.diagnosis import Finding, Part
from flatout.units import percent

CODE = "F07"
NAME = "pipeline-bubble"


def find(context: DiagnosisContext) -> list[Finding]:
    cost = context.claim(Part.BUBBLE, context.available(Part.BUBBLE))
    if cost <= 0 or not context.job.pipelines:
        return []
    shape = context.job.pipelines[0]
    p, m = len(shape.stages), shape.num_microbatches
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"the pipeline of {p} stages and {m} microbatches is idle for {share_words(context, cost)}"
            f" ({cost_time(context, cost)}); ideal for that shape: {percent(shape.ideal_bubble_share)}"
        ),
        ranks=tuple(sorted(rank for pipeline in context.job.pipelines for rank in pipeline.stages)),
        cost_s=cost,
        evidence={
            "num_stages": p,
            "num_microbatches": m,
            "ideal_bubble_share": shape.ideal_bubble_share,
            "measured_bubble_share": cost / context.step_s,
            "wait_beyond_bubble_s": float(context.own[:, Part.WAIT].mean()),
        },
        changes=(
            f"more microbatches per step: with {4 * m} the ideal bubble is {percent((p - 1) / (4 * m + p - 1))}",
            "an interleaved or zero-bubble schedule",
        ),
        safety="exact",
    )
