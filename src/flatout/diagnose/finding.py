"""Make findings with the same wording and threshold for all rules."""

from __future__ import annotations

from typing import Any

from flatout.diagnose.context import DiagnosisContext
from flatout.records.diagnosis import Finding, Part
from flatout.units import percent, seconds

MOST_RANKS_LISTED = 16  # of a larger job, the evidence has one number in place of one for each rank
MIN_SHARE_OF_STEP = 0.02  # a cause that costs less than this share of the step does not become a finding


def is_reportable(context: DiagnosisContext, cost_s: float) -> bool:
    return context.step_s > 0 and context.share_of_job(cost_s) >= MIN_SHARE_OF_STEP


def finding(
    context: DiagnosisContext,
    *,
    code: str,
    name: str,
    title: str,
    ranks: tuple[int, ...],
    cost_s: float,
    evidence: dict[str, Any],
    changes: tuple[str, ...],
    safety: str,
    confidence: str = "high",
) -> list[Finding]:
    """Return the finding as a list of one, or an empty list if its cost is below the threshold."""
    if not is_reportable(context, cost_s):
        return []
    return [
        Finding(
            code=code,
            name=name,
            title=title,
            ranks=ranks,
            cost_s_per_step=context.cost_in_job(cost_s),
            share_of_step=context.share_of_job(cost_s),
            evidence=evidence,
            changes=changes,
            safety=safety,
            confidence=confidence,
        )
    ]


def seconds_by_rank(context: DiagnosisContext, *parts: Part) -> dict[str, float]:
    """Return each rank's seconds per step in the parts, for the evidence."""
    seconds_of_ranks = context.own[:, list(parts)].sum(axis=1).tolist()
    return {str(timeline.rank): spent_s for timeline, spent_s in zip(context.ranks, seconds_of_ranks, strict=True)}


def cost_words(context: DiagnosisContext, cost_s: float) -> str:
    """Format a cost: `46.0 ms per step, 12 % of the step`; without steps `46.0 ms in total, 12 % of the recording`."""
    return f"{cost_time(context, cost_s)} {context.period}, {share_words(context, cost_s)}"


def cost_time(context: DiagnosisContext, cost_s: float) -> str:
    """Format the time of a cost in the job: `46.0 ms`."""
    return seconds(context.cost_in_job(cost_s))


def share_words(context: DiagnosisContext, cost_s: float) -> str:
    """Format a share: `12 % of the step`; without steps `12 % of the recording`."""
    return f"{percent(context.share_of_job(cost_s))} of the {'step' if context.num_steps else 'recording'}"


def rank_words(ranks: tuple[int, ...], num_ranks: int) -> str:
    """Format ranks: `rank 2`, `ranks 0 and 3`, `both ranks`, `all 4 ranks`, `120 of 1,000 ranks`."""
    if len(ranks) == num_ranks and num_ranks > 1:
        return "both ranks" if num_ranks == 2 else f"all {num_ranks} ranks"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= 4:
        return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return f"{len(ranks):,} of {num_ranks:,} ranks"
