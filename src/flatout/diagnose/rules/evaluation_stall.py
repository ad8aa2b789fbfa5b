"""The training waits while ranks evaluate.

What it means
    Between two training steps, ranks run the model on other data without a backward pass. If only one rank does so, the
    others wait for it at the next collective, which looks like communication in a trace.

Why it costs
    An evaluation on one rank leaves all other devices idle for its whole time.

Evidence
    The time from `eval()` to `train()` in each step, or from the first to the last batch without a backward pass; which
    ranks evaluate and which wait; the number of steps from one evaluation to the next; and the part of the evaluations
    in which the validation loader starts: it makes new workers each time, unless they persist.

Change to try
    Evaluate on all ranks, each on its part of the data, and reduce the result. Evaluate less often, on fewer batches,
    or in a separate job from a checkpoint. Where the validation loader's start takes a large part of the time, let its
    workers persist.

When this is wrong
    Generating samples for training, as in reinforcement learning, is part of the training although no gradient is
    computed; it looks the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.loader_advice import of_validation
from flatout.diagnose.stalls import Stalls, ranks_in_words, stall_finding, stalls_of
from flatout.records.diagnosis import Finding
from flatout.records.job_log import StallCause

CODE = "F19"
NAME = "evaluation-stall"
MIN_SHARE_OF_LOADER = 0.1  # of the evaluations; below it, the start of the validation loader is not named


def find(context: DiagnosisContext) -> list[Finding]:
    stalls = stalls_of(context, StallCause.EVALUATION)
    if stalls is None:
        return []
    loader_s, loader_share = _loader_starts(stalls)
    is_of_loader = loader_share >= MIN_SHARE_OF_LOADER
    evidence: dict[str, Any] = {"loader_start_s": loader_s, "loader_start_share": loader_share} if is_of_loader else {}
    is_plural = len(stalls.ranks) > 1
    wait = "while the others wait" if len(stalls.ranks) < len(stalls.log.ranks) else "between training steps"
    return stall_finding(
        stalls,
        code=CODE,
        name=NAME,
        what=f"{ranks_in_words(stalls)} {'evaluate' if is_plural else 'evaluates'} {wait}",
        evidence=evidence,
        changes=(
            *(of_validation(context.job_facts, loader_share) if is_of_loader else ()),
            "evaluate on all ranks, each on its part of the data",
            "evaluate less often, or on fewer batches",
            "evaluate in a separate job, from a checkpoint",
        ),
        safety="exact" if is_of_loader else "semantic",
    )


def _loader_starts(stalls: Stalls) -> tuple[float, float]:
    """Return the seconds per stalled step of a rank in which the validation loader starts, and their share."""
    log = stalls.log
    evaluation_s = log.spent_s.get(StallCause.EVALUATION)
    if log.evaluation_loader_s is None or evaluation_s is None:
        return 0.0, 0.0
    rows = np.isin(log.ranks, stalls.ranks)
    chosen = np.ix_(rows, np.isin(log.number, stalls.steps))
    loader_s, total_s = float(log.evaluation_loader_s[chosen].sum()), float(evaluation_s[chosen].sum())
    if total_s <= 0:
        return 0.0, 0.0
    return loader_s / evaluation_s[chosen].size, min(loader_s / total_s, 1.0)
