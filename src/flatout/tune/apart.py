"""Take an adopted bundle apart: a trial without each change that had no separate one shows whether it is of use.

In: a bundle that is better. Out: the same changes, marked as shown, or the set without those that brought nothing, if
that set is better than the unchanged job too. A budget that ends here leaves the bundle as it is.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from flatout.change.combine import combine, conflicts
from flatout.records.change import Change, ChangeSet
from flatout.records.verdict import Verdict
from flatout.tune.arms import ComparedArms, run_until_judged
from flatout.tune.budget import NUM_CONFIRMING, num_left, num_reserved
from flatout.tune.progress import NOTHING, Applied, Progress, Round, Setup, ShownGain
from flatout.tune.screening import clear_speedup, estimated_speedup
from flatout.tune.trials import refusal, run_trial
from flatout.tune.tried import not_reached

AS_FAST = 1.05  # a smaller set that is slower than the bundle by more than this does not replace it
ERROR_SHARE = 2  # of a bundle's round: the other half of its error rate is for the set that is left of it


def take_apart(setup: Setup, progress: Progress, this_round: Round) -> Progress:
    """Keep those changes of the applied set that are of use. Raises StoppedError."""
    untried = [tuned.change for tuned in progress.applied.each if not tuned.had_own_trial]
    if not untried or num_left(setup) < len(untried) + NUM_CONFIRMING:
        return progress
    setup.say(f"round {this_round.number}: trying the applied changes without each of {_names(untried)}")
    idle: list[Change] = []
    for change in untried:
        without = _without(progress, this_round, [change])
        if without is None:
            continue
        progress, result = run_trial(
            setup, progress, without, place=this_round.place, num_reserved=num_reserved(progress)
        )
        estimate = estimated_speedup(progress, without)
        if estimate is None or refusal(progress, result, without) is not None:
            continue
        if estimate * clear_speedup(progress) < 1:
            progress = _with_shown(progress, change)
        else:
            idle.append(change)
    smaller = _without(progress, this_round, idle) if 0 < len(idle) < len(untried) else None
    return progress if smaller is None else _keep_if_better(setup, progress, this_round, smaller, idle)


def _keep_if_better(
    setup: Setup, progress: Progress, this_round: Round, smaller: ChangeSet, idle: Collection[Change]
) -> Progress:
    """Apply the smaller set in place of the bundle, if it is better than the unchanged job too."""
    names = {change.name for change in idle}
    applied = Applied(
        changes=smaller,
        each=tuple(tuned for tuned in progress.applied.each if tuned.change.name not in names),
        covers_first_epoch_only=progress.applied.covers_first_epoch_only,
    )
    claim = progress.claim
    if progress.is_claimed:
        arms = ComparedArms(
            candidate=smaller, against=NOTHING, num_screened=ERROR_SHARE * (len(names) + 1) * 2**this_round.number
        )
        progress, comparison = run_until_judged(setup, progress, arms, place=this_round.place)
        if comparison.verdict.verdict != "better" or not comparison.gate.is_passed:
            return progress
        if claim is not None and not is_as_fast(comparison.verdict, claim.verdict):
            return progress  # a dropped change may be of use, though no single trial shows it
        if len(applied.each) == 1:
            alone = msgspec.structs.replace(applied.each[0], verdict=comparison.verdict)
            applied = msgspec.structs.replace(applied, each=(alone,))
        claim = ShownGain(applied=applied, verdict=comparison.verdict)
    outcomes = progress.outcomes
    for change in idle:
        reason = "the others were as fast without it"
        outcomes = outcomes.with_pending(not_reached(setup, this_round, change, reason))
    progress = progress.with_outcomes(outcomes)
    return msgspec.structs.replace(progress, applied=applied, claim=claim)


def is_as_fast(smaller: Verdict, bundle: Verdict) -> bool:
    """Whether the smaller set is as fast as the bundle; two claims do not resolve a smaller difference."""
    if smaller.speedup is None or bundle.speedup is None:
        return True
    return smaller.speedup * AS_FAST >= bundle.speedup


def _without(progress: Progress, this_round: Round, left_out: Collection[Change]) -> ChangeSet | None:
    """Return the applied changes without some; None if the others need them, or none is left."""
    names = {change.name for change in left_out}
    others = [change for change in progress.applied.changes.changes if change.name not in names]
    if not others or next(conflicts(others, this_round.facts), None) is not None:
        return None
    return combine(others, this_round.facts)


def _with_shown(progress: Progress, shown: Change) -> Progress:
    """Mark a change of the applied set as shown by a trial without it."""

    def marked(applied: Applied) -> Applied:
        each = tuple(
            msgspec.structs.replace(tuned, had_own_trial=True) if tuned.change.name == shown.name else tuned
            for tuned in applied.each
        )
        return msgspec.structs.replace(applied, each=each)

    applied, claim = marked(progress.applied), progress.claim
    if claim is not None and claim.applied == progress.applied:
        claim = msgspec.structs.replace(claim, applied=applied)
    return msgspec.structs.replace(progress, applied=applied, claim=claim)


def _names(changes: Collection[Change]) -> str:
    return ", ".join(change.name for change in changes)
