"""The same gradients are reduced in every accumulation pass, although only the last pass needs it.

What it means
    A step has several forward and backward passes (gradient accumulation), and the same buckets are reduced across the
    ranks after each of them.

Why it costs
    Gradients accumulate locally; reducing them once, after the last pass, gives the same sum. With k passes, (k - 1) /
    k of the gradient traffic is redundant.

Evidence
    Passes and reductions per step; each pass reduces as many elements as the last one.

Change to try
    Run all passes but the last under `with model.no_sync():` (DistributedDataParallel) or with
    `set_requires_gradient_sync(False)` (FSDP2, which then keeps unsharded gradients in memory).

When this is wrong
    A model that is updated after each pass does not accumulate gradients. With FSDP, reducing in each pass can be
    intended, to save memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import cost_words, finding
from flatout.diagnose.traffic import Wrapper, wrapper_of
from flatout.records.diagnosis import Finding, Part
from flatout.records.timeline import CommunicationCall, RankTimeline

CODE = "F08"
NAME = "redundant-gradient-sync"
REDUCTIONS = ("all_reduce", "reduce_scatter")
MAX_DIFFERENCE = 0.1  # of elements between passes that reduce the same gradients


def find(context: DiagnosisContext) -> list[Finding]:
    if not context.num_steps:
        return []
    exposed, found, num_reductions = [], [], 0
    for timeline in context.ranks:
        passes = passes_per_step(timeline)
        needless = _needless(timeline, passes)
        if not len(needless):
            return []
        found.append(passes)
        kernels = context.job.exposed_transfer_ns[timeline.rank] + context.job.exposed_unsplit_ns[timeline.rank]
        in_steps = needless[timeline.communication.start_ns[needless] >= timeline.first_step_ns]
        exposed.append(context.per_step(float(kernels[in_steps].sum()) / 1e9))
        num_reductions = round(context.per_step(len(_reductions(timeline))))
    passes = min(found)
    needless_s = float(np.mean(exposed))
    cost = context.claim(Part.TRANSFER, needless_s)
    cost += context.claim(Part.COMMUNICATION_UNSPLIT, needless_s - cost)
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"the same gradients are reduced {passes} times {context.period}, once per pass:"
            f" {passes - 1} of {passes} are redundant, {cost_words(context, cost)}"
        ),
        ranks=tuple(t.rank for t in context.ranks),
        cost_s=cost,
        evidence={
            "passes_per_step": passes,
            "reductions_per_step": num_reductions,
            "exposed_needless_s": needless_s,
        },
        changes=_changes(wrapper_of(context)),
        safety="exact",
    )


def _changes(wrapper: Wrapper | None) -> tuple[str, ...]:
    """Return the change for the wrapper that distributes the model; both changes if the wrapper is unknown."""
    if wrapper is Wrapper.DEEPSPEED:
        return ("set gradient_accumulation_steps, and call engine.backward and engine.step in each pass",)
    no_sync = "with model.no_sync(): around all accumulation passes but the last"
    of_fsdp = "FSDP2: model.set_requires_gradient_sync(False) until the last pass (needs memory)"
    if wrapper is Wrapper.DDP:
        return (no_sync,)
    return (of_fsdp,) if wrapper is Wrapper.FSDP else (no_sync, of_fsdp)


def passes_per_step(timeline: RankTimeline) -> int:
    """Return the passes between two optimizer steps, from the wrapper's forward calls or the losses' gradients."""
    facts = timeline.facts
    assert facts is not None
    optimizer_steps = facts.num_optimizer_steps or len(timeline.steps)
    return round(facts.num_passes / optimizer_steps) if optimizer_steps else 0


def _reductions(timeline: RankTimeline) -> list[CommunicationCall]:
    """Return the reductions of known size, or all of them if the trace has no sizes (gloo without shapes)."""
    found = [call for call in timeline.communication.calls if call.operation in REDUCTIONS]
    return [call for call in found if call.num_elements is not None] or found


def _needless(timeline: RankTimeline, passes: int) -> NDArray[np.int64]:
    """Return the kernels of all passes but each step's last; none unless all passes reduce as much as the last."""
    none = np.zeros(0, dtype=np.int64)
    facts = timeline.facts
    if passes < 2 or facts is None or facts.num_passes % passes:
        return none
    elements = np.zeros(facts.num_passes)
    kernels: list[tuple[int, int]] = []
    for call in _reductions(timeline):
        launched_in = int(facts.communication_pass[call.kernel])
        if launched_in >= 0:
            elements[launched_in] += call.num_elements or 1  # without sizes, count the reductions
            kernels.append((call.kernel, launched_in))
    by_step = elements.reshape(-1, passes)
    last = by_step[:, -1]
    if not (last > 0).all() or not (np.abs(by_step - last[:, None]) <= MAX_DIFFERENCE * last[:, None]).all():
        return none
    return np.array([kernel for kernel, launched_in in kernels if launched_in % passes != passes - 1], dtype=np.int64)
