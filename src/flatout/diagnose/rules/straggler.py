"""One rank is late, and the others wait for it.

What it means
    A rank arrives last at the collectives because it computes longer, or for a reason that the trace does not show. If
    another finding covers the cause (data loading, checkpoint, host), the late rank is reported there.

Why it costs
    All ranks of the group wait for the last one.

Evidence
    The part of the step that made the rank late (`cause`): where it took longer than the others since all ranks were
    last in sync. Also how long each other rank waits for it, and in how many collectives and steps it arrived last.
    Where it computes longer, the numbers of kernels: another number than the others' means other work.

Change to try
    Check that GPU (clocks, temperature, other processes, retired memory), or on a CPU job the cores of its host, and
    what that rank does in addition to the others' work (uneven layers, an extra task on rank 0). Replace it with a
    spare.

When this is wrong
    A rank that was late in one of several steps need not be late again: the finding is then inconclusive, and more
    recorded steps decide. Ranks that are late in turn are reported as `late-in-turn`.
    With a single recorded step, ranks whose recordings began at different times look late: if the lateness equals the
    spread of the step's start times, the finding is inconclusive. The cost of a rank that is only slightly slower is
    underestimated: the others compute while their communication kernels wait, which slows their compute by 9 to 32 %
    and hides as much of the difference.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import cost_time, finding, is_reportable, share_words
from flatout.diagnose.host_evidence import foreign_load, throttled_clocks
from flatout.diagnose.lateness import late_steps
from flatout.records.diagnosis import Finding

CODE = "F03"
NAME = "straggler"
HOST_EVIDENCE = (throttled_clocks, foreign_load)
MIN_LATE_STEPS = 2  # of several recorded steps; below, the lateness did not recur
MIN_RECURRENCE = 0.5  # share of the steps in which a rank must be late for high confidence
OTHER_WORK_SHARE = 0.05  # of the kernels; ranks with equal work differ by a few, such as those of logging
UNKNOWN = ("before_window", "unattributed")


def find(context: DiagnosisContext) -> list[Finding]:
    result = []
    slowest = _slowest_by_step(context)
    steps_of = late_steps(context)
    num_last = _num_last_arrivals(context)
    skew = step_start_spread_s(context)
    for rank in context.late_ranks():
        cost = context.claim_lateness(rank, context.lateness(rank))
        if not is_reportable(context, cost):
            continue  # a job of a thousand ranks has hundreds of them
        causes = context.straggling_causes(rank)
        cause = next(iter(causes), "unattributed")
        is_skew = context.num_steps <= 1 and skew is not None and skew >= 0.5 * cost
        num_late = len(steps_of.get(rank, ()))
        is_once = context.num_steps > 1 and num_late < MIN_LATE_STEPS
        waited = _waiting_s(context, rank)
        kernels = _kernels_per_step(context, rank) if cause == "compute" else None
        result += finding(
            context,
            code=CODE,
            name=NAME,
            title=_title(context, rank, cause, cost, num_late=num_late, is_skew=is_skew)
            + _kernels_words(kernels, context.period),
            ranks=(rank,),
            cost_s=cost,
            evidence={
                "cause": cause if not is_skew else "unknown",
                "lateness_by_part_s": context.lateness_causes(rank),
                "waiting_s": waited if len(waited) <= 16 else max(waited.values()),
                "last_in_collectives": num_last[rank],
                "num_collectives": sum(len(m.kernels) > 1 for m in context.job.matches),
                "late_in_steps": [step for step, late in slowest.items() if late == rank],
                "num_steps": context.num_steps,
                "step_start_spread_s": skew,
                "kernels_per_step": kernels[0] if kernels is not None else None,
                "kernels_per_step_of_others": kernels[1] if kernels is not None else None,
            },
            changes=_changes(rank, is_once=is_once, has_gpu=context.has_gpu, does_other_work=_differ(kernels)),
            safety="exact",
            confidence=_confidence(context.num_steps, num_late, is_skew=is_skew, is_once=is_once),
        )
    return result


def _waiting_s(context: DiagnosisContext, rank: int) -> dict[str, float]:
    """Return how long each other rank waits for this one where it straggles, by the other rank's number."""
    waits: dict[int, float] = defaultdict(float)
    for (waiting, part), seconds in context.waits_for[rank].items():
        waits[waiting] += seconds if context.is_straggling(part) else 0.0
    return {str(waiting): waits[waiting] for waiting in sorted(waits)}


