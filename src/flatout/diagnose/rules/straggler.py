"""One rank is late, and the others wait for it.

What it means
    A rank arrives last at the collectives because it computes longer, or for a reason that the trace does not show.
    A late rank whose cause has a finding of its own (data loading, checkpoint, host) is reported there.

Why it costs
    All ranks of the group go at the pace of the last one.

Evidence
    The part on which the late rank spent more since all were last level (`cause`), how long each other rank waits for
    it, and in how many steps it was the last.

Change to try
    Look at that GPU (clocks, temperature, another process, ECC retirement) and at what that rank does more than the
    others (uneven layers, an extra task on rank 0); exchange it with a spare.

When this is wrong
    With a single recorded step, ranks whose recording began at different times look late: if the lateness equals the
    spread of the step's starts, the finding is inconclusive. A rank that computes only a little longer is
    under-charged: the others compute beside their waiting, which slows their kernels by 9-32 %, and hides as much of
    the difference.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from flatout.diagnose.case import Case
from flatout.diagnose.finding import finding, is_worth_telling, share_words
from flatout.diagnose.host_evidence import throttled_clocks
from flatout.records.diagnosis import Finding
from flatout.units import seconds

CODE = "F03"
NAME = "straggler"
HOST_EVIDENCE = (throttled_clocks,)
UNKNOWN = ("before_window", "unattributed")


def find(case: Case) -> list[Finding]:
    result = []
    slowest = _slowest_by_step(case)
    num_last = _num_last_arrivals(case)
    for rank in case.late_ranks():
        cost = case.claim_lateness(rank, case.lateness(rank))
        if not is_worth_telling(case, cost):
            continue  # a job of a thousand ranks has hundreds of such
        causes = case.straggling_causes(rank)
        cause = next(iter(causes), "unattributed")
        skew = step_start_spread_s(case)
        is_skew = case.num_steps <= 1 and skew is not None and skew >= 0.5 * cost
        waits: dict[int, float] = defaultdict(float)
        for (waiting, part), s in case.waits_for[rank].items():
            waits[waiting] += s if case.is_straggling(part) else 0.0
        waited = {str(waiting): waits[waiting] for waiting in sorted(waits)}
        if cause in UNKNOWN:
            title = f"rank {rank} is late for a reason that its trace does not show"
        else:
            title = f"rank {rank} is slower in {cause.replace('_', ' ')}"
        title += f": other ranks wait up to {seconds(cost)} {case.period}, {share_words(case, cost)}"
        if is_skew:
            title += "; a single step whose starts differ as much: the cause is inconclusive"
        result += finding(
            case,
            code=CODE,
            name=NAME,
            title=title,
            ranks=(rank,),
            cost_s=cost,
            evidence={
                "cause": cause if not is_skew else "unknown",
                "lateness_by_part_s": case.lateness_causes(rank),
                "waiting_s": waited if len(waited) <= 16 else max(waited.values()),
                "last_in_collectives": num_last[rank],
                "num_collectives": sum(len(m.kernels) > 1 for m in case.job.matches),
                "late_in_steps": [step for step, late in slowest.items() if late == rank],
                "num_steps": case.num_steps,
                "step_start_spread_s": skew,
            },
            changes=(
                f"look at the GPU and the node of rank {rank}: clocks, temperature, other processes",
                "look at what that rank does more than the others",
            ),
            safety="exact",
            confidence="inconclusive"
            if is_skew or not case.num_steps
            else ("high" if case.num_steps > 1 else "medium"),
        )
    return result


def step_start_spread_s(case: Case) -> float | None:
    """How far apart the ranks begin their first step; None without steps."""
    starts = [t.window_start_ns for t in case.ranks if t.steps]
    return float(np.ptp(np.array(starts, dtype=np.int64))) / 1e9 if len(starts) > 1 else None


def _slowest_by_step(case: Case) -> dict[int, int]:
    """For each step the rank that others waited longest for."""
    waits: dict[int, dict[int, float]] = {}
    for piece in case.job.slices:
        if piece.step is not None:
            step = waits.setdefault(piece.step, {})
            step[piece.blamed_rank] = step.get(piece.blamed_rank, 0.0) + piece.wait_ns
    return {step: max(by_rank, key=lambda r: by_rank[r]) for step, by_rank in sorted(waits.items())}


def _num_last_arrivals(case: Case) -> Counter[int]:
    """In how many matched collectives each rank arrived last."""
    starts = {t.rank: t.communication.start_ns for t in case.ranks}
    return Counter(
        max(match.kernels, key=lambda rank: int(starts[rank][match.kernels[rank]]))
        for match in case.job.matches
        if len(match.kernels) > 1
    )
