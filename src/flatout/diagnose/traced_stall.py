"""Use the trace of one stall: find the stalls that it stands for, and say what ran in it, on which rank.

In: the `StallTrace` of a recording. Out: evidence and a clause for the finding of these stalls. The trace does not
add to the cost: the step log already has the time of all stalls.
"""

from __future__ import annotations

from typing import Any

from flatout.diagnose.finding import rank_words
from flatout.records.job_log import Stall
from flatout.records.stall_trace import StalledRank, StallTrace, TracedActivity
from flatout.units import seconds

MAX_DISTANCE = 1  # steps between the traced step and a stall of the finding: ranks can wait in their next step
MIN_IDLE_SHARE = 0.5  # of the excess; above it, no event explains the stall
MIN_SHARE_ALIKE = 0.5  # of the time of the rank with the most
MOST_NAME = 80  # characters


def stands_for(trace: StallTrace, stalls: tuple[Stall, ...], period_steps: int | None) -> bool:
    """Whether the traced step is one of the stalls, or is due in their period.

    A stall of unknown cause is not seen in a traced step, because the recorder prolongs that step too.
    """
    traced = {rank.step for rank in trace.ranks}
    steps = sorted({stall.step for stall in stalls})
    if any(abs(step - number) <= MAX_DISTANCE for step in steps for number in traced):
        return True
    if period_steps is None or abs(period_steps - trace.period_steps) > MAX_DISTANCE:
        return False
    away = min(abs(trace.step - step) % period_steps for step in steps)
    return min(away, period_steps - away) <= MAX_DISTANCE


def evidence_of(trace: StallTrace) -> dict[str, Any]:
    """Return the evidence of a finding: what ran in the traced step, by rank, and the time without an event."""
    return {
        "traced_stall_step": trace.step,
        "traced_stall_excess_s": {str(rank.rank): rank.excess_s for rank in trace.ranks},
        "traced_stall_activity_s": {
            f"{_short(activity.name)} (rank {rank.rank})": activity.seconds
            for rank in trace.ranks
            for activity in rank.activities
        },
        "traced_stall_idle_s": {str(rank.rank): rank.idle_s for rank in trace.ranks},
    }


def clause_of(trace: StallTrace) -> str:
    """Return what the trace shows: `the trace of step 240 shows flatout:checkpoint for 787 ms on rank 0`."""
    working = [rank for rank in trace.ranks if not rank.waits] or list(trace.ranks)
    longest = max(working, key=_own_s)
    waiting = tuple(rank.rank for rank in trace.ranks if rank.waits and rank is not longest)
    alike = tuple(rank.rank for rank in working if _is_alike(rank, longest))
    clause = (
        f"the trace of step {longest.step} shows {_activity_words(longest)} on {rank_words(alike, len(trace.ranks))}"
    )
    if waiting:
        verb = "waits" if len(waiting) == 1 else "wait"
        clause += f", while {rank_words(waiting, len(trace.ranks))} {verb} in a collective"
    return clause


def _own_s(rank: StalledRank) -> float:
    return sum(activity.seconds for activity in rank.activities if not activity.is_communication) + rank.idle_s


def _is_alike(rank: StalledRank, other: StalledRank) -> bool:
    """Whether a rank did the same as another one, for at least half as long."""
    one, two = _main_activity(rank), _main_activity(other)
    is_same = one == two if one is None or two is None else one.name == two.name
    return is_same and _own_s(rank) >= MIN_SHARE_ALIKE * _own_s(other)


def _main_activity(rank: StalledRank) -> TracedActivity | None:
    """Return what ran longest in the stall, preferably something other than waiting for another rank; None: nothing."""
    if rank.idle_s >= MIN_IDLE_SHARE * rank.excess_s or not rank.activities:
        return None
    own = [activity for activity in rank.activities if not activity.is_communication]
    return (own or rank.activities)[0]


def _activity_words(rank: StalledRank) -> str:
    activity = _main_activity(rank)
    if activity is None:
        return f"no event for {seconds(rank.idle_s)} (Python, or a wait outside torch)"
    return f"{_short(activity.name)} for {seconds(activity.seconds)}"


def _short(name: str) -> str:
    return name if len(name) <= MOST_NAME else f"{name[: MOST_NAME - 3]}..."
