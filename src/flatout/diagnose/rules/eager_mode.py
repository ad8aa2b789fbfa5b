"""The model is run operator by operator, and the time between operators adds up.

What it means
    Each call runs Python, which starts many operators one after another. The model is not compiled, and no CUDA graph
    starts them at once.

Why it costs
    Between two operators, the host runs Python for some microseconds. With many short operators that is a large part of
    a call, during which no operator runs on the CPU, or the GPU is idle.

Evidence
    The operators of a call, their mean time, and the time within calls in which no operator runs, without the estimated
    cost of the recorder. What the script does between calls is not part of it.

Change to try
    `torch.compile(model)`, on GPUs with mode="reduce-overhead" (CUDA graphs); both round differently. A larger batch
    shares the same work.

When this is wrong
    Inputs whose shapes keep changing are compiled again and again; a model with much Python in it (beam search)
    may break into many graphs. Short runs do not win the time of the compilation back.
"""

from __future__ import annotations

import numpy as np

from flatout.diagnose.calls import calls_of_all_ranks
from flatout.diagnose.context import HOST_PARTS, DiagnosisContext
from flatout.diagnose.finding import cost_words, finding
from flatout.records.diagnosis import Finding
from flatout.units import seconds

CODE = "F30"
NAME = "eager-mode"
MIN_OPERATORS = 20  # of a call


def find(context: DiagnosisContext) -> list[Finding]:
    if context.job_facts.is_compiled or not context.ranks:
        return []
    calls = calls_of_all_ranks(context, min_operators=MIN_OPERATORS)
    if not calls:
        return []
    idle_s = [sum(rank_calls.model_parts_s[part] for part in HOST_PARTS) for rank_calls in calls]
    inside_s = context.per_step(float(np.mean(idle_s)))
    cost = _claimed(context, inside_s)
    num_operators = sum(rank_calls.num_operators for rank_calls in calls)
    per_call = num_operators / sum(rank_calls.num_calls for rank_calls in calls)
    operator_s = sum(rank_calls.operators_s for rank_calls in calls) / num_operators
    what = "the GPU is idle" if context.has_gpu else "no operator runs"
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"a call starts {per_call:,.0f} operators of {seconds(operator_s)} one by one: {what} between them for"
            f" {cost_words(context, cost)}"
        ),
        ranks=context.ranks_with_most(*HOST_PARTS),
        cost_s=cost,
        evidence={
            "operators_per_call": per_call,
            "mean_operator_s": operator_s,
            "between_operators_as_traced_s": inside_s,
            **context.recorder.evidence(),
        },
        changes=(_compile_words(context), "a larger batch (semantic)"),
        safety="rounding",
        confidence="medium" if context.recorder.source == "assumed" else "high",
    )


def _claimed(context: DiagnosisContext, seconds_per_step: float) -> float:
    """Claim this time from the host's parts, one part after the other; return what they had left of it."""
    cost = 0.0
    for part in HOST_PARTS:
        cost += context.claim(part, seconds_per_step - cost)
    return cost


def _compile_words(context: DiagnosisContext) -> str:
    return 'torch.compile(model, mode="reduce-overhead")' if context.has_gpu else "torch.compile(model)"
