"""Weigh the stalls of a profile as they come in the long run, as trials do: a profile is short.

In: the diagnosis of a profile, and the length of an epoch. Out: the same diagnosis, in which work that returns every N
steps costs a Nth of its time per step, however often the profile happened to hold it. All shares refer to the step that
results, without the first step's wait, which occurs once per job. So findings, bounds and trials have one step.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.records.diagnosis import Diagnosis, Finding

MAX_SCALE = 4.0  # beyond, the period that was found is not believed
# Work at a number of steps from the start of the job, so that even a single occurrence shows its period.
_FROM_THE_START = frozenset({"epoch-boundary", "evaluation-stall", "checkpoint-stall"})


def in_the_long_run(diagnosis: Diagnosis, steps_per_epoch: int | None) -> Diagnosis:
    """Return the diagnosis with costs and shares of the long run; unchanged if it has no step log."""
    job = diagnosis.job
    num_steps, step_s = job.num_recorded_steps, job.mean_step_s
    if not isinstance(num_steps, int) or not isinstance(step_s, float) or num_steps < 1 or step_s <= 0:
        return diagnosis
    first_wait_s = job.first_wait_s if isinstance(job.first_wait_s, float) else 0.0
    costs_s = [_cost_s(finding, steps_per_epoch, first_wait_s) for finding in diagnosis.findings]
    change_s = sum(
        cost_s - finding.cost_s_per_step for cost_s, finding in zip(costs_s, diagnosis.findings, strict=True)
    )
    has_first_wait = any(_has_first_step(finding) for finding in diagnosis.findings)
    if not has_first_wait:  # it is in the mean step, but in no finding
        change_s -= first_wait_s / num_steps
    long_run_s = step_s + change_s
    if long_run_s <= 0:
        return diagnosis
    findings = [
        msgspec.structs.replace(finding, cost_s_per_step=cost_s, share_of_step=min(cost_s / long_run_s, 1.0))
        for cost_s, finding in zip(costs_s, diagnosis.findings, strict=True)
    ]
    traced_share = job.traced_share
    if isinstance(traced_share, float):
        traced_share = min(traced_share * step_s / long_run_s, 1.0)
    job = msgspec.structs.replace(job, mean_step_s=long_run_s, first_wait_s=0.0, traced_share=traced_share)
    return msgspec.structs.replace(diagnosis, job=job, findings=tuple(findings))


def _cost_s(finding: Finding, steps_per_epoch: int | None, first_wait_s: float) -> float:
    """Return the cost per step in the long run; as recorded if the finding is not of stalls, or has no period."""
    num_stalled, num_steps = finding.evidence.get("num_stalled_steps"), finding.evidence.get("num_steps")
    total_s, steps = finding.evidence.get("total_s"), finding.evidence.get("steps")
    if not (isinstance(num_stalled, int) and isinstance(num_steps, int) and isinstance(total_s, float) and steps):
        return finding.cost_s_per_step
    if _has_first_step(finding):
        num_stalled, total_s = num_stalled - 1, max(total_s - first_wait_s, 0.0)
    if num_stalled < 1:
        return total_s / num_steps
    period = finding.evidence.get("period_steps") or _period(finding.name, steps, steps_per_epoch)
    if period is None:
        return total_s / num_steps
    scale = num_steps / (num_stalled * period)
    return total_s / num_steps * (scale if 1 / MAX_SCALE <= scale <= MAX_SCALE else 1.0)


def _has_first_step(finding: Finding) -> bool:
    steps = finding.evidence.get("steps")
    is_of_stalls = "num_stalled_steps" in finding.evidence
    return is_of_stalls and isinstance(steps, list) and bool(steps) and steps[0] == 0


def _period(name: str, steps: Sequence[int], steps_per_epoch: int | None) -> int | None:
    """Return the period of too few stalls for gaps to show it, if they are where it has them."""
    later = [step for step in steps if step > 0]
    for period in (steps_per_epoch, later[0] if name in _FROM_THE_START else None):
        if period is not None and all(step % period == 0 for step in later):
            return period
    return None
