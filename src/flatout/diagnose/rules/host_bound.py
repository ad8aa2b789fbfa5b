"""The host cannot launch work as fast as the GPU finishes it.

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

from flatout.diagnose.case import HOST_PARTS, Case
from flatout.diagnose.finding import finding, rank_words, share_words
from flatout.diagnose.host_evidence import busy_cores
from flatout.diagnose.recorder import BELOW_NOISE
from flatout.records.diagnosis import PART_NAMES, Finding, Part
from flatout.units import seconds

CODE = "F05"
NAME = "host-bound"
HOST_EVIDENCE = (busy_cores,)
MIN_SYNCS_TOLD = 5


def find(case: Case) -> list[Finding]:
    cost = sum(case.claim(part, case.available(part)) for part in HOST_PARTS)
    if cost <= 0:
        return []
    ranks = case.ranks_with_most(*HOST_PARTS)
    slowest = case.busiest_rank(*HOST_PARTS)
    facts = case.facts(slowest)
    names = {PART_NAMES[part] for part in HOST_PARTS}
    waited: dict[str, float] = {}
    for (rank, late, part), wait_s in sorted(case.blamed.items()):
        if late == slowest and part in names:
            waited[str(rank)] = waited.get(str(rank), 0.0) + wait_s
    traced = float(case.own[case.row[slowest], list(HOST_PARTS)].sum())
    what = "the GPU waits for the host" if case.has_gpu else "no operator runs while the host is in Python"
    title = f"{what} on {rank_words(ranks, len(case.ranks))}: {seconds(traced)} {case.period} as traced"
    if case.recorder.idle_s > 0 and case.recorder.source != BELOW_NOISE:
        title += f", about {seconds(cost)} ({share_words(case, cost)}) without the recorder"
    if waited:
        longest = max(waited.values())
        if longest >= 0.02 * case.step_s:
            title += f"; other ranks wait up to {seconds(longest)} {case.period} for rank {slowest}"
    num_syncs = case.per_step(sum(c.count for c in facts.sync_calls.values()))
    if num_syncs >= MIN_SYNCS_TOLD:
        title += f"; {num_syncs:.0f} synchronising calls {case.period}"
    return finding(
        case,
        code=CODE,
        name=NAME,
        title=title,
        ranks=ranks,
        cost_s=cost,
        evidence={
            "traced_idle_s": {
                str(t.rank): float(case.own[row, list(HOST_PARTS)].sum()) for row, t in enumerate(case.ranks)
            }
            if len(case.ranks) <= 16
            else traced,
            "slowest_rank": slowest,
            "others_wait_s": waited if len(waited) <= 16 else max(waited.values()),
            **case.recorder.evidence(),
            "recorder_cost_source": case.recorder.source,
            "host_events_per_step": case.per_step(facts.num_host_events),
            "launches_per_step": case.per_step(facts.num_launches),
            "sync_calls_per_step": num_syncs,
            "gpu_compute_s": float(case.own[case.row[slowest], Part.COMPUTE]),
        },
        changes=(
            "bind each process to enough cores near its GPU",
            "fused or foreach optimizer, fewer Python calls in the loop",
            "CUDA graphs or torch.compile (rounding)",
            "a larger batch (semantic)",
        ),
        safety="exact",
        confidence="medium" if case.recorder.source == "assumed" else "high",
    )
