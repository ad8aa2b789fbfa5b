"""Make findings from the step log: the stalls of some causes together, with their period, share and cost.

In: the context with its `JobLog`. Out: a finding whose cost is the time of the stalls divided by the number of steps.
Each stall belongs to the one rule that asks for its cause and its place, so the costs of all findings can be added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import MIN_SHARE_OF_STEP, rank_words
from flatout.diagnose.traced_stall import clause_of, evidence_of, stands_for
from flatout.records.diagnosis import Finding
from flatout.records.job_log import JobLog, Stall, StallCause
from flatout.records.stall_trace import StallTrace
from flatout.units import percent, seconds

MIN_GAPS = 2  # between stalls; fewer show no period
MIN_REGULAR_GAPS = 0.75  # share of the gaps that agree with the period
MAX_GAP_DEVIATION = 0.1  # share of the period; a gap may always differ by one step
MIN_FOR_HIGH = 3  # stalled steps for high confidence
MIN_SHARE_OF_RANK = 0.1  # share of the time of the rank with the most time; a rank with less is not named
NUM_EXAMPLES = 8


class Stalls(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Stalls that one finding reports together."""

    log: JobLog
    stalls: tuple[Stall, ...]
    trace: StallTrace | None = None  # of one of these stalls

    @property
    def steps(self) -> list[int]:
        return sorted({stall.step for stall in self.stalls})

    @property
    def cost_s(self) -> float:
        """Return the cost per step of the job."""
        return self.log.per_step_s(self.stalls)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that have the cause, except those with little of it; all ranks if the cause is unknown."""
        by_rank: dict[int, float] = {}
        for stall in self.stalls:
            if stall.rank is not None:
                by_rank[stall.rank] = by_rank.get(stall.rank, 0.0) + stall.excess_s
        if not by_rank:
            return self.log.ranks
        most_s = max(by_rank.values())
        return tuple(sorted(rank for rank, spent_s in by_rank.items() if spent_s >= MIN_SHARE_OF_RANK * most_s))

    @property
    def waiting_ranks(self) -> tuple[int, ...]:
        return tuple(sorted({rank for stall in self.stalls for rank in stall.waiting_ranks}))

    @property
    def period_steps(self) -> int | None:
        """Return how many steps pass from stall to stall; None if the stalls are irregular or too few."""
        return period_of(self.steps)

    @property
    def share_of_time(self) -> float:
        """Return the share of the recorded time that is spent in the stalled steps as a whole."""
        is_stalled = np.isin(self.log.number, self.steps)
        total = float(np.nansum(self.log.duration_s))
        return float(np.nansum(self.log.duration_s[:, is_stalled])) / total if total else 0.0

    def words(self) -> str:
        """Return the number and the period of the stalls: `8 of 320 steps, every 40 steps`."""
        steps = self.steps
        often = f"{len(steps):,} of {self.log.num_steps:,} steps"
        period = self.period_steps
        if period is not None:
            return f"{often}, every {period:,} steps"
        if len(steps) <= MIN_GAPS:
            return often
        return f"{often}, one after another" if len(_starts(steps)) == 1 else f"{often}, at irregular intervals"

    def cost_words(self) -> str:
        cost = self.cost_s
        return f"{seconds(cost)} per step, {percent(cost / self.log.step_s)} of the job's mean step"


def period_of(steps: Sequence[int]) -> int | None:
    """Return the number of steps between stalls, at least 2; None if they are irregular or too few."""
    gaps = np.diff(_starts(steps))
    if len(gaps) < MIN_GAPS:
        return None
    period = float(np.median(gaps))
    agrees = np.abs(gaps - period) <= max(1.0, MAX_GAP_DEVIATION * period)
    return round(period) if agrees.mean() >= MIN_REGULAR_GAPS else None


def _starts(steps: Sequence[int]) -> list[int]:
    """Return the steps without those that follow another one at once: a stall can last into the next step."""
    return [step for before, step in zip([None, *steps], steps, strict=False) if before is None or step > before + 1]


def stalls_of(
    context: DiagnosisContext, *causes: StallCause, where: Callable[[Stall], bool] = lambda stall: True
) -> Stalls | None:
    """Return the stalls of the causes; None if there is no step log, or no such stall."""
    log = context.log
    if log is None:
        return None
    chosen = tuple(stall for stall in log.stalls if stall.cause in causes and where(stall))
    if not chosen:
        return None
    stalls = Stalls(log=log, stalls=chosen)
    trace = context.stall_trace
    if trace is None or not stands_for(trace, chosen, stalls.period_steps):
        return stalls
    return msgspec.structs.replace(stalls, trace=trace)


def ends_an_epoch(log: JobLog) -> Callable[[Stall], bool]:
    """Return a function that says whether a stall is in a step in which a loader ran out, or in the first step."""
    if log.num_loader_ends is None:
        return lambda stall: False
    steps = set(log.number[log.num_loader_ends.any(axis=0)].tolist())
    if not steps:
        return lambda stall: False
    first = int(log.number[0])
    return lambda stall: stall.step in steps or (stall.step == first and stall.cause == StallCause.LOADER_START)


def stall_finding(
    stalls: Stalls,
    *,
    code: str,
    name: str,
    what: str,
    changes: tuple[str, ...],
    safety: str = "exact",
    evidence: dict[str, Any] | None = None,
) -> list[Finding]:
    """Return the finding as a list of one, or an empty list if its cost is below the threshold.

    `what` begins the title: `rank 0 writes a checkpoint while the others wait`.
    """
    log, cost = stalls.log, stalls.cost_s
    if log.step_s <= 0 or cost / log.step_s < MIN_SHARE_OF_STEP:
        return []
    steps = stalls.steps
    causes = sorted({str(stall.cause) for stall in stalls.stalls})
    title = f"{what}: {stalls.words()}; {stalls.cost_words()}"
    if stalls.trace is not None:
        title += f"; {clause_of(stalls.trace)}"
    is_known = any(stall.cause != StallCause.UNKNOWN for stall in stalls.stalls)
    return [
        Finding(
            code=code,
            name=name,
            title=title,
            ranks=stalls.ranks,
            cost_s_per_step=cost,
            share_of_step=cost / log.step_s,
            evidence={
                "cause": _main_cause(stalls),
                "causes": causes,
                "num_stalled_steps": len(steps),
                "num_steps": log.num_steps,
                "period_steps": stalls.period_steps,
                "stalled_steps_share_of_time": stalls.share_of_time,
                "total_s": sum(stall.excess_s for stall in stalls.stalls),
                "regular_step_s": log.regular_s,
                "waiting_ranks": list(stalls.waiting_ranks),
                "steps": steps[:NUM_EXAMPLES],
                **({} if stalls.trace is None else evidence_of(stalls.trace)),
                **(evidence or {}),
            },
            changes=changes,
            safety=safety,
            confidence="high" if is_known and len(steps) >= MIN_FOR_HIGH else "medium",
        )
    ]


def ranks_in_words(stalls: Stalls) -> str:
    return rank_words(stalls.ranks, len(stalls.log.ranks))


def _main_cause(stalls: Stalls) -> str:
    by_cause: dict[str, float] = {}
    for stall in stalls.stalls:
        by_cause[str(stall.cause)] = by_cause.get(str(stall.cause), 0.0) + stall.excess_s
    return max(by_cause, key=lambda cause: by_cause[cause])