def _title(context: DiagnosisContext, rank: int, cause: str, cost: float, *, num_late: int, is_skew: bool) -> str:
    title = f"rank {rank} is slower in {cause.replace('_', ' ')}"
    if cause in UNKNOWN:
        title = f"rank {rank} is late for a reason that its trace does not show"
    title += f": other ranks wait up to {cost_time(context, cost)} {context.period}, {share_words(context, cost)}"
    if num_late < context.num_steps:
        title += f"; it was late in {num_late} of {context.num_steps} steps"
    if is_skew:
        title += "; with a single step, whose start times differ as much, the cause is inconclusive"
    return title


def _kernels_per_step(context: DiagnosisContext, rank: int) -> tuple[float, float] | None:
    """Return how many kernels compute on the rank, and on the other ranks (the median); None without a GPU."""
    counts = {t.rank: t.facts.num_kernels for t in context.ranks if t.has_gpu and t.facts is not None}
    others = [count for other, count in counts.items() if other != rank]
    if rank not in counts or not others:
        return None
    return context.per_step(counts[rank]), context.per_step(float(np.median(others)))


def _differ(kernels: tuple[float, float] | None) -> bool:
    """Whether the rank runs another number of kernels than the others: it then does other work."""
    return kernels is not None and abs(kernels[0] - kernels[1]) > OTHER_WORK_SHARE * max(kernels)


def _kernels_words(kernels: tuple[float, float] | None, period: str) -> str:
    if kernels is None or not _differ(kernels):
        return ""
    counts = f"{kernels[0]:,.0f} kernels {period} where the others run {kernels[1]:,.0f}"
    return f"; it runs {counts}: other work, not a slower GPU"


def _changes(rank: int, *, is_once: bool, has_gpu: bool, does_other_work: bool) -> tuple[str, ...]:
    if has_gpu:
        what = f"check the GPU and the node of rank {rank}: clocks, temperature, other processes"
    else:
        what = f"check the host of rank {rank}: other processes on its cores, CPU clocks, memory"
    ways = [what, "check what that rank does in addition to the others' work"]
    if does_other_work:
        ways.reverse()
    return (*((f"record more steps: is rank {rank} late again?",) if is_once else ()), *ways)


def _confidence(num_steps: int, num_late: int, *, is_skew: bool, is_once: bool) -> str:
    if is_skew or is_once or not num_steps:
        return "inconclusive"
    if num_steps > 1 and num_late >= MIN_RECURRENCE * num_steps:
        return "high"
    return "medium"


def step_start_spread_s(context: DiagnosisContext) -> float | None:
    """Return the time between the first and the last rank's start of their first step; None without steps."""
    starts = [t.window_start_ns for t in context.ranks if t.steps]
    return float(np.ptp(np.array(starts, dtype=np.int64))) / 1e9 if len(starts) > 1 else None


def _slowest_by_step(context: DiagnosisContext) -> dict[int, int]:
    """Return for each step the rank that others waited for longest."""
    waits: dict[int, dict[int, float]] = {}
    for piece in context.job.slices:
        if piece.step is not None:
            step = waits.setdefault(piece.step, {})
            step[piece.blamed_rank] = step.get(piece.blamed_rank, 0.0) + piece.wait_ns
    return {step: max(by_rank, key=lambda r: by_rank[r]) for step, by_rank in sorted(waits.items())}


def _num_last_arrivals(context: DiagnosisContext) -> Counter[int]:
    """Count the matched collectives in which each rank arrived last."""
    starts = {t.rank: t.communication.start_ns for t in context.ranks}
    return Counter(
        max(match.kernels, key=lambda rank: int(starts[rank][match.kernels[rank]]))
        for match in context.job.matches
        if len(match.kernels) > 1
    )
