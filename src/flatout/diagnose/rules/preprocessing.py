"""The model waits for what the script does between two of its calls.

What it means
    The script prepares the next input, or works on the last output, on the thread that calls the model. While it reads,
    decodes, resizes or tokenizes, the model does nothing.

Why it costs
    The time between two calls is added to each call. Preparation with torch's own operators looks like the model in a
    monitor of the CPU: all cores are busy, but not with the model.

Evidence
    The median time in the model and between its calls, without waiting for a loader (`between_s`, `model_s`). In the
    trace: torch's operators between calls, those with most of the time, the time without an operator (Python, other
    libraries, waiting), and calls of other models, which do not count.

Change to try
    Prepare the next input in a thread or process while the model runs, e.g. in the workers of a DataLoader. Do less of
    it: resize before converting to floats, decode at the size that is needed, tokenize in batches. On a machine with a
    GPU, resize there.

When this is wrong
    A server that waits for requests, or a camera that sends 30 frames a second, is idle between calls for a reason.
    What computes on other threads is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout.diagnose.calls import RankCalls, timed_calls
from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import MIN_SHARE_OF_STEP
from flatout.diagnose.host_evidence import busy_cores
from flatout.records.diagnosis import Finding, Part
from flatout.records.timeline import CallFacts
from flatout.units import percent, seconds

CODE = "F24"
NAME = "preprocessing"
HOST_EVIDENCE = (busy_cores,)
MIN_SHARE = 0.1  # of the step: every loop does something between two calls
MIN_OPERATORS_SHARE = 0.5  # of the time between calls, for torch's operators to be named as its content
WEIGHTS_OPERATOR = "aten::uniform_"  # with which layers of torch set their weights when they are made
_PARTS = (Part.COMPUTE, Part.HOST_LAUNCH, Part.HOST_SYNC, Part.MEMORY_COPY, Part.UNATTRIBUTED)


def find(context: DiagnosisContext) -> list[Finding]:
    log = context.log
    ranks = timed_calls(context)
    if log is None or not any(calls.is_measured.any() for calls in ranks):
        return []
    between_s = float(np.mean([_between_s(calls) for calls in ranks]))
    model_s = float(np.mean([np.median(calls.model_s[calls.is_measured]) for calls in ranks]))
    facts = _traced(context)
    others_s = 0.0 if facts is None else sum(facts.other_models_s.values()) / facts.num_calls
    cost = min(max(between_s - others_s, 0.0), log.without_stalls_s)
    share = cost / log.step_s
    if share < max(MIN_SHARE, MIN_SHARE_OF_STEP):
        return []
    _claim(context, facts, cost)
    return [
        Finding(
            code=CODE,
            name=NAME,
            title=_title(cost, share, facts),
            ranks=tuple(calls.rank for calls in ranks),
            cost_s_per_step=cost,
            share_of_step=share,
            evidence={
                "between_s": between_s,
                "model_s": model_s,
                **_traced_evidence(facts),
            },
            changes=_changes(context, facts),
            safety="exact",
            confidence="high" if facts is not None else "medium",
        )
    ]


def _between_s(calls: RankCalls) -> float:
    rows = calls.is_measured
    outside = calls.duration_s[rows] - calls.model_s[rows] - calls.loader_s[rows]
    return max(float(np.median(outside)), 0.0) if rows.any() else 0.0


def _traced(context: DiagnosisContext) -> CallFacts | None:
    """Return what the trace of the first rank shows of its calls; None without such a trace."""
    facts = context.ranks[0].facts if context.ranks else None
    return None if facts is None else facts.calls


def _claim(context: DiagnosisContext, facts: CallFacts | None, cost_s: float) -> None:
    """Take the time between calls out of the parts of the traced step, so that no other rule counts it."""
    if facts is None:
        return
    traced = np.array([facts.between_parts_s[part] for part in _PARTS]) / facts.num_calls
    total = float(traced.sum())
    if total <= 0:
        return
    for part, traced_s in zip(_PARTS, traced.tolist(), strict=True):
        context.claim(part, context.in_trace(cost_s) * traced_s / total)


def _title(cost_s: float, share: float, facts: CallFacts | None) -> str:
    cost = f"{seconds(cost_s)} per step, {percent(share)} of the step"
    words = f"the model waits {cost}, for what the script does between two calls"
    if facts is None:
        return words
    if _has_operators(facts):
        return f"{words}: mostly torch's own operators ({_names(list(facts.between_operators_s))})"
    return f"{words}: mostly Python, other libraries or waiting"


def _has_operators(facts: CallFacts) -> bool:
    total = sum(facts.between_parts_s)
    return total > 0 and facts.between_parts_s[Part.COMPUTE] >= MIN_OPERATORS_SHARE * total


def _names(names: Sequence[str]) -> str:
    return ", ".join(name.removeprefix("aten::") for name in names[:2])


def _traced_evidence(facts: CallFacts | None) -> dict[str, object]:
    if facts is None:
        return {}
    per_call = {name: spent_s / facts.num_calls for name, spent_s in facts.between_operators_s.items()}
    others = {name: spent_s / facts.num_calls for name, spent_s in facts.other_models_s.items()}
    return {
        "operators_between_s": facts.between_parts_s[Part.COMPUTE] / facts.num_calls,
        "without_operators_between_s": facts.between_parts_s[Part.HOST_LAUNCH] / facts.num_calls,
        "longest_between_s": per_call,
        "other_models_s": others,
    }


def _sets_weights(facts: CallFacts) -> bool:
    """Whether torch draws uniform numbers for longest between calls, as a new layer does for its weights."""
    return next(iter(facts.between_operators_s), None) == WEIGHTS_OPERATOR


def _changes(context: DiagnosisContext, facts: CallFacts | None) -> tuple[str, ...]:
    changes = []
    if facts is not None and _has_operators(facts) and _sets_weights(facts):
        changes.append("make and load the model once, if the script does it for each call")
    changes.append("prepare the next input in a thread or in a DataLoader's workers while the model runs")
    if facts is not None and _has_operators(facts):
        changes.append("fewer torch threads for the preparation, or for both, if they compete for cores")
        changes.append("resize and convert less: at the size that is needed, from integers, in one operator")
    if context.has_gpu:
        changes.append("move the preparation to the GPU")
    return tuple(changes)
