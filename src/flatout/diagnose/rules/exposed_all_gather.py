"""All-gathers of sharded parameters are exposed: compute waits for the weights (FSDP).

What it means
    An all-gather of parameters is in transfer while no kernel computes.

Why it costs
    FSDP gathers each layer's weights before its forward pass and again before its backward pass. Prefetching hides an
    all-gather behind the compute of the previous layer; with too little compute, or without prefetching, the GPU waits.

Evidence
    Exposed and total seconds per step of parameter all-gathers, their number and their bytes. The cost is what can be
    saved: the all-gathers of the backward pass, which `reshard_after_forward=False` avoids, and the part of the others
    that compute could hide.

Change to try
    Set `reshard_after_forward=False` if memory allows; prefetch (`set_modules_to_forward_prefetch`,
    `set_modules_to_backward_prefetch`); try larger or smaller wrapping units; shard within a node only (HSDP).

When this is wrong
    All-gathers of activations (tensor or sequence parallelism) cannot be prefetched. The first all-gather of a step has
    no compute to hide behind.
"""

from __future__ import annotations

import numpy as np

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import finding, share_words
from flatout.records.diagnosis import Finding, Part
from flatout.records.timeline import RankTimeline
from flatout.units import seconds

CODE = "F09"
NAME = "exposed-all-gather"


def find(context: DiagnosisContext) -> list[Finding]:
    exposed, total, saved, counts, sizes = [], [], [], [], []
    for row, timeline in enumerate(context.ranks):
        rows = _gathers(timeline)
        if not rows or not _is_sharded(timeline):
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
        sizes.append(sum(c.num_bytes or 0 for c in timeline.communication.calls if c.kernel in set(rows)))
    if not exposed:
        return []
    wanted = float(np.mean(saved))
    cost = context.claim(Part.TRANSFER, wanted)
    cost += context.claim(Part.COMMUNICATION_UNSPLIT, wanted - cost)
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"compute waits for sharded weights: {seconds(float(np.mean(exposed)))} {context.period} of all-gathers are"
            f" exposed, of which about {seconds(cost)} ({share_words(context, cost)}) can be saved"
        ),
        ranks=tuple(t.rank for t in context.ranks),
        cost_s=cost,
        evidence={
            "exposed_all_gather_s": float(np.mean(exposed)),
            "all_gather_transfer_s": float(np.mean(total)),
            "num_all_gathers_per_step": context.per_step(float(np.mean(counts))),
            "gathered_bytes_per_step": context.per_step(float(np.mean(sizes))) or None,
        },
        changes=(
            "fully_shard(..., reshard_after_forward=False) where memory allows",
            "prefetch: set_modules_to_forward_prefetch, set_modules_to_backward_prefetch",
            "shard within a node only (HSDP)",
        ),
        safety="exact",
        confidence="medium",
    )


def _gathers(timeline: RankTimeline) -> list[int]:
    return [
        call.kernel
        for call in timeline.communication.calls
        if call.operation == "all_gather" and timeline.communication.start_ns[call.kernel] >= timeline.first_step_ns
    ]


def _is_sharded(timeline: RankTimeline) -> bool:
    """True if gradients are reduce-scattered, as in sharded training but not in inference with tensor parallelism."""
    return any(call.operation == "reduce_scatter" for call in timeline.communication.calls)
