"""Wording for what findings cost a step of a tuned job, and for the speedup that fixing them could bring at most.

In: findings of the profile and of the trials, and the `Bound` of each. Out: texts.
"""

from __future__ import annotations

from flatout.records.diagnosis import Finding
from flatout.records.tuning import Bound
from flatout.units import percent, seconds

TRIALS_ONLY = "seen only by the trials"


def finding_sentence(finding: Finding, what: str, *, is_of_trials_only: bool) -> str:
    """Say what a finding costs: `finding: epoch-boundary, 30.0 ms per step, 22 % of it: the training waits ...`."""
    cost = f"{seconds(finding.cost_s_per_step)} per step, {percent(finding.share_of_step)} of it"
    seen = f" ({TRIALS_ONLY})" if is_of_trials_only else ""
    return f"finding: {finding.name}, {cost}: {what}{seen}"


def bound_name(bound: Bound) -> str:
    """Name the finding of a bound, and say if only trials showed it."""
    return f"{bound.finding} ({TRIALS_ONLY})" if bound.is_of_trials_only else bound.finding
