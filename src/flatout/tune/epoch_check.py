"""Check a loader change across an epoch boundary before adopting it, or report that its trials contained no boundary.

In: a set of changes that is about to be confirmed. Out: an `EpochCheck`. If the length of an epoch is known and trials
of that length are affordable, two such trials are run before any pairs, because a set that is slower after the first
epoch needs none: one with the applied changes, and one with the set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from flatout.records.change import ChangeSet
from flatout.records.trial import Pair
from flatout.trial.epochs import changes_loader, later_epoch_ratio
from flatout.trial.gates import check_losses
from flatout.tune.budget import OutOfBudgetError, check
from flatout.tune.runner import EPOCH_PLACE
from flatout.tune.state import TuningState

MAX_STEPS_AFTER = 100  # measured steps of the later epoch
MAX_BUDGET_SHARE = 0.25  # share of the tuning time, for both trials
LOADER_IS_UNCHECKED = "no epoch boundary was in its trials, so what it does after the first epoch is unknown"


class EpochCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a loader change after an epoch boundary."""

    is_held: bool  # False: it is slower after the boundary, or trains a different model
    reason: str
    is_checked: bool = True  # False: no boundary was in both arms


def check_epoch(state: TuningState, changes: ChangeSet) -> EpochCheck | None:
    """Return the check of the set against the applied changes; None if the set does not change the loader."""
    if not changes_loader(ChangeSet(changes=state.added(changes))):
        return None
    has_boundary_in_all_trials = any(trial.epoch_ends for trial in state.baselines)
    num_steps = num_steps_over_boundary(state)
    if has_boundary_in_all_trials or num_steps is None:
        return EpochCheck(is_held=True, reason=LOADER_IS_UNCHECKED, is_checked=False)
    state.say(f"round {state.round}: checking {changes.name} over an epoch boundary, {num_steps} steps")
    place = f"{EPOCH_PLACE} of {changes.name}"
    try:
        check(state)
        baseline = state.runner.trial(state.applied_set(), num_steps, place)
        check(state)
        candidate = state.runner.trial(changes, num_steps, place)
    except OutOfBudgetError:
        return EpochCheck(is_held=True, reason=LOADER_IS_UNCHECKED, is_checked=False)
    if baseline.is_complete and not candidate.is_complete:
        return EpochCheck(is_held=False, reason=f"over an epoch boundary it fails: {candidate.problem}")
    if baseline.is_complete and candidate.is_complete and len(baseline.step_s) < num_steps and not baseline.epoch_ends:
        return EpochCheck(is_held=True, reason="the job ends within its first epoch")
    judged = check_epoch_in_pairs(state, [Pair(baseline=baseline, candidate=candidate)])
    if judged is None:
        return EpochCheck(is_held=True, reason=LOADER_IS_UNCHECKED, is_checked=False)
    losses = check_losses(candidate, [baseline], ChangeSet(changes=state.added(changes)))
    if not losses.is_passed:
        return EpochCheck(is_held=False, reason=f"over an epoch boundary {losses.reason}")
    return judged


def num_steps_over_boundary(state: TuningState) -> int | None:
    """Return how many measured steps reach well into the second epoch; None if unknown, or if they take too long."""
    steps_per_epoch = state.first.facts.steps_per_epoch if state.first is not None else None
    if steps_per_epoch is None:
        return None
    num_steps = steps_per_epoch + min(steps_per_epoch, MAX_STEPS_AFTER)
    usual_s = state.runner.usual_s or 0.0
    step_s = state.floor.step_s if state.floor is not None else 0.0
    needed_s = 2 * (usual_s + num_steps * step_s)
    left_s = state.options.budget_s - state.runner.spent_s()
    is_affordable = needed_s <= min(left_s, MAX_BUDGET_SHARE * state.options.budget_s)
    return num_steps if is_affordable else None


def check_epoch_in_pairs(state: TuningState, pairs: Sequence[Pair]) -> EpochCheck | None:
    """Compare the arms of the pairs after the boundary; None if no pair has it in both. The losses are not compared."""
    steps_per_epoch = state.first.facts.steps_per_epoch if state.first is not None else None
    complete = [pair for pair in pairs if pair.baseline.is_complete and pair.candidate.is_complete]
    ratios = [later_epoch_ratio(pair.baseline, pair.candidate, steps_per_epoch) for pair in complete]
    logs = [math.log(ratio) for ratio in ratios if ratio is not None]
    if not logs:
        return None
    ratio = math.exp(sum(logs) / len(logs))
    if ratio < 1.0:
        reason = f"after an epoch boundary it is slower, {ratio:.2f}x: what it gains in the first epoch is lost"
        return EpochCheck(is_held=False, reason=reason)
    return EpochCheck(is_held=True, reason=f"after an epoch boundary it is {ratio:.2f}x as fast")
