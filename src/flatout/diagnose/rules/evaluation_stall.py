"""The training waits while ranks evaluate.

What it means
    Between two training steps, ranks run the model on other data without a backward pass. If only one rank does so, the
    others wait for it at the next collective, which looks like communication in a trace.

Why it costs
    An evaluation on one rank leaves all other devices idle for its whole time.

Evidence
    The time from `eval()` to `train()` in each step, or from the first to the last batch without a backward pass; which
    ranks evaluate and which wait; and the number of steps from one evaluation to the next.

Change to try
    Evaluate on all ranks, each on its part of the data, and reduce the result. Evaluate less often, on fewer batches,
    or in a separate job from a checkpoint.

When this is wrong
    Generating samples for training, as in reinforcement learning, is part of the training although no gradient is
    computed; it looks the same.
"""

from __future__ import annotations

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.stalls import ranks_in_words, stall_finding, stalls_of
from flatout.records.diagnosis import Finding
from flatout.records.job_log import StallCause

CODE = "F19"
NAME = "evaluation-stall"


def find(context: DiagnosisContext) -> list[Finding]:
    stalls = stalls_of(context, StallCause.EVALUATION)
    if stalls is None:
        return []
    is_plural = len(stalls.ranks) > 1
    wait = "while the others wait" if len(stalls.ranks) < len(stalls.log.ranks) else "between training steps"
    return stall_finding(
        stalls,
        code=CODE,
        name=NAME,
        what=f"{ranks_in_words(stalls)} {'evaluate' if is_plural else 'evaluates'} {wait}",
        changes=(
            "evaluate on all ranks, each on its part of the data",
            "evaluate less often, or on fewer batches",
            "evaluate in a separate job, from a checkpoint",
        ),
        safety="semantic",
    )
