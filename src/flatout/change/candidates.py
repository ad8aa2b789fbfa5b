"""Diagnosis -> the changes to try, those that can gain most first, each with a bound on what it can gain.

The bound is no forecast: a change cannot save more than a finding costs, times the share that its knob can save of it.
A replay of the trace with the change (`predict/`) may lower it. General changes (autocast, say) are bounded by the time
of the part of the step that they work on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from flatout.change.catalogue import all_changes, already_turned, unmet_needs
from flatout.records.change import SAFETIES, Change, JobFacts, Safety
from flatout.records.diagnosis import Diagnosis

MIN_SPEEDUP = 1.01  # a verdict does not call less than that better
MAX_SAVED_SHARE = 0.99  # of the step


def candidates(
    diagnosis: Diagnosis,
    facts: JobFacts,
    allowed_safety: Safety = "exact",
    *,
    applied: Sequence[Change] = (),
    own: Iterable[Change] = (),
    for_memory: bool = False,
) -> list[Change]:
    """Changes whose needs are met and that could make a step at least 1 % faster, by the bound of their gain.

    `applied` are changes that are on already: what contradicts them is left out, what requires them may come, and other
    values of their knobs may come in their place. `own` are changes by the user's own arguments: they have no bound and
    come last. With `for_memory` the changes that save memory instead of those that save time: without a bound, those
    first that are known to save most.
    """
    step_s = _step_s(diagnosis)
    found = []
    for change in (*all_changes(facts), *own):
        if not is_allowed(change, allowed_safety) or unmet_needs(change, facts) or not _fits(change, applied, facts):
            continue
        if _is_set(change, facts):
            continue
        if for_memory or change.argument is not None:
            if change.knob.saves_memory or change.argument is not None:
                found.append(change)
            continue
        saved_s, sources = _saved(change, diagnosis)
        speedup = step_s / (step_s - min(saved_s, MAX_SAVED_SHARE * step_s)) if step_s > 0 else 1.0
        if speedup >= MIN_SPEEDUP:
            found.append(msgspec.structs.replace(change, predicted_speedup=speedup, predicted_from=sources))
    if for_memory:
        return sorted(found, key=lambda change: -change.knob.saves_memory)
    return sorted(found, key=lambda change: (-(change.predicted_speedup or 0.0), SAFETIES.index(change.safety)))


def is_allowed(change: Change, allowed_safety: Safety) -> bool:
    return SAFETIES.index(change.safety) <= SAFETIES.index(allowed_safety)


def _is_set(change: Change, facts: JobFacts) -> bool:
    """Whether all that it would do is in the job's environment already."""
    if not change.environment or change.patch is not None or change.launch or change.argument is not None:
        return False
    return all(facts.environment.get(name) == value for name, value in change.environment.items())


def _fits(change: Change, applied: Sequence[Change], facts: JobFacts) -> bool:
    """Whether it can be added to what is on, in the place of another value of its knob."""
    others = [other for other in applied if other.knob.name != change.knob.name]
    turned = {other.knob.name for other in others}
    excluded = {name for other in others for name in other.knob.excludes}
    return (
        change.name not in {other.name for other in applied}
        and change.knob.name not in excluded
        and turned.isdisjoint(change.knob.excludes)
        and set(change.knob.requires) <= turned | already_turned(facts)
    )


def _saved(change: Change, diagnosis: Diagnosis) -> tuple[float, tuple[str, ...]]:
    """Seconds a step that it could save, and of which findings, or else of which parts."""
    by_finding: dict[str, float] = {}
    for finding in diagnosis.findings:
        share = change.knob.answers.get(finding.name, 0.0)
        if share > 0:
            by_finding[finding.name] = by_finding.get(finding.name, 0.0) + share * finding.cost_s_per_step
    by_part = {part: share * _part_s(diagnosis, part) for part, share in change.knob.reduces.items()}
    # A finding's seconds are part of a part's seconds: never both.
    most = max(by_finding, by_part, key=lambda saved: sum(saved.values()))
    return sum(most.values()), tuple(name for name, seconds in most.items() if seconds > 0)


def _step_s(diagnosis: Diagnosis) -> float:
    """The mean step; of a trace without steps the mean window, for which costs are given then."""
    if diagnosis.job.step_s is not None:
        return diagnosis.job.step_s
    windows = [rank.window_s for rank in diagnosis.ranks]
    return sum(windows) / len(windows) if windows else 0.0


def _part_s(diagnosis: Diagnosis, part: str) -> float:
    """Seconds a step in the part, the mean over the ranks."""
    seconds = []
    for rank in diagnosis.ranks:
        if rank.steps:
            seconds.append(sum(step.parts_s.get(part, 0.0) for step in rank.steps) / len(rank.steps))
        else:
            seconds.append(rank.parts_s.get(part, 0.0))
    return sum(seconds) / len(seconds) if seconds else 0.0
