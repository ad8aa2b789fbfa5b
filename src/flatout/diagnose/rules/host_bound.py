"""The host cannot launch work as fast as the device finishes it.

What it means
    The GPU is idle while the launching threads run Python and launch operators.

Why it costs
    Each operator takes the host 5 to 50 us, however small its kernel is. With small batches or models, many small
    operators, or a slow or busy CPU, the GPU waits for the next launch.

Evidence
    Idle seconds per step as traced, the estimated share that the recorder added (it slows the host), host events and
    launches per step, and the ranks affected.

Change to try
    Bind each process to enough cores near its GPU; use fused optimizers; use CUDA graphs or `torch.compile`, which
    launch many kernels at once (rounding); use a larger batch (semantic).

When this is wrong
    The recorder makes hosts look slower: compare with an untraced step time. If the host of only one rank is late,
    another process may be using its cores.
"""

from __future__ import annotations

from flatout.diagnose.context import HOST_PARTS, DiagnosisContext
from flatout.diagnose.finding import (
    MOST_RANKS_LISTED,
    cost_time,
    finding,
    rank_words,
    seconds_by_rank,
    share_words,
)
from flatout.diagnose.host_evidence import busy_cores
from flatout.diagnose.recorder import BELOW_NOISE
from flatout.records.diagnosis import PART_NAMES, Finding, Part
from flatout.units import seconds

CODE = "F05"
NAME = "host-bound"
HOST_EVIDENCE = (busy_cores,)
ON_GPU = (
    "bind each process to enough cores near its GPU",
    "fused or foreach optimizer, fewer Python calls in the loop",
    "CUDA graphs or torch.compile (rounding)",
)
ON_CPU = (
    "bind each process to separate cores",
    "fused or foreach optimizer, fewer Python calls in the loop",
    "torch.compile (rounding)",
)
ON_GPU_INFERRING = (
    "bind each process to enough cores near its GPU",
    "CUDA graphs or torch.compile (rounding)",
    "fewer Python calls between the model's calls",
)
ON_CPU_INFERRING = (
    "bind each process to separate cores",
    "torch.compile (rounding)",
    "fewer Python calls between the model's calls",
)
BETWEEN_SESSIONS = (
    "fewer Python calls between the runs of a session",
    "inputs and outputs bound once (IOBinding), so that a run copies nothing",
)
MIN_SYNCS_TOLD = 5
MIN_WAIT_TOLD = 0.02  # of the step: a shorter wait of the other ranks is not in the title


def find(context: DiagnosisContext) -> list[Finding]:
    cost = sum(context.claim(part, context.available(part)) for part in HOST_PARTS)
    if cost <= 0:
        return []
    ranks = context.ranks_with_most(*HOST_PARTS)
    slowest = context.busiest_rank(*HOST_PARTS)
    facts = context.facts(slowest)
    idle_s = seconds_by_rank(context, *HOST_PARTS)
    waits_s = _waits_for(context, slowest)
    num_syncs = context.per_step(sum(call.count for call in facts.sync_calls.values()))
    title = _idle_words(context, ranks, cost)
    longest_wait_s = max(waits_s.values(), default=0.0)
    if waits_s and longest_wait_s >= MIN_WAIT_TOLD * context.step_s:
        title += f"; other ranks wait up to {seconds(longest_wait_s)} {context.period} for rank {slowest}"
    if num_syncs >= MIN_SYNCS_TOLD:
        title += f"; {num_syncs:.0f} synchronising calls {context.period}"
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=title,
        ranks=ranks,
        cost_s=cost,
        evidence={
            "traced_idle_s": idle_s if len(idle_s) <= MOST_RANKS_LISTED else idle_s[str(slowest)],
            "slowest_rank": slowest,
            "others_wait_s": waits_s if len(waits_s) <= MOST_RANKS_LISTED else longest_wait_s,
            **context.recorder.evidence(),
            "recorder_cost_source": context.recorder.source,
            "host_events_per_step": context.per_step(facts.num_host_events),
            "launches_per_step": context.per_step(facts.num_launches),
            "sync_calls_per_step": num_syncs,
            "gpu_compute_s": float(context.own[context.row[slowest], Part.COMPUTE]),
        },
        changes=(
            *_changes(context),
            "a larger batch (semantic)",
        ),
        safety="exact",
        confidence="medium" if context.recorder.source == "assumed" else "high",
    )


def _changes(context: DiagnosisContext) -> tuple[str, ...]:
    if context.job_facts.runs_onnx:
        return BETWEEN_SESSIONS
    if context.job_facts.only_infers:
        return ON_GPU_INFERRING if context.has_gpu else ON_CPU_INFERRING
    return ON_GPU if context.has_gpu else ON_CPU


def _waits_for(context: DiagnosisContext, slowest: int) -> dict[str, float]:
    """Return how long each rank waits for the host of the slowest one, in seconds per step."""
    names = {PART_NAMES[part] for part in HOST_PARTS}
    waits_s: dict[str, float] = {}
    for (rank, late, part), wait_s in sorted(context.blamed.items()):
        if late == slowest and part in names:
            waits_s[str(rank)] = waits_s.get(str(rank), 0.0) + wait_s
    return waits_s


def _idle_words(context: DiagnosisContext, ranks: tuple[int, ...], cost_s: float) -> str:
    """Say what waits for the host and how long, as traced and without the recorder."""
    what = "the GPU waits for the host" if context.has_gpu else "no operator runs while the host is in Python"
    as_traced = seconds(context.as_traced(cost_s))
    words = f"{what} on {rank_words(ranks, len(context.ranks))}: {as_traced} {context.period} as traced"
    if context.recorder.idle_s > 0 and context.recorder.source != BELOW_NOISE:
        words += f", about {cost_time(context, cost_s)} ({share_words(context, cost_s)}) without the recorder"
    return words
