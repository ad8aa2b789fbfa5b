"""All-gathers of sharded parameters are exposed: compute waits for the weights (FSDP, ZeRO-3).

What it means
    An all-gather of parameters is in transfer while no kernel computes.

Why it costs
    FSDP and ZeRO-3 gather each layer's weights before its forward pass and again before its backward pass. Prefetching
    hides an all-gather behind the compute of the previous layer; with too little compute, or without prefetching, the
    GPU waits.

Evidence
    Exposed and total seconds per step of parameter all-gathers, their number and their bytes. The cost is what can be
    saved: the all-gathers of the backward pass, which `reshard_after_forward=False` avoids, and the part of the others
    that compute could hide.

Change to try
    FSDP: prefetch (`set_modules_to_forward_prefetch`, `set_modules_to_backward_prefetch`); set
    `reshard_after_forward=False` if memory allows; wrap larger units if the gathers are small; shard within a node only
    (HSDP). ZeRO-3: raise `stage3_param_persistence_threshold` and `stage3_prefetch_bucket_size`.

When this is wrong
    All-gathers of activations (tensor or sequence parallelism) cannot be prefetched. The first all-gather of a step has
    no compute to hide behind.
"""

from __future__ import annotations

import numpy as np

from flatout.diagnose.communication_advice import advice_for
from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import cost_time, finding, share_words
from flatout.diagnose.traffic import SMALL_MESSAGE_BYTES, TrafficKind, Wrapper, calls_of_kind, wrapper_of
from flatout.records.diagnosis import Finding, Part
from flatout.units import num_bytes, seconds

CODE = "F09"
NAME = "exposed-all-gather"


def find(context: DiagnosisContext) -> list[Finding]:
    exposed, total, saved, counts, sizes = [], [], [], [], []
    wrapper = wrapper_of(context)
    for row, timeline in enumerate(context.ranks):
        calls = calls_of_kind(context, timeline, TrafficKind.WEIGHT_SHARDS)
        rows = [call.kernel for call in calls]
        if not rows:
            return []
        kernels = timeline.communication
        part = context.job.exposed_transfer_ns[timeline.rank] + context.job.exposed_unsplit_ns[timeline.rank]
        until = context.job.arrivals[timeline.rank].until_ns
        mine = context.per_step(float(part[rows].sum()) / 1e9)
        exposed.append(mine)
        total.append(context.per_step(float((kernels.end_ns[rows] - until[rows]).sum()) / 1e9))
        hidden_already = max(total[-1] - mine, 0.0)
        # Half of the gathers come before backward. Of the other half, the compute that hides nothing yet can hide more.
        spare_compute = max(float(context.own[row, Part.COMPUTE]) - hidden_already, 0.0)
        saved.append(mine / 2 + min(mine / 2, spare_compute))
        counts.append(len(rows))
        sizes.append(sum(call.num_bytes or 0 for call in calls))
    if not exposed:
        return []
    count, size = float(np.mean(counts)), float(np.mean(sizes))
    wanted = float(np.mean(saved))
    cost = context.claim(Part.TRANSFER, wanted)
    cost += context.claim(Part.COMMUNICATION_UNSPLIT, wanted - cost)
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"compute waits for sharded weights: {seconds(float(np.mean(exposed)))} {context.period} of all-gathers"
            f" ({_messages_words(context, count, size)}) are exposed, of which about {cost_time(context, cost)}"
            f" ({share_words(context, cost)}) can be saved"
        ),
        ranks=tuple(t.rank for t in context.ranks),
        cost_s=cost,
        evidence={
            "exposed_all_gather_s": float(np.mean(exposed)),
            "all_gather_transfer_s": float(np.mean(total)),
            "num_all_gathers_per_step": context.per_step(count),
            "gathered_bytes_per_step": context.per_step(size) or None,
            "gathered_bytes": size / count if size and count else None,
        },
        changes=_changes(wrapper, size / count if size and count else None),
        safety="exact",
        confidence="medium",
    )


def _messages_words(context: DiagnosisContext, count: float, size: float) -> str:
    """Format the number and the mean size of the gathers: `400 per step, 128 KiB each`."""
    words = f"{context.per_step(count):,.0f} {context.period}"
    return f"{words}, {num_bytes(size / count)} each" if size and count else words


def _changes(wrapper: Wrapper | None, message_bytes: float | None) -> tuple[str, ...]:
    """Return the changes for this wrapper: larger shards first if the gathers are small, otherwise overlap first."""
    known = advice_for(TrafficKind.WEIGHT_SHARDS, wrapper)
    if message_bytes is not None and message_bytes < SMALL_MESSAGE_BYTES:
        return (*known.group, *known.overlap, *known.reduce, *known.inexact)
    return (*known.overlap, *known.reduce, *known.group, *known.inexact)
