"""Choose the changes to try for a diagnosis, those with the highest bound on their gain first.

The bound is not a forecast: a change cannot save more than the cost of a finding, times the share that its knob can
save of it; a change that answers a stall can also save what the job's steps take above the regular one and no finding
explains. All shares are of the job's mean step, with its stalls, if the diagnosis is of a recording. A replay of the
trace with the change (`predict/`) may lower the bound. General changes (such as autocast) are bounded by the time of
the part of the step that they work on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from flatout.change.catalogue import all_changes, set_by_script, unmet_needs
from flatout.records.change import SAFETIES, Change, JobFacts, Safety
from flatout.records.diagnosis import Diagnosis, Finding, JobSummary, RankDiagnosis, StepDiagnosis

MIN_SPEEDUP = 1.01  # a verdict does not call less than that better
MAX_SAVED_SHARE = 0.99  # of the step
MIN_SHARE_AFTER_FIRST_WAIT = 0.01
# Findings of the step log about steps that are longer than the regular one.
STALLS = frozenset(
    {"epoch-boundary", "periodic-stall", "checkpoint-stall", "evaluation-stall", "garbage-collection", "epoch-sawtooth"}
)
MAX_REGULAR = 1.5  # as a multiple of the shortest traced step of a rank


def candidates(
    diagnosis: Diagnosis,
    facts: JobFacts,
    allowed_safety: Safety = "exact",
    *,
    applied: Sequence[Change] = (),
    own: Iterable[Change] = (),
    for_memory: bool = False,
) -> list[Change]:
    """Return the changes whose needs are met and that can make a step at least 1 % faster, by the bound on their gain.

    `applied` are the applied changes: what contradicts them is excluded, what requires them is possible, and other
    values of their knobs may replace them. `own` are changes to the user's own arguments: they have no bound and come
    last. With `for_memory`, return the changes that save memory instead, those that usually save most first.
    """
    possible = [
        change
        for change in (*all_changes(facts), *own)
        if is_allowed(change, allowed_safety) and _is_possible(change, applied, facts)
    ]
    if for_memory:
        savers = [change for change in possible if change.knob.saves_memory or change.argument is not None]
        return sorted(savers, key=lambda change: -change.knob.saves_memory)
    bounded = [change if change.argument is not None else _with_bound(change, diagnosis) for change in possible]
    promising = [
        change for change in bounded if change.argument is not None or (change.predicted_speedup or 0.0) >= MIN_SPEEDUP
    ]
    return sorted(promising, key=lambda change: (-(change.predicted_speedup or 0.0), SAFETIES.index(change.safety)))


def is_allowed(change: Change, allowed_safety: Safety) -> bool:
    return SAFETIES.index(change.safety) <= SAFETIES.index(allowed_safety)


def _is_possible(change: Change, applied: Sequence[Change], facts: JobFacts) -> bool:
    return not unmet_needs(change, facts) and _fits(change, applied, facts) and not _is_set(change, facts)


def _is_set(change: Change, facts: JobFacts) -> bool:
    """Whether the job's environment already has all settings of the change."""
    sets_more = change.patch is not None or change.argument is not None or bool(change.launch)
    if sets_more or not change.environment:
        return False
    return all(facts.environment.get(name) == value for name, value in change.environment.items())


def _fits(change: Change, applied: Sequence[Change], facts: JobFacts) -> bool:
    """Whether the change can be added to the applied changes, in place of another value of its knob."""
    if change.name in {other.name for other in applied}:
        return False
    others = [other.knob for other in applied if other.knob.name != change.knob.name]
    names = {knob.name for knob in others}
    excluded = {name for knob in others for name in knob.excludes}
    if change.knob.name in excluded or not names.isdisjoint(change.knob.excludes):
        return False
    return set(change.knob.requires) <= names | set_by_script(facts)


def _with_bound(change: Change, diagnosis: Diagnosis) -> Change:
    """Return the change with the highest speedup that the diagnosis allows, and where that comes from."""
    saved_share, sources = _saved(change, diagnosis)
    speedup = 1 / (1 - min(saved_share, MAX_SAVED_SHARE))
    return msgspec.structs.replace(change, predicted_speedup=speedup, predicted_from=sources)


