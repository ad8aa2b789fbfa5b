"""The script reduces its gradients itself, one all-reduce after another, and only after the backward pass.

What it means
    No wrapper (DistributedDataParallel, FSDP, DeepSpeed) distributes the model. Many all-reduces follow the backward
    pass, as a loop over the parameters makes them: `for p in model.parameters(): dist.all_reduce(p.grad)`.

Why it costs
    Each call costs the latency of the network, however small the gradient is, and all of them wait for the end of the
    backward pass, although the gradients of the last layers are ready long before.

Evidence
    The calls and their size; what fewer and larger messages save (the calls' least time, for each call beyond those of
    25 MiB buckets), and what the backward pass could hide of the rest.

Change to try
    Wrap the model in DistributedDataParallel, which does both. Or reduce in few buckets: `torch._utils.
    _flatten_dense_tensors` of some gradients, and one `all_reduce(async_op=True)` for each from a hook of the
    parameters (`register_post_accumulate_grad_hook`).

When this is wrong
    Sums that are not of gradients, such as many metrics at the end of a step, look alike. The time that backward could
    hide is an estimate: two thirds of the compute before the first call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import cost_words, finding
from flatout.diagnose.traffic import TrafficKind, calls_of_kind, wrapper_of
from flatout.records.diagnosis import Finding, Part
from flatout.records.timeline import RankTimeline

CODE = "F23"
NAME = "separate-reductions"
MIN_CALLS = 8  # per step: a model of few parameters, or one that is already bucketed, has fewer
MIN_COMPUTE_BEFORE = 0.9  # of the step's compute, before the first call
BUCKET_BYTES = 25 << 20  # of DistributedDataParallel
BACKWARD_SHARE = 2 / 3  # of the compute of a training step


class _Saving(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank's step could save, in seconds."""

    num_calls: float
    message_bytes: float | None
    bucketing_s: float
    overlap_s: float


def find(context: DiagnosisContext) -> list[Finding]:
    if not context.num_steps or wrapper_of(context) is not None:
        return []
    savings = [_saving(context, timeline) for timeline in context.ranks]
    known = [saving for saving in savings if saving is not None]
    if len(known) < len(savings) or not known:
        return []
    bucketing_s = float(np.mean([saving.bucketing_s for saving in known]))
    overlap_s = float(np.mean([saving.overlap_s for saving in known]))
    cost = context.claim(Part.TRANSFER, bucketing_s + overlap_s)
    cost += context.claim(Part.COMMUNICATION_UNSPLIT, bucketing_s + overlap_s - cost)
    num_calls = float(np.mean([saving.num_calls for saving in known]))
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"the script reduces its gradients in {num_calls:,.0f} separate calls {context.period}, all of them after"
            f" the backward pass: {cost_words(context, cost)}"
        ),
        ranks=tuple(timeline.rank for timeline in context.ranks),
        cost_s=cost,
        evidence={
            "reductions_per_step": num_calls,
            "message_bytes": known[0].message_bytes,
            "saved_by_bucketing_s": bucketing_s,
            "saved_by_overlap_s": overlap_s,
        },
        changes=(
            "wrap the model in DistributedDataParallel, which reduces buckets of gradients during the backward pass,"
            " and remove the loop",
        ),
        safety="exact",
    )


def _saving(context: DiagnosisContext, timeline: RankTimeline) -> _Saving | None:
    """Return what fewer calls and overlap could save a rank; None if it does not reduce in such a way."""
    calls = [call for call in calls_of_kind(context, timeline, TrafficKind.GRADIENTS) if call.operation == "all_reduce"]
    num_calls = context.per_step(len(calls))
    if num_calls < MIN_CALLS:
        return None
    kernels = np.array([call.kernel for call in calls], dtype=np.int64)
    compute_s = _compute_before(context, timeline, kernels)
    if compute_s is None:
        return None
    exposed = context.job.exposed_transfer_ns[timeline.rank] + context.job.exposed_unsplit_ns[timeline.rank]
    exposed_s = context.per_step(float(exposed[kernels].sum()) / 1e9)
    sizes = [call.num_bytes for call in calls if call.num_bytes]
    num_buckets = _num_buckets(context, sizes)
    latency_s = float(exposed[kernels].min()) / 1e9
    bucketing_s = min(latency_s * max(num_calls - num_buckets, 0.0), exposed_s)
    # The last bucket is complete only when the backward pass ends.
    could_hide_s = (exposed_s - bucketing_s) * (1 - 1 / num_buckets)
    return _Saving(
        num_calls=num_calls,
        message_bytes=float(np.median(sizes)) if sizes else None,
        bucketing_s=bucketing_s,
        overlap_s=min(could_hide_s, BACKWARD_SHARE * compute_s),
    )


def _num_buckets(context: DiagnosisContext, sizes: Sequence[int]) -> int:
    """Return the buckets that DistributedDataParallel would make of a step's gradients; 2 if their sizes are unknown.

    It makes a small first bucket, so that there are two at least.
    """
    return max(math.ceil(context.per_step(float(sum(sizes))) / BUCKET_BYTES), 2)


def _compute_before(context: DiagnosisContext, timeline: RankTimeline, kernels: np.ndarray) -> float | None:
    """Return the seconds of compute in a step before its first call, the median of the steps; None if calls overlap."""
    segments = context.job.segments[timeline.rank]
    starts = np.sort(timeline.communication.start_ns[kernels])
    before_s, shares = [], []
    for step in timeline.steps:
        inside = starts[(starts >= step.start_ns) & (starts < step.end_ns)]
        if not len(inside):
            continue
        times = np.array([step.start_ns, inside[0], inside[-1]], dtype=np.int64)
        begin, first, last = segments.cumulative_part_ns(Part.COMPUTE, times).tolist()
        if last > begin:
            before_s.append((first - begin) / 1e9)
            shares.append((first - begin) / (last - begin))
    if not shares or float(np.median(shares)) < MIN_COMPUTE_BEFORE:
        return None
    return float(np.median(before_s))
