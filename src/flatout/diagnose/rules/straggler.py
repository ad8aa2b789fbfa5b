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
    spread of the step's starts, the finding is inconclusive.
"""

from __future__ import annotations

import numpy as np

from flatout.diagnose.case import Case
from flatout.diagnose.finding import finding
from flatout.records.diagnosis import Finding
from flatout.units import percent, seconds

CODE = "F03"
NAME = "straggler"


def find(case: Case) -> list[Finding]:
    result = []
    for rank in case.late_ranks():
        cost = case.claim_lateness(rank, case.lateness(rank))
        causes = case.straggling_causes(rank)
        cause = next(iter(causes), "unattributed")
        skew = step_start_spread_s(case)
        is_skew = case.num_steps <= 1 and skew is not None and skew >= 0.5 * cost
        waited = {
            str(w): sum(s for (x, late, _), s in case.blamed.items() if x == w and late == rank)
            for w in sorted({w for (w, late, _) in case.blamed if late == rank})
        }
        title = f"rank {rank} is late"
        title += f" by its {cause.replace('_', ' ')}" if cause != "before_window" else ""
        title += f": the others wait up to {seconds(cost)} a step for it, {percent(cost / case.step_s)}"
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
                "last_in_collectives": _last_arrivals(case, rank),
                "num_collectives": sum(len(m.kernels) > 1 for m in case.job.matches),
                "late_in_steps": _late_steps(case, rank),
                "num_steps": case.num_steps,
                "step_start_spread_s": skew,
            },
            changes=(
                f"look at the GPU and the node of rank {rank}: clocks, temperature, other processes",
                "look at what that rank does more than the others",
            ),
            safety="exact",
            confidence="inconclusive" if is_skew else ("high" if case.num_steps > 1 else "medium"),
        )
    return result


def step_start_spread_s(case: Case) -> float | None:
    """How far apart the ranks begin their first step; None without steps."""
    starts = [t.window_start_ns for t in case.ranks if t.steps]
    return float(np.ptp(np.array(starts, dtype=np.int64))) / 1e9 if len(starts) > 1 else None


def _late_steps(case: Case, rank: int) -> list[int]:
    """Steps in which others waited for this rank longer than for any other."""
    waits: dict[int, dict[int, float]] = {}
    for piece in case.job.slices:
        if piece.step is not None:
            step = waits.setdefault(piece.step, {})
            step[piece.blamed_rank] = step.get(piece.blamed_rank, 0.0) + piece.wait_ns
    return sorted(step for step, by_rank in waits.items() if max(by_rank, key=lambda r: by_rank[r]) == rank)


def _last_arrivals(case: Case, rank: int) -> int:
    """In how many matched collectives this rank arrived last."""
    num = 0
    for match in case.job.matches:
        if len(match.kernels) > 1 and rank in match.kernels:
            starts = {r: int(case.ranks[case.row[r]].communication.start_ns[k]) for r, k in match.kernels.items()}
            num += max(starts, key=lambda r: starts[r]) == rank
    return num