def _saved(change: Change, diagnosis: Diagnosis) -> tuple[float, tuple[str, ...]]:
    """Return the share of the job that the change can save, and the findings or parts from which it is derived."""
    by_finding: dict[str, float] = {}
    for finding in diagnosis.findings:
        share = change.knob.answers.get(finding.name, 0.0)
        if share > 0:
            by_finding[finding.name] = by_finding.get(finding.name, 0.0) + share * share_in_trial(diagnosis, finding)
    stalls = [share for name, share in change.knob.answers.items() if name in STALLS and name in by_finding]
    if stalls:
        name = next(name for name in by_finding if name in STALLS)
        by_finding[name] += max(stalls) * _unexplained_stall_share(diagnosis)
    by_part = {part: share * _part_share(diagnosis, part) for part, share in change.knob.reduces.items()}
    # The seconds of a finding are some of the seconds of a part: never both.
    largest = max(by_finding, by_part, key=lambda saved: sum(saved.values()))
    return sum(largest.values()), tuple(name for name, saved in largest.items() if saved > 0)


def share_in_trial(diagnosis: Diagnosis, finding: Finding) -> float:
    """Return the share of the steps, as a trial measures them, that the finding costs: at most 1."""
    return min(1.0, finding.share_of_step / _share_after_first_wait(diagnosis.job))


def _unexplained_stall_share(diagnosis: Diagnosis) -> float:
    """Return the share of the steps that is above the regular step and that no finding on stalls explains.

    A finding costs what its long steps take more than the regular one. What caused these can slow other steps too, such
    as the first ones of an epoch while its loader workers still start, and a change that removes the cause saves that.
    """
    job = diagnosis.job
    if not isinstance(job.mean_step_s, float) or not isinstance(job.regular_step_s, float) or not job.mean_step_s:
        return 0.0
    in_trial_s = job.mean_step_s * _share_after_first_wait(job)
    above_regular_share = 1.0 - job.regular_step_s / in_trial_s
    explained_share = sum(
        share_in_trial(diagnosis, finding) for finding in diagnosis.findings if finding.name in STALLS
    )
    return max(above_regular_share - explained_share, 0.0)


def _share_after_first_wait(job: JobSummary) -> float:
    """Return the share of the job's time that is left without the first step's wait for its batch.

    That wait occurs once per job, so no trial measures it, but it can be most of a short recording.
    """
    mean_step_s, num_steps, first_wait_s = job.mean_step_s, job.num_recorded_steps, job.first_wait_s
    if not isinstance(mean_step_s, float) or not isinstance(num_steps, int) or not isinstance(first_wait_s, float):
        return 1.0
    total_s = mean_step_s * num_steps
    return max(1.0 - first_wait_s / total_s, MIN_SHARE_AFTER_FIRST_WAIT) if total_s > 0 else 1.0


def _part_share(diagnosis: Diagnosis, part: str) -> float:
    """Return the share of the job that the part takes in the regular steps, judged by the traced steps."""
    total_s = part_s = 0.0
    for rank in diagnosis.ranks:
        steps = _regular_steps(rank)
        total_s += sum(step.window_s for step in steps) if steps else rank.window_s
        part_s += sum(step.parts_s.get(part, 0.0) for step in steps) if steps else rank.parts_s.get(part, 0.0)
    return part_s / total_s * regular_share(diagnosis) if total_s > 0 else 0.0


def _regular_steps(rank: RankDiagnosis) -> list[StepDiagnosis]:
    """Return the traced steps of a rank without those that are far longer than its shortest one: these hold a stall."""
    shortest_s = min((step.window_s for step in rank.steps), default=0.0)
    return [step for step in rank.steps if step.window_s <= MAX_REGULAR * shortest_s]


def regular_share(diagnosis: Diagnosis) -> float:
    """Return the share of the job's steps, as a trial measures them, without their stalls; 1 without a step log."""
    job = diagnosis.job
    if isinstance(job.traced_share, float) and job.traced_share > 0:
        return min(1.0, job.traced_share / _share_after_first_wait(job))
    if not isinstance(job.mean_step_s, float) or not isinstance(job.regular_step_s, float) or not job.mean_step_s:
        return 1.0
    return min(1.0, job.regular_step_s / job.mean_step_s)
