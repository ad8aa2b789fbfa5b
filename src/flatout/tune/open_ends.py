"""What is known at the end of a tuning about changes that had trials and no verdict, and what more time would show."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.records.change import ChangeSet
from flatout.records.tuning import MoreTrials, TriedOutcome, TriedSet
from flatout.records.verdict import Prospect
from flatout.tune.arms import ComparedArms, judged, prospects
from flatout.tune.progress import Progress, Setup

OPEN: tuple[TriedOutcome, ...] = ("not confirmed", "not reached")
WORTH_SAYING = 0.1  # probability of a verdict that more trials would bring; below it, they are not proposed
LIKELY = 0.5  # the least probability at which the first such analysis is proposed


def with_open_ends(setup: Setup, progress: Progress, tried: Sequence[TriedSet]) -> tuple[TriedSet, ...]:
    """Return the tried sets, the undecided ones with the verdict so far and what more trials would show."""
    return tuple(_with_open_end(setup, progress, one) if one.outcome in OPEN else one for one in tried)


def _with_open_end(setup: Setup, progress: Progress, tried: TriedSet) -> TriedSet:
    is_refused = tried.outcome == "not confirmed" and tried.verdict is None
    candidate = _set_of(progress, tried)
    if is_refused or candidate is None:
        return tried
    sets = {trial.changes.name for trial in progress.evidence.trials} - {progress.applied.changes.name}
    arms = ComparedArms(candidate=candidate, against=progress.applied.changes, num_screened=max(len(sets), 1))
    verdict = tried.verdict or judged(setup, progress, arms, is_last=True)
    if verdict.verdict != "undecided":
        return tried
    return msgspec.structs.replace(tried, verdict=verdict, more=_more(setup, prospects(setup, progress, arms)))


def _set_of(progress: Progress, tried: TriedSet) -> ChangeSet | None:
    """Return the set that was tried on top of the applied changes; None if it had no complete trial there."""
    names = {change.name for change in progress.applied.changes.changes} | set(tried.changes)
    for trial in progress.evidence.trials:
        if trial.result.is_complete and {change.name for change in trial.changes.changes} == names:
            return trial.changes
    return None


def _more(setup: Setup, chances: Sequence[Prospect]) -> MoreTrials | None:
    """Return the first analysis that is likely to show a gain, or else the one that is most likely to."""
    if not chances:
        return None
    likely = [chance for chance in chances if chance.better >= LIKELY]
    best = likely[0] if likely else max(chances, key=lambda chance: chance.better)
    if best.better < WORTH_SAYING:
        return None
    seconds = best.num_trials * (setup.runner.usual_s or 0.0)
    return MoreTrials(num_trials=best.num_trials, seconds=seconds, probability=best.better)
