"""Changes that do not interact, as one set: they are tried together first, and taken apart only if they disappoint."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from flatout.records.change import Change, ChangeSet
from flatout.records.trial import TrialResult
from flatout.trial.gates import RESAMPLES, check_losses
from flatout.tune.progress import Progress, Round

LEAST_ESTIMATE = 1.05  # of each member: less would be hidden by the noise of the others
KEPT_SHARE = 0.7  # of the members' expected gain, in logarithms; a set that shows less is taken apart


def independent_changes(progress: Progress, this_round: Round, possible: Sequence[Change]) -> ChangeSet | None:
    """Return the change with the highest estimated gain for each cause, as one set; None if there are fewer than two.

    All are exact: among changes that round, a wrong one would pass the gates. Where other samples change the losses,
    changes of the loader are in one set with no others, see `hides_a_member`: the change with the highest estimate
    decides which.
    """
    is_apart = _samples_matter(progress.evidence.baselines)
    members: list[Change] = []
    causes: set[str] = set()
    for change in possible:
        promise = this_round.promises.get(change.name)
        if promise is None or promise.expected_speedup < LEAST_ESTIMATE or change.safety != "exact":
            continue
        if not change.predicted_from or not causes.isdisjoint(change.predicted_from):
            continue
        if is_apart and members and _resamples(change) != _resamples(members[0]):
            continue
        if progress.applied.with_added([*members, change], this_round.facts) is not None:
            members.append(change)
            causes |= set(change.predicted_from)
    return progress.applied.with_added(members, this_round.facts) if len(members) > 1 else None


def disappoints(speedup: float, members: Sequence[Change], this_round: Round) -> bool:
    """Whether a set gains so much less than the estimates of its members that one of them may be of no use."""
    expected = sum(math.log(this_round.promises[change.name].expected_speedup) for change in members)
    return speedup <= 1 or math.log(speedup) < KEPT_SHARE * expected


def hides_a_member(progress: Progress, result: TrialResult, members: Sequence[Change]) -> bool:
    """Whether the loader's changes make the gates too lenient for the other members.

    Other workers may draw other samples: then losses differ, and a wrong change next to them would not be seen.
    """
    others = tuple(change for change in members if not _resamples(change))
    if not others or len(others) == len(members):
        return False
    as_if_usual = msgspec.structs.replace(result, loader_workers=None)
    baselines = progress.current_trials or progress.evidence.baselines
    return not check_losses(as_if_usual, baselines, ChangeSet(changes=others)).is_passed


def _resamples(change: Change) -> bool:
    return change.family in RESAMPLES


def _samples_matter(baselines: Sequence[TrialResult]) -> bool:
    """Whether the trial with other samples had other losses than the others; False if there was none."""
    others = [trial for trial in baselines if trial.has_other_samples]
    return any(not check_losses(trial, baselines, ChangeSet()).is_passed for trial in others)
