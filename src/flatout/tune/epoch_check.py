"""Check a loader change across an epoch boundary before adopting it, or report that its trials contained no boundary.

In: a set of changes that is about to be confirmed. Out: an `EpochCheck`. If the length of an epoch is known and trials
of that length are affordable, two such trials are run before any others, because a set that is slower after the first
epoch needs none: one with the applied changes, and one with the set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from statistics import fmean

import msgspec

from flatout.records.change import ChangeSet
from flatout.records.trial import TrialResult
from flatout.trial.epochs import changes_loader, later_epoch_ratio
from flatout.trial.gates import check_losses, has_other_workers
from flatout.tune.progress import Progress, Round, Setup, StoppedError
from flatout.tune.runner import EPOCH_PLACE
from flatout.tune.trials import run_trial

MAX_STEPS_AFTER = 100  # measured steps of the later epoch
MAX_BUDGET_SHARE = 0.25  # share of the tuning time, for both trials
LOADER_IS_UNCHECKED = "no epoch boundary was in its trials, so what it does after the first epoch is unknown"


class EpochCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a loader change after an epoch boundary."""

    is_held: bool  # False: it is slower after the boundary, or trains a different model
    reason: str
    is_checked: bool = True  # False: no boundary was in both arms


def check_epoch(setup: Setup, progress: Progress, this_round: Round, changes: ChangeSet) -> EpochCheck | None:
    """Return the check of the set against the applied changes; None if the set does not change the loader."""
    alone = ChangeSet(changes=progress.applied.added(changes))
    if not (changes_loader(alone) or _changed_workers(progress, changes)):
        return None
    has_boundary_in_all_trials = any(trial.epoch_ends for trial in progress.evidence.baselines)
    num_steps = num_steps_over_boundary(setup, progress)
    if has_boundary_in_all_trials or num_steps is None:
        return EpochCheck(is_held=True, reason=LOADER_IS_UNCHECKED, is_checked=False)
    setup.say(f"round {this_round.number}: checking {changes.name} over an epoch boundary, {num_steps} steps")
    longer = msgspec.structs.replace(progress, num_steps=num_steps)
    place = f"{EPOCH_PLACE} of {changes.name}"
    try:
        _, baseline = run_trial(setup, longer, progress.applied.changes, place=place)
        _, candidate = run_trial(setup, longer, changes, place=place)
    except StoppedError as stopped:
        if stopped.end.ended_by == "interrupted":
            raise StoppedError(progress, stopped.end) from stopped
        return EpochCheck(is_held=True, reason=LOADER_IS_UNCHECKED, is_checked=False)
    if baseline.is_complete and not candidate.is_complete:
        return EpochCheck(is_held=False, reason=f"over an epoch boundary it fails: {candidate.problem}")
    if baseline.is_complete and candidate.is_complete and len(baseline.step_s) < num_steps and not baseline.epoch_ends:
        return EpochCheck(is_held=True, reason="the job ends within its first epoch")
    judged = check_epoch_in_trials(progress, [baseline], [candidate])
    if judged is None:
        return EpochCheck(is_held=True, reason=LOADER_IS_UNCHECKED, is_checked=False)
    losses = check_losses(candidate, [baseline], alone)
    if not losses.is_passed:
        return EpochCheck(is_held=False, reason=f"over an epoch boundary {losses.reason}")
    return judged


def _changed_workers(progress: Progress, changes: ChangeSet) -> bool:
    """Whether a trial of the set had another number of loader workers, as by an argument of the script's own."""
    before = progress.evidence.of(progress.applied.changes)
    return any(has_other_workers(trial, before) for trial in progress.evidence.of(changes))


def num_steps_over_boundary(setup: Setup, progress: Progress) -> int | None:
    """Return how many measured steps reach well into the second epoch; None if unknown, or if they take too long."""
    steps_per_epoch = _steps_per_epoch(progress)
    if steps_per_epoch is None:
        return None
    num_steps = steps_per_epoch + min(steps_per_epoch, MAX_STEPS_AFTER)
    usual_s = setup.runner.usual_s or 0.0
    step_s = max(fmean(trial.step_s) for trial in progress.evidence.baselines)
    needed_s = 2 * (usual_s + num_steps * step_s)
    left_s = setup.options.budget_s - setup.runner.spent_s()
    is_affordable = needed_s <= min(left_s, MAX_BUDGET_SHARE * setup.options.budget_s)
    return num_steps if is_affordable else None


def check_epoch_in_trials(
    progress: Progress, baselines: Sequence[TrialResult], candidates: Sequence[TrialResult]
) -> EpochCheck | None:
    """Compare the arms after the boundary; None if no trial of one of them has it. The losses are not compared."""
    steps_per_epoch = _steps_per_epoch(progress)
    complete = [[trial for trial in trials if trial.is_complete] for trials in (baselines, candidates)]
    ratios = [later_epoch_ratio(before, after, steps_per_epoch) for before, after in product(*complete)]
    logs = [math.log(ratio) for ratio in ratios if ratio is not None]
    if not logs:
        return None
    ratio = math.exp(sum(logs) / len(logs))
    if ratio < 1.0:
        reason = f"after an epoch boundary it is slower, {ratio:.2f}x: what it gains in the first epoch is lost"
        return EpochCheck(is_held=False, reason=reason)
    return EpochCheck(is_held=True, reason=f"after an epoch boundary it is {ratio:.2f}x as fast")


def _steps_per_epoch(progress: Progress) -> int | None:
    return progress.first.facts.steps_per_epoch if progress.first is not None else None
